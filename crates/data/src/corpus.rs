//! Opens training and validation data from a config.

use std::path::Path;
use std::sync::Arc;

use crate::cache::Entry;
use crate::cached_tokens::{OnFailure, entry};
use crate::images::OpenedImages;
use crate::progress::OnProgress;
use crate::synthetic::{self, Entropy, SyntheticConfig};
use crate::tokenize::{Survey, Text};
use crate::{
    Cifar, CopyConfig, DataConfig, DataError, Examples, ImagesConfig, Mixture, Source, Tokenizer,
    TokenizerConfig, Tokens, Weighted, cifar, copying, download, hash, hub, text,
};

/// Training and validation examples, with their tokenizer and identity.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// Training examples.
    pub train: Examples,
    /// Validation examples.
    pub valid: Examples,
    /// Maps text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Number of model outputs: one for each token id or, for images, one for each class.
    pub outputs: usize,
    /// Bytes of text per validation token; `None` for generated data and images, and if there are no validation tokens.
    pub bytes_per_token: Option<f64>,
    /// BLAKE3 hash that identifies the data, as 64 hexadecimal digits. For texts and the synthetic language, it covers
    /// the content, the tokenizer, the split and the weights of a mixture. For other data, it covers the
    /// [hashes](Examples::blake3) of the training and validation examples. Runs with the same identity saw the same
    /// data, if image files with the same names and lengths have the same content.
    pub identity: String,
    /// The lowest possible losses of a model, in nats per token, if known.
    pub entropy: Option<Entropy>,
    /// One line for the user, for example if files were left out, or if the cache was damaged or unusable. The data are
    /// valid either way.
    pub note: Option<String>,
}

impl Corpus {
    /// Reads and tokenizes the data that `config` names, or takes the tokens from the cache.
    ///
    /// The documents of the source are joined by `separator`. The first `1 - valid_fraction` of the text's bytes,
    /// rounded up to a whole character, are the training part. The rest is the validation part. Each part is tokenized
    /// separately. A character vocabulary is collected from the whole text; a BPE tokenizer is trained on the training
    /// part only.
    ///
    /// The text is read and tokenized in segments, so a longer text needs no more memory. The exception is a tokenizer
    /// that needs the whole text at once. The cache has one directory, called an entry, for each combination of text,
    /// tokenizer and split. If the process is stopped, the next process continues with the first missing segment. A
    /// damaged entry is rebuilt. If the cache cannot be read or written, the tokens of a text of at most 1 GiB are kept
    /// in memory. If there is no cache directory at all, the tokens of any text are kept in memory.
    ///
    /// # Errors
    ///
    /// Returns an error for an invalid config, a missing or invalid source or tokenizer, or a failed download. Also
    /// returns an error if the cache cannot be used for a text of more than 1 GiB.
    pub fn open(config: &DataConfig) -> Result<Self, DataError> {
        Self::open_with(config, &mut |_, _, _| true)
    }

    /// Opens the corpus like [`open`](Self::open), and calls `progress` from time to time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open`](Self::open), and [`DataError::Stopped`] if `progress` stops the work.
    pub fn open_with(config: &DataConfig, progress: OnProgress) -> Result<Self, DataError> {
        Self::open_in(config, OnFailure::InMemory, progress)
    }

    /// Opens the corpus like [`open_with`](Self::open_with), but fails if the tokens of a text cannot be stored in the
    /// cache.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open_with`](Self::open_with), and an error if writing fails.
    pub fn store(config: &DataConfig, progress: OnProgress) -> Result<Self, DataError> {
        Self::open_in(config, OnFailure::Fail, progress)
    }

