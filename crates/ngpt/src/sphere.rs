//! Steps on the unit sphere.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{NormDesign, RmsScale};

/// Returns N(x) = x / |x| over the last axis, for any shape `[…, n]`. N(0) is 0; x is 0 if dropout drops all attention
/// weights.
pub fn unit<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    let n = x.dims()[D - 1];
    let rms = NormDesign::Rms {
        scale: RmsScale::None,
        // Far below the rounding errors of the mean squares that occur.
        eps: 1e-20,
    };
    // x / √(mean x²) has length √n.
    rms.build(n, &x.device()).forward(x) * (n as f64).powf(-0.5)
}

/// Returns N(N(h) + |α| (N(y) − N(h))), a step on the sphere from h towards y, both `[batch, time, width]`. Each
/// coordinate has its own share |α|.
pub fn step_towards<B: Backend>(
    h: Tensor<B, 3>,
    alpha: &Factor<B>,
    y: Tensor<B, 3>,
) -> Tensor<B, 3> {
    let (h, y) = (unit(h), unit(y));
    let share = alpha.value().abs().unsqueeze();
    unit(h.clone() + share * (y - h))
}

/// A learned factor for each feature. The parameter is p, and the factor is p · init / scale. Initially, p is `scale`,
/// and the factor is `init`. A step of Adam with learning rate η therefore changes the factor by about η · init /
/// scale.
#[derive(Module, Debug)]
pub struct Factor<B: Backend> {
    /// p, `[features]`.
    stored: Param<Tensor<B, 1>>,
    /// init / scale.
    ratio: f64,
}

impl<B: Backend> Factor<B> {
    /// Builds a factor for each of `features` features, initially `init`. The parameter p is initially `scale`.
    pub(crate) fn new(features: usize, init: f64, scale: f64, device: &B::Device) -> Self {
        Self {
            stored: Initializer::Constant { value: scale }.init([features], device),
            ratio: init / scale,
        }
    }

    /// Returns the factor of each feature, `[features]`.
    pub fn value(&self) -> Tensor<B, 1> {
        self.stored.val() * self.ratio
    }

    /// Draws p from N(0, 1), so that factors vary in size and sign.
    #[cfg(test)]
    pub(crate) fn scatter(&mut self, device: &B::Device) {
        let [features] = self.stored.dims();
        let wide = Initializer::Normal {
            mean: 0.0,
            std: 1.0,
        };
        self.stored = wide.init([features], device);
    }
}
