//! Runs on disk: the run file, the run directory, checkpoints, their models, and sampling from these models.
//! [`Run::open`] opens a run.
//!
//! This crate also writes run directories. It does not train, so it needs neither the trainer nor the trainer's
//! dashboard.

#![forbid(unsafe_code)]

mod assign;
pub mod budget;
pub mod checkpoint;
mod choice;
mod config;
pub mod disk;
mod error;
mod events;
mod form;
pub mod generate;
mod lock;
mod log;
pub mod manifest;
mod open;
mod remedy;
mod ron_text;
pub mod row;
pub mod run_dir;
mod tensor_file;
mod wording;

pub use assign::{composition, contained, names_of, overlaps};
pub use choice::{Choice, SavedWeights, best};
pub use config::{
    DecayShape, Ema, EmaStart, MinLearningRate, OnDiskError, OptimizerKind, RunConfig, Schedule,
    TrainConfig,
};
pub use error::{Error, describe_not_finite};
pub use lock::Lock;
pub use log::Mark;
pub use open::{Run, TOGETHER, vocabulary};
pub use remedy::{OtherPlace, Remedy};
pub use ron_text::parse_ron;
pub use row::Row;
pub use run_dir::RunDir;
pub use wording::did_you_mean;
