//! Learning-rate schedules.

use serde::{Deserialize, Serialize};

use crate::TrainConfig;

/// How the learning rate changes over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schedule {
    /// A linear rise over `warmup` steps to `learning_rate`, then half a cosine down to
    /// `min_learning_rate` at the last step (Loshchilov and Hutter, "SGDR", 2017, without restarts).
    #[default]
    Cosine,
    /// `Cosine` times a factor that follows the curriculum. The rule is that of the published code of
    /// Kausik, "Scaling efficient LLMs" (2024); docs/papers/recurrent.md explains it. Each new level
    /// multiplies the factor by 1 − ½ l / l_max, where l is the length of a sequence at that level. At
    /// the last level, each validation sets the factor to 1 − exp(−loss).
    Kausik,
}

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

impl Schedule {
    /// The factor on the learning rate after a validation with loss `loss`. `before` is the factor until
    /// then, which is 1 at the start.
    pub(crate) fn factor(self, before: f64, loss: f64, curriculum: Curriculum) -> f64 {
        let (now, last) = curriculum.lengths;
        match self {
            Self::Cosine => before,
            Self::Kausik if curriculum.was_last => 1.0 - (-loss).exp(),
            Self::Kausik if curriculum.advanced => before * (1.0 - 0.5 * now / last),
            Self::Kausik => before,
        }
    }
}

/// The learning rate of step `step`, counted from 0, by [`Schedule::Cosine`].
pub fn cosine(config: &TrainConfig, step: usize) -> f64 {
    let &TrainConfig {
        learning_rate: peak,
        min_learning_rate: floor,
        warmup,
        steps,
        ..
    } = config;
    if step < warmup {
        return peak * (step + 1) as f64 / (warmup as f64 + 1.0);
    }
    let last = steps.saturating_sub(1).max(warmup.saturating_add(1));
    let progress = (step - warmup) as f64 / (last - warmup) as f64;
    let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress.min(1.0)).cos());
    floor + (peak - floor) * cosine
}
