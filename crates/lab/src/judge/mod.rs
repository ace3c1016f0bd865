//! Tests of claims, and their verdicts.

mod difference;
mod line;
mod transfer;
mod value;

use residual_zoo_core::ModelConfig;

use crate::claims::Close;
use crate::ladder::LOSS;
use crate::plan::with_starts;
use crate::quantity::{GAIN, TIMES, describe, is_cost, title};
use crate::stats::Estimate;
use crate::{Claim, Experiment, Judgement, Observation, PlannedRun, Test, Verdict};
use difference::{close, compare, sooner};
use line::{below, exponent, falls, keeps};
use transfer::transfers;
use value::{bound, is, ratio};

/// A planned run.
#[derive(Clone, Copy, Debug)]
pub struct Planned<'a> {
    /// The name.
    pub name: &'a str,
    /// The line of the run.
    pub line: &'a str,
    /// The number of seeds with which the run is trained.
    pub seeds: usize,
}

impl<C: ModelConfig> Experiment<C> {
    /// Judges all claims on the observations, and corrects their p-values for the number of claims. If the runs are too
    /// short for verdicts, claims that are not about costs are marked as not tested. `planned` holds all runs,
    /// including omitted runs.
    pub fn verdicts(
        &self,
        planned: &[PlannedRun<C>],
        observations: &[Observation],
    ) -> Vec<Judgement> {
        let seeds = |run: &PlannedRun<C>| match self.count {
            None => self.seeds.iter().filter(|it| run.is_for(**it)).count(),
            Some(_) => 1,
        };
        let all = planned.iter().map(|run| Planned {
            name: &run.name,
            line: &run.line,
            seeds: seeds(run),
        });
        let all: Vec<Planned> = all.collect();
        let mut observations = observations.to_vec();
        if !self.same_tokens {
            for found in &mut observations {
                found
                    .published
                    .retain(|quantity, _| !quantity.ends_with("loss"));
            }
        }
        let judge = |claim: &Claim| claim.judge(&observations, &all);
        let mut claims: Vec<Judgement> = self.claims.iter().map(judge).collect();
        match self.judge {
            true => Judgement::correct(&mut claims),
            false => claims.iter_mut().for_each(Judgement::set_aside),
        }
        claims
    }

    /// Whether the verdict on a claim depends on the learning rate of the run `run` of a ladder: the claim is about it at
    /// any size, about a run that starts from it, or about a gain over either. A claim that a run starts with the loss
    /// with which another ended depends on no learning rate.
    pub(crate) fn depends_on(&self, claim: &Claim, run: &str, planned: &[PlannedRun<C>]) -> bool {
        if let Test::Close(test) = &claim.test
            && test.is_start(planned)
        {
            return false;
        }
        let ((names, quantities), lines) = (claim.test.names(), claim.test.lines());
        let ladder = self.ladder.as_ref();
        let ladder = ladder.filter(|_| quantities.contains(&GAIN));
        let is_named = |run: &PlannedRun<C>| {
            let is_baseline = ladder.is_some_and(|ladder| ladder.baseline == run.line);
            is_baseline || names.contains(&&*run.name) || lines.contains(&&*run.line)
        };
        let mut rungs = with_starts(planned, is_named)
            .into_iter()
            .filter_map(|run| run.rung.as_ref());
        rungs.any(|rung| rung.run == run)
    }
}

impl Close {
    /// Whether the claim compares the loss with which a run starts with the last loss of the run it starts from.
    fn is_start<C>(&self, planned: &[PlannedRun<C>]) -> bool {
        let starts = |run: &PlannedRun<C>| {
            let after = run.after.as_ref();
            run.name == self.run && after.is_some_and(|after| after.run == self.than)
        };
        self.quantity == "first_valid_loss"
            && self.than_quantity.as_deref() == Some(LOSS)
            && planned.iter().any(starts)
    }
}

