//! Means over seeds with their uncertainty, and fits of straight lines.

use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::Statistics;

/// Returns the quantile of Student's t distribution at the probability `share`; infinite for 0 degrees of freedom.
fn quantile(share: f64, degrees: usize) -> f64 {
    let distribution = StudentsT::new(0.0, 1.0, degrees as f64);
    distribution.map_or(f64::INFINITY, |t| t.inverse_cdf(share))
}

/// Returns the two-sided 95 % point of Student's t distribution; infinite for 0 degrees of freedom.
fn t(degrees: usize) -> f64 {
    quantile(0.975, degrees)
}

/// Corrects the p-values of several tests for their number (Holm, "A simple sequentially rejective multiple test
/// procedure", 1979). The i-th smallest of m values is multiplied by m − i + 1. A result is at most 1, and never below
/// the result of a smaller value. Results are in the order of `p`.
pub(crate) fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut corrected = vec![0.0; p.len()];
    let mut largest: f64 = 0.0;
    for (i, &at) in order.iter().enumerate() {
        largest = largest.max(p[at] * (p.len() - i) as f64).min(1.0);
        corrected[at] = largest;
    }
    corrected
}

/// The mean of values, with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of the width of the 95 % confidence interval of the mean; infinite for one value.
    pub half_width: f64,
    /// Standard deviation of the values, with n − 1; 0 for one value.
    pub deviation: f64,
    /// The lowest value.
    pub lowest: f64,
    /// The highest value.
    pub highest: f64,
    /// Number of values.
    pub count: usize,
}

impl Estimate {
    /// Estimates the mean of independent draws; `None` without values, or if a value is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let (deviation, half_width) = match count {
            1 => (0.0, f64::INFINITY),
            _ => {
                let deviation = values.std_dev();
                let error = deviation / (count as f64).sqrt();
                (deviation, t(count - 1) * error)
            }
        };
        Some(Self {
            mean: values.mean(),
            half_width,
            deviation,
            lowest: values.min(),
            highest: values.max(),
            count,
        })
    }

    /// Returns the two-sided p-value of the hypothesis that the mean is `expected`: the probability of a distance at
    /// least this large by chance. `None` for one value.
    pub fn p(&self, expected: f64) -> Option<f64> {
        let distance = (self.mean - expected).abs();
        let degrees = self.count.checked_sub(1).filter(|degrees| *degrees > 0)?;
        if distance == 0.0 {
            return Some(1.0);
        }
        let t = distance / (self.deviation / (self.count as f64).sqrt());
        let distribution = StudentsT::new(0.0, 1.0, degrees as f64).ok()?;
        Some(2.0 * distribution.sf(t))
    }

    /// Returns the smallest mean that a two-sided test at 5 % distinguishes from zero in 80 % of cases. Assumes the
    /// number and the spread of these values. Infinite for one value.
    pub fn detectable(&self) -> f64 {
        let degrees = match self.count {
            0 | 1 => return f64::INFINITY,
            count => count - 1,
        };
        let points = t(degrees) + quantile(0.8, degrees);
        points * self.deviation / (self.count as f64).sqrt()
    }

    /// Whether the values differ by more than rounding.
    pub fn is_spread(&self) -> bool {
        self.deviation > self.mean.abs() * 1e-12
    }
}

/// Returns the estimates of both coordinates of points.
pub(crate) fn estimates(points: &[(f64, f64)]) -> Option<[Estimate; 2]> {
    let of = |at: fn(&(f64, f64)) -> f64| Estimate::of(&points.iter().map(at).collect::<Vec<_>>());
    Some([of(|point| point.0)?, of(|point| point.1)?])
}

/// A straight line through points, by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Slope.
    pub slope: f64,
    /// Value at x = 0.
    pub intercept: f64,
    /// Half of the width of the slope's 95 % confidence interval; infinite for two points.
    pub slope_half_width: f64,
    /// Share of the variance that the line explains.
    pub r_squared: f64,
}

