//! Merges two runs into one.

use std::path::{Path, PathBuf};

use burn::tensor::backend::{AutodiffBackend, Backend};
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_core::{ConfigError, ModelConfig, Tensors, params};
use residual_zoo_runs::run_dir::{RunDir, Start};
use residual_zoo_runs::{Error as RunError, Run, checkpoint, run_dir};
use residual_zoo_system::console::warn;

use crate::Error;

/// Merges the newest checkpoints of `a` and `b` into a new, untrained run, with
/// [`Transfer::merge`](residual_zoo_core::Transfer::merge). Returns the name of the new model and its number of
/// parameters.
///
/// # Errors
///
/// Returns an error if the runs cannot be read, have different tokenizers or cannot be merged, if the directory is
/// taken, or if the backend cannot be used. Also returns I/O errors.
pub fn merge<C: ModelConfig>(
    (a, b): (&Path, &Path),
    directory: &Path,
    value_scale: f64,
    (kind, gpu): (BackendKind, Option<usize>),
) -> Result<(String, usize), Error> {
    let task = Merge::<C> {
        a: &Run::open(a)?,
        b: &Run::open(b)?,
        directory,
        value_scale,
    };
    kind.run(gpu, task)?
}

struct Merge<'a, C> {
    a: &'a Run<C>,
    b: &'a Run<C>,
    directory: &'a Path,
    value_scale: f64,
}

impl<C: ModelConfig> OnBackend for Merge<'_, C> {
    type Output = Result<(String, usize), Error>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        self.merge::<B::InnerBackend>(&device)
    }
}

impl<C: ModelConfig> Merge<'_, C> {
    fn merge<B: Backend>(self, device: &B::Device) -> Result<(String, usize), Error> {
        let Self {
            a,
            b,
            directory,
            value_scale,
        } = self;
        if !run_dir::is_free(directory)? {
            return Err(RunError::run_exists(directory).into());
        }
        let error = |problem: String| {
            let pair = format!(
                "{} and {}",
                a.directory().display(),
                b.directory().display()
            );
            ConfigError::new(pair, problem)
        };
        if a.tokenizer.fingerprint() != b.tokenizer.fingerprint() {
            let problem = "have different tokenizers, so their token ids mean different things; merge runs with the same one";
            return Err(error(problem.into()).into());
        }
        let (path_a, weights_a) = weights::<B, C>(a, device)?;
        let (path_b, weights_b) = weights::<B, C>(b, device)?;
        let pair = (&a.config.model, &weights_a);
        let merged = pair
            .0
            .merge(pair.1, (&b.config.model, &weights_b), value_scale);
        let (model, weights) =
            merged.map_err(|problem| error(format!("cannot be merged: {problem}")))?;
        let mut config = a.config.clone();
        config.model = model;
        let start = Start {
            version: env!("CARGO_PKG_VERSION").into(),
            init_from: Some(a.directory().into()),
            merged_with: Some(b.directory().into()),
            changes: vec![format!(
                "merged from {} and {}",
                path_a.display(),
                path_b.display()
            )],
            ..Start::default()
        };
        let mut run = RunDir::open(directory)?;
        let checkpoint = run.checkpoint(0);
        let save = || checkpoint::write_weights(&checkpoint, &weights);
        run.begin(&config, (&a.tokenizer, None), &start, save)?;
        let numbers = weights.values().map(|weight| weight.shape.num_elements());
        Ok((config.model.name(), numbers.sum()))
    }
}

/// Reads the newest checkpoint and its weights. The weights pass through a model, which checks every tensor against the
/// config.
fn weights<B: Backend, C: ModelConfig>(
    run: &Run<C>,
    device: &B::Device,
) -> Result<(PathBuf, Tensors), Error> {
    let newest = run.checkpoint()?;
    for note in newest.notes() {
        warn(&note);
    }
    let path = newest.path;
    let model = run.model_at::<B>(&path, device)?;
    Ok((path, params::export::<B, _>(&model)))
}
