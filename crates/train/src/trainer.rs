//! One optimizer step and its parts.

use burn::module::AutodiffModule;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo_core::ops::loss::{self, Loss};
use residual_zoo_core::{LanguageModel, ModelConfig, Vocabulary};
use residual_zoo_data::{Batch, Corpus, Sequences};
use serde::{Deserialize, Serialize};

use crate::optimizer::{self, Optimizer};
use crate::schedule::{self, Curriculum};
use crate::{Error, RunConfig, TrainConfig};

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Optimizer steps made, skipped ones too.
    pub step: usize,
    /// Training tokens seen.
    pub tokens: u64,
    /// Training FLOPs, by the model's cost.
    pub flops: f64,
    /// Seconds of training.
    pub seconds: f64,
    /// Steps that were skipped because their loss or gradients were not finite.
    pub skipped: usize,
    /// How many of them were the last ones, with no good step since.
    pub skipped_in_a_row: usize,
    /// Level of the curriculum, from 0.
    pub level: usize,
    /// The factor of [`Schedule`](crate::Schedule) on the learning rate.
    pub lr_scale: f64,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            step: 0,
            tokens: 0,
            flops: 0.0,
            seconds: 0.0,
            skipped: 0,
            skipped_in_a_row: 0,
            level: 0,
            lr_scale: 1.0,
        }
    }
}

/// What a validation found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validation {
    /// Mean cross-entropy of the targets, nats per token.
    pub loss: f64,
    /// Share of the targets that were the likeliest.
    pub accuracy: f64,
}

/// A model in training. All that it draws at random is a function of the seed and the step.
///
/// Initial weights and dropout come from Burn's generator, of which each backend has one in a
/// process: two trainers that step at the same time on one backend are not reproducible.
pub struct Trainer<B: AutodiffBackend, C: ModelConfig> {
    /// The run, with every field resolved.
    pub config: RunConfig<C>,
    /// Always there, but for the moment in which the optimizer has it: a copy would keep the old
    /// weights alive beside the new ones.
    model: Option<C::Model<B>>,
    /// The optimizer.
    pub optimizer: Optimizer<B>,
    /// Steps, tokens and FLOPs so far.
    pub progress: Progress,
    device: B::Device,
    training: Sequences,
    validation: Sequences,
    flops_per_token: f64,
}

/// What a step measured.
#[derive(Clone, Debug)]
pub struct Step {
    /// Mean cross-entropy of the batch, nats per token.
    pub loss: f64,
    /// Norm of all gradients before clipping.
    pub grad_norm: f64,
    /// Of a step that was skipped because one of these is not finite: the parameters whose
    /// gradient is not.
    pub skipped: Option<Vec<String>>,
}

/// Inputs `[batch, time]` and targets `[batch, scored]` on the device.
pub type DeviceBatch<B> = [Tensor<B, 2, Int>; 2];

