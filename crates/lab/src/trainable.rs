//! From a config to training on the backend that a user chose.

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::{BackendKind, OnBackend, OnEvery};
use residual_zoo_core::ModelConfig;
use residual_zoo_data::Corpus;
use residual_zoo_train::bench::{StepTime, time_steps};
use residual_zoo_train::{Error as TrainError, RunConfig, RunOptions, Summary, TrainsOn};

use crate::Error;

/// A model config whose models train on every backend that is compiled in.
///
/// Every [`ModelConfig`] whose models derive Burn's `Module` is one. The model and its training are
/// compiled where these functions are called with a config of known type, so a project calls them
/// in one place.
pub trait Trainable: ModelConfig {
    /// Trains on backend `kind` as [`residual_zoo_train::run`] does.
    ///
    /// # Errors
    ///
    /// As there, and when the backend cannot be used.
    fn train(
        kind: BackendKind,
        gpu: Option<usize>,
        config: RunConfig<Self>,
        corpus: &Corpus,
        options: &RunOptions,
    ) -> Result<Summary, Error>;

    /// Times `(warmup, steps)` steps on backend `kind` as [`time_steps`] does.
    ///
    /// # Errors
    ///
    /// As there, and when the backend cannot be used.
    fn time_steps(
        kind: BackendKind,
        gpu: Option<usize>,
        config: RunConfig<Self>,
        corpus: &Corpus,
        steps: (usize, usize),
    ) -> Result<StepTime, Error>;
}

impl<C> Trainable for C
where
    C: ModelConfig,
    for<'a> Train<'a, C>: OnEvery<Result<Summary, TrainError>>,
    for<'a> Time<'a, C>: OnEvery<Result<StepTime, TrainError>>,
{
    fn train(
        kind: BackendKind,
        gpu: Option<usize>,
        config: RunConfig<C>,
        corpus: &Corpus,
        options: &RunOptions,
    ) -> Result<Summary, Error> {
        let task = Train {
            config,
            corpus,
            options,
        };
        let trained: Result<Summary, TrainError> = kind.run(gpu, task)?;
        Ok(trained?)
    }

    fn time_steps(
        kind: BackendKind,
        gpu: Option<usize>,
        config: RunConfig<C>,
        corpus: &Corpus,
        steps: (usize, usize),
    ) -> Result<StepTime, Error> {
        let task = Time {
            config,
            corpus,
            steps,
        };
        let timed: Result<StepTime, TrainError> = kind.run(gpu, task)?;
        Ok(timed?)
    }
}

/// The task of [`Trainable::train`].
struct Train<'a, C> {
    config: RunConfig<C>,
    corpus: &'a Corpus,
    options: &'a RunOptions,
}

impl<B: AutodiffBackend, C: TrainsOn<B>> OnBackend<B> for Train<'_, C> {
    type Output = Result<Summary, TrainError>;

    fn run(self, device: B::Device) -> Self::Output {
        residual_zoo_train::run::<B, C>(self.config, self.corpus, self.options, device)
    }
}

/// The task of [`Trainable::time_steps`].
struct Time<'a, C> {
    config: RunConfig<C>,
    corpus: &'a Corpus,
    steps: (usize, usize),
}

impl<B: AutodiffBackend, C: TrainsOn<B>> OnBackend<B> for Time<'_, C> {
    type Output = Result<StepTime, TrainError>;

    fn run(self, device: B::Device) -> Self::Output {
        time_steps::<B, C>(self.config, self.corpus, self.steps, device)
    }
}
