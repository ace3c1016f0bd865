//! Opens training and validation data from a config.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs};

use serde::{Deserialize, Serialize};

use crate::cache::{self, Entry, Fresh, Manifest};
use crate::progress::{OnProgress, Stage, report};
use crate::synthetic::{self, Entropy, SyntheticConfig};
use crate::{
    Cifar10, CopyConfig, DataError, Examples, Tokenizer, TokenizerConfig, Tokens, cifar, copying,
    download, files, hash, text,
};

/// The data to train on and how they are tokenized. A field that a config file leaves out has its
/// [`Default`] value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// Where the data come from.
    pub source: Source,
    /// How text becomes tokens.
    pub tokenizer: TokenizerConfig,
    /// The fraction of the text, at its end, that is used for validation; between 0 and 1.
    pub valid_fraction: f64,
    /// The field with the text in the objects of a JSONL file.
    pub text_field: String,
    /// The directory of the token cache. `None` is `residual-zoo/tokens` in the user's cache
    /// directory.
    pub cache: Option<PathBuf>,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            source: Source::default(),
            tokenizer: TokenizerConfig::default(),
            valid_fraction: 0.1,
            text_field: "text".into(),
            cache: None,
        }
    }
}

impl DataConfig {
    /// Checks every field without reading any file.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidConfig`].
    pub fn validate(&self) -> Result<(), DataError> {
        if !(self.valid_fraction > 0.0 && self.valid_fraction < 1.0) {
            return Err(DataError::InvalidConfig {
                field: "data.valid_fraction".into(),
                problem: format!("is {}; it must be between 0 and 1", self.valid_fraction),
            });
        }
        if let Source::Synthetic(SyntheticConfig { tokens, .. }) = self.source
            && tokens > synthetic::MOST_TOKENS
        {
            return Err(DataError::InvalidConfig {
                field: "data.source.tokens".into(),
                problem: format!("is {tokens}; it must be at most {}", synthetic::MOST_TOKENS),
            });
        }
        if let Source::Copying(copying) = &self.source {
            copying.validate()?;
        }
        self.tokenizer.validate()
    }

    /// The sequence length at the end of the curriculum, if the source determines it.
    pub fn time(&self) -> Option<usize> {
        match &self.source {
            Source::Copying(copying) => Some(copying.time(copying.last_level())),
            Source::Cifar10(_) => Some(cifar::PIXELS),
            _ => None,
        }
    }

    /// Number of outputs of a model of these data: the `vocab_size` token ids, or for images the classes.
    pub fn outputs(&self, vocab_size: usize) -> usize {
        match &self.source {
            Source::Cifar10(_) => cifar::CLASSES,
            _ => vocab_size,
        }
    }

    /// The cache entry for a text with this hash; `None` if there is no cache directory.
    fn cache_entry(&self, source_hash: &str) -> Result<Option<PathBuf>, DataError> {
        let user = || dirs::cache_dir().map(|cache| cache.join("residual-zoo").join("tokens"));
        let Some(root) = self.cache.clone().or_else(user) else {
            return Ok(None);
        };
        let tokenizer = match &self.tokenizer {
            TokenizerConfig::Bytes => "bytes".to_owned(),
            TokenizerConfig::Chars => "chars".to_owned(),
            TokenizerConfig::Bpe { vocab_size } => format!("bpe {vocab_size}"),
            TokenizerConfig::File(path) => {
                format!("file {}", blake3::hash(&files::read_file(path)?))
            }
        };
        let key = hash::of_parts(
            "residual-zoo-data cache entry",
            &[
                &cache::FORMAT.to_le_bytes(),
                source_hash.as_bytes(),
                tokenizer.as_bytes(),
                &self.valid_fraction.to_le_bytes(),
                self.text_field.as_bytes(),
            ],
        );
        Ok(Some(root.join(&key.to_hex()[..32])))
    }
}

