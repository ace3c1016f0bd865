//! The options that programs share, errors as exit codes, and signals.

#![forbid(unsafe_code)]

mod args;
mod compare;
mod exit;
mod experiment;
mod jobs;
mod settings;
mod shell;
mod sweep;
mod text;
mod try_models;
mod usage;

pub use residual_zoo_system::console::warn;

pub use args::{
    BackendArgs, CheckpointArgs, DataArgs, DisplayArgs, PlaceArgs, TEXTS, number, parsed,
    refuse_doubled,
};
pub use compare::CompareArgs;
pub use exit::{of_run, report, stop_on_signal};
pub use experiment::{ExperimentArgs, Source, chosen_scale, experiment_main, set_seeds};
pub use jobs::JobsArgs;
pub use residual_zoo_report::wrapped;
pub use settings::start;
pub use shell::{arguments, command, example, quoted, quoted_path};
pub use sweep::{SweepArgs, refuse_swept};
pub use text::{fitted, print};
pub use usage::options;

pub(crate) use text::{verdict, write};
