//! Layer norm and RMS norm, with and without parameters.

use burn::module::{Initializer, Module, Param};
use burn::tensor::activation::softmax;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_kernels as kernels;
use serde::{Deserialize, Serialize};

use super::forms::plain;
use super::mix::mix;
use super::precision::widen;
use crate::{ConfigError, Cost, check, product_of_parts, project};

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
    /// Returns the cost of a norm over `width` features.
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

/// The kind of a norm, its parameters and its ε.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum NormDesign {
    /// Layer norm.
    Layer {
        /// The parameters of the norm.
        params: NormParams,
        /// ε, added to the variance.
        eps: f64,
    },
    /// RMS norm.
    Rms {
        /// The factor of the norm.
        scale: RmsScale,
        /// ε, added to the mean square.
        eps: f64,
    },
}

impl Default for NormDesign {
    /// Returns GPT-2's norm: a layer norm with scale and shift, and ε = 1e-5.
    fn default() -> Self {
        Self::Layer {
            params: NormParams::ScaleAndShift,
            eps: 1e-5,
        }
    }
}

impl NormDesign {
    /// Checks ε.
    ///
    /// # Errors
    ///
    /// Returns an error about the field `norm.eps` if ε is not above 0 or does not fit into 32 bits.
    pub fn validate(self) -> Result<(), ConfigError> {
        let (Self::Layer { eps, .. } | Self::Rms { eps, .. }) = self;
        check::positive("norm.eps", eps)
    }

    /// Builds the norm over `width` features.
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

    /// Returns the cost of the norm over `width` features.
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
    /// ε, added to the variance or the mean square.
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
    /// Makes a layer norm over `width` features.
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

    /// Makes a norm that returns x unchanged.
    pub fn identity() -> Self {
        Self {
            gamma: None,
            beta: None,
            kind: Kind::Identity,
            eps: 0.0,
            offset: 0.0,
        }
    }

    /// Makes an RMS norm over `width` features, with a scale.
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

    /// Attends over depth: computes Σ_j p_j x_j with p = softmax_j(q · norm(x_j)) for each position, from q `[width]`
    /// and J tensors x `[batch, time, width]`.
    pub fn depth_attention(&self, q: Tensor<B, 1>, x: Vec<Tensor<B, 3>>) -> Tensor<B, 3> {
        let x = match (self.kind, self.gamma(), &self.beta) {
            (Kind::Rms, Some(gamma), None) => {
                let w = q.clone() * gamma;
                match kernels::depth_attention(self.eps, w, x) {
                    Ok(h) => return h,
                    Err((_, x)) => plain("attention over depth", x),
                }
            }
            _ => x,
        };
        let x: Tensor<B, 4> = Tensor::stack(x, 2);
        let [batch, time, count, width] = x.dims();
        let normed = self.forward(x.clone());
        let scores = project(
            normed.reshape([batch, time * count, width]),
            q.unsqueeze_dim(1),
        );
        let p = softmax(scores.reshape([batch, time, count]), 2);
        mix(p.unsqueeze_dim(3), x).squeeze_dim(2)
    }

    /// Returns the factor of each feature, `[width]`.
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

/// Computes (x − mean) / √(variance + eps) over the last axis.
pub fn standardise<B: Backend, const D: usize>(x: Tensor<B, D>, eps: f64) -> Tensor<B, D> {
    let x = x.clone() - x.mean_dim(D - 1);
    let variance = (x.clone() * x.clone()).mean_dim(D - 1);
    x / (variance + eps).sqrt()
}

/// The places of the norms in a branch f. Apart from norms, f consists of g: attention or the feed-forward network.
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

/// The norms in a branch f. Apart from norms, f consists of g: attention or the feed-forward network. With a norm after
/// the sum, f(x) = norm(x + g(…)) − x, so that x + f(x) = norm(x + g(…)).
#[derive(Module, Debug)]
pub struct Norms<B: Backend> {
    before: Norm<B>,
    behind: Norm<B>,
    of_sum: bool,
}

impl NormPlaces {
    /// Returns whether a norm precedes g, and whether a norm follows g or the sum.
    fn here(self, pre_norm: bool) -> [bool; 2] {
        let before = !matches!(self, Self::Behind | Self::Original);
        [before && pre_norm, self != Self::Before]
    }

    /// Whether a norm follows the sum, so that f(x) depends on x directly, not only on the branch output.
    pub fn of_sum(self) -> bool {
        matches!(self, Self::Sandwich | Self::Original)
    }

    /// Returns the cost of the norms in a branch on a stream of `width` features. Without `pre_norm`, no norm precedes
    /// g.
    pub fn cost(self, norm: NormDesign, width: usize, pre_norm: bool) -> Cost {
        let count = self.here(pre_norm).iter().filter(|here| **here).count();
        norm.cost(width) * count
    }

    /// Builds the norms in a branch on a stream of `width` features. Without `pre_norm`, no norm precedes g.
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
            of_sum: self.of_sum(),
        }
    }
}

impl<B: Backend> Norms<B> {
    /// Whether a norm follows the sum, so that f(x) depends on x directly, not only on the branch output.
    pub fn of_sum(&self) -> bool {
        self.of_sum
    }

    /// Applies the norm before g to x `[batch, time, width]`.
    pub fn before(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        self.before.forward(x)
    }

    /// Applies the norm after g to y `[batch, time, width]`. Returns y if the norm follows the sum instead.
    pub fn behind(&self, y: Tensor<B, 3>) -> Tensor<B, 3> {
        match self.of_sum {
            true => y,
            false => self.behind.forward(y),
        }
    }

    /// Computes x + f(x), where y is the result of [`behind`](Self::behind) after dropout.
    pub fn sum(&self, x: Tensor<B, 3>, y: Tensor<B, 3>) -> Tensor<B, 3> {
        let sum = widen(y) + x;
        match self.of_sum {
            true => self.behind.forward(sum),
            false => sum,
        }
    }

    /// Computes f(x), where y is the result of [`behind`](Self::behind) after dropout.
    pub fn branch(&self, x: Tensor<B, 3>, y: Tensor<B, 3>) -> Tensor<B, 3> {
        match self.of_sum {
            true => self.sum(x.clone(), y) - x,
            false => y,
        }
    }
}
