//! Weighted sums of the streams of a position.

use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_kernels as kernels;

use super::forms;

/// Aᵀ H for each position: A `[batch, time, n, m]`, or `[1, 1, n, m]` for all positions, and H `[batch, time, n, d]`
/// to `[batch, time, m, d]`.
pub fn mix<B: Backend>(a: Tensor<B, 4>, h: Tensor<B, 4>) -> Tensor<B, 4> {
    kernels::mix(a, h).unwrap_or_else(|inputs| {
        let [a, h] = forms::plain("sums of streams", inputs);
        plain(a, h)
    })
}

/// The plain form of [`mix`], stream by stream. It avoids matrix products, which may [round their
/// factors](super::precision::product_roundoff), because streams are f32.
pub fn plain<B: Backend>(a: Tensor<B, 4>, h: Tensor<B, 4>) -> Tensor<B, 4> {
    let of_stream =
        |s: usize| a.clone().narrow(2, s, 1).swap_dims(2, 3) * h.clone().narrow(2, s, 1);
    let rest = 1..h.dims()[2];
    rest.map(of_stream).fold(of_stream(0), Tensor::add)
}
