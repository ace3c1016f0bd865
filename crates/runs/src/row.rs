//! The metrics of a run, one row for each log line.

use serde::{Deserialize, Serialize};

/// A line of `metrics.jsonl`. The first four fields are always present. The other fields are present only if they were
/// measured.
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
    /// Like `valid_loss`, for the average of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema_valid_loss: Option<f64>,
    /// Level of the curriculum, counted from 0, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<usize>,
    /// Learning rate of the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Learning rate of the hidden matrices in the last step, if Muon trains them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muon_lr: Option<f64>,
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

/// Maximum number of steps of a run. Larger totals would lose precision.
pub const MOST_STEPS: usize = 1 << 53;
/// Maximum training time of a run, in seconds; see [`MOST_STEPS`].
pub const MOST_SECONDS: f64 = 1e12;

impl Row {
    /// Names the first impossible value, if there is one.
    pub fn problem(&self) -> Option<String> {
        let accuracy = self.valid_accuracy.filter(|it| !(0.0..=1.0).contains(it));
        totals_problem(self.step, self.flops, self.seconds).or_else(|| {
            let accuracy = accuracy?;
            Some(format!(
                "`valid_accuracy` is {accuracy}; it must be between 0 and 1"
            ))
        })
    }
}

/// Names the first total that is impossible after `step` steps, if there is one.
pub fn totals_problem(step: usize, flops: f64, seconds: f64) -> Option<String> {
    if step > MOST_STEPS {
        return Some(format!("`step` is {step}; no run is that long"));
    }
    if !(0.0..=MOST_SECONDS).contains(&seconds) {
        return Some(format!("`seconds` is {seconds}; no run takes that long"));
    }
    if !(flops.is_finite() && flops >= 0.0) {
        return Some(format!(
            "`flops` is {flops}; it must be a number of at least 0"
        ));
    }
    None
}
