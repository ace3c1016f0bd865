//! Tests along a line of runs.

use std::collections::BTreeMap;

use residual_zoo_report::sig;

use super::{Finding, Found, ONE_SEED, estimate, is_exact};
use crate::claims::{Below, Exponent, Falls};
use crate::observe::points_by_run;
use crate::stats::{Line, estimates};
use crate::{Observation, Observed, Verdict};

/// A quantity against another one, for each seed.
type Points = BTreeMap<Option<u64>, Vec<(f64, f64)>>;

/// The points (x, y) of `line` in the order of x, for each seed that has all of them, and whether they are exact.
fn points(
    observations: &[Observation],
    line: &str,
    (x, y): (&str, &str),
) -> Result<(Points, bool), String> {
    let of_line = observations.iter().filter(|found| found.line == line);
    let on_line: Vec<_> = of_line.collect();
    if on_line.is_empty() {
        return Err(format!("{line} is missing"));
    }
    let mut seeds = Points::new();
    for found in &on_line {
        let point = found.get(x).zip(found.get(y));
        seeds.entry(found.seed).or_default().extend(point);
    }
    // A seed that lacks some of the sizes has another slope.
    let sizes = seeds.values().map(Vec::len).max().unwrap_or(0);
    seeds.retain(|_, points| points.len() == sizes);
    for points in seeds.values_mut() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    Ok((seeds, is_exact(&on_line)))
}

/// Whether `line` has less of `quantity` than the line `than` for the same `along`.
pub(super) fn below(observations: &[Observation], test: &Below) -> Found {
    let axes = (&*test.along, &*test.quantity);
    let (line, is_exact) = points(observations, &test.line, axes)?;
    let (than, _) = points(observations, &test.than, axes)?;
    let (mut differences, mut below, mut all) = (Vec::new(), 0, 0);
    for (seed, points) in &line {
        let Some(than) = than.get(seed) else { continue };
        let far = |(x, y): &(f64, f64)| Some(y - between(than, *x)?);
        let far: Vec<f64> = points.iter().filter_map(far).collect();
        if far.is_empty() {
            return Err(format!(
                "no run of {} is between two of {}",
                test.line, test.than
            ));
        }
        below += far.iter().filter(|far| **far < 0.0).count();
        all += far.len();
        differences.push(-far.iter().sum::<f64>() / far.len() as f64);
    }
    if differences.is_empty() {
        return Err(format!(
            "{} and {} have no seed in common",
            test.line, test.than
        ));
    }
    let found = estimate(&differences)?;
    let of = Observed::of(&test.quantity);
    let show = |difference: f64| of.show_difference(difference);
    let because = format!(
        "{below} of {all} points of {} are below {}",
        test.line, test.than
    );
    let difference = show(-found.mean);
    let because = match found.count {
        _ if is_exact => format!("{}; {because}", of.with_unit(difference)),
        1 => format!("{}; {because}; {ONE_SEED}", of.with_unit(difference)),
        count => {
            let difference = of.with_unit(format!("{difference} ± {}", show(found.half_width)));
            let detectable = show(found.detectable());
            format!("{difference} over {count} seeds, detectable {detectable}; {because}")
        }
    };
    Ok(Finding::sign(found, is_exact, because))
}

/// y at `x` on the line through `points`, which is straight between neighbours over the logarithm of x; `None` beyond
/// its ends.
fn between(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let around = |pair: &&[(f64, f64)]| pair[0].0 <= x && x <= pair[1].0;
    let pair = points.windows(2).find(around)?;
    let [(a, at_a), (b, at_b)] = [pair[0], pair[1]];
    let share = if a == b {
        0.0
    } else {
        (x / a).ln() / (b / a).ln()
    };
    Some(at_a + share * (at_b - at_a))
}

/// Whether `quantity` falls along `line` as `along` grows.
pub(super) fn falls(observations: &[Observation], test: &Falls) -> Found {
    let (seeds, is_exact) = points(observations, &test.line, (&test.along, &test.quantity))?;
    // How much the quantity falls for each doubling, and how many steps between runs lower it.
    let (mut slopes, mut steps, mut down) = (Vec::new(), 0, 0);
    for points in seeds.values() {
        steps += points.len().saturating_sub(1);
        down += points
            .windows(2)
            .filter(|pair| pair[1].1 < pair[0].1)
            .count();
        let logarithmic: Vec<_> = points.iter().map(|(x, y)| (x.log2(), *y)).collect();
        let line = Line::through(&logarithmic).ok_or("there are fewer than two sizes")?;
        slopes.push(-line.slope);
    }
    let found = estimate(&slopes)?;
    let of = Observed::of(&test.quantity);
    let slope = of.show_difference(-found.mean);
    let each = |slope: String| of.with_unit(slope) + " for each doubling";
    let steps = format!("{down} of {steps} steps lower the value");
    let because = match found.count {
        _ if is_exact => format!("{}; {steps}", each(slope)),
        1 => format!("{}; {steps}; {ONE_SEED}", each(slope)),
        count => {
            let half_width = of.show_difference(found.half_width);
            let slope = each(format!("{slope} ± {half_width}"));
            format!("{slope} over {count} seeds; {steps}")
        }
    };
    Ok(Finding::sign(found, is_exact, because))
}

/// Whether `quantity` is a power of `along` whose exponent lies between `low` and `high`.
pub(super) fn exponent(observations: &[Observation], test: &Exponent) -> Found {
    // Means over the seeds: a line that is bent is bent for every seed, which does not average out.
    let of_line = observations.iter().filter(|found| found.line == test.line);
    let points = points_by_run(of_line, (&test.along, &test.quantity));
    let means = points.iter().filter_map(|points| estimates(points));
    let points: Vec<(f64, f64)> = means.map(|[x, y]| (x.mean, y.mean)).collect();
    let fit = Line::power_law(&points).ok_or("there are fewer than two sizes")?;
    let (low, high) = (test.low, test.high);
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
    Ok(Finding::new(verdict, because))
}
