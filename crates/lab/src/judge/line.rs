//! Tests along a line of runs.

use std::collections::{BTreeMap, BTreeSet};

use residual_zoo_report::sig;

use super::{Finding, Found, ONE_SEED, estimate, is_exact};
use crate::claims::{Below, Exponent, Falls, Keeps};
use crate::observe::points_by_run;
use crate::quantity::is_cost;
use crate::stats::{Estimate, Line, estimates};
use crate::{Observation, Observed, Verdict};

/// Values of one quantity against values of another, for each seed.
type Points = BTreeMap<Option<u64>, Vec<(f64, f64)>>;

/// Returns the points (x, y) of `line`, sorted by x, for each seed that has all points. Also returns whether the points
/// are exact.
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
    // A seed without some of the sizes would have another slope.
    let sizes = seeds.values().map(Vec::len).max().unwrap_or(0);
    seeds.retain(|_, points| points.len() == sizes);
    for points in seeds.values_mut() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    Ok((seeds, is_exact(&on_line)))
}

/// Tests whether `line` has less of `quantity` than the line `than` at the same `along`.
pub(super) fn below(observations: &[Observation], test: &Below) -> Found {
    let axes = (&*test.along, &*test.quantity);
    let (line, is_exact) = points(observations, &test.line, axes)?;
    let (than, _) = points(observations, &test.than, axes)?;
    // The mean distance of each seed, and the distances of each point of the line.
    let (mut means, mut of_points) = (Vec::new(), BTreeMap::<usize, (f64, Vec<f64>)>::new());
    for (seed, points) in &line {
        let Some(than) = than.get(seed) else { continue };
        let far = |(i, (x, y)): (usize, &(f64, f64))| Some((i, *x, y - between(than, *x)?));
        let far: Vec<_> = points.iter().enumerate().filter_map(far).collect();
        if far.is_empty() {
            return Err(format!(
                "no run of {} is between two of {}",
                test.line, test.than
            ));
        }
        means.push(-far.iter().map(|(_, _, far)| far).sum::<f64>() / far.len() as f64);
        for (i, x, far) in far {
            let of_point = of_points.entry(i).or_default();
            of_point.0 = x;
            of_point.1.push(far);
        }
    }
    if means.is_empty() {
        return Err(format!(
            "{} and {} have no seed in common",
            test.line, test.than
        ));
    }
    let found = estimate(&means)?;
    let (of, along) = (Observed::of(&test.quantity), Observed::of(&test.along));
    let show = |found: Estimate, sign: f64| of.show_interval(sign * found.mean, found.half_width);
    let mut each = Vec::new();
    let mut agree = true;
    for (x, far) in of_points.values() {
        let far = estimate(far)?;
        agree &= far.mean < 0.0 || found.mean <= 0.0;
        agree &= far.mean > 0.0 || found.mean >= 0.0;
        each.push(format!(
            "{} at {}",
            show(far, 1.0),
            along.with_unit(along.show(*x))
        ));
    }
    let each = each.join(", ");
    let difference = of.with_unit(show(found, -1.0));
    let because = match found.count {
        _ if is_exact => format!("{difference}; {each}"),
        1 => format!("{difference}; {each}; {ONE_SEED}"),
        count => {
            let detectable = of.show_difference(found.detectable());
            format!("{difference} over {count} seeds, detectable {detectable}; {each}")
        }
    };
    let finding = Finding::sign(found, is_exact, because);
    Ok(match agree {
        true => finding,
        // If points lie on both sides, their mean distance says nothing about the line.
        false => Finding {
            verdict: Verdict::Undecided,
            because: finding.because + "; the points are on both sides",
            ..finding
        },
    })
}

/// Returns the value at `x` of the line through `points`, interpolated linearly over the logarithm of x; `None` beyond
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

/// Tests whether `quantity` falls along `line` as `along` grows, by its slope and from each size to the next.
pub(super) fn falls(observations: &[Observation], test: &Falls) -> Found {
    let (seeds, is_exact) = points(observations, &test.line, (&test.along, &test.quantity))?;
    // The fall per doubling, the number of steps from one size to the next, and the number of these steps that lower
    // the quantity.
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
    let steps = match steps {
        1 => format!("{down} of 1 step lowers the value"),
        _ => format!("{down} of {steps} steps lower the value"),
    };
    let because = match found.count {
        _ if is_exact => format!("{}; {steps}", each(slope)),
        1 => format!("{}; {steps}; {ONE_SEED}", each(slope)),
        count => {
            let half_width = of.show_difference(found.half_width);
            let slope = each(format!("{slope} ± {half_width}"));
            format!("{slope} over {count} seeds; {steps}")
        }
    };
    let finding = Finding::sign(found, is_exact, because);
    Ok(match first_rise(&seeds) {
        Some((from, to)) if finding.verdict == Verdict::Holds => {
            let along = Observed::of(&test.along);
            let (from, to) = (along.show(from), along.with_unit(along.show(to)));
            Finding {
                verdict: Verdict::Undecided,
                because: format!("{}; it rises from {from} to {to}", finding.because),
                ..finding
            }
        }
        _ => finding,
    })
}

