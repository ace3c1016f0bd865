//! Single runs on the backend that a user chose.

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_core::ModelConfig;
use residual_zoo_data::Corpus;
use residual_zoo_runs::{Error as RunError, RunConfig, vocabulary};
use residual_zoo_train::bench::{StepTime, time_steps};
use residual_zoo_train::{RunOptions, Summary, run};

use crate::Error;

/// Trains on backend `kind` as [`residual_zoo_train::run`] does.
///
/// # Errors
///
/// Those of [`residual_zoo_train::run`], and when the backend cannot be used.
pub fn train<C: ModelConfig>(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig<C>,
    corpus: &Corpus,
    options: &RunOptions,
) -> Result<Summary, Error> {
    Ok(kind.run(gpu, Train(config, corpus, options))??)
}

/// The training FLOPs of a whole run on `corpus`.
pub(crate) fn work<C: ModelConfig>(config: &RunConfig<C>, corpus: &Corpus) -> f64 {
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

/// Times `(warmup, steps)` steps on backend `kind` as [`residual_zoo_train::bench::time_steps`] does.
///
/// # Errors
///
/// Those of [`residual_zoo_train::bench::time_steps`], and when the backend cannot be used.
pub fn time<C: ModelConfig>(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig<C>,
    corpus: &Corpus,
    steps: (usize, usize),
) -> Result<StepTime, Error> {
    Ok(kind.run(gpu, Time(config, corpus, steps))??)
}

struct Time<'a, C>(RunConfig<C>, &'a Corpus, (usize, usize));

impl<C: ModelConfig> OnBackend for Time<'_, C> {
    type Output = Result<StepTime, RunError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let Self(config, corpus, steps) = self;
        time_steps::<B, C>(config, corpus, steps, device)
    }
}
