//! Trains the untrained runs of an experiment, and observes all runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use residual_zoo_backend::{PeakMemory, panic_message};
use residual_zoo_core::ModelConfig;
use residual_zoo_data::{Corpus, one_line};
use residual_zoo_report::{duration, wrapped};
use residual_zoo_runs::run_dir::MEASURED;
use residual_zoo_runs::{
    Error as RunError, OtherPlace, Remedy, checkpoint, disk, run_dir, vocabulary,
};
use residual_zoo_system::Blame as _;
use residual_zoo_system::console::print;
use residual_zoo_system::panics::caught;
use residual_zoo_train::dashboard::{Screen, Title};
use residual_zoo_train::{RunOptions, Summary};
use serde::{Deserialize, Serialize};

use residual_zoo_drive::{
    Error as DriveError, Use, available_memory, check_memory, check_size, merge, train,
    training_flops,
};

use crate::finished::{FinishedRun, Goal, Key};
use crate::observe::{add_bits_per_byte, learned, of_summary};
use crate::pool::Place;
use crate::quantity::TIMES;
use crate::sweep::until;
use crate::tasks::{Unevaluated, metrics};
use crate::{After, Error, Missing, Observation, Options, Outcome, PlannedRun, Pool};

/// Trains every run for every seed up to `goal`, and observes it. All runs of one seed come before the next seed. A run
/// that is already in the pool or in the results file is not trained again. A stopped run continues. Runs that another
/// process trains come last.
///
/// `corpora` holds the data of each run. A run that fails is listed as missing; the other runs are still trained.
pub(crate) fn train_runs<C: ModelConfig>(
    planned: &[PlannedRun<C>],
    seeds: &[u64],
    corpora: &[&Corpus],
    goal: Goal,
    options: &Options,
) -> Outcome {
    let mut due = turns(planned, seeds, corpora, goal, options);
    let (mut outcome, mut found) = (Outcome::default(), BTreeMap::new());
    let keys = due.iter().filter_map(Turn::key);
    keys.for_each(|key| outcome.finished.plan(key));
    let _screen = Screen::keep();
    while !due.is_empty() {
        let mut busy: Vec<Turn<C>> = Vec::new();
        for turn in due {
            match turn.take(&found, &busy, options, &mut outcome) {
                Ok(observation) => drop(found.insert(turn.number.0, observation)),
                Err(Pending::Busy) => busy.push(turn),
                Err(Pending::Missing { why, diverged }) => {
                    if let Some(key) = turn.key().filter(|_| diverged) {
                        outcome.finished.add_diverged(key, turn.id(), &why);
                    }
                    outcome.missing.push(Missing {
                        run: turn.run.name.clone(),
                        seed: Some(turn.seed),
                        why,
                        diverged,
                    });
                }
            }
        }
        wait(&busy, options);
        due = busy;
    }
    outcome.observations = found.into_values().collect();
    outcome
}

/// The time in which a process that has just unlocked a run writes the run's measurements.
const FINISHING: Duration = Duration::from_millis(300);

/// Prints a line about runs. In a terminal, the line is wrapped between words.
fn say(line: &str) {
    print(&wrapped(line, "  "));
}

/// Waits until one of the runs is free again, or the user asks to stop.
fn wait<C: ModelConfig>(busy: &[Turn<C>], options: &Options) {
    let Some(first) = busy.first() else { return };
    if !options.brief {
        let (name, others) = (first.name(), busy.len() - 1);
        let others = if others > 0 {
            format!(" and {others} more")
        } else {
            String::new()
        };
        say(&format!(
            "waiting for another process that trains {name}{others}"
        ));
    }
    let is_busy = |turn: &Turn<C>| {
        let place = turn.place.as_ref();
        place.is_some_and(|place| run_dir::is_in_use(&place.directory))
    };
    while busy.iter().all(is_busy) && !options.stop.should_stop() {
        thread::sleep(Duration::from_millis(200));
    }
    // The process that trained the run may be about to write that the run diverged.
    thread::sleep(FINISHING);
}

/// The reason why a run is not observed yet.
enum Pending {
    /// Another process is training or evaluating the run, or the run from whose weights it starts.
    Busy,
    /// The run diverged, failed, was stopped, or lacks something that it needs.
    Missing { why: String, diverged: bool },
}

impl From<String> for Pending {
    fn from(why: String) -> Self {
        let diverged = false;
        Self::Missing { why, diverged }
    }
}

