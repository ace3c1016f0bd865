//! Trains a model from the first to the last step, with logs, validations, samples and checkpoints.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_core::{ModelConfig, check};
use residual_zoo_data::{Corpus, derive_seed};
use residual_zoo_report::wrapped;
use residual_zoo_runs::checkpoint::prune;
use residual_zoo_runs::generate::{Generator, Sampling};
use residual_zoo_runs::{
    Error, OnDiskError, Row, RunConfig, RunDir, best, describe_not_finite, run_dir, vocabulary,
};
use residual_zoo_system::Blame as _;
use residual_zoo_system::console::print;
use residual_zoo_system::counted;
use residual_zoo_system::signals::stopped;

use crate::begin::{begin, start_from};
use crate::checkpoint::{self, Journal};
use crate::dashboard::{About, Activity, Dashboard, Unit};
use crate::health::Interval;
use crate::resume::{self, Resumed};
use crate::summary::{last, last_valid_loss};
use crate::team;
use crate::trainer::{SAMPLE, sequences};
use crate::{RunOptions, Summary, Trainer, Validation};

/// Trains the model of `config` on `corpus`. Starts a new run in the directory of `options`, or continues the run that
/// is there.
///
/// A run continues from its newest good checkpoint, or from step 0 if it has no checkpoint. The continued run gives the
/// same losses and weights as an uninterrupted run, bit for bit on deterministic backends. The model, training, data
/// and backend must be the same as before. However, the number of steps may be larger, and the settings for
/// recomputation, sharding and TensorBoard may differ. [`RunOptions::allow_config_change`] permits other changes too,
/// except another tokenizer and an optimizer that keeps other moments.
///
/// # Errors
///
/// Returns an error in these cases:
///
/// - The config or [`RunOptions::peak_tflops`] is invalid, or the data do not fit the config.
/// - The initial weights cannot be loaded.
/// - The directory contains another run or something else, is in use, or cannot be written to.
/// - The run in the directory cannot continue, for example because its checkpoints are damaged.
/// - The data of a step or a validation cannot be read.
/// - Too many consecutive steps have a loss or gradient that is not finite.
/// - The processes of a team cannot train the model together, or no longer have the same weights.
pub fn run<B: AutodiffBackend, C: ModelConfig>(
    config: RunConfig<C>,
    corpus: &Corpus,
    options: &RunOptions,
    device: B::Device,
) -> Result<Summary, Error> {
    check::positive("--peak-tflops", options.peak_tflops.unwrap_or(1.0))?;
    if let Some(team) = options.team {
        team::begin(team, &config, corpus)?;
    }
    let is_new = run_dir::is_free(&options.directory)?;
    let mut trainer = Trainer::<B, C>::new(config, corpus, device)?;
    let (first_notes, first) = match &options.init_from {
        Some((run, by)) if is_new => {
            let from = (run.as_path(), options.init_checkpoint);
            let (notes, first) = start_from(&mut trainer, from, *by, corpus)?;
            (notes, Some(first))
        }
        _ => (Vec::new(), None),
    };
    let mut notes = [options.notes.clone(), first_notes].concat();
    let mut directory = RunDir::open(&options.directory)?;
    if !directory.is_locked() {
        let what = "this file system has no locks; train in this directory with one process only";
        notes.push(what.into());
    }
    let mut resumed = match is_new {
        true => begin(&trainer, corpus, options, &mut directory, first)?,
        false => resume::resume(&mut trainer, corpus, options, &mut directory)?,
    };
    resumed.notes.splice(0..0, notes);
    if trainer.config.train.tensorboard {
        directory.show_events(&trainer.config, &resumed.rows)?;
    }
    if let Some(team) = options.team {
        trainer.lead(team, &options.directory)?;
    }
    Run::new(trainer, corpus, options, directory, resumed).finish()
}

