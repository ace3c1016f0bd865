//! Maps text to token ids and back.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;

use crate::chunks::chunks;
use crate::hf::{self, Hf, VOCAB_SIZES};
use crate::progress::OnProgress;
use crate::tokenize::Places;
use crate::{DataError, StreamDecoder, files, hash, hub};

/// The kind of a tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum TokenizerConfig {
    /// One token per byte of UTF-8: 256 ids.
    Bytes,
    /// One token per character: the distinct characters of the corpus, sorted.
    #[default]
    Chars,
    /// A byte-level BPE trained on the corpus. Any text can be encoded.
    Bpe {
        /// Number of tokens, at least 256. A small corpus may yield fewer.
        vocab_size: usize,
    },
    /// A Hugging Face `tokenizer.json`.
    File(PathBuf),
}

impl TokenizerConfig {
    /// Checks every field without reading any file.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidConfig`] for a BPE vocabulary that is too small or too large.
    pub fn validate(&self) -> Result<(), DataError> {
        match self {
            Self::Bpe { vocab_size } if !VOCAB_SIZES.contains(vocab_size) => {
                let (low, high) = (VOCAB_SIZES.start(), VOCAB_SIZES.end());
                Err(DataError::InvalidConfig {
                    field: "data.tokenizer.vocab_size".into(),
                    problem: format!("is {vocab_size}; it must be from {low} to {high}"),
                })
            }
            _ => Ok(()),
        }
    }
}

/// Maps text to token ids below [`vocab_size`](Self::vocab_size) and back. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer(Arc<Kind>);

pub(crate) enum Kind {
    Bytes,
    Chars(Vec<char>),
    Words(Words),
    Hf(Box<Hf>),
}

pub(crate) struct Words {
    list: Vec<String>,
    /// All ids, sorted by their words.
    sorted: Vec<u32>,
}

impl Words {
    fn id(&self, word: &str) -> Option<u32> {
        let place = self
            .sorted
            .binary_search_by(|&id| self.list[id as usize].as_str().cmp(word));
        place.ok().map(|place| self.sorted[place])
    }
}

/// The file format of a tokenizer: `kind`, and the field for that kind. The content of a
/// `tokenizer.json` is stored as a string, so it is preserved verbatim.
///
/// This is not an enum, because serde keeps all fields of an enum in memory to find its tag.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    kind: String,
    chars: Option<String>,
    #[serde(default, deserialize_with = "few_words")]
    words: Option<Vec<String>>,
    json: Option<String>,
}

/// Maximum number of words. The languages here have up to a few hundred.
const MOST_WORDS: usize = 1 << 18;

/// Deserializes a list of words. It fails as soon as the list is too long, before all of it is in
/// memory.
fn few_words<'de, D: Deserializer<'de>>(list: D) -> Result<Option<Vec<String>>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Option<Vec<String>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MOST_WORDS} words")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut words = Vec::new();
            while let Some(word) = list.next_element()? {
                if words.len() == MOST_WORDS {
                    return Err(A::Error::invalid_length(MOST_WORDS + 1, &self));
                }
                words.push(word);
            }
            Ok(Some(words))
        }
    }
    list.deserialize_seq(Few)
}

impl Tokenizer {
    /// Makes the tokenizer that `config` describes. `texts` are the corpus.
    ///
    /// # Errors
    ///
    /// A BPE vocabulary that is too small or too large; a missing or invalid file; a character
    /// tokenizer for empty texts.
    pub fn train(config: &TokenizerConfig, texts: &[&str]) -> Result<Self, DataError> {
        config.validate()?;
        let kind = match config {
            TokenizerConfig::Bytes => Kind::Bytes,
            TokenizerConfig::Chars => {
                let mut chars: Vec<char> = Vec::new();
                for c in texts.iter().flat_map(|text| text.chars()) {
                    if let Err(place) = chars.binary_search(&c) {
                        chars.insert(place, c);
                    }
                }
                return Self::chars(chars);
            }
            TokenizerConfig::Bpe { vocab_size } => {
                let pieces = texts.iter().flat_map(|text| chunks(text, hf::CHUNK));
                let all = texts.iter().map(|text| text.len()).sum();
                let pieces = pieces.map(|piece| Ok(piece.to_owned()));
                return Self::bpe(*vocab_size, pieces, all, &mut |_, _, _| true);
            }
            TokenizerConfig::File(path) => {
                let origin = format!("`{}`", path.display());
                let file = hub::local_tokenizer(path)?;
                Kind::Hf(Hf::from_json(files::read_utf8(&file)?, &origin)?.into())
            }
        };
        Ok(Self(Arc::new(kind)))
    }

