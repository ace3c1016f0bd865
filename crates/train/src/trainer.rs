//! The trainer: an optimizer step and its parts, and validation.

use std::collections::BTreeMap;

use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo_core::ops::{
    self,
    loss::{self, Loss},
};
use residual_zoo_core::params::ImportError;
use residual_zoo_core::recompute::{self, Recording, Seeds};
use residual_zoo_core::statistics::{self, Statistic};
use residual_zoo_core::{
    Input, LanguageModel, ModelConfig, Precision, Tensors, Vocabulary, autodiff, params,
};
use residual_zoo_data::{Batch, Corpus, ImageBatch, Sequences, derive_seed};
use residual_zoo_runs::{Error, RunConfig, TrainConfig, vocabulary};
use serde::{Deserialize, Serialize};

use crate::ahead::{Ahead, Place};
use crate::average::averaged;
use crate::optimizer::{self, Moments, Optimizer};
use crate::schedule::{self, Curriculum};
use crate::team::{self, Team};

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Optimizer steps so far, including skipped steps.
    pub step: usize,
    /// Training tokens so far.
    pub tokens: u64,
    /// Training FLOPs so far, according to the model's cost.
    pub flops: f64,
    /// Seconds of training so far.
    pub seconds: f64,
    /// Number of steps that were skipped because the loss or gradients were not finite.
    pub skipped: usize,
    /// Number of skipped steps since the last good step.
    pub skipped_in_a_row: usize,
    /// Level of the curriculum, counted from 0.
    pub level: usize,
    /// The factor by which [`Schedule`](residual_zoo_runs::Schedule) multiplies the learning rate.
    pub lr_scale: f64,
}

impl Progress {
    /// Returns the number of updates of the weights so far: the steps that were not skipped.
    pub fn updates(&self) -> usize {
        self.step.saturating_sub(self.skipped)
    }
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

/// The result of a validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validation {
    /// Mean cross-entropy of the targets, in nats per token.
    pub loss: f64,
    /// Fraction of the targets that the model rated most likely.
    pub accuracy: f64,
}

/// A model in training. All random numbers are a function of the seed and the step.
///
/// Initial weights and dropout come from Burn's random generator. Each backend has one generator per process, so two
/// trainers that step at the same time on the same backend are not reproducible.
pub struct Trainer<B: AutodiffBackend, C: ModelConfig> {
    /// The config of the run, with every field resolved.
    pub config: RunConfig<C>,
    /// `None` only while the optimizer or a team updates the model. The optimizer takes the model by value, because a
    /// copy would keep the old weights in memory.
    model: Option<C::Model<B>>,
    /// The optimizer.
    pub optimizer: Optimizer<B>,
    /// The average of the weights, if this process keeps one.
    average: Option<C::Model<B::InnerBackend>>,
    /// Number of updates of the weights before the average began.
    pub(crate) before_average: usize,
    /// Steps, tokens and FLOPs so far.
    pub progress: Progress,
    /// The processes that train this model together, if there are several.
    pub(crate) team: Option<Team>,
    device: B::Device,
    vocabulary: Vocabulary,
    training: Ahead,
    validation: Sequences,
    flops_per_token: f64,
}

/// The measurements of a step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Mean cross-entropy of the batch, in nats per token.
    pub loss: f64,
    /// Norm of all gradients before clipping.
    pub grad_norm: f64,
    /// The names of the parameters whose gradient is not finite, if the step was skipped. Steps are skipped if the loss
    /// or the norm is not finite.
    pub skipped: Option<Vec<String>>,
}

/// A batch on the device.
pub struct DeviceBatch<B: Backend> {
    /// Token ids or images.
    pub inputs: Input<B>,
    /// The targets, `[batch, scored]`.
    pub targets: Tensor<B, 2, Int>,
    /// The targets of the images that are mixed in, and the share of `targets`.
    pub mixed: Option<(Tensor<B, 2, Int>, f64)>,
}