impl From<&str> for Pending {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

/// Returns all runs for all seeds, in the order of [`train_runs`].
fn turns<'a, C: ModelConfig>(
    planned: &'a [PlannedRun<C>],
    seeds: &[u64],
    corpora: &[&'a Corpus],
    goal: Goal<'a>,
    options: &'a Options,
) -> Vec<Turn<'a, C>> {
    let pool = Pool::open(options);
    let mut turns = Vec::new();
    for seed in seeds {
        let places = pool.places(planned, *seed, corpora);
        let runs = planned.iter().zip(corpora).zip(places);
        for ((run, corpus), place) in runs.filter(|((run, _), _)| run.is_for(*seed)) {
            turns.push(Turn {
                run,
                seed: *seed,
                corpus,
                place,
                goal,
                finished: None,
                number: (turns.len() + 1, 0),
                to_come: 0.0,
            });
        }
    }
    // Goes backwards, because `to_come` sums the work of later runs, and a run that will be trained needs the weights
    // of earlier runs. Turns with the same place share one run.
    let (count, mut after, mut places) = (turns.len(), options.to_come, BTreeSet::new());
    let mut needed = BTreeSet::new();
    for turn in turns.iter_mut().rev() {
        turn.number.1 = count;
        let work = turn.work();
        turn.to_come = if work > 0.0 { after / work } else { 0.0 };
        let Some(place) = turn.place.as_ref().filter(|place| !turn.is_in_pool(place)) else {
            continue;
        };
        let file = options.finished.as_deref();
        turn.finished = file
            .filter(|_| !needed.contains(&place.directory))
            .and_then(|file| file.find(&turn.key()?, goal));
        if turn.finished.is_none() {
            needed.extend(place.parents().into_iter().cloned());
            if places.insert(place.directory.clone()) {
                after += work;
            }
        }
    }
    turns
}

/// One run for one seed.
struct Turn<'a, C> {
    run: &'a PlannedRun<C>,
    seed: u64,
    corpus: &'a Corpus,
    /// The place in the pool; `None` without a model.
    place: Option<Place>,
    /// The results that the run must provide.
    goal: Goal<'a>,
    /// The path of the results file, and the run's results in it. `None` without such results, or if the run is in the
    /// pool, or if its weights are needed.
    finished: Option<(&'a Path, &'a FinishedRun)>,
    /// The number of the turn, counted from 1, and the number of all turns.
    number: (usize, usize),
    /// The work of the later runs that are not trained yet, as a multiple of this run's work.
    to_come: f64,
}

