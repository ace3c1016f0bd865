//! `residual-zoo merge`

use std::path::{Path, PathBuf};

use burn::backend::Flex;
use burn::tensor::TensorData;
use clap::Args;
use residual_zoo::cli;
use residual_zoo::core::{ConfigError, ModelConfig as _, Tensors, params};
use residual_zoo::report::si;
use residual_zoo::runs::checkpoint::Newest;
use residual_zoo::runs::run_dir::{self, RunDir, Start};
use residual_zoo::runs::{Error as RunError, checkpoint};
use residual_zoo::tokenformer::{TokenFormerConfig, merge as merge_models};
use residual_zoo::{ModelConfig, Run, Zoo};

/// Make one TokenFormer of two, with the parameter tokens of both
///
/// The models may differ in their numbers of parameter tokens only; their embeddings and norms must be
/// equal. The attention to the parameters is scaled for the larger number of tokens, so that each
/// Pattention gives the sum of both. Of two models that were tuned from one by `train --tune`, only the
/// new tokens are put together. The new run has not trained; `generate` and `evaluate` read it, and
/// `train` starts from it:
///
///   residual-zoo merge runs/a runs/b --run runs/both
///   residual-zoo train runs/both/config.ron --init-from runs/both --run runs/more
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Options {
    /// The first run
    a: PathBuf,
    /// The second run
    b: PathBuf,
    /// The directory of the new run
    #[arg(long)]
    run: PathBuf,
    /// What all values are multiplied by: 1 gives the sum of both models in each Pattention, 0.5 their mean
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    value_scale: f64,
}

pub fn merge(options: Options) -> anyhow::Result<()> {
    let Options {
        a,
        b,
        run,
        value_scale,
    } = options;
    if !run_dir::is_free(&run)? {
        return Err(RunError::RunExists(run).into());
    }
    let [first, second] = [&a, &b].map(|path| part(path));
    let (first, second) = (first?, second?);
    let pair = format!("{} and {}", a.display(), b.display());
    if first.run.tokenizer.fingerprint() != second.run.tokenizer.fingerprint() {
        let problem = "have different tokenizers, so their token ids mean different things; merge runs with the same one";
        return Err(ConfigError::new(pair, problem).into());
    }
    let merged = merge_models(
        (&first.config, &first.weights),
        (&second.config, &second.weights),
        value_scale,
    );
    let (model, weights) =
        merged.map_err(|error| ConfigError::new(pair, format!("cannot be merged: {error}")))?;
    let mut config = first.run.config.clone();
    config.model = ModelConfig::of(model);
    let start = Start {
        version: env!("CARGO_PKG_VERSION").into(),
        changes: vec![format!(
            "merged from {} and {}",
            first.checkpoint.display(),
            second.checkpoint.display()
        )],
        ..Start::default()
    };
    let mut directory = RunDir::open(&run)?;
    let checkpoint = directory.checkpoint(0);
    let save = || checkpoint::write_weights(&checkpoint, &weights);
    directory.begin(&config, (&first.run.tokenizer, None), &start, save)?;
    let numbers = |weight: &TensorData| weight.shape.iter().product::<usize>();
    let parameters: usize = weights.values().map(numbers).sum();
    cli::print(&format!(
        "{}, {} parameters\nrun: {}",
        config.model.name(),
        si(parameters as f64),
        run.display()
    ))?;
    Ok(())
}

/// A run and the weights of its newest checkpoint.
struct Part {
    run: Run,
    config: TokenFormerConfig,
    checkpoint: PathBuf,
    weights: Tensors,
}

fn part(directory: &Path) -> anyhow::Result<Part> {
    let run = Run::open(directory)?;
    let Some(Zoo::TokenFormer(config)) = run.config.model.plain() else {
        let problem = format!(
            "is a {}; only a TokenFormer with plain connections has parameter tokens that can be merged",
            run.config.model.name()
        );
        return Err(ConfigError::new(directory.display().to_string(), problem).into());
    };
    let Newest { path, passed_over } = run.checkpoint()?;
    for (_, error) in &passed_over {
        cli::warn(&format!("passed over: {error}"));
    }
    // As a model, so that every tensor is checked against the config.
    let model = run.model_at::<Flex>(&path, &Default::default())?;
    let weights = params::export::<Flex, _>(&model);
    let config = config.clone();
    Ok(Part {
        run,
        config,
        checkpoint: path,
        weights,
    })
}
