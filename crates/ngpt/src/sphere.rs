//! Steps on the unit sphere.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{NormDesign, RmsScale};

/// N(x) = x / |x| over the last axis, of any shape `[…, n]`. N(0) is 0: dropout can drop all attention weights.
pub fn unit<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    let n = x.dims()[D - 1];
    let rms = NormDesign::Rms {
        scale: RmsScale::None,
        // Below the rounding error of every mean square but zero.
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

/// A learned factor of each feature. It is stored as p, and is p · init / scale. The stored p begins at `scale`, and
/// the factor at `init`. A step of Adam with learning rate η therefore changes the factor by about η · init / scale.
#[derive(Module, Debug)]
pub struct Factor<B: Backend> {
    /// p, `[features]`.
    stored: Param<Tensor<B, 1>>,
    /// init / scale.
    ratio: f64,
}

impl<B: Backend> Factor<B> {
    /// The factor of `features` features, which begins at `init` and is stored at `scale`.
    pub(crate) fn new(features: usize, init: f64, scale: f64, device: &B::Device) -> Self {
        Self {
            stored: Initializer::Constant { value: scale }.init([features], device),
            ratio: init / scale,
        }
    }

    /// The factor of each feature, `[features]`.
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
