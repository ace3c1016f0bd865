//! Trains the runs of an experiment that are not trained yet, and observes them.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::Duration;

use residual_zoo_backend::{BackendKind, PeakMemory, panic_message};
use residual_zoo_data::{Corpus, one_line};
use residual_zoo_train::dashboard::{Display, duration, print, restore_terminal};
use residual_zoo_train::{
    Error as TrainError, FirstWeights, Interrupter, RunOptions, Summary, checkpoint,
};
use serde::{Deserialize, Serialize};

use crate::observe::{learned, of_summary};
use crate::{Error, Observation, Outcome, PlannedRun, Pool, Trainable};

/// How an experiment is run.
#[derive(Clone)]
pub struct ExperimentOptions {
    /// The directory of the [`Pool`].
    pub pool: PathBuf,
    /// The backend that trains.
    pub backend: BackendKind,
    /// The index of the GPU; `None` for the backend's choice.
    pub gpu: Option<usize>,
    /// Whether runs are trained again that are in the pool.
    pub force: bool,
    /// What is shown of every run.
    pub display: Display,
    /// Peak of the device in TFLOP/s, to show the share in use.
    pub peak_tflops: Option<f64>,
    /// Set it to stop after the current step, with a checkpoint.
    pub stop: Interrupter,
}

impl ExperimentOptions {
    /// Trains on `backend`, keeps runs in the directory `pool`, and shows nothing of a run.
    pub fn new(pool: &Path, backend: BackendKind) -> Self {
        Self {
            pool: pool.into(),
            backend,
            gpu: None,
            force: false,
            display: Display::Quiet,
            peak_tflops: None,
            stop: Interrupter::new(),
        }
    }

    /// The pool of these options.
    pub fn open_pool(&self) -> Pool {
        // LibTorch's CPU and GPUs give different results.
        let backend = match (self.backend, self.gpu) {
            (BackendKind::LibTorch, Some(_)) => format!("{}-gpu", self.backend),
            _ => self.backend.to_string(),
        };
        Pool::new(&self.pool, &backend)
    }
}

/// Trains every run for every seed, all runs of a seed before the next seed, and observes them.
/// A run that is already in the pool is not trained again; one that was stopped goes on.
///
/// `corpora` are the data of the runs, in their order. A run that fails is noted as missing; the
/// others are still trained.
pub(crate) fn train_runs<C: Trainable>(
    planned: &[PlannedRun<C>],
    seeds: &[u64],
    corpora: &[&Corpus],
    options: &ExperimentOptions,
) -> Outcome {
    let pool = options.open_pool();
    let mut outcome = Outcome::default();
    let due = |seed: &u64| planned.iter().filter(|run| run.is_for(*seed)).count();
    let (mut number, count) = (0, seeds.iter().map(due).sum::<usize>());
    for seed in seeds {
        let directories = pool.runs_of(planned, *seed, corpora);
        let runs = planned.iter().zip(corpora).zip(&directories);
        for ((run, corpus), directory) in runs.filter(|((run, _), _)| run.is_for(*seed)) {
            number += 1;
            let name = format!("{}, seed {seed}", run.name);
            let turn = Turn {
                run,
                seed: *seed,
                corpus,
                directory: directory.as_deref(),
                before: before(run, planned, &directories),
                label: format!("[{number}/{count}] {name}"),
            };
            if let Err(why) = turn.take(options, &mut outcome) {
                outcome.missing.push(format!("{name}: {why}"));
            }
        }
    }
    outcome
}

/// The directory of the run whose weights `run` starts from, and how.
fn before<'a, C>(
    run: &PlannedRun<C>,
    planned: &[PlannedRun<C>],
    directories: &'a [Option<PathBuf>],
) -> Option<(&'a Path, FirstWeights)> {
    let after = run.after.as_ref()?;
    let at = planned.iter().position(|other| other.name == after.run)?;
    Some((directories.get(at)?.as_deref()?, after.by))
}

/// One run for one seed.
struct Turn<'a, C> {
    run: &'a PlannedRun<C>,
    seed: u64,
    corpus: &'a Corpus,
    /// Its directory in the pool; `None` without a model.
    directory: Option<&'a Path>,
    /// The directory whose weights it starts from.
    before: Option<(&'a Path, FirstWeights)>,
    /// Its number and name, for the user.
    label: String,
}

