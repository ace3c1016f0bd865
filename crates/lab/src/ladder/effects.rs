//! The gains of the runs of a ladder, and how they change with the size.

use residual_zoo_report::sig;
use serde::Serialize;

use super::{Fall, LOSS, Ladder, Losses, Rung, Worth, has_size};
use crate::plan::with_starts;
use crate::quantity::GAIN;
use crate::{Estimate, Line, Observation, Observed, PlannedRun, Tuning};

/// The gains over the baseline at each size of a ladder, and their trends.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effects {
    /// The name of the baseline.
    pub baseline: String,
    /// The gains, run by run, from the smallest to the largest size.
    pub gains: Vec<Gain>,
    /// The trend of the gain of each run that has one.
    pub trends: Vec<Trend>,
    /// The runs without a gain, because they or the baseline have no loss.
    pub missing: Vec<String>,
    /// The largest factor on the tokens with which the baseline was trained.
    pub most_tokens: f64,
}

/// The gain of a run at one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// The name of the run, without its size.
    pub run: String,
    /// The name of the size.
    pub size: String,
    /// The number of non-embedding parameters of the baseline at this size.
    pub parameters: f64,
    /// The number of training tokens.
    pub tokens: f64,
    /// The loss of the baseline, as the mean over the seeds.
    pub baseline_loss: f64,
    /// The mean over the seeds of the baseline's loss minus the run's, in nats.
    pub mean: f64,
    /// Half the width of the 95 % interval of the mean; infinite for one seed.
    pub half_width: f64,
    /// The number of seeds.
    pub seeds: usize,
    /// The training FLOPs of the run, divided by the baseline's.
    pub flops: Option<f64>,
    /// The gain as a factor on the baseline's tokens; `None` if the baseline was not trained on more tokens.
    pub worth: Option<Worth>,
    /// The gain over the baseline with as many training FLOPs, so with more tokens, and half the width of its 95 %
    /// interval, in nats; `None` if no such baseline lies between those that were trained.
    pub at_equal_flops: Option<(f64, f64)>,
}

/// The change of a gain with the size: for each seed, a straight line is fitted to the gain over the binary logarithm of
/// the size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trend {
    /// The name of the run, without a size.
    pub run: String,
    /// The mean slope over the seeds, in nats for each doubling of the size.
    pub slope: f64,
    /// Half the width of the 95 % interval of the slope; infinite for one seed.
    pub slope_half_width: f64,
    /// The size to which the gain is extrapolated, in parameters of the baseline.
    pub at: f64,
    /// The extrapolated gain, in nats.
    pub mean: f64,
    /// Half the width of the 95 % interval of the extrapolated gain, if the line is straight.
    pub half_width: f64,
    /// The smallest change of the slope with each doubling of the size that these seeds would show in 80 % of cases, in
    /// nats; `None` for fewer than three sizes.
    pub detectable_bend: Option<f64>,
    /// The reasons why the extrapolation must not be trusted.
    pub doubts: Vec<String>,
}

/// Above this number of passes, repeated text is worth less than new text (Muennighoff et al., "Scaling data-constrained
/// language models", 2023).
const MOST_PASSES: f64 = 4.0;

