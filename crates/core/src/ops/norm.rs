//! Layer normalisation with and without parameters.

use burn::nn::{LayerNorm, LayerNormConfig};
use burn::tensor::{Tensor, backend::Backend};

use serde::{Deserialize, Serialize};

use crate::Cost;

/// The parameters of a layer norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NormParams {
    /// Scale and shift.
    ScaleAndShift,
    /// Scale only.
    Scale,
    /// No parameters.
    None,
}

impl NormParams {
    /// A layer norm over `width` features; `None` without parameters.
    pub fn layer_norm<B: Backend>(
        self,
        width: usize,
        eps: f64,
        device: &B::Device,
    ) -> Option<LayerNorm<B>> {
        let config = LayerNormConfig::new(width).with_epsilon(eps);
        let config = config.with_bias(self == Self::ScaleAndShift);
        (self != Self::None).then(|| config.init(device))
    }

    /// The cost of a norm over `width` features.
    pub fn cost(self, width: usize) -> Cost {
        let vectors = match self {
            Self::ScaleAndShift => 2,
            Self::Scale => 1,
            Self::None => 0,
        };
        Cost::vector(width) * vectors
    }
}

/// Layer normalisation over the last axis, by the result of [`NormParams::layer_norm`]: with the
/// parameters of `norm`, or without parameters and with `eps`.
pub fn normalise<B: Backend, const D: usize>(
    norm: &Option<LayerNorm<B>>,
    x: Tensor<B, D>,
    eps: f64,
) -> Tensor<B, D> {
    match norm {
        Some(norm) => norm.forward(x),
        None => standardise(x, eps),
    }
}

/// (x − mean) / √(variance + eps) over the last axis: layer normalisation (Ba et al., "Layer
/// normalization", 2016) without parameters.
pub fn standardise<B: Backend, const D: usize>(x: Tensor<B, D>, eps: f64) -> Tensor<B, D> {
    let x = x.clone() - x.mean_dim(D - 1);
    let variance = (x.clone() * x.clone()).mean_dim(D - 1);
    x / (variance + eps).sqrt()
}
