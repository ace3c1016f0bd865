//! Checks that the verdicts of an experiment are meaningful.

use std::collections::BTreeSet;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{DataConfig, Source, TokenizerConfig};

use crate::check::in_list;
use crate::quantity::{BITS_PER_BYTE, is_curve};
use crate::{Claim, Experiment, PlannedRun, Test, describe};

/// Checks the names and numbers of runs, the fields that runs set, the seeds of the sweep, the numbers of claims, and
/// the data of the runs that a claim compares.
///
/// # Errors
///
/// Returns an error that names the first problem that would change the meaning of a verdict.
pub(crate) fn check<C: ModelConfig>(
    experiment: &Experiment<C>,
    planned: &[PlannedRun<C>],
) -> Result<(), ConfigError> {
    for run in planned {
        let name = &run.name;
        if name.trim().is_empty() || name.contains(char::is_control) {
            return error(
                "runs",
                format!(
                    "has the name {name:?}; a name needs a visible character, and no line break or other control character"
                ),
            );
        }
        let given = [("values", &run.values), ("published", &run.published)];
        for (field, numbers) in given {
            if let Some((quantity, number)) = numbers.iter().find(|(_, it)| !it.is_finite()) {
                let problem = format!(
                    "of `{name}` has {number:?} for `{quantity}`; give a finite number, or leave it out"
                );
                return error(field, problem);
            }
        }
    }
    check_seeds(experiment)?;
    if experiment.count.is_none() {
        check_given(experiment)?;
    }
    for (i, claim) in experiment.claims.iter().enumerate() {
        check_numbers(claim).map_err(in_list("claims", i))?;
        check_data(claim, planned).map_err(in_list("claims", i))?;
    }
    Ok(())
}

/// Checks that runs set no seed, because seeds belong to the experiment. Also checks that the sweep has each seed only
/// once.
fn check_seeds<C>(experiment: &Experiment<C>) -> Result<(), ConfigError> {
    const SEED: &str = "train.seed";
    for spec in &experiment.runs {
        let set = spec.set.iter().filter_map(|set| set.split('=').next());
        let varied = spec.vary.iter().flat_map(|vary| vary.field.split(','));
        if set.chain(varied).any(|field| field.trim() == SEED) {
            let problem = format!(
                "`{}` sets `{SEED}`, which belongs to the experiment; list the seeds in `seeds`",
                spec.name
            );
            return error("runs", problem);
        }
    }
    let sweep = experiment.sweep.iter().flat_map(|sweep| &sweep.seeds);
    let mut known = BTreeSet::new();
    for seed in sweep {
        if !known.insert(seed) {
            return error("sweep.seeds", format!("has {seed} twice"));
        }
    }
    Ok(())
}

/// Checks that runs give no values for quantities that are measured.
fn check_given<C>(experiment: &Experiment<C>) -> Result<(), ConfigError> {
    let is_measured = |name: &str| describe(name).is_some();
    for spec in &experiment.runs {
        let varied = spec.vary.iter().map(|vary| &vary.name);
        if let Some(name) = spec
            .values
            .keys()
            .chain(varied)
            .find(|name| is_measured(name))
        {
            let problem = format!(
                "`{}` sets `{name}`, which is measured; use another name",
                spec.name
            );
            return error("runs", problem);
        }
    }
    Ok(())
}

/// Checks that bounds and tolerances are finite, that lower bounds are not above upper ones, and that no tolerance is
/// negative. Also checks that a claim that is not tested gives a reason.
fn check_numbers(claim: &Claim) -> Result<(), ConfigError> {
    if matches!(&claim.test, Test::NotTested(why) if why.trim().is_empty()) {
        let problem = format!("\"{}\" is not tested, but gives no reason", claim.says);
        return error("claims", problem);
    }
    let range = |low: f64, high: f64| low.is_finite() && high.is_finite() && low <= high;
    let within = |tolerance: f64| tolerance.is_finite() && tolerance >= 0.0;
    let good = match &claim.test {
        Test::AtLeast(it) | Test::AtMost(it) => it.value.is_finite(),
        Test::Between(it) => range(it.low, it.high),
        Test::Exponent(it) => range(it.low, it.high),
        Test::Lower(it) | Test::Higher(it) => within(it.within),
        Test::Close(it) => within(it.within),
        Test::Keeps(it) => within(it.within),
        Test::Sooner(it) => it.loss.is_none_or(f64::is_finite),
        Test::Is(it) => it.value.is_finite() && within(it.within),
        Test::Ratio(it) => it.value.is_finite() && within(it.within),
        _ => true,
    };
    match good {
        true => Ok(()),
        false => error(
            "claims",
            format!(
                "\"{}\" has a number that is not finite, a tolerance below 0, or a lower bound above the upper one",
                claim.says
            ),
        ),
    }
}

/// Checks that losses and accuracies are compared on the same validation text, in the same tokens, and bits per byte on
/// the same validation text.
fn check_data<C>(claim: &Claim, planned: &[PlannedRun<C>]) -> Result<(), ConfigError> {
    let (names, quantities) = claim.test.names();
    let is_sooner = matches!(claim.test, Test::Sooner(_));
    let of_one_run = matches!(
        claim.test,
        Test::AtLeast(_) | Test::AtMost(_) | Test::Between(_) | Test::Is(_)
    );
    // Bits per byte are comparable on the same text, in any tokens.
    let in_any_tokens = quantities.contains(&BITS_PER_BYTE);
    let is_loss = |quantity: &&str| is_curve(quantity);
    if of_one_run || !is_sooner && !in_any_tokens && !quantities.iter().any(is_loss) {
        return Ok(());
    }
    // In a difference in differences, each pair may have its own data.
    for pair in names.chunks(2) {
        let is_named =
            |run: &&PlannedRun<C>| pair.contains(&&*run.name) || pair.contains(&&*run.line);
        let mut texts = planned.iter().filter(is_named).filter_map(|run| {
            let mut data = of_text(&run.config.as_ref()?.data)?.clone();
            if in_any_tokens {
                data.tokenizer = TokenizerConfig::Bytes;
            }
            Some((&run.name, data))
        });
        let Some((first, data)) = texts.next() else {
            continue;
        };
        if let Some((other, _)) = texts.find(|(_, other)| *other != data) {
            let problem = format!(
                "\"{}\" compares `{first}` and `{other}`, whose losses are on different validation data; give both the same \
                 data, tokenizer and `valid_fraction`",
                claim.says
            );
            return error("claims", problem);
        }
    }
    Ok(())
}

/// Returns the config that determines the validation tokens, if the source is a text.
fn of_text(data: &DataConfig) -> Option<&DataConfig> {
    let is_text = !data.source.paths().is_empty()
        || matches!(data.source, Source::TinyShakespeare | Source::Synthetic(_));
    is_text.then_some(data)
}

fn error(field: &str, problem: impl Into<String>) -> Result<(), ConfigError> {
    Err(ConfigError::new(field, problem))
}
