//! Layer-integrated memory, LIMe (Gerasimov et al., 2025, <https://arxiv.org/abs/2502.09245>): the keys and values of
//! key-value head h in layer l ≥ 1 become
//!
//! ```text
//! K_h = Σ_{m ≤ l, h'} R_l[h, m H + h'] k_{m,h'},   V_h = Σ_{m ≤ l, h'} R_l[h, m H + h'] v_{m,h'}
//! ```
//!
//! k_m and v_m are the keys and values of layer m itself, before rotary positions. H is the number of key-value heads,
//! and R_l `[H, (l + 1) H]` is a parameter. Queries are unchanged.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Plain, Sites, Stream, matmul,
};
use serde::{Deserialize, Serialize};

use crate::values::{kept, need_equal_attention, size};

/// x + f(x), where attention reads mixtures of the keys and values of all layers so far. The stream carries the keys
/// and values of earlier layers, `[batch, time, heads · d]` each: k_0, v_0, k_1, v_1, ….
#[derive(Module, Debug)]
pub struct Lime<B: Backend> {
    /// R_l `[H, (l + 1) H]`, oldest layer first; `None` in the first layer.
    mixing: Option<Param<Tensor<B, 2>>>,
    /// Whether a later layer reads this layer's keys and values.
    is_read: bool,
    is_attention: bool,
}

/// Mixes the heads of n tensors x, `[batch, time, H · d]` each, by r `[H, n · H]`, to `[batch, H, time, d]`.
fn mix<B: Backend>(r: Tensor<B, 2>, x: Vec<Tensor<B, 3>>) -> Tensor<B, 4> {
    let all = Tensor::cat(x, 2);
    let [batch, time, width] = all.dims();
    let [heads, sources] = r.dims();
    let d = width / sources;
    let all = all
        .reshape([batch, time, sources, d])
        .permute([2, 0, 1, 3])
        .reshape([sources, batch * time * d]);
    matmul(r, all)
        .reshape([heads, batch, time, d])
        .permute([1, 0, 2, 3])
}

impl<B: Backend> Connection<B> for Lime<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        if !self.is_attention {
            return Plain.update(stream, f);
        }
        let fx = f.attend(stream.x.clone(), |mut heads| {
            let own = [kept(&heads.k), kept(&heads.v)];
            if let Some(r) = &self.mixing {
                let all = |i: usize| {
                    let earlier = stream.carried.iter().skip(i).step_by(2).cloned();
                    earlier.chain([own[i].clone()]).collect()
                };
                (heads.k, heads.v) = (mix(r.val(), all(0)), mix(r.val(), all(1)));
            }
            if self.is_read {
                stream.carried.extend(own);
            }
            heads
        });
        Stream {
            x: fx + stream.x,
            ..stream
        }
    }
}

/// The initial R.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimeStart {
    /// The identity on the layer's own heads. The rest is uniform between ±√(3 / ((l + 1) H)), as in the authors' code.
    #[default]
    Published,
    /// The identity on the layer's own heads and 0 elsewhere: the plain residual.
    Identity,
}

/// The config of [`Lime`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimeConfig {
    /// The initial R.
    pub start: LimeStart,
}

impl Design for LimeConfig {
    type Connection<B: Backend> = Lime<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "LIMe"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        let acts = "it changes the keys and values of attention";
        need_equal_attention(on, "Lime", acts).map(|_| ())
    }

    fn continues(&self, _: &Self) -> bool {
        true
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Lime<B> {
        let (layer, heads) = (on.layer(i), size(on).kv_heads);
        let is_attention = on.is_attention(i);
        let sources = (layer + 1) * heads;
        let rest = match self.start {
            LimeStart::Published => {
                let max = (3.0 / sources as f64).sqrt();
                Initializer::Uniform { min: -max, max }
            }
            LimeStart::Identity => Initializer::Zeros,
        };
        let router = || {
            let r: Param<Tensor<B, 2>> = rest.init([heads, sources], device);
            r.init_mapper(move |r| {
                let is_trained = r.is_require_grad();
                let own = Tensor::eye(heads, &r.device());
                // A parameter must be a leaf of the graph.
                let r = r.detach().set_require_grad(false);
                r.slice_assign([0..heads, sources - heads..sources], own)
                    .set_require_grad(is_trained)
            })
        };
        Lime {
            mixing: (is_attention && layer > 0).then(router),
            is_read: layer + 1 < on.layers(),
            is_attention,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    /// Counts R, and the products of R with keys and with values.
    fn cost(&self, on: &Sites) -> Cost {
        let (layers, size) = (on.layers(), size(on));
        // Number of key-value heads that the layers l ≥ 1 read: the sum of (l + 1) H.
        let read = (layers * (layers + 1) / 2 - 1).saturating_mul(size.kv_heads);
        let one = Cost::vector(size.kv_heads) + Cost::flops(2 * 2 * size.kv_heads * size.d);
        one * read
    }
}