/// Returns the training and the validation sequences of a run.
///
/// # Errors
///
/// Returns an error if the data are too short or have ids outside the vocabulary.
pub fn sequences<C: ModelConfig>(
    config: &RunConfig<C>,
    corpus: &Corpus,
) -> Result<[Sequences; 2], Error> {
    let vocabulary = vocabulary(corpus);
    for examples in [&corpus.train, &corpus.valid] {
        examples.check(vocabulary.ids(), vocabulary.outputs)?;
    }
    let time = config.time();
    let training = corpus.train.sequences(time, "training text")?;
    let validation = corpus.valid.sequences(time, "validation text")?;
    Ok([training, validation])
}

impl<B: AutodiffBackend, C: ModelConfig> Trainer<B, C> {
    /// Makes a trainer for a model with fresh weights.
    ///
    /// # Errors
    ///
    /// Returns an error if the config is invalid, or if the data are too short or have ids outside the vocabulary.
    pub fn new(config: RunConfig<C>, corpus: &Corpus, device: B::Device) -> Result<Self, Error> {
        let mut config = config.with_budget();
        let vocabulary = vocabulary(corpus);
        config.validate(vocabulary)?;
        let usual = Precision::usual::<B>(&device);
        let precision = *config.train.precision.get_or_insert(usual);
        precision
            .check::<B>(&device)
            .map_err(|error| error.within("train"))?;
        precision.set_up();
        ops::deterministic(config.train.deterministic);
        let [training, validation] = sequences(&config, corpus)?;
        clear_graphs::<B>(&device);
        B::seed(&device, derive_seed(config.train.seed, &[INIT]));
        let model = config.model.build(vocabulary, &device)?;
        let cost = config.model.cost(vocabulary);
        let rates = params::list::<B, _>(&model).into_iter();
        let rates = rates.map(|p| (config.model.rate(&p.name), p.name));
        let rates = rates.filter(|(rate, _)| *rate != 1.0);
        let rates = rates.map(|(rate, name)| (name, rate)).collect();
        let optimizer = Optimizer::new(&config.train, rates);
        optimizer.check(&model)?;
        let mut trainer = Self {
            model: Some(model),
            average: None,
            before_average: 0,
            optimizer,
            progress: Progress::default(),
            team: None,
            vocabulary,
            training: Ahead::new(training),
            validation,
            flops_per_token: cost.training_flops() as f64,
            config,
            device,
        };
        trainer.restart_average();
        Ok(trainer)
    }

    /// Returns the model.
    pub fn model(&self) -> &C::Model<B> {
        self.model
            .as_ref()
            .unwrap_or_else(|| unreachable!("the optimizer returns the model"))
    }

    /// Returns the model without autodiff. Both models share the weights.
    pub fn inner_model(&self) -> C::Model<B::InnerBackend> {
        let model = self.config.model.assemble(self.vocabulary, &self.device);
        autodiff::without_autodiff::<B, _, _>(self.model(), model)
    }

    /// Returns the average of the weights, if this process keeps one.
    pub fn average(&self) -> Option<&C::Model<B::InnerBackend>> {
        self.average.as_ref()
    }

    /// Starts the average from the current weights, if the run keeps an average.
    pub(crate) fn restart_average(&mut self) {
        self.average = self.config.train.ema.map(|_| self.inner_model());
    }

    /// Replaces the average with `weights`.
    ///
    /// # Errors
    ///
    /// Returns an error if `weights` do not have the names and shapes of the parameters.
    pub(crate) fn import_average(&mut self, weights: Tensors) -> Result<(), ImportError> {
        let model = self.inner_model();
        self.average = Some(params::import::<B::InnerBackend, _>(model, weights)?);
        Ok(())
    }

    /// Leaves the average to another process.
    pub(crate) fn leave_average(&mut self) {
        self.average = None;
    }

