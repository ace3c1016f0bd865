//! Normalisation of a residual matrix.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Tensor, backend::Backend};

use crate::{NormKind, RmtConfig};

/// LN of eqs. 15-17, which normalises a token's whole matrix, as eq. 12 does. It has a scale
/// `[D_v · D_k]` and no shift.
#[derive(Module, Debug)]
pub enum MatrixNorm<B: Backend> {
    /// (X − mean) / √(variance + ε) · scale, as in the paper.
    Layer(LayerNorm<B>),
    /// X / √(mean square + ε) · scale, as in the authors' code.
    Rms(RmsNorm<B>),
}

impl<B: Backend> MatrixNorm<B> {
    pub(crate) fn new(config: &RmtConfig, device: &B::Device) -> Self {
        let (width, eps) = (config.d_k * config.d_v, config.norm_eps);
        match config.norm {
            NormKind::LayerNorm => {
                let norm = LayerNormConfig::new(width).with_epsilon(eps);
                Self::Layer(norm.with_bias(false).init(device))
            }
            NormKind::RmsNorm => {
                Self::Rms(RmsNormConfig::new(width).with_epsilon(eps).init(device))
            }
        }
    }

    /// `[batch, time, D_v · D_k]` to the same.
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        match self {
            Self::Layer(norm) => norm.forward(x),
            Self::Rms(norm) => norm.forward(x),
        }
    }
}
