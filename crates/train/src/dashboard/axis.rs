//! Axes with round numbers.

use residual_zoo_report::si;

/// The axis of values: from `low` to `high` in equal steps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ValueAxis {
    pub(super) low: f64,
    pub(super) high: f64,
    /// Labels at equal distances, all of equal width.
    pub(super) labels: Vec<String>,
}

impl ValueAxis {
    /// Makes the axis of finite values from `low` to `high`, with at most about `count` steps.
    pub(super) fn new(low: f64, high: f64, count: usize) -> Self {
        let largest = low.abs().max(high.abs());
        // Values that hardly differ are drawn as a flat line, so that labels differ within their first three digits.
        let margin = (0.05 * largest - (high - low)).max(0.0) / 2.0;
        let (low, high) = (low - margin, high + margin);
        let (low, high) = if low < high {
            (low, high)
        } else {
            (low, low + 1.0)
        };
        let step = round_step((high - low) / count.max(1) as f64);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let ticks: Vec<f64> = (0..=(last - first) as usize)
            .map(|i| (first + i as f64) * step)
            .collect();
        let labels: Vec<String> = ticks.iter().map(|tick| label(*tick, step)).collect();
        let width = labels.iter().map(|label| label.chars().count()).max();
        let width = width.unwrap_or(0);
        Self {
            low: first * step,
            high: last * step,
            labels: labels
                .iter()
                .map(|label| format!("{label:>width$}"))
                .collect(),
        }
    }
}

/// Returns at most about `count` round step numbers from `low` to `high`, with their labels.
pub(super) fn step_ticks(low: f64, high: f64, count: usize) -> Vec<(f64, String)> {
    let step = round_step((high - low) / count.max(1) as f64).max(1.0);
    let first = (low / step).ceil();
    let ticks = (0..).map(|i| (first + i as f64) * step);
    let ticks = ticks.take_while(|tick| *tick <= high).take(count + 2);
    let label = |tick: f64| match tick < 1e5 {
        true => format!("{tick:.0}"),
        false => si(tick),
    };
    ticks.map(|tick| (tick, label(tick))).collect()
}

/// Returns the smallest number that is at least `step` and is 1, 2 or 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors.into_iter().find(|factor| factor * power >= step);
    factor.unwrap_or(10.0) * power
}

/// Labels a tick with just enough digits to distinguish it from the next one.
fn label(tick: f64, step: f64) -> String {
    // Adding zero drops the sign of a negative zero.
    let tick = if tick.abs() < step / 2.0 { 0.0 } else { tick };
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    match (tick.abs() >= 1e4 || step >= 1e4, decimals) {
        (true, _) => si(tick),
        (false, 0..=5) => format!("{tick:.decimals$}"),
        (false, _) => format!("{tick:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_between_round_numbers() {
        let axis = ValueAxis::new(1.434, 5.51, 5);
        assert_eq!(axis.labels, ["1", "2", "3", "4", "5", "6"]);
        assert_eq!((axis.low, axis.high), (1.0, 6.0));
        let axis = ValueAxis::new(1.41, 1.53, 4);
        assert_eq!(axis.labels, ["1.40", "1.45", "1.50", "1.55"]);
        assert_eq!(ValueAxis::new(0.0, 1e-3, 4).labels[1], "0.0005");
        assert_eq!(ValueAxis::new(11_000.0, 13_000.0, 4).labels[0], "  11k");
    }

    #[test]
    fn labels_are_few_different_and_around_the_values() {
        let values = [
            -1e9, -3.0, 0.0, 1e-12, 1e-4, 0.99, 1.0, 1.0001, 37.0, 12_345.0, 1e12,
        ];
        for low in values {
            for high in values.into_iter().filter(|high| *high >= low) {
                for count in 0..9 {
                    let axis = ValueAxis::new(low, high, count);
                    let mut labels = axis.labels.clone();
                    labels.dedup();
                    assert_eq!(labels, axis.labels, "{low} {high} {count}");
                    assert!((2..=count.max(1) + 3).contains(&labels.len()), "{axis:?}");
                    assert!(
                        axis.low <= low && high <= axis.high,
                        "{low} {high} {axis:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn ticks_of_steps_are_whole() {
        let labels = |low, high, count| -> Vec<String> {
            let ticks = step_ticks(low, high, count);
            ticks.into_iter().map(|(_, label)| label).collect()
        };
        assert_eq!(labels(0.0, 137.0, 4), ["0", "50", "100"]);
        assert_eq!(labels(0.0, 1.0, 6), ["0", "1"]);
        assert_eq!(labels(120.0, 300.0, 2), ["200", "300"]);
        assert_eq!(labels(0.0, 400_000.0, 2), ["0", "200k", "400k"]);
    }
}