impl Effects {
    /// Finds the gains in the observations of the `planned` runs on `ladder`. `seeds` is the number of seeds of the
    /// experiment. `passes` is the largest number of passes of a run over the training data, if it is known.
    pub(crate) fn of<C>(
        ladder: &Ladder,
        planned: &[PlannedRun<C>],
        observations: &[Observation],
        tuning: Option<&Tuning>,
        (seeds, passes): (usize, Option<f64>),
    ) -> Self {
        // A run from which others start has no size, and no gain.
        let compared = planned.iter().filter(|run| has_size(run));
        let rungs = compared.filter_map(|run| Some((run, run.rung.as_ref()?)));
        let rungs: Vec<_> = rungs.map(|(run, rung)| (run.name.as_str(), rung)).collect();
        let measured = Measured {
            ladder,
            rungs: &rungs,
            observations,
            seeds,
        };
        let of_others = rungs.iter().filter(|(_, rung)| rung.run != ladder.baseline);
        let gains: Vec<Gain> = of_others
            .filter_map(|(name, rung)| measured.gain(name, rung))
            .collect();
        let has_gain = |(_, rung): &&(&str, &Rung)| {
            let same = |gain: &Gain| gain.run == rung.run && gain.size == rung.size;
            rung.run == ladder.baseline || gains.iter().any(same)
        };
        let missing = rungs.iter().filter(|run| !has_gain(run));
        let missing: Vec<String> = missing.map(|(name, _)| (*name).to_owned()).collect();
        let mut trends: Vec<Trend> = Vec::new();
        for (_, rung) in &rungs {
            let is_new = trends.iter().all(|trend| trend.run != rung.run);
            if rung.run != ladder.baseline && is_new {
                trends.extend(measured.trend(&rung.run));
            }
        }
        for trend in &mut trends {
            let fits = tuning.iter().flat_map(|tuning| &tuning.rule);
            let compared = with_starts(planned, |run| {
                [&trend.run, &ladder.baseline].contains(&&run.line)
            });
            let own = fits.filter(|fit| compared.iter().any(|run| run.line == fit.run));
            trend
                .doubts
                .extend(own.filter_map(|fit| fit.failure.clone()));
            if let Some(passes) = passes.filter(|passes| *passes > MOST_PASSES) {
                let passes = sig(passes, 2);
                trend
                    .doubts
                    .push(format!("a run reads the text {passes} times"));
            }
        }
        Self {
            baseline: ladder.baseline.clone(),
            gains,
            trends,
            missing,
            most_tokens: ladder.more_tokens.last().copied().unwrap_or(1.0),
        }
    }
}

/// Values of a quantity, each with its seed.
type OfSeeds = Vec<(Option<u64>, f64)>;

/// The observations of a ladder.
struct Measured<'a> {
    ladder: &'a Ladder,
    /// The name and the place of each run.
    rungs: &'a [(&'a str, &'a Rung)],
    observations: &'a [Observation],
    /// The number of seeds of the experiment.
    seeds: usize,
}

