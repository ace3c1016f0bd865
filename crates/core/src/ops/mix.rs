//! Weighted sums of the parallel streams at each position, and of the outputs of several layers.

use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_kernels as kernels;

use super::forms;

/// Computes Aᵀ H for each position: A `[batch, time, n, m]`, or `[1, 1, n, m]` for all positions, and H
/// `[batch, time, n, d]` to `[batch, time, m, d]`.
pub fn mix<B: Backend>(a: Tensor<B, 4>, h: Tensor<B, 4>) -> Tensor<B, 4> {
    kernels::mix(a, h).unwrap_or_else(|inputs| {
        let [a, h] = forms::plain("sums of streams", inputs);
        plain(a, h)
    })
}

/// Computes Aᵀ H + Bᵀ Y for each position, with A and B as in [`mix`]: H `[batch, time, n, d]` and Y
/// `[batch, time, k, d]` to `[batch, time, m, d]`.
pub fn mix_both<B: Backend>(
    a: Tensor<B, 4>,
    h: Tensor<B, 4>,
    b: Tensor<B, 4>,
    y: Tensor<B, 4>,
) -> Tensor<B, 4> {
    kernels::mix_both([a, h, b, y]).unwrap_or_else(|[a, h, b, y]| mix(a, h) + mix(b, y))
}

/// The plain form of [`mix`]: element by element, and stream by stream unless d = 1. Streams are f32, so this form
/// avoids matrix products, which may [round their factors](super::precision::product_roundoff).
pub fn plain<B: Backend>(a: Tensor<B, 4>, h: Tensor<B, 4>) -> Tensor<B, 4> {
    if h.dims()[3] == 1 {
        return (a * h).sum_dim(2).swap_dims(2, 3);
    }
    let of_stream =
        |s: usize| a.clone().narrow(2, s, 1).swap_dims(2, 3) * h.clone().narrow(2, s, 1);
    let rest = 1..h.dims()[2];
    rest.map(of_stream).fold(of_stream(0), Tensor::add)
}

/// Computes H Gᵀ for each position: H `[batch, time, n, d]` and G `[batch, time, m, d]` to `[batch, time, n, m]`.
pub fn dots<B: Backend>(h: Tensor<B, 4>, g: Tensor<B, 4>) -> Tensor<B, 4> {
    kernels::dots(h, g).unwrap_or_else(|inputs| {
        let [h, g] = forms::plain("dot products of streams", inputs);
        dots_plain(h, g)
    })
}

/// The plain form of [`dots`], row by row of G, without matrix products for the reason given at [`plain`].
pub fn dots_plain<B: Backend>(h: Tensor<B, 4>, g: Tensor<B, 4>) -> Tensor<B, 4> {
    let with_row = |t: usize| (h.clone() * g.clone().narrow(2, t, 1)).sum_dim(3);
    Tensor::cat((0..g.dims()[2]).map(with_row).collect(), 3)
}

/// Computes y_c = Σ_j w[c, j] x_j for each position, without a copy of the x_j: w `[batch, time, C, J]`, or
/// `[1, 1, C, J]` for all positions, and J tensors x `[batch, time, d]` to C tensors `[batch, time, d]`.
///
/// # Panics
///
/// Panics if there is no x.
pub fn mixtures<B: Backend>(w: Tensor<B, 4>, x: &[Tensor<B, 3>]) -> Vec<Tensor<B, 3>> {
    kernels::mixtures(w, x.to_vec()).unwrap_or_else(|inputs| {
        let (w, x) = forms::plain("mixtures", inputs);
        mixtures_plain(w, &x)
    })
}

/// The plain form of [`mixtures`], x by x.
///
/// # Panics
///
/// Panics if there is no x.
pub fn mixtures_plain<B: Backend>(w: Tensor<B, 4>, x: &[Tensor<B, 3>]) -> Vec<Tensor<B, 3>> {
    let [batch, time, count, _] = w.dims();
    let term = |j: usize| {
        let w = w.clone().narrow(3, j, 1).reshape([batch, time, 1, count]);
        mix(w, x[j].clone().unsqueeze_dim(2))
    };
    let all = (1..x.len()).map(term).fold(term(0), Tensor::add);
    let one = |c| all.clone().narrow(2, c, 1).squeeze_dim(2);
    (0..count).map(one).collect()
}
