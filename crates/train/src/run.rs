//! A run from start to end.

use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
pub use burn_train::Interrupter;
use residual_zoo_core::{Cost, ModelConfig, check};
use residual_zoo_data::Corpus;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{self, Journal};
use crate::dashboard::{Dashboard, Display};
use crate::error::describe_not_finite;
use crate::generate::{Generator, Sampling};
use crate::health::Interval;
use crate::metrics::{Row, memory};
use crate::resume::{self, Resumed};
use crate::run_dir::Start;
use crate::trainer::{SAMPLE, derive_seed, vocabulary};
use crate::{Error, OnDiskError, RunConfig, RunDir, Trainer, Validation, run_dir};

/// Where and how a run is written and shown.
#[derive(Clone)]
pub struct RunOptions {
    /// The directory of the run, which begins there or goes on.
    pub directory: PathBuf,
    /// What is shown meanwhile.
    pub display: Display,
    /// Peak of the device in TFLOP/s, to show the share in use.
    pub peak_tflops: Option<f64>,
    /// A run whose newest checkpoint gives a new run its first weights and moments, see
    /// [`checkpoint::load_weights`].
    pub init_from: Option<PathBuf>,
    /// How those weights become this model's.
    pub first_weights: FirstWeights,
    /// Go on with a run also where its config, data or backend is not what it was.
    pub allow_config_change: bool,
    /// Set it to stop after the current step, with a checkpoint.
    pub stop: Interrupter,
}

/// How the weights of one model become the first weights of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstWeights {
    /// By [`ModelConfig::grow`], with the optimizer's moments.
    #[default]
    Grow,
    /// By [`ModelConfig::grow`], with fresh moments.
    GrowFresh,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Summary {
    /// All rows, as in `metrics.jsonl`.
    pub rows: Vec<Row>,
    /// What the model costs.
    pub cost: Cost,
    /// Mean cross-entropy of the last log interval, nats per token.
    pub train_loss: f64,
    /// Mean cross-entropy of the validation batches when they were last run, nats per token.
    pub valid_loss: f64,
    /// Share of the validation targets that were the likeliest, when they were last run.
    pub valid_accuracy: f64,
    /// Training tokens per second over the whole run.
    pub tokens_per_second: f64,
    /// Whether it was stopped before its last step.
    pub stopped: bool,
    /// The last checkpoint.
    pub checkpoint: PathBuf,
}

/// Trains the model of `config` on `corpus`: a new run, or on with the one in the directory.
///
/// A run that goes on gives, from its newest good checkpoint on, the rows and weights that it
/// would have given without the stop, to the bit on backends that are deterministic. It must have
/// the same model, training, data and backend, but for a larger number of steps.
///
/// # Errors
///
/// When the config cannot be built, the directory holds something else or another run, cannot be
/// written, or is in use, or when too many steps in a row have no finite loss.
pub fn run<B, C>(
    config: RunConfig<C>,
    corpus: &Corpus,
    options: &RunOptions,
    device: B::Device,
) -> Result<Summary, Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    check::positive("--peak-tflops", options.peak_tflops.unwrap_or(1.0))?;
    let is_new = run_dir::is_free(&options.directory)?;
    let mut trainer = Trainer::<B, C>::new(config, corpus, device)?;
    let (mut notes, init_weights) = match &options.init_from {
        Some(run) if is_new => start_from(&mut trainer, run, options.first_weights, corpus)
            .map(|(notes, weights)| (notes, Some(weights)))?,
        _ => (Vec::new(), None),
    };
    let mut directory = RunDir::open(&options.directory)?;
    if !directory.is_locked() {
        let what = "this file system has no locks: train in this directory by one process only";
        notes.push(what.into());
    }
    let mut resumed = match is_new {
        true => {
            let start = Start {
                init_weights,
                ..resume::this_start::<B>(options, trainer.device())
            };
            let first = directory.checkpoint(0);
            // Weights from elsewhere may not be there a second time.
            let save = || match options.init_from {
                Some(_) => checkpoint::save(&trainer, &Journal::default(), &first),
                None => Ok(()),
            };
            directory.begin(&trainer.config, corpus, &start, save)?;
            Resumed {
                rows: Vec::new(),
                journal: Journal::default(),
                checkpoint: options.init_from.as_ref().map(|_| first),
                notes: Vec::new(),
            }
        }
        false => resume::resume(&mut trainer, corpus, options, &mut directory)?,
    };
    resumed.notes.splice(0..0, notes);
    Run::new(trainer, corpus, options, directory, resumed).finish()
}

