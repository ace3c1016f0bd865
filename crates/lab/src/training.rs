//! Trains the runs of an experiment that are not trained yet, and observes them.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::Duration;

use residual_zoo_backend::{PeakMemory, panic_message};
use residual_zoo_core::ModelConfig;
use residual_zoo_data::{Corpus, one_line};
use residual_zoo_train::dashboard::{Display, Screen, Title, duration, print};
use residual_zoo_train::{Error as TrainError, Summary, checkpoint};
use serde::{Deserialize, Serialize};

use crate::observe::{learned, of_summary};
use crate::pool::Place;
use crate::single::work;
use crate::{After, Error, Observation, Options, Outcome, PlannedRun, Pool, train};

/// Trains every run for every seed, all runs of a seed before the next seed, and observes them.
/// A run that is already in the pool is not trained again; one that was stopped continues.
///
/// `corpora` are the data of the runs, in their order. A run that fails is noted as missing; the
/// others are still trained.
pub(crate) fn train_runs<C: ModelConfig>(
    planned: &[PlannedRun<C>],
    seeds: &[u64],
    corpora: &[&Corpus],
    options: &Options,
) -> Outcome {
    let turns = turns(planned, seeds, corpora, &Pool::open(options));
    let mut outcome = Outcome::default();
    let _screen = Screen::keep();
    for turn in turns {
        if let Err(why) = turn.take(options, &mut outcome) {
            outcome.missing.push(format!("{}: {why}", turn.name()));
        }
    }
    outcome
}

/// Every run for every seed, in the order of [`train_runs`].
fn turns<'a, C: ModelConfig>(
    planned: &'a [PlannedRun<C>],
    seeds: &[u64],
    corpora: &[&'a Corpus],
    pool: &Pool,
) -> Vec<Turn<'a, C>> {
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
                number: (turns.len() + 1, 0),
                to_come: 0.0,
            });
        }
    }
    // From the last to the first, because the work that comes after a run adds up. Runs of one place
    // are one run.
    let (count, mut after, mut places) = (turns.len(), 0.0, BTreeSet::new());
    for turn in turns.iter_mut().rev() {
        turn.number.1 = count;
        let work = turn.work();
        turn.to_come = if work > 0.0 { after / work } else { 0.0 };
        if let Some(place) = turn.place.as_ref().filter(|place| !is_trained(place))
            && places.insert(place.directory.clone())
        {
            after += work;
        }
    }
    turns
}

/// One run for one seed.
struct Turn<'a, C> {
    run: &'a PlannedRun<C>,
    seed: u64,
    corpus: &'a Corpus,
    /// Its place in the pool; `None` without a model.
    place: Option<Place>,
    /// Its number, counted from 1, and the number of all.
    number: (usize, usize),
    /// The work of the runs that come after it and are not trained yet, as a multiple of its own.
    to_come: f64,
}

impl<C: ModelConfig> Turn<'_, C> {
    /// Its name and seed, for the user.
    fn name(&self) -> String {
        format!("{}, seed {}", self.run.name, self.seed)
    }

    /// Training FLOPs, whether they are spent already or not.
    fn work(&self) -> f64 {
        let config = self.run.config.as_ref();
        config.map_or(0.0, |config| work(config, self.corpus))
    }

    /// Trains the run unless it is trained, and adds what was observed to `outcome`; otherwise
    /// tells why not.
    fn take(&self, options: &Options, outcome: &mut Outcome) -> Result<(), String> {
        if outcome.stopped {
            return Err("not trained yet".into());
        }
        let parent = self.parent(outcome)?;
        let place = self.place.as_ref().ok_or("has no model")?;
        let known = is_trained(place);
        let label = format!("[{}/{}] {}", self.number.0, self.number.1, self.name());
        // The dashboard names the run itself.
        if !known && options.display != Display::Terminal {
            print(&format!("{} …", label));
        }
        let memory = PeakMemory::start(options.backend, options.gpu);
        let summary = self.train(place, options).inspect_err(|why| {
            print(&format!("{} failed: {why}", label));
        })?;
        if summary.stopped {
            outcome.stopped = true;
            return Err("stopped; to continue: repeat the command".into());
        }
        let observed = self.observe(&summary, &place.directory, memory, parent);
        let observed = observed.map_err(|error| one_line(&error).to_string())?;
        let seconds = summary.rows.last().map_or(0.0, |row| row.seconds);
        let time = duration(Duration::from_secs_f64(seconds));
        print(&format!(
            "{}: validation loss {:.4}, {}",
            label,
            summary.valid_loss,
            match known {
                true => format!("already trained ({time})"),
                false => format!("trained in {time}"),
            }
        ));
        outcome.seconds += seconds;
        outcome.observations.push(observed);
        Ok(())
    }

    /// What was observed of the run whose weights this one starts from, if there is one.
    fn parent<'a>(&self, outcome: &'a Outcome) -> Result<Option<&'a Observation>, String> {
        let Some(After { run, .. }) = &self.run.after else {
            return Ok(None);
        };
        let is_parent = |found: &&Observation| found.run == *run && found.seed == Some(self.seed);
        let parent = outcome.observations.iter().find(is_parent);
        parent.map(Some).ok_or_else(|| format!("{run} is missing"))
    }

    fn train(&self, place: &Place, options: &Options) -> Result<Summary, String> {
        let mut config = self.run.config.clone().ok_or("has no model")?;
        config.train.seed = self.seed;
        let title = Title {
            run: Some(self.run.name.clone()),
            number: Some(self.number),
            to_come: self.to_come,
            ..Title::default()
        };
        let run_options = options.of_run(place.directory.clone(), title, place.before.clone());
        let (kind, gpu) = (options.backend, options.gpu);
        let train = || train(kind, gpu, config, self.corpus, &run_options);
        // Backends panic where memory is short; the other runs may fit.
        match panic::catch_unwind(AssertUnwindSafe(train)) {
            Ok(trained) => trained.map_err(|error: Error| one_line(&error).to_string()),
            Err(panic) => Err(format!("panicked: {}", panic_message(&*panic))),
        }
    }

    fn observe(
        &self,
        summary: &Summary,
        directory: &Path,
        memory: PeakMemory,
        parent: Option<&Observation>,
    ) -> Result<Observation, TrainError> {
        let peak = peak_memory(directory, memory)?;
        let scalars = checkpoint::read_scalars(&summary.checkpoint)?;
        let (mut quantities, rows) = of_summary(summary, parent);
        quantities.extend(peak.map(|bytes| ("peak_memory".into(), bytes as f64)));
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

/// Whether the run in this place has been trained and measured.
fn is_trained(place: &Place) -> bool {
    place.directory.join(MEASURED).exists()
}

/// The most bytes in use while a run trained: what was kept, else the current peak, which it keeps.
fn peak_memory(directory: &Path, memory: PeakMemory) -> Result<Option<u64>, TrainError> {
    let path = directory.join(MEASURED);
    let before = fs::read_to_string(&path).ok();
    if let Some(measured) = before.and_then(|text| serde_json::from_str::<Measured>(&text).ok()) {
        return Ok(measured.peak_memory);
    }
    let peak_memory = memory.bytes();
    let text = serde_json::to_string(&Measured { peak_memory }).unwrap_or_default();
    fs::write(&path, text).map_err(TrainError::io("write", &path))?;
    Ok(peak_memory)
}
