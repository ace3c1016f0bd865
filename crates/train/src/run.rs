//! A run from start to end.

use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::module::AutodiffModule;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
pub use burn_train::Interrupter;
use residual_zoo_core::{Cost, ModelConfig, check};
use residual_zoo_data::Corpus;

use crate::dashboard::{Dashboard, Display};
use crate::generate::{Generator, Sampling};
use crate::metrics::{Row, memory};
use crate::trainer::{SAMPLE, Step, derive_seed, read};
use crate::{Error, RunConfig, RunDir, Trainer, checkpoint, run_dir};

/// Where and how a run is written and shown.
#[derive(Clone)]
pub struct RunOptions {
    /// The directory to write, which must not exist.
    pub directory: PathBuf,
    /// What is shown meanwhile.
    pub display: Display,
    /// Peak of the device in TFLOP/s, to show the share in use.
    pub peak_tflops: Option<f64>,
    /// A run whose newest checkpoint gives the first weights and moments, see
    /// [`checkpoint::load_weights`].
    pub init_from: Option<PathBuf>,
    /// Set it to stop after the current step, with a checkpoint.
    pub stop: Interrupter,
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
    /// Training tokens per second over the whole run.
    pub tokens_per_second: f64,
    /// Whether it was stopped before its last step.
    pub stopped: bool,
    /// The last checkpoint.
    pub checkpoint: PathBuf,
}

/// Trains the model of `config` on `corpus`.
///
/// # Errors
///
/// When the config cannot be built, the directory exists or cannot be written, or the loss is no
/// longer a number.
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
    let mut trainer = Trainer::<B, C>::new(config, corpus, device)?;
    if let Some(run) = &options.init_from {
        start_from(&mut trainer, run, corpus, options.display)?;
    }
    let directory = RunDir::create(&options.directory, &trainer.config, corpus)?;
    Run::new(trainer, corpus, options, directory).finish()
}

/// The weights and moments of the newest checkpoint of `run`.
fn start_from<B, C>(
    trainer: &mut Trainer<B, C>,
    run: &Path,
    corpus: &Corpus,
    display: Display,
) -> Result<(), Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    let checkpoint = checkpoint::newest(run)?;
    for error in &checkpoint.passed_over {
        Dashboard::note(display, &format!("passed over: {error}"));
    }
    if run_dir::read_tokenizer(run)?.to_json() != corpus.tokenizer.to_json() {
        return Err(Error::NoRun {
            path: run.into(),
            problem: "was trained with another tokenizer, so its weights mean other tokens; use \
                      the same data, or give its tokenizer.json by --tokenizer"
                .into(),
        });
    }
    let kept = checkpoint::load_weights(trainer, &checkpoint.path)?;
    if let (Some(first), count) = (kept.first(), kept.len()) {
        let note = format!(
            "{count} numbers that are not trained, such as `{first}`, are those of {}, not of the \
             config",
            run.display()
        );
        Dashboard::note(display, &note);
    }
    Ok(())
}

struct Run<'a, B: AutodiffBackend, C: ModelConfig> {
    trainer: Trainer<B, C>,
    corpus: &'a Corpus,
    options: &'a RunOptions,
    directory: RunDir,
    dashboard: Dashboard,
    rows: Vec<Row>,
    interval: Interval<B>,
    /// The checkpoint of the lowest validation loss, and that loss.
    best: Option<(PathBuf, f64)>,
}

/// What happened since the last row.
struct Interval<B: AutodiffBackend> {
    steps: usize,
    /// Sum of the losses of the steps, on the device.
    loss: Option<Tensor<B::InnerBackend, 1>>,
    clock: Instant,
}

