//! The starts of a run and the identity of its data.

use std::path::{Path, PathBuf};

use residual_zoo_data::Corpus;
use serde::{Deserialize, Serialize};

use super::CONFIG;
use crate::Error;

/// The identity of a run's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataIdentity {
    /// The identity of the corpus (see [`Corpus::identity`]).
    pub identity: String,
    /// BLAKE3 of the training data (see [`Examples::blake3`](residual_zoo_data::Examples::blake3)).
    pub train_blake3: String,
    /// BLAKE3 of the validation data, computed in the same way.
    pub valid_blake3: String,
    /// Number of training tokens, or of images for models that read images; `None` if they are generated without end.
    pub train_tokens: Option<usize>,
    /// Number of validation tokens or images; `None` if they are generated without end.
    pub valid_tokens: Option<usize>,
    /// Number of token ids.
    pub vocab_size: usize,
}

impl DataIdentity {
    /// Identifies `corpus`. Hashes its data, except the content of image files and tokens whose hash is already known.
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
    /// Version of the zoo.
    pub version: String,
    /// Burn's name for the backend.
    pub backend: String,
    /// Number of threads that the system offers.
    pub threads: usize,
    /// Number of processes that train together; 0 in files of earlier versions, which trained in a single process.
    pub processes: usize,
    /// Whether other runs were trained on the same cores at the same time.
    pub shared: bool,
    /// The directory, at the time of this start, of the run with the initial weights.
    pub init_from: Option<PathBuf>,
    /// The directory of the run whose weights were merged with the initial weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merged_with: Option<PathBuf>,
    /// BLAKE3 of the initial weights. The hash identifies these weights even if the run that they came from was moved.
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
    /// Returns the same start, for a run whose `config.ron` is `text`.
    pub(super) fn with(&self, text: &str) -> Self {
        Self {
            config_blake3: Some(blake3::hash(text.as_bytes()).to_hex().to_string()),
            ..self.clone()
        }
    }
}

/// Whether someone has edited `config.ron` of the run in `path` since its last start. `history` holds the starts of the
/// run.
///
/// A start is recorded before its config is written. If a start fails between the two, the config is still from an
/// earlier start. The config therefore counts as unedited if it is the config of one of the latest starts, all at the
/// step of the last start, or of the start just before these.
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