/// Checks that [`run`] can begin in the directory of `options`, or continue the run there. Writes nothing. For a new
/// run without `init_from`, checks the data and the directory, but not the config.
///
/// # Errors
///
/// Returns the errors that these checks find. The checks do not detect a run that is in use, a run that has lost rows,
/// or a team that cannot train the run.
pub fn check<B: AutodiffBackend, C: ModelConfig>(
    config: RunConfig<C>,
    corpus: &Corpus,
    options: &RunOptions,
    device: B::Device,
) -> Result<(), Error> {
    check::positive("--peak-tflops", options.peak_tflops.unwrap_or(1.0))?;
    let is_new = run_dir::is_free(&options.directory)?;
    if is_new {
        run_dir::check_creatable(&options.directory)?;
    }
    if is_new && options.init_from.is_none() {
        return sequences(&config, corpus).map(drop);
    }
    let mut trainer = Trainer::<B, C>::new(config, corpus, device)?;
    match &options.init_from {
        Some((run, by)) if is_new => {
            let from = (run.as_path(), options.init_checkpoint);
            start_from(&mut trainer, from, *by, corpus).map(drop)
        }
        _ => resume::check(&mut trainer, corpus, options),
    }
}

struct Run<'a, B: AutodiffBackend, C: ModelConfig> {
    trainer: Trainer<B, C>,
    corpus: &'a Corpus,
    options: &'a RunOptions,
    directory: RunDir,
    dashboard: Dashboard,
    rows: Vec<Row>,
    journal: Journal,
    /// The step at which this process began.
    start: usize,
    /// The last checkpoint.
    saved: Option<PathBuf>,
    /// Whether the last checkpoint has everything that was logged at its step. If a run was stopped in a validation or
    /// sample, its checkpoint was written before that work.
    is_saved: bool,
    saves: Saves,
}

/// The validations of the model and of the average of its weights.
#[derive(Clone, Copy)]
struct Found {
    trained: Validation,
    average: Option<Validation>,
}

/// The cost of checkpoints in this process.
struct Saves {
    /// The time that the last checkpoint took.
    cost: Duration,
    /// The time at which the last checkpoint was complete, or at which this process began.
    last: Instant,
}

impl Saves {
    /// Whether another checkpoint would take at most 3 % of the time since the last one.
    fn are_cheap(&self) -> bool {
        self.cost.mul_f64(1.0 / 0.03) <= self.last.elapsed()
    }
}

impl<'a, B: AutodiffBackend, C: ModelConfig> Run<'a, B, C> {
    fn new(
        trainer: Trainer<B, C>,
        corpus: &'a Corpus,
        options: &'a RunOptions,
        directory: RunDir,
        resumed: Resumed,
    ) -> Self {
        let config = &trainer.config;
        let about = About {
            title: &options.title,
            model: &config.model.name(),
            parameters: config.model.cost(vocabulary(corpus)).params.total(),
            seed: config.train.seed,
            directory: &options.directory,
            steps: (trainer.progress.step, config.train.steps),
            unit: Unit::of(corpus),
        };
        let last = options.until.unwrap_or(config.train.steps);
        if let Some(line) = options
            .line
            .as_ref()
            .filter(|_| trainer.progress.step < last)
        {
            print(&wrapped(line, "  "));
        }
        let mut dashboard = Dashboard::open(options.display, &about, &options.stop);
        for note in &resumed.notes {
            dashboard.note(note);
        }
        let per_token = trainer.flops_per_token();
        for row in &resumed.rows {
            dashboard.replay(row, per_token);
        }
        Self {
            start: trainer.progress.step,
            trainer,
            corpus,
            options,
            directory,
            dashboard,
            rows: resumed.rows,
            journal: resumed.journal,
            is_saved: resumed.checkpoint.is_some(),
            saved: resumed.checkpoint,
            saves: Saves {
                cost: Duration::ZERO,
                last: Instant::now(),
            },
        }
    }

