//! Trains and times a run on a backend that the user chooses.

use std::panic::resume_unwind;

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::{BackendKind, OnBackend, PeakMemory};
use residual_zoo_core::{ConfigError, ModelConfig, Precision};
use residual_zoo_data::Corpus;
use residual_zoo_runs::{Error as RunError, RunConfig, vocabulary};
use residual_zoo_system::panics::{caught, is_caught};
use residual_zoo_train::bench::{Rates, StepTime, time_steps};
use residual_zoo_train::team::{self, Team};
use residual_zoo_train::{RunOptions, Summary, check, run};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::size::{Use, check_size};

/// Trains on backend `kind` as [`residual_zoo_train::run`] does.
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_train::run`], and an error if the backend cannot be used.
pub fn train<C: ModelConfig>(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig<C>,
    corpus: &Corpus,
    options: &RunOptions,
) -> Result<Summary, Error> {
    let train = || kind.run(gpu, Train(config, corpus, options));
    Ok(match (kind, &options.team) {
        // MPI answers only the thread that has started it, so a team does not train in the pool.
        (BackendKind::Flex, None) => in_pool(train),
        _ => train(),
    }??)
}

/// Runs `work` on a thread of Rayon's pool. Flex gives its operations to that pool. From a thread outside the pool,
/// each operation costs two context switches. In total, these switches take a tenth of the time of a small model's
/// step.
///
/// While `work` waits for another thread, the pool lacks a thread. The awaited thread must therefore not need the pool
/// if the pool has only one thread.
fn in_pool<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let is_caught = is_caught();
    rayon::scope(|_| match is_caught {
        true => caught(work).unwrap_or_else(|panic| resume_unwind(panic)),
        false => work(),
    })
}

/// Checks on backend `kind` that a run can begin or continue, as [`residual_zoo_train::check`] does.
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_train::check`], and an error if the backend cannot be used.
pub fn check_start<C: ModelConfig>(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig<C>,
    corpus: &Corpus,
    options: &RunOptions,
) -> Result<(), Error> {
    Ok(kind.run(gpu, Check(config, corpus, options))??)
}

struct Check<'a, C>(RunConfig<C>, &'a Corpus, &'a RunOptions);

impl<C: ModelConfig> OnBackend for Check<'_, C> {
    type Output = Result<(), RunError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let Self(config, corpus, options) = self;
        check::<B, C>(config, corpus, options, device)
    }
}

/// Follows the leader of `team` in training on backend `kind`, as [`team::follow`] does.
///
/// # Errors
///
/// Returns the errors of [`team::follow`], and an error if the backend cannot be used.
pub fn follow<C: ModelConfig>(
    kind: BackendKind,
    gpu: Option<usize>,
    (team, start): (Team, team::Start<C>),
    corpus: &Corpus,
) -> Result<(), Error> {
    Ok(kind.run(gpu, Follow(team, start, corpus))??)
}

struct Follow<'a, C>(Team, team::Start<C>, &'a Corpus);

impl<C: ModelConfig> OnBackend for Follow<'_, C> {
    type Output = Result<(), RunError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let Self(team, start, corpus) = self;
        team::follow::<B, C>(team, start, corpus, device)
    }
}

/// Returns the training FLOPs of a whole run on `corpus`.
pub fn training_flops<C: ModelConfig>(config: &RunConfig<C>, corpus: &Corpus) -> f64 {
    let per_token = config.model.cost(vocabulary(corpus)).training_flops() as f64;
    per_token * config.tokens_per_step() as f64 * config.train.steps as f64
}

struct Train<'a, C>(RunConfig<C>, &'a Corpus, &'a RunOptions);

impl<C: ModelConfig> OnBackend for Train<'_, C> {
    type Output = Result<Summary, RunError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let Self(config, corpus, options) = self;
        run::<B, C>(config, corpus, options, device)
    }
}

/// Time and memory of a training step, and lower bounds on the time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// The times.
    #[serde(flatten)]
    pub time: StepTime,
    /// Peak memory in bytes during the steps, if it is known.
    pub peak_memory: Option<u64>,
    /// The measured maximum speeds of the device.
    pub rates: Rates,
}

impl Bench {
    /// Returns the seconds that the matrix products of the median step would take at the measured speed of the device.
    pub fn arithmetic_floor(&self) -> f64 {
        self.time.flops_per_second * self.time.step / self.rates.product
    }

    /// Returns the seconds to write and read the peak memory once, if the peak is known.
    pub fn memory_floor(&self) -> Option<f64> {
        Some(2.0 * self.peak_memory? as f64 / self.rates.copy)
    }
}

/// Times `(warmup, steps)` steps on backend `kind` as [`residual_zoo_train::bench::time_steps`] does, and
/// measures their memory.
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_train::bench::time_steps`], and an error if the backend cannot be used or the
/// machine cannot hold the model.
pub fn time<C: ModelConfig>(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig<C>,
    corpus: &Corpus,
    steps: (usize, usize),
) -> Result<Bench, Error> {
    config.validate(vocabulary(corpus))?;
    check_size(&config, vocabulary(corpus), (kind, gpu), Use::Train)?;
    let rates = measure_rates(kind, gpu, config.train.precision)?;
    let memory = PeakMemory::start(kind, gpu);
    let time = || kind.run(gpu, Time(config, corpus, steps));
    let time = match kind {
        BackendKind::Flex => in_pool(time),
        _ => time(),
    }??;
    Ok(Bench {
        time,
        peak_memory: memory.bytes(),
        rates,
    })
}

/// Measures the maximum speeds of the device of backend `kind`, with products in `precision`.
///
/// # Errors
///
/// Returns an error if the backend cannot be used, or has no products in `precision`.
pub fn measure_rates(
    kind: BackendKind,
    gpu: Option<usize>,
    precision: Option<Precision>,
) -> Result<Rates, Error> {
    check_precision(kind, gpu, precision)?;
    let precision = precision.unwrap_or(usual_precision(kind));
    Ok(kind.run(gpu, MeasureRates(precision))?)
}

struct MeasureRates(Precision);

impl OnBackend for MeasureRates {
    type Output = Rates;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Rates {
        let Self(precision) = self;
        precision.set_up();
        precision.during(|| Rates::measure::<B::InnerBackend>(&device))
    }
}

/// Returns the default precision of products on backend `kind`; see [`Precision::usual`].
pub fn usual_precision(kind: BackendKind) -> Precision {
    match kind {
        BackendKind::Cuda => Precision::Tf32,
        _ => Precision::F32,
    }
}

/// Checks that backend `kind` has products in `precision`, if it is set; see [`Precision::check`].
///
/// # Errors
///
/// Returns an error if the backend has no such products, or cannot be used.
pub fn check_precision(
    kind: BackendKind,
    gpu: Option<usize>,
    precision: Option<Precision>,
) -> Result<(), Error> {
    // Every backend has its usual precision, so the backend need not be started to check this precision.
    let Some(precision) = precision.filter(|it| *it != usual_precision(kind)) else {
        return Ok(());
    };
    let checked = kind.run(gpu, CheckPrecision(precision))?;
    Ok(checked.map_err(|error| error.within("train"))?)
}

struct CheckPrecision(Precision);

impl OnBackend for CheckPrecision {
    type Output = Result<(), ConfigError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        self.0.check::<B>(&device)
    }
}

struct Time<'a, C>(RunConfig<C>, &'a Corpus, (usize, usize));

impl<C: ModelConfig> OnBackend for Time<'_, C> {
    type Output = Result<StepTime, RunError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let Self(config, corpus, steps) = self;
        time_steps::<B, C>(config, corpus, steps, device)
    }
}
