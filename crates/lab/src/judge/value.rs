//! Tests of the values of a run.

use std::ops::RangeInclusive;

use residual_zoo_report::sig;

use super::{Finding, Found, estimate, values};
use crate::claims::{Is, Ratio};
use crate::{Observation, Observed, Verdict};

/// Whether every seed is in the range `asked`, one end of which may be infinite.
pub(super) fn bound(
    observations: &[Observation],
    quantity: &str,
    run: &str,
    asked: RangeInclusive<f64>,
) -> Found {
    let values = values(observations, quantity, run)?;
    let good = values.iter().filter(|value| asked.contains(value)).count();
    let of = Observed::of(quantity);
    let (low, high) = (of.show(*asked.start()), of.show(*asked.end()));
    let asked = match (asked.start().is_finite(), asked.end().is_finite()) {
        (_, false) => format!("at least {low}"),
        (false, _) => format!("at most {high}"),
        (true, true) => format!("{low} to {high}"),
    };
    let list: Vec<String> = values.iter().map(|value| of.show(*value)).collect();
    let list = of.with_unit(list.join(", "));
    let verdict = match good {
        _ if good == values.len() => Verdict::Holds,
        0 => Verdict::DoesNotHold,
        _ => Verdict::Undecided,
    };
    let asked = format!("asked for {asked}");
    let because = format!("{list}; {asked}");
    Ok(Finding {
        margin: Some(asked),
        ..Finding::new(verdict, because)
    })
}

/// Whether the mean of a run is `value` times that of the other, up to `within`.
pub(super) fn ratio(observations: &[Observation], test: &Ratio) -> Found {
    let mean =
        |run: &str| Ok::<_, String>(estimate(&values(observations, &test.quantity, run)?)?.mean);
    let (a, b) = (mean(&test.run)?, mean(&test.than)?);
    let of = Observed::of(&test.quantity);
    let because = format!(
        "{}: {}; {}: {}; {} times, reported {}, tolerance {}",
        test.run,
        of.show(a),
        test.than,
        of.with_unit(of.show(b)),
        sig(a / b, 3),
        sig(test.value, 3),
        sig(test.within, 2)
    );
    let holds = (a / b - test.value).abs() <= test.within;
    Ok(Finding::new(Verdict::of(holds), because))
}

/// Whether the mean over the seeds is `value`, up to `within`.
pub(super) fn is(observations: &[Observation], test: &Is) -> Found {
    let found = estimate(&values(observations, &test.quantity, &test.run)?)?;
    let of = Observed::of(&test.quantity);
    let mut mean = of.show(found.mean);
    if found.is_spread() {
        mean += &format!(" ± {}", of.show_difference(found.half_width));
    }
    let (mean, reported) = (of.with_unit(mean), of.show(test.value));
    let tolerance = format!("tolerance {}", of.show_difference(test.within));
    let holds = (found.mean - test.value).abs() <= test.within;
    let because = format!("{mean}, reported {reported}, {tolerance}");
    Ok(Finding {
        margin: Some(tolerance),
        ..Finding::new(Verdict::of(holds), because)
    })
}
