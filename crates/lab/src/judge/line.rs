//! Tests along a line of runs.

use residual_zoo_report::sig;

use super::evidence::{Found, ONE_SEED, is_exact, shown, sign, with_unit};
use crate::observe::points_by_run;
use crate::stats::{Estimate, Line, estimates};
use crate::{Observation, Verdict};

/// Slopes along a line, over the logarithm of what grows.
struct Slopes {
    /// How much the quantity falls for each doubling, seed by seed.
    falls: Estimate,
    /// How many of the steps from one run to the next go down.
    steps: String,
}

impl Slopes {
    fn of(on_line: &[&Observation], quantity: &str, along: &str) -> Result<Self, String> {
        let mut seeds: Vec<Option<u64>> = Vec::new();
        for found in on_line {
            if !seeds.contains(&found.seed) {
                seeds.push(found.seed);
            }
        }
        let points_of = |seed: &Option<u64>| {
            let of_seed = on_line.iter().filter(|found| found.seed == *seed);
            let point = |found: &&Observation| Some((found.get(along)?, found.get(quantity)?));
            let mut points: Vec<(f64, f64)> = of_seed.filter_map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let lines: Vec<_> = seeds.iter().map(points_of).collect();
        // A seed that lacks some of the sizes has another slope.
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
        Ok(Self {
            falls: Estimate::of(&slopes).ok_or("a value is not finite")?,
            steps: format!("{down} of {steps} steps go down"),
        })
    }
}

/// Whether `quantity` falls along `line` as `along` grows.
pub(super) fn falls(
    observations: &[Observation],
    quantity: &str,
    along: &str,
    line: &str,
) -> Found {
    let of_line = observations.iter().filter(|found| found.line == line);
    let on_line: Vec<_> = of_line.collect();
    if on_line.is_empty() {
        return Err(format!("{line} is missing"));
    }
    let Slopes {
        falls: found,
        steps,
    } = Slopes::of(&on_line, quantity, along)?;
    let of = shown(quantity);
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

/// Whether `quantity` is a power of `along` whose exponent lies between `low` and `high`.
pub(super) fn exponent(
    observations: &[Observation],
    (quantity, along, line): (&str, &str, &str),
    low: f64,
    high: f64,
) -> Found {
    // Means over the seeds: a line that is bent is bent for every seed, which does not average out.
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
