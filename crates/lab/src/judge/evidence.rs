//! What every test of a claim needs: observations of runs, pairs of them, and how they are shown.

use crate::stats::Estimate;
use crate::{Observation, Observed, Verdict, describe};

/// A verdict and its numbers, or what is missing for one.
pub(crate) type Found = Result<(Verdict, String), String>;

pub(super) fn shown(quantity: &str) -> Observed {
    describe(quantity).unwrap_or(Observed::OWN)
}

pub(super) fn with_unit(quantity: &str, text: String) -> String {
    match shown(quantity).unit {
        "" => text,
        unit => format!("{text} {unit}"),
    }
}

/// The observations of a run, or that it is missing.
pub(super) fn of_run<'a>(
    observations: &'a [Observation],
    run: &str,
) -> Result<Vec<&'a Observation>, String> {
    let found: Vec<_> = observations
        .iter()
        .filter(|found| found.run == run)
        .collect();
    match found.is_empty() {
        true => Err(format!("{run} is missing")),
        false => Ok(found),
    }
}

pub(super) fn values(
    observations: &[Observation],
    quantity: &str,
    run: &str,
) -> Result<Vec<f64>, String> {
    let found = of_run(observations, run)?;
    let value = |found: &&Observation| {
        let missing = || format!("{} of {run} was not measured", quantity.replace('_', " "));
        found.get(quantity).ok_or_else(missing)
    };
    found.iter().map(value).collect()
}

/// The observations of both runs, for each seed that has both.
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
    let pairs: Vec<_> = of_run(observations, run)?
        .into_iter()
        .filter_map(partner)
        .collect();
    match pairs.is_empty() {
        true => Err(format!("{run} and {than} have no seed in common")),
        false => Ok(pairs),
    }
}

/// Whether nothing about the observations is random: what is drawn at random has a seed.
pub(super) fn is_exact(observations: &[&Observation]) -> bool {
    observations.iter().all(|found| found.seed.is_none())
}

/// Tokens and FLOPs follow from the config, unless the length of a sample depends on what was
/// learned.
pub(super) fn is_counted(observations: &[&Observation], quantity: &str) -> bool {
    let follows_config = observations
        .iter()
        .all(|found| found.get("level").is_none());
    matches!(quantity, "tokens" | "flops") && follows_config
}

/// The verdict on a quantity that should be positive.
pub(super) fn sign(found: Estimate) -> Verdict {
    match found {
        _ if found.mean - found.half_width > 0.0 => Verdict::Holds,
        _ if found.mean + found.half_width < 0.0 => Verdict::DoesNotHold,
        _ => Verdict::Undecided,
    }
}

pub(super) const ONE_SEED: &str = "one seed tells no difference from chance";
