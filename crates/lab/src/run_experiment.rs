//! Runs an experiment, from its file to its results.

use std::path::Path;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{Corpus, DataConfig};
use residual_zoo_evaluate::Task;
use residual_zoo_runs::RunConfig;
use residual_zoo_system::console::print;

use crate::corpora::{check_data, open_corpora, open_data};
use crate::facts::settings;
use crate::finished::Goal;
use crate::measure::Setting;
use crate::train_runs::train_runs;
use crate::{
    After, DataFacts, Error, Experiment, ExperimentFile, Observation, Options, Origin, Outcome,
    PlannedRun, Pool, Results, Sweep, origin, tasks,
};

/// Runs the experiment in the RON text, at its first scale if it has scales. Errors name the text by `path`. If `seeds`
/// is given, the seeds 1 to `seeds` replace the seeds of the text.
///
/// # Errors
///
/// Returns an error if the text does not parse or refers to something missing, or if the backend was not compiled in.
/// Also returns an error if the data cannot be opened or a run cannot be trained on them. A run that fails later is
/// listed as missing in the results.
pub fn run_experiment<C: ModelConfig>(
    text: &str,
    path: &Path,
    seeds: Option<u64>,
    options: &Options,
) -> Result<Results, Error> {
    let text = ExperimentFile::new(text, path)?.at(None)?;
    let mut experiment = text.parse::<C>()?;
    experiment.check()?;
    if let Some(seeds) = seeds {
        experiment.set_seeds(seeds)?;
    }
    let planned = experiment.plan(&[])?;
    let origin = Origin {
        name: path.display().to_string(),
        hash: origin::hash(text.text(), &experiment, &planned, options.backend),
        machine: origin::machine(),
        backend: options.backend.to_string(),
        ..Origin::default()
    };
    let outcome = experiment.run(&planned, options)?;
    Ok(experiment.results(&planned, &planned, outcome, origin))
}

impl<C: ModelConfig> Experiment<C> {
    /// Runs the sweep, if there is one. Then trains `planned` for every seed, at the best point of the sweep if the
    /// sweep tunes the runs. An experiment that trains nothing counts costs and measures times instead.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`run_experiment`].
    pub fn run(&self, planned: &[PlannedRun<C>], options: &Options) -> Result<Outcome, Error> {
        if let Some(vocab_size) = self.count {
            let reads_data = self.measure.is_some_and(|measure| measure.reads_data());
            let data = reads_data.then(|| DataFacts::of_config(&self.data));
            return Ok(Outcome {
                observations: self.measure(planned, vocab_size, options)?,
                data: data.into_iter().collect(),
                configs: configs(planned, &self.seeds),
                ..Outcome::default()
            });
        }
        options.backend.check_compiled()?;
        let notes = self.notes(planned)?;
        let Some(sweep) = &self.sweep else {
            let trained = self.train(planned, options)?;
            return Ok(Outcome { notes, ..trained });
        };
        let mut swept_options = options.clone();
        if std::mem::take(&mut swept_options.force) {
            // Deletes the runs of the claims before the sweep, so that after a stop, the same command without `force` does
            // not use them. With a rule, the values of these runs are known only after the sweep.
            self.forget(planned, sweep.rule.is_none(), options)?;
        }
        let (mut tuning, swept) = sweep.run(planned, self.seeds.len(), &swept_options)?;
        if swept.stopped {
            return Ok(Outcome {
                tuning: Some(tuning),
                configs: configs(planned, &self.seeds),
                notes,
                ..swept
            });
        }
        let (planned, missing) = match sweep.tuned {
            true => tuning.tuned(planned)?,
            false => (planned.to_vec(), Vec::new()),
        };
        let mut trained = self.train(&planned, options)?;
        trained.finished.extend(swept.finished);
        Ok(Outcome {
            missing: [swept.missing, missing, trained.missing].concat(),
            seconds: swept.seconds.into_iter().chain(trained.seconds).collect(),
            tuning: Some(tuning),
            notes,
            ..trained
        })
    }

    /// Returns the results of the `planned` runs, with a verdict on each claim. `all` also has the omitted runs. A claim
    /// about a run for which the sweep's rule has failed is undecided.
    pub fn results(
        &self,
        all: &[PlannedRun<C>],
        planned: &[PlannedRun<C>],
        mut outcome: Outcome,
        origin: Origin,
    ) -> Results {
        outcome.leave_out(all, planned);
        let mut claims = self.verdicts(all, &outcome.observations);
        let fits = outcome.tuning.iter().flat_map(|tuning| &tuning.rule);
        let failed = fits.filter(|fit| fit.failure.is_some());
        let failed: Vec<&str> = failed.map(|fit| &*fit.run).collect();
        for found in &mut claims {
            let of_claim = failed.iter().copied();
            let of_claim = of_claim.filter(|run| self.depends_on(&found.claim, run, all));
            let of_claim: Vec<&str> = of_claim.collect();
            if !of_claim.is_empty() {
                found.doubt(&of_claim);
            }
        }
        Results::new(self, all, outcome, claims, origin)
    }

