//! Gains in the unit of many papers: the factor on the baseline's tokens that lowers the baseline's loss by the same
//! amount.

use serde::Serialize;

use crate::Estimate;

/// The losses of a baseline, by its number of training tokens.
#[derive(Clone, Debug)]
pub struct Fall {
    /// For each factor on the tokens, in increasing order, the loss of each seed. The first factor is 1.
    points: Vec<(f64, Vec<f64>)>,
}

/// The losses of a model that is compared with the baseline.
#[derive(Clone, Debug)]
pub enum Losses {
    /// The loss of each seed, for the seeds of the baseline.
    SameSeeds(Vec<f64>),
    /// For other seeds, the difference from the baseline, and half the width of its 95 % interval.
    OtherSeeds(f64, f64),
}

/// The factor on the baseline's tokens at which the baseline has the same loss as a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Worth {
    /// The factor: 0 if it is below 1, and infinite if it is above the largest factor that was trained.
    pub factor: f64,
    /// The lower end of the 95 % interval.
    pub low: f64,
    /// The upper end of the 95 % interval.
    pub high: f64,
}

impl Fall {
    /// Makes the losses of a baseline from the loss of each seed at each factor on the tokens. Returns `None` unless
    /// the factors rise from 1, there are at least two of them, and each has a finite loss for the same number of
    /// seeds, at least one.
    pub fn new(points: Vec<(f64, Vec<f64>)>) -> Option<Self> {
        let (first, losses) = points.first()?;
        let is_whole = |(factor, of_seeds): &(f64, Vec<f64>)| {
            factor.is_finite()
                && of_seeds.len() == losses.len()
                && of_seeds.iter().all(|loss| loss.is_finite())
        };
        let rises = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let is_good = *first == 1.0 && rises && points.len() > 1 && !losses.is_empty();
        (is_good && points.iter().all(is_whole)).then_some(Self { points })
    }

    /// Returns the largest factor.
    pub fn most(&self) -> f64 {
        self.points[self.points.len() - 1].0
    }

    /// Returns the loss of each seed at a factor, interpolated linearly in the logarithm of the factor.
    fn at(&self, factor: f64) -> Vec<f64> {
        let last = self.points.len() - 2;
        let is_within = |i: &usize| factor <= self.points[i + 1].0;
        let i = (0..last).find(is_within).unwrap_or(last);
        let ((f0, losses), (f1, next)) = (&self.points[i], &self.points[i + 1]);
        let part = (factor / f0).log2() / (f1 / f0).log2();
        let pairs = losses.iter().zip(next);
        pairs
            .map(|(loss, next)| loss + part * (next - loss))
            .collect()
    }

    /// Returns the difference of the model from the baseline with `factor` × its tokens, and half the width of the
    /// interval.
    pub(crate) fn difference(&self, model: &Losses, factor: f64) -> Option<(f64, f64)> {
        let baseline = self.at(factor);
        let mean = |from: &[f64]| {
            let pairs = from.iter().zip(&baseline);
            let found: Vec<f64> = pairs.map(|(a, b)| a - b).collect();
            let found = Estimate::of(&found)?;
            Some((found.mean, found.half_width))
        };
        match model {
            Losses::SameSeeds(losses) if losses.len() == baseline.len() => mean(losses),
            Losses::SameSeeds(_) => None,
            Losses::OtherSeeds(difference, half_width) => {
                let (fall, of_fall) = mean(&self.points[0].1)?;
                Some((difference + fall, half_width.hypot(of_fall)))
            }
        }
    }

    /// Finds the factor at which the difference is first 0, and the interval from the first to the last factor at which
    /// the difference is not significant. Returns `None` if the model has a loss that is not finite, or not one for each seed.
    pub fn worth(&self, model: &Losses) -> Option<Worth> {
        const STEPS: usize = 4000;
        let most = self.most();
        let factors: Vec<f64> = (0..=STEPS)
            .map(|i| most.powf(i as f64 / STEPS as f64))
            .collect();
        let differences = factors.iter().map(|f| self.difference(model, *f));
        let differences = differences.collect::<Option<Vec<(f64, f64)>>>()?;
        // Finds the first factor at which a bound of the difference is not negative.
        let crosses = |bound: &dyn Fn(&(f64, f64)) -> f64| {
            let is_positive = |difference: &(f64, f64)| bound(difference) >= 0.0;
            match differences.iter().position(is_positive) {
                Some(0) if bound(&differences[0]) > 0.0 => 0.0,
                Some(i) => factors[i],
                None => f64::INFINITY,
            }
        };
        // The difference can be insignificant for several ranges of factors. The interval covers all of them.
        let last = differences
            .iter()
            .rposition(|(mean, half_width)| mean - half_width < 0.0);
        let high = match last {
            None if differences[0].0 > differences[0].1 => 0.0,
            None => factors[0],
            Some(last) if last == STEPS => f64::INFINITY,
            Some(last) => factors[last + 1],
        };
        Some(Worth {
            factor: crosses(&|(mean, _)| *mean),
            low: crosses(&|(mean, half_width)| mean + half_width),
            high,
        })
    }
}