impl Claim {
    /// Tests the claim on the observations.
    ///
    /// A claim is not tested if a seed of one of its runs is missing, because a seed that failed or diverged may be
    /// decisive. A claim about the cost of models needs only one seed of each run.
    pub fn judge(&self, observations: &[Observation], planned: &[Planned]) -> Judgement {
        let ((names, quantities), lines) = (self.test.names(), self.test.lines());
        let is_named = |run: &&Planned| match lines.is_empty() {
            true => names.contains(&run.name),
            false => lines.contains(&run.line),
        };
        let mut named = planned.iter().filter(is_named);
        // The cost of a model does not depend on seeds, so one seed is enough.
        let is_counted = self.test.is_counted();
        let counted: Vec<Observation>;
        let observations = match is_counted {
            true => {
                counted = of_no_seed(observations);
                &counted
            }
            false => observations,
        };
        let incomplete = named.find_map(|Planned { name, seeds, .. }| {
            let of_run = observations.iter().filter(|found| found.run == *name);
            match of_run.clone().count() {
                0 => Some(format!("{name} is missing")),
                found if found < *seeds && !is_counted => {
                    Some(format!("{name} has only {found} of {seeds} seeds"))
                }
                // A gain also needs the baseline.
                _ if quantities.contains(&GAIN) => {
                    let mut of_run = of_run;
                    of_run.find_map(|found| value(found, GAIN).err())
                }
                _ => None,
            }
        });
        let untested = |missing| Finding::new(Verdict::NotTested, missing);
        let found = match incomplete {
            // The claim still counts in its family, as one that chance explains. Otherwise a run that diverged would
            // make the other claims easier to decide.
            Some(missing) => Finding {
                p: self.test.has_p().then_some(1.0),
                ..untested(missing)
            },
            None => self.test.judge(observations).unwrap_or_else(untested),
        };
        let Finding {
            verdict,
            because,
            margin,
            p,
        } = found;
        Judgement {
            claim: self.clone(),
            verdict,
            because,
            margin,
            p,
        }
    }
}

/// Returns the first observation of each run, without its seed.
fn of_no_seed(observations: &[Observation]) -> Vec<Observation> {
    let mut kept: Vec<Observation> = Vec::new();
    for found in observations {
        if kept.iter().all(|other| other.run != found.run) {
            let found = found.clone();
            kept.push(Observation {
                seed: None,
                ..found
            });
        }
    }
    kept
}

impl Test {
    /// Whether everything that the claim tests follows from the configs of the runs.
    pub(crate) fn is_counted(&self) -> bool {
        let (_, quantities) = self.names();
        let is_measured = |quantity: &str| describe(quantity).is_some() && !is_cost(quantity);
        let is_about_costs = quantities.first().is_some_and(|quantity| is_cost(quantity));
        is_about_costs && !quantities.into_iter().any(is_measured)
    }

    /// Whether the test gives a p-value.
    fn has_p(&self) -> bool {
        let is_difference = matches!(
            self,
            Self::Lower(_)
                | Self::Higher(_)
                | Self::Falls(_)
                | Self::Keeps(_)
                | Self::Below(_)
                | Self::Transfers(_)
        );
        is_difference && !self.is_counted()
    }

    fn judge(&self, all: &[Observation]) -> Found {
        match self {
            Self::Lower(test) => compare(all, test, -1.0),
            Self::Higher(test) => compare(all, test, 1.0),
            Self::Close(test) => close(all, test),
            Self::Falls(test) => falls(all, test),
            Self::Keeps(test) => keeps(all, test),
            Self::Below(test) => below(all, test),
            Self::Sooner(test) => sooner(all, test),
            Self::AtLeast(it) => bound(all, &it.quantity, &it.run, it.value..=f64::INFINITY),
            Self::AtMost(it) => bound(all, &it.quantity, &it.run, f64::NEG_INFINITY..=it.value),
            Self::Between(it) => bound(all, &it.quantity, &it.run, it.low..=it.high),
            Self::Ratio(test) => ratio(all, test),
            Self::Is(test) => is(all, test),
            Self::Exponent(test) => exponent(all, test),
            Self::Transfers(test) => transfers(all, test),
            Self::NotTested(why) => Err(why.clone()),
        }
    }
}