    /// Checks that the files of the experiment's tasks can be read.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first file that cannot be read.
    pub fn check_tasks(&self) -> Result<(), Error> {
        tasks::read(self.tasks.iter()).map(drop)
    }

    /// Checks, without training, that the runs of `planned` can be trained on their data at every point of a sweep, and
    /// evaluated on the tasks. `opened` returns data that are already open. Other data, and tasks whose file does not
    /// exist, are not checked.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first run that cannot be trained or evaluated, or the first file that cannot be
    /// read.
    pub fn check_start<'a>(
        &self,
        planned: &[PlannedRun<C>],
        opened: impl Fn(&DataConfig) -> Option<&'a Corpus>,
    ) -> Result<(), Error> {
        let here = self.tasks.iter().filter(|task| task.file.exists());
        let tasks = tasks::read(here)?;
        let mut runs = Vec::new();
        if let Some(sweep) = &self.sweep {
            sweep.check_points(planned)?;
            runs = sweep.runs(planned)?;
        }
        let is_at_points = |sweep: &Sweep| sweep.tuned && sweep.rule.is_none();
        if !self.sweep.as_ref().is_some_and(is_at_points) {
            runs.extend_from_slice(planned);
        }
        for run in &runs {
            if let Some(config) = &run.config
                && let Some(corpus) = opened(&config.data)
            {
                check_data(&run.name, config, corpus)?;
                check_tasks(&tasks, config, corpus, || true)?;
            }
        }
        Ok(())
    }

    /// Sweeps the runs of `planned`, without training them with the seeds of the experiment.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`run_experiment`].
    pub fn run_sweep(
        &self,
        sweep: &Sweep,
        planned: &[PlannedRun<C>],
        options: &Options,
    ) -> Result<Outcome, Error> {
        options.backend.check_compiled()?;
        // With `brief`, another process of the same sweep prints the title.
        if !options.brief {
            print(&format!("{}\n", self.title));
        }
        let (tuning, swept) = sweep.run(planned, 0, options)?;
        Ok(Outcome {
            tuning: Some(tuning),
            configs: configs(planned, &sweep.seeds),
            notes: self.notes(planned)?,
            ..swept
        })
    }

    /// Deletes all runs of `planned`: the runs of the sweep and, if `claimed`, the runs with the seeds of the
    /// experiment. Also deletes the runs of the pool that started from their weights. Opens the data, because the names
    /// of run directories depend on the data.
    ///
    /// # Errors
    ///
    /// Returns an error if the data or the tasks cannot be opened, the device is missing, or a run cannot be evaluated
    /// on the tasks. Also returns an error if a rule of the sweep sets a field of the claimed runs, because its value is
    /// not known before the sweep. In these cases, nothing is deleted. Also returns an error if a run cannot be deleted.
    pub fn forget(
        &self,
        planned: &[PlannedRun<C>],
        claimed: bool,
        options: &Options,
    ) -> Result<(), Error> {
        options.backend.check_device(options.gpu)?;
        let has_rule = self
            .sweep
            .as_ref()
            .is_some_and(|sweep| sweep.rule.is_some());
        if claimed && has_rule {
            let problem = "cannot be given with `--jobs` here: runs are deleted before the sweep, and only the sweep gives \
                           their values, by a rule; leave `--jobs` out, or choose a new directory with `--runs`";
            return Err(ConfigError::new("--force", problem).into());
        }
        let tasks = tasks::read(self.tasks.iter())?;
        let points = self.sweep.iter().map(|sweep| sweep.runs(planned));
        let points = points.collect::<Result<Vec<_>, _>>()?.concat();
        // A run need not reach the points of wider ranges, so they are not checked.
        let beyond = self.sweep.iter();
        let beyond: Vec<_> = beyond
            .flat_map(|sweep| sweep.possible_runs(planned))
            .collect();
        let is_tuned = self.sweep.as_ref().is_some_and(|sweep| sweep.tuned);
        let of_seeds = if is_tuned { &points } else { planned };
        let of_sweep = self
            .sweep
            .iter()
            .flat_map(|sweep| [&points, &beyond].map(|runs| (&runs[..], &sweep.seeds[..])));
        let of_claims = claimed.then_some((of_seeds, &self.seeds[..]));
        let of_wider_claims = (claimed && is_tuned).then_some((&beyond[..], &self.seeds[..]));
        let mut places = Vec::new();
        for (runs, seeds) in of_sweep.chain(of_claims).chain(of_wider_claims) {
            let corpora = open_data(runs, options)?;
            let corpora: Vec<&Corpus> = corpora.iter().map(|corpus| &**corpus).collect();
            if !std::ptr::eq(runs, &beyond[..]) {
                check_all_tasks(&tasks, runs, &corpora, options)?;
            }
            places.extend(Pool::open(options).runs(runs, seeds, &corpora));
        }
        // Deletes only after all checks, so that nothing is deleted if a run cannot be evaluated.
        Pool::open(options).forget(&places)?;
        Ok(())
    }

    /// Trains `planned` for every seed.
    fn train(&self, planned: &[PlannedRun<C>], options: &Options) -> Result<Outcome, Error> {
        let corpora = open_corpora(planned, options)?;
        let corpora: Vec<&Corpus> = corpora.iter().map(|corpus| &**corpus).collect();
        // If a run cannot be evaluated, no run is trained or deleted.
        let tasks = tasks::read(self.tasks.iter())?;
        check_all_tasks(&tasks, planned, &corpora, options)?;
        if options.force {
            options.backend.check_device(options.gpu)?;
            let pool = Pool::open(options);
            pool.forget(&pool.runs(planned, &self.seeds, &corpora))?;
        }
        let mut outcome = train_runs(planned, &self.seeds, &corpora, Goal::Whole(&tasks), options);
        if let Some(ladder) = &self.ladder {
            ladder.add_gains(&mut outcome.observations);
        }
        Ok(Outcome {
            data: DataFacts::of_runs(planned, &corpora),
            configs: configs(planned, &self.seeds),
            ..outcome
        })
    }

    /// Counts the cost of runs and takes the experiment's measurement; a random measurement is repeated for every seed.
    fn measure(
        &self,
        planned: &[PlannedRun<C>],
        vocab_size: usize,
        options: &Options,
    ) -> Result<Vec<Observation>, Error> {
        let seeds: Vec<Option<u64>> = match self.measure {
            Some(measure) if measure.is_random() => self.seeds.iter().copied().map(Some).collect(),
            _ => vec![None],
        };
        let mut observations = Vec::new();
        for seed in seeds {
            let setting = Setting {
                vocab_size,
                seed: seed.unwrap_or(0),
                data: &self.data,
                backend: options.backend,
                gpu: options.gpu,
            };
            for run in planned {
                let mut observation = Observation::counted(run, vocab_size);
                observation.seed = seed;
                if let Some(measure) = self.measure {
                    observation.quantities.extend(measure.of(run, &setting)?);
                }
                observations.push(observation);
            }
        }
        Ok(observations)
    }
}

