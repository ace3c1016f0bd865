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

/// The factor of an RMS norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RmsScale {
    /// γ, initially 1.
    #[default]
    Scale,
    /// 1 + γ, with γ initially 0.
    OnePlus,
    /// No factor.
    None,
}

/// A norm before it has a width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormDesign {
    /// Layer norm.
    Layer {
        /// Its parameters.
        params: NormParams,
        /// ε, added to the variance.
        eps: f64,
    },
    /// RMS norm.
    Rms {
        /// Its factor.
        scale: RmsScale,
        /// ε, added to the mean square.
        eps: f64,
    },
}

impl NormDesign {
    /// Builds the norm of `width` features.
    pub fn build<B: Backend>(self, width: usize, device: &B::Device) -> Norm<B> {
        match self {
            Self::Layer { params, eps } => Norm::layer(params, width, eps, device),
            Self::Rms { scale, eps } => Norm {
                gamma: match scale {
                    RmsScale::Scale => Some(Initializer::Ones.init([width], device)),
                    RmsScale::OnePlus => Some(Initializer::Zeros.init([width], device)),
                    RmsScale::None => None,
                },
                beta: None,
                kind: Kind::Rms,
                eps,
                offset: f64::from(u8::from(scale == RmsScale::OnePlus)),
            },
        }
    }

    /// The cost of the norm of `width` features.
    pub fn cost(self, width: usize) -> Cost {
        match self {
            Self::Layer { params, .. } => params.cost(width),
            Self::Rms { scale, .. } => Cost::vector(match scale {
                RmsScale::None => 0,
                RmsScale::Scale | RmsScale::OnePlus => width,
            }),
        }
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
    /// A number that is added to γ.
    offset: f64,
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
            offset: 0.0,
        }
    }

    /// No norm; returns x.
    pub fn identity() -> Self {
        Self {
            gamma: None,
            beta: None,
            kind: Kind::Identity,
            eps: 0.0,
            offset: 0.0,
        }
    }

    /// RMS norm over `width` features, with a scale.
    pub fn rms(width: usize, eps: f64, device: &B::Device) -> Self {
        let scale = RmsScale::Scale;
        NormDesign::Rms { scale, eps }.build(width, device)
    }

    /// Normalises the last axis of `[…, width]`.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        if self.kind == Kind::Identity {
            return x;
        }
        let beta = self.beta.as_ref().map(Param::val);
        kernels::norm(self.kernel(), widen(x), self.gamma(), beta)
            .unwrap_or_else(|x| self.plain(plain("norm", x)))
    }

    /// Normalises x `[batch, time, n · d_in]`, then multiplies each group of `d_in` features by w `[d_in, d_out]`:
    /// `[batch, time, n · d_out]`.
    pub fn product(&self, x: Tensor<B, 3>, w: Tensor<B, 2>) -> Tensor<B, 3> {
        let (x, w) = match (self.gamma(), &self.beta) {
            (Some(gamma), None) => match kernels::norm_product(self.kernel(), x, gamma, w) {
                Ok(y) => return y,
                Err(inputs) => inputs,
            },
            _ => (x, w),
        };
        product_of_parts(self.forward(x), w)
    }

    /// The factor of each feature, `[width]`.
    fn gamma(&self) -> Option<Tensor<B, 1>> {
        let gamma = self.gamma.as_ref().map(Param::val);
        match self.offset == 0.0 {
            true => gamma,
            false => gamma.map(|gamma| gamma + self.offset),
        }
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
        let x = match self.gamma() {
            Some(gamma) => x * gamma.unsqueeze(),
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

/// The places of norms around a branch f, which is g with its norms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NormPlaces {
    /// x + g(norm(x)) (GPT-2, Llama).
    #[default]
    Before,
    /// x + norm(g(x)) (OLMo 2).
    Behind,
    /// x + norm(g(norm(x))) (Gemma 2; Kim et al., "Peri-LN", 2025).
    Both,
    /// norm(x + g(norm(x))) (Geiping et al., Huginn, 2025).
    Sandwich,
    /// norm(x + g(x)) (Vaswani et al., "Attention is all you need", 2017).
    Original,
}

/// The norms around a branch f, which is g with its norms. With a norm of the sum, f(x) = norm(x + g(…)) − x, so that
/// x + f(x) is the norm of the sum.
#[derive(Module, Debug)]
pub struct Norms<B: Backend> {
    before: Norm<B>,
    behind: Norm<B>,
    of_sum: bool,
}

impl NormPlaces {
    /// Whether a norm is before g, and whether one is behind g or the sum.
    fn here(self, pre_norm: bool) -> [bool; 2] {
        let before = !matches!(self, Self::Behind | Self::Original);
        [before && pre_norm, self != Self::Before]
    }

    /// The cost of the norms around a branch on a stream of `width` features. Without `pre_norm`, no norm is before the
    /// branch.
    pub fn cost(self, norm: NormDesign, width: usize, pre_norm: bool) -> Cost {
        let count = self.here(pre_norm).iter().filter(|here| **here).count();
        norm.cost(width) * count
    }

    /// Builds the norms around a branch on a stream of `width` features. Without `pre_norm`, no norm is before the
    /// branch.
    pub fn build<B: Backend>(
        self,
        norm: NormDesign,
        width: usize,
        pre_norm: bool,
        device: &B::Device,
    ) -> Norms<B> {
        let [before, behind] = self.here(pre_norm).map(|here| match here {
            true => norm.build(width, device),
            false => Norm::identity(),
        });
        Norms {
            before,
            behind,
            of_sum: matches!(self, Self::Sandwich | Self::Original),
        }
    }
}

impl<B: Backend> Norms<B> {
    /// The norm before g, `[batch, time, width]`.
    pub fn before(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        self.before.forward(x)
    }

    /// The norm behind g, of y `[batch, time, width]`. Returns y if the norm is of the sum.
    pub fn behind(&self, y: Tensor<B, 3>) -> Tensor<B, 3> {
        match self.of_sum {
            true => y,
            false => self.behind.forward(y),
        }
    }

    /// x + f(x) of the result y of [`behind`](Self::behind), after dropout.
    pub fn sum(&self, x: Tensor<B, 3>, y: Tensor<B, 3>) -> Tensor<B, 3> {
        let sum = widen(y) + x;
        match self.of_sum {
            true => self.behind.forward(sum),
            false => sum,
        }
    }

    /// f(x) of the result y of [`behind`](Self::behind), after dropout.
    pub fn branch(&self, x: Tensor<B, 3>, y: Tensor<B, 3>) -> Tensor<B, 3> {
        match self.of_sum {
            true => self.sum(x.clone(), y) - x,
            false => y,
        }
    }
}
