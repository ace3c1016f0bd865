//! The result of a run.

use std::path::PathBuf;

use residual_zoo_core::Cost;
use residual_zoo_runs::Row;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// All rows of `metrics.jsonl`.
    pub rows: Vec<Row>,
    /// The cost of the model.
    pub cost: Cost,
    /// Mean cross-entropy of the last log interval with a step that was not skipped, in nats per token. NaN if there is
    /// no such interval.
    pub train_loss: f64,
    /// Mean cross-entropy of the last validation, in nats per token. NaN if there was no validation, or if its loss is
    /// not finite.
    pub valid_loss: f64,
    /// Fraction of the targets that the model rated most likely in the last validation.
    pub valid_accuracy: f64,
    /// Training tokens per second over the whole run.
    pub tokens_per_second: f64,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    /// Whether this process has made any steps of the run.
    pub trained: bool,
    /// The directory of the last checkpoint.
    pub checkpoint: PathBuf,
}

impl Summary {
    /// Returns the summary with the rows up to step `step`, and the losses and accuracy in these rows. The other fields
    /// still describe the whole run.
    pub fn up_to(mut self, step: usize) -> Self {
        self.rows.retain(|row| row.step <= step);
        Self {
            train_loss: last(&self.rows, |row| row.train_loss),
            valid_loss: last_valid_loss(&self.rows),
            valid_accuracy: last(&self.rows, |row| row.valid_accuracy),
            ..self
        }
    }
}

/// Returns the last value of a field; NaN if no row has a value.
pub(crate) fn last(rows: &[Row], field: fn(&Row) -> Option<f64>) -> f64 {
    rows.iter().rev().find_map(field).unwrap_or(f64::NAN)
}

/// Returns the loss of the last validation. A row omits a loss that is not finite. In that case, returns NaN, because
/// an earlier loss must not replace it.
pub(crate) fn last_valid_loss(rows: &[Row]) -> f64 {
    let validated = |row: &&Row| row.valid_loss.is_some() || row.valid_accuracy.is_some();
    let validated = rows.iter().rev().find(validated);
    validated.and_then(|row| row.valid_loss).unwrap_or(f64::NAN)
}
