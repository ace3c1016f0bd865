//! The metrics of a run, one row for each log line.

use serde::{Deserialize, Serialize};

/// A line of `metrics.jsonl`. The first four fields are always present, the others only if they
/// were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Optimizer steps so far.
    pub step: usize,
    /// Training tokens so far.
    pub tokens: u64,
    /// Training FLOPs so far, according to the model's cost.
    pub flops: f64,
    /// Seconds of training so far, without validation, checkpoints and samples.
    pub seconds: f64,
    /// Mean cross-entropy of the steps since the last row, in nats per token, without the z-loss
    /// and without skipped steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_loss: Option<f64>,
    /// Mean cross-entropy of the validation batches, in nats per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_loss: Option<f64>,
    /// Fraction of the validation targets that the model rated most likely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_accuracy: Option<f64>,
    /// Level of the curriculum, counted from 0, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<usize>,
    /// Learning rate of the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Global gradient norm of the last step that was not skipped, before clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Number of steps since the last row that were skipped because the loss or gradients were not
    /// finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<usize>,
    /// The largest loss spike since the last row, in standard deviations above the mean of the
    /// losses before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spike: Option<f64>,
    /// Training tokens per second since the last row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Fraction of the peak FLOP/s in use since the last row, if the peak is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Resident memory of the process, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}
