//! Learning-rate schedules.

use residual_zoo_runs::{Schedule, TrainConfig};

/// The position of a run in its curriculum after a validation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Curriculum {
    /// Whether the run was at the last level before the validation.
    pub(crate) was_last: bool,
    /// Whether the validation moved it to the next level.
    pub(crate) advanced: bool,
    /// The lengths of a sequence at the current and at the last level.
    pub(crate) lengths: (f64, f64),
}

/// The factor of `schedule` on the learning rate after a validation with loss `loss`. `before` is the
/// factor until then, which is 1 at the start.
pub(crate) fn factor(schedule: Schedule, before: f64, loss: f64, curriculum: Curriculum) -> f64 {
    let (now, last) = curriculum.lengths;
    match schedule {
        Schedule::Cosine => before,
        Schedule::Kausik if curriculum.was_last => 1.0 - (-loss).exp(),
        Schedule::Kausik if curriculum.advanced => before * (1.0 - 0.5 * now / last),
        Schedule::Kausik => before,
    }
}

/// The learning rate of step `step`, counted from 0, by [`Schedule::Cosine`].
pub fn cosine(config: &TrainConfig, step: usize) -> f64 {
    let &TrainConfig {
        learning_rate: peak,
        warmup,
        steps,
        ..
    } = config;
    let floor = config.min_learning_rate.of(peak);
    if step < warmup {
        return peak * (step + 1) as f64 / (warmup as f64 + 1.0);
    }
    let last = steps.saturating_sub(1).max(warmup.saturating_add(1));
    let progress = (step - warmup) as f64 / (last - warmup) as f64;
    let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress.min(1.0)).cos());
    floor + (peak - floor) * cosine
}
