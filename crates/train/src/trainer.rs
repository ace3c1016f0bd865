//! One optimizer step and its parts.

use burn::module::AutodiffModule;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo_core::{LanguageModel, ModelConfig, loss::Loss};
use residual_zoo_data::{Batch, Corpus, Windows};
use serde::{Deserialize, Serialize};

use crate::optimizer::{self, Optimizer};
use crate::{Error, RunConfig};

/// How far a run has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    windows: Windows,
    validation: Vec<Batch>,
    step_flops: f64,
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

/// Inputs and targets on the device, `[batch, time]`.
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
        let vocab_size = corpus.tokenizer.vocab_size();
        config.validate(vocab_size)?;
        let (train, time) = (&config.train, config.time());
        for tokens in [&corpus.train, &corpus.valid] {
            tokens.check(vocab_size)?;
        }
        let windows = Windows::new(corpus.train.clone(), time, "training text")?;
        let validation = Windows::new(corpus.valid.clone(), time, "validation text")?;
        let validation = validation.even_batches(train.validate_batches, train.batch);
        B::seed(&device, derive_seed(train.seed, &[INIT]));
        let model = config.model.init(vocab_size, &device)?;
        let flops_per_token = config.model.cost(vocab_size).training_flops() as f64;
        Ok(Self {
            model: Some(model),
            optimizer: Optimizer::new(train),
            progress: Progress::default(),
            windows,
            validation,
            step_flops: flops_per_token * config.tokens_per_step() as f64,
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
        self.windows.random_batch(
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
        if self.config.model.has_dropout() {
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
        self.progress.tokens += self.config.tokens_per_step() as u64;
        self.progress.flops += self.step_flops;
        Step {
            loss,
            grad_norm,
            skipped,
        }
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        optimizer::learning_rate(&self.config.train, self.progress.step)
    }

    /// Mean cross-entropy of the validation batches, which are the same every time, nats per
    /// token.
    pub fn validate(&self) -> f64 {
        let model = self.model().valid();
        let sum: f64 = self
            .validation
            .iter()
            .map(|batch| {
                let [inputs, targets] = upload(batch, &self.device);
                let loss = Loss::new(model.forward(inputs), targets);
                read(&loss.cross_entropy) * batch.batch as f64
            })
            .sum();
        sum / self
            .validation
            .iter()
            .map(|batch| batch.batch as f64)
            .sum::<f64>()
    }

    /// Where the model is.
    pub fn device(&self) -> &B::Device {
        &self.device
    }

    /// Training FLOPs of one step.
    pub fn step_flops(&self) -> f64 {
        self.step_flops
    }
}

fn upload<B: Backend>(batch: &Batch, device: &B::Device) -> DeviceBatch<B> {
    [&batch.inputs, &batch.targets].map(|ids| {
        let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        Tensor::from_data(TensorData::new(ids, [batch.batch, batch.time]), device)
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