    /// Trains to the end, or until the run is stopped.
    fn finish(mut self) -> Result<Summary, Error> {
        let stopped = self.train()?;
        if self.trainer.progress.step > self.start {
            self.look_back()?;
        }
        Ok(self.summary(stopped))
    }

    /// Checks the files of the run once more, because another program may have changed them during the last checkpoint.
    /// The other program may also have deleted the checkpoint.
    fn look_back(&mut self) -> Result<(), Error> {
        let checked = self.directory.sync(&self.rows);
        self.show_notes();
        self.tolerate(checked.map(drop))?;
        let is_lost = self.saved.as_ref().is_some_and(|saved| !saved.exists());
        // In a team, a new checkpoint is no longer possible, because it needs the other processes, which have ended.
        if is_lost && self.trainer.team.is_none() {
            self.save()?;
        }
        Ok(())
    }

    /// Trains until the last step, the step `until`, or a request to stop. Returns whether the run stops before its
    /// last step is over.
    fn train(&mut self) -> Result<bool, Error> {
        let steps = self.trainer.config.train.steps;
        if self.rows.is_empty()
            && self.trainer.progress.step == 0
            && let Some(Validation { loss, accuracy }) = self.validate()?.map(|found| found.trained)
        {
            self.record(Row {
                valid_loss: Some(loss).filter(|loss| loss.is_finite()),
                valid_accuracy: Some(accuracy),
                ..Row::default()
            })?;
        }
        loop {
            let last = self.trainer.progress.step >= steps;
            // The last step is over once its row is written.
            let is_due = self.journal.interval.steps > 0;
            let stops = self.options.stop.should_stop() && (is_due || !last);
            // A stopped run only saves a checkpoint, so that it ends soon. Logs, validations and samples that are due
            // at this step follow when the run continues.
            if stops || is_due && !self.pause(last)? {
                self.save()?;
                self.prune();
                return Ok(true);
            }
            if last {
                return Ok(false);
            }
            if (self.options.until).is_some_and(|until| self.trainer.progress.step >= until) {
                self.save()?;
                self.prune();
                return Ok(true);
            }
            self.advance()?;
        }
    }

    /// Performs a step, unless the run is stopped while the step's batch is read. Fails after too many consecutive
    /// skipped steps.
    fn advance(&mut self) -> Result<(), Error> {
        self.dashboard.activity(Activity::Training);
        let (lr, clock, before) = (self.trainer.learning_rate(), Instant::now(), stopped());
        let step = match self.trainer.step() {
            Ok(step) => step,
            Err(error) if error.is_stop() => {
                self.options.stop.stop(None);
                return Ok(());
            }
            Err(error) => return Err(self.save_after(error)),
        };
        // Time in which the process is suspended does not count.
        let seconds = clock.elapsed().saturating_sub(stopped() - before);
        let seconds = seconds.as_secs_f64();
        self.trainer.progress.seconds += seconds;
        let number = self.trainer.progress.step;
        self.dashboard.step(number, self.trainer.progress.tokens);
        let z = match step.skipped {
            None => self.journal.recent.push(step.loss),
            Some(_) => None,
        };
        let limit = self.trainer.config.train.spike_z;
        let spike = z.filter(|z| limit.is_some_and(|limit| *z >= limit));
        self.journal.interval.add(&step, lr, seconds, spike);
        if let Some(z) = spike {
            self.dashboard.note(&format!(
                "step {number}: the loss jumped to {:.4}, {z:.1} standard deviations above the mean \
                 of the losses before",
                step.loss
            ));
        }
        match step.skipped {
            Some(parameters) => self.report_skipped(step.loss, step.grad_norm, parameters),
            None => Ok(()),
        }
    }

    /// Saves a checkpoint before the run ends with `error`, whose cause may be repaired before the run is resumed.
    fn save_after(&mut self, error: Error) -> Error {
        // In a team, a checkpoint is not possible, because it needs the other processes, which may be waiting in the
        // middle of a step.
        let is_alone = self.trainer.team.is_none();
        if is_alone && self.trainer.progress.step > 0 && self.save().is_ok() {
            let step = self.trainer.progress.step;
            self.dashboard.note(&format!(
                "saved at step {step}, because the run cannot go on"
            ));
        }
        error
    }

