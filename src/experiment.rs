//! The entry points of all programs. Code that is generic over the model config is compiled here,
//! once for all programs.

use std::path::Path;
use std::process::ExitCode;

use residual_zoo_backend::BackendKind;
use residual_zoo_data::Corpus;
use residual_zoo_lab::cli::{self, Scales};
use residual_zoo_lab::{Comparison, Error, Options, Results};
use residual_zoo_train::bench::StepTime;
use residual_zoo_train::generate::Sampling;
use residual_zoo_train::{RunOptions, Summary};

use crate::{ModelConfig, RunConfig};

/// An experiment on models of the zoo.
pub type Experiment = residual_zoo_lab::Experiment<ModelConfig>;
/// A run of an [`Experiment`].
pub type PlannedRun = residual_zoo_lab::PlannedRun<ModelConfig>;

/// Trains a model on the backend `kind`, see [`residual_zoo_train::run`].
///
/// # Errors
///
/// Those of [`residual_zoo_train::run`], and when the backend cannot be used.
pub fn train(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig,
    corpus: &Corpus,
    options: &RunOptions,
) -> Result<Summary, Error> {
    residual_zoo_lab::train(kind, gpu, config, corpus, options)
}

/// Times optimizer steps on the backend `kind`, see [`residual_zoo_train::bench::time_steps`]. `steps`
/// is `(warmup, steps)`.
///
/// # Errors
///
/// Those of [`residual_zoo_train::bench::time_steps`], and when the backend cannot be used.
pub fn time(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig,
    corpus: &Corpus,
    steps: (usize, usize),
) -> Result<StepTime, Error> {
    residual_zoo_lab::time(kind, gpu, config, corpus, steps)
}

/// Prints text from the model of a run, see [`residual_zoo_lab::generate`].
///
/// # Errors
///
/// Those of [`residual_zoo_lab::generate`].
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

/// Trains and compares several models, see [`residual_zoo_lab::compare`].
///
/// # Errors
///
/// Those of [`residual_zoo_lab::compare`].
pub fn compare(
    models: &[(String, RunConfig)],
    command: String,
    options: &Options,
) -> Result<(Comparison, Option<Error>), Error> {
    residual_zoo_lab::compare(models, command, options)
}

/// Runs the experiment in a RON text, see [`residual_zoo_lab::run_experiment`].
///
/// # Errors
///
/// Those of [`residual_zoo_lab::run_experiment`].
pub fn run_experiment(
    text: &str,
    path: &Path,
    seeds: Option<u64>,
    options: &Options,
) -> Result<Results, Error> {
    residual_zoo_lab::run_experiment::<ModelConfig>(text, path, seeds, options)
}

/// The `main` function of an experiment's program, see [`experiment!`](macro@crate::experiment).
pub fn experiment_main(scales: Scales) -> ExitCode {
    cli::experiment_main::<ModelConfig>(scales)
}

/// Defines the program of the experiment in `experiments/$paper/$name`, which has a RON file for each of
/// the scales smoke, cpu and paper. Expands to `main` and the allocator that counts memory.
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
