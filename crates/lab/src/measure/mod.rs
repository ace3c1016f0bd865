//! What single experiments measure without training.

mod formulas;
mod latency;
mod rmt_variance;
mod scaling_law;

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
            Self::RmtResources => formulas::RMT,
            Self::RmtVariance => rmt_variance::NAMES,
            Self::TokenFormerCost => formulas::TOKENFORMER,
            Self::RecurrentCost => formulas::RECURRENT,
            Self::ScalingLaw => scaling_law::NAMES,
            Self::Latency => latency::NAMES,
        }
    }

    /// Whether it draws at random, or takes times: then it is measured for every seed.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RmtVariance | Self::ScalingLaw | Self::Latency)
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
            Self::RmtResources => formulas::rmt(run, setting),
            Self::RmtVariance => rmt_variance::measure(run, setting),
            Self::TokenFormerCost => formulas::tokenformer(run),
            Self::RecurrentCost => formulas::recurrent(run, setting),
            Self::ScalingLaw => scaling_law::measure(run, setting),
            Self::Latency => latency::measure(run, setting),
        }
    }
}

/// Quantities of these names, in the order of the names.
fn quantities<const N: usize>(names: &[&str], values: [f64; N]) -> Quantities {
    let names = names.iter().map(|&name| name.to_owned());
    names.zip(values).collect()
}
