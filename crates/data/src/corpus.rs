//! Opens training and validation data from a config.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, thread};

use serde::{Deserialize, Serialize};

use crate::cache::{self, Entry, Manifest, PartFacts, Work};
use crate::progress::{OnProgress, Stage, report};
use crate::synthetic::{self, Entropy, SyntheticConfig};
use crate::tokenize::{self, Part, SEGMENT, Segment, Segments, Survey, Text};
use crate::{
    Cifar10, CopyConfig, DataError, Examples, Tokenizer, TokenizerConfig, Tokens, cifar, copying,
    download, files, hash,
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
    /// What stands between two documents, such as a tokenizer's `<|endoftext|>`.
    pub separator: String,
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
            separator: "\n".into(),
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

    /// The text at `path`.
    fn text(&self, path: &Path) -> Text {
        Text::Files {
            path: path.into(),
            field: self.text_field.clone(),
            separator: self.separator.clone(),
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
    /// The documents of the source are joined by `separator`. The first `1 - valid_fraction` of
    /// the text's bytes, rounded up to a whole character, are for training, the rest for
    /// validation. Each part is tokenized separately. A character vocabulary is collected from
    /// the whole text; a BPE is trained on the training part only.
    ///
    /// The text is read and tokenized in segments, so that memory does not grow with it, unless the tokenizer
    /// needs the whole text at once. The cache has one directory for each combination of text, tokenizer and
    /// split. If the process is stopped, the next one continues with the first segment that is missing. A
    /// damaged entry is rebuilt. If the cache cannot be written, the tokens of a text of at most 1 GiB are kept
    /// in memory.
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
            Source::TinyShakespeare => {
                let text = download::tiny_shakespeare(progress)?;
                ("tiny-shakespeare".into(), Text::Memory(text))
            }
            Source::Path(path) => (path.display().to_string(), config.text(path)),
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
            (!valid.is_empty()).then(|| manifest.valid.bytes as f64 / valid.len() as f64);
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
        let text = config.text(path);
        let survey = Survey::of(&text, &TokenizerConfig::Bytes, &mut |_, _, _| true)?;
        let identity = text_identity(&survey.hash, tokenizer_fingerprint, config.valid_fraction);
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

/// The largest text whose tokens are kept in memory if the cache cannot be used, in bytes.
const MOST_IN_MEMORY: usize = 1 << 30;

/// The tokens of `text`, loaded from the cache or stored there, and a note if the cache failed.
fn entry(
    config: &DataConfig,
    source: String,
    text: &Text,
    progress: OnProgress,
) -> Result<(Entry, Option<String>), DataError> {
    let survey = Survey::of(text, &config.tokenizer, progress)?;
    if survey.bytes == 0 {
        return Err(DataError::Empty {
            path: source.into(),
        });
    }
    let dir = config.cache_entry(&survey.hash)?;
    let tokenizing = Tokenizing {
        config,
        source,
        text,
        survey,
    };
    let Some(dir) = dir else {
        let note = "there is no user cache directory, so tokens are kept in memory; \
                    set `data.cache` to a directory";
        return Ok((tokenizing.in_memory(progress)?, Some(note.into())));
    };
    match tokenizing.in_cache(&dir, progress) {
        Err(error) if error.is_of_cache(&dir) && tokenizing.survey.bytes <= MOST_IN_MEMORY => {
            let note =
                format!("the token cache cannot be used, so tokens are kept in memory: {error}");
            Ok((tokenizing.in_memory(progress)?, Some(note)))
        }
        found => found,
    }
}

/// A text that becomes an entry.
struct Tokenizing<'a> {
    config: &'a DataConfig,
    source: String,
    text: &'a Text,
    survey: Survey,
}

impl Tokenizing<'_> {
    /// Loads the entry `dir` or makes it. Also returns a note if it was damaged.
    fn in_cache(
        &self,
        dir: &Path,
        progress: OnProgress,
    ) -> Result<(Entry, Option<String>), DataError> {
        let mut note = None;
        loop {
            if fs::symlink_metadata(dir).is_ok() {
                match cache::load(dir, &self.survey.hash, self.config.valid_fraction) {
                    Ok(entry) => return Ok((entry, note)),
                    Err(e) => note = Some(format!("tokenized the data again: {e}")),
                }
            }
            if let Some(work) = Work::begin(dir)? {
                // Another process may have completed it since.
                return match cache::load(dir, &self.survey.hash, self.config.valid_fraction) {
                    Ok(entry) => {
                        work.discard();
                        Ok((entry, None))
                    }
                    Err(_) => Ok((self.store(work, progress)?, note)),
                };
            }
            report(progress, Stage::Waiting, 0, 0)?;
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Makes an entry of what `work` has and what it lacks.
    fn store(&self, work: Work, progress: OnProgress) -> Result<Entry, DataError> {
        let tokenizer = match work.tokenizer() {
            Some(tokenizer) => tokenizer,
            None => {
                let tokenizer = self.tokenizer(progress)?;
                work.store_tokenizer(&tokenizer)?;
                tokenizer
            }
        };
        let mut manifest = self.manifest(&tokenizer);
        let stored = self.each_segment(&tokenizer, progress, |segment, progress| {
            let Segment { part, number, text } = segment;
            if !work.has(part, number, &tokenizer) {
                let tokens = tokenizer.encode_with(&text, progress)?;
                work.store(part, number, &tokens, &tokenizer)?;
            }
            manifest.add(part, text.len());
            Ok(())
        });
        match stored {
            Ok(()) => work.finish(manifest),
            Err(error) => {
                // Its shards may be of the changed text.
                if matches!(error, DataError::Changed { .. }) {
                    work.discard();
                }
                Err(error)
            }
        }
    }

    /// The entry without a cache.
    fn in_memory(&self, progress: OnProgress) -> Result<Entry, DataError> {
        let tokenizer = self.tokenizer(progress)?;
        let mut manifest = self.manifest(&tokenizer);
        let (mut train, mut valid) = (Vec::new(), Vec::new());
        self.each_segment(&tokenizer, progress, |segment, progress| {
            let tokens = tokenizer.encode_with(&segment.text, progress)?;
            match segment.part {
                Part::Train => train.extend(tokens),
                Part::Valid => valid.extend(tokens),
            }
            manifest.add(segment.part, segment.text.len());
            Ok(())
        })?;
        Ok(Entry {
            manifest,
            tokenizer,
            train: Tokens::from_vec(train),
            valid: Tokens::from_vec(valid),
        })
    }

    fn tokenizer(&self, progress: OnProgress) -> Result<Tokenizer, DataError> {
        let (config, split) = (&self.config.tokenizer, self.split());
        tokenize::tokenizer(config, self.text, &self.survey, split, progress)
    }

    fn split(&self) -> usize {
        tokenize::split(self.survey.bytes, self.config.valid_fraction)
    }

    /// Calls `each` with every segment and a function that reports the bytes of it that are done.
    fn each_segment(
        &self,
        tokenizer: &Tokenizer,
        progress: OnProgress,
        mut each: impl FnMut(
            Segment,
            &mut dyn FnMut(usize) -> Result<(), DataError>,
        ) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let (all, mut before, mut hasher) = (self.survey.bytes, 0, blake3::Hasher::new());
        let segments = Segments::of(self.text, self.split(), SEGMENT, tokenizer.places())?;
        for segment in segments {
            let segment = segment?;
            let bytes = segment.text.len();
            hasher.update(segment.text.as_bytes());
            each(segment, &mut |done| {
                report(progress, Stage::Tokenizing, before + done, all)
            })?;
            before += bytes;
            report(progress, Stage::Tokenizing, before, all)?;
        }
        match hasher.finalize().to_string() == self.survey.hash {
            true => Ok(()),
            false => Err(DataError::Changed {
                path: self.source.clone().into(),
            }),
        }
    }

    /// The manifest without its parts.
    fn manifest(&self, tokenizer: &Tokenizer) -> Manifest {
        Manifest {
            format: cache::FORMAT,
            source: self.source.clone(),
            source_hash: self.survey.hash.clone(),
            tokenizer_fingerprint: tokenizer.fingerprint(),
            valid_fraction: self.config.valid_fraction,
            train: PartFacts::default(),
            valid: PartFacts::default(),
            bond: String::new(),
        }
    }
}

#[cfg(test)]
mod tests;
