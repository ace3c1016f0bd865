//! The config of a run as a RON file: model, data and training.

use std::path::Path;

use residual_zoo_core::{
    ConfigError, ModelConfig, Muon, Params, Precision, Recompute, Vocabulary, check,
};
use residual_zoo_data::DataConfig;
use residual_zoo_system::counted;
use serde::{Deserialize, Serialize};

use crate::ron_text::{extensions, options, parse_ron};
use crate::row::MOST_STEPS;
use crate::{Error, budget};

/// The config of a run: the content of a run file under `experiments/`, and of `config.ron` in a run directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig<M> {
    /// The model.
    pub model: M,
    /// The data.
    #[serde(default)]
    pub data: DataConfig,
    /// The training.
    #[serde(default)]
    pub train: TrainConfig,
}

/// The training settings. Defaults follow nanoGPT where it has a corresponding setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Seed of the initial weights, the batches and dropout.
    pub seed: u64,
    /// Number of optimizer steps.
    pub steps: usize,
    /// The training budget in tokens, which replaces `steps`. For image models, the budget is in images. The run takes
    /// the smallest number of steps that reaches the budget. `None` uses `steps`.
    pub tokens: Option<f64>,
    /// Sequences per micro-batch.
    pub batch: usize,
    /// Micro-batches per step. Their gradients are accumulated.
    pub accumulate: usize,
    /// Tokens per training sequence. `None` means the context of the model.
    pub time: Option<usize>,
    /// Peak learning rate, reached after the warmup.
    pub learning_rate: f64,
    /// Learning rate at the last step: a share of the peak, `Ratio(0.1)`, or a learning rate, `Rate(1e-4)`.
    pub min_learning_rate: MinLearningRate,
    /// Number of steps over which the learning rate rises linearly. Step t, counted from 1, has the learning rate
    /// `learning_rate` · t / (`warmup` + 1), as in nanoGPT.
    pub warmup: usize,
    /// The schedule of the learning rate.
    pub schedule: Schedule,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Decay rate of AdamW's first moment.
    pub beta_1: f64,
    /// Decay rate of AdamW's second moment.
    pub beta_2: f64,
    /// ε, added to the square root of AdamW's second moment.
    pub eps: f64,
    /// Weight decay: decoupled with AdamW and Muon, added to the gradient with SGD. Weight decay does not apply to
    /// norms, embeddings, the unembedding, biases, nGPT's unit vectors or the weights that mix streams.
    pub weight_decay: f64,
    /// An exponential moving average that the run keeps in addition to the weights. `None` keeps no average. Each
    /// validation also measures the loss of the average (`ema_valid_loss`). With `--weights ema`, commands that
    /// generate, evaluate or export use the average.
    pub ema: Option<Ema>,
    /// Maximum global norm of the gradients. `None` disables clipping.
    pub grad_clip: Option<f64>,
    /// Coefficient of the z-loss: this number times (log Z)² is added to the cross-entropy, where Z is the normaliser
    /// of the softmax. Reported losses exclude the z-loss.
    pub z_loss: f64,
    /// ε of label smoothing: this share of each target's probability is spread equally over all classes or tokens.
    /// Reported losses exclude label smoothing.
    pub label_smoothing: f64,
    /// Number format of matrix products and attention. `None` means the backend's default: `Tf32` on `cuda`, otherwise
    /// `F32`. A run continues only in the same precision, unless `--allow-config-change` is given.
    pub precision: Option<Precision>,
    /// Whether LibTorch uses only GPU kernels that give the same result in each run. Some steps then take longer. Flex,
    /// and LibTorch on a CPU, always give the same results.
    pub deterministic: bool,
    /// The activations that are kept for the backward pass, which recomputes all other activations. Recomputation takes
    /// less memory and more time. The results stay the same, except for rounding in a recurrence and in connections
    /// that read earlier streams. `None` keeps all activations.
    pub recompute: Option<Recompute>,
    /// Whether several processes share the moments of AdamW or Muon. Each process keeps the moments of some parameters,
    /// updates these parameters, and sends them to the other processes. The results are the same as without sharing
    /// (ZeRO stage 1, Rajbhandari et al. 2020).
    pub shard_optimizer: bool,
    /// Whether the run also writes event files for TensorBoard, in its `tensorboard/` directory.
    pub tensorboard: bool,
    /// Steps between two log lines.
    pub log_every: usize,
    /// Steps between two validations.
    pub validate_every: usize,
    /// Number of batches per validation. Every validation uses the same batches.
    pub validate_batches: usize,
    /// The validation loss, in nats, below which a curriculum moves to its next level.
    pub curriculum_below: f64,
    /// Steps between two checkpoints. `None` saves at every validation, or less often if saving would take more than 3
    /// % of the training time. The last step is always saved.
    pub checkpoint_every: Option<usize>,
    /// Number of newest checkpoints to keep, in addition to the checkpoint with the lowest validation loss. `None`
    /// keeps all.
    pub keep_checkpoints: Option<usize>,
    /// Number of consecutive skipped steps at which the run stops. A step is skipped if its loss or gradients are not
    /// finite.
    pub max_skipped: usize,
    /// The z-score at which a loss is reported as a spike: the number of standard deviations above the
    /// mean of the last 128 losses. `None` disables reports.
    pub spike_z: Option<f64>,
    /// The reaction when a row, a sample or a checkpoint cannot be written.
    pub on_disk_error: OnDiskError,
    /// Steps between two text samples. `None` disables samples.
    pub sample_every: Option<usize>,
    /// Tokens per sample.
    pub sample_tokens: usize,
}

