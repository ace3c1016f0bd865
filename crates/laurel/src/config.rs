//! The variants of LAuReL.

use burn::tensor::backend::Backend;
use residual_zoo_core::{ConfigError, Cost, Design, Plain, Sites, check};
use serde::{Deserialize, Serialize};

use crate::Laurel;

/// RW, residual weights: the parametrisation of α and β in a [`Laurel`] (section 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Weights {
    /// α = β = 1, without parameters.
    #[default]
    One,
    /// (α, β) is the softmax of two parameters, so α + β = 1. By default, α and β are initially ½, which halves the
    /// stream in each connection.
    Softmax,
    /// (α, β) is twice the softmax of two parameters, so α + β = 2. By default, a new connection equals the plain
    /// connection.
    DoubleSoftmax,
    /// α is the sigmoid of one parameter, and β = 1 − α.
    Sigmoid,
    /// α and β are the sigmoids of two parameters.
    TwoSigmoids,
    /// α and β are two unbounded parameters, for ablations. The paper finds that α and β must not grow without bound.
    Raw,
}

/// The correction of a [`Laurel`], which is added to x_i before the multiplication by β: LR and PA.
///
/// A `[D, r]`, B `[r, D]` and γ `[k]` are parameters, and D is the width of the stream. x_i, x_{i-1}, … are the outputs
/// of connections, not of f, and are not normalised. j runs from 0 to k − 1, so sums include x_i. No stream precedes
/// x_0; near the input, the terms of missing streams are omitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Augmentation {
    /// No correction.
    #[default]
    Identity,
    /// LR, low rank: x_i A B (eq. 3). 2rD parameters.
    LowRank {
        /// The rank r.
        rank: usize,
    },
    /// PA, previous activations: Σ_j γ_j x_{i-j} (eq. 4, where h is the identity). k parameters.
    PreviousActivations {
        /// Number of streams, including x_i.
        k: usize,
    },
    /// PA with a low-rank h: Σ_j γ_j x_{i-j} A B, with one A and one B for all j (eq. 4). 2rD + k parameters, 49,155
    /// with D = 768, r = 32 and k = 3.
    PreviousLowRank {
        /// Number of streams, including x_i.
        k: usize,
        /// The rank r.
        rank: usize,
    },
    /// LR+PA: Σ_j γ_j x_{i-j} A_j B_j (eq. 6). 2rkD + k parameters.
    LowRankPerStream {
        /// Number of streams, including x_i.
        k: usize,
        /// The rank r.
        rank: usize,
    },
}

impl Weights {
    /// Returns the initial α and β. `None` means the default initial α.
    pub(crate) fn start(self, alpha: Option<f64>) -> [f64; 2] {
        match self {
            Self::One | Self::Raw => [1.0, 1.0],
            Self::Softmax | Self::Sigmoid => {
                let alpha = alpha.unwrap_or(0.5);
                [alpha, 1.0 - alpha]
            }
            Self::DoubleSoftmax => {
                let alpha = alpha.unwrap_or(1.0);
                [alpha, 2.0 - alpha]
            }
            Self::TwoSigmoids => [alpha.unwrap_or(0.95); 2],
        }
    }
}

impl Augmentation {
    /// Returns the number of streams that the correction reads, including x_i.
    pub fn k(self) -> usize {
        match self {
            Self::Identity | Self::LowRank { .. } => 1,
            Self::PreviousActivations { k }
            | Self::PreviousLowRank { k, .. }
            | Self::LowRankPerStream { k, .. } => k,
        }
    }

    /// Returns the number of low-rank products and their rank; `None` without such products.
    pub fn low_rank(self) -> Option<(usize, usize)> {
        match self {
            Self::Identity | Self::PreviousActivations { .. } => None,
            Self::LowRank { rank } | Self::PreviousLowRank { rank, .. } => Some((1, rank)),
            Self::LowRankPerStream { k, rank } => Some((k, rank)),
        }
    }

    /// Whether the correction has weights γ.
    pub fn has_gamma(self) -> bool {
        !matches!(self, Self::Identity | Self::LowRank { .. })
    }
}

/// The initial A, `[D, r]`. B, `[r, D]`, is initially zero (section 3.3), unless the correction has a norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LowRankInit {
    /// A_{i,j} = 1/√(rD) if i mod r = j, else 0 (footnote 2), as in the paper's language models. The columns are
    /// orthogonal but not orthonormal: their norm is 1/r if r divides D.
    #[default]
    Columns,
    /// Normal with variance 2 / (D + r), as in the paper's ResNet.
    Xavier,
}

/// The config of a [`Laurel`] connection. The default is the plain connection, x_i + f(x_i).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LaurelConfig {
    /// The parametrisation of α and β.
    pub weights: Weights,
    /// Whether each of the D dimensions of the stream has its own α and β (end of section 2.4). This multiplies the
    /// number of their parameters by D.
    pub per_dimension: bool,
    /// The correction.
    pub augmentation: Augmentation,
    /// The initial A.
    pub init: LowRankInit,
    /// Initial α, which the paper does not give. The initial β follows from the sum α + β. With `TwoSigmoids`, which
    /// fixes no sum, the initial β equals the initial α. `None` means 1 with `DoubleSoftmax`, so that a new connection
    /// equals the plain connection, and 0.95 with `TwoSigmoids`. With `Softmax` and `Sigmoid`, `None` means ½, which
    /// halves the stream in each connection. With `One` and `Raw`, α and β are initially 1, and this field must be
    /// `None`.
    pub alpha: Option<f64>,
    /// Whether the correction passes through an RMS norm with a scale, as in the authors' Gemma 3n. The scale is
    /// initially zero, and B and γ are not. Such a norm would explain why, in Table 5, LR, PA and RW+LR have about D
    /// more parameters per layer than the formulas give.
    pub norm: bool,
}

