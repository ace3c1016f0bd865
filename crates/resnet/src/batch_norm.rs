//! Batch normalisation.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::batch_norm::batch_norm;
use residual_zoo_core::{Cost, statistics, widen};

/// (x − mean) / √(variance + ε) · γ + β, with the statistics of each channel (Ioffe and Szegedy, "Batch normalization",
/// 2015, algorithm 1).
///
/// Under autodiff, as in training, the norm uses the statistics of the batch and [notes](statistics::note) them. The
/// trainer updates the running statistics with them after the step. Without autodiff, or if frozen, the norm uses the
/// running statistics. As in PyTorch, the norm uses the variance Σ (x − mean)² / n of the n values of a channel, but
/// notes Σ (x − mean)² / (n − 1).
#[derive(Module, Debug)]
pub struct BatchNorm<B: Backend> {
    /// γ, `[channels]`.
    pub gamma: Param<Tensor<B, 1>>,
    /// β, `[channels]`.
    pub beta: Param<Tensor<B, 1>>,
    /// The running mean, `[channels]`.
    pub running_mean: Param<Tensor<B, 1>>,
    /// The running variance, `[channels]`.
    pub running_var: Param<Tensor<B, 1>>,
    /// ε.
    eps: f64,
    /// The weight of the newest batch in the running statistics.
    momentum: f64,
    frozen: bool,
}

impl<B: Backend> BatchNorm<B> {
    /// Makes a norm with γ = 1, β = 0, and the running statistics of N(0, 1).
    pub fn new(channels: usize, eps: f64, momentum: f64, frozen: bool, device: &B::Device) -> Self {
        let ones = || Initializer::Ones.init([channels], device);
        let zeros = || Initializer::Zeros.init([channels], device);
        Self {
            gamma: ones(),
            beta: zeros(),
            running_mean: zeros().set_require_grad(false),
            running_var: ones().set_require_grad(false),
            eps,
            momentum,
            frozen,
        }
    }

    /// Normalises `[batch, height, width, channels]`.
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let x = widen(x);
        let shape = x.dims();
        let [batch, height, width, channels] = shape;
        let rows = batch * height * width;
        let x = x.reshape([rows, channels]);
        let [gamma, beta, running_mean, running_var] = [
            &self.gamma,
            &self.beta,
            &self.running_mean,
            &self.running_var,
        ]
        .map(|p| p.val().unsqueeze::<2>());
        let y = match B::ad_enabled(&x.device()) && !self.frozen {
            true => {
                let (y, [mean, variance]) = batch_norm(self.eps, x, gamma, beta);
                let unbiased = variance * (rows as f64 / rows.saturating_sub(1).max(1) as f64);
                statistics::note(&self.running_mean, mean, self.momentum);
                statistics::note(&self.running_var, unbiased, self.momentum);
                y
            }
            false => (x - running_mean) * (gamma / (running_var + self.eps).sqrt()) + beta,
        };
        y.reshape(shape)
    }
}

/// Returns the cost of a norm. The running statistics do not count, because they are not trained.
pub(crate) fn cost(channels: usize) -> Cost {
    Cost::vector(channels) * 2
}
