//! Ladders: the same comparison at several sizes.
//!
//! A ladder trains every run of an experiment at each of its sizes. The gain of a run is the loss of the baseline minus
//! the loss of the run, at the same size and with the same seed. The report shows how the gain changes with the size.

mod effects;
mod report;
mod worth;

use std::collections::{BTreeMap, BTreeSet};

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::Source;
use residual_zoo_runs::{RunConfig, contained, did_you_mean, names_of};
use serde::{Deserialize, Serialize};

use crate::check::{check_is_before, own_tokens, tokens_before};
use crate::plan::OPTION;
use crate::quantity::{GAIN, SIZE};
use crate::sweep::OVER;
use crate::{After, Error, Experiment, Observation, PlannedRun};

pub(crate) use effects::Effects;
pub use worth::{Fall, Losses, Worth};

/// Sizes at which an experiment repeats its comparison. Every run of the experiment is trained at each size. Its name
/// becomes `RUN, SIZE`, and the runs of all sizes form the line `RUN`.
///
/// A run that starts from another run (`after`) starts from it at its own size. Tokens are then those of both. Runs from
/// which others start are not compared with the baseline, because they have fewer tokens.
///
/// The compared runs have two further quantities: `size`, the number of non-embedding parameters of the baseline at the
/// run's size, and `gain`, the validation loss of the baseline minus the loss of the run, at the same size and with the
/// same seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ladder {
    /// The name of the run with which the others are compared.
    pub baseline: String,
    /// The sizes, from the smallest to the largest.
    pub sizes: Vec<Size>,
    /// Factors above 1, from the smallest to the largest. At each size, the baseline is also trained on these multiples
    /// of its tokens, with a warm-up in proportion. With these runs, the report also gives each gain as a multiple of
    /// the baseline's tokens.
    #[serde(default)]
    pub more_tokens: Vec<f64>,
    /// The report extrapolates gains to this multiple of the largest size.
    #[serde(default = "four")]
    pub extrapolate: f64,
}

fn four() -> f64 {
    4.0
}

/// A size of a ladder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// The name.
    pub name: String,
    /// Fields of every run, as `PATH=VALUE`: the shape of the model and the length of training.
    pub set: Vec<String>,
    /// Further fields of single runs, by the name of the run.
    #[serde(default)]
    pub own: BTreeMap<String, Vec<String>>,
}

/// The place of a run on a ladder.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    /// The name of the run without its size.
    pub run: String,
    /// The name of the size.
    pub size: String,
    /// The number of non-embedding parameters of the baseline at this size.
    pub parameters: f64,
    /// The factor on the tokens of the size: 1, or one of [`Ladder::more_tokens`].
    pub tokens: f64,
}

/// The quantity of which a gain is a difference.
pub(crate) const LOSS: &str = "valid_loss";

/// Maximum number of sizes, and of factors on the tokens.
const MOST: usize = 100;

