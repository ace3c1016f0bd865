//! Tests that compare two runs seed by seed.

use residual_zoo_report::sig;
use residual_zoo_system::counted;
use statrs::distribution::{Binomial, DiscreteCDF};
use statrs::statistics::{Data, Median};

use super::{Finding, Found, ONE_SEED, estimate, is_exact, of_run, value};
use crate::claims::{Beyond, By, Close, Compared, Sooner};
use crate::quantity::is_cost;
use crate::stats::Estimate;
use crate::{Axis, Observation, Observed, Verdict};

/// Returns the observations of both runs, for each seed that both have.
pub(super) fn pairs<'a>(
    observations: &'a [Observation],
    run: &str,
    than: &str,
) -> Result<Vec<(&'a Observation, &'a Observation)>, String> {
    let others = of_run(observations, than)?;
    let partner = |one: &'a Observation| {
        let same = others.iter().find(|other| other.seed == one.seed);
        same.map(|other| (one, *other))
    };
    let runs = of_run(observations, run)?.into_iter();
    let pairs: Vec<_> = runs.filter_map(partner).collect();
    match pairs.is_empty() {
        true => Err(format!("{run} and {than} have no seed in common")),
        false => Ok(pairs),
    }
}

/// Whether the quantity is the tokens or the FLOPs of training, and follows from the config. Both follow unless a
/// curriculum sets the sequence length by the progress of training.
pub(super) fn is_counted(observations: &[&Observation], quantity: &str) -> bool {
    let mut levels = observations.iter().filter_map(|found| found.get("level"));
    matches!(quantity, "tokens" | "flops") && levels.next().is_none()
}

/// Whether differences of the quantity are comparable with published differences.
fn compares_with_papers(quantity: &str) -> bool {
    matches!(quantity, "train_loss" | "valid_loss" | "valid_accuracy")
}

/// A quantity of two runs, seed by seed.
struct Paired {
    /// Each seed and its difference.
    differences: Vec<(Option<u64>, f64)>,
    /// The means of both runs.
    means: [f64; 2],
    /// The published difference; `None` unless both runs have published values.
    reported: Option<f64>,
    /// Whether the difference is independent of the seed.
    is_exact: bool,
}

impl Paired {
    fn of(
        observations: &[Observation],
        (quantity, than_quantity): (&str, &str),
        (run, than): (&str, &str),
    ) -> Result<Self, String> {
        let pairs = pairs(observations, run, than)?;
        let mut differences = Vec::new();
        let mut means = [0.0, 0.0];
        for (one, other) in &pairs {
            let (a, b) = (value(one, quantity)?, value(other, than_quantity)?);
            differences.push((one.seed, a - b));
            means[0] += a / pairs.len() as f64;
            means[1] += b / pairs.len() as f64;
        }
        let (one, other) = pairs[0];
        let reported = one.published.get(quantity);
        let reported = reported.zip(other.published.get(than_quantity));
        let exact: Vec<_> = pairs.iter().map(|(a, _)| *a).collect();
        Ok(Self {
            differences,
            means,
            reported: reported.map(|(a, b)| a - b),
            is_exact: is_exact(&exact)
                || [quantity, than_quantity]
                    .iter()
                    .all(|quantity| is_cost(quantity) || is_counted(&exact, quantity)),
        })
    }
}

struct Difference {
    /// The difference of each seed.
    differences: Vec<f64>,
    found: Estimate,
    /// Whether the difference is independent of the seed.
    is_exact: bool,
    /// The compared values and their difference.
    because: String,
    /// The difference and its interval; `None` if the difference is exact or there is only one seed.
    margin: Option<String>,
}

impl Difference {
    /// Finds the difference between two runs, paired by seed.
    fn of(
        observations: &[Observation],
        quantities: (&str, &str),
        (run, than): (&str, &str),
    ) -> Result<Self, String> {
        let pair = Paired::of(observations, quantities, (run, than))?;
        let of = Observed::of_all(quantities.0, pair.means);
        let [first, second] = pair.means;
        let (first, second) = (of.show(first), of.with_unit(of.show(second)));
        let differences = pair.differences.iter().map(|(_, difference)| *difference);
        let differences: Vec<f64> = differences.collect();
        let because = format!("{run}: {first}; {than}: {second}");
        let shown = Self::shown(differences, pair.is_exact, because, than, &of)?;
        Ok(shown.beside(pair.reported, quantities.0, &of))
    }