    /// Reports that the last step was skipped. After too many consecutive skipped steps, saves a checkpoint and fails.
    fn report_skipped(
        &mut self,
        loss: f64,
        grad_norm: f64,
        parameters: Vec<String>,
    ) -> Result<(), Error> {
        let step = self.trainer.progress.step;
        let why = describe_not_finite(loss, grad_norm, &parameters);
        self.dashboard.note(&format!("step {step} skipped: {why}"));
        let count = self.trainer.progress.skipped_in_a_row;
        if count < self.trainer.config.train.max_skipped {
            return Ok(());
        }
        let saved = match self.save() {
            Ok(()) => format!("in {}", self.saved.clone().unwrap_or_default().display()),
            Err(error) => format!("not saved: {error}"),
        };
        Err(Error::NotFinite {
            count,
            step,
            loss,
            grad_norm,
            parameters,
            clips: self.trainer.config.train.grad_clip.is_some(),
            saved,
        })
    }

    /// Logs, validates, samples and saves, each if it is due after this step. Returns whether everything was done. If
    /// the run is stopped during a validation or a sample, nothing is written.
    fn pause(&mut self, last: bool) -> Result<bool, Error> {
        let train = &self.trainer.config.train;
        let step = self.trainer.progress.step;
        let due = |every: usize| step.is_multiple_of(every) || last;
        let validate = due(train.validate_every);
        let sample = train.sample_every.is_some_and(due) && self.corpus.valid.text().is_some();
        let save = match train.checkpoint_every {
            Some(every) => due(every),
            None => last || validate && self.saves.are_cheap(),
        };
        let log = due(train.log_every) || validate || sample || save;
        // Long work comes before any writing, so that the run can be stopped during it.
        let found = match validate {
            true => match self.validate() {
                Ok(found) => found,
                Err(error) => return Err(self.save_after(error)),
            },
            false => None,
        };
        let text = if sample { self.sample()? } else { None };
        if validate && found.is_none() || sample && text.is_none() {
            return Ok(false);
        }
        if log {
            self.log(found)?;
        }
        if let Some(text) = text {
            self.dashboard.sample(step, &text);
            let written = self.directory.sample(step, &text);
            self.show_notes();
            self.tolerate(written)?;
        }
        // The checkpoint comes last, so that it contains everything that was logged at its step.
        if save {
            self.save_and_prune(last)?;
        }
        Ok(true)
    }

    /// Validates the model and, after the first step, the average of its weights if there is one; `None` if the run was
    /// stopped meanwhile.
    fn validate(&mut self) -> Result<Option<Found>, Error> {
        let (dashboard, stop) = (&mut self.dashboard, &self.options.stop);
        let mut goes_on = |batch, batches| {
            dashboard.activity(Activity::Validating(batch + 1, batches));
            !stop.should_stop()
        };
        let trainer = &self.trainer;
        let average = trainer.average().filter(|_| trainer.progress.step > 0);
        let mut validated = || -> Result<Option<Found>, Error> {
            let Some(trained) = trainer.validate_while(&mut goes_on)? else {
                return Ok(None);
            };
            let average = match average {
                Some(average) => match trainer.validate_model(average, &mut goes_on)? {
                    None => return Ok(None),
                    average => average,
                },
                None => None,
            };
            Ok(Some(Found { trained, average }))
        };
        match validated() {
            Err(error) if error.is_stop() => {
                stop.stop(None);
                Ok(None)
            }
            found => found,
        }
    }

