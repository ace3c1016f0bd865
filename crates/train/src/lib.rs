//! Training: the trainer, its dashboard, its checkpoints and benchmarks. [`residual_zoo_runs`] defines the files of a
//! run.
//!
//! This crate knows models only through [`ModelConfig`](residual_zoo_core::ModelConfig) and
//! [`LanguageModel`](residual_zoo_core::LanguageModel), so every architecture trains the same way.

#![forbid(unsafe_code)]

mod ahead;
mod average;
mod begin;
pub mod bench;
pub mod checkpoint;
pub mod dashboard;
mod differences;
pub mod health;
pub mod optimizer;
mod options;
mod resume;
mod schedule;
mod summary;
pub mod team;
mod train;
mod trainer;

pub use differences::differences;
pub use options::{FirstWeights, Interrupter, RunOptions};
pub use resume::data_difference;
pub use summary::Summary;
pub use train::{check, run};
pub use trainer::{DeviceBatch, Progress, Trainer, Validation, sequences, upload};

#[cfg(test)]
mod tests;
