//! Sums since the last row of the metrics, and the detection of loss spikes.
//!
//! Sums and earlier losses are part of a checkpoint, so a resumed run writes the same losses and spikes as an
//! uninterrupted run.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use residual_zoo_runs::row::MOST_SECONDS;

use crate::trainer::Step;

/// Sums over the steps since the last row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Number of steps, including skipped steps.
    pub steps: usize,
    /// Number of skipped steps.
    pub skipped: usize,
    /// Sum of the losses of the steps that were not skipped, in nats per token.
    pub loss: f64,
    /// Seconds of training.
    pub seconds: f64,
    /// Gradient norm of the last step that was not skipped.
    pub grad_norm: Option<f64>,
    /// Learning rate of the last step.
    pub lr: Option<f64>,
    /// The largest z-score of a loss spike.
    pub spike: Option<f64>,
}

impl Interval {
    /// Adds a step with learning rate `lr` that took `seconds`. `spike` is the z-score of the loss if it is a spike.
    pub fn add(&mut self, step: &Step, lr: f64, seconds: f64, spike: Option<f64>) {
        self.steps += 1;
        self.seconds += seconds;
        self.lr = Some(lr);
        match step.skipped {
            Some(_) => self.skipped += 1,
            None => {
                self.loss += step.loss;
                self.grad_norm = Some(step.grad_norm);
            }
        }
        if spike > self.spike {
            self.spike = spike;
        }
    }

    /// Whether these sums are possible in a run.
    pub(crate) fn is_plausible(&self) -> bool {
        let seconds = (0.0..=MOST_SECONDS).contains(&self.seconds);
        let loss = self.loss.abs() <= 1e6 * self.steps as f64;
        seconds && loss && self.skipped <= self.steps
    }

    /// Returns the mean loss of the steps that were not skipped.
    pub fn mean_loss(&self) -> Option<f64> {
        let good = self.steps - self.skipped;
        (good > 0).then(|| self.loss / good as f64)
    }
}

/// Number of losses that are remembered.
const WINDOW: usize = 128;
/// Number of losses needed for a z-score.
const FEWEST: usize = 32;

/// The losses of the last steps that were not skipped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecentLosses(VecDeque<f64>);

impl RecentLosses {
    /// Whether these losses are possible in a run.
    pub(crate) fn is_plausible(&self) -> bool {
        self.0.len() <= WINDOW && self.0.iter().all(|loss| loss.is_finite())
    }

    /// Remembers `loss` and returns its z-score: the number of standard deviations above the mean of the earlier
    /// losses. Returns `None` if there are too few earlier losses, or if they are all equal.
    pub fn push(&mut self, loss: f64) -> Option<f64> {
        let losses = &mut self.0;
        let n = losses.len() as f64;
        let mean = losses.iter().sum::<f64>() / n;
        let variance = losses.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let z = (loss - mean) / variance.sqrt();
        let judged = losses.len() >= FEWEST && variance > 0.0;
        if losses.len() == WINDOW {
            losses.pop_front();
        }
        losses.push_back(loss);
        judged.then_some(z)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(loss: f64, skipped: bool) -> Step {
        Step {
            loss,
            grad_norm: loss,
            skipped: skipped.then(Vec::new),
        }
    }

    #[test]
    fn skipped_steps_are_counted_and_not_averaged() {
        let mut interval = Interval::default();
        assert_eq!(interval.mean_loss(), None);
        interval.add(&step(f64::NAN, true), 0.1, 1.0, None);
        assert_eq!(interval.mean_loss(), None);
        interval.add(&step(2.0, false), 0.2, 1.0, Some(7.0));
        interval.add(&step(4.0, false), 0.3, 1.0, Some(6.5));
        interval.add(&step(f64::INFINITY, true), 0.4, 1.0, None);
        assert_eq!(interval.mean_loss(), Some(3.0));
        assert_eq!((interval.steps, interval.skipped), (4, 2));
        assert_eq!((interval.lr, interval.grad_norm), (Some(0.4), Some(4.0)));
        assert_eq!((interval.spike, interval.seconds), (Some(7.0), 4.0));
    }

    #[test]
    fn a_spike_is_measured_in_standard_deviations_of_the_losses_before() {
        let mut recent = RecentLosses::default();
        for i in 0..FEWEST {
            assert_eq!(recent.push(2.0 + f64::from(i as u32 % 2)), None);
        }
        // Mean 2.5, standard deviation 0.5.
        assert_eq!(recent.push(5.5), Some(6.0));
        // The spike increases the standard deviation for the next loss.
        assert!(recent.push(5.5).is_some_and(|z| z > 4.0 && z < 6.0));
        for _ in 0..WINDOW {
            recent.push(1.0);
        }
        assert_eq!(recent.push(9.0), None, "equal losses give no z-score");
        assert_eq!(recent.0.len(), WINDOW);
    }

    #[test]
    fn restored_losses_are_equal_to_the_bit() {
        let mut recent = RecentLosses::default();
        let mut loss = 1.0;
        for _ in 0..1000 {
            loss = (loss * 997.0_f64).sin().abs() * 3.0;
            recent.push(loss);
            let text = serde_json::to_string(&recent).unwrap();
            assert_eq!(serde_json::from_str::<RecentLosses>(&text).unwrap(), recent);
        }
    }
}