impl<B: AutodiffBackend> Interval<B> {
    fn start() -> Self {
        Self {
            steps: 0,
            loss: None,
            clock: Instant::now(),
        }
    }
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
    ) -> Self {
        let steps = (trainer.progress.step, trainer.config.train.steps);
        let bytes = corpus.bytes_per_token;
        let dashboard = Dashboard::open(options.display, steps, bytes, &options.stop);
        let (rows, interval) = (Vec::new(), Interval::start());
        Self {
            trainer,
            corpus,
            options,
            directory,
            dashboard,
            rows,
            interval,
            best: None,
        }
    }

    fn finish(mut self) -> Result<Summary, Error> {
        let train = self.trainer.config.train.clone();
        let valid_loss = self.trainer.validate();
        self.record(Row {
            valid_loss: Some(valid_loss),
            ..Row::default()
        })?;
        self.interval = Interval::start();

        let mut saved = None;
        loop {
            let lr = self.trainer.learning_rate();
            let step = self.trainer.step();
            let n = self.trainer.progress.step;
            let stopped = self.options.stop.should_stop();
            let last = n >= train.steps || stopped;
            let due = |every: usize| n.is_multiple_of(every) || last;
            let optional = |every: Option<usize>| every.is_some_and(due);

            self.interval.steps += 1;
            let sum = self.interval.loss.take();
            self.interval.loss = Some(match sum {
                Some(sum) => sum + step.loss.clone(),
                None => step.loss.clone(),
            });
            let pauses = due(train.validate_every)
                || optional(train.checkpoint_every)
                || optional(train.sample_every);
            if due(train.log_every) || pauses {
                let mut row = self.measure(&step, lr)?;
                let mut saved_now = false;
                if optional(train.checkpoint_every) || last {
                    let path = self.directory.checkpoint(n);
                    checkpoint::save(&self.trainer, &path)?;
                    saved = Some(path);
                    saved_now = true;
                }
                // Who stops a run does not wait for more than the checkpoint.
                if due(train.validate_every) && !stopped {
                    row.valid_loss = Some(self.trainer.validate());
                }
                if saved_now {
                    let path = saved.clone().zip(row.valid_loss);
                    self.keep_best(path);
                }
                self.record(row)?;
                if optional(train.sample_every) && !stopped {
                    self.sample(n)?;
                }
                self.interval = Interval::start();
            }
            if last {
                let checkpoint =
                    saved.unwrap_or_else(|| unreachable!("the last step makes a checkpoint"));
                return Ok(self.summary(checkpoint, stopped && n < train.steps));
            }
        }
    }

    /// Waits for the step to end and reads what it measured.
    fn measure(&mut self, step: &Step<B::InnerBackend>, lr: f64) -> Result<Row, Error> {
        let steps = self.interval.steps;
        let sum = self.interval.loss.as_ref().map_or(f64::NAN, read);
        let (loss, grad_norm) = (sum / steps as f64, read(&step.grad_norm));
        let seconds = self.interval.clock.elapsed().as_secs_f64();
        self.trainer.progress.seconds += seconds;
        let number = self.trainer.progress.step;
        for (quantity, value) in [("the loss", loss), ("the gradient norm", grad_norm)] {
            if !value.is_finite() {
                return Err(Error::NotFinite {
                    quantity,
                    value,
                    step: number,
                });
            }
        }
        let tokens = (steps * self.trainer.config.tokens_per_step()) as f64;
        let flops = self.trainer.step_flops() * steps as f64;
        Ok(Row {
            train_loss: Some(loss),
            lr: Some(lr),
            grad_norm: Some(grad_norm),
            tokens_per_second: Some(tokens / seconds),
            mfu: self
                .options
                .peak_tflops
                .map(|peak| flops / seconds / (peak * 1e12)),
            memory: memory(),
            ..Row::default()
        })
    }

    /// Deletes old checkpoints. `new` is the one just saved, with its validation loss.
    fn keep_best(&mut self, new: Option<(PathBuf, f64)>) {
        let lowest = self.best.as_ref().map_or(f64::INFINITY, |(_, loss)| *loss);
        self.best = new.filter(|(_, loss)| *loss < lowest).or(self.best.take());
        let Some(keep) = self.trainer.config.train.keep_checkpoints else {
            return;
        };
        let best = self.best.as_ref().map(|(path, _)| path.as_path());
        for error in checkpoint::prune(&self.options.directory, keep, best) {
            Dashboard::note(
                self.options.display,
                &format!("an old checkpoint stays: {error}"),
            );
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
        self.directory.log(&row)?;
        let per_token = self.trainer.step_flops() / self.trainer.config.tokens_per_step() as f64;
        self.dashboard.show(&row, per_token);
        self.rows.push(row);
        Ok(())
    }

    fn sample(&self, step: usize) -> Result<(), Error> {
        let Corpus {
            tokenizer, valid, ..
        } = self.corpus;
        let config = &self.trainer.config;
        let seed = derive_seed(config.train.seed, &[SAMPLE, step as u64]);
        let sampling = Sampling {
            seed,
            ..Sampling::default()
        };
        let mut prompt = Vec::new();
        valid.read(0, 1, &mut prompt);
        let model = self.trainer.model().valid();
        let sizes = (tokenizer.vocab_size(), config.model.context());
        let generator = Generator::new(&model, sizes, &prompt, sampling, self.trainer.device())?;
        let mut tokens = prompt.clone();
        tokens.extend(generator.take(config.train.sample_tokens));
        let text = tokenizer.decode(&tokens)?;
        self.directory.sample(step, &text)?;
        Dashboard::note(
            self.options.display,
            &format!("--- sample at step {step}\n{text}\n---"),
        );
        Ok(())
    }

    fn summary(self, checkpoint: PathBuf, stopped: bool) -> Summary {
        let vocab_size = self.corpus.tokenizer.vocab_size();
        let last = |field: fn(&Row) -> Option<f64>| {
            self.rows.iter().rev().find_map(field).unwrap_or(f64::NAN)
        };
        Summary {
            cost: self.trainer.config.model.cost(vocab_size),
            train_loss: last(|row| row.train_loss),
            valid_loss: last(|row| row.valid_loss),
            tokens_per_second: self.trainer.progress.tokens as f64 / self.trainer.progress.seconds,
            rows: self.rows,
            stopped,
            checkpoint,
        }
    }
}
