//! Learning-rate schedules.

use residual_zoo_runs::{DecayShape, Schedule, TrainConfig};

/// The position of a run in its curriculum after a validation.
#[derive(Clone, Debug)]
pub(crate) struct Curriculum {
    /// Whether the run was at the last level before the validation.
    pub(crate) was_last: bool,
    /// The sequence lengths of the levels that the run has moved to, from the second level on.
    pub(crate) lengths: Vec<f64>,
    /// The sequence length of the last level, l_max.
    pub(crate) longest: f64,
}

/// Returns the factor by which `schedule` multiplies the learning rate after a validation with loss `loss`. `before` is
/// the previous factor, which is initially 1.
pub(crate) fn factor(schedule: Schedule, before: f64, loss: f64, curriculum: &Curriculum) -> f64 {
    let at_level = |l: &f64| 1.0 - 0.5 * l / curriculum.longest;
    let decayed: f64 = curriculum.lengths.iter().map(at_level).product();
    match schedule {
        Schedule::Cosine | Schedule::Linear | Schedule::Wsd { .. } => before,
        Schedule::Kausik if curriculum.was_last => before.min(decayed * (1.0 - (-loss).exp())),
        Schedule::Kausik => decayed,
    }
}

/// Returns the learning rate of step `step`, counted from 0, without the factor of [`Schedule::Kausik`].
pub fn learning_rate(config: &TrainConfig, step: usize) -> f64 {
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
    // `start` is the last step before the learning rate falls.
    let (start, shape) = match config.schedule {
        Schedule::Cosine | Schedule::Kausik => (warmup, DecayShape::Cosine),
        Schedule::Linear => (warmup, DecayShape::Linear),
        Schedule::Wsd { decay, shape } => {
            let fall = (decay * steps as f64).round() as usize;
            let start = last.saturating_sub(fall.max(1));
            (start.max(warmup), shape)
        }
    };
    let progress = step.saturating_sub(start) as f64 / (last - start) as f64;
    floor + (peak - floor) * shape.at(progress.min(1.0))
}

#[cfg(test)]
mod tests;
