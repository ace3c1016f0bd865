//! Begins a new run: writes its first files, and loads the weights of another run.

use std::path::Path;

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::Corpus;
use residual_zoo_runs::checkpoint::{Needs, optimizer_files, weights_blake3};
use residual_zoo_runs::run_dir::{self, Start};
use residual_zoo_runs::{Choice, Error, RunDir, SavedWeights};

use crate::checkpoint::{self, Journal};
use crate::differences::other_model;
use crate::resume::{self, Resumed};
use crate::{FirstWeights, RunOptions, Trainer};

/// The origin of initial weights that come from another run.
pub(crate) struct First {
    /// The BLAKE3 hash of the weights.
    weights: String,
    /// The differences between the model of the other run and the new model.
    changes: Vec<String>,
}

/// Writes the first files of a new run.
pub(crate) fn begin<B: AutodiffBackend, C: ModelConfig>(
    trainer: &Trainer<B, C>,
    corpus: &Corpus,
    options: &RunOptions,
    directory: &mut RunDir,
    first: Option<First>,
) -> Result<Resumed, Error> {
    let (init_weights, changes) = first.map(|first| (first.weights, first.changes)).unzip();
    let start = Start {
        init_weights,
        changes: changes.unwrap_or_default(),
        ..resume::this_start::<B>(options, trainer.device())
    };
    let first = directory.checkpoint(0);
    // The other run may no longer exist when this run is resumed, so the initial weights are saved now.
    let save = || match options.init_from {
        Some(_) => checkpoint::save(trainer, &Journal::default(), &first),
        None => Ok(()),
    };
    let data = run_dir::DataIdentity::of(corpus);
    let data = (&corpus.tokenizer, Some(&data));
    directory.begin(&trainer.config, data, &start, save)?;
    Ok(Resumed {
        rows: Vec::new(),
        journal: Journal::default(),
        checkpoint: options.init_from.as_ref().map(|_| first),
        notes: Vec::new(),
    })
}

/// Loads the weights from a checkpoint of `run`, and the optimizer's moments if `by` asks for them. Returns notes for
/// the user, and the origin of the weights.
pub(crate) fn start_from<B: AutodiffBackend, C: ModelConfig>(
    trainer: &mut Trainer<B, C>,
    (run, choice): (&Path, Choice),
    by: FirstWeights,
    corpus: &Corpus,
) -> Result<(Vec<String>, First), Error> {
    let before = run_dir::read_config::<C>(run)?;
    let (smaller, optimizer) = (before.model, before.train.optimizer);
    let valid = smaller.validate();
    valid.map_err(|error| error.within("model").in_file(&run.join(run_dir::CONFIG)))?;
    let needs = match by {
        FirstWeights::Grow => Needs::Start,
        FirstWeights::GrowFresh => Needs::Weights(SavedWeights::Trained),
    };
    let newest = choice.of(run, needs)?;
    let mut notes = newest.notes();
    let path = newest.path;
    let keeps = by == FirstWeights::Grow && !optimizer_files(&path)?.is_empty();
    if keeps && !trainer.config.train.optimizer.continues(optimizer) {
        let problem = "keeps the moments of the optimizer, but the first run has another optimizer; use grow-fresh";
        return Err(ConfigError::new("--init-by", problem).into());
    }
    run_dir::check_tokenizer(run, corpus)?;
    let mut changes = other_model(&smaller, &trainer.config.model);
    let loaded = match by {
        FirstWeights::Grow => checkpoint::load_weights(trainer, &smaller, &path),
        FirstWeights::GrowFresh => checkpoint::load_parameters(trainer, &smaller, &path),
    };
    let kept = loaded.map_err(|source| Error::FirstWeights {
        source: Box::new(source),
        run: run.into(),
        changes: changes.clone(),
    })?;
    notes.extend(changes.iter().map(|change| format!("changed: {change}")));
    let kept = resume::kept_note(&kept, run);
    notes.extend(kept.clone());
    changes.extend(kept);
    notes.push(format!("starts from the weights in {}", path.display()));
    let weights = weights_blake3(&path)?;
    Ok((notes, First { weights, changes }))
}