/// The learning rate at the last step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum MinLearningRate {
    /// A learning rate.
    Rate(f64),
    /// A share of the peak learning rate. The share also applies to a peak that is overridden or swept.
    Ratio(f64),
}

impl MinLearningRate {
    /// Returns the learning rate at the last step, for this peak.
    pub fn of(self, peak: f64) -> f64 {
        match self {
            Self::Rate(rate) => rate,
            Self::Ratio(ratio) => ratio * peak,
        }
    }

    fn validate(self, peak: f64) -> Result<(), ConfigError> {
        let rate = self.of(peak);
        if (0.0..=peak).contains(&rate) {
            return Ok(());
        }
        let problem = match self {
            Self::Rate(_) => {
                format!("is {rate}; it must be between 0 and `learning_rate` = {peak}")
            }
            Self::Ratio(ratio) => format!("is Ratio({ratio}); it must be between 0 and 1"),
        };
        Err(ConfigError::new("min_learning_rate", problem))
    }
}

/// The schedule of the learning rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Schedule {
    /// A linear rise over `warmup` steps to `learning_rate`, then half a cosine down to
    /// `min_learning_rate` at the last step (Loshchilov and Hutter, "SGDR", 2017, without restarts).
    #[default]
    Cosine,
    /// The same rise, then a linear fall to `min_learning_rate` at the last step.
    Linear,
    /// The same rise, then a constant `learning_rate`, then a fall to `min_learning_rate` at the last step (Hu et al.,
    /// "MiniCPM", 2024).
    Wsd {
        /// The share of the steps in which the learning rate falls.
        decay: f64,
        /// The shape of the fall.
        #[serde(default)]
        shape: DecayShape,
    },
    /// `Cosine` times a factor that follows the curriculum, as in the published code of Kausik, "Scaling efficient
    /// LLMs" (2024); docs/papers/recurrent.md explains the factor. Each new level multiplies the factor by 1 − ½ l /
    /// l_max, where l is the length of a sequence at that level, and l_max at the last level. At the last level, the
    /// product of these factors is multiplied by 1 − exp(−loss), where loss is the lowest validation loss at that
    /// level.
    Kausik,
}

impl Schedule {
    fn validate(self) -> Result<(), ConfigError> {
        match self {
            Self::Wsd { decay, .. } if !(decay > 0.0 && decay <= 1.0) => {
                let problem = format!("is {decay}; it must be above 0 and at most 1");
                Err(ConfigError::new("schedule.decay", problem))
            }
            _ => Ok(()),
        }
    }
}

/// The shape of the decay from 1 to 0, as a function of p, the completed share of the decay's steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DecayShape {
    /// 1 − p.
    #[default]
    Linear,
    /// ½ (1 + cos πp).
    Cosine,
    /// 1 − √p (Hägele et al., "Scaling laws and compute-optimal training beyond fixed training durations", 2024).
    OneMinusSqrt,
}

impl DecayShape {
    /// Returns the height of the curve after the share `p` of the decay.
    pub fn at(self, p: f64) -> f64 {
        match self {
            Self::Linear => 1.0 - p,
            Self::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * p).cos()),
            Self::OneMinusSqrt => 1.0 - p.sqrt(),
        }
    }
}

/// The optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum OptimizerKind {
    /// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019).
    #[default]
    AdamW,
    /// Stochastic gradient descent as in PyTorch: m ← momentum · m + gradient, x ← x − learning rate · m. The gradient
    /// includes the weight decay times x.
    Sgd {
        /// The share of m that each step keeps; 0 for none.
        momentum: f64,
    },
    /// Muon for the matrices between hidden features, and AdamW, with the fields of `train`, for all other parameters.
    Muon(Muon),
}