    /// Finds the difference between two runs minus the difference between two others.
    fn beyond(
        observations: &[Observation],
        test: &Compared,
        beyond: &Beyond,
    ) -> Result<Self, String> {
        let paired = |run: &str, than: &str| {
            let quantities = (&*test.quantity, &*test.quantity);
            Paired::of(observations, quantities, (run, than))
        };
        let one = paired(&test.run, &test.than)?;
        let other = paired(&beyond.run, &beyond.than)?;
        let minus = |(seed, a): &(Option<u64>, f64)| {
            let same = other.differences.iter().find(|(s, _)| s == seed);
            same.map(|(_, b)| a - b)
        };
        let differences: Vec<f64> = one.differences.iter().filter_map(minus).collect();
        if differences.is_empty() {
            return Err(format!(
                "{} and {} have no seed in common",
                test.run, beyond.run
            ));
        }
        let of = Observed::of_all(&test.quantity, [one.means, other.means].concat());
        let show = |(run, than): (&str, &str), pair: &Paired| {
            let difference = of.show_signed(pair.means[0] - pair.means[1]);
            format!("{run} − {than}: {difference}")
        };
        let because = [
            show((&test.run, &test.than), &one),
            show((&beyond.run, &beyond.than), &other),
        ];
        let than = format!(
            "the difference of \"{}\" and \"{}\"",
            beyond.run, beyond.than
        );
        let is_exact = one.is_exact && other.is_exact;
        let because = because.join("; ");
        let reported = one.reported.zip(other.reported).map(|(a, b)| a - b);
        let shown = Self::shown(differences, is_exact, because, &than, &of)?;
        Ok(shown.beside(reported, &test.quantity, &of))
    }

    /// Adds whether the interval contains the published difference, if the measured difference is comparable with it.
    fn beside(mut self, reported: Option<f64>, quantity: &str, of: &Observed) -> Self {
        if let Some(reported) = reported
            && compares_with_papers(quantity)
            && !self.is_exact
            && self.found.count > 1
        {
            let far = (self.found.mean - reported).abs();
            let has = if far > self.found.half_width {
                "excludes"
            } else {
                "includes"
            };
            self.because += &format!("; {has} the reported {}", of.show_signed(reported));
        }
        self
    }

    /// Makes the result from the difference of each seed. Unless the differences are exact, adds their mean and its
    /// interval to `because`.
    fn shown(
        differences: Vec<f64>,
        is_exact: bool,
        mut because: String,
        than: &str,
        of: &Observed,
    ) -> Result<Self, String> {
        let found = estimate(&differences)?;
        let mut margin = None;
        if !is_exact {
            let difference = of.show_signed(found.mean);
            because += &match found.count {
                1 => format!("; difference {difference}; {ONE_SEED}"),
                count => {
                    let half_width = of.show_difference(found.half_width);
                    let detectable = of.show_difference(found.detectable());
                    let interval = format!("{difference} ± {half_width}");
                    margin = Some(format!("{interval} against {than}"));
                    format!("; difference {interval} over {count} seeds, detectable {detectable}")
                }
            };
        }
        Ok(Self {
            differences,
            found,
            is_exact,
            because,
            margin,
        })
    }
}

/// Tests whether one run has more (`direction` 1) or less (−1) of a quantity than the other. The run may also be worse
/// by at most `within`. Tests the mean over the seeds or, with [`By::Seeds`], the number of seeds with the claimed
/// sign.
pub(super) fn compare(observations: &[Observation], test: &Compared, direction: f64) -> Found {
    let quantities = (&*test.quantity, &*test.quantity);
    let difference = match &test.beyond {
        None => Difference::of(observations, quantities, (&test.run, &test.than)),
        Some(beyond) => Difference::beyond(observations, test, beyond),
    }?;
    let found = Estimate {
        mean: direction * difference.found.mean + test.within,
        ..difference.found
    };
    let (mut because, mut margin) = (difference.because, difference.margin);
    if test.within > 0.0 {
        let tolerance = Observed::of(&test.quantity).show_difference(test.within);
        because += &format!("; tolerance {tolerance}");
        margin = margin.map(|margin| format!("{margin}, tolerance {tolerance}"));
    }
    let count = difference.differences.len();
    if test.by == By::Seeds && !difference.is_exact && count > 1 {
        let ahead = |it: &&f64| direction * **it + test.within > 0.0;
        let wins = difference.differences.iter().filter(ahead).count();
        let word = if direction < 0.0 { "lower" } else { "higher" };
        let won = format!("{word} in {wins} of {}", counted(count, "seed"));
        let (verdict, p) = by_seeds(wins, count);
        return Ok(Finding {
            p: Some(p),
            margin: margin.map(|margin| format!("{margin}, {won}")),
            ..Finding::new(verdict, format!("{because}; {won}; sign test"))
        });
    }
    Ok(Finding {
        margin,
        ..Finding::sign(found, difference.is_exact, because)
    })
}

/// Tests whether two runs differ by at most `within`.
pub(super) fn close(observations: &[Observation], test: &Close) -> Found {
    let (quantity, within) = (&test.quantity, test.within);
    let quantities = (
        &**quantity,
        test.than_quantity.as_ref().unwrap_or(quantity).as_str(),
    );
    let difference = Difference::of(observations, quantities, (&test.run, &test.than))?;
    let (mean, is_exact) = (difference.found.mean.abs(), difference.is_exact);
    let half_width = if is_exact {
        0.0
    } else {
        difference.found.half_width
    };
    let verdict = match difference.found.count {
        _ if mean + half_width <= within => Verdict::Holds,
        _ if mean - half_width > within => Verdict::DoesNotHold,
        1 if !is_exact => Verdict::NotTested,
        _ => Verdict::Undecided,
    };
    let tolerance = Observed::of(quantity).show_difference(within);
    let tolerance = format!("tolerance {tolerance}");
    let than = || format!("against {}", test.than);
    let margin = difference.margin.unwrap_or_else(than);
    Ok(Finding {
        margin: Some(format!("{margin}, {tolerance}")),
        ..Finding::new(verdict, format!("{}; {tolerance}", difference.because))
    })
}