    fn open_in(
        config: &DataConfig,
        on_failure: OnFailure,
        progress: OnProgress,
    ) -> Result<Self, DataError> {
        config.validate()?;
        hub::fetch(config, progress)?;
        match &config.source {
            Source::Synthetic(synthetic) => Self::synthetic(synthetic, config),
            Source::Copying(copying) => Self::copying(copying),
            Source::Cifar10(directory) => Self::cifar10(directory),
            Source::Images(images) => Self::images(images, progress),
            Source::TinyShakespeare => {
                let text = Text::Memory(download::tiny_shakespeare(progress)?);
                let name = "tiny-shakespeare".into();
                Self::of_text(config, name, &text, on_failure, progress)
            }
            Source::Path(path) => Self::of_files(config, &[path], on_failure, progress),
            Source::Paths(paths) => Self::of_files(config, paths, on_failure, progress),
            Source::Mixture(parts) => Self::mixture(config, parts, on_failure, progress),
            Source::Imported => Err(DataError::InvalidConfig {
                field: "data.source".into(),
                problem: "is Imported: the data of an imported model are not known. To train it further, start another \
                          run: `residual-zoo train RUN/config.ron --init-from RUN --data TEXT --run NEW`"
                    .into(),
            }),
        }
    }

    fn of_files(
        config: &DataConfig,
        paths: &[impl AsRef<Path>],
        on_failure: OnFailure,
        progress: OnProgress,
    ) -> Result<Self, DataError> {
        let names = paths.iter().map(|path| path.as_ref().display().to_string());
        let name = names.collect::<Vec<_>>().join(", ");
        let of_files = text::notes(paths)?;
        let text = config.text(paths);
        let corpus = Self::of_text(config, name, &text, on_failure, progress)?;
        let notes: Vec<String> = of_files.into_iter().chain(corpus.note).collect();
        Ok(Self {
            note: (!notes.is_empty()).then(|| notes.join("; ")),
            ..corpus
        })
    }

