//! Configs of training data.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::hf::VOCAB_SIZES;
use crate::synthetic::{self, SyntheticConfig};
use crate::tokenize::Text;
use crate::{CopyConfig, DataError, ImagesConfig, TokenizerConfig, cache, cifar, files, hash, hub};

/// The training data and their tokenizer. Fields that the run file omits have their [`Default`] values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// The source of the data.
    pub source: Source,
    /// The tokenizer.
    pub tokenizer: TokenizerConfig,
    /// The fraction of the text, at its end, that is used for validation; above 0 and below 1.
    pub valid_fraction: f64,
    /// The field with the text in the objects of a JSONL file, or the column with the text in a Parquet file.
    pub text_field: String,
    /// The text between two documents, such as a tokenizer's `<|endoftext|>`.
    pub separator: String,
    /// The directory of the token cache. `None` means `residual-zoo/tokens` in the user's cache directory.
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
    /// Returns an error for the first invalid field: [`DataError::InvalidAddress`] for an address on the hub, and
    /// [`DataError::InvalidConfig`] otherwise.
    pub fn validate(&self) -> Result<(), DataError> {
        if !(self.valid_fraction > 0.0 && self.valid_fraction < 1.0) {
            return Err(DataError::InvalidConfig {
                field: "data.valid_fraction".into(),
                problem: format!("is {}; it must be above 0 and below 1", self.valid_fraction),
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
        if let Source::Synthetic(SyntheticConfig {
            vocab_size: Some(size),
            ..
        }) = self.source
        {
            let (words, most) = (synthetic::vocabulary().len(), *VOCAB_SIZES.end());
            if !(words..=most).contains(&size) {
                return Err(DataError::InvalidConfig {
                    field: "data.source.vocab_size".into(),
                    problem: format!(
                        "is {size}; it must be from {words}, the number of words, to {most}"
                    ),
                });
            }
        }
        if let Source::Copying(copying) = &self.source {
            copying.validate()?;
        }
        if let Source::Images(images) = &self.source {
            images.validate()?;
        }
        self.check_texts()?;
        hub::check(self)?;
        self.tokenizer.validate()
    }

    /// Returns the sequence length at the end of the curriculum, if the source determines this length.
    pub fn time(&self) -> Option<usize> {
        match &self.source {
            Source::Copying(copying) => Some(copying.time(copying.last_level())),
            Source::Cifar10(_) => Some(cifar::PIXELS),
            Source::Images(_) => Some(1),
            _ => None,
        }
    }

    /// Returns the number of outputs of a model for these data: the number of classes for images, otherwise
    /// `vocab_size`.
    pub fn outputs(&self, vocab_size: usize) -> usize {
        match &self.source {
            Source::Cifar10(_) => cifar::CLASSES,
            Source::Images(images) => images.classes(),
            _ => vocab_size,
        }
    }

    /// Returns the channels, height and width of the images that a model for these data reads; `None` if the model
    /// reads token ids.
    pub fn image(&self) -> Option<[usize; 3]> {
        match &self.source {
            Source::Images(images) => Some(images.size()),
            _ => None,
        }
    }

    /// Checks the paths of the texts, and the weights and the tokenizer of a mixture.
    fn check_texts(&self) -> Result<(), DataError> {
        let wrong = |problem: String| {
            Err(DataError::InvalidConfig {
                field: "data.source".into(),
                problem,
            })
        };
        let texts = self.source.paths();
        let files = texts
            .iter()
            .map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()));
        let files: Vec<_> = files.collect();
        if let Some(i) = (1..files.len()).find(|i| files[..*i].contains(&files[*i])) {
            return wrong(format!(
                "has `{}` twice, so its validation part would also be used for training; give it once; in a Mixture, \
                 raise its weight",
                texts[i].display()
            ));
        }
        let parts = match &self.source {
            Source::Paths(paths) if paths.is_empty() => return wrong("has no texts".into()),
            Source::Mixture(parts) => parts,
            _ => return Ok(()),
        };
        let is_weight = |weight: f64| weight > 0.0 && weight.is_finite();
        if parts.is_empty() {
            return wrong("has no texts".into());
        }
        if let Some(part) = parts.iter().find(|part| !is_weight(part.weight)) {
            let Weighted { path, weight } = part;
            return wrong(format!(
                "gives `{}` the weight {weight}; it must be a positive number",
                path.display()
            ));
        }
        let all: f64 = parts.iter().map(|part| part.weight).sum();
        if !all.is_finite() {
            return wrong("has weights whose sum is not finite; give smaller ones".into());
        }
        match self.tokenizer {
            TokenizerConfig::Bytes | TokenizerConfig::File(_) => Ok(()),
            _ => wrong(
                "is a mixture, whose tokenizer cannot be trained on all of its texts; \
                 set `data.tokenizer` to Bytes or to File(\"tokenizer.json\")"
                    .into(),
            ),
        }
    }

    /// Returns the text at `paths`.
    pub(crate) fn text(&self, paths: &[impl AsRef<Path>]) -> Text {
        Text::Files {
            paths: paths.iter().map(|path| path.as_ref().into()).collect(),
            field: self.text_field.clone(),
            separator: self.separator.clone(),
        }
    }

    /// Returns the directory of the token cache; `None` if there is no cache.
    pub fn cache_directory(&self) -> Option<PathBuf> {
        let user = || dirs::cache_dir().map(|cache| cache.join("residual-zoo").join("tokens"));
        self.cache.clone().or_else(user)
    }

    /// Returns the cache entry for a text with this hash; `None` if there is no cache directory.
    pub(crate) fn cache_entry(&self, source_hash: &str) -> Result<Option<PathBuf>, DataError> {
        let Some(root) = self.cache_directory() else {
            return Ok(None);
        };
        let tokenizer = match &self.tokenizer {
            TokenizerConfig::Bytes => "bytes".to_owned(),
            TokenizerConfig::Chars => "chars".to_owned(),
            TokenizerConfig::Bpe { vocab_size } => format!("bpe {vocab_size}"),
            TokenizerConfig::File(path) => {
                let file = hub::local_tokenizer(path)?;
                format!("file {}", blake3::hash(&files::read_file(&file)?))
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

/// A source of data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Source {
    /// A synthetic language whose tokens are words; the configured tokenizer is ignored (see
    /// [`crate::synthetic`]). Needs no file.
    Synthetic(SyntheticConfig),
    /// 1.1 MB of Shakespeare's plays, downloaded once (see [`crate::tiny_shakespeare`]).
    TinyShakespeare,
    /// The copying task: the model repeats symbols after a stretch of noise. Every batch is new. Needs no file.
    Copying(CopyConfig),
    /// The directory of CIFAR-10's binary batches. The task is to predict the class of an image
    /// from its grey pixels. The test batch is used for validation.
    Cifar10(PathBuf),
    /// Images to classify, for models that read images.
    Images(ImagesConfig),
    /// A text file, a `.jsonl` or `.parquet` file, or a directory of such files (see [`crate::read_documents`]). A
    /// relative path is relative to the current directory. `hf://datasets/OWNER/NAME/PATH` names a file or directory on
    /// the Hugging Face hub, which is downloaded once.
    Path(PathBuf),
    /// Several texts as in `Path`, one after the other.
    Paths(Vec<PathBuf>),
    /// Several texts as in `Path`, each with a weight. Each sequence is drawn from one text. The end of each text is
    /// used for validation, with the same weights. The tokenizer must be `Bytes` or `File`, because no tokenizer is
    /// trained on a mixture.
    Mixture(Vec<Weighted>),
    /// Unknown: the model was imported from another project. There is nothing to train on.
    Imported,
}

/// A text of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weighted {
    /// A path as in [`Source::Path`].
    pub path: PathBuf,
    /// Relative weight of the text. A sequence comes from this text with a probability proportional to the weight.
    pub weight: f64,
}

impl Source {
    /// Returns the files and directories of the texts.
    pub fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Path(path) => vec![path],
            Self::Paths(paths) => paths.iter().map(PathBuf::as_path).collect(),
            Self::Mixture(parts) => parts.iter().map(|part| part.path.as_path()).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the files and directories of the texts or images.
    pub fn places(&self) -> Vec<&Path> {
        match self {
            Self::Cifar10(directory) => vec![directory],
            Self::Images(images) => images.set.directory().into_iter().collect(),
            _ => self.paths(),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Synthetic(_) => f.write_str("a synthetic language"),
            Self::TinyShakespeare => f.write_str("tiny shakespeare"),
            Self::Copying(_) => f.write_str("the copy task"),
            Self::Cifar10(_) => f.write_str("CIFAR-10"),
            Self::Images(images) => f.write_str(images.set.name()),
            Self::Imported => f.write_str("not known, the model was imported"),
            Self::Path(path) => path.display().fmt(f),
            Self::Paths(_) | Self::Mixture(_) => {
                let paths = self
                    .paths()
                    .into_iter()
                    .map(|path| path.display().to_string());
                f.write_str(&paths.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

impl Default for Source {
    fn default() -> Self {
        Self::Synthetic(SyntheticConfig::default())
    }
}