/// Returns the verdict of the sign test on `wins` wins in `count` seeds, and its p-value.
fn by_seeds(wins: usize, count: usize) -> (Verdict, f64) {
    let p = sign_test(wins, count);
    let verdict = match (p < 0.05, 2 * wins > count) {
        _ if count == 1 => Verdict::NotTested,
        (false, _) => Verdict::Undecided,
        (true, holds) => Verdict::of(holds),
    };
    (verdict, p)
}

/// Returns the two-sided p-value of `wins` wins in `count` trials with even odds (sign test).
fn sign_test(wins: usize, count: usize) -> f64 {
    let fewer = wins.min(count - wins);
    let Ok(even) = Binomial::new(0.5, count as u64) else {
        return 1.0;
    };
    (2.0 * even.cdf(fewer as u64)).min(1.0)
}

/// Tests whether a run reaches the other run's final validation loss, or a given loss, with less of `axis`.
pub(super) fn sooner(observations: &[Observation], test: &Sooner) -> Found {
    let Sooner {
        axis, run, than, ..
    } = test;
    let pairs = pairs(observations, run, than)?;
    if *axis == Axis::Seconds {
        // Runs that shared the cores with other runs have no seconds.
        for (a, b) in &pairs {
            value(a, "seconds").and(value(b, "seconds"))?;
        }
    }
    // The share of the other run's tokens, FLOPs or seconds that the run saves with each seed; the number of seeds with
    // which the run never reaches the loss; and the number with which only the run reaches it.
    let (mut gains, mut never, mut alone) = (Vec::new(), 0, 0);
    for (a, b) in &pairs {
        let (end, loss) = match test.loss {
            None => {
                let last = b.rows.last().zip(b.get("valid_loss"));
                let (end, loss) =
                    last.ok_or(format!("{than} has no validation loss at its end"))?;
                (axis.of(end), loss)
            }
            Some(loss) => {
                let seed = b
                    .seed
                    .map_or(String::new(), |it| format!(" with seed {it}"));
                let [first, second] = [a, b].map(|found| found.reaches(*axis, loss));
                // The curve of a run that starts from another run begins where that run ended.
                let is_before = |(found, x): (&Observation, Option<f64>)| {
                    let begin = found.curve(*axis, "valid_loss").first().map(|(x, _)| *x);
                    x.is_some() && x <= begin
                };
                if is_before((a, first)) || is_before((b, second)) {
                    return Err(format!("a loss of {loss} is reached before training{seed}"));
                }
                match (first, second) {
                    (_, Some(end)) => (end, loss),
                    (Some(_), None) => {
                        alone += 1;
                        continue;
                    }
                    (None, None) => {
                        return Err(format!("neither run reaches a loss of {loss}{seed}"));
                    }
                }
            }
        };
        match a.reaches(*axis, loss) {
            Some(x) => gains.push(1.0 - x / end),
            None => never += 1,
        }
    }
    let count = pairs.len();
    let percent = |x: f64| sig(100.0 * x, 3);
    let of = axis.name().replace("flops", "FLOPs");
    if never + alone > 0 {
        // A loss that is never reached gives no mean, so the seeds are counted. With some seeds, only the run reaches it.
        gains.resize(gains.len() + alone, 1.0);
        let sooner = gains.iter().filter(|gain| **gain > 0.0).count();
        let (verdict, p) = by_seeds(sooner, count);
        // A seed that never reaches the loss counts as the latest.
        gains.resize(count, f64::NEG_INFINITY);
        let median = Data::new(gains).median();
        let median = match median.is_finite() {
            true => format!("; median after {} % of the {of}", percent(1.0 - median)),
            false => String::new(),
        };
        let later = match count - sooner - never {
            0 => String::new(),
            later => format!(", later in {later}"),
        };
        let how = if count == 1 { ONE_SEED } else { "sign test" };
        let seeds = counted(count, "seed");
        let because =
            format!("sooner in {sooner} of {seeds}{later}, never in {never}{median}; {how}");
        return Ok(Finding {
            p: (count > 1).then_some(p),
            ..Finding::new(verdict, because)
        });
    }
    let found = estimate(&gains)?;
    let share = percent(1.0 - found.mean);
    let until = match test.loss {
        None => String::new(),
        Some(loss) => format!(" that {than} needs for a loss of {loss}"),
    };
    let because = match count {
        1 => format!("after {share} % of the {of}{until}; {ONE_SEED}"),
        _ => {
            let half_width = percent(found.half_width);
            format!("after {share} ± {half_width} % of the {of}{until}, over {count} seeds")
        }
    };
    Ok(Finding::sign(found, false, because))
}
