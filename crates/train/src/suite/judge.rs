//! How each test of a claim comes to its verdict.

use super::observe::points_by_run;
use super::stats::estimates;
use super::{Axis, Estimate, Line, Observation, Observed, Test, Verdict, describe, is_cost};
use crate::report::sig;

/// A verdict and its numbers, or what is missing for one.
pub(super) type Found = Result<(Verdict, String), String>;

impl Test {
    pub(super) fn judge(&self, observations: &[Observation]) -> Found {
        match self {
            Self::Lower {
                quantity,
                run,
                than,
            } => compare(observations, quantity, (run, than), -1.0),
            Self::Higher {
                quantity,
                run,
                than,
            } => compare(observations, quantity, (run, than), 1.0),
            Self::Close {
                quantity,
                run,
                than,
                than_quantity,
                within,
            } => {
                let than_quantity = than_quantity.as_ref().unwrap_or(quantity);
                let quantities = (quantity.as_str(), than_quantity.as_str());
                close(observations, quantities, (run, than), *within)
            }
            Self::Falls {
                quantity,
                along,
                line,
            } => falls(observations, quantity, along, line),
            Self::Sooner { axis, run, than } => sooner(observations, *axis, run, than),
            Self::AtLeast {
                quantity,
                run,
                value,
            } => {
                let asked = format!("at least {}", shown(quantity).show(*value));
                bound(observations, quantity, run, &asked, |x| x >= *value)
            }
            Self::AtMost {
                quantity,
                run,
                value,
            } => {
                let asked = format!("at most {}", shown(quantity).show(*value));
                bound(observations, quantity, run, &asked, |x| x <= *value)
            }
            Self::Between {
                quantity,
                run,
                low,
                high,
            } => {
                let show = |x: f64| shown(quantity).show(x);
                let asked = format!("{} to {}", show(*low), show(*high));
                bound(observations, quantity, run, &asked, |x| {
                    (*low..=*high).contains(&x)
                })
            }
            Self::Ratio {
                quantity,
                run,
                than,
                value,
                within,
            } => ratio(observations, quantity, (run, than), (*value, *within)),
            Self::Is {
                quantity,
                run,
                value,
                within,
            } => is(observations, quantity, run, *value, *within),
            Self::Exponent {
                quantity,
                along,
                line,
                low,
                high,
            } => exponent(observations, (quantity, along, line), *low, *high),
            Self::NotTested(why) => Err(why.clone()),
        }
    }
}

fn shown(quantity: &str) -> Observed {
    describe(quantity).unwrap_or(Observed::OWN)
}

fn with_unit(quantity: &str, text: String) -> String {
    match shown(quantity).unit {
        "" => text,
        unit => format!("{text} {unit}"),
    }
}

/// The observations of a run, or what to say where there are none.
fn of_run<'a>(observations: &'a [Observation], run: &str) -> Result<Vec<&'a Observation>, String> {
    let found: Vec<_> = observations
        .iter()
        .filter(|found| found.run == run)
        .collect();
    match found.is_empty() {
        true => Err(format!("{run} is missing")),
        false => Ok(found),
    }
}

fn values(observations: &[Observation], quantity: &str, run: &str) -> Result<Vec<f64>, String> {
    let found = of_run(observations, run)?;
    let value = |found: &&Observation| {
        let missing = || format!("{} of {run} was not measured", quantity.replace('_', " "));
        found.get(quantity).ok_or_else(missing)
    };
    found.iter().map(value).collect()
}

/// The two runs of each seed that has both.
fn pairs<'a>(
    observations: &'a [Observation],
    run: &str,
    than: &str,
) -> Result<Vec<(&'a Observation, &'a Observation)>, String> {
    let others = of_run(observations, than)?;
    let partner = |one: &'a Observation| {
        let same = others.iter().find(|other| other.seed == one.seed);
        same.map(|other| (one, *other))
    };
    let pairs: Vec<_> = of_run(observations, run)?
        .into_iter()
        .filter_map(partner)
        .collect();
    match pairs.is_empty() {
        true => Err(format!("{run} and {than} have no seed in common")),
        false => Ok(pairs),
    }
}

/// What is drawn at random has a seed.
fn is_exact(observations: &[&Observation]) -> bool {
    observations.iter().all(|found| found.seed.is_none())
}

/// Tokens and FLOPs are what the config says, but where the length of a sample depends on what was
/// learned.
fn is_counted(observations: &[&Observation], quantity: &str) -> bool {
    let follows_config = observations
        .iter()
        .all(|found| found.get("level").is_none());
    matches!(quantity, "tokens" | "flops") && follows_config
}