impl<C: ModelConfig> Turn<'_, C> {
    /// Returns the name and the seed.
    fn id(&self) -> (&str, u64) {
        (&self.run.name, self.seed)
    }

    /// Returns the name and seed, for the user.
    fn name(&self) -> String {
        format!("{}, seed {}", self.run.name, self.seed)
    }

    /// Returns the training FLOPs of the run, including finished steps.
    fn work(&self) -> f64 {
        let config = self.run.config.as_ref();
        config.map_or(0.0, |config| training_flops(config, self.corpus))
    }

    /// Returns the step at which training stops; `None` for the last step.
    fn until(&self) -> Option<usize> {
        let train = &self.run.config.as_ref()?.train;
        Some(until(train, self.goal.share())).filter(|until| *until < train.steps)
    }

    /// Returns the key of the run in results files; `None` without a model.
    fn key(&self) -> Option<Key> {
        Some((self.place.as_ref()?.name(), self.until()))
    }

    /// Whether the pool has the run, trained as far as `goal` asks.
    fn is_in_pool(&self, place: &Place) -> bool {
        let reaches = |until: usize| {
            let rows = run_dir::read_metrics(&place.directory).unwrap_or_default();
            rows.last().is_some_and(|row| row.step >= until)
        };
        is_trained(place) || self.until().is_some_and(reaches)
    }

    /// Trains the run unless it is already trained, and observes it. `found` holds the runs observed so far, and `busy`
    /// the runs that other processes train.
    fn take(
        &self,
        found: &BTreeMap<usize, Observation>,
        busy: &[Self],
        options: &Options,
        outcome: &mut Outcome,
    ) -> Result<Observation, Pending> {
        // Runs that were trained before the stop are still observed.
        let is_stopping = outcome.stopped || options.stop.should_stop();
        let is_in_pool = |place: &Place| self.is_in_pool(place);
        let is_done = self.finished.is_some() || self.place.as_ref().is_some_and(is_in_pool);
        if is_stopping && !is_done {
            outcome.stopped = true;
            return Err("not trained yet".into());
        }
        let parent = self.parent(found, busy)?;
        let place = self.place.as_ref().ok_or("has no model")?;
        if let Some(known) = self.finished.filter(|_| !self.is_in_pool(place)) {
            return self.know(known, parent, options, outcome);
        }
        let known = is_trained(place);
        if let Some(diverged) = measured(&place.directory).and_then(|found| found.diverged) {
            let why = diverged;
            return Err(Pending::Missing {
                why,
                diverged: true,
            });
        }
        let label = format!("[{}/{}] {}", self.number.0, self.number.1, self.name());
        let is_shown = !options.display.is_live() && (!options.brief || options.shares_cores);
        let line = (is_shown && !known).then(|| format!("{label} …"));
        let memory = PeakMemory::start(options.backend, options.gpu);
        let summary = self.train(place, line, options).inspect_err(|why| {
            if let Pending::Missing { why, .. } = why {
                say(&format!("{label} failed: {why}"));
            }
        })?;
        let is_partial = self.until().is_some();
        let is_whole = |summary: &Summary| {
            let last = summary.rows.last().map_or(0, |row| row.step);
            !summary.stopped || self.until().is_some_and(|until| last >= until)
        };
        let Some(summary) = summary.filter(is_whole) else {
            outcome.stopped = true;
            return Err("stopped; to continue: repeat the command".into());
        };
        if !summary.valid_loss.is_finite() {
            let step = summary.rows.last().map_or(0, |row| row.step);
            let loss = summary.valid_loss;
            let why = format!("diverged by step {step} (validation loss {loss})");
            say(&format!("{label} failed: {why}"));
            return Err(Self::record_divergence(place, why));
        }
        let memory = (!is_partial).then_some(memory);
        let observed = self.observe(&summary, &place.directory, memory, parent);
        let mut observed = observed.map_err(|error| of_pool(DriveError::from(error)))?;
        let tasks = self.goal.tasks();
        if !is_partial && !tasks.is_empty() {
            let metrics = match metrics::<C>(&place.directory, tasks, options) {
                Ok(metrics) => metrics,
                Err(Unevaluated::Busy) => return Err(Pending::Busy),
                Err(Unevaluated::Stopped) => {
                    outcome.stopped = true;
                    return Err("not evaluated yet; to continue: repeat the command".into());
                }
                Err(Unevaluated::Failed(error)) => return Err(of_pool(error).into()),
            };
            observed.quantities.extend(metrics);
        }
        let seconds = summary.rows.last().map_or(0.0, |row| row.seconds);
        let time = duration(Duration::from_secs_f64(seconds));
        if summary.trained || !options.brief {
            say(&format!(
                "{label}: validation loss {:.4}, {}",
                summary.valid_loss,
                match summary.trained {
                    true => format!("trained in {time}"),
                    false => format!("already trained ({time})"),
                }
            ));
        }
        outcome.seconds.insert(place.directory.clone(), seconds);
        let (quantities, given) = (&observed.quantities, &self.run.values);
        let finished = FinishedRun::of(self.id(), self.goal, &summary, quantities, given);
        outcome.finished.add((place.name(), self.until()), finished);
        Ok(observed)
    }

    /// Observes the run from its results in the results file at `path`.
    fn know(
        &self,
        (path, finished): (&Path, &FinishedRun),
        parent: Option<&Observation>,
        options: &Options,
        outcome: &mut Outcome,
    ) -> Result<Observation, Pending> {
        let place = self.place.as_ref().ok_or("has no model")?;
        let config = self.run.config.as_ref().ok_or("has no model")?;
        // Another experiment may have another name for the run.
        let mut named = finished.clone();
        named.run.clone_from(&self.run.name);
        outcome.finished.add((place.name(), self.until()), named);
        if let Some(why) = finished.diverged.clone() {
            return Err(Pending::Missing {
                why,
                diverged: true,
            });
        }
        let steps = self.until().unwrap_or(config.train.steps);
        let cost = config.model.cost(vocabulary(self.corpus));
        let flops = cost.training_flops() as f64;
        if let Some(problem) = finished.misfit(config, flops, self.id().1, steps) {
            let path = path.display();
            let why = format!("{path} {problem}; restore the file, or choose another directory");
            return Err(why.into());
        }
        let summary = finished.summary(cost);
        let (mut quantities, rows) = of_summary(&summary, parent);
        add_bits_per_byte(&mut quantities, self.corpus.bytes_per_token);
        finished.put_measured(self.goal.tasks(), &mut quantities);
        quantities.extend(self.run.values.clone());
        if !options.brief {
            say(&format!(
                "[{}/{}] {}: validation loss {:.4}, already trained ({})",
                self.number.0,
                self.number.1,
                self.name(),
                summary.valid_loss,
                path.display()
            ));
        }
        let seconds = summary.rows.last().map_or(0.0, |row| row.seconds);
        outcome.seconds.insert(place.directory.clone(), seconds);
        Ok(Observation {
            run: self.run.name.clone(),
            line: self.run.line.clone(),
            seed: Some(self.seed),
            quantities,
            directory: None,
            published: self.run.published.clone(),
            rows,
        })
    }

    /// Returns the observation of the run from whose weights this one starts, if there is one.
    fn parent<'a>(
        &self,
        found: &'a BTreeMap<usize, Observation>,
        busy: &[Self],
    ) -> Result<Option<&'a Observation>, Pending> {
        let mut parents = Vec::new();
        for run in self.run.after.iter().flat_map(After::runs) {
            let is_parent =
                |found: &&Observation| found.run == *run && found.seed == Some(self.seed);
            let is_busy = |other: &Self| other.run.name == *run && other.seed == self.seed;
            match found.values().find(is_parent) {
                Some(parent) => parents.push(parent),
                None if busy.iter().any(is_busy) => return Err(Pending::Busy),
                None => return Err(format!("{run} is missing").into()),
            }
        }
        Ok(parents.first().copied())
    }

    /// Trains the run, and prints `line` when training starts. Returns `None` if the user stopped the run before its
    /// first step.
    fn train(
        &self,
        place: &Place,
        line: Option<String>,
        options: &Options,
    ) -> Result<Option<Summary>, Pending> {
        let mut config = self.run.config.clone().ok_or("has no model")?;
        config.train.seed = self.seed;
        let title = Title {
            run: Some(self.run.name.clone()),
            number: Some(self.number),
            to_come: self.to_come,
            ..Title::default()
        };
        // The weights of earlier runs may be missing if their results are known. A trained run does not need them.
        let is_known = self.is_in_pool(place);
        let is_there = |run: &PathBuf| !run_dir::is_free(run).unwrap_or(false);
        let are_there = place.parents().into_iter().all(is_there);
        let before = place.before.as_ref();
        let before = before.filter(|(first, _)| !is_known || are_there || is_there(first));
        let run_options = RunOptions {
            line,
            until: self.until(),
            ..options.of_run(place.directory.clone(), title, before.cloned())
        };
        let (kind, gpu) = (options.backend, options.gpu);
        let train = || -> Result<Summary, DriveError> {
            // A symbolic link could point to a run outside the pool.
            disk::refuse_linked_directory(&place.directory)?;
            config.validate(vocabulary(self.corpus))?;
            let (tokens, device) = (vocabulary(self.corpus), (kind, gpu));
            // A run of the pool has passed these checks. After a stop, its results are still read, but a check would fail.
            if !is_known {
                check_size(&config, tokens, device, Use::Train)?;
                check_memory(&config, tokens, device, available_memory())?;
            }
            if let (Some([a, b]), Some((first, _))) = (&place.merged, before)
                && run_dir::is_free(first)?
            {
                match merge::<C>((a, b), first, 1.0, (kind, gpu)) {
                    // Another process has just made the merged run.
                    Err(DriveError::Run(error))
                        if matches!(error.cause(), RunError::RunExists(_))
                            && !run_dir::is_free(first)? => {}
                    made => drop(made?),
                }
            }
            train(kind, gpu, config, self.corpus, &run_options)
        };
        // Backends panic if memory runs out; the other runs may still fit.
        match caught(train) {
            Ok(Ok(summary)) => Ok(Some(match self.until() {
                Some(until) => summary.up_to(until),
                None => summary,
            })),
            Ok(Err(error)) if error.is_stop() => Ok(None),
            Ok(Err(DriveError::Run(RunError::Locked { .. }))) => Err(Pending::Busy),
            Ok(Err(DriveError::Run(error @ RunError::NotFinite { .. }))) => {
                Err(Self::record_divergence(place, describe_divergence(&error)))
            }
            Ok(Err(error)) => Err(of_pool(error).into()),
            Err(panic) => Err(format!("panicked: {}", panic_message(&*panic)).into()),
        }
    }

    /// Records in the run's directory that the run diverged, because a repetition would diverge again.
    fn record_divergence(place: &Place, why: String) -> Pending {
        let keep = Measured {
            diverged: Some(why.clone()),
            ..Measured::default()
        };
        write_measured(&place.directory, &keep).ok();
        Pending::Missing {
            why,
            diverged: true,
        }
    }

    fn observe(
        &self,
        summary: &Summary,
        directory: &Path,
        memory: Option<PeakMemory>,
        parent: Option<&Observation>,
    ) -> Result<Observation, RunError> {
        let measured = match memory {
            Some(memory) => measure(directory, memory, summary.trained)?,
            None => Measured::default(),
        };
        let scalars = checkpoint::read_scalars(&summary.checkpoint)?;
        let (mut quantities, rows) = of_summary(summary, parent);
        add_bits_per_byte(&mut quantities, self.corpus.bytes_per_token);
        let peak = measured.peak_memory;
        quantities.extend(peak.map(|bytes| ("peak_memory".into(), bytes as f64)));
        if measured.shared {
            for time in TIMES {
                quantities.remove(time);
            }
        }
        quantities.extend(learned(&scalars));
        quantities.extend(self.run.values.clone());
        Ok(Observation {
            run: self.run.name.clone(),
            line: self.run.line.clone(),
            seed: Some(self.seed),
            quantities,
            directory: Some(directory.into()),
            published: self.run.published.clone(),
            rows,
        })
    }
}

