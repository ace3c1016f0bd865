//! Causal sums over positions, channel by channel.

use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_kernels as kernels;

use super::forms;
use crate::Past;

/// Computes Σ_j w_j ⊙ z_{t−K+1+j} for z `[rows, time, channels]` and w `[channels, K]`, whose last column belongs to
/// the current position, t. With a `past`, z holds the positions after the past's positions; without one, the whole
/// sequence.
pub fn causal_sum<B: Backend>(
    z: Tensor<B, 3>,
    w: Tensor<B, 2>,
    past: Option<&mut Past<B>>,
) -> Tensor<B, 3> {
    if past.is_some() {
        return plain(z, w, past);
    }
    kernels::causal_sum(z, w).unwrap_or_else(|inputs| {
        let (z, w) = forms::plain("causal sums", inputs);
        plain(z, w, None)
    })
}

/// The plain form of [`causal_sum`], tap by tap.
pub fn plain<B: Backend>(
    z: Tensor<B, 3>,
    w: Tensor<B, 2>,
    past: Option<&mut Past<B>>,
) -> Tensor<B, 3> {
    let time = z.dims()[1];
    let kernel = w.dims()[1];
    let all = Past::before(past, z, kernel - 1);
    let term = |j| {
        // On WGPU and CUDA, Burn 0.21 gives a wrong result when it reshapes one column of a transposed w to three axes.
        let w = w.clone().narrow(1, j, 1).squeeze_dim::<1>(1).unsqueeze();
        all.clone().narrow(1, j, time) * w
    };
    (1..kernel).fold(term(0), |sum, j| sum + term(j))
}
