//! Tests that compare two runs seed by seed.

use residual_zoo_report::sig;

use super::evidence::{Found, ONE_SEED, is_counted, is_exact, pairs, shown, sign, with_unit};
use crate::quantity::is_cost;
use crate::stats::Estimate;
use crate::{Axis, Observation, Verdict};

struct Difference {
    found: Estimate,
    /// Whether it does not depend on seeds.
    is_exact: bool,
    /// Both runs and their difference.
    because: String,
}

impl Difference {
    fn of(
        observations: &[Observation],
        (quantity, than_quantity): (&str, &str),
        (run, than): (&str, &str),
    ) -> Result<Self, String> {
        let pairs = pairs(observations, run, than)?;
        let of = shown(quantity);
        let value = |found: &Observation, quantity: &str| {
            let name = quantity.replace('_', " ");
            let missing = || format!("{name} of {} was not measured", found.run);
            found.get(quantity).ok_or_else(missing)
        };
        let mut differences = Vec::new();
        let (mut first, mut second) = (0.0, 0.0);
        for (a, b) in &pairs {
            let (a, b) = (value(a, quantity)?, value(b, than_quantity)?);
            differences.push(a - b);
            first += a / pairs.len() as f64;
            second += b / pairs.len() as f64;
        }
        let found = Estimate::of(&differences).ok_or("a value is not finite")?;
        let (first, second) = (of.show(first), with_unit(quantity, of.show(second)));
        let exact: Vec<_> = pairs.iter().map(|(a, _)| *a).collect();
        let is_exact = is_exact(&exact) || is_cost(quantity) || is_counted(&exact, quantity);
        let mut because = format!("{run} {first}, {than} {second}");
        if !is_exact {
            let difference = of.show_difference(found.mean);
            because += &match found.count {
                1 => format!(": {difference}; {ONE_SEED}"),
                count => {
                    let half_width = of.show_difference(found.half_width);
                    format!(": {difference} ± {half_width} over {count} seeds")
                }
            };
        }
        Ok(Self {
            found,
            is_exact,
            because,
        })
    }
}

/// Whether one run has more (`direction` 1) or less (−1) of a quantity than the other.
pub(super) fn compare(
    observations: &[Observation],
    quantity: &str,
    runs: (&str, &str),
    direction: f64,
) -> Found {
    let Difference {
        found,
        is_exact,
        because,
    } = Difference::of(observations, (quantity, quantity), runs)?;
    let mean = direction * found.mean;
    let verdict = match found.count {
        _ if is_exact && mean > 0.0 => Verdict::Holds,
        _ if is_exact => Verdict::DoesNotHold,
        1 => Verdict::NotTested,
        _ => sign(Estimate { mean, ..found }),
    };
    Ok((verdict, because))
}

/// Whether two runs differ by at most `within`.
pub(super) fn close(
    observations: &[Observation],
    quantities: (&str, &str),
    runs: (&str, &str),
    within: f64,
) -> Found {
    let Difference {
        found,
        is_exact,
        because,
    } = Difference::of(observations, quantities, runs)?;
    let half_width = if is_exact { 0.0 } else { found.half_width };
    let (least, most) = (found.mean.abs() - half_width, found.mean.abs() + half_width);
    let verdict = match found.count {
        _ if most <= within => Verdict::Holds,
        _ if least > within => Verdict::DoesNotHold,
        1 if !is_exact => Verdict::NotTested,
        _ => Verdict::Undecided,
    };
    let of = shown(quantities.0);
    let because = format!(
        "{because}; up to {} counts as none",
        of.show_difference(within)
    );
    Ok((verdict, because))
}

/// Whether a run reaches the last validation loss of the other with less of `axis`.
pub(super) fn sooner(observations: &[Observation], axis: Axis, run: &str, than: &str) -> Found {
    let pairs = pairs(observations, run, than)?;
    let (mut shares, mut never) = (Vec::new(), 0);
    for (a, b) in &pairs {
        let last = b.rows.last().zip(b.get("valid_loss"));
        let (end, loss) = last.ok_or(format!("{than} has no validation loss at its end"))?;
        match a.reaches(axis, loss) {
            Some(x) => shares.push(x / axis.of(end)),
            None => never += 1,
        }
    }
    let of = axis.name();
    if never > 0 {
        let because = format!(
            "{run} does not reach the last loss of {than} in {never} of {} seeds",
            pairs.len()
        );
        let verdict = match (shares.is_empty(), pairs.len()) {
            (_, 1) => Verdict::NotTested,
            (true, _) => Verdict::DoesNotHold,
            (false, _) => Verdict::Undecided,
        };
        return Ok((verdict, because));
    }
    let gains: Vec<f64> = shares.iter().map(|share| 1.0 - share).collect();
    let found = Estimate::of(&gains).ok_or("a value is not finite")?;
    let percent = |x: f64| sig(100.0 * x, 3);
    let share = percent(1.0 - found.mean);
    if found.count == 1 {
        let because = format!("after {share} % of the {of}; {ONE_SEED}");
        return Ok((Verdict::NotTested, because));
    }
    let because = format!(
        "after {share} ± {} % of the {of}, over {} seeds",
        percent(found.half_width),
        found.count
    );
    Ok((sign(found), because))
}