/// Tests whether `quantity` is above 0 along `line`, and shrinks by at most `within` for each doubling of `along`.
pub(super) fn keeps(observations: &[Observation], test: &Keeps) -> Found {
    let (seeds, is_exact) = points(observations, &test.line, (&test.along, &test.quantity))?;
    let (mut slopes, mut lasts) = (Vec::new(), Vec::new());
    let mut of_sizes = BTreeMap::<usize, Vec<(f64, f64)>>::new();
    for points in seeds.values() {
        let logarithmic: Vec<_> = points.iter().map(|(x, y)| (x.log2(), *y)).collect();
        let line = Line::through(&logarithmic).ok_or("there are fewer than two sizes")?;
        slopes.push(line.slope + test.within);
        lasts.extend(points.last().map(|(_, y)| *y));
        for (i, point) in points.iter().enumerate() {
            of_sizes.entry(i).or_default().push(*point);
        }
    }
    let (within, last) = (estimate(&slopes)?, estimate(&lasts)?);
    let (of, along) = (Observed::of(&test.quantity), Observed::of(&test.along));
    let slope = of.show_signed(within.mean - test.within);
    let because = match within.count {
        _ if is_exact => format!("{} for each doubling", of.with_unit(slope)),
        1 => format!("{} for each doubling; {ONE_SEED}", of.with_unit(slope)),
        count => {
            let half_width = of.show_difference(within.half_width);
            let slope = of.with_unit(format!("{slope} ± {half_width}"));
            let detectable = of.show_difference(within.detectable());
            format!("{slope} for each doubling over {count} seeds, detectable {detectable}")
        }
    };
    let sizes = of_sizes.values().filter_map(|points| estimates(points));
    let sizes: Vec<[Estimate; 2]> = sizes.collect();
    let at = |[x, y]: &[Estimate; 2]| {
        let half_width = match y.count {
            1 => String::new(),
            _ => format!(" ± {}", of.show_difference(y.half_width)),
        };
        let at = along.with_unit(along.show(x.mean));
        format!("{}{half_width} at {at}", of.show_signed(y.mean))
    };
    let each: Vec<String> = sizes.iter().map(at).collect();
    let tolerance = of.show_difference(test.within);
    let parts = [within, last].map(|part| Finding::sign(part, is_exact, String::new()));
    let fails = parts
        .iter()
        .filter(|part| part.verdict == Verdict::DoesNotHold);
    let p = |part: &Finding| part.p;
    let (verdict, p) = match fails.clone().count() {
        // One of two tests suffices, so its p-value counts twice.
        1.. => {
            let smallest = fails.filter_map(p).reduce(f64::min);
            (Verdict::DoesNotHold, smallest.map(|p| (2.0 * p).min(1.0)))
        }
        0 => {
            let is_whole = parts.iter().all(|part| part.verdict == Verdict::Holds);
            let is_above = sizes.iter().all(|[_, y]| y.mean > 0.0);
            let verdict = match parts[0].verdict {
                Verdict::NotTested => Verdict::NotTested,
                _ if is_whole && is_above => Verdict::Holds,
                _ => Verdict::Undecided,
            };
            (verdict, parts.iter().filter_map(p).reduce(f64::max))
        }
    };
    // Names the conditions that fail. It does not name the verdict, which a correction of p can still change.
    let conditions = [
        ("of the slope", of.show_signed(-test.within)),
        ("at the largest size", "0".to_owned()),
    ];
    let mut why = String::new();
    for (part, (place, bound)) in parts.iter().zip(conditions) {
        match part.verdict {
            Verdict::Undecided => why += &format!("; the interval {place} includes {bound}"),
            Verdict::DoesNotHold if !is_exact => {
                why += &format!("; the interval {place} is below {bound}");
            }
            _ => {}
        }
    }
    let below = sizes.iter().filter(|[_, y]| y.mean <= 0.0);
    let below: Vec<String> = below.map(|[x, _]| along.show(x.mean)).collect();
    if verdict == Verdict::Undecided && !below.is_empty() {
        why += &format!("; the mean is not above 0 at {}", below.join(" and "));
    }
    let because = format!("{because}; {}; tolerance {tolerance}{why}", each.join(", "));
    Ok(Finding {
        p,
        ..Finding::new(verdict, because)
    })
}

/// Returns the first two neighbouring sizes between which the mean over the seeds rises.
fn first_rise(seeds: &Points) -> Option<(f64, f64)> {
    let sizes = seeds.values().next()?.len();
    let mean = |i: usize, of: fn(&(f64, f64)) -> f64| {
        let values = seeds.values().map(|points| of(&points[i]));
        values.sum::<f64>() / seeds.len() as f64
    };
    let (x, y) = (|i| mean(i, |point| point.0), |i| mean(i, |point| point.1));
    let step = (1..sizes).find(|i| y(*i) > y(*i - 1))?;
    Some((x(step - 1), x(step)))
}

/// Tests whether `quantity` is a power of `along` whose exponent lies between `low` and `high`.
pub(super) fn exponent(observations: &[Observation], test: &Exponent) -> Found {
    // The fit uses means over the seeds. A bend of the line is common to all seeds, so more seeds do not average it
    // out.
    let of_line = observations.iter().filter(|found| found.line == test.line);
    let seeds: BTreeSet<Option<u64>> = of_line.clone().map(|found| found.seed).collect();
    let is_single = seeds.len() == 1 && !seeds.contains(&None) && !is_cost(&test.quantity);
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
        _ if is_single => Verdict::NotTested,
        _ if least >= low && most <= high => Verdict::Holds,
        _ if least > high || most < low => Verdict::DoesNotHold,
        _ => Verdict::Undecided,
    };
    let mut because = format!(
        "exponent {} ± {} over {} sizes, R² {:.3}; expected {low} to {high}",
        sig(fit.slope, 3),
        sig(fit.slope_half_width, 2),
        points.len(),
        fit.r_squared
    );
    if is_single {
        because += &format!("; {ONE_SEED}");
    }
    Ok(Finding::new(verdict, because))
}
