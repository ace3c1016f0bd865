//! The variants of LAuReL.

use burn::tensor::backend::Backend;
use residual_zoo_core::{ConfigError, Cost, check};
use serde::{Deserialize, Serialize};

use crate::Laurel;

/// How α and β, the weights of f(x_i) and of the rest, are made: RW, residual weights (section 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Weights {
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

/// What is added to x_i before β: the function g of eq. 2 without x_i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Augmentation {
    /// Nothing.
    #[default]
    Identity,
    /// LR, low rank: x_i A B (eq. 3).
    LowRank {
        /// The rank r.
        rank: usize,
    },
    /// PA, previous activations: Σ_j γ_j x_{i-j} over k streams (eq. 4, h the identity).
    PreviousActivations {
        /// Number of streams, x_i among them.
        k: usize,
    },
    /// PA with h of low rank: Σ_j γ_j x_{i-j} A B, one A and B for all j (eq. 4).
    PreviousLowRank {
        /// Number of streams, x_i among them.
        k: usize,
        /// The rank r.
        rank: usize,
    },
    /// LR+PA: Σ_j γ_j x_{i-j} A_j B_j (eq. 6).
    LowRankPerStream {
        /// Number of streams, x_i among them.
        k: usize,
        /// The rank r.
        rank: usize,
    },
}

impl Augmentation {
    /// Number of streams that are read, x_i among them.
    pub fn k(self) -> usize {
        match self {
            Self::Identity | Self::LowRank { .. } => 1,
            Self::PreviousActivations { k }
            | Self::PreviousLowRank { k, .. }
            | Self::LowRankPerStream { k, .. } => k,
        }
    }

    /// Number of low-rank products and their rank; `None` without any.
    pub fn low_rank(self) -> Option<(usize, usize)> {
        match self {
            Self::Identity | Self::PreviousActivations { .. } => None,
            Self::LowRank { rank } | Self::PreviousLowRank { rank, .. } => Some((1, rank)),
            Self::LowRankPerStream { k, rank } => Some((k, rank)),
        }
    }

    /// Whether there are weights γ.
    pub fn has_gamma(self) -> bool {
        !matches!(self, Self::Identity | Self::LowRank { .. })
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

/// The config of a LAuReL connection. The default equals the plain connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LaurelConfig {
    /// α and β.
    pub weights: Weights,
    /// One α and one β for each dimension of the stream (end of section 2.4).
    pub per_dimension: bool,
    /// What is added to x_i.
    pub augmentation: Augmentation,
    /// How A starts.
    pub init: LowRankInit,
    /// α at the start, where softmax or sigmoid make it; β is then 1 − α. The paper does not
    /// say; one half is what zeros before the softmax give.
    pub alpha: f64,
}

impl Default for LaurelConfig {
    fn default() -> Self {
        Self {
            weights: Weights::One,
            per_dimension: false,
            augmentation: Augmentation::Identity,
            init: LowRankInit::Columns,
            alpha: 0.5,
        }
    }
}

impl LaurelConfig {
    /// LAuReL-RW with a softmax: two parameters.
    pub fn rw() -> Self {
        Self {
            weights: Weights::Softmax,
            ..Self::default()
        }
    }

    /// LAuReL-LR of rank `r`.
    pub fn lr(r: usize) -> Self {
        Self {
            augmentation: Augmentation::LowRank { rank: r },
            ..Self::default()
        }
    }

    /// LAuReL-PA over `k` streams, h the identity.
    pub fn pa(k: usize) -> Self {
        Self {
            augmentation: Augmentation::PreviousActivations { k },
            ..Self::default()
        }
    }

    /// LAuReL-RW+LR of rank `r`.
    pub fn rw_lr(r: usize) -> Self {
        Self {
            weights: Weights::Softmax,
            ..Self::lr(r)
        }
    }

    /// LAuReL-RW+PA over `k` streams, h the identity.
    pub fn rw_pa(k: usize) -> Self {
        Self {
            weights: Weights::Softmax,
            ..Self::pa(k)
        }
    }

    /// LAuReL-RW+LR+PA over `k` streams, each with a product of rank `r`.
    pub fn rw_lr_pa(k: usize, r: usize) -> Self {
        Self {
            weights: Weights::Softmax,
            augmentation: Augmentation::LowRankPerStream { k, rank: r },
            ..Self::default()
        }
    }

    /// The variant as the paper calls it.
    pub fn name(&self) -> &'static str {
        match (self.weights, self.augmentation) {
            (Weights::One, Augmentation::Identity) => "LAuReL (plain)",
            (Weights::One, Augmentation::LowRank { .. }) => "LAuReL-LR",
            (
                Weights::One,
                Augmentation::PreviousActivations { .. } | Augmentation::PreviousLowRank { .. },
            ) => "LAuReL-PA",
            (Weights::One, Augmentation::LowRankPerStream { .. }) => "LAuReL-LR+PA",
            (_, Augmentation::Identity) => "LAuReL-RW",
            (_, Augmentation::LowRank { .. }) => "LAuReL-RW+LR",
            (
                _,
                Augmentation::PreviousActivations { .. } | Augmentation::PreviousLowRank { .. },
            ) => "LAuReL-RW+PA",
            (_, Augmentation::LowRankPerStream { .. }) => "LAuReL-RW+LR+PA",
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field with an impossible value.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::at_least_one("augmentation.k", self.augmentation.k())?;
        if let Some((_, r)) = self.augmentation.low_rank() {
            check::at_least_one("augmentation.rank", r)?;
        }
        if !(self.alpha > 0.0 && self.alpha < 1.0) {
            let problem = format!("is {}; it must be above 0 and below 1", self.alpha);
            return Err(ConfigError::new("alpha", problem));
        }
        if self.alpha != 0.5 && matches!(self.weights, Weights::One | Weights::Raw) {
            let problem = format!(
                "is {}, but `weights` is {:?}, which starts at 1; choose Softmax or Sigmoid",
                self.alpha, self.weights
            );
            return Err(ConfigError::new("alpha", problem));
        }
        if self.per_dimension && self.weights == Weights::One {
            let problem = "is set, but `weights` is One, which has no weights; choose Softmax, Sigmoid \
                           or Raw";
            return Err(ConfigError::new("per_dimension", problem));
        }
        Ok(())
    }

    /// A connection for a stream of `width` features.
    ///
    /// # Panics
    ///
    /// If [`validate`](Self::validate) refuses the config.
    pub fn init<B: Backend>(&self, width: usize, device: &B::Device) -> Laurel<B> {
        Laurel::new(self, width, device)
    }

    /// What one connection costs, where all of its k streams exist.
    pub fn cost(&self, width: usize) -> Cost {
        let each = if self.per_dimension { width } else { 1 };
        let weights = match self.weights {
            Weights::One => 0,
            Weights::Sigmoid => each,
            Weights::Softmax | Weights::Raw => each.saturating_mul(2),
        };
        let gamma = if self.augmentation.has_gamma() {
            self.augmentation.k()
        } else {
            0
        };
        let (products, r) = self.augmentation.low_rank().unwrap_or((0, 0));
        let product = Cost::linear(width, r, false) + Cost::linear(r, width, false);
        Cost::vector(weights) + Cost::vector(gamma) + product * products
    }
}
