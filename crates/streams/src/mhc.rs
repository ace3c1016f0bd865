//! Manifold-constrained hyper-connections (Xie et al., "mHC: manifold-constrained hyper-connections", 2025,
//! <https://arxiv.org/abs/2512.24880>, eqs. 7-9). H `[n, D]` has n streams, and r = RMSNorm(vec H):
//!
//! ```text
//! z_pre = s_0 r P_pre + b_pre [n]    z_post = s_1 r P_post + b_post [n]    z_res = s_2 mat(r P_res) + b_res [n, n]
//! pre = σ(z_pre)    post = 2 σ(z_post)    res = Sinkhorn(exp(z_res)): columns, then rows, t times
//! H' = res H + postᵀ f(pre H)
//!
//! iHC:       res = I, without z_res
//! mHC-lite:  res = Σ_k p_k Π_k,  p = softmax(z_res) [n!],  Π_k the permutations of n streams
//! KromHC:    res = U_1 ⊗ … ⊗ U_K,  U_j [f_j, f_j] as res of mHC-lite,  n = f_1 ⋯ f_K
//! ```
//!
//! The last three lines are forms of res ([`MhcResidual`]) that are doubly stochastic without Sinkhorn: Identity HC, an
//! ablation of mHC; mHC-lite (Yang and Gao, 2026, <https://arxiv.org/abs/2601.05732>); KromHC (Zhou et al., 2026,
//! <https://arxiv.org/abs/2601.21579>).
//!
//! The mHC paper gives only one initial value, s = 0.01. [`MhcStart`] defines the others. With equal weights for all
//! streams, equal streams would have equal gradients and stay equal, up to rounding. The initial P or b_pre therefore
//! distinguishes the streams.

mod config;
mod residual;
#[cfg(test)]
mod tests;

use burn::module::{Module, Param};
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::mix::{mix, mix_both};
use residual_zoo_core::ops::sinkhorn::sinkhorn;
use residual_zoo_core::{Branch, BranchFn, Connection, Ends, Norm, Stream, project};
use serde::{Deserialize, Serialize};

use crate::Copies;
use crate::ends::streams;

pub use config::MhcConfig;
pub use residual::MhcResidual;

/// The source of the equations: the paper, or the TileKernels code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MhcForm {
    /// The equations of the paper. The paper does not define the end of the stream; this crate takes the sum of the
    /// streams, or their mean if no norm follows.
    #[default]
    Paper,
    /// The code, deepseek-ai/TileKernels. `res` is transposed, so Sinkhorn begins with rows. Sinkhorn's first step is a
    /// softmax. ε is added to `pre`, to the softmax and to the divisors. The norm has no scale. The end of the stream
    /// is a weighted sum of the streams, with its own weights.
    Code,
}

/// The initial values that the paper does not give. Except with `OneStream`, b_post is 0, so post is 1, or about 1
/// with `Uniform`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum MhcStart {
    /// As in NVIDIA's Megatron-LM: all b are 0, so pre is about ½, and res about 1/n everywhere. With
    /// [`MhcResidual::Chosen`], res is about the mean of the permutations; with [`MhcResidual::Identity`], res is I. P,
    /// drawn by Xavier's uniform rule, distinguishes the streams: pre and post differ by about 1 % between streams.
    #[default]
    Uniform,
    /// P = 0. b_res is 0 on the diagonal, or for the identity permutation, and this value elsewhere. With −8, as in
    /// tokenbender/mHC, streams hardly mix, and the entries of b_res with this value have small gradients. With −3,
    /// Sinkhorn and 4 streams, each stream takes 4 % from each other stream. b_pre distinguishes the streams: pre is ¾
    /// for stream i mod n of residual i, and the other streams share ¼. A new model equals the plain model, up to the ε
    /// of the final norm and of `form: Code`.
    Identity(f64),
    /// As in the code of mHC-lite and KromHC: P = 0, and b_res is as with `Identity(-8)`. b_pre and b_post are 1 for
    /// one stream and −1 for the others. So pre is 0.73 for this stream and 0.27 for the others, and post is 1.46 and
    /// 0.54. The code draws the stream at random; this crate takes stream i mod n of residual i. A new model does not
    /// equal the plain model.
    OneStream,
}

/// H' = res H + postᵀ f(pre H). The stream holds the rows of H side by side.
#[derive(Module, Debug)]
pub struct Mhc<B: Backend> {
    read: Read<B>,
    /// s_0, s_1, s_2, `[3]`; without z_res, s_0 and s_1.
    scale: Param<Tensor<B, 1>>,
    n: usize,
    form: MhcForm,
    residual: MhcResidual,
    transposed: bool,
    sinkhorn: usize,
    eps: f64,
}

