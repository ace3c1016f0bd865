//! Facts about data that are known before the data are opened.

use std::fs;
use std::path::Path;

use crate::text::texts_at;
use crate::{
    DataConfig, DataError, Source, Tokenizer, TokenizerConfig, cifar, copying, download, hub,
};

/// Number of distinct characters of tiny shakespeare, whose content is always the same.
const SHAKESPEARE: usize = 65;

impl DataConfig {
    /// Returns the number of token ids, or of classes for [`Source::Images`], without opening the data. Returns `None`
    /// if the number depends on the text, or on a tokenizer that is not on this machine.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokenizer cannot be read.
    pub fn known_vocab_size(&self) -> Result<Option<usize>, DataError> {
        Ok(match (&self.source, &self.tokenizer) {
            (Source::Synthetic(synthetic), _) => Some(synthetic.vocab_size()),
            (Source::Copying(_), _) => Some(copying::vocabulary().len()),
            (Source::Cifar10(_), _) => Some(cifar::LEVELS),
            (Source::Images(images), _) => Some(images.classes()),
            (Source::TinyShakespeare, TokenizerConfig::Chars) => Some(SHAKESPEARE),
            (_, TokenizerConfig::Bytes) => Some(256),
            (_, config @ TokenizerConfig::File(path)) => match at_hand(hub::local_tokenizer(path))?
            {
                Some(file) if file.exists() => Some(Tokenizer::train(config, &[])?.vocab_size()),
                _ => None,
            },
            (_, TokenizerConfig::Chars | TokenizerConfig::Bpe { .. }) => None,
        })
    }

    /// Returns the number of bytes in the text's files. Returns `None` if a file is missing or must be downloaded, and
    /// 0 for data other than text.
    ///
    /// # Errors
    ///
    /// Returns an error if the files cannot be listed.
    pub fn bytes_at_hand(&self) -> Result<Option<u64>, DataError> {
        if self.source == Source::TinyShakespeare {
            return Ok(download::cached_shakespeare());
        }
        let sizes = self.source.paths().into_iter().map(bytes_at);
        sizes.sum()
    }
}

/// Returns the number of bytes in the files at `path`; `None` if a file is not on this machine.
fn bytes_at(path: &Path) -> Result<Option<u64>, DataError> {
    let Some(files) = at_hand(texts_at(path))? else {
        return Ok(None);
    };
    let sizes = files
        .iter()
        .map(|file| fs::metadata(file).ok().map(|metadata| metadata.len()));
    Ok(sizes.sum())
}

/// Turns the error of a missing or not yet downloaded file into `None`. A file behind a broken link counts as missing,
/// and so does a file on the hub if this program cannot download it.
fn at_hand<T>(found: Result<T, DataError>) -> Result<Option<T>, DataError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(
            DataError::NotFound { .. }
            | DataError::LinkToNothing { .. }
            | DataError::LinkLoop { .. }
            | DataError::NotInHubCache { .. }
            | DataError::MissingFeature { .. },
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Corpus, SyntheticConfig};

    #[test]
    fn the_known_size_is_that_of_the_opened_data() {
        let synthetic = |vocab_size| {
            Source::Synthetic(SyntheticConfig {
                tokens: 2000,
                vocab_size,
                ..SyntheticConfig::default()
            })
        };
        for (source, expected) in [
            (synthetic(None), 56),
            (synthetic(Some(50_257)), 50_257),
            (Source::Copying(crate::CopyConfig::default()), 16),
        ] {
            let data = DataConfig {
                source,
                ..DataConfig::default()
            };
            assert_eq!(data.known_vocab_size().unwrap(), Some(expected));
            let corpus = Corpus::open(&data).unwrap();
            assert_eq!(corpus.tokenizer.vocab_size(), expected);
            assert_eq!(corpus.outputs, expected);
        }
    }

    #[test]
    fn more_ids_than_words_change_neither_the_tokens_nor_the_entropy() {
        let open = |vocab_size| {
            let source = Source::Synthetic(SyntheticConfig {
                tokens: 2000,
                vocab_size,
                ..SyntheticConfig::default()
            });
            let data = DataConfig {
                source,
                ..DataConfig::default()
            };
            Corpus::open(&data)
        };
        let (few, many) = (open(None).unwrap(), open(Some(100)).unwrap());
        assert_eq!(few.train.blake3(), many.train.blake3());
        assert_eq!(few.entropy, many.entropy);
        assert_ne!(few.identity, many.identity);
        for wrong in [0, 55, 1 << 21] {
            let error = open(Some(wrong)).unwrap_err().to_string();
            assert!(error.contains("data.source.vocab_size"), "{error}");
        }
    }

    #[test]
    fn a_text_and_a_tokenizer_that_are_not_here_are_not_known() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.txt");
        fs::write(&file, "to be").unwrap();
        let data = |source: &Path, tokenizer| DataConfig {
            source: Source::Path(source.into()),
            tokenizer,
            ..DataConfig::default()
        };
        let missing = directory.path().join("b");
        let here = data(&file, TokenizerConfig::Chars);
        assert_eq!(here.known_vocab_size().unwrap(), None);
        assert_eq!(here.bytes_at_hand().unwrap(), Some(5));
        let folder = data(directory.path(), TokenizerConfig::Bytes);
        assert_eq!(folder.known_vocab_size().unwrap(), Some(256));
        assert_eq!(folder.bytes_at_hand().unwrap(), Some(5));
        let nowhere = data(&missing, TokenizerConfig::File(missing.clone()));
        assert_eq!(nowhere.known_vocab_size().unwrap(), None);
        assert_eq!(nowhere.bytes_at_hand().unwrap(), None);
        let hub = data("hf://datasets/a/b/c.txt".as_ref(), TokenizerConfig::Chars);
        assert_eq!(hub.bytes_at_hand().unwrap(), None);
    }
}