impl Measured<'_> {
    /// Returns a quantity of a run, with the seed of each value.
    fn values(&self, run: &str, quantity: &str) -> OfSeeds {
        let own = self.observations.iter().filter(|found| found.run == run);
        own.filter_map(|found| Some((found.seed, found.get(quantity)?)))
            .collect()
    }

    /// Returns the gain of the run `name` at its size; `None` if no seed has one.
    fn gain(&self, name: &str, rung: &Rung) -> Option<Gain> {
        let gains = self.values(name, GAIN);
        let found = Estimate::of(&only_values(&gains))?;
        let has_gain = |seed: &Option<u64>| gains.iter().any(|(other, _)| other == seed);
        let mut losses = self.values(name, LOSS);
        losses.retain(|(seed, _)| has_gain(seed));
        let baseline = losses.iter().filter_map(|(seed, loss)| {
            let gain = gains.iter().find(|(other, _)| other == seed)?;
            Some(loss + gain.1)
        });
        let tokens = self.values(name, "tokens");
        let flops = self.flops(name, &rung.size);
        let fall = self.fall(&losses, &rung.size);
        let at_equal_flops = fall
            .as_ref()
            .zip(flops)
            .and_then(|((fall, losses), flops)| {
                let is_within = (1.0..=fall.most()).contains(&flops);
                let (difference, half_width) =
                    fall.difference(losses, flops).filter(|_| is_within)?;
                Some((-difference, half_width))
            });
        Some(Gain {
            run: rung.run.clone(),
            size: rung.size.clone(),
            parameters: rung.parameters,
            tokens: tokens.first().map_or(0.0, |(_, tokens)| *tokens),
            baseline_loss: Estimate::of(&baseline.collect::<Vec<_>>())?.mean,
            mean: found.mean,
            half_width: found.half_width,
            seeds: found.count,
            flops,
            worth: fall.and_then(|(fall, losses)| fall.worth(&losses)),
            at_equal_flops,
        })
    }

    /// Returns the training FLOPs of the run `name`, divided by the baseline's at its size.
    fn flops(&self, name: &str, size: &str) -> Option<f64> {
        let is_baseline = |(_, rung): &&(&str, &Rung)| {
            rung.run == self.ladder.baseline && rung.size == size && rung.tokens == 1.0
        };
        let (baseline, _) = self.rungs.iter().find(is_baseline)?;
        let of = |run: &str| self.values(run, "flops").first().map(|(_, flops)| *flops);
        Some(of(name)? / of(baseline)?)
    }

    /// Returns the losses of the baseline by its tokens, and the losses of a run; `None` if the baseline was not trained
    /// on more tokens, or lacks a seed there.
    fn fall(&self, losses: &[(Option<u64>, f64)], size: &str) -> Option<(Fall, Losses)> {
        let of_baseline =
            |(_, rung): &&(&str, &Rung)| rung.run == self.ladder.baseline && rung.size == size;
        let baseline = self.rungs.iter().filter(of_baseline);
        // Whole steps make the tokens differ a little from the factor in the file.
        let tokens = |name: &str| self.values(name, "tokens").first().map(|(_, x)| *x);
        let least = baseline.clone().find_map(|(name, rung)| {
            let tokens = tokens(name)?;
            (rung.tokens == 1.0).then_some(tokens)
        });
        let points = baseline.map(|(name, rung)| {
            let factor = tokens(name).zip(least).map(|(own, least)| own / least);
            let found = self.values(name, LOSS);
            let of_seed = |(seed, _): &(Option<u64>, f64)| {
                let found = found.iter().find(|(other, _)| other == seed);
                found.map(|(_, loss)| *loss)
            };
            let of_seeds = losses.iter().map(of_seed).collect::<Option<Vec<f64>>>()?;
            Some((factor.unwrap_or(rung.tokens), of_seeds))
        });
        let fall = Fall::new(points.collect::<Option<Vec<_>>>()?)?;
        Some((fall, Losses::SameSeeds(only_values(losses))))
    }

    /// Returns a doubt about the slope of a gain, and one about the gain at the size `at`, if the value is significant,
    /// but not, or with the other sign, without one of at least four sizes. Names the size with the largest effect.
    fn hanging(&self, sizes: &[&(&str, &Rung)], at: f64) -> Vec<String> {
        if sizes.len() < 4 {
            return Vec::new();
        }
        let values = [("slope", None), ("extrapolated gain", Some(at.log2()))];
        let doubts = values.into_iter().filter_map(|(name, at)| {
            let value = |line: Line| match at {
                None => line.slope,
                Some(x) => line.intercept + line.slope * x,
            };
            let without = |left_out: Option<usize>| {
                let kept = sizes.iter().enumerate();
                let kept = kept.filter(|(i, _)| Some(*i) != left_out);
                let points =
                    kept.map(|(_, (name, rung))| (rung.parameters, self.values(name, GAIN)));
                let seeds = of_seeds(&points.collect::<Vec<_>>());
                let lines = seeds.iter().filter_map(|points| Line::through(points));
                Estimate::of(&lines.map(value).collect::<Vec<_>>())
            };
            let is_clear = |found: &Estimate| found.mean.abs() > found.half_width;
            let all = without(None).filter(is_clear)?;
            let is_same = |found: &Estimate| is_clear(found) && found.mean * all.mean > 0.0;
            let change = |found: &Estimate| (found.mean - all.mean).abs();
            let others = sizes.iter().enumerate();
            let others = others.filter_map(|(i, (_, rung))| Some((&rung.size, without(Some(i))?)));
            let (size, found) = others
                .filter(|(_, found)| !is_same(found))
                .max_by(|(_, a), (_, b)| change(a).total_cmp(&change(b)))?;
            let shown = Observed::of(GAIN).show_interval(found.mean, found.half_width);
            Some(format!(
                "the {name} hangs on {size}: without that size, it is {shown}"
            ))
        });
        doubts.collect()
    }

    /// Returns the trend of the gain of `run`; `None` if no seed has the gain at two sizes.
    fn trend(&self, run: &str) -> Option<Trend> {
        let own: Vec<_> = self
            .rungs
            .iter()
            .filter(|(_, rung)| rung.run == run)
            .collect();
        let sizes = own
            .iter()
            .map(|(name, rung)| (rung.parameters, self.values(name, GAIN)));
        let sizes: Vec<(f64, OfSeeds)> = sizes.collect();
        let (smallest, largest) = (sizes.first()?.0, sizes.last()?.0);
        let at = largest * self.ladder.extrapolate;
        let seeds = of_seeds(&sizes);
        let lines = seeds.iter().map(|points| Line::through(points));
        let lines = lines.collect::<Option<Vec<Line>>>()?;
        let slopes: Vec<f64> = lines.iter().map(|line| line.slope).collect();
        let ends = lines
            .iter()
            .map(|line| line.intercept + line.slope * at.log2());
        let ends: Vec<f64> = ends.collect();
        let bends: Vec<f64> = seeds.iter().filter_map(|points| bend(points)).collect();
        let (slope, end) = (Estimate::of(&slopes)?, Estimate::of(&ends)?);
        let of = Observed::of(GAIN);
        let mut doubts = Vec::new();
        if slope.count == 1 {
            doubts.push("there is only one seed".to_owned());
        }
        if slope.count < self.seeds {
            let (count, seeds) = (slope.count, self.seeds);
            doubts.push(format!("only {count} of {seeds} seeds have all sizes"));
        }
        let bend = Estimate::of(&bends);
        if bend.is_none() {
            doubts.push("two sizes cannot show whether the line is straight".to_owned());
        }
        let span = largest / smallest;
        if span < self.ladder.extrapolate {
            let (span, beyond) = (sig(span, 2), self.ladder.extrapolate);
            doubts.push(format!(
                "the sizes span a factor of {span}, less than the {beyond} beyond the largest"
            ));
        }
        let is_bent = |bend: &Estimate| bend.p(0.0).is_some_and(|p| p < 0.05);
        // Differences by rounding alone are no bend.
        if let Some(bend) = bend.filter(|bend| bend.mean.abs() > 1e-9 && is_bent(bend)) {
            let mean = of.show_difference(bend.mean);
            let half_width = of.show_difference(bend.half_width);
            doubts.push(format!(
                "the line bends: its slope changes by {mean} ± {half_width} nats with each doubling"
            ));
        }
        doubts.extend(self.hanging(&own, at));
        Some(Trend {
            run: run.to_owned(),
            slope: slope.mean,
            slope_half_width: slope.half_width,
            at,
            mean: end.mean,
            half_width: end.half_width,
            detectable_bend: bend.map(|bend| bend.detectable()),
            doubts,
        })
    }
}