impl OptimizerKind {
    /// Returns the number of values in all moments of a model with `params`. Muon keeps one value for each element of a
    /// hidden matrix. For simplicity, vectors between the embedding and the unembedding are counted as hidden matrices.
    pub fn moments(self, params: Params) -> usize {
        let (all, outside) = (params.total(), params.embedding + params.unembedding);
        match self {
            Self::AdamW => all.saturating_mul(2),
            Self::Sgd { .. } => all,
            Self::Muon(_) => all.saturating_add(outside),
        }
    }

    /// Whether a run can continue with the moments of an optimizer of kind `other`.
    pub fn continues(self, other: Self) -> bool {
        let shape = [1; 3];
        match (self, other) {
            (Self::Muon(this), Self::Muon(other)) => this.squares(shape) == other.squares(shape),
            _ => std::mem::discriminant(&self) == std::mem::discriminant(&other),
        }
    }

    fn validate(self) -> Result<(), ConfigError> {
        match self {
            Self::AdamW => Ok(()),
            Self::Sgd { momentum } => check::fraction("momentum", momentum),
            Self::Muon(muon) => muon.validate(),
        }
    }
}

/// An exponential moving average of the weights. In the t-th step after the average began, the average e becomes c e +
/// (1 − c) w, where w are the weights. `start` determines c. The average begins with the run, or when a run continues
/// with a new `ema`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ema {
    /// d, the share of the average that a step keeps. The average covers about the last 1 / (1 − d) steps.
    pub decay: f64,
    /// The treatment of the initial weights, which determines c.
    pub start: EmaStart,
}

/// The treatment of the initial weights in an average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EmaStart {
    /// c = d. At first, the average equals the initial weights.
    Initial,
    /// c = min(d, (1 + t) / (10 + t)). At first, the average equals the initial weights, but it soon forgets them
    /// (TensorFlow's `num_updates`).
    #[default]
    Warm,
    /// c = d (1 − dᵗ⁻¹) / (1 − dᵗ): the initial weights have no share, as in Adam's moments (Kingma and Ba 2015).
    Debiased,
}

impl Default for Ema {
    fn default() -> Self {
        Self {
            decay: 0.999,
            start: EmaStart::Warm,
        }
    }
}

impl Ema {
    /// Returns c for step `t`, counted from 1.
    pub fn share(self, t: usize) -> f64 {
        let (d, t) = (self.decay, t as f64);
        match self.start {
            EmaStart::Initial => d,
            EmaStart::Warm => d.min((1.0 + t) / (10.0 + t)),
            EmaStart::Debiased => d * (1.0 - d.powf(t - 1.0)) / (1.0 - d.powf(t)),
        }
    }
}

/// The reaction of a run to an I/O error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDiskError {
    /// The run stops. The last checkpoint stays intact.
    #[default]
    Stop,
    /// The run prints the error and continues. Rows are written as soon as writing works again. If the last checkpoint
    /// cannot be written, the run still fails.
    Continue,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            seed: 1337,
            steps: 1000,
            tokens: None,
            batch: 8,
            accumulate: 1,
            time: None,
            learning_rate: 1e-3,
            min_learning_rate: MinLearningRate::Ratio(0.1),
            warmup: 100,
            schedule: Schedule::Cosine,
            optimizer: OptimizerKind::AdamW,
            beta_1: 0.9,
            beta_2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            ema: None,
            grad_clip: Some(1.0),
            z_loss: 1e-4,
            label_smoothing: 0.0,
            precision: None,
            deterministic: false,
            recompute: None,
            shard_optimizer: false,
            tensorboard: false,
            log_every: 10,
            validate_every: 250,
            validate_batches: 20,
            curriculum_below: 0.3,
            checkpoint_every: None,
            keep_checkpoints: Some(3),
            max_skipped: 10,
            spike_z: Some(6.0),
            on_disk_error: OnDiskError::Stop,
            sample_every: None,
            sample_tokens: 200,
        }
    }
}