/// The verdict on a quantity that should be positive.
fn sign(found: Estimate) -> Verdict {
    match found {
        _ if found.mean - found.half_width > 0.0 => Verdict::Holds,
        _ if found.mean + found.half_width < 0.0 => Verdict::DoesNotHold,
        _ => Verdict::Undecided,
    }
}

const ONE_SEED: &str = "one seed tells no difference from chance";

/// What one run has of a quantity over the other, seed by seed.
struct Difference {
    found: Estimate,
    /// Whether no seed is behind it.
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

fn compare(
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

fn close(
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

fn falls(observations: &[Observation], quantity: &str, along: &str, line: &str) -> Found {
    let mut seeds: Vec<Option<u64>> = Vec::new();
    let on_line: Vec<_> = observations
        .iter()
        .filter(|found| found.line == line)
        .collect();
    for found in &on_line {
        if !seeds.contains(&found.seed) {
            seeds.push(found.seed);
        }
    }
    if on_line.is_empty() {
        return Err(format!("{line} is missing"));
    }
    let points_of = |seed: &Option<u64>| {
        let of_seed = on_line.iter().filter(|found| found.seed == *seed);
        let point = |found: &&Observation| Some((found.get(along)?, found.get(quantity)?));
        let mut points: Vec<(f64, f64)> = of_seed.filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let lines: Vec<_> = seeds.iter().map(points_of).collect();
    // A seed that is not through with all sizes has another slope.
    let sizes = lines.iter().map(Vec::len).max().unwrap_or(0);
    let (mut slopes, mut steps, mut down) = (Vec::new(), 0, 0);
    for points in lines.iter().filter(|points| points.len() == sizes) {
        steps += points.len().saturating_sub(1);
        down += points
            .windows(2)
            .filter(|pair| pair[1].1 < pair[0].1)
            .count();
        let logarithmic: Vec<_> = points.iter().map(|(x, y)| (x.log2(), *y)).collect();
        let slope = Line::through(&logarithmic).map(|line| -line.slope);
        slopes.push(slope.ok_or("there are fewer than two sizes")?);
    }
    let found = Estimate::of(&slopes).ok_or("a value is not finite")?;
    let of = shown(quantity);
    let steps = format!("{down} of {steps} steps go down");
    let slope = of.show_difference(-found.mean);
    let each = |slope: String| with_unit(quantity, slope) + " for each doubling";
    if is_exact(&on_line) {
        let verdict = match found.mean > 0.0 {
            true => Verdict::Holds,
            false => Verdict::DoesNotHold,
        };
        return Ok((verdict, format!("{}; {steps}", each(slope))));
    }
    if found.count == 1 {
        let because = format!("{}; {steps}; {ONE_SEED}", each(slope));
        return Ok((Verdict::NotTested, because));
    }
    let half_width = of.show_difference(found.half_width);
    let because = format!(
        "{} over {} seeds; {steps}",
        each(format!("{slope} ± {half_width}")),
        found.count
    );
    Ok((sign(found), because))
}

fn exponent(
    observations: &[Observation],
    (quantity, along, line): (&str, &str, &str),
    low: f64,
    high: f64,
) -> Found {
    // Means over the seeds: what bends the line bends it for all of them, and does not average out.
    let of_line = observations.iter().filter(|found| found.line == line);
    let points = points_by_run(of_line, (along, quantity));
    let means = points.iter().filter_map(|points| {
        let [x, y] = estimates(points)?;
        Some((x.mean, y.mean))
    });
    let points: Vec<(f64, f64)> = means.collect();
    let fit = Line::power_law(&points).ok_or("there are fewer than two sizes")?;
    let (least, most) = (
        fit.slope - fit.slope_half_width,
        fit.slope + fit.slope_half_width,
    );
    let verdict = match (least, most) {
        _ if least >= low && most <= high => Verdict::Holds,
        _ if least > high || most < low => Verdict::DoesNotHold,
        _ => Verdict::Undecided,
    };
    let because = format!(
        "exponent {} ± {} over {} sizes, R² {:.3}; asked for {low} to {high}",
        sig(fit.slope, 3),
        sig(fit.slope_half_width, 2),
        points.len(),
        fit.r_squared
    );
    Ok((verdict, because))
}

fn sooner(observations: &[Observation], axis: Axis, run: &str, than: &str) -> Found {
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

fn bound(
    observations: &[Observation],
    quantity: &str,
    run: &str,
    asked: &str,
    within: impl Fn(f64) -> bool,
) -> Found {
    let values = values(observations, quantity, run)?;
    let good = values.iter().filter(|value| within(**value)).count();
    let show = |x: f64| shown(quantity).show(x);
    let list: Vec<String> = values.iter().map(|value| show(*value)).collect();
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

fn ratio(
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

fn is(observations: &[Observation], quantity: &str, run: &str, value: f64, within: f64) -> Found {
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
