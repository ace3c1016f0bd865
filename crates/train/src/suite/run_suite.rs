//! Trains the runs of a suite that are not trained yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use residual_zoo_core::ModelConfig;
use residual_zoo_data::{Corpus, DataConfig, one_line};
use serde::{Deserialize, Serialize};

use super::observe::{cost_quantities, learned, of_summary};
use super::{Observation, Planned};
use crate::dashboard::{Display, print, restore_terminal};
use crate::{
    Error, FirstWeights, Interrupter, RunConfig, RunOptions, Summary, checkpoint, panic_message,
    run_dir,
};

/// How a suite is run.
pub struct SuiteOptions {
    /// Where runs are, for all suites: runs of equal config, data and backend are one.
    pub pool: PathBuf,
    /// What is shown of every run.
    pub display: Display,
    /// Peak of the device in TFLOP/s, to show the share in use.
    pub peak_tflops: Option<f64>,
    /// On what is computed, by name.
    pub backend: String,
    /// Set it to stop after the current step, with a checkpoint.
    pub stop: Interrupter,
}

/// Measures the most memory that was in use.
pub trait Meter {
    /// Begins anew.
    fn start(&self);
    /// The most bytes in use since the start, where that is known.
    fn peak(&self) -> Option<u64>;
}

/// What came of the runs.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was observed, run by run and seed by seed.
    pub observations: Vec<Observation>,
    /// The runs without observations, and why.
    pub missing: Vec<String>,
    /// Whether it was stopped before the end.
    pub stopped: bool,
    /// Seconds of training of all runs, also those that were trained before.
    pub seconds: f64,
}

/// The runs of all suites, by what they are.
#[derive(Clone, Debug)]
pub struct Pool {
    directory: PathBuf,
    backend: String,
}

impl Pool {
    /// The pool in `directory`, of runs on `backend`.
    pub fn new(directory: &Path, backend: &str) -> Self {
        Self {
            directory: directory.into(),
            backend: backend.into(),
        }
    }

    /// The directories of all runs, in order, one seed after the other. `corpora` are the data of
    /// the runs.
    pub fn runs<C: ModelConfig>(
        &self,
        planned: &[Planned<C>],
        seeds: &[u64],
        corpora: &[&Corpus],
    ) -> Vec<PathBuf> {
        let mut directories = Vec::new();
        for seed in seeds {
            let runs = planned.iter().zip(self.runs_of(planned, *seed, corpora));
            let due = runs.filter(|(run, _)| run.is_for(*seed));
            directories.extend(due.filter_map(|(_, directory)| directory));
        }
        directories
    }

    /// Deletes the runs in `directories`, and those of the pool that began with their weights, in turn.
    ///
    /// # Errors
    ///
    /// As [`run_dir::delete`].
    pub fn forget(&self, directories: &[PathBuf]) -> Result<(), Error> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        let runs = entries.filter_map(Result::ok).map(|entry| entry.path());
        let began_with = |run: PathBuf| {
            let first = run_dir::read_history(&run).ok()?.into_iter().next()?;
            // Where that run is now: the pool may have been elsewhere then.
            let before = self.directory.join(first.init_from?.file_name()?);
            Some((run, before))
        };
        let began_with: Vec<(PathBuf, PathBuf)> = runs.filter_map(began_with).collect();
        let mut forgotten = BTreeSet::from_iter(directories.iter().cloned());
        loop {
            let known = forgotten.len();
            for (run, before) in &began_with {
                if forgotten.contains(before) {
                    forgotten.insert(run.clone());
                }
            }
            if forgotten.len() == known {
                return run_dir::delete(&forgotten);
            }
        }
    }

    /// The directory of every run; none without a model.
    fn runs_of<C: ModelConfig>(
        &self,
        planned: &[Planned<C>],
        seed: u64,
        corpora: &[&Corpus],
    ) -> Vec<Option<PathBuf>> {
        let mut directories: Vec<Option<PathBuf>> = Vec::new();
        for (run, corpus) in planned.iter().zip(corpora) {
            let before = run.after.as_ref().and_then(|after| {
                let at = planned.iter().position(|other| other.name == after.run)?;
                Some((directories.get(at)?.as_deref()?, after.by))
            });
            let directory = run.config.clone().map(|mut config| {
                config.train.seed = seed;
                self.run(&config, corpus, before)
            });
            directories.push(directory);
        }
        directories
    }

    /// The directory of a run: its name is a hash of all that decides what comes of it, but for
    /// the version of this program. `before` is the directory whose weights it starts from.
    fn run<C: ModelConfig>(
        &self,
        config: &RunConfig<C>,
        corpus: &Corpus,
        before: Option<(&Path, FirstWeights)>,
    ) -> PathBuf {
        let mut config = config.clone();
        config.data = DataConfig::default();
        let before = before.map(|(path, by)| format!("{:?} {by:?}", path.file_name()));
        let parts = [
            config.to_ron(),
            corpus.identity.clone(),
            self.backend.clone(),
            before.unwrap_or_default(),
        ];
        let mut hasher = blake3::Hasher::new_derive_key("residual-zoo-train pool v1");
        for part in &parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let name: String = config.model.name().chars().map(plain).collect();
        let hash = hasher.finalize().to_hex();
        self.directory.join(format!("{name}-{}", &hash[..12]))
    }
}

/// A character that every file system takes.
fn plain(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '-' }
}

/// What is measured beside a run, in its directory.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    /// The most bytes in use while it trained.
    peak_memory: Option<u64>,
}

const MEASURED: &str = "measured.json";