    /// Writes the row of the interval, with the validation if there was one, and starts the next interval. A validation
    /// can advance the curriculum.
    fn log(&mut self, found: Option<Found>) -> Result<(), Error> {
        let step = self.trainer.progress.step;
        let mut row = self.measure();
        row.ema_valid_loss = found
            .and_then(|found| found.average)
            .map(|average| average.loss)
            .filter(|loss| loss.is_finite());
        let found = found.map(|found| found.trained);
        row.valid_loss = found
            .map(|found| found.loss)
            .filter(|loss| loss.is_finite());
        row.valid_accuracy = found.map(|found| found.accuracy);
        if let Some(found) = found.filter(|found| !found.loss.is_finite()) {
            self.dashboard.note(&format!(
                "step {step}: the validation loss is {}",
                found.loss
            ));
        }
        self.journal.interval = Interval::default();
        self.is_saved = false;
        self.record(row)?;
        if found.is_some_and(|found| self.trainer.advance_curriculum(found.loss)) {
            self.dashboard.note(&format!(
                "step {step}: moved to level {} of the curriculum, {} per step",
                self.trainer.progress.level,
                counted(self.trainer.tokens_per_step(), "token")
            ));
        }
        Ok(())
    }

    /// Writes a checkpoint and deletes old checkpoints. An error in writing the last checkpoint is never tolerated.
    fn save_and_prune(&mut self, last: bool) -> Result<(), Error> {
        match self.save() {
            Err(error) if last => return Err(error),
            saved => self.tolerate(saved)?,
        }
        self.prune();
        Ok(())
    }

    /// Returns the row of the interval, without progress and validation.
    fn measure(&self) -> Row {
        let interval = &self.journal.interval;
        let tokens = (interval.steps * self.trainer.tokens_per_step()) as f64;
        let flops = self.trainer.step_flops() * interval.steps as f64;
        let share = |peak| flops / interval.seconds / (peak * 1e12);
        Row {
            level: self.trainer.level(),
            train_loss: interval.mean_loss(),
            lr: interval.lr,
            muon_lr: (interval.lr).and_then(|lr| self.trainer.optimizer.muon_rate(lr)),
            grad_norm: interval.grad_norm,
            skipped: Some(interval.skipped).filter(|skipped| *skipped > 0),
            spike: interval.spike,
            tokens_per_second: Some(tokens / interval.seconds),
            mfu: self.options.peak_tflops.map(share),
            memory: memory(),
            ..Row::default()
        }
    }

    /// Writes a checkpoint, unless this step already has a complete one.
    fn save(&mut self) -> Result<(), Error> {
        if let Some(lost) = self.saved.take_if(|saved| !saved.exists()) {
            self.is_saved = false;
            self.dashboard.note(&format!(
                "{} vanished while the run was training; a new checkpoint is written",
                lost.display()
            ));
        }
        let path = self.directory.checkpoint(self.trainer.progress.step);
        let exists = self.saved.as_ref() == Some(&path);
        if exists && self.is_saved {
            return Ok(());
        }
        self.dashboard.activity(Activity::Saving);
        self.trainer.check_team()?;
        // The rows reach the disk before the checkpoint, so that a power failure cannot lose them.
        let logs = self.directory.sync(&self.rows);
        let prepared = logs.and_then(|logs| {
            self.directory.prepare_checkpoints()?;
            Ok(logs)
        });
        self.show_notes();
        self.journal.set_logs(prepared?);
        let (directory, clock) = (&self.directory, Instant::now());
        let check = || directory.is_here();
        let moved = checkpoint::save_if(&self.trainer, &self.journal, &path, exists, check)
            .map_err(|error| directory.explain(error))?;
        if let Some(moved) = moved {
            let (path, moved) = (path.display(), moved.display());
            self.dashboard.note(&format!(
                "{path} stood in the way of the checkpoint and was not written by this run; it was moved to {moved}"
            ));
        }
        self.saved = Some(path);
        self.is_saved = true;
        self.saves = Saves {
            cost: clock.elapsed(),
            last: Instant::now(),
        };
        Ok(())
    }

