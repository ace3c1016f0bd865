//! Measurements without training, each of which belongs to one experiment.

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

/// Settings that all runs of a measurement share.
pub struct Setting<'a> {
    /// Number of token ids.
    pub vocab_size: usize,
    /// Seed of the random draws.
    pub seed: u64,
    /// The data of the experiment.
    pub data: &'a DataConfig,
    /// The backend.
    pub backend: BackendKind,
    /// The index of the GPU; `None` for the backend's choice.
    pub gpu: Option<usize>,
}

impl Measure {
    /// Returns the names of the quantities.
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

    /// Whether the measurement is repeated for every seed, because it draws random numbers or measures times.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RmtVariance | Self::ScalingLaw | Self::Latency)
    }

    /// Whether the measurement reads the data of the experiment.
    pub fn reads_data(self) -> bool {
        matches!(self, Self::ScalingLaw)
    }

    /// Measures a run.
    ///
    /// # Errors
    ///
    /// Returns an error if the run lacks a value or a model that the measurement needs, or if the model does not fit
    /// into memory. Also returns an error if the data cannot be opened or the backend cannot be used.
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

/// Returns `values` as quantities with these `names`, which have the same order.
fn quantities<const N: usize>(names: &[&str], values: [f64; N]) -> Quantities {
    let names = names.iter().map(|&name| name.to_owned());
    names.zip(values).collect()
}