/// The remedy for a run of the pool that cannot be used.
const OF_POOL: &str = "delete that run to train it again, train all again with `--force`, or choose another place with \
                       `--runs DIR`";

/// Returns the text of an error, with the remedies that experiments and sweeps offer.
fn of_pool(error: impl Into<Error>) -> String {
    let mut error = error.into();
    let (remedy, place) = error.of_run().map(RunError::remedies).unwrap_or_default();
    if let Some(remedy) = remedy {
        *remedy = Remedy::OfCommand(OF_POOL);
    }
    if let Some(place) = place {
        *place = OtherPlace::By("`--runs DIR`");
    }
    one_line(error)
}

/// Measurements of a run, kept in its directory.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Measured {
    /// Peak memory of the training, in bytes.
    peak_memory: Option<u64>,
    /// Whether other runs were trained on the same cores, so that times are not meaningful.
    shared: bool,
    /// A description of the divergence, if the run diverged.
    diverged: Option<String>,
}

/// Whether the run in this place has been trained and measured, or has diverged.
fn is_trained(place: &Place) -> bool {
    place.directory.join(MEASURED).exists()
}

/// Reads the measurements of the run in a directory.
fn measured(directory: &Path) -> Option<Measured> {
    let path = directory.join(MEASURED);
    disk::refuse_link(&path).ok()?;
    // Special files are never opened.
    let text = residual_zoo_data::read_utf8(&path).ok()?;
    serde_json::from_str(&text).ok()
}

