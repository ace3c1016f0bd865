//! What is measured, one row for every log line.

use serde::{Deserialize, Serialize};

/// A line of `metrics.jsonl`. The first four fields are always there, the others where they were
/// measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Optimizer steps made.
    pub step: usize,
    /// Training tokens seen.
    pub tokens: u64,
    /// Training FLOPs, by the model's cost.
    pub flops: f64,
    /// Seconds of training, without validation, checkpoints and samples.
    pub seconds: f64,
    /// Mean cross-entropy of the steps since the last row, nats per token, without the z-loss and
    /// without skipped steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_loss: Option<f64>,
    /// Mean cross-entropy of the validation batches, nats per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_loss: Option<f64>,
    /// Share of the validation targets that were the likeliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_accuracy: Option<f64>,
    /// Level of the curriculum, from 0, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<usize>,
    /// Learning rate of the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Norm of all gradients together of the last step that was not skipped, before clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Steps since the last row that were skipped because loss or gradients were not finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<usize>,
    /// The largest spike of the loss since the last row: standard deviations above the mean of
    /// the losses before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spike: Option<f64>,
    /// Training tokens per second since the last row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Share of the peak FLOP/s in use since the last row, where the peak is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Resident memory of the process, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// Resident memory of this process in bytes, where the system tells.
pub fn memory() -> Option<u64> {
    memory_stats::memory_stats().map(|stats| stats.physical_mem as u64)
}