/// Checks that all runs can be evaluated on `tasks`.
fn check_all_tasks<C: ModelConfig>(
    tasks: &[Task],
    runs: &[PlannedRun<C>],
    corpora: &[&Corpus],
    options: &Options,
) -> Result<(), Error> {
    let stop = options.stop_of_opening();
    for (run, corpus) in runs.iter().zip(corpora) {
        if let Some(config) = &run.config {
            check_tasks(tasks, config, corpus, || !stop.should_stop())?;
        }
    }
    Ok(())
}

/// Checks that a run can be evaluated on `tasks`.
fn check_tasks<C: ModelConfig>(
    tasks: &[Task],
    config: &RunConfig<C>,
    corpus: &Corpus,
    goes_on: impl FnMut() -> bool,
) -> Result<(), Error> {
    let context = config.model.shape().context;
    let checked = residual_zoo_evaluate::check(tasks, &corpus.tokenizer, context, goes_on);
    Ok(checked?)
}

/// For each run that has a model, returns its name and all its settings as RON. The seed in the settings is the first
/// one for which the run is trained.
fn configs<C: ModelConfig>(planned: &[PlannedRun<C>], seeds: &[u64]) -> Vec<(String, String)> {
    let text = |run: &PlannedRun<C>| {
        let mut config = run.config.clone()?;
        if let Some(seed) = seeds.iter().find(|seed| run.is_for(**seed)) {
            config.train.seed = *seed;
        }
        let after: Vec<&str> = run
            .after
            .iter()
            .flat_map(After::runs)
            .map(String::as_str)
            .collect();
        let name = match after.as_slice() {
            [] => run.name.clone(),
            after => format!("{}, after {}", run.name, after.join(" and ")),
        };
        Some((name, settings(&config)))
    };
    planned.iter().filter_map(text).collect()
}