impl<B: AutodiffBackend, C: ModelConfig> Trainer<B, C>
where
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    /// A model with fresh weights.
    ///
    /// # Errors
    ///
    /// When the config cannot be built, or the data are too short for it or have ids that are none
    /// of the tokenizer's.
    pub fn new(config: RunConfig<C>, corpus: &Corpus, device: B::Device) -> Result<Self, Error> {
        let vocabulary = vocabulary(corpus);
        config.validate(vocabulary)?;
        for examples in [&corpus.train, &corpus.valid] {
            examples.check(vocabulary.ids, vocabulary.outputs)?;
        }
        let time = config.time();
        let training = corpus.train.sequences(time, "training text")?;
        let validation = corpus.valid.sequences(time, "validation text")?;
        clear_graphs::<B>(&device);
        B::seed(&device, derive_seed(config.train.seed, &[INIT]));
        let model = config.model.build(vocabulary, &device)?;
        let cost = config.model.cost(vocabulary);
        Ok(Self {
            model: Some(model),
            optimizer: Optimizer::new(&config.train),
            progress: Progress::default(),
            training,
            validation,
            flops_per_token: cost.training_flops() as f64,
            config,
            device,
        })
    }

    /// The model.
    pub fn model(&self) -> &C::Model<B> {
        self.model
            .as_ref()
            .unwrap_or_else(|| unreachable!("a step gives the model back"))
    }

    /// Trains `model` from now on, whose parameters must be those of the config.
    pub fn replace_model(&mut self, model: C::Model<B>) {
        self.model = Some(model);
    }

    /// Makes one step. One whose loss or gradients are not finite leaves weights and moments as
    /// they are; it still counts, so that the next one has other data.
    pub fn step(&mut self) -> Step {
        let micro_batches = self.config.train.accumulate;
        let mut accumulator = GradientsAccumulator::new();
        let mut total: Option<Tensor<B::InnerBackend, 1>> = None;
        for micro in 0..micro_batches {
            let batch = self.upload(&self.batch(micro));
            let loss = self.forward(batch, micro);
            let part = loss.cross_entropy.clone().inner() / micro_batches as f64;
            total = Some(match total {
                Some(total) => total + part,
                None => part,
            });
            accumulator.accumulate(self.model(), self.backward(&loss));
        }
        let loss = total.unwrap_or_else(|| unreachable!("`accumulate` is at least 1"));
        self.update(read(&loss), accumulator.grads())
    }

    /// The data of micro-batch `micro` of the next step.
    pub fn batch(&self, micro: usize) -> Batch {
        let train = &self.config.train;
        self.training.at_level(self.progress.level).random_batch(
            train.seed,
            self.progress.step as u64,
            micro as u64,
            train.batch,
        )
    }

    /// Copies a batch to the device.
    pub fn upload(&self, batch: &Batch) -> DeviceBatch<B> {
        upload(batch, &self.device)
    }

    /// The loss of a micro-batch.
    pub fn forward(&self, [inputs, targets]: DeviceBatch<B>, micro: usize) -> Loss<B> {
        if self.config.model.shape().dropout > 0.0 {
            let at = [DROPOUT, self.progress.step as u64, micro as u64];
            B::seed(&self.device, derive_seed(self.config.train.seed, &at));
        }
        Loss::new(self.model().forward(inputs), targets)
    }

    /// The gradients of a micro-batch's share of the objective.
    pub fn backward(&self, loss: &Loss<B>) -> GradientsParams {
        let train = &self.config.train;
        let objective = loss.with_z_loss(train.z_loss) / train.accumulate as f64;
        GradientsParams::from_grads(objective.backward(), self.model())
    }

    /// Clips `grads`, updates the weights and counts the step, whose mean cross-entropy is `loss`.
    pub fn update(&mut self, loss: f64, grads: GradientsParams) -> Step {
        let train = &self.config.train;
        let norm = optimizer::global_norm::<B, _>(self.model(), &grads, &self.device);
        // Waiting for the norm in every step is what it takes to never apply a bad gradient.
        let grad_norm = read(&norm);
        let healthy = loss.is_finite() && grad_norm.is_finite();
        let skipped = (!healthy).then(|| optimizer::not_finite::<B, _>(self.model(), &grads));
        if healthy {
            let clip = |limit| optimizer::clip_scale(&norm, limit);
            let scale = train.grad_clip.map(clip);
            let lr = self.learning_rate();
            let model = self.model.take();
            self.model = model.map(|model| self.optimizer.step(model, grads, scale, lr));
            self.progress.skipped_in_a_row = 0;
        } else {
            self.progress.skipped += 1;
            self.progress.skipped_in_a_row += 1;
        }
        self.progress.step += 1;
        self.progress.tokens += self.tokens_per_step() as u64;
        self.progress.flops += self.step_flops();
        Step {
            loss,
            grad_norm,
            skipped,
        }
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        schedule::cosine(&self.config.train, self.progress.step) * self.progress.lr_scale
    }

    /// How the model does on the validation batches, which are the same every time.
    pub fn validate(&self) -> Validation {
        let model = self.model().valid();
        let TrainConfig {
            validate_batches,
            batch,
            ..
        } = self.config.train;
        let sequences = self.validation.at_level(self.progress.level);
        let (mut loss, mut accuracy, mut count) = (0.0, 0.0, 0.0);
        for batch in sequences.fixed_batches(validate_batches, batch) {
            let [inputs, targets] = upload(&batch, &self.device);
            let logits = model.forward(inputs);
            let share = loss::accuracy(logits.clone(), targets.clone());
            let weight = batch.batch as f64;
            loss += weight * read(&Loss::new(logits, targets).cross_entropy);
            accuracy += weight * read(&share);
            count += weight;
        }
        Validation {
            loss: loss / count,
            accuracy: accuracy / count,
        }
    }

    /// Moves to the next level of the curriculum if the validation loss is below
    /// `train.curriculum_below`, and tells the schedule. Returns whether it moved.
    pub fn advance_curriculum(&mut self, validation_loss: f64) -> bool {
        let last = self.training.last_level();
        if last == 0 {
            return false;
        }
        let was_last = self.progress.level == last;
        let advanced = !was_last && validation_loss < self.config.train.curriculum_below;
        self.progress.level += usize::from(advanced);
        let length = |level| self.training.at_level(level).time() as f64;
        let curriculum = Curriculum {
            was_last,
            advanced,
            lengths: (length(self.progress.level), length(last)),
        };
        let schedule = self.config.train.schedule;
        self.progress.lr_scale =
            schedule.factor(self.progress.lr_scale, validation_loss, curriculum);
        advanced
    }

    /// Level of the curriculum, where there is one.
    pub fn level(&self) -> Option<usize> {
        (self.training.last_level() > 0).then_some(self.progress.level)
    }

    /// Where the model is.
    pub fn device(&self) -> &B::Device {
        &self.device
    }

    /// Training tokens of a step.
    pub fn tokens_per_step(&self) -> usize {
        let TrainConfig {
            batch, accumulate, ..
        } = self.config.train;
        batch * accumulate * self.training.at_level(self.progress.level).time()
    }

    /// Training FLOPs of a token.
    pub fn flops_per_token(&self) -> f64 {
        self.flops_per_token
    }

    /// Training FLOPs of a step.
    pub fn step_flops(&self) -> f64 {
        self.flops_per_token * self.tokens_per_step() as f64
    }
}