    /// Updates the average after a step.
    fn update_average(&mut self) {
        let Some((ema, average)) = self.config.train.ema.zip(self.average.take()) else {
            return;
        };
        let updates = self.progress.updates() + 1 - self.before_average;
        let average = averaged::<B, _, _>(average, self.model(), ema.share(updates));
        self.average = Some(average);
    }

    pub(crate) fn take_model(&mut self) -> C::Model<B> {
        let model = self.model.take();
        model.unwrap_or_else(|| unreachable!("the optimizer returns the model"))
    }

    /// Restores the moments of the optimizer.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Optimizer::import`].
    pub(crate) fn import_moments(
        &mut self,
        moments: BTreeMap<String, Moments>,
    ) -> Result<(), ImportError> {
        let (optimizer, model) = (&mut self.optimizer, self.model.as_ref());
        let model = model.unwrap_or_else(|| unreachable!("the optimizer returns the model"));
        optimizer.import(model, moments, &self.device)
    }

    /// Replaces the model with a model whose parameters have the same names and shapes.
    pub fn replace_model(&mut self, model: C::Model<B>) {
        self.model = Some(model);
    }

    /// Performs one step. If the loss or gradients are not finite, the step is skipped: weights and moments stay
    /// unchanged. A skipped step still counts as a step, so the next step has other data.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`batch`](Self::batch). The trainer is then unchanged.
    pub fn step(&mut self) -> Result<Step, Error> {
        self.announce_step();
        let (first, all) = self.team.map_or((0, 1), |team| (team.rank(), team.size()));
        let micro_batches = self.config.train.accumulate;
        let mut grads = GradientsParams::new();
        let mut total: Option<Tensor<B::InnerBackend, 1>> = None;
        let mut statistics = Vec::new();
        for micro in (first..micro_batches).step_by(all) {
            let batch = self.upload(&self.batch(micro)?);
            let (loss, mut recording) = self.forward(batch, micro);
            statistics.extend(recording.take_statistics());
            let part = loss.cross_entropy.clone().inner() / micro_batches as f64;
            total = Some(match total {
                Some(total) => total + part,
                None => part,
            });
            self.backward(&loss, recording, &mut grads);
        }
        let mut loss = total.unwrap_or_else(|| unreachable!("each process has a micro-batch"));
        if let Some(team) = self.team {
            loss = team::sum::<B, _>(team, self.model(), &mut grads, loss);
        }
        Ok(self.update(loss, grads, statistics))
    }

    /// Draws micro-batch `micro` of the next step.
    ///
    /// # Errors
    ///
    /// Returns an error that names an image file that was deleted or is damaged. Also returns an error if the user
    /// stops the process while image files are read.
    pub fn batch(&self, micro: usize) -> Result<Batch, Error> {
        let train = &self.config.train;
        let all = self.team.map_or(1, |team| team.size());
        let here = Place {
            seed: train.seed,
            step: self.progress.step as u64,
            micro: micro as u64,
            batch: train.batch,
        };
        let next = match micro + all < train.accumulate {
            true => Place {
                micro: (micro + all) as u64,
                ..here
            },
            false => Place {
                step: here.step + 1,
                micro: (micro % all) as u64,
                ..here
            },
        };
        Ok(self.training.batch(self.progress.level, here, next)?)
    }

    /// Copies a batch to the device.
    pub fn upload(&self, batch: &Batch) -> DeviceBatch<B> {
        upload(batch, &self.device)
    }

    /// Computes the loss of a micro-batch, and the recording that [`backward`](Self::backward) needs.
    pub fn forward(&self, batch: DeviceBatch<B>, micro: usize) -> (Loss<B>, Recording<B>) {
        let train = &self.config.train;
        let step = self.progress.step as u64;
        let seeds = Seeds {
            device: self.config.model.draws().then(|| {
                let at = [DROPOUT, step, micro as u64];
                derive_seed(train.seed, &at)
            }),
            step: Some(derive_seed(train.seed, &[CHOICES, step])),
        };
        let DeviceBatch {
            inputs,
            targets,
            mixed,
        } = batch;
        let pass = || self.model().forward(inputs);
        let pass = || recompute::record(seeds, train.recompute, pass);
        let (logits, recording) = train.precision.unwrap_or_default().during(pass);
        let epsilon = train.label_smoothing;
        let loss = match mixed {
            Some((others, share)) => Loss::smoothed(logits.clone(), targets, epsilon)
                .mixed(Loss::smoothed(logits, others, epsilon), share),
            None => Loss::smoothed(logits, targets, epsilon),
        };
        (loss, recording)
    }