    /// A tokenizer for texts that are words of `list` separated by white space. The id of a word
    /// is its index in the list.
    ///
    /// # Errors
    ///
    /// If the list is empty or has more than 262,144 words; if a word is empty, contains
    /// white space or is repeated.
    pub fn words(list: Vec<String>) -> Result<Self, DataError> {
        let wrong = |problem: String| Err(DataError::tokenizer("with a word list", problem));
        if list.is_empty() {
            return wrong("the list is empty".into());
        }
        if list.len() > MOST_WORDS {
            return wrong(format!("the list has more than {MOST_WORDS} words"));
        }
        for (id, word) in list.iter().enumerate() {
            if word.is_empty() || word.contains(char::is_whitespace) {
                return wrong(format!(
                    "word {id} is empty or contains white space: {word:?}"
                ));
            }
        }
        let mut sorted: Vec<u32> = (0..).zip(&list).map(|(id, _)| id).collect();
        sorted.sort_by_key(|&id| &list[id as usize]);
        let word = |id: u32| &list[id as usize];
        if let Some(pair) = sorted
            .windows(2)
            .find(|pair| word(pair[0]) == word(pair[1]))
        {
            return wrong(format!("word {:?} is repeated", word(pair[0])));
        }
        Ok(Self(Arc::new(Kind::Words(Words { list, sorted }))))
    }

    /// A byte-level BPE, trained on `pieces`, which have `all` bytes and can be tokenized apart.
    ///
    /// # Errors
    ///
    /// The first error of the pieces; [`DataError::Stopped`].
    pub(crate) fn bpe(
        vocab_size: usize,
        pieces: impl Iterator<Item = Result<String, DataError>> + Send,
        all: usize,
        progress: OnProgress,
    ) -> Result<Self, DataError> {
        let hf = Hf::train(vocab_size, pieces, all, progress)?;
        Ok(Self(Arc::new(Kind::Hf(hf.into()))))
    }

    /// A tokenizer for the characters `chars`, which must be sorted and distinct.
    pub(crate) fn chars(chars: Vec<char>) -> Result<Self, DataError> {
        if chars.is_empty() || !chars.is_sorted_by(|a, b| a < b) {
            let problem = "the list must be sorted, distinct and not empty";
            return Err(DataError::tokenizer("with a character list", problem));
        }
        Ok(Self(Arc::new(Kind::Chars(chars))))
    }

    /// Number of token ids. All ids are below it.
    pub fn vocab_size(&self) -> usize {
        match self.kind() {
            Kind::Bytes => 256,
            Kind::Chars(chars) => chars.len(),
            Kind::Words(words) => words.list.len(),
            Kind::Hf(hf) => hf.vocab_size(),
        }
    }

    /// Whether every token is a byte.
    pub fn is_bytes(&self) -> bool {
        matches!(self.kind(), Kind::Bytes)
    }