/// The norm and the map to z = s ⊙ (r P) + b.
#[derive(Module, Debug)]
struct Read<B: Backend> {
    norm: Norm<B>,
    /// P, `[n · D, columns]`.
    phi: Param<Tensor<B, 2>>,
    /// b, `[columns]`.
    base: Param<Tensor<B, 1>>,
}

impl<B: Backend> Read<B> {
    /// Computes s ⊙ (r P) + b, `[batch, time, columns]`, for s `[columns]`.
    fn forward(&self, x: Tensor<B, 3>, s: Tensor<B, 1>) -> Tensor<B, 3> {
        let rp = project(self.norm.forward(x), self.phi.val());
        rp * s.unsqueeze() + self.base.val().unsqueeze()
    }
}

impl<B: Backend> Mhc<B> {
    /// Repeats each of s_0, s_1 and s_2 for its columns, `[2n + length of z_res]`.
    fn scales(&self) -> Tensor<B, 1> {
        let n = self.n;
        let counts = [n, n, self.residual.columns(n)].into_iter().enumerate();
        let counts = counts.filter(|(_, count)| *count > 0);
        let parts = counts.map(|(i, count)| self.scale.val().narrow(0, i, 1).repeat_dim(0, count));
        Tensor::cat(parts.collect(), 0)
    }

    /// Returns resᵀ, or res if `transposed`, `[batch, time, n, n]`, from z_res; `None` for I.
    fn weights(&self, z: impl Fn(usize, usize) -> Tensor<B, 3>) -> Option<Tensor<B, 4>> {
        let n = self.n;
        let z = match self.residual.columns(n) {
            0 => return None,
            columns => z(2 * n, columns),
        };
        let res = match &self.residual {
            MhcResidual::Sinkhorn => {
                let [batch, time, _] = z.dims();
                self.doubly_stochastic(z.reshape([batch, time, n, n]))
            }
            residual => residual.convex(z, n)?,
        };
        Some(match self.transposed {
            true => res,
            false => res.swap_dims(2, 3),
        })
    }

    /// Applies Sinkhorn to z_res `[batch, time, n, n]`.
    fn doubly_stochastic(&self, z: Tensor<B, 4>) -> Tensor<B, 4> {
        let eps = self.eps;
        match self.form {
            MhcForm::Paper => {
                // Subtracting the maximum divides all entries by one factor, which does not change the result. e^-80 is
                // above 0 in f32, so no row or column has the sum 0.
                let max = z.clone().detach().max_dim(3).max_dim(2);
                sinkhorn((z - max).clamp_min(-80.0).exp(), 2 * self.sinkhorn, 0.0)
            }
            MhcForm::Code => {
                let first = softmax(z, 3) + eps;
                sinkhorn(first, 2 * self.sinkhorn - 1, eps).swap_dims(2, 3)
            }
        }
    }
}

impl<B: Backend> Connection<B> for Mhc<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let n = self.n;
        let [batch, time, width] = stream.x.dims();
        let z = self.read.forward(stream.x.clone(), self.scales());
        let part = |from, count| z.clone().narrow(2, from, count);
        let pre = sigmoid(part(0, n)).unsqueeze_dim::<4>(3);
        let pre = match self.form {
            MhcForm::Paper => pre,
            MhcForm::Code => pre + self.eps,
        };
        let post = sigmoid(part(n, n)).unsqueeze_dim::<4>(2) * 2.0;
        let weights = self.weights(part);
        let h = streams(stream.x, n);
        let fx = f.of(mix(pre, h.clone()).squeeze_dim(2)).unsqueeze_dim(2);
        let h = match weights {
            Some(weights) => mix_both(weights, h, post, fx),
            None => h + mix(post, fx),
        };
        Stream {
            x: h.reshape([batch, time, width]),
            ..stream
        }
    }
}

/// Opens n copies of x_0. Closes the stream with the sum or mean of the n streams, or with a weighted sum in
/// [`MhcForm::Code`].
#[derive(Module, Debug)]
pub struct MhcEnds<B: Backend> {
    copies: Copies,
    head: Option<Head<B>>,
}

/// Computes Σ_j w_j H_j with w = σ(s r P + b) + ε.
#[derive(Module, Debug)]
struct Head<B: Backend> {
    read: Read<B>,
    /// s, `[1]`.
    scale: Param<Tensor<B, 1>>,
    eps: f64,
}

impl<B: Backend> Ends<B> for MhcEnds<B> {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        self.copies.open(x)
    }

    fn close(&self, stream: Stream<B>) -> Tensor<B, 3> {
        let Some(head) = &self.head else {
            return self.copies.close(stream);
        };
        let n = self.copies.n;
        let scale = head.scale.val().repeat_dim(0, n);
        let w = sigmoid(head.read.forward(stream.x.clone(), scale)) + head.eps;
        mix(w.unsqueeze_dim(3), streams(stream.x, n)).squeeze_dim(2)
    }
}