/// Takes the weights of the newest checkpoint of `run`, and maybe its moments. Returns what the user
/// should know of it, and the BLAKE3 hash of the weights.
fn start_from<B, C>(
    trainer: &mut Trainer<B, C>,
    run: &Path,
    by: FirstWeights,
    corpus: &Corpus,
) -> Result<(Vec<String>, String), Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    let checkpoint = checkpoint::newest(run)?;
    let passed_over = checkpoint.passed_over.iter();
    let mut notes: Vec<String> = passed_over
        .map(|(_, error)| format!("passed over: {error}"))
        .collect();
    run_dir::check_tokenizer(run, corpus)?;
    let smaller = run_dir::read_config::<C>(run)?.model;
    let kept = match by {
        FirstWeights::Grow => checkpoint::load_weights(trainer, &smaller, &checkpoint.path)?,
        FirstWeights::GrowFresh => {
            checkpoint::load_parameters(trainer, &smaller, &checkpoint.path)?
        }
    };
    notes.extend(resume::kept_note(&kept, run));
    Ok((notes, checkpoint::weights_blake3(&checkpoint.path)?))
}

struct Run<'a, B: AutodiffBackend, C: ModelConfig> {
    trainer: Trainer<B, C>,
    corpus: &'a Corpus,
    options: &'a RunOptions,
    directory: RunDir,
    dashboard: Dashboard,
    rows: Vec<Row>,
    journal: Journal,
    /// The last checkpoint.
    saved: Option<PathBuf>,
}

