//! Canon layers (Allen-Zhu, "Physics of language models: part 4.1", 2025).

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use residual_zoo_core::{Cache, widen};

use crate::CanonConfig;

/// canon(z)_t = z_t + Σ_j w_j ⊙ z_{t−K+1+j}, a causal sum over K positions for each channel.
#[derive(Module, Debug)]
pub struct Canon<B: Backend> {
    /// w, `[channels, K]`. The last column belongs to the present position.
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

    /// Maps z `[batch, time, channels]` to the same shape. With a cache, z holds the positions after the cached ones.
    pub fn forward(&self, z: Tensor<B, 3>, past: Option<&mut Past<B>>) -> Tensor<B, 3> {
        let z = widen(z);
        let [batch, time, channels] = z.dims();
        let taps = self.taps.val();
        let kernel = taps.dims()[1];
        let nothing = || Tensor::zeros([batch, kernel - 1, channels], &z.device());
        let before = past.as_ref().and_then(|past| past.0.clone());
        let all = Tensor::cat(vec![before.unwrap_or_else(nothing), z.clone()], 1);
        if let Some(past) = past {
            past.0 = Some(all.clone().narrow(1, time, kernel - 1));
        }
        let tap = |j| taps.clone().narrow(1, j, 1).reshape([1, 1, channels]);
        let term = |j| all.clone().narrow(1, j, time) * tap(j);
        let first = match self.residual {
            true => z + term(0),
            false => term(0),
        };
        (1..kernel).fold(first, |sum, j| sum + term(j))
    }
}

/// The last K − 1 inputs of a [`Canon`], `[rows, K − 1, channels]`; `None` before the first position.
#[derive(Clone, Debug)]
pub struct Past<B: Backend>(Option<Tensor<B, 3>>);

impl<B: Backend> Default for Past<B> {
    fn default() -> Self {
        Self(None)
    }
}

impl<B: Backend> Cache for Past<B> {
    fn joins(&self) -> bool {
        true
    }

    fn join(&mut self, other: Self) {
        let parts: Vec<_> = [self.0.take(), other.0].into_iter().flatten().collect();
        self.0 = (!parts.is_empty()).then(|| Tensor::cat(parts, 0));
    }

    fn keep(&mut self, keep: &[bool]) {
        let kept = keep.iter().enumerate().filter(|(_, keep)| **keep);
        let kept: Vec<i32> = kept.map(|(row, _)| row as i32).collect();
        let Some(past) = self.0.take() else { return };
        if !kept.is_empty() {
            let rows = TensorData::new(kept.clone(), [kept.len()]);
            let rows = Tensor::<B, 1, Int>::from_data(rows, &past.device());
            self.0 = Some(past.select(0, rows));
        }
    }
}