/// Trains every run for every seed, all runs of a seed before the next seed, and observes them.
/// A run that is in the pool already is not trained again, one that was stopped goes on.
///
/// `corpora` are the data of the runs, in their order. What fails is noted as missing; the others
/// are trained all the same.
pub fn run_suite<C, T>(
    planned: &[Planned<C>],
    seeds: &[u64],
    corpora: &[&Corpus],
    options: &SuiteOptions,
    meter: &dyn Meter,
    mut train: T,
) -> Outcome
where
    C: ModelConfig,
    T: FnMut(RunConfig<C>, &Corpus, &RunOptions) -> Result<Summary, Error>,
{
    let pool = Pool::new(&options.pool, &options.backend);
    let mut outcome = Outcome::default();
    let due = |seed: &u64| planned.iter().filter(|run| run.is_for(*seed)).count();
    let (mut number, count) = (0, seeds.iter().map(due).sum::<usize>());
    for seed in seeds {
        let mut trained: BTreeMap<&str, &Path> = BTreeMap::new();
        let directories = pool.runs_of(planned, *seed, corpora);
        for ((run, corpus), directory) in planned.iter().zip(corpora).zip(&directories) {
            if !run.is_for(*seed) {
                continue;
            }
            number += 1;
            let name = format!("{}, seed {seed}", run.name);
            let mut miss = |why: String| outcome.missing.push(format!("{name}: {why}"));
            if outcome.stopped {
                miss("not trained yet".into());
                continue;
            }
            let before = match &run.after {
                None => None,
                Some(after) => match trained.get(after.run.as_str()) {
                    Some(directory) => Some((*directory, after.by)),
                    None => {
                        miss(format!("{} is missing", after.run));
                        continue;
                    }
                },
            };
            let (Some(mut config), Some(directory)) = (run.config.clone(), directory) else {
                miss("has no model".into());
                continue;
            };
            config.train.seed = *seed;
            let run_options = RunOptions {
                directory: directory.clone(),
                display: options.display,
                peak_tflops: options.peak_tflops,
                init_from: before.map(|(path, _)| path.into()),
                first_weights: before.map_or(FirstWeights::Grow, |(_, by)| by),
                allow_config_change: false,
                stop: options.stop.clone(),
            };
            let known = directory.join(MEASURED).exists();
            if !known {
                print(&format!("[{number}/{count}] {name} …"));
            }
            meter.start();
            let train = || train(config, corpus, &run_options);
            // Backends panic where memory is short; the other runs may fit.
            let summary = match panic::catch_unwind(AssertUnwindSafe(train)) {
                Ok(trained) => trained.map_err(|error| one_line(&error).to_string()),
                Err(panic) => {
                    restore_terminal();
                    Err(format!("panicked: {}", panic_message(&*panic)))
                }
            };
            let summary = match summary {
                Ok(summary) => summary,
                Err(why) => {
                    print(&format!("[{number}/{count}] {name} failed: {why}"));
                    miss(why);
                    continue;
                }
            };
            if summary.stopped {
                miss("stopped; the same command goes on with it".into());
                outcome.stopped = true;
                continue;
            }
            let found = measured(directory, meter)
                .and_then(|found| Ok((found, checkpoint::read_scalars(&summary.checkpoint)?)));
            let (measured, scalars) = match found {
                Ok(found) => found,
                Err(error) => {
                    miss(one_line(&error).to_string());
                    continue;
                }
            };
            let parent = run.after.as_ref().and_then(|after| {
                let mut all = outcome.observations.iter();
                all.find(|found| found.run == after.run && found.seed == Some(*seed))
            });
            outcome.seconds += summary.rows.last().map_or(0.0, |row| row.seconds);
            let (mut quantities, rows) = of_summary(&summary, parent);
            let peak = measured.peak_memory.map(|bytes| bytes as f64);
            quantities.extend(peak.map(|bytes| ("peak_memory".into(), bytes)));
            quantities.extend(learned(&scalars));
            quantities.extend(run.values.clone());
            let how = if known { "trained before" } else { "trained" };
            print(&format!(
                "[{number}/{count}] {name}: validation loss {:.4}, {how} in {}",
                summary.valid_loss,
                crate::dashboard::duration(std::time::Duration::from_secs_f64(
                    summary.rows.last().map_or(0.0, |row| row.seconds)
                ))
            ));
            trained.insert(&run.name, directory);
            outcome.observations.push(Observation {
                run: run.name.clone(),
                line: run.line.clone(),
                seed: Some(*seed),
                quantities,
                rows,
            });
        }
    }
    outcome
}

/// What was measured when the run was trained; it is kept with the run.
fn measured(directory: &Path, meter: &dyn Meter) -> Result<Measured, Error> {
    let path = directory.join(MEASURED);
    let before = fs::read_to_string(&path).ok();
    if let Some(measured) = before.and_then(|text| serde_json::from_str(&text).ok()) {
        return Ok(measured);
    }
    let measured = Measured {
        peak_memory: meter.peak(),
    };
    let text = serde_json::to_string(&measured).unwrap_or_default();
    fs::write(&path, text).map_err(Error::io("write", &path))?;
    Ok(measured)
}

/// Observes what is not trained: what models cost, and the values of the suite.
pub fn count<C: ModelConfig>(planned: &[Planned<C>], vocab_size: usize) -> Vec<Observation> {
    let observe = |run: &Planned<C>| {
        let cost = run
            .config
            .as_ref()
            .map(|config| config.model.cost(vocab_size));
        let mut quantities = cost.map(cost_quantities).unwrap_or_default();
        quantities.extend(run.values.clone());
        Observation {
            run: run.name.clone(),
            line: run.line.clone(),
            seed: None,
            quantities,
            rows: Vec::new(),
        }
    };
    planned.iter().map(observe).collect()
}