impl Ladder {
    /// Returns the runs at every size, each with `set` on top. If the baseline is among them, it is followed by its runs
    /// on more tokens. A run that starts from another run starts from that run at its own size.
    ///
    /// # Errors
    ///
    /// Returns an error if the ladder lacks a baseline or has too many sizes, if the sizes do not grow, if a field cannot
    /// be set, or if a gain would not compare models alone.
    pub(crate) fn plan<C: ModelConfig>(
        &self,
        runs: &[PlannedRun<C>],
        set: &[String],
    ) -> Result<Vec<PlannedRun<C>>, Error> {
        if self.sizes.len() > MOST || self.more_tokens.len() > MOST {
            let problem = format!("has more than {MOST} sizes, or factors on the tokens");
            return Err(ConfigError::new("ladder", problem).into());
        }
        let mut known = BTreeSet::new();
        for (i, Size { name, .. }) in self.sizes.iter().enumerate() {
            if name.trim().is_empty() || !known.insert(name) {
                let problem = format!("has the name {name:?}; each size needs its own name");
                return Err(ConfigError::new(format!("ladder.sizes[{i}]"), problem).into());
            }
        }
        let Some(baseline) = runs.iter().find(|run| run.name == self.baseline) else {
            let meant = did_you_mean(&self.baseline, runs.iter().map(|run| &run.name));
            let problem = format!("is `{}`, which is not a run{meant}", self.baseline);
            return Err(ConfigError::new("ladder.baseline", problem).into());
        };
        let baselines = self.sizes.iter().map(|size| size.of(baseline, set));
        let baselines = baselines.collect::<Result<Vec<_>, Error>>()?;
        let parameters = baselines.iter().map(parameters);
        let parameters = parameters.collect::<Result<Vec<f64>, Error>>()?;
        if let Some(i) = (1..parameters.len()).find(|i| parameters[i - 1] >= parameters[*i]) {
            let problem = format!(
                "has `{}` with {} parameters of the baseline before `{}` with {}; give sizes that grow",
                self.sizes[i - 1].name,
                parameters[i - 1],
                self.sizes[i].name,
                parameters[i]
            );
            return Err(ConfigError::new("ladder.sizes", problem).into());
        }
        let mut planned: Vec<PlannedRun<C>> = Vec::new();
        for (i, run) in runs.iter().enumerate() {
            for before in run.after.iter().flat_map(After::runs) {
                check_is_before(run, before, &runs[..i])?;
            }
            let is_start = is_start(run, runs) && run.name != self.baseline;
            for (size, parameters) in self.sizes.iter().zip(&parameters) {
                let mut at_size = size.of(run, set)?;
                at_size.rung = Some(Rung {
                    run: run.name.clone(),
                    size: size.name.clone(),
                    parameters: *parameters,
                    tokens: 1.0,
                });
                if !is_start {
                    at_size.values.insert(SIZE.into(), *parameters);
                }
                planned.push(at_size);
            }
        }
        for run in &planned {
            self.check_comparable(run, &planned)?;
        }
        let with_more = planned
            .iter()
            .map(|run| self.with_more_tokens(run, &planned));
        Ok(with_more.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Checks that the difference of the losses of a run and the baseline of its size compares models alone. A run from
    /// which others start must read the same data, because it could otherwise read what they are validated on.
    fn check_comparable<C: ModelConfig>(
        &self,
        run: &PlannedRun<C>,
        planned: &[PlannedRun<C>],
    ) -> Result<(), ConfigError> {
        let size = |run: &PlannedRun<C>| run.rung.as_ref().map(|rung| rung.size.clone());
        let is_baseline =
            |other: &&PlannedRun<C>| other.line == self.baseline && size(other) == size(run);
        let Some(baseline) = planned.iter().find(is_baseline) else {
            return Ok(());
        };
        let (name, at) = (&run.line, size(run).unwrap_or_default());
        let before = |run: &PlannedRun<C>| tokens_before(planned, run).unwrap_or(0.0);
        let length = |run: &PlannedRun<C>| run.config.as_ref().map_or(0, RunConfig::time);
        let difference = match has_size(run) {
            true => unequal((run, before(run)), (baseline, before(baseline))),
            false if length(run) == length(baseline) => None,
            false => Some(format!(
                "{} tokens in a sequence instead of the {}",
                length(run),
                length(baseline)
            )),
        };
        let data = |run: &PlannedRun<C>| run.config.as_ref().map(|config| config.data.clone());
        let problem = if data(run) != data(baseline) {
            format!(
                "`{name}` has other data than the baseline at `{at}`, so their losses cannot be compared"
            )
        } else if let Some(difference) = difference {
            format!(
                "`{name}` has {difference} of the baseline at `{at}`; give both the same, so that a gain compares models only"
            )
        } else if has_curriculum(run) {
            format!(
                "`{name}` has a curriculum, so the length of its sequences follows from its losses, and a gain would \
                 compare different tasks; leave `most_noise` out"
            )
        } else {
            return Ok(());
        };
        Err(ConfigError::new("ladder", problem))
    }

    /// Returns a run and, if it is the baseline, its runs on more tokens.
    fn with_more_tokens<C: ModelConfig>(
        &self,
        run: &PlannedRun<C>,
        planned: &[PlannedRun<C>],
    ) -> Result<Vec<PlannedRun<C>>, ConfigError> {
        let mut all = vec![run.clone()];
        if run.line == self.baseline {
            let before = tokens_before(planned, run).unwrap_or(0.0);
            all.extend(
                self.more_tokens
                    .iter()
                    .map(|factor| longer(run, *factor, before)),
            );
        }
        let steps = |run: &PlannedRun<C>| run.config.as_ref().map(|it| it.train.steps);
        self.check_factors()?;
        if all
            .windows(2)
            .any(|pair| steps(&pair[0]) >= steps(&pair[1]))
        {
            let size = run.rung.as_ref().map_or("", |rung| &rung.size);
            let problem = format!(
                "must give more steps with each factor, but does not at `{size}`; give larger factors"
            );
            return Err(ConfigError::new("ladder.more_tokens", problem));
        }
        Ok(all)
    }

    /// Checks that the factors on the baseline's tokens rise, within limits.
    fn check_factors(&self) -> Result<(), ConfigError> {
        let factors = [1.0].into_iter().chain(self.more_tokens.iter().copied());
        let factors: Vec<f64> = factors.collect();
        let rises = |pair: &[f64]| pair[0] < pair[1];
        match factors.windows(2).all(rises) && factors.iter().all(|factor| *factor <= 1000.0) {
            true => Ok(()),
            false => {
                let problem = "must rise, from a factor above 1 to one of at most 1000";
                Err(ConfigError::new("ladder.more_tokens", problem))
            }
        }
    }

    /// Checks that the runs of `experiment` have no field that a ladder does not allow.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first problem.
    pub(crate) fn check_fields<C>(experiment: &Experiment<C>) -> Result<(), ConfigError> {
        let error = |field: &str, problem: String| Err(ConfigError::new(field, problem));
        if experiment.count.is_some() {
            let problem = "is given, but with `count` nothing is trained; leave one of them out";
            return error("ladder", problem.into());
        }
        for spec in &experiment.runs {
            let merged = spec.after.as_ref().and_then(|after| after.with.as_ref());
            let given = [
                ("line", spec.line.is_some()),
                ("vary", spec.vary.is_some()),
                ("after.with", merged.is_some()),
                ("on_new_data", spec.on_new_data),
            ];
            if let Some((field, _)) = given.iter().find(|(_, is_given)| *is_given) {
                let problem = format!(
                    "`{}` has `{field}`, which a ladder does not allow",
                    spec.name
                );
                return error("runs", problem);
            }
            if let Some(name) = [SIZE, GAIN]
                .iter()
                .find(|name| spec.values.contains_key(**name))
            {
                let problem = format!("`{}` has a value `{name}`, which a ladder sets", spec.name);
                return error("runs", problem);
            }
        }
        Ok(())
    }

    /// Checks the ladder of `experiment`, whose runs are `planned`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first problem.
    pub(crate) fn check<C: ModelConfig>(
        &self,
        experiment: &Experiment<C>,
        planned: &[PlannedRun<C>],
    ) -> Result<(), ConfigError> {
        let error = |field: &str, problem: String| Err(ConfigError::new(field, problem));
        if self.sizes.len() < 2 {
            return error("ladder.sizes", "has fewer than two sizes".into());
        }
        for (i, size) in self.sizes.iter().enumerate() {
            let field = format!("ladder.sizes[{i}]");
            let names = experiment.runs.iter().map(|spec| &spec.name);
            if let Some(run) = size
                .own
                .keys()
                .find(|run| !names.clone().any(|name| name == *run))
            {
                let problem = format!(
                    "has fields for `{run}`, which is not a run{}",
                    did_you_mean(run, names)
                );
                return error(&field, problem);
            }
            let mut set = size.set.iter().chain(size.own.values().flatten());
            let is_seed = |set: &str| {
                set.split('=')
                    .next()
                    .is_some_and(|path| path.trim() == "train.seed")
            };
            if set.clone().any(|set| is_seed(set)) {
                let problem = "sets `train.seed`; list the seeds in `seeds`";
                return error(&field, problem.into());
            }
            for (run, own) in &size.own {
                if let Some((earlier, later)) = lost(&size.set, own, 1) {
                    let problem = format!(
                        "sets `{earlier}`, which `{later}` of `{run}` replaces; leave one of them out"
                    );
                    return error(&field, problem);
                }
            }
            for spec in &experiment.runs {
                let own = size.own.get(&spec.name).map_or(&[][..], Vec::as_slice);
                if let Some((earlier, later)) =
                    lost(&spec.set, &size.set, 0).or(lost(&spec.set, own, 0))
                {
                    let problem = format!(
                        "sets `{later}`, which replaces `{earlier}` of `{}`; leave one of them out",
                        spec.name
                    );
                    return error(&field, problem);
                }
            }
            let sweep = experiment.sweep.as_ref();
            if let Some(set) = set.find(|set| sweep.is_some_and(|sweep| sweep.varies(set))) {
                return error(&field, format!("sets `{set}`, which the sweep varies"));
            }
        }
        self.check_factors()?;
        for factor in &self.more_tokens {
            let line = longer_name(&self.baseline, *factor);
            if experiment.runs.iter().any(|spec| spec.name == line) {
                let problem =
                    format!("`{line}` is the name of the baseline on more tokens; rename the run");
                return error("runs", problem);
            }
        }
        const LENGTHS: [&str; 3] = ["train.steps", "train.tokens", "train.warmup"];
        let swept = experiment.sweep.as_ref();
        let is_swept = |field: &&&str| swept.is_some_and(|sweep| sweep.varies(field));
        if let Some(field) = LENGTHS.iter().find(is_swept) {
            let problem = format!("varies `{field}`, which the sizes of a ladder set");
            return error(OVER, problem);
        }
        for claim in &experiment.claims {
            let (runs, quantities) = claim.test.names();
            let is_meant = |run: &&PlannedRun<C>| {
                runs.contains(&run.name.as_str()) || runs.contains(&run.line.as_str())
            };
            let lacks = |run: &&PlannedRun<C>| {
                let (is_baseline, is_start) = (run.line == self.baseline, !has_size(run));
                let gain = quantities.contains(&GAIN) && (is_baseline || is_start);
                gain || quantities.contains(&SIZE) && is_start
            };
            if let Some(run) = planned.iter().filter(is_meant).find(lacks) {
                let why = match run.line == self.baseline {
                    true => "gain of the baseline",
                    false => "gain or size of a run from which others start",
                };
                let problem = format!(
                    "\"{}\" is about the {why}, `{}`; it has none",
                    claim.says, run.line
                );
                return error("claims", problem);
            }
        }
        if !(1.0..=1e6).contains(&self.extrapolate) {
            let problem = format!("is {}; it must be between 1 and 1000000", self.extrapolate);
            return error("ladder.extrapolate", problem);
        }
        Ok(())
    }

    /// Adds the gain to each observation of a run that the baseline has at the same size and with the same seed.
    pub(crate) fn add_gains(&self, observations: &mut [Observation]) {
        let baseline = observations
            .iter()
            .filter(|found| found.line == self.baseline);
        let of_baseline =
            |found: &Observation| Some((found.get(SIZE)?, found.seed, found.get(LOSS)?));
        let baseline: Vec<_> = baseline.filter_map(of_baseline).collect();
        for found in observations
            .iter_mut()
            .filter(|found| found.line != self.baseline)
        {
            let same = baseline
                .iter()
                .find(|(size, seed, _)| found.get(SIZE) == Some(*size) && found.seed == *seed);
            if let (Some((_, _, loss)), Some(own)) = (same, found.get(LOSS)) {
                found.quantities.insert(GAIN.into(), loss - own);
            }
        }
    }
}

impl Size {
    /// Returns a run at this size, with `set` on top. Its line is the name of the run without the size.
    fn of<C: ModelConfig>(
        &self,
        run: &PlannedRun<C>,
        set: &[String],
    ) -> Result<PlannedRun<C>, Error> {
        let place = format!("ladder size `{}`", self.name);
        let own = self.own.get(&run.name).map_or(&[][..], Vec::as_slice);
        let run = run.clone().set(&self.set, &place)?.set(own, &place)?;
        let mut run = run.set(set, OPTION)?;
        let at_size = |name: &str| format!("{name}, {}", self.name);
        if let Some(after) = &mut run.after {
            after.run = at_size(&after.run);
        }
        run.line = std::mem::take(&mut run.name);
        run.name = at_size(&run.line);
        Ok(run)
    }
}

/// Whether a run of a ladder is compared with the baseline, or is the baseline.
pub(crate) fn has_size<C>(run: &PlannedRun<C>) -> bool {
    run.values.contains_key(SIZE)
}

/// Whether other runs start from the weights of `run`. Such a run has fewer training tokens than these, so it has no
/// gain.
fn is_start<C>(run: &PlannedRun<C>, runs: &[PlannedRun<C>]) -> bool {
    let mut starts = runs.iter().filter_map(|run| run.after.as_ref());
    starts.any(|after| after.runs().any(|name| *name == run.name))
}

/// Returns the number of non-embedding parameters of a run's model. It does not depend on the vocabulary.
pub(crate) fn parameters<C: ModelConfig>(run: &PlannedRun<C>) -> Result<f64, Error> {
    let Some(config) = &run.config else {
        let problem = format!("`{}` has no model to train", run.name);
        return Err(ConfigError::new("runs", problem).into());
    };
    config
        .validate(1)
        .map_err(|error| error.within(&run.name))?;
    Ok(config.model.cost(config.vocabulary(1)).params.other as f64)
}

/// Returns an assignment of `earlier`, and the assignment of `later` that sets the same field or, by at least `longer`
/// names, a field around it.
fn lost<'a>(
    earlier: &'a [String],
    later: &'a [String],
    longer: usize,
) -> Option<(&'a String, &'a String)> {
    let pairs = earlier
        .iter()
        .flat_map(|it| later.iter().map(move |other| (it, other)));
    let mut lost = pairs.filter(|(earlier, later)| {
        let by = contained(&names_of(earlier), &names_of(later));
        by.is_some_and(|by| by >= longer)
    });
    lost.next()
}

/// Says in which number the training or the validation of two runs on the same data differs, such as `96 training
/// tokens instead of the 64`. Each run comes with the tokens of the runs before it in its chain.
pub(crate) fn unequal<C: ModelConfig>(
    run: (&PlannedRun<C>, f64),
    other: (&PlannedRun<C>, f64),
) -> Option<String> {
    let tokens = match run.1 + other.1 > 0.0 {
        true => "training tokens, with those of the runs from which they start,",
        false => "training tokens",
    };
    let numbers = |(run, before): (&PlannedRun<C>, f64)| {
        let config = run.config.as_ref()?;
        let train = &config.train;
        let validated = train.batch.saturating_mul(train.validate_batches);
        Some([
            (tokens, before + own_tokens(config)),
            ("tokens in a sequence", config.time() as f64),
            ("sequences in a validation", validated as f64),
        ])
    };
    let mut pairs = numbers(run)?.into_iter().zip(numbers(other)?);
    let ((what, own), (_, other)) = pairs.find(|((_, a), (_, b))| a != b)?;
    Some(format!("{own} {what} instead of the {other}"))
}

fn has_curriculum<C: ModelConfig>(run: &PlannedRun<C>) -> bool {
    let source = run.config.as_ref().map(|config| &config.data.source);
    matches!(source, Some(Source::Copying(copying)) if copying.last_level() > 0)
}

/// Returns the name of a run or a line on `factor` times its tokens.
fn longer_name(name: &str, factor: f64) -> String {
    format!("{name}, {factor} × the tokens")
}

/// Returns the run on `factor` times its tokens, with a warm-up in proportion. `before` is the number of tokens of the
/// runs before it in its chain, which stay as they are.
fn longer<C: ModelConfig>(run: &PlannedRun<C>, factor: f64, before: f64) -> PlannedRun<C> {
    let mut longer = run.clone();
    longer.name = longer_name(&run.name, factor);
    longer.line = longer_name(&run.line, factor);
    longer.config = longer.config.map(|mut config| {
        let own = factor + (factor - 1.0) * before / own_tokens(&config).max(1.0);
        let times = |count: usize| (count as f64 * own).round() as usize;
        config.train.steps = times(config.train.steps);
        config.train.warmup = times(config.train.warmup);
        let longer = |tokens: f64| factor * tokens + (factor - 1.0) * before;
        config.train.tokens = config.train.tokens.map(longer);
        config.with_budget()
    });
    if let Some(rung) = &mut longer.rung {
        rung.tokens = factor;
    }
    longer
}