    /// The ids of `text`. No special tokens are added.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownSymbol`] for a character or word that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.encode_with(text, &mut |_| Ok(()))
    }

    /// Like [`encode`](Self::encode), and reports the bytes that are encoded from time to time. An error of
    /// `progress` ends it.
    pub(crate) fn encode_with(
        &self,
        text: &str,
        progress: &mut dyn FnMut(usize) -> Result<(), DataError>,
    ) -> Result<Vec<u32>, DataError> {
        progress(0)?;
        let size = self.vocab_size();
        match self.kind() {
            Kind::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Kind::Chars(chars) => {
                let id = |c| match chars.binary_search(&c) {
                    Ok(id) => Ok(id as u32),
                    Err(_) => Err(DataError::unknown(&c.to_string(), "character", size)),
                };
                text.chars().map(id).collect()
            }
            Kind::Words(words) => {
                let id = |word| match words.id(word) {
                    Some(id) => Ok(id),
                    None => Err(DataError::unknown(word, "word", size)),
                };
                text.split_whitespace().map(id).collect()
            }
            Kind::Hf(hf) => hf.encode(text, progress),
        }
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownId`] for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        for &id in ids {
            self.check(id)?;
        }
        Ok(match self.kind() {
            Kind::Bytes => {
                let bytes: Vec<u8> = ids.iter().map(|&id| id as u8).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Kind::Chars(chars) => ids.iter().map(|&id| chars[id as usize]).collect(),
            Kind::Words(words) => {
                let words: Vec<&str> = ids
                    .iter()
                    .map(|&id| words.list[id as usize].as_str())
                    .collect();
                words.join(" ")
            }
            Kind::Hf(hf) => hf.decode(ids)?,
        })
    }

    /// A decoder for ids that arrive one at a time.
    pub fn stream(&self) -> StreamDecoder {
        StreamDecoder::new(self.clone())
    }

    /// A hash that two tokenizers share only if they map all texts to the same ids: BLAKE3, as
    /// 64 hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        let chars: String;
        let mut parts: Vec<&[u8]> = Vec::new();
        match self.kind() {
            Kind::Bytes => parts.push(b"bytes"),
            Kind::Chars(list) => {
                chars = list.iter().collect();
                parts.extend([b"chars", chars.as_bytes()]);
            }
            Kind::Words(words) => {
                parts.push(b"words");
                parts.extend(words.list.iter().map(|word| word.as_bytes()));
            }
            Kind::Hf(hf) => parts.extend([b"hf", hf.json().as_bytes()]),
        }
        hash::of_parts(FINGERPRINT, &parts).to_string()
    }

    /// The tokenizer as JSON, which [`from_json`](Self::from_json) reads.
    pub fn to_json(&self) -> String {
        let envelope = match self.kind() {
            Kind::Bytes => json!({ "kind": "bytes" }),
            Kind::Chars(chars) => {
                json!({ "kind": "chars", "chars": chars.iter().collect::<String>() })
            }
            Kind::Words(words) => json!({ "kind": "words", "words": words.list }),
            Kind::Hf(hf) => json!({ "kind": "hf", "json": hf.json() }),
        };
        envelope.to_string()
    }

    /// The tokenizer that [`to_json`](Self::to_json) wrote, with the same fingerprint.
    ///
    /// # Errors
    ///
    /// [`DataError::Tokenizer`] for anything else.
    pub fn from_json(json: &str) -> Result<Self, DataError> {
        let origin = "saved in a run or the cache";
        let wrong = |problem: String| DataError::tokenizer(origin, problem);
        let envelope: Envelope = serde_json::from_str(json).map_err(|e| wrong(e.to_string()))?;
        let kind = envelope.kind.as_str();
        match (kind, envelope.chars, envelope.words, envelope.json) {
            ("bytes", None, None, None) => Ok(Self(Arc::new(Kind::Bytes))),
            // Checked before collecting: a list of characters may take four times the memory of the
            // text, but a list of distinct characters is short.
            ("chars", Some(chars), None, None) if chars.chars().is_sorted_by(|a, b| a < b) => {
                Self::chars(chars.chars().collect())
            }
            ("words", None, Some(words), None) => Self::words(words),
            ("hf", None, None, Some(json)) => Ok(Self(Arc::new(Kind::Hf(
                Hf::from_json(json, origin)?.into(),
            )))),
            _ => Err(wrong(format!(
                "its fields and values do not fit the kind {kind:?}"
            ))),
        }
    }

    /// Where a text may be cut, so that its parts have the tokens of the whole.
    pub(crate) fn places(&self) -> Places {
        match self.kind() {
            Kind::Bytes | Kind::Chars(_) => Places::Characters,
            Kind::Hf(hf) if hf.is_separable() => Places::Words,
            Kind::Hf(_) | Kind::Words(_) => Places::Nowhere,
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Refuses an id outside the vocabulary.
    pub(crate) fn check(&self, id: u32) -> Result<(), DataError> {
        let vocab_size = self.vocab_size();
        if (id as usize) < vocab_size {
            Ok(())
        } else {
            Err(DataError::UnknownId { id, vocab_size })
        }
    }
}

const FINGERPRINT: &str = "residual-zoo-data tokenizer fingerprint v1";

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind() {
            Kind::Bytes => "bytes",
            Kind::Chars(_) => "chars",
            Kind::Words(_) => "words",
            Kind::Hf(_) => "hf",
        };
        write!(f, "Tokenizer({kind}, {} ids)", self.vocab_size())
    }
}

#[cfg(test)]
mod tests;
