//! MUDD, multiway dynamic dense connections (Xiao et al., "MUDDFormer: breaking residual bottlenecks in transformers
//! via multiway dynamic dense connections", 2025, <https://arxiv.org/abs/2502.12170>, eqs. 4-10). The inputs q, k, v
//! and r of the next layer are mixtures of X_0, the embedding, and the outputs X_1, …, X_{l+1} of all layers so far:
//!
//! ```text
//! A = r + MHA(LN_q(q), LN_k(k), LN_v(v))    X_{l+1} = A + MLP(LN_2(A))
//! w = GELU(RMS(X_{l+1}) W_1) W_2 + a        W_1 [D, K],  W_2 [K, C (l + 2)],  a [C, l + 2]
//! q', k', v', r' = Σ_j w_c[j] X_j           j = 0, …, l + 1,  c = q, k, v, r
//! ```
//!
//! C = 4 is the number of mixtures, and K = C (l + 2). The inputs of layer 0 are X_0. The last layer has one mixture,
//! r', which goes to the final norm; there, C = 1 and K = 4 C (l + 2). With [`PrePost`], the mixtures are X_{l+1} +
//! RMS'(Σ_j w_c[j] RMS_j(X_j)).
//!
//! Initially, each row of a is 0, …, 0, 1 (with [`PrePost`], all 0), W_2 is 0, and W_1 is drawn from N(0, 1/D), so a
//! new model equals the plain model.
//!
//! A mixture is a sum over its sources, which are never copied into one tensor. A backward pass keeps the L + 1 sources
//! and the C inputs of each layer, so memory grows linearly with depth. The sums take C (l + 2) D multiplications for
//! each position after layer l, about C D L² / 2 over all layers. Decoding needs no further cache, because a mixture
//! reads only its own position.

mod config;

use burn::module::{Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::mix::mixtures;
use residual_zoo_core::{
    Activation, Branch, BranchFn, Connection, Ends, Norm, QkvInput, Stream, project,
};

use crate::qkv_norms::QkvNorms;

pub use config::{MuddConfig, MuddWays, PrePost};

/// Computes r + f(q, k, v), or r + f(r) around a sublayer without attention. At the end of a layer, computes the
/// mixtures. The stream's x is r. The stream carries the sources: X_j, or RMS_j(X_j) with [`PrePost`]. From the end of
/// a layer to the next attention, it also carries q, k and v, if they can differ from r.
#[derive(Module, Debug)]
pub struct Mudd<B: Backend> {
    /// The norm of f's input. It is the identity if the branch has its own norm, or if q, k and v have one norm each.
    norm: Norm<B>,
    /// LN_q, LN_k and LN_v.
    norms: Option<QkvNorms<B>>,
    /// The mixtures after the layer, if f is the layer's last sublayer.
    mixtures: Option<Mixtures<B>>,
    /// The index l of the layer.
    layer: usize,
}

/// The mixtures after layer l.
#[derive(Module, Debug)]
struct Mixtures<B: Backend> {
    /// The part of w that depends on X_{l+1}, in the dynamic form.
    generator: Option<Generator<B>>,
    /// a, `[C, l + 2]`.
    mixing: Param<Tensor<B, 2>>,
    /// RMS_{l+1} of the source X_{l+1}, with [`PrePost`].
    norm_source: Norm<B>,
    /// RMS' of each mixture, with [`PrePost`].
    norms_behind: Option<Vec<Norm<B>>>,
    /// The inputs that have a mixture, as letters of `qkvr`, in the order of the mixtures.
    ways: String,
    /// Whether q, k or v of the next layer can differ from r.
    apart: bool,
}

/// GELU(RMS(X) W_1) W_2.
#[derive(Module, Debug)]
struct Generator<B: Backend> {
    norm: Norm<B>,
    /// W_1, `[D, K]`.
    w1: Param<Tensor<B, 2>>,
    /// W_2, `[K, C (l + 2)]`. Column c (l + 2) + j is for source j of mixture c.
    w2: Param<Tensor<B, 2>>,
    activation: Activation,
}

impl<B: Backend> Generator<B> {
    /// Maps X `[batch, time, D]` to `[batch, time, C (l + 2)]`.
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let hidden = project(self.norm.forward(x), self.w1.val());
        project(self.activation.apply(hidden), self.w2.val())
    }
}

impl<B: Backend> Mixtures<B> {
    /// Computes w from x `[batch, time, D]`: `[batch, time, C, l + 2]`, or `[1, 1, C, l + 2]` in the static form.
    fn weights(&self, x: Tensor<B, 3>) -> Tensor<B, 4> {
        let a = self.mixing.val().unsqueeze::<4>();
        let Some(generator) = &self.generator else {
            return a;
        };
        let ([batch, time, _], [_, _, ways, sources]) = (x.dims(), a.dims());
        let dynamic = generator.forward(x);
        dynamic.reshape([batch, time, ways, sources]) + a
    }

    /// Returns r, an input of the next layer. Appends X_{l+1}, which is x, to the sources; with [`PrePost`], appends
    /// RMS_{l+1}(x) instead. Then appends the other inputs, q, k and v, if they can differ from r.
    fn of(&self, x: Tensor<B, 3>, sources: &mut Vec<Tensor<B, 3>>) -> Tensor<B, 3> {
        sources.push(self.norm_source.forward(x.clone()));
        let mixed = mixtures(self.weights(x.clone()), sources);
        let input = |letter: char| {
            let Some(c) = self.ways.find(letter) else {
                return x.clone();
            };
            let mixture = mixed[c].clone();
            match &self.norms_behind {
                Some(norms) => norms[c].forward(mixture) + x.clone(),
                None => mixture,
            }
        };
        let r = input('r');
        if self.apart {
            sources.extend(['q', 'k', 'v'].map(input));
        }
        r
    }
}

impl<B: Backend> Connection<B> for Mudd<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        // After the l + 1 sources come q, k and v, unless they are r.
        let qkv = <[_; 3]>::try_from(stream.carried.split_off(self.layer + 1));
        let inputs = qkv.map_or_else(|_| stream.x.clone().into(), QkvInput::Each);
        let fx = match (inputs, &self.norms) {
            (QkvInput::Same(r), None) => f.of_normed(r, |r| self.norm.forward(r)),
            (inputs, Some(norms)) => {
                let normed = |x: QkvInput<B>| norms.forward(x.each()).into();
                f.attend_normed(inputs, normed, |heads| heads)
            }
            (inputs, None) => f.attend(inputs, |heads| heads),
        };
        stream.x = fx + stream.x;
        if let Some(mixtures) = &self.mixtures {
            stream.x = mixtures.of(stream.x, &mut stream.carried);
        }
        stream
    }
}

/// The ends of a stream that carries its first source: X_0, or RMS_0(X_0) with [`PrePost`].
#[derive(Module, Debug)]
pub struct FirstSource<B: Backend> {
    norm: Norm<B>,
}

impl<B: Backend> Ends<B> for FirstSource<B> {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        let mut stream = Stream::new(x.clone());
        stream.carried.push(self.norm.forward(x));
        stream
    }
}
