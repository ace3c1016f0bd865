//! The variants of LAuReL.

use burn::tensor::backend::Backend;
use residual_zoo_core::{ConfigError, Cost, check};
use serde::{Deserialize, Serialize};

use crate::Laurel;

/// How α and β, the weights of f(x_i) and of the rest, are made (section 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rw {
    /// α = β = 1.
    #[default]
    One,
    /// (α, β) = softmax of two numbers.
    Softmax,
    /// α = σ of one number, β = 1 − α.
    Sigmoid,
    /// Two numbers as they are. The paper found that they must not grow unbounded: for ablation.
    Raw,
}

/// What is added to x_i before β: the function g.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum G {
    /// Nothing.
    #[default]
    Identity,
    /// x_i A B of rank r (eq. 3).
    Lr {
        /// The rank.
        r: usize,
    },
    /// Σ_j γ_j x_{i-j} over k streams (eq. 4, h the identity).
    Pa {
        /// Number of streams, x_i among them.
        k: usize,
    },
    /// Σ_j γ_j x_{i-j} A B, one A and B for all j (eq. 4, h of low rank).
    PaLr {
        /// Number of streams, x_i among them.
        k: usize,
        /// The rank.
        r: usize,
    },
    /// Σ_j γ_j x_{i-j} A_j B_j (eq. 6).
    LrPa {
        /// Number of streams, x_i among them.
        k: usize,
        /// The rank.
        r: usize,
    },
}

impl G {
    /// Number of streams that are read, x_i among them.
    pub fn k(self) -> usize {
        match self {
            Self::Identity | Self::Lr { .. } => 1,
            Self::Pa { k } | Self::PaLr { k, .. } | Self::LrPa { k, .. } => k,
        }
    }

    /// Number of low-rank products and their rank.
    pub fn low_rank(self) -> Option<(usize, usize)> {
        match self {
            Self::Identity | Self::Pa { .. } => None,
            Self::Lr { r } | Self::PaLr { r, .. } => Some((1, r)),
            Self::LrPa { k, r } => Some((k, r)),
        }
    }

    /// Whether there are weights γ.
    pub fn has_gamma(self) -> bool {
        matches!(
            self,
            Self::Pa { .. } | Self::PaLr { .. } | Self::LrPa { .. }
        )
    }
}

/// How A starts. B always starts at zero (section 3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LowRankInit {
    /// A_{i,j} = 1/√(r D) where i mod r = j, else 0 (footnote 2): columns that are orthogonal, of
    /// norm 1/r where r divides D. As in the paper's language models.
    #[default]
    Columns,
    /// Normal with variance 2 / (D + r), as in the paper's ResNet.
    Xavier,
}

/// The config of a LAuReL connection. The default is the plain connection, written as a LAuReL.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LaurelConfig {
    /// α and β.
    pub rw: Rw,
    /// One α and one β for each dimension of the stream (end of section 2.4).
    pub per_dimension: bool,
    /// The function g.
    pub g: G,
    /// How A starts.
    pub init: LowRankInit,
    /// α at the start, where softmax or sigmoid make it; β is then 1 − α. The paper does not
    /// say; one half is what zeros before the softmax give.
    pub alpha: f64,
}

impl Default for LaurelConfig {
    fn default() -> Self {
        Self {
            rw: Rw::One,
            per_dimension: false,
            g: G::Identity,
            init: LowRankInit::Columns,
            alpha: 0.5,
        }
    }
}

impl LaurelConfig {
    /// LAuReL-RW with a softmax: two parameters.
    pub fn rw() -> Self {
        Self {
            rw: Rw::Softmax,
            ..Self::default()
        }
    }

    /// LAuReL-LR of rank `r`.
    pub fn lr(r: usize) -> Self {
        Self {
            g: G::Lr { r },
            ..Self::default()
        }
    }

    /// LAuReL-PA over `k` streams, h the identity.
    pub fn pa(k: usize) -> Self {
        Self {
            g: G::Pa { k },
            ..Self::default()
        }
    }

    /// LAuReL-RW+LR of rank `r`.
    pub fn rw_lr(r: usize) -> Self {
        Self {
            rw: Rw::Softmax,
            ..Self::lr(r)
        }
    }

    /// LAuReL-RW+PA over `k` streams, h the identity.
    pub fn rw_pa(k: usize) -> Self {
        Self {
            rw: Rw::Softmax,
            ..Self::pa(k)
        }
    }

    /// LAuReL-RW+LR+PA over `k` streams, each with a product of rank `r`.
    pub fn rw_lr_pa(k: usize, r: usize) -> Self {
        Self {
            rw: Rw::Softmax,
            g: G::LrPa { k, r },
            ..Self::default()
        }
    }

    /// The variant as the paper calls it.
    pub fn name(&self) -> &'static str {
        match (self.rw, self.g) {
            (Rw::One, G::Identity) => "LAuReL (plain)",
            (Rw::One, G::Lr { .. }) => "LAuReL-LR",
            (Rw::One, G::Pa { .. } | G::PaLr { .. }) => "LAuReL-PA",
            (Rw::One, G::LrPa { .. }) => "LAuReL-LR+PA",
            (_, G::Identity) => "LAuReL-RW",
            (_, G::Lr { .. }) => "LAuReL-RW+LR",
            (_, G::Pa { .. } | G::PaLr { .. }) => "LAuReL-RW+PA",
            (_, G::LrPa { .. }) => "LAuReL-RW+LR+PA",
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field that no connection can have.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::at_least_one("g.k", self.g.k())?;
        if let Some((_, r)) = self.g.low_rank() {
            check::at_least_one("g.r", r)?;
        }
        if !(self.alpha > 0.0 && self.alpha < 1.0) {
            let problem = format!("is {}; it must be above 0 and below 1", self.alpha);
            return Err(ConfigError::new("alpha", problem));
        }
        if self.alpha != 0.5 && matches!(self.rw, Rw::One | Rw::Raw) {
            let problem = format!(
                "is {}, but `rw` is {:?}, which starts at 1; choose Softmax or Sigmoid",
                self.alpha, self.rw
            );
            return Err(ConfigError::new("alpha", problem));
        }
        if self.per_dimension && self.rw == Rw::One {
            let problem = "is set, but `rw` is One, which has no weights; choose Softmax, Sigmoid \
                           or Raw";
            return Err(ConfigError::new("per_dimension", problem));
        }
        Ok(())
    }

    /// A connection for a stream of `width` features.
    ///
    /// # Panics
    ///
    /// With a config that [`validate`](Self::validate) refuses.
    pub fn init<B: Backend>(&self, width: usize, device: &B::Device) -> Laurel<B> {
        Laurel::new(self, width, device)
    }

    /// What one connection costs, where all of its k streams exist.
    pub fn cost(&self, width: usize) -> Cost {
        let each = if self.per_dimension { width } else { 1 };
        let weights = match self.rw {
            Rw::One => 0,
            Rw::Sigmoid => each,
            Rw::Softmax | Rw::Raw => each.saturating_mul(2),
        };
        let gamma = if self.g.has_gamma() { self.g.k() } else { 0 };
        let (products, r) = self.g.low_rank().unwrap_or((0, 0));
        let product = Cost::linear(width, r, false) + Cost::linear(r, width, false);
        // f(x) and the sum inside of β; a stream for its γ.
        let joined = if self.rw == Rw::One { 0 } else { 2 };
        let streams = if self.g.has_gamma() { 1 } else { 0 };
        let kept = Cost::keeping(width.saturating_mul(joined + streams));
        Cost::vector(weights) + Cost::vector(gamma) + product * products + kept
    }
}