impl<C: Trainable> Turn<'_, C> {
    /// Trains the run unless it is trained, and adds what was observed to `outcome`; otherwise
    /// tells why not.
    fn take(&self, options: &ExperimentOptions, outcome: &mut Outcome) -> Result<(), String> {
        if outcome.stopped {
            return Err("not trained yet".into());
        }
        let parent = self.parent(outcome)?;
        let directory = self.directory.ok_or("has no model")?;
        let known = directory.join(MEASURED).exists();
        if !known {
            print(&format!("{} …", self.label));
        }
        let memory = PeakMemory::start(options.backend, options.gpu);
        let summary = self.train(directory, options).inspect_err(|why| {
            print(&format!("{} failed: {why}", self.label));
        })?;
        if summary.stopped {
            outcome.stopped = true;
            return Err("stopped; the same command goes on with it".into());
        }
        let observed = self.observe(&summary, directory, memory, parent.as_ref());
        let observed = observed.map_err(|error| one_line(&error).to_string())?;
        let seconds = summary.rows.last().map_or(0.0, |row| row.seconds);
        print(&format!(
            "{}: validation loss {:.4}, {} in {}",
            self.label,
            summary.valid_loss,
            if known { "trained before" } else { "trained" },
            duration(Duration::from_secs_f64(seconds))
        ));
        outcome.seconds += seconds;
        outcome.observations.push(observed);
        Ok(())
    }

    /// What was observed of the run whose weights this one starts from, if there is one.
    fn parent(&self, outcome: &Outcome) -> Result<Option<Observation>, String> {
        let Some(after) = &self.run.after else {
            return Ok(None);
        };
        let is_parent =
            |found: &&Observation| found.run == after.run && found.seed == Some(self.seed);
        match outcome.observations.iter().find(is_parent) {
            Some(parent) => Ok(Some(parent.clone())),
            None => Err(format!("{} is missing", after.run)),
        }
    }

    fn train(&self, directory: &Path, options: &ExperimentOptions) -> Result<Summary, String> {
        let mut config = self.run.config.clone().ok_or("has no model")?;
        config.train.seed = self.seed;
        let run_options = RunOptions {
            directory: directory.into(),
            display: options.display,
            peak_tflops: options.peak_tflops,
            init_from: self.before.map(|(path, _)| path.into()),
            first_weights: self.before.map_or(FirstWeights::Grow, |(_, by)| by),
            allow_config_change: false,
            stop: options.stop.clone(),
        };
        let (kind, gpu) = (options.backend, options.gpu);
        let train = || C::train(kind, gpu, config, self.corpus, &run_options);
        // Backends panic where memory is short; the other runs may fit.
        match panic::catch_unwind(AssertUnwindSafe(train)) {
            Ok(trained) => trained.map_err(|error: Error| one_line(&error).to_string()),
            Err(panic) => {
                restore_terminal();
                Err(format!("panicked: {}", panic_message(&*panic)))
            }
        }
    }

    fn observe(
        &self,
        summary: &Summary,
        directory: &Path,
        memory: PeakMemory,
        parent: Option<&Observation>,
    ) -> Result<Observation, TrainError> {
        let measured = measured(directory, memory)?;
        let scalars = checkpoint::read_scalars(&summary.checkpoint)?;
        let (mut quantities, rows) = of_summary(summary, parent);
        let peak = measured.peak_memory.map(|bytes| bytes as f64);
        quantities.extend(peak.map(|bytes| ("peak_memory".into(), bytes)));
        quantities.extend(learned(&scalars));
        quantities.extend(self.run.values.clone());
        Ok(Observation {
            run: self.run.name.clone(),
            line: self.run.line.clone(),
            seed: Some(self.seed),
            quantities,
            rows,
        })
    }
}

/// Measurements of a run that are kept in its directory.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    /// The most bytes in use while it trained.
    peak_memory: Option<u64>,
}

const MEASURED: &str = "measured.json";

/// The measurements of a run: those that were kept, else the current ones, which it keeps.
fn measured(directory: &Path, memory: PeakMemory) -> Result<Measured, TrainError> {
    let path = directory.join(MEASURED);
    let before = fs::read_to_string(&path).ok();
    if let Some(measured) = before.and_then(|text| serde_json::from_str(&text).ok()) {
        return Ok(measured);
    }
    let measured = Measured {
        peak_memory: memory.bytes(),
    };
    let text = serde_json::to_string(&measured).unwrap_or_default();
    fs::write(&path, text).map_err(TrainError::io("write", &path))?;
    Ok(measured)
}
