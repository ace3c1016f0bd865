//! Canon layers (Allen-Zhu, "Physics of language models: part 4.1", 2025).

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Past, causal_sum, widen};

use crate::CanonConfig;

/// canon(z)_t = z_t + Σ_j w_j ⊙ z_{t−K+1+j}, with a causal sum over K positions for each channel. The term z_t is
/// optional.
#[derive(Module, Debug)]
pub struct Canon<B: Backend> {
    /// w, `[channels, K]`. The last column belongs to the current position.
    taps: Param<Tensor<B, 2>>,
    residual: bool,
}

impl<B: Backend> Canon<B> {
    /// Draws w from the uniform distribution between ±1/√K, as the author's code does.
    pub(crate) fn new(config: &CanonConfig, channels: usize, device: &B::Device) -> Self {
        let bound = (config.kernel as f64).powf(-0.5);
        let (min, max) = (-bound, bound);
        let taps = Initializer::Uniform { min, max };
        Self {
            taps: taps.init([channels, config.kernel], device),
            residual: config.residual,
        }
    }

    /// Maps z `[batch, time, n · channels]`, n inputs side by side, to the same shape. With a `past`, z holds the
    /// positions that follow it.
    pub fn forward(&self, z: Tensor<B, 3>, past: Option<&mut Past<B>>) -> Tensor<B, 3> {
        let z = widen(z);
        let of_one = self.taps.dims()[0];
        let taps = match z.dims()[2] / of_one {
            1 => self.taps.val(),
            // In Burn 0.21, the gradient of `repeat_dim` is wrong if the axis is longer than 1.
            n => Tensor::cat(vec![self.taps.val(); n], 0),
        };
        let sum = causal_sum(z.clone(), taps, past);
        match self.residual {
            true => z + sum,
            false => sum,
        }
    }
}
