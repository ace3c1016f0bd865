//! What programs do with models of the zoo. Everything that is generic over the config of a model is
//! compiled here, once for all programs.

use std::path::Path;
use std::process::ExitCode;

use residual_zoo_backend::BackendKind;
use residual_zoo_data::Corpus;
use residual_zoo_lab::cli::{self, Scales};
use residual_zoo_lab::{
    CompareOptions, Comparison, Error, ExperimentOptions, Results, Trainable as _,
};
use residual_zoo_train::bench::StepTime;
use residual_zoo_train::generate::Sampling;
use residual_zoo_train::{RunOptions, Summary};

use crate::{ModelConfig, RunConfig};

/// An experiment on models of the zoo.
pub type Experiment = residual_zoo_lab::Experiment<ModelConfig>;
/// A run of such an experiment.
pub type PlannedRun = residual_zoo_lab::PlannedRun<ModelConfig>;

/// Trains a model on a backend as [`residual_zoo_train::run`] does.
///
/// # Errors
///
/// As there, and when the backend cannot be used.
pub fn train(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig,
    corpus: &Corpus,
    options: &RunOptions,
) -> Result<Summary, Error> {
    ModelConfig::train(kind, gpu, config, corpus, options)
}

/// Times `(warmup, steps)` steps as [`residual_zoo_train::bench::time_steps`] does.
///
/// # Errors
///
/// As there, and when the backend cannot be used.
pub fn time_steps(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig,
    corpus: &Corpus,
    steps: (usize, usize),
) -> Result<StepTime, Error> {
    ModelConfig::time_steps(kind, gpu, config, corpus, steps)
}

/// As [`residual_zoo_lab::generate`].
///
/// # Errors
///
/// As there.
pub fn generate(
    directory: &Path,
    prompt: Option<&str>,
    tokens: usize,
    sampling: Sampling,
    kind: BackendKind,
    gpu: Option<usize>,
) -> Result<(), Error> {
    residual_zoo_lab::generate::<ModelConfig>(directory, prompt, tokens, sampling, kind, gpu)
}

/// As [`residual_zoo_lab::compare`].
///
/// # Errors
///
/// As there.
pub fn compare(
    models: &[(String, RunConfig)],
    options: &CompareOptions,
) -> Result<(Comparison, Option<Error>), Error> {
    residual_zoo_lab::compare(models, options)
}

/// As [`residual_zoo_lab::run_experiment`].
///
/// # Errors
///
/// As there.
pub fn run_experiment(
    text: &str,
    path: &Path,
    seeds: Option<u64>,
    options: &ExperimentOptions,
) -> Result<Results, Error> {
    residual_zoo_lab::run_experiment::<ModelConfig>(text, path, seeds, options)
}

/// The program of an experiment: see [`experiment!`](macro@crate::experiment).
pub fn experiment_main(scales: Scales) -> ExitCode {
    cli::experiment_main::<ModelConfig>(scales)
}

/// The program of the experiment in `experiments/$paper/$name`, which has a RON file for each of
/// the scales smoke, cpu and paper: its `main`, and the allocator that counts memory.
#[macro_export]
macro_rules! experiment {
    ($paper:literal, $name:literal) => {
        #[global_allocator]
        static MEMORY: $crate::backend::PeakAlloc = $crate::backend::PeakAlloc;

        fn main() -> std::process::ExitCode {
            $crate::experiment::experiment_main($crate::lab::cli::Scales {
                name: $name,
                root: env!("CARGO_MANIFEST_DIR"),
                files: [
                    $crate::experiment!(@file $paper, $name, "smoke"),
                    $crate::experiment!(@file $paper, $name, "cpu"),
                    $crate::experiment!(@file $paper, $name, "paper"),
                ],
            })
        }
    };
    (@file $paper:literal, $name:literal, $scale:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"), "/experiments/", $paper, "/", $name, "/", $scale, ".ron"
        ))
    };
}
