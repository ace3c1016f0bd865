//! Means over seeds with their uncertainty, and straight-line fits.

use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::Statistics;

/// The two-sided 95 % point of Student's t distribution; infinite for 0 degrees of freedom.
fn t(degrees: usize) -> f64 {
    let distribution = StudentsT::new(0.0, 1.0, degrees as f64);
    distribution.map_or(f64::INFINITY, |t| t.inverse_cdf(0.975))
}

/// The mean of some values and how well they fix it.
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
    /// How many values.
    pub count: usize,
}

impl Estimate {
    /// Of values drawn independently; `None` of no values, or where one is not finite.
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

    /// Whether the values differ by more than rounding.
    pub fn is_spread(&self) -> bool {
        self.deviation > self.mean.abs() * 1e-12
    }
}

/// The estimates of both coordinates of some points.
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
    /// Through `points`; `None` unless they have two different x, all of them finite.
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

    /// The exponent and the rest of y = a·x^b through points, all of them positive: the line
    /// through their logarithms.
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
    fn student_s_t_is_that_of_the_tables() {
        // Degrees of freedom and two-sided 95 % points of a textbook.
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
