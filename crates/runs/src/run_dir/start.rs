//! The starts of a run and the identity of its data.

use std::path::{Path, PathBuf};

use residual_zoo_data::Corpus;
use serde::{Deserialize, Serialize};

use super::CONFIG;
use crate::Error;

/// The identity of the data of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataIdentity {
    /// Hash of source, tokenizer and split (see [`Corpus::identity`]).
    pub identity: String,
    /// BLAKE3 of the training data.
    pub train_blake3: String,
    /// BLAKE3 of the validation data.
    pub valid_blake3: String,
    /// Number of training tokens; `None` if they are generated without end.
    pub train_tokens: Option<usize>,
    /// Number of validation tokens; `None` if they are generated without end.
    pub valid_tokens: Option<usize>,
    /// Number of token ids.
    pub vocab_size: usize,
}

impl DataIdentity {
    /// Identifies `corpus`. Reads all of its data.
    pub fn of(corpus: &Corpus) -> Self {
        Self {
            identity: corpus.identity.clone(),
            train_blake3: corpus.train.blake3(),
            valid_blake3: corpus.valid.blake3(),
            train_tokens: corpus.train.tokens(),
            valid_tokens: corpus.valid.tokens(),
            vocab_size: corpus.tokenizer.vocab_size(),
        }
    }
}

/// A start of a run: a line of `history.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Start {
    /// Number of steps before this start.
    pub step: usize,
    /// Version of this crate.
    pub version: String,
    /// The backend, as Burn names it.
    pub backend: String,
    /// Number of threads that the system offers.
    pub threads: usize,
    /// Number of processes that train together; 0 in files of versions without teams.
    pub processes: usize,
    /// Whether other runs were trained on the same cores.
    pub shared: bool,
    /// The directory of the run with the initial weights, as it was at this start.
    pub init_from: Option<PathBuf>,
    /// The directory of the run whose weights were merged with the initial ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merged_with: Option<PathBuf>,
    /// BLAKE3 of the initial weights, which identifies them even if that run was moved.
    pub init_weights: Option<String>,
    /// BLAKE3 of `config.ron` from this start on. Runs of earlier versions have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_blake3: Option<String>,
    /// The changes since the last start, in the form of the trainer's `differences`. The first start instead lists how
    /// the model differs from the model of the run with the initial weights.
    pub changes: Vec<String>,
    /// Rows that were lost while no process ran, as found at this start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

impl Start {
    /// The same start, for a run whose `config.ron` is `text`.
    pub(super) fn with(&self, text: &str) -> Self {
        Self {
            config_blake3: Some(blake3::hash(text.as_bytes()).to_hex().to_string()),
            ..self.clone()
        }
    }
}

/// Whether someone has edited `config.ron` of the run in `path` since its last start. `history` holds the starts of the
/// run. A start is recorded before its config is written. After starts that failed before their first step, the config
/// is still from an earlier start.
///
/// # Errors
///
/// Returns I/O errors.
pub fn is_config_edited(path: &Path, history: &[Start]) -> Result<bool, Error> {
    let Some(last) = history.last() else {
        return Ok(false);
    };
    let latest = history.iter().rev();
    let failed = latest.clone().take_while(|start| start.step == last.step);
    let known = latest.take(failed.count() + 1);
    let known: Vec<_> = known.map(|start| start.config_blake3.as_deref()).collect();
    let found = residual_zoo_data::read_file(&path.join(CONFIG))?;
    let found = blake3::hash(&found).to_hex();
    Ok(!known.contains(&None) && !known.contains(&Some(found.as_str())))
}
