//! The pace of a run, and the time left.

use std::time::{Duration, Instant};

/// The times of a run's steps since this process started or resumed the run.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    opened: Instant,
    /// The step at which this process started or resumed the run.
    start: usize,
    total: usize,
    /// The work of the later runs, as a multiple of the work of this run.
    to_come: f64,
    /// The time at which the first step began.
    began: Option<Instant>,
    /// The time at which the first step ended.
    first: Option<Instant>,
    /// The last finished step, and the time at which it ended.
    last: Option<(usize, Instant)>,
}

impl Pace {
    /// Makes the pace of a run that starts at `start` and has `total` steps.
    pub(super) fn new(now: Instant, (start, total): (usize, usize), to_come: f64) -> Self {
        Self {
            opened: now,
            start,
            total,
            to_come,
            began: None,
            first: None,
            last: None,
        }
    }

    /// Records the start of a step.
    pub(super) fn begin(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    /// Records the end of a step.
    pub(super) fn step(&mut self, step: usize, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some((step, now));
    }

    /// Returns the last finished step, or the step at which this process started or resumed the run.
    pub(super) fn reached(&self) -> usize {
        self.last.map_or(self.start, |(step, _)| step)
    }

    /// Returns the number of all steps.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Returns the time since this process started or resumed the run.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.opened)
    }

    /// Returns the mean time per step, including the work between steps. Once a second step has ended, the first step
    /// does not count, because backends compile kernels in it.
    fn per_step(&self) -> Option<Duration> {
        let (step, last) = self.last?;
        match step.saturating_sub(self.start) {
            0 => None,
            1 => Some(last.saturating_duration_since(self.began?)),
            done => Some(last.saturating_duration_since(self.first?) / (done - 1) as u32),
        }
    }

    /// Returns the remaining time of the run; `None` before the first step has ended.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        let (step, last) = self.last?;
        let steps = self.total.saturating_sub(step) as f64;
        let left = scaled(self.per_step()?, steps);
        Some(left.saturating_sub(now.saturating_duration_since(last)))
    }

    /// Returns the remaining time of the run and the later runs; `None` without later runs, or before the first step
    /// has ended.
    pub(super) fn left_of_all(&self, now: Instant) -> Option<Duration> {
        let others = scaled(self.per_step()?, self.total as f64 * self.to_come);
        let left = self.left(now)?;
        (self.to_come > 0.0).then(|| left.saturating_add(others))
    }
}

/// Multiplies a time; returns the longest possible time if the product is out of range.
fn scaled(time: Duration, by: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() * by).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_that_of_the_steps_to_come() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let seconds = Duration::from_secs;
        let mut pace = Pace::new(start, (100, 110), 1.5);
        assert_eq!((pace.left(at(3)), pace.left_of_all(at(3))), (None, None));
        pace.begin(at(5));
        assert_eq!(pace.left(at(6)), None);
        // The first step takes 10 s, because kernels are compiled in it; the others take 2 s.
        pace.step(101, at(15));
        assert_eq!(pace.left(at(15)), Some(seconds(90)));
        pace.begin(at(15));
        pace.step(102, at(17));
        pace.step(103, at(19));
        assert_eq!(pace.left(at(19)), Some(seconds(14)));
        assert_eq!(
            pace.left(at(20)),
            Some(seconds(13)),
            "counts down in a step"
        );
        assert_eq!(pace.left(at(99)), Some(seconds(0)));
        assert_eq!(pace.left_of_all(at(19)), Some(seconds(14 + 330)));
        assert_eq!((pace.reached(), pace.elapsed(at(19))), (103, seconds(19)));
    }

    #[test]
    fn a_run_that_nothing_follows_has_one_time_left() {
        let now = Instant::now();
        let mut pace = Pace::new(now, (0, usize::MAX), 0.0);
        pace.begin(now);
        pace.step(1, now + Duration::from_secs(1000));
        assert_eq!(pace.left_of_all(now), None);
        assert!(pace.left(now).is_some());
    }
}