    /// Makes the corpus of a text. `name` says where the text comes from.
    fn of_text(
        config: &DataConfig,
        name: String,
        text: &Text,
        on_failure: OnFailure,
        progress: OnProgress,
    ) -> Result<Self, DataError> {
        let (entry, note) = entry(config, name, text, on_failure, progress)?;
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

    /// Makes the corpus of several texts. All texts have the same tokenizer, because a mixture's tokenizer is not
    /// trained.
    fn mixture(
        config: &DataConfig,
        parts: &[Weighted],
        on_failure: OnFailure,
        progress: OnProgress,
    ) -> Result<Self, DataError> {
        let open = |part: &Weighted| Self::of_files(config, &[&part.path], on_failure, progress);
        let corpora: Vec<Self> = parts.iter().map(open).collect::<Result<_, _>>()?;
        let weights = || parts.iter().map(|part| part.weight);
        let tokens = |of: fn(&Self) -> &Examples| {
            let texts = corpora
                .iter()
                .filter_map(|corpus| of(corpus).text().cloned());
            Examples::Mixture(Mixture::new(weights().zip(texts)))
        };
        let (train, valid) = (
            tokens(|corpus| &corpus.train),
            tokens(|corpus| &corpus.valid),
        );
        let bytes_per_token = corpora.iter().map(|corpus| corpus.bytes_per_token);
        let bytes_per_token = weights()
            .zip(bytes_per_token)
            .map(|(weight, bytes)| Some(weight * bytes?))
            .sum::<Option<f64>>();
        let identities = corpora.iter().map(|corpus| corpus.identity.clone());
        let notes = corpora.iter().filter_map(|corpus| corpus.note.clone());
        let note = notes.collect::<Vec<_>>().join("; ");
        let tokenizer = corpora[0].tokenizer.clone();
        Ok(Self {
            train,
            valid,
            outputs: tokenizer.vocab_size(),
            tokenizer,
            bytes_per_token: bytes_per_token.map(|sum| sum / weights().sum::<f64>()),
            identity: mixture_identity(parts, identities),
            entropy: None,
            note: (!note.is_empty()).then_some(note),
        })
    }

    /// Returns the [`identity`](Self::identity) of the text that `config` names, for a tokenizer with this fingerprint.
    /// Reads the text, but neither tokenizes nor stores it. Returns `None` if the source is not one of the user's own
    /// texts.
    ///
    /// # Errors
    ///
    /// Returns an error if the source is missing or invalid.
    pub fn identity_of_text(
        config: &DataConfig,
        tokenizer_fingerprint: &str,
    ) -> Result<Option<String>, DataError> {
        let identity = |text: &Text| {
            let survey = Survey::of(text, &TokenizerConfig::Bytes, &mut |_, _, _| true)?;
            let fraction = config.valid_fraction;
            Ok(text_identity(&survey.hash, tokenizer_fingerprint, fraction))
        };
        Ok(match &config.source {
            Source::Path(path) => Some(identity(&config.text(&[path]))?),
            Source::Paths(paths) => Some(identity(&config.text(paths))?),
            Source::Mixture(parts) => {
                let identities = parts
                    .iter()
                    .map(|part| identity(&config.text(&[&part.path])));
                let identities: Vec<String> = identities.collect::<Result<_, _>>()?;
                Some(mixture_identity(parts, identities))
            }
            _ => None,
        })
    }
}

/// Returns the identity of a mixture of corpora with these identities.
fn mixture_identity(parts: &[Weighted], identities: impl IntoIterator<Item = String>) -> String {
    let weights = parts.iter().map(|part| part.weight.to_le_bytes().to_vec());
    let identities = identities.into_iter().map(String::into_bytes);
    let all: Vec<Vec<u8>> = weights.zip(identities).flat_map(<[_; 2]>::from).collect();
    let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    hash::of_parts("residual-zoo-data mixture identity v1", &all).to_string()
}

/// Returns the identity of a corpus of text.
fn text_identity(source_hash: &str, tokenizer_fingerprint: &str, valid_fraction: f64) -> String {
    let parts = [
        source_hash.as_bytes(),
        tokenizer_fingerprint.as_bytes(),
        &valid_fraction.to_le_bytes(),
    ];
    hash::of_parts("residual-zoo-data corpus identity v1", &parts).to_string()
}

impl Corpus {
    /// Returns the channels, height and width of the images that a model for these data reads; `None` if the model
    /// reads token ids.
    pub fn image(&self) -> Option<[usize; 3]> {
        match &self.train {
            Examples::Images(views) => Some(views.size()),
            _ => None,
        }
    }

    fn synthetic(synthetic: &SyntheticConfig, config: &DataConfig) -> Result<Self, DataError> {
        let mut train = synthetic::sample(synthetic);
        let bytes: Vec<u8> = train.iter().flat_map(|id| id.to_le_bytes()).collect();
        let valid = train.split_off((train.len() as f64 * (1.0 - config.valid_fraction)) as usize);
        let tokenizer =
            Tokenizer::words(synthetic::vocabulary())?.padded(synthetic.vocab_size())?;
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
        let Cifar { train, test } = Cifar::open(directory)?;
        let levels = (0..cifar::LEVELS).map(|level| level.to_string());
        let tokenizer = Tokenizer::words(levels.collect())?;
        let examples = |images| Examples::Pixels(Arc::new(images));
        let (train, valid) = (examples(train), examples(test));
        Ok(Self::of_examples(train, valid, tokenizer, cifar::CLASSES))
    }

    /// Opens a corpus of images. Its tokenizer has a token for each class name.
    fn images(config: &ImagesConfig, progress: OnProgress) -> Result<Self, DataError> {
        let OpenedImages {
            train,
            valid,
            names,
            note,
        } = config.open(progress)?;
        let [train, valid] = [train, valid].map(Examples::Images);
        let tokenizer = Tokenizer::words(names)?;
        let outputs = tokenizer.vocab_size();
        Ok(Self {
            note,
            ..Self::of_examples(train, valid, tokenizer, outputs)
        })
    }

    /// Makes a corpus of examples that are not text.
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

#[cfg(test)]
mod tests;
