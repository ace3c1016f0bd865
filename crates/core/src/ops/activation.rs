//! Activations whose gradients are exact on every backend.
//!
//! Burn 0.21 differentiates its own `gelu` with a tanh approximation on CubeCL backends. The plain forms in this module
//! use only operations with exact gradients.

use burn::tensor::{Tensor, activation, backend::Backend};
use residual_zoo_kernels as kernels;
use serde::{Deserialize, Serialize};

use super::forms::plain;

/// The activation of a feed-forward network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activation {
    /// GELU with the tanh approximation.
    #[default]
    GeluTanh,
    /// GELU with the error function.
    GeluErf,
    /// max(x, 0).
    Relu,
    /// max(x, 0)² (So et al., "Primer", 2021).
    SquaredRelu,
    /// x σ(x) (Hendrycks and Gimpel, "Gaussian error linear units", 2016, section 4), also called swish.
    Silu,
}

impl Activation {
    /// Applies the activation to every element.
    pub fn apply<B: Backend, const D: usize>(self, x: Tensor<B, D>) -> Tensor<B, D> {
        match self {
            Self::GeluTanh => gelu_tanh(x),
            Self::GeluErf => gelu_erf(x),
            Self::Relu => relu(x),
            Self::SquaredRelu => squared_relu(x),
            Self::Silu => silu(x),
        }
    }
}

impl From<Activation> for kernels::Activation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::GeluTanh => Self::GeluTanh,
            Activation::GeluErf => Self::GeluErf,
            Activation::Relu => Self::Relu,
            Activation::SquaredRelu => Self::SquaredRelu,
            Activation::Silu => Self::Silu,
        }
    }
}

/// Computes max(x, 0)².
pub fn squared_relu<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    kernels::activation(kernels::Activation::SquaredRelu, x)
        .unwrap_or_else(|x| squared_relu_plain(plain("squared ReLU", x)))
}

/// The plain form of [`squared_relu`].
pub fn squared_relu_plain<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    let x = activation::relu(x);
    x.clone() * x
}

/// Applies SiLU: x σ(x).
pub fn silu<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    kernels::activation(kernels::Activation::Silu, x)
        .unwrap_or_else(|x| silu_plain(plain("SiLU", x)))
}

/// The plain form of [`silu`].
pub fn silu_plain<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    x.clone() * activation::sigmoid(x)
}

/// Computes tanh x.
pub fn tanh<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    kernels::activation(kernels::Activation::Tanh, x).unwrap_or_else(activation::tanh)
}

/// Computes max(x, 0).
pub fn relu<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    kernels::activation(kernels::Activation::Relu, x).unwrap_or_else(activation::relu)
}

/// Applies GELU with the tanh approximation (Hendrycks and Gimpel, "Gaussian error linear units", 2016): ½ x (1 + tanh
/// u) with u = √(2/π) (x + 0.044715 x³).
pub fn gelu_tanh<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    kernels::activation(kernels::Activation::GeluTanh, x)
        .unwrap_or_else(|x| gelu_tanh_plain(plain("GELU", x)))
}

/// Computes [`gelu_tanh`] as x · σ(2u), because ½ (1 + tanh u) = σ(2u). This form takes fewer passes over memory than
/// the form with tanh.
pub fn gelu_tanh_plain<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    let c = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
    let two_u = (x.clone() * x.clone() * (0.044715 * c) + c) * x.clone();
    x * activation::sigmoid(two_u)
}

/// Applies GELU: ½ x (1 + erf(x / √2)).
pub fn gelu_erf<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    kernels::activation(kernels::Activation::GeluErf, x)
        .unwrap_or_else(|x| gelu_erf_plain(plain("GELU", x)))
}

/// The plain form of [`gelu_erf`], from operations that every backend differentiates exactly.
pub fn gelu_erf_plain<B: Backend, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    let cdf = (x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf() * 0.5 + 0.5;
    x * cdf
}