impl TrainConfig {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        // If `tokens` is set, the number of steps follows from it.
        check::positive("tokens", self.tokens.unwrap_or(1.0))?;
        if let (Some(tokens), true) = (self.tokens, self.steps > MOST_STEPS) {
            let problem = format!("is {tokens}; no run is that long");
            return Err(ConfigError::new("tokens", problem));
        }
        check::at_least_one("steps", self.steps)?;
        check::at_most("steps", self.steps, MOST_STEPS)?;
        check::size("batch", self.batch)?;
        check::at_least_one("accumulate", self.accumulate)?;
        check::at_most("accumulate", self.accumulate, MOST_MICRO_BATCHES)?;
        check::size("time", self.time.unwrap_or(1))?;
        check::positive("learning_rate", self.learning_rate)?;
        self.min_learning_rate.validate(self.learning_rate)?;
        check::at_most("warmup", self.warmup, MOST_STEPS)?;
        self.schedule.validate()?;
        if self.recompute == Some(Recompute::Every(0)) {
            let problem = "is Every(0); it must be Every(1) or more";
            return Err(ConfigError::new("recompute", problem));
        }
        let valid = self.optimizer.validate();
        valid.map_err(|error| error.within("optimizer"))?;
        check::fraction("beta_1", self.beta_1)?;
        check::fraction("beta_2", self.beta_2)?;
        check::positive("eps", self.eps)?;
        check::not_negative("weight_decay", self.weight_decay)?;
        check::fraction("ema.decay", self.ema.unwrap_or_default().decay)?;
        check::positive("grad_clip", self.grad_clip.unwrap_or(1.0))?;
        check::not_negative("z_loss", self.z_loss)?;
        check::fraction("label_smoothing", self.label_smoothing)?;
        check::at_least_one("log_every", self.log_every)?;
        check::at_least_one("validate_every", self.validate_every)?;
        check::size("validate_batches", self.validate_batches)?;
        check::positive("curriculum_below", self.curriculum_below)?;
        check::at_least_one("checkpoint_every", self.checkpoint_every.unwrap_or(1))?;
        check::at_least_one("max_skipped", self.max_skipped)?;
        check::positive("spike_z", self.spike_z.unwrap_or(1.0))?;
        check::at_least_one("sample_every", self.sample_every.unwrap_or(1))?;
        check::size("sample_tokens", self.sample_tokens)
    }
}

impl<M: ModelConfig> RunConfig<M> {
    /// Makes the config of a run of `model`, with the default data and training settings.
    pub fn new(model: M) -> Self {
        Self {
            model,
            data: DataConfig::default(),
            train: TrainConfig::default(),
        }
    }