impl Default for LaurelConfig {
    fn default() -> Self {
        Self {
            weights: Weights::One,
            per_dimension: false,
            augmentation: Augmentation::Identity,
            init: LowRankInit::Columns,
            alpha: None,
            norm: false,
        }
    }
}

impl LaurelConfig {
    /// Returns RW, with α and β from twice a softmax: 2 parameters. A new connection equals the plain connection. The
    /// paper gives no initial values; the experiment `laurel_start` compares some.
    pub fn rw() -> Self {
        Self {
            weights: Weights::DoubleSoftmax,
            ..Self::default()
        }
    }

    /// Returns LR of rank `r`: 2rD parameters, 49,152 with D = 768 and r = 32.
    pub fn lr(r: usize) -> Self {
        Self {
            augmentation: Augmentation::LowRank { rank: r },
            ..Self::default()
        }
    }

    /// Returns PA over `k` streams, where h is the identity: k parameters.
    pub fn pa(k: usize) -> Self {
        Self {
            augmentation: Augmentation::PreviousActivations { k },
            ..Self::default()
        }
    }

    /// Returns RW+LR of rank `r`: 2rD + 2 parameters, 49,154 with D = 768 and r = 32.
    pub fn rw_lr(r: usize) -> Self {
        Self {
            weights: Weights::DoubleSoftmax,
            ..Self::lr(r)
        }
    }

    /// Returns RW+PA over `k` streams, where h is the identity: k + 2 parameters.
    pub fn rw_pa(k: usize) -> Self {
        Self {
            weights: Weights::DoubleSoftmax,
            ..Self::pa(k)
        }
    }

    /// Returns RW+LR+PA over `k` streams, each with its own A_j and B_j of rank `r`: 2rkD + k + 2 parameters, 147,461
    /// with D = 768, r = 32 and k = 3.
    pub fn rw_lr_pa(k: usize, r: usize) -> Self {
        Self {
            weights: Weights::DoubleSoftmax,
            augmentation: Augmentation::LowRankPerStream { k, rank: r },
            ..Self::default()
        }
    }

    /// Returns the name of the variant.
    fn variant(&self) -> &'static str {
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

    fn validate_fields(&self) -> Result<(), ConfigError> {
        check::at_least_one("augmentation.k", self.augmentation.k())?;
        if let Some((_, r)) = self.augmentation.low_rank() {
            check::at_least_one("augmentation.rank", r)?;
        }
        if let Some(alpha) = self.alpha {
            let wrong = |problem: String| Err(ConfigError::new("alpha", problem));
            let sum = match self.weights {
                Weights::One | Weights::Raw => {
                    return wrong(format!(
                        "is {alpha}, but `weights` is {:?}, which starts at 1; choose Softmax, \
                         DoubleSoftmax, Sigmoid or TwoSigmoids",
                        self.weights
                    ));
                }
                Weights::DoubleSoftmax => 2.0,
                Weights::Softmax | Weights::Sigmoid | Weights::TwoSigmoids => 1.0,
            };
            if !(alpha > 0.0 && alpha < sum) {
                return wrong(format!("is {alpha}; it must be above 0 and below {sum}"));
            }
        }
        if self.norm && self.augmentation == Augmentation::Identity {
            let problem = "is set, but `augmentation` is Identity, which has no correction";
            return Err(ConfigError::new("norm", problem));
        }
        if self.per_dimension && self.weights == Weights::One {
            let problem = "is set, but `weights` is One, which has no weights; choose Softmax, \
                           DoubleSoftmax, Sigmoid, TwoSigmoids or Raw";
            return Err(ConfigError::new("per_dimension", problem));
        }
        Ok(())
    }
}

impl Design for LaurelConfig {
    type Connection<B: Backend> = Laurel<B>;
    type Ends<B: Backend> = Plain;

    /// Returns the paper's name for the variant.
    fn name(&self) -> &'static str {
        self.variant()
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        self.validate_fields()?;
        let (k, most) = (self.augmentation.k(), on.count);
        if on.recurrent && k > most {
            let problem = format!(
                "is {k}; in a recurrence it must be at most {most} here, because each layer starts a new stream"
            );
            return Err(ConfigError::new("augmentation.k", problem));
        }
        Ok(())
    }

    fn connection<B: Backend>(&self, on: &Sites, _i: usize, device: &B::Device) -> Laurel<B> {
        Laurel::new(self, on.width, device)
    }

    fn ends<B: Backend>(&self, _on: &Sites, _device: &B::Device) -> Plain {
        Plain
    }

    /// Counts every connection as if all k streams existed.
    fn cost(&self, on: &Sites) -> Cost {
        let width = on.width;
        let each = if self.per_dimension { width } else { 1 };
        let weights = match self.weights {
            Weights::One => 0,
            Weights::Sigmoid => each,
            _ => 2 * each,
        };
        let gamma = if self.augmentation.has_gamma() {
            self.augmentation.k()
        } else {
            0
        };
        let (products, r) = self.augmentation.low_rank().unwrap_or((0, 0));
        let product = Cost::linear(width, r, false) + Cost::linear(r, width, false);
        let norm = Cost::vector(if self.norm { width } else { 0 });
        (Cost::vector(weights) + Cost::vector(gamma) + product * products + norm) * on.count
    }
}
