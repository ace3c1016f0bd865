//! Training measured in steps: the trainer, its dashboard and logs, run directories and
//! checkpoints, sampling and benchmarks.
//!
//! Models are known here only by [`ModelConfig`](residual_zoo_core::ModelConfig) and
//! [`LanguageModel`](residual_zoo_core::LanguageModel), so every architecture trains the same way.

#![forbid(unsafe_code)]

mod assign;
pub mod bench;
pub mod checkpoint;
mod config;
pub mod dashboard;
mod disk;
mod error;
pub mod generate;
pub mod health;
mod lock;
mod log;
mod manifest;
mod metrics;
pub mod optimizer;
pub mod resume;
mod run;
pub mod run_dir;
mod schedule;
mod trainer;

pub use config::{OnDiskError, Precision, RunConfig, TrainConfig, parse_ron};
pub use error::Error;
pub use metrics::Row;
pub use run::{FirstWeights, Interrupter, RunOptions, Summary, run};
pub use run_dir::RunDir;
pub use schedule::Schedule;
pub use trainer::{Progress, Trainer, Validation, vocabulary};

#[cfg(test)]
mod tests;