    /// Reads a RON file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, and the errors of [`parse`](Self::parse).
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::parse(&residual_zoo_data::read_utf8(path)?, path)
    }

    /// Parses RON text. Errors refer to the text as `path`.
    ///
    /// # Errors
    ///
    /// Returns an error with the line and column if the text does not parse. Also returns an error if the text has both
    /// `train.steps` and `train.tokens`, but another number of steps reaches the budget in tokens.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        if text.len() > MOST_BYTES {
            return Err(Error::Parse {
                path: path.into(),
                line: 1,
                column: 1,
                problem: format!("a config can have at most {MOST_BYTES} bytes"),
            });
        }
        let config: Self = parse_ron(text, path)?;
        if let (Some(steps), Some(tokens)) = (budget::written(text), config.train.tokens) {
            let needed = config.clone().with_budget().train.steps;
            // The config in a run directory has both fields, so they must agree.
            budget::check((steps, tokens), Some(needed), path)?;
        }
        Ok(config)
    }

    /// Returns the config as RON text that [`read`](Self::read) can read. All fields are written out.
    pub fn to_ron(&self) -> String {
        let text = self.to_hashed_text();
        // In enums other than `Option`, RON writes a variant called `None` as `r#None`. RON reads both forms if no
        // other `None` fits.
        let plain = text.replace(": r#None,", ": None,");
        let again = parse_ron::<Self>(&plain, Path::new(""));
        match again.is_ok_and(|again| again.to_hashed_text() == text) {
            true => plain,
            false => text,
        }
    }

    /// Returns the config as RON text for a hash. Even if the layout of [`to_ron`](Self::to_ron) changes, this text
    /// stays the same, so that entries stored under the hash are still found.
    pub fn to_hashed_text(&self) -> String {
        let pretty = ron::ser::PrettyConfig::new()
            .indentor("  ")
            .extensions(extensions());
        let text = options().to_string_pretty(self, pretty);
        text.unwrap_or_else(|error| unreachable!("a config is plain data: {error}"))
    }

    /// Returns what the model reads and predicts: the images of the data and their classes, or the tokens of `text`.
    pub fn vocabulary(&self, text: impl Into<Vocabulary>) -> Vocabulary {
        let text = text.into();
        match self.data.image() {
            Some(size) => Vocabulary::of_images(size.into(), self.data.outputs(0)),
            None => text,
        }
    }

    /// Checks the fields of `model` and `train` by themselves, against each other, against the vocabulary, and against
    /// the sequence length of the data. [`DataConfig::validate`] checks the fields of `data`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field, with its path.
    pub fn validate(&self, vocabulary: impl Into<Vocabulary>) -> Result<(), ConfigError> {
        let vocabulary = self.vocabulary(vocabulary);
        vocabulary.validate()?;
        self.model
            .validate()
            .map_err(|error| error.within("model"))?;
        self.model.reads(vocabulary)?;
        self.train
            .validate()
            .map_err(|error| error.within("train"))?;
        if let (OptimizerKind::Muon(_), true) = (self.train.optimizer, self.model.has_rates()) {
            let problem = "is Muon, but the model's `mup` sets learning rates for AdamW; leave `mup` out, or use AdamW";
            return Err(ConfigError::new("train.optimizer", problem));
        }
        self.validate_lengths()?;
        self.validate_sizes(vocabulary)
    }

    /// Checks the sequence lengths, and that samples are taken only if the data are text.
    fn validate_lengths(&self) -> Result<(), ConfigError> {
        let (time, context) = (self.time(), self.model.shape().context);
        if let (Some(own), Some(asked)) = (self.data.time(), self.train.time)
            && own != asked
        {
            let problem = format!(
                "is {asked}, but the data have sequences of {}; leave it out",
                counted(own, "token")
            );
            return Err(ConfigError::new("train.time", problem));
        }
        if self.data.time().is_some() && self.train.sample_every.is_some() {
            let problem = "is set, but the data are not text; leave it out";
            return Err(ConfigError::new("train.sample_every", problem));
        }
        if time > context {
            return Err(match self.data.time() {
                Some(_) => ConfigError::new(
                    "data.source",
                    format!(
                        "has sequences of {time} tokens, more than the context {context} of the model; make them \
                         shorter, or raise `model.context`"
                    ),
                ),
                None => ConfigError::new(
                    "train.time",
                    format!("is {time}, more than the context {context} of the model"),
                ),
            });
        }
        Ok(())
    }

    /// Checks the number of parameters and of tokens per micro-batch.
    fn validate_sizes(&self, vocabulary: Vocabulary) -> Result<(), ConfigError> {
        let parameters = self.model.cost(vocabulary).params.total();
        if parameters > MOST_PARAMETERS {
            let problem = format!(
                "has more than {MOST_PARAMETERS} parameters, which fit on no machine; check its sizes"
            );
            return Err(ConfigError::new("model", problem));
        }
        let tokens = self.train.batch.saturating_mul(self.time());
        if tokens > MOST_TOKENS {
            let problem = format!(
                "is {}, with sequences of {} tokens; a micro-batch can have at most {MOST_TOKENS} tokens",
                self.train.batch,
                self.time()
            );
            return Err(ConfigError::new("train.batch", problem));
        }
        Ok(())
    }

    /// Returns the number of tokens per training sequence; with a curriculum, at its last level.
    pub fn time(&self) -> usize {
        let time = self.data.time().or(self.train.time);
        time.unwrap_or(self.model.shape().context)
    }

    /// Sets `train.steps` to the number of steps that reaches `train.tokens`, if there is such a budget.
    #[must_use]
    pub fn with_budget(mut self) -> Self {
        if let Some(tokens) = self.train.tokens {
            let steps = (tokens / self.tokens_per_step().max(1) as f64).ceil();
            // A value outside the range is refused when the config is validated.
            self.train.steps = steps as usize;
        }
        self
    }

    /// Returns the number of tokens per optimizer step; with a curriculum, at its last level.
    pub fn tokens_per_step(&self) -> usize {
        let sequences = self.train.batch.saturating_mul(self.train.accumulate);
        sequences.saturating_mul(self.time())
    }
}

/// Maximum number of micro-batches per step. The limit bounds the time until a run stops: a stop waits for the end of
/// the step, unless image files are being read.
const MOST_MICRO_BATCHES: usize = 1 << 16;
/// Maximum size of a config, in bytes. A parsed config takes up to a hundred times its size in memory.
const MOST_BYTES: usize = 1 << 18;
/// Maximum number of parameters of a model. The limit is far above trainable sizes, and catches typing errors before
/// they exhaust the memory.
const MOST_PARAMETERS: usize = 1_000_000_000_000;
/// Maximum tokens per micro-batch. Some backends index tokens with 31 bits.
const MOST_TOKENS: usize = i32::MAX as usize;
