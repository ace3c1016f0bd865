//! The normalisations of Sinkhorn and Knopp, "Concerning nonnegative matrices and doubly stochastic matrices" (1967).

use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_kernels as kernels;

use super::forms;

/// Divides the positive matrices `m` `[batch, time, n, n]` `steps` times, alternately by their column sums and their
/// row sums. Begins with columns. `eps` is added to each sum.
pub fn sinkhorn<B: Backend>(m: Tensor<B, 4>, steps: usize, eps: f64) -> Tensor<B, 4> {
    kernels::sinkhorn(kernels::Sinkhorn { steps, eps }, m)
        .unwrap_or_else(|m| plain(forms::plain("Sinkhorn", m), steps, eps))
}

/// The plain form of [`sinkhorn`].
pub fn plain<B: Backend>(m: Tensor<B, 4>, steps: usize, eps: f64) -> Tensor<B, 4> {
    (0..steps).fold(m, |m, step| {
        let along = if step % 2 == 0 { 2 } else { 3 };
        m.clone() / (m.sum_dim(along) + eps)
    })
}