impl Worth {
    /// Formats a factor with two decimals, or the limit that it exceeds. `most` is the largest factor that was trained.
    pub fn shown(factor: f64, most: f64) -> String {
        match factor {
            f64::INFINITY => format!("more than {most}"),
            0.0 => "less than 1".into(),
            _ => format!("{factor:.2}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fall(twice: [f64; 2], most: [f64; 2]) -> Fall {
        let points = vec![
            (1.0, vec![1.0, 1.2]),
            (2.0, twice.to_vec()),
            (4.0, most.to_vec()),
        ];
        Fall::new(points).unwrap()
    }

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-3, "{a} is not {b}");
    }

    #[test]
    fn a_model_is_worth_the_tokens_at_which_the_baseline_has_its_loss() {
        let exact = fall([0.9, 1.1], [0.85, 1.05]);
        let worth = |difference, half_width| {
            let model = Losses::OtherSeeds(difference, half_width);
            exact.worth(&model).unwrap()
        };
        // The gain is half a doubling, √2 times the tokens. The interval ends at 2^0.3 and 2^0.7.
        let gain = worth(-0.05, 0.02);
        near(gain.factor, 2f64.sqrt());
        near(gain.low, 1.2311);
        near(gain.high, 1.6245);
        // In the second piece, a doubling lowers the loss by 0.05.
        near(worth(-0.125, 0.0).factor, 2f64.powf(1.5));
        // These gains are outside the trained factors.
        let none = Worth {
            factor: 0.0,
            low: 0.0,
            high: 0.0,
        };
        assert_eq!(worth(0.1, 0.0), none);
        // The difference is exactly 0.
        let same = worth(0.0, 0.0);
        assert_eq!((same.low, same.factor, same.high), (1.0, 1.0, 1.0));
        let more = worth(-0.2, 0.1);
        assert_eq!((more.factor, more.high), (f64::INFINITY, f64::INFINITY));
        near(more.low, 2.0);
        assert_eq!(Worth::shown(more.factor, exact.most()), "more than 4");
        assert_eq!(Worth::shown(0.0, 4.0), "less than 1");
        assert_eq!(Worth::shown(1.234, 4.0), "1.23");
    }

    #[test]
    fn the_interval_covers_every_factor_at_which_the_difference_is_not_significant() {
        // The loss of the baseline falls to 0.9 and rises again to the loss of the model.
        let back = fall([0.9, 1.1], [0.95, 1.15]);
        let worth = back.worth(&Losses::OtherSeeds(-0.05, 0.02)).unwrap();
        near(worth.factor, 2f64.sqrt());
        near(worth.low, 1.2311);
        assert_eq!(worth.high, f64::INFINITY);
    }

    #[test]
    fn with_the_same_seeds_the_differences_between_seeds_cancel() {
        let exact = fall([0.9, 1.1], [0.85, 1.05]);
        let paired = exact.worth(&Losses::SameSeeds(vec![0.95, 1.15])).unwrap();
        near(paired.factor, 2f64.sqrt());
        near(paired.low, paired.high);
        let unequal = fall([0.9, 1.1], [0.8, 1.1]);
        let unequal = unequal.worth(&Losses::SameSeeds(vec![0.87, 1.09])).unwrap();
        assert!(unequal.low < unequal.factor && unequal.factor < unequal.high);
        // A seed is missing, or has no loss.
        assert_eq!(exact.worth(&Losses::SameSeeds(vec![0.95])), None);
        let nan = Losses::SameSeeds(vec![0.95, f64::NAN]);
        assert_eq!(exact.worth(&nan), None);
    }

    #[test]
    fn a_fall_needs_two_factors_from_1_and_every_seed() {
        let one = vec![(1.0, vec![1.0])];
        let from_two = vec![(2.0, vec![1.0]), (4.0, vec![0.9])];
        let back = vec![(1.0, vec![1.0]), (1.0, vec![0.9])];
        let lacking = vec![(1.0, vec![1.0, 1.1]), (2.0, vec![0.9])];
        let empty = vec![(1.0, vec![]), (2.0, vec![])];
        for points in [vec![], one, from_two, back, lacking, empty] {
            assert!(Fall::new(points.clone()).is_none(), "{points:?}");
        }
    }
}