    /// Deletes old checkpoints, except the checkpoint with the lowest validation loss. While steps are skipped, deletes
    /// no checkpoint, because the newest one may be the worst.
    fn prune(&mut self) {
        let Some(keep) = self.trainer.config.train.keep_checkpoints else {
            return;
        };
        if self.trainer.progress.skipped_in_a_row > 0 {
            return;
        }
        let Some(saved) = &self.saved else {
            return;
        };
        let best = best(&self.options.directory, &self.rows);
        for error in prune(&self.options.directory, keep, saved, best.as_deref()) {
            let note = format!("an old checkpoint could not be deleted: {error}");
            self.dashboard.note(&note);
        }
    }

    /// Returns an I/O error, or prints it and continues, as configured.
    fn tolerate(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        let continues = self.trainer.config.train.on_disk_error == OnDiskError::Continue;
        match result {
            // A vanished directory or lock does not come back, so its error is always returned.
            Err(error)
                if continues && !matches!(error, Error::Vanished(_) | Error::Unlocked(_)) =>
            {
                self.dashboard.note(&format!("training continues: {error}"));
                Ok(())
            }
            result => result,
        }
    }

    /// Adds the progress to a row, writes the row and shows it.
    fn record(&mut self, row: Row) -> Result<(), Error> {
        let progress = self.trainer.progress;
        let row = Row {
            step: progress.step,
            tokens: progress.tokens,
            flops: progress.flops,
            seconds: progress.seconds,
            ..row
        };
        self.rows.push(row.clone());
        let written = self.directory.log(&self.rows);
        self.show_notes();
        self.dashboard.show(&row, self.trainer.flops_per_token());
        self.tolerate(written)
    }

    /// Reports what other programs have done to the files of the run.
    fn show_notes(&mut self) {
        for note in self.directory.notes() {
            self.dashboard.note(&note);
        }
    }

    /// Samples text, with the first token of the validation text as the prompt. `None` if the data are not text, or the
    /// run was stopped meanwhile.
    fn sample(&mut self) -> Result<Option<String>, Error> {
        let Corpus {
            tokenizer, valid, ..
        } = self.corpus;
        let Some(valid) = valid.text() else {
            return Ok(None);
        };
        let step = self.trainer.progress.step;
        let config = &self.trainer.config;
        let seed = derive_seed(config.train.seed, &[SAMPLE, step as u64]);
        let sampling = Sampling {
            seed,
            ..Sampling::default()
        };
        let mut prompt = Vec::new();
        valid.read(0, 1, &mut prompt);
        let model = self.trainer.inner_model();
        let sizes = (tokenizer.vocab_size(), config.model.shape().context);
        let generator = Generator::new(&model, sizes, &prompt, sampling, self.trainer.device())?;
        let mut tokens = prompt.clone();
        let count = config.train.sample_tokens;
        for (i, token) in generator.take(count).enumerate() {
            self.dashboard.activity(Activity::Sampling(i + 1, count));
            if self.options.stop.should_stop() {
                return Ok(None);
            }
            tokens.push(token);
        }
        Ok(Some(tokenizer.decode(&tokens)?))
    }

    fn summary(self, stopped: bool) -> Summary {
        Summary {
            cost: self.trainer.config.model.cost(vocabulary(self.corpus)),
            train_loss: last(&self.rows, |row| row.train_loss),
            valid_loss: last_valid_loss(&self.rows),
            valid_accuracy: last(&self.rows, |row| row.valid_accuracy),
            tokens_per_second: self.trainer.progress.tokens as f64 / self.trainer.progress.seconds,
            rows: self.rows,
            stopped,
            trained: self.trainer.progress.step > self.start,
            checkpoint: self.saved.unwrap_or_default(),
        }
    }
}

/// Returns the resident memory of this process in bytes, if the system reports it.
fn memory() -> Option<u64> {
    memory_stats::memory_stats().map(|stats| stats.physical_mem as u64)
}