/// Returns, for each seed that has all `sizes`, the points of its gain over the binary logarithm of the size. A seed
/// without some of the sizes would have another slope.
fn of_seeds(sizes: &[(f64, OfSeeds)]) -> Vec<Vec<(f64, f64)>> {
    let seeds = sizes.first().into_iter().flat_map(|(_, gains)| gains);
    let points = seeds.filter_map(|(seed, _)| {
        let points = sizes.iter().map(|(x, gains)| {
            let gain = gains.iter().find(|(other, _)| other == seed)?;
            Some((x.log2(), gain.1))
        });
        points.collect()
    });
    points.collect()
}

/// Returns the change of the slope for each unit of x of the parabola that fits the points best; `None` for fewer than
/// three different x.
fn bend(points: &[(f64, f64)]) -> Option<f64> {
    // The part of x² that is not linear in x. Its weights give the coefficient of x².
    let squares: Vec<(f64, f64)> = points.iter().map(|(x, _)| (*x, x * x)).collect();
    let line = Line::through(&squares)?;
    let rest = squares
        .iter()
        .map(|(x, y)| y - line.intercept - line.slope * x);
    let rest: Vec<f64> = rest.collect();
    let norm: f64 = rest.iter().map(|rest| rest * rest).sum();
    let sum: f64 = rest.iter().zip(points).map(|(rest, (_, y))| rest * y).sum();
    (points.len() > 2 && norm > 1e-9).then(|| 2.0 * sum / norm)
}

fn only_values(values: &[(Option<u64>, f64)]) -> Vec<f64> {
    values.iter().map(|(_, value)| *value).collect()
}