fn write_measured(directory: &Path, measured: &Measured) -> Result<(), RunError> {
    let path = directory.join(MEASURED);
    let text = serde_json::to_string(measured).unwrap_or_default();
    disk::replace_shared(&path, text.as_bytes())
}

/// Returns the stored measurements of a run. If there are none, stores and returns new measurements, which have the
/// peak memory only if the run was trained in this process (`is_new`).
fn measure(directory: &Path, memory: PeakMemory, is_new: bool) -> Result<Measured, RunError> {
    let mut kept = measured(directory);
    if !is_new && kept.is_none() {
        // The process that trained the run may be about to write the file.
        thread::sleep(FINISHING);
        kept = measured(directory);
    }
    if let Some(kept) = kept {
        return Ok(kept);
    }
    let new = Measured {
        peak_memory: memory.bytes().filter(|_| is_new),
        shared: run_dir::read_history(directory)?
            .iter()
            .any(|start| start.shared),
        diverged: None,
    };
    write_measured(directory, &new)?;
    Ok(new)
}

/// Describes a divergence, for example as `diverged at step 19 (loss NaN)`.
fn describe_divergence(error: &RunError) -> String {
    match error {
        RunError::NotFinite { step, loss, .. } if !loss.is_finite() => {
            format!("diverged at step {step} (loss {loss})")
        }
        RunError::NotFinite {
            step, grad_norm, ..
        } => {
            format!("diverged at step {step} (gradient norm {grad_norm})")
        }
        error => one_line(error).to_string(),
    }
}