impl<'a, B, C> Run<'a, B, C>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    fn new(
        trainer: Trainer<B, C>,
        corpus: &'a Corpus,
        options: &'a RunOptions,
        directory: RunDir,
        resumed: Resumed,
    ) -> Self {
        let steps = (trainer.progress.step, trainer.config.train.steps);
        let bytes = corpus.bytes_per_token;
        let mut dashboard = Dashboard::open(options.display, steps, bytes, &options.stop);
        for note in &resumed.notes {
            dashboard.note(note);
        }
        let per_token = trainer.flops_per_token();
        for row in &resumed.rows {
            dashboard.replay(row, per_token);
        }
        Self {
            trainer,
            corpus,
            options,
            directory,
            dashboard,
            rows: resumed.rows,
            journal: resumed.journal,
            saved: resumed.checkpoint,
        }
    }

    fn finish(mut self) -> Result<Summary, Error> {
        let steps = self.trainer.config.train.steps;
        if self.rows.is_empty() && self.trainer.progress.step == 0 {
            let Validation { loss, accuracy } = self.trainer.validate();
            self.record(Row {
                valid_loss: Some(loss).filter(|loss| loss.is_finite()),
                valid_accuracy: Some(accuracy),
                ..Row::default()
            })?;
        }
        loop {
            let last = self.trainer.progress.step >= steps;
            // Who stops a run waits for nothing but the checkpoint. What is due at this step is
            // done when the run goes on.
            if self.options.stop.should_stop() && !last {
                self.save()?;
                return Ok(self.summary(true));
            }
            if self.journal.interval.steps > 0 {
                self.pause(last)?;
            }
            if last {
                return Ok(self.summary(false));
            }
            self.advance()?;
        }
    }

    /// Makes a step.
    fn advance(&mut self) -> Result<(), Error> {
        let (lr, clock) = (self.trainer.learning_rate(), Instant::now());
        let step = self.trainer.step();
        let seconds = clock.elapsed().as_secs_f64();
        self.trainer.progress.seconds += seconds;
        let number = self.trainer.progress.step;
        let z = match step.skipped {
            None => self.journal.recent.push(step.loss),
            Some(_) => None,
        };
        let limit = self.trainer.config.train.spike_z;
        let spike = z.filter(|z| limit.is_some_and(|limit| *z >= limit));
        self.journal.interval.add(&step, lr, seconds, spike);
        if let Some(z) = spike {
            self.dashboard.note(&format!(
                "step {number}: the loss jumped to {:.4}, {z:.1} standard deviations above those \
                 before",
                step.loss
            ));
        }
        let Some(parameters) = step.skipped else {
            return Ok(());
        };
        let why = describe_not_finite(step.loss, step.grad_norm, &parameters);
        self.dashboard
            .note(&format!("step {number} skipped: {why}"));
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
            step: number,
            loss: step.loss,
            grad_norm: step.grad_norm,
            parameters,
            saved,
        })
    }

    /// Does what is due after this many steps.
    fn pause(&mut self, last: bool) -> Result<(), Error> {
        let train = self.trainer.config.train.clone();
        let step = self.trainer.progress.step;
        let due = |every: usize| step.is_multiple_of(every) || last;
        let optional = |every: Option<usize>| every.is_some_and(due);
        let validate = due(train.validate_every);
        let sample = optional(train.sample_every);
        let save = optional(train.checkpoint_every) || last;
        if !(due(train.log_every) || validate || sample || save) {
            return Ok(());
        }
        let mut row = self.measure();
        let found = validate.then(|| self.trainer.validate());
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
        // A checkpoint comes after all that was logged at its step.
        self.journal.interval = Interval::default();
        self.record(row)?;
        if found.is_some_and(|found| self.trainer.advance_curriculum(found.loss)) {
            self.dashboard.note(&format!(
                "step {step}: on to level {} of the curriculum, {} tokens a step",
                self.trainer.progress.level,
                self.trainer.tokens_per_step()
            ));
        }
        if sample {
            self.sample()?;
        }
        if save {
            match self.save() {
                Err(error) if last => return Err(error),
                saved => self.tolerate(saved)?,
            }
            self.prune();
        }
        Ok(())
    }

    /// The row of the interval.
    fn measure(&self) -> Row {
        let interval = &self.journal.interval;
        let tokens = (interval.steps * self.trainer.tokens_per_step()) as f64;
        let flops = self.trainer.step_flops() * interval.steps as f64;
        let share = |peak| flops / interval.seconds / (peak * 1e12);
        Row {
            level: self.trainer.level(),
            train_loss: interval.mean_loss(),
            lr: interval.lr,
            grad_norm: interval.grad_norm,
            skipped: Some(interval.skipped).filter(|skipped| *skipped > 0),
            spike: interval.spike,
            tokens_per_second: Some(tokens / interval.seconds),
            mfu: self.options.peak_tflops.map(share),
            memory: memory(),
            ..Row::default()
        }
    }

    /// Writes a checkpoint, unless this step has one.
    fn save(&mut self) -> Result<(), Error> {
        let path = self.directory.checkpoint(self.trainer.progress.step);
        if self.saved.as_ref() == Some(&path) {
            return Ok(());
        }
        // No row of a checkpoint is lost with the power.
        (self.journal.metrics, self.journal.samples) = self.directory.sync()?;
        let directory = &self.directory;
        checkpoint::save_if(&self.trainer, &self.journal, &path, || directory.is_here())
            .map_err(|error| directory.explain(error))?;
        self.saved = Some(path);
        Ok(())
    }

    /// Deletes old checkpoints, but not the one of the lowest validation loss; and none while steps
    /// are skipped, when the newest may be worth least.
    fn prune(&mut self) {
        let Some(keep) = self.trainer.config.train.keep_checkpoints else {
            return;
        };
        if self.trainer.progress.skipped_in_a_row > 0 {
            return;
        }
        let validated = self.rows.iter().filter(|row| row.step > 0);
        let losses = validated.filter_map(|row| Some((row.step, row.valid_loss?)));
        let saved = losses.map(|(step, loss)| (self.directory.checkpoint(step), loss));
        let best = saved
            .filter(|(path, _)| path.exists())
            .min_by(|(_, a), (_, b)| a.total_cmp(b));
        let best = best.as_ref().map(|(path, _)| path.as_path());
        for error in checkpoint::prune(&self.options.directory, keep, best) {
            let note = format!("an old checkpoint stays: {error}");
            self.dashboard.note(&note);
        }
    }

    /// Passes an error of the disk on, or says it and goes on, as configured.
    fn tolerate(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        let goes_on = self.trainer.config.train.on_disk_error == OnDiskError::Continue;
        match result {
            // Waiting does not bring a directory back.
            Err(error) if goes_on && !matches!(error, Error::Vanished(_)) => {
                self.dashboard.note(&format!("training goes on: {error}"));
                Ok(())
            }
            result => result,
        }
    }

    /// Completes a row with the progress, writes it and shows it.
    fn record(&mut self, row: Row) -> Result<(), Error> {
        let progress = self.trainer.progress;
        let row = Row {
            step: progress.step,
            tokens: progress.tokens,
            flops: progress.flops,
            seconds: progress.seconds,
            ..row
        };
        let written = self.directory.log(&row);
        self.dashboard.show(&row, self.trainer.flops_per_token());
        self.rows.push(row);
        self.tolerate(written)
    }

    fn sample(&mut self) -> Result<(), Error> {
        let Corpus {
            tokenizer, valid, ..
        } = self.corpus;
        let Some(valid) = valid.text() else {
            return Ok(());
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
        let model = self.trainer.model().valid();
        let sizes = (tokenizer.vocab_size(), config.model.shape().context);
        let generator = Generator::new(&model, sizes, &prompt, sampling, self.trainer.device())?;
        let mut tokens = prompt.clone();
        tokens.extend(generator.take(config.train.sample_tokens));
        let text = tokenizer.decode(&tokens)?;
        self.dashboard.sample(step, &text);
        let written = self.directory.sample(step, &text);
        self.tolerate(written)
    }

    fn summary(self, stopped: bool) -> Summary {
        let last = |field: fn(&Row) -> Option<f64>| {
            self.rows.iter().rev().find_map(field).unwrap_or(f64::NAN)
        };
        // A loss that is not finite is not in the row; an earlier one is not its loss.
        let validated = |row: &&Row| row.valid_loss.is_some() || row.valid_accuracy.is_some();
        let validated = self.rows.iter().rev().find(validated);
        Summary {
            cost: self.trainer.config.model.cost(vocabulary(self.corpus)),
            train_loss: last(|row| row.train_loss),
            valid_loss: validated.and_then(|row| row.valid_loss).unwrap_or(f64::NAN),
            valid_accuracy: last(|row| row.valid_accuracy),
            tokens_per_second: self.trainer.progress.tokens as f64 / self.trainer.progress.seconds,
            rows: self.rows,
            stopped,
            checkpoint: self.saved.unwrap_or_default(),
        }
    }
}
