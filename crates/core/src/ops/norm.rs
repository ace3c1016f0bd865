//! Layer norm and RMS norm, with and without parameters.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_kernels as kernels;
use serde::{Deserialize, Serialize};

use super::forms::plain;
use super::precision::widen;
use crate::{Cost, product_of_parts};

/// The parameters of a norm.
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

/// Normalisation over the last axis: (x − mean) / √(variance + ε) · γ + β (Ba et al., "Layer
/// normalization", 2016), or x / √(mean square + ε) · γ (Zhang and Sennrich, "Root mean square layer
/// normalization", 2019).
#[derive(Module, Debug)]
pub struct Norm<B: Backend> {
    /// γ, `[width]`.
    pub gamma: Option<Param<Tensor<B, 1>>>,
    /// β, `[width]`.
    pub beta: Option<Param<Tensor<B, 1>>>,
    kind: Kind,
    /// ε.
    eps: f64,
}

/// The divisor of a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// The standard deviation, after the mean is subtracted.
    Layer,
    /// The root mean square.
    Rms,
    /// No norm.
    Identity,
}

impl<B: Backend> Norm<B> {
    /// Layer norm over `width` features.
    pub fn layer(params: NormParams, width: usize, eps: f64, device: &B::Device) -> Self {
        let scale = params != NormParams::None;
        let shift = params == NormParams::ScaleAndShift;
        Self {
            gamma: scale.then(|| Initializer::Ones.init([width], device)),
            beta: shift.then(|| Initializer::Zeros.init([width], device)),
            kind: Kind::Layer,
            eps,
        }
    }

    /// No norm; returns x.
    pub fn identity() -> Self {
        Self {
            gamma: None,
            beta: None,
            kind: Kind::Identity,
            eps: 0.0,
        }
    }

    /// RMS norm over `width` features, with a scale.
    pub fn rms(width: usize, eps: f64, device: &B::Device) -> Self {
        Self {
            kind: Kind::Rms,
            ..Self::layer(NormParams::Scale, width, eps, device)
        }
    }

    /// Normalises the last axis of `[…, width]`.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        if self.kind == Kind::Identity {
            return x;
        }
        let [gamma, beta] = [&self.gamma, &self.beta].map(|p| p.as_ref().map(Param::val));
        kernels::norm(self.kernel(), widen(x), gamma, beta)
            .unwrap_or_else(|x| self.plain(plain("norm", x)))
    }

    /// Normalises x `[batch, time, n · d_in]`, then multiplies each group of `d_in` features by w `[d_in, d_out]`:
    /// `[batch, time, n · d_out]`.
    pub fn product(&self, x: Tensor<B, 3>, w: Tensor<B, 2>) -> Tensor<B, 3> {
        let (x, w) = match (&self.gamma, &self.beta) {
            (Some(gamma), None) => match kernels::norm_product(self.kernel(), x, gamma.val(), w) {
                Ok(y) => return y,
                Err(inputs) => inputs,
            },
            _ => (x, w),
        };
        product_of_parts(self.forward(x), w)
    }

    fn kernel(&self) -> kernels::Norm {
        kernels::Norm {
            centred: self.kind == Kind::Layer,
            eps: self.eps,
        }
    }

    /// The plain form of [`forward`](Self::forward).
    pub fn plain<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let x = match self.kind {
            Kind::Identity => x,
            Kind::Layer => standardise(x, self.eps),
            Kind::Rms => {
                let mean_square = (x.clone() * x.clone()).mean_dim(D - 1);
                x / (mean_square + self.eps).sqrt()
            }
        };
        let x = match &self.gamma {
            Some(gamma) => x * gamma.val().unsqueeze(),
            None => x,
        };
        match &self.beta {
            Some(beta) => x + beta.val().unsqueeze(),
            None => x,
        }
    }
}

/// (x − mean) / √(variance + eps) over the last axis.
pub fn standardise<B: Backend, const D: usize>(x: Tensor<B, D>, eps: f64) -> Tensor<B, D> {
    let x = x.clone() - x.mean_dim(D - 1);
    let variance = (x.clone() * x.clone()).mean_dim(D - 1);
    x / (variance + eps).sqrt()
}