    /// Adds the gradients of a micro-batch's share of the objective to `grads`.
    pub fn backward(&self, loss: &Loss<B>, recording: Recording<B>, grads: &mut GradientsParams) {
        let train = &self.config.train;
        let objective = loss.objective(train.z_loss) / train.accumulate as f64;
        recording.add_gradients(objective, self.model(), grads);
    }

    /// Clips `grads`, updates the weights and counts the step. `loss` is the mean cross-entropy of the step, `[1]`, and
    /// `statistics` are the running statistics of its passes.
    pub fn update(
        &mut self,
        loss: Tensor<B::InnerBackend, 1>,
        grads: GradientsParams,
        statistics: Vec<Statistic<B>>,
    ) -> Step {
        let train = &self.config.train;
        let norm = optimizer::global_norm::<B, _>(self.model(), &grads, &self.device);
        // Waits for both numbers, once per step, so that a bad gradient is never applied.
        let both = Tensor::cat(vec![loss, norm], 0).into_data();
        let mut both = both.iter::<f64>();
        let [loss, grad_norm] = [(); 2].map(|()| both.next().unwrap_or(f64::NAN));
        let healthy = loss.is_finite() && grad_norm.is_finite();
        let skipped = (!healthy).then(|| optimizer::not_finite::<B, _>(self.model(), &grads));
        if healthy {
            let clip = |limit| optimizer::clip_scale(grad_norm, limit);
            let scale = train.grad_clip.map_or(1.0, clip);
            let lr = self.learning_rate();
            let model = self.model.take();
            let model = model.map(|model| self.optimizer.step(model, grads, scale, lr));
            let model = model.map(|model| statistics::apply(model, statistics));
            self.model = model.map(|model| self.config.model.constrain(model));
            self.exchange_weights();
            self.update_average();
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

    /// Returns the learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        schedule::learning_rate(&self.config.train, self.progress.step) * self.progress.lr_scale
    }

    /// Validates the model. Every validation at the same level of the curriculum has the same batches.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`batch`](Self::batch).
    pub fn validate(&self) -> Result<Validation, Error> {
        let found = self.validate_while(|_, _| true)?;
        Ok(found.unwrap_or_else(|| unreachable!("nothing stops it")))
    }

    /// Like [`validate`](Self::validate), but stops before a batch for which `goes_on` returns false, and then returns
    /// `None`. `goes_on` gets the number of finished batches and the number of all batches.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`validate`](Self::validate).
    pub fn validate_while(
        &self,
        goes_on: impl FnMut(usize, usize) -> bool,
    ) -> Result<Option<Validation>, Error> {
        self.validate_model(&self.inner_model(), goes_on)
    }

    /// Like [`validate_while`](Self::validate_while), for `model` instead of the model in training.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`validate`](Self::validate).
    pub fn validate_model(
        &self,
        model: &C::Model<B::InnerBackend>,
        mut goes_on: impl FnMut(usize, usize) -> bool,
    ) -> Result<Option<Validation>, Error> {
        let TrainConfig {
            validate_batches,
            batch,
            ..
        } = self.config.train;
        let sequences = self.validation.at_level(self.progress.level);
        let (mut loss, mut accuracy, mut count) = (0.0, 0.0, 0.0);
        let batches = sequences.fixed_batches(validate_batches, batch);
        let all = batches.len();
        for (done, batch) in batches.enumerate() {
            if !goes_on(done, all) {
                return Ok(None);
            }
            let batch = batch?;
            let DeviceBatch {
                inputs, targets, ..
            } = upload(&batch, &self.device);
            let logits = model.forward(inputs);
            let share = loss::accuracy(logits.clone(), targets.clone());
            let weight = batch.batch as f64;
            loss += weight * read(&Loss::new(logits, targets).cross_entropy);
            accuracy += weight * read(&share);
            count += weight;
        }
        Ok(Some(Validation {
            loss: loss / count,
            accuracy: accuracy / count,
        }))
    }

    /// Moves to the next level of the curriculum if the validation loss is below `train.curriculum_below`, and updates
    /// the learning-rate factor. Does nothing without a curriculum. Returns whether the level has changed.
    pub fn advance_curriculum(&mut self, validation_loss: f64) -> bool {
        let last = self.training.sequences.last_level();
        if last == 0 {
            return false;
        }
        let was_last = self.progress.level == last;
        let advanced = !was_last && validation_loss < self.config.train.curriculum_below;
        self.progress.level += usize::from(advanced);
        let length = |level| self.training.sequences.at_level(level).time() as f64;
        let curriculum = Curriculum {
            was_last,
            lengths: (1..=self.progress.level).map(length).collect(),
            longest: length(last),
        };
        let schedule = self.config.train.schedule;
        self.progress.lr_scale = schedule::factor(
            schedule,
            self.progress.lr_scale,
            validation_loss,
            &curriculum,
        );
        advanced
    }

    /// Returns the level of the curriculum, if there is one.
    pub fn level(&self) -> Option<usize> {
        (self.training.sequences.last_level() > 0).then_some(self.progress.level)
    }

    /// Returns the device of the model.
    pub fn device(&self) -> &B::Device {
        &self.device
    }

    /// Returns the number of training tokens per step.
    pub fn tokens_per_step(&self) -> usize {
        let TrainConfig {
            batch, accumulate, ..
        } = self.config.train;
        batch * accumulate * self.training.sequences.at_level(self.progress.level).time()
    }

    /// Returns the training FLOPs per token.
    pub fn flops_per_token(&self) -> f64 {
        self.flops_per_token
    }

    /// Returns the training FLOPs per step.
    pub fn step_flops(&self) -> f64 {
        self.flops_per_token * self.tokens_per_step() as f64
    }
}

/// Drops the graphs of forward passes without a backward pass, for example after a run that panicked because memory was
/// full. Autodiff keeps these graphs until the end of the next backward pass.
fn clear_graphs<B: AutodiffBackend>(device: &B::Device) {
    Tensor::<B, 1>::ones([1], device).require_grad().backward();
}

/// Puts a batch on a device.
pub fn upload<B: Backend>(batch: &Batch, device: &B::Device) -> DeviceBatch<B> {
    let ids = |ids: &[u32], length: usize| {
        let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        Tensor::from_data(TensorData::new(ids, [batch.batch, length]), device)
    };
    let inputs = match &batch.images {
        Some(ImageBatch { values, size, .. }) => {
            let [channels, height, width] = *size;
            let shape = [batch.batch, channels, height, width];
            Input::Images(Tensor::from_data(
                TensorData::new(values.clone(), shape),
                device,
            ))
        }
        None => Input::Ids(ids(&batch.inputs, batch.time)),
    };
    let mixed = batch
        .images
        .as_ref()
        .and_then(|images| images.mixed.as_ref());
    DeviceBatch {
        inputs,
        targets: ids(&batch.targets, batch.scored),
        mixed: mixed.map(|mixed| (ids(&mixed.others, batch.scored), mixed.share)),
    }
}

/// Waits for a number on the device and returns it.
pub(crate) fn read<B: Backend>(x: &Tensor<B, 1>) -> f64 {
    x.to_data().iter::<f64>().next().unwrap_or(f64::NAN)
}

const INIT: u64 = 0;
const DROPOUT: u64 = 1;
pub(crate) const SAMPLE: u64 = 2;
const CHOICES: u64 = 3;
