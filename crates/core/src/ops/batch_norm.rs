//! Normalisation by the statistics of a batch.

use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_kernels as kernels;

use super::forms;

/// The normalised batch, and the mean and the variance Σ (x − mean)² / rows of each channel.
pub type Normed<B> = kernels::Normed<B>;

/// Computes (x − mean) / √(variance + eps) · γ + β for x `[rows, channels]` and γ and β `[1, channels]` (Ioffe and
/// Szegedy, "Batch normalization", 2015, algorithm 1). The mean and the variance, `[channels]`, are over all rows.
/// Gradients pass through the mean and the variance, but not through their returned copies.
pub fn batch_norm<B: Backend>(
    eps: f64,
    x: Tensor<B, 2>,
    gamma: Tensor<B, 2>,
    beta: Tensor<B, 2>,
) -> Normed<B> {
    kernels::batch_norm(eps, x, gamma, beta).unwrap_or_else(|inputs| {
        let [x, gamma, beta] = forms::plain("batch norm", inputs);
        plain(eps, x, gamma, beta)
    })
}

/// The plain form of [`batch_norm`].
pub fn plain<B: Backend>(
    eps: f64,
    x: Tensor<B, 2>,
    gamma: Tensor<B, 2>,
    beta: Tensor<B, 2>,
) -> Normed<B> {
    let mean = x.clone().mean_dim(0);
    let x = x - mean.clone();
    let variance = (x.clone() * x.clone()).mean_dim(0);
    let y = x / (variance.clone() + eps).sqrt() * gamma + beta;
    (y, [mean, variance].map(|s| s.detach().squeeze_dim(0)))
}
