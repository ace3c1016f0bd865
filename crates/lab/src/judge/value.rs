//! Tests of the values of a run.

use residual_zoo_report::sig;

use super::evidence::{Found, shown, values, with_unit};
use crate::stats::Estimate;
use crate::{Observation, Verdict};

/// Whether every seed is between `low` and `high`, one of which may be infinite.
pub(super) fn bound(
    observations: &[Observation],
    quantity: &str,
    run: &str,
    (low, high): (f64, f64),
) -> Found {
    let values = values(observations, quantity, run)?;
    let is_within = |value: &&f64| (low..=high).contains(*value);
    let good = values.iter().filter(is_within).count();
    let show = |x: f64| shown(quantity).show(x);
    let list: Vec<String> = values.iter().map(|value| show(*value)).collect();
    let asked = match (low.is_finite(), high.is_finite()) {
        (_, false) => format!("at least {}", show(low)),
        (false, _) => format!("at most {}", show(high)),
        (true, true) => format!("{} to {}", show(low), show(high)),
    };
    let because = format!(
        "{}; asked for {asked}",
        with_unit(quantity, list.join(", "))
    );
    let verdict = match good {
        _ if good == values.len() => Verdict::Holds,
        0 => Verdict::DoesNotHold,
        _ => Verdict::Undecided,
    };
    Ok((verdict, because))
}

/// Whether the mean of a run is `value` times that of the other, up to `within`.
pub(super) fn ratio(
    observations: &[Observation],
    quantity: &str,
    (run, than): (&str, &str),
    (value, within): (f64, f64),
) -> Found {
    let mean = |run: &str| {
        let found = Estimate::of(&values(observations, quantity, run)?);
        Ok::<f64, String>(found.ok_or("a value is not finite")?.mean)
    };
    let (a, b) = (mean(run)?, mean(than)?);
    let show = |x: f64| shown(quantity).show(x);
    let because = format!(
        "{run} {}, {than} {}: {} times, printed {}",
        show(a),
        with_unit(quantity, show(b)),
        sig(a / b, 3),
        sig(value, 3)
    );
    let verdict = match (a / b - value).abs() <= within {
        true => Verdict::Holds,
        false => Verdict::DoesNotHold,
    };
    Ok((verdict, because))
}

/// Whether the mean over the seeds is `value`, up to `within`.
pub(super) fn is(
    observations: &[Observation],
    quantity: &str,
    run: &str,
    value: f64,
    within: f64,
) -> Found {
    let values = values(observations, quantity, run)?;
    let found = Estimate::of(&values).ok_or("a value is not finite")?;
    let of = shown(quantity);
    let spread = match found.is_spread() {
        false => String::new(),
        true => format!(" ± {}", of.show_difference(found.half_width)),
    };
    let because = format!(
        "{}, printed {}",
        with_unit(quantity, of.show(found.mean) + &spread),
        of.show(value)
    );
    let verdict = match (found.mean - value).abs() <= within {
        true => Verdict::Holds,
        false => Verdict::DoesNotHold,
    };
    Ok((verdict, because))
}
