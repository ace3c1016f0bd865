//! What single experiments measure without training.

mod recurrent_cost;
mod rmt_resources;
mod rmt_variance;
mod scaling_law;
mod tokenformer_cost;

use std::collections::BTreeMap;

use residual_zoo_backend::BackendKind;
use residual_zoo_core::ModelConfig;
use residual_zoo_data::DataConfig;

use crate::{Error, Measure, PlannedRun};

/// Quantities by name.
pub type Quantities = BTreeMap<String, f64>;

/// What all runs of a measurement have in common.
pub struct Setting<'a> {
    /// Token ids.
    pub vocab_size: usize,
    /// Seed of what is drawn at random.
    pub seed: u64,
    /// The data of the experiment.
    pub data: &'a DataConfig,
    /// The backend that computes.
    pub backend: BackendKind,
    /// The index of the GPU; `None` for the backend's choice.
    pub gpu: Option<usize>,
}

impl Measure {
    /// The names of the quantities.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::RmtResources => rmt_resources::NAMES,
            Self::RmtVariance => rmt_variance::NAMES,
            Self::TokenFormerCost => tokenformer_cost::NAMES,
            Self::RecurrentCost => recurrent_cost::NAMES,
            Self::ScalingLaw => scaling_law::NAMES,
        }
    }

    /// Whether it draws at random: then it is measured for every seed.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RmtVariance | Self::ScalingLaw)
    }

    /// Whether it reads the data of the experiment.
    pub fn reads_data(self) -> bool {
        matches!(self, Self::ScalingLaw)
    }

    /// Measures a run.
    ///
    /// # Errors
    ///
    /// A value that the run lacks, data that cannot be opened, a backend that cannot be used.
    pub fn of<C: ModelConfig>(
        self,
        run: &PlannedRun<C>,
        setting: &Setting,
    ) -> Result<Quantities, Error> {
        match self {
            Self::RmtResources => rmt_resources::measure(run, setting),
            Self::RmtVariance => rmt_variance::measure(run, setting),
            Self::TokenFormerCost => tokenformer_cost::measure(run),
            Self::RecurrentCost => recurrent_cost::measure(run, setting),
            Self::ScalingLaw => scaling_law::measure(run, setting),
        }
    }
}

/// Quantities by their names.
fn quantities<const N: usize>(named: [(&str, f64); N]) -> Quantities {
    named.map(|(name, value)| (name.to_owned(), value)).into()
}