/// What a model of `corpus` reads and writes.
pub fn vocabulary(corpus: &Corpus) -> Vocabulary {
    Vocabulary {
        ids: corpus.tokenizer.vocab_size(),
        outputs: corpus.outputs,
    }
}

/// Lets go of the graphs of passes that were never differentiated, such as that of a run which
/// panicked for want of memory: autodiff keeps them until the next backward pass has ended.
fn clear_graphs<B: AutodiffBackend>(device: &B::Device) {
    Tensor::<B, 1>::ones([1], device).require_grad().backward();
}

fn upload<B: Backend>(batch: &Batch, device: &B::Device) -> DeviceBatch<B> {
    let parts = [(&batch.inputs, batch.time), (&batch.targets, batch.scored)];
    parts.map(|(ids, length)| {
        let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        Tensor::from_data(TensorData::new(ids, [batch.batch, length]), device)
    })
}

/// Waits for a number on the device.
pub(crate) fn read<B: Backend>(x: &Tensor<B, 1>) -> f64 {
    x.to_data().iter::<f64>().next().unwrap_or(f64::NAN)
}

const INIT: u64 = 0;
const DROPOUT: u64 = 1;
pub(crate) const SAMPLE: u64 = 2;

/// An independent seed for every purpose and step: the output function of SplitMix64 (Steele et
/// al., "Fast splittable pseudorandom number generators", 2014) over the parts in turn.
pub(crate) fn derive_seed(seed: u64, parts: &[u64]) -> u64 {
    parts.iter().fold(seed, |state, part| {
        let z = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
