//! Tests of the values of a run.

use std::ops::RangeInclusive;

use residual_zoo_report::sig;

use super::difference::{is_counted, pairs};
use super::{Finding, Found, ONE_SEED, estimate, is_exact, of_run, value, values};
use crate::claims::{Is, Ratio};
use crate::quantity::is_cost;
use crate::{Observation, Observed, Verdict};

/// Tests whether the value of every seed is in the range `asked`, one end of which may be infinite.
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
    let asked = format!("expected {asked}");
    let mut because = format!("{list}; {asked}");
    let verdict = match good {
        _ if is_single(observations, quantity, run)? => {
            because += &format!("; {ONE_SEED}");
            Verdict::NotTested
        }
        _ if good == values.len() => Verdict::Holds,
        0 => Verdict::DoesNotHold,
        _ => Verdict::Undecided,
    };
    Ok(Finding {
        margin: Some(asked),
        ..Finding::new(verdict, because)
    })
}

/// Tests whether the ratio of a quantity between two runs is `value` ± `within`. Compares seed by seed if values
/// differ between seeds.
pub(super) fn ratio(observations: &[Observation], test: &Ratio) -> Found {
    let pairs = pairs(observations, &test.run, &test.than)?;
    let of_both = |(a, b): &(&Observation, &Observation)| {
        Ok::<_, String>((value(a, &test.quantity)?, value(b, &test.quantity)?))
    };
    let both = pairs.iter().map(of_both).collect::<Result<Vec<_>, _>>()?;
    let (a, b): (Vec<f64>, Vec<f64>) = both.iter().copied().unzip();
    let (a, b) = (estimate(&a)?, estimate(&b)?);
    let of = Observed::of(&test.quantity);
    let (times, spread) = match a.is_spread() || b.is_spread() {
        false => (a.mean / b.mean, 0.0),
        true => {
            let ratios: Vec<f64> = both.iter().map(|(a, b)| a / b).collect();
            let found = estimate(&ratios)?;
            (found.mean, found.half_width)
        }
    };
    let (digits, spread_shown) = match spread > 0.0 {
        true => (4, format!(" ± {}", sig(spread, 2))),
        false => (3, String::new()),
    };
    let because = format!(
        "{}: {}; {}: {}; {}{spread_shown} times, expected {}, tolerance {}",
        test.run,
        of.show(a.mean),
        test.than,
        of.with_unit(of.show(b.mean)),
        sig(times, digits),
        sig(test.value, digits),
        sig(test.within, 2)
    );
    let off = (times - test.value).abs();
    let is_single = pairs.len() == 1
        && (is_single(observations, &test.quantity, &test.run)?
            || is_single(observations, &test.quantity, &test.than)?);
    let verdict = match off {
        _ if is_single => Verdict::NotTested,
        _ if off + spread <= test.within => Verdict::Holds,
        _ if off - spread > test.within => Verdict::DoesNotHold,
        _ => Verdict::Undecided,
    };
    let why = if is_single {
        format!("; {ONE_SEED}")
    } else {
        String::new()
    };
    Ok(Finding::new(verdict, because + &why))
}

/// Tests whether the mean over the seeds is `value` ± `within`.
pub(super) fn is(observations: &[Observation], test: &Is) -> Found {
    let found = estimate(&values(observations, &test.quantity, &test.run)?)?;
    let of = Observed::of(&test.quantity);
    let mut mean = of.show(found.mean);
    if found.is_spread() {
        mean += &format!(" ± {}", of.show_difference(found.half_width));
    }
    let (mean, expected) = (of.with_unit(mean), of.show(test.value));
    let tolerance = format!("tolerance {}", of.show_difference(test.within));
    let holds = (found.mean - test.value).abs() <= test.within;
    let mut because = format!("{mean}, expected {expected}, {tolerance}");
    let verdict = match is_single(observations, &test.quantity, &test.run)? {
        true => {
            because += &format!("; {ONE_SEED}");
            Verdict::NotTested
        }
        false => Verdict::of(holds),
    };
    Ok(Finding {
        margin: Some(tolerance),
        ..Finding::new(verdict, because)
    })
}

/// Whether the quantity depends on the seed, although the run has only one.
fn is_single(observations: &[Observation], quantity: &str, run: &str) -> Result<bool, String> {
    let found = of_run(observations, run)?;
    Ok(
        found.len() == 1
            && !is_exact(&found)
            && !is_cost(quantity)
            && !is_counted(&found, quantity),
    )
}