/// A verdict and its numbers; see [`Judgement`].
struct Finding {
    verdict: Verdict,
    because: String,
    margin: Option<String>,
    p: Option<f64>,
}

impl Finding {
    fn new(verdict: Verdict, because: String) -> Self {
        Self {
            verdict,
            because,
            margin: None,
            p: None,
        }
    }

    /// Judges whether a quantity is positive, given its estimate.
    fn sign(found: Estimate, is_exact: bool, because: String) -> Self {
        Self {
            p: found.p(0.0).filter(|_| !is_exact),
            ..Self::new(sign(found, is_exact), because)
        }
    }
}

/// A finding, or the reason why there is no verdict.
type Found = Result<Finding, String>;

const ONE_SEED: &str = "one seed cannot tell a difference from chance";

/// Returns the observations of a run, or an error if it has none.
fn of_run<'a>(observations: &'a [Observation], run: &str) -> Result<Vec<&'a Observation>, String> {
    let of_run = observations.iter().filter(|found| found.run == run);
    let found: Vec<_> = of_run.collect();
    match found.is_empty() {
        true => Err(format!("{run} is missing")),
        false => Ok(found),
    }
}

fn value(found: &Observation, quantity: &str) -> Result<f64, String> {
    let seed = found
        .seed
        .map_or(String::new(), |seed| format!(" with seed {seed}"));
    let missing = || match quantity {
        GAIN if found.get(LOSS).is_none() => not_measured(&found.run, LOSS, &seed),
        _ => not_measured(&found.run, quantity, &seed),
    };
    found.get(quantity).ok_or_else(missing)
}

fn values(observations: &[Observation], quantity: &str, run: &str) -> Result<Vec<f64>, String> {
    let found = of_run(observations, run)?;
    let values: Vec<f64> = found.iter().filter_map(|it| it.get(quantity)).collect();
    match (values.len(), found.len()) {
        (count, all) if count == all => Ok(values),
        (0, _) => Err(not_measured(run, quantity, "")),
        (count, all) => {
            let seeds = format!(" in {} of {all} seeds", all - count);
            Err(not_measured(run, quantity, &seeds))
        }
    }
}

/// Says that a quantity was not measured in a run with these `seeds`, and why, or what to do.
fn not_measured(run: &str, quantity: &str, seeds: &str) -> String {
    let remedy = match quantity {
        _ if TIMES.contains(&quantity) => {
            "; runs that are trained beside others (`--jobs`) have no times: repeat with `--force`, without `--jobs`"
        }
        GAIN => ", because the baseline of this size and seed is missing",
        _ => "",
    };
    format!(
        "{} of {run} was not measured{seeds}{remedy}",
        title(quantity)
    )
}

fn estimate(values: &[f64]) -> Result<Estimate, String> {
    Estimate::of(values).ok_or_else(|| "a value is not finite".to_owned())
}

/// Whether the observations are exact, which means that none of them has a seed.
fn is_exact(observations: &[&Observation]) -> bool {
    observations.iter().all(|found| found.seed.is_none())
}

/// Returns the verdict on a quantity that should be positive.
fn sign(found: Estimate, is_exact: bool) -> Verdict {
    match found.count {
        _ if is_exact => Verdict::of(found.mean > 0.0),
        1 => Verdict::NotTested,
        _ if found.mean - found.half_width > 0.0 => Verdict::Holds,
        _ if found.mean + found.half_width < 0.0 => Verdict::DoesNotHold,
        _ => Verdict::Undecided,
    }
}