impl Line {
    /// Fits a line through `points`; `None` unless all are finite and at least two have different x.
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let (xs, ys): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
        let (xx, xy, yy) = ((&xs).variance(), (&xs).covariance(&ys), (&ys).variance());
        // Not `<=`: NaN must not pass.
        if !(xx > 0.0 && xy.is_finite() && yy.is_finite()) {
            return None;
        }
        let slope = xy / xx;
        let residual = (yy - slope * xy).max(0.0);
        let slope_half_width = match points.len() - 2 {
            0 => f64::INFINITY,
            degrees => t(degrees) * (residual / degrees as f64 / xx).sqrt(),
        };
        Some(Self {
            slope,
            intercept: ys.mean() - slope * xs.mean(),
            slope_half_width,
            r_squared: if yy > 0.0 { 1.0 - residual / yy } else { 1.0 },
        })
    }

    /// Fits y = a·x^b through positive points, as a line through their logarithms. The slope is b.
    pub fn power_law(points: &[(f64, f64)]) -> Option<Self> {
        let logarithms: Vec<_> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
        Self::through(&logarithms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T2: f64 = 4.302_652_729_749_464;

    #[test]
    fn an_estimate_is_the_t_interval_of_the_textbook() {
        // 5, 7, 9: mean 7, s = 2, t(2) = 0.95 / √(2 · 0.975 · 0.025), in tables 4.303.
        let found = Estimate::of(&[5.0, 7.0, 9.0]).unwrap();
        assert_eq!((found.mean, found.deviation, found.count), (7.0, 2.0, 3));
        assert_eq!((found.lowest, found.highest), (5.0, 9.0));
        assert!((found.half_width - T2 * 2.0 / 3f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn p_is_a_twentieth_at_the_end_of_the_interval() {
        let found = Estimate::of(&[5.0, 7.0, 9.0]).unwrap();
        let end = found.mean - found.half_width;
        assert!((found.p(end).unwrap() - 0.05).abs() < 1e-9);
        assert_eq!(found.p(7.0), Some(1.0));
        // t = 7 / (2 / √3) = 6.062 with two degrees of freedom: p = 1 − t / √(t² + 2).
        let t = 7.0 / (2.0 / 3f64.sqrt());
        let p = 1.0 - t / (t * t + 2.0).sqrt();
        assert!((found.p(0.0).unwrap() - p).abs() < 1e-9);
        assert_eq!(Estimate::of(&[5.0]).unwrap().p(0.0), None);
        // All values are equal and differ from the expected one.
        assert_eq!(Estimate::of(&[2.0, 2.0]).unwrap().p(0.0), Some(0.0));
    }

    #[test]
    fn what_is_detectable_follows_from_the_points_of_t() {
        // t(2) is 4.303 at 97.5 % and 1.061 at 80 %.
        let found = Estimate::of(&[5.0, 7.0, 9.0]).unwrap();
        let expected = (4.303 + 1.061) * 2.0 / 3f64.sqrt();
        assert!((found.detectable() - expected).abs() < 1e-3);
        assert_eq!(Estimate::of(&[5.0]).unwrap().detectable(), f64::INFINITY);
    }

    #[test]
    fn holm_multiplies_the_smallest_by_the_number_of_tests_and_never_reorders() {
        assert_eq!(holm(&[0.01, 0.04, 0.03]), [0.03, 0.06, 0.06]);
        assert_eq!(holm(&[0.6, 0.7]), [1.0, 1.0]);
        assert_eq!(holm(&[0.02]), [0.02]);
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn student_s_t_is_that_of_the_tables() {
        // Degrees of freedom and two-sided 95 % points from a textbook.
        for (degrees, printed) in [
            (1, 12.706),
            (2, 4.303),
            (5, 2.571),
            (10, 2.228),
            (30, 2.042),
            (120, 1.980),
        ] {
            assert!(
                (t(degrees) - printed).abs() <= 5e-4,
                "{degrees}: {}",
                t(degrees)
            );
        }
        assert_eq!(t(0), f64::INFINITY);
    }

    #[test]
    fn one_value_says_nothing_of_its_spread_and_none_says_nothing() {
        let one = Estimate::of(&[3.0]).unwrap();
        assert_eq!(
            (one.mean, one.half_width, one.deviation),
            (3.0, f64::INFINITY, 0.0)
        );
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn a_line_is_found_with_the_interval_of_its_slope() {
        let exact = Line::through(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]).unwrap();
        assert_eq!((exact.slope, exact.intercept), (2.0, 1.0));
        assert_eq!((exact.slope_half_width, exact.r_squared), (0.0, 1.0));
        // x 1..4, y 2, 4, 5, 8: slope 1.9, residual 0.7, standard error √(0.35/5).
        let noisy = Line::through(&[(1.0, 2.0), (2.0, 4.0), (3.0, 5.0), (4.0, 8.0)]).unwrap();
        assert!((noisy.slope - 1.9).abs() < 1e-12);
        assert!((noisy.slope_half_width - T2 * 0.07f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn points_above_each_other_have_no_line() {
        assert_eq!(Line::through(&[(1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(Line::through(&[(1.0, 2.0)]), None);
        assert_eq!(Line::through(&[]), None);
        assert_eq!(Line::power_law(&[(1.0, 2.0), (0.0, 3.0)]), None);
    }

    #[test]
    fn a_power_law_is_a_line_of_logarithms() {
        let points = [1.0f64, 10.0, 100.0].map(|x| (x, 3.0 * x.powf(-0.5)));
        let found = Line::power_law(&points).unwrap();
        assert!((found.slope + 0.5).abs() < 1e-12);
        assert!((found.intercept.exp() - 3.0).abs() < 1e-12);
    }
}
