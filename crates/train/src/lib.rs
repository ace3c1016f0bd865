//! Training measured in steps: the trainer, its dashboard and logs, run directories and
//! checkpoints, sampling, benchmarks and reports.
//!
//! Models are known here only by [`ModelConfig`](residual_zoo_core::ModelConfig) and
//! [`LanguageModel`](residual_zoo_core::LanguageModel), so every architecture trains the same way.

#![forbid(unsafe_code)]

pub mod bench;
pub mod checkpoint;
pub mod compare;
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
pub mod suite;
mod trainer;

pub use config::{OnDiskError, Precision, RunConfig, TrainConfig};
pub use error::{Error, panic_message};
pub use metrics::Row;
pub use residual_zoo_report as report;
pub use run::{FirstWeights, Interrupter, RunOptions, Summary, run};
pub use run_dir::RunDir;
pub use schedule::Schedule;
pub use trainer::{Progress, Trainer, Validation, vocabulary};

#[cfg(test)]
mod tests;