/// Where data come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Source {
    /// A synthetic language whose tokens are words; the configured tokenizer is ignored (see
    /// [`crate::synthetic`]). Needs no file.
    Synthetic(SyntheticConfig),
    /// 1.1 MB of Shakespeare's plays, downloaded once (see [`crate::tiny_shakespeare`]).
    TinyShakespeare,
    /// Symbols to copy across noise, newly generated for every batch. Needs no file.
    Copying(CopyConfig),
    /// The directory of CIFAR-10's binary batches. The task is to predict the class of an image
    /// from its grey pixels. The test batch is used for validation.
    Cifar10(PathBuf),
    /// A text file, a `.jsonl` file or a directory of those (see [`crate::read_documents`]). A relative path
    /// is relative to the current directory.
    Path(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic(_) => f.write_str("a synthetic language"),
            Self::TinyShakespeare => f.write_str("tiny shakespeare"),
            Self::Copying(_) => f.write_str("the copy task"),
            Self::Cifar10(_) => f.write_str("CIFAR-10"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl Default for Source {
    fn default() -> Self {
        Self::Synthetic(SyntheticConfig::default())
    }
}

/// Training and validation examples, and how they were made.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// Training examples.
    pub train: Examples,
    /// Validation examples.
    pub valid: Examples,
    /// Maps text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Number of a model's outputs: the number of token ids, or for images the number of classes.
    pub outputs: usize,
    /// Bytes of text per validation token; `None` for data that are not text.
    pub bytes_per_token: Option<f64>,
    /// A hash of the source's content, the tokenizer and the split: BLAKE3, as 64 hexadecimal
    /// digits. Runs with the same identity saw the same data.
    pub identity: String,
    /// The lowest possible loss of a model, if known.
    pub entropy: Option<Entropy>,
    /// One line for the user if the cache was damaged or could not be used. The tokens are valid
    /// either way.
    pub note: Option<String>,
}

impl Corpus {
    /// Reads and tokenizes the data that `config` names, or takes the tokens from the cache.
    ///
    /// The documents of the source are joined by line breaks. The first `1 - valid_fraction` of
    /// the text's bytes, rounded up to a whole character, are for training, the rest for
    /// validation. Each part is tokenized separately. A character vocabulary is collected from
    /// the whole text; a BPE is trained on the training part only.
    ///
    /// The cache has one directory for each combination of text, tokenizer and split. A damaged
    /// entry is rebuilt. If the cache cannot be written, the tokens are kept in memory.
    ///
    /// # Errors
    ///
    /// An invalid config; a missing or invalid source or tokenizer; a failed download.
    pub fn open(config: &DataConfig) -> Result<Self, DataError> {
        Self::open_with(config, &mut |_, _, _| true)
    }

    /// Like [`open`](Self::open), and reports how far it is.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`DataError::Stopped`] if `progress` says so.
    pub fn open_with(config: &DataConfig, progress: OnProgress) -> Result<Self, DataError> {
        config.validate()?;
        let (name, text) = match &config.source {
            Source::Synthetic(synthetic) => return Self::synthetic(synthetic, config),
            Source::Copying(copying) => return Self::copying(copying),
            Source::Cifar10(directory) => return Self::cifar10(directory),
            Source::TinyShakespeare => (
                "tiny-shakespeare".into(),
                download::tiny_shakespeare(progress)?,
            ),
            Source::Path(path) => (
                path.display().to_string(),
                text::read_text(path, &config.text_field)?,
            ),
        };
        let (entry, note) = entry(config, name, &text, progress)?;
        let Entry {
            manifest,
            tokenizer,
            train,
            valid,
        } = entry;
        let identity = text_identity(
            &manifest.source_hash,
            &manifest.tokenizer_fingerprint,
            manifest.valid_fraction,
        );
        let bytes_per_token =
            (!valid.is_empty()).then(|| manifest.valid_bytes as f64 / valid.len() as f64);
        Ok(Self {
            train: Examples::Text(train),
            valid: Examples::Text(valid),
            outputs: tokenizer.vocab_size(),
            tokenizer,
            bytes_per_token,
            identity,
            entropy: None,
            note,
        })
    }

    /// The [`identity`](Self::identity) of the text that `config` names, with a tokenizer of this
    /// fingerprint. The text is read, but neither tokenized nor stored. `None` if the source is no text of the
    /// user's.
    ///
    /// # Errors
    ///
    /// A missing or invalid source.
    pub fn identity_of_text(
        config: &DataConfig,
        tokenizer_fingerprint: &str,
    ) -> Result<Option<String>, DataError> {
        let Source::Path(path) = &config.source else {
            return Ok(None);
        };
        let text = text::read_text(path, &config.text_field)?;
        let source_hash = blake3::hash(text.as_bytes()).to_string();
        let identity = text_identity(&source_hash, tokenizer_fingerprint, config.valid_fraction);
        Ok(Some(identity))
    }
}

/// The identity of a corpus of text.
fn text_identity(source_hash: &str, tokenizer_fingerprint: &str, valid_fraction: f64) -> String {
    let parts = [
        source_hash.as_bytes(),
        tokenizer_fingerprint.as_bytes(),
        &valid_fraction.to_le_bytes(),
    ];
    hash::of_parts("residual-zoo-data corpus identity v1", &parts).to_string()
}

impl Corpus {
    fn synthetic(synthetic: &SyntheticConfig, config: &DataConfig) -> Result<Self, DataError> {
        let mut train = synthetic::sample(synthetic);
        let bytes: Vec<u8> = train.iter().flat_map(|id| id.to_le_bytes()).collect();
        let valid = train.split_off((train.len() as f64 * (1.0 - config.valid_fraction)) as usize);
        let tokenizer = Tokenizer::words(synthetic::vocabulary())?;
        let identity = hash::of_parts(
            "residual-zoo-data synthetic corpus v1",
            &[
                &bytes,
                tokenizer.fingerprint().as_bytes(),
                &config.valid_fraction.to_le_bytes(),
            ],
        );
        Ok(Self {
            train: Examples::Text(Tokens::from_vec(train)),
            valid: Examples::Text(Tokens::from_vec(valid)),
            outputs: tokenizer.vocab_size(),
            tokenizer,
            bytes_per_token: None,
            identity: identity.to_string(),
            entropy: Some(synthetic::entropy()),
            note: None,
        })
    }

    fn copying(config: &CopyConfig) -> Result<Self, DataError> {
        let tokenizer = Tokenizer::words(copying::vocabulary())?;
        let examples = Examples::Copying(config.clone());
        let outputs = tokenizer.vocab_size();
        let train = examples.clone();
        Ok(Self::of_examples(train, examples, tokenizer, outputs))
    }

    fn cifar10(directory: &Path) -> Result<Self, DataError> {
        let Cifar10 { train, test } = Cifar10::open(directory)?;
        let levels = (0..cifar::LEVELS).map(|level| level.to_string());
        let tokenizer = Tokenizer::words(levels.collect())?;
        let examples = |images| Examples::Images(Arc::new(images));
        let (train, valid) = (examples(train), examples(test));
        Ok(Self::of_examples(train, valid, tokenizer, cifar::CLASSES))
    }

    /// A corpus of examples that are not text.
    fn of_examples(train: Examples, valid: Examples, tokenizer: Tokenizer, outputs: usize) -> Self {
        let (train_hash, valid_hash) = (train.blake3(), valid.blake3());
        let identity = hash::of_parts(
            "residual-zoo-data examples v1",
            &[train_hash.as_bytes(), valid_hash.as_bytes()],
        );
        Self {
            train,
            valid,
            tokenizer,
            outputs,
            bytes_per_token: None,
            identity: identity.to_string(),
            entropy: None,
            note: None,
        }
    }
}

/// The tokens of `text`, loaded from the cache or stored there, and a note if the cache failed.
fn entry(
    config: &DataConfig,
    source: String,
    text: &str,
    progress: OnProgress,
) -> Result<(Entry, Option<String>), DataError> {
    let source_hash = blake3::hash(text.as_bytes()).to_string();
    let dir = config.cache_entry(&source_hash)?;

    let mut note = None;
    if let Some(dir) = &dir
        && fs::symlink_metadata(dir).is_ok()
    {
        match cache::load(dir, &source_hash, config.valid_fraction) {
            Ok(entry) => return Ok((entry, None)),
            Err(e) => note = Some(format!("tokenized the data again: {e}")),
        }
    }

    let fresh = tokenize(config, source, source_hash, text, progress)?;
    let Some(dir) = dir else {
        let note = "there is no user cache directory, so tokens are kept in memory; \
                    set `data.cache` to a directory";
        return Ok((fresh.into(), Some(note.into())));
    };
    match cache::store(&dir, &fresh) {
        Ok(entry) => Ok((entry, note)),
        Err(e) => {
            let note = format!("the token cache cannot be used, so tokens are kept in memory: {e}");
            Ok((fresh.into(), Some(note)))
        }
    }
}

fn tokenize(
    config: &DataConfig,
    source: String,
    source_hash: String,
    text: &str,
    progress: OnProgress,
) -> Result<Fresh, DataError> {
    let at = (text.len() as f64 * (1.0 - config.valid_fraction)) as usize;
    let (train_text, valid_text) = text.split_at(text.ceil_char_boundary(at));
    let tokenizer = match config.tokenizer {
        TokenizerConfig::Bpe { .. } => {
            Tokenizer::train_with(&config.tokenizer, &[train_text], progress)?
        }
        _ => Tokenizer::train(&config.tokenizer, &[text])?,
    };
    let all = text.len();
    let train = tokenizer.encode_with(train_text, &mut |done| {
        report(progress, Stage::Tokenizing, done, all)
    })?;
    let valid = tokenizer.encode_with(valid_text, &mut |done| {
        report(progress, Stage::Tokenizing, train_text.len() + done, all)
    })?;
    let manifest = Manifest {
        format: cache::FORMAT,
        source,
        source_hash,
        tokenizer_fingerprint: tokenizer.fingerprint(),
        valid_fraction: config.valid_fraction,
        train_tokens: train.len(),
        valid_tokens: valid.len(),
        train_bytes: train_text.len(),
        valid_bytes: valid_text.len(),
        bond: String::new(),
    };
    Ok(Fresh {
        manifest,
        tokenizer,
        train,
        valid,
    })
}

#[cfg(test)]
mod tests;
