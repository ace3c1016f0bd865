//! Tests along a line of runs.

use std::collections::BTreeMap;

use residual_zoo_report::sig;

use super::{Finding, Found, ONE_SEED, estimate, is_exact};
use crate::claims::{Exponent, Falls};
use crate::observe::points_by_run;
use crate::stats::{Line, estimates};
use crate::{Observation, Observed, Verdict};

/// Whether `quantity` falls along `line` as `along` grows.
pub(super) fn falls(observations: &[Observation], test: &Falls) -> Found {
    let of_line = observations.iter().filter(|found| found.line == test.line);
    let on_line: Vec<_> = of_line.collect();
    if on_line.is_empty() {
        return Err(format!("{} is missing", test.line));
    }
    let mut seeds: BTreeMap<Option<u64>, Vec<(f64, f64)>> = BTreeMap::new();
    for found in &on_line {
        let point = found.get(&test.along).zip(found.get(&test.quantity));
        seeds.entry(found.seed).or_default().extend(point);
    }
    // A seed that lacks some of the sizes has another slope.
    let sizes = seeds.values().map(Vec::len).max().unwrap_or(0);
    seeds.retain(|_, points| points.len() == sizes);
    // How much the quantity falls for each doubling, and how many steps between runs lower it.
    let (mut slopes, mut steps, mut down) = (Vec::new(), 0, 0);
    for points in seeds.values_mut() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        steps += points.len().saturating_sub(1);
        down += points
            .windows(2)
            .filter(|pair| pair[1].1 < pair[0].1)
            .count();
        let logarithmic: Vec<_> = points.iter().map(|(x, y)| (x.log2(), *y)).collect();
        let line = Line::through(&logarithmic).ok_or("there are fewer than two sizes")?;
        slopes.push(-line.slope);
    }
    let (found, is_exact) = (estimate(&slopes)?, is_exact(&on_line));
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
