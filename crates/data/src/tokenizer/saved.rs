//! Writes and reads a tokenizer as JSON, for a run or the cache.

use std::collections::BTreeMap;
use std::{fmt, io};

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Kind, MOST_WORDS, Tokenizer};
use crate::DataError;

/// The file format of a tokenizer: `kind` and the field for that kind. A further field holds the number of ids if ids
/// at the end have no token. Other fields hold the ids that are set for the tokens that begin and end a text, for
/// padding and for unknown text. The content of a `tokenizer.json` is stored as a string, so it is preserved verbatim.
///
/// This is not an enum, because serde keeps all fields of an enum in memory to find its tag.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Envelope {
    kind: String,
    chars: Option<String>,
    #[serde(default, deserialize_with = "few_words")]
    words: Option<Vec<String>>,
    json: Option<String>,
    vocab_size: Option<usize>,
    begin: Option<u32>,
    end: Option<u32>,
    #[serde(default)]
    more_ends: Vec<u32>,
    pad: Option<u32>,
    unknown: Option<u32>,
}

/// An [`Envelope`] for writing: its fields are in alphabetical order, and long content is not copied.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    begin: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chars: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<&'a str>,
    kind: &'static str,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    more_ends: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    pad: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vocab_size: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<&'a [String]>,
}

/// Deserializes a list of words. Fails as soon as the list is too long, before all of it is in memory.
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
    /// Returns the tokenizer as JSON, which [`from_json`](Self::from_json) reads.
    pub fn to_json(&self) -> String {
        let mut json = Vec::new();
        self.write_json(&mut json)
            .unwrap_or_else(|e| unreachable!("memory: {e}"));
        String::from_utf8(json).unwrap_or_else(|e| unreachable!("JSON: {e}"))
    }

    /// Writes the JSON of [`to_json`](Self::to_json), which may be long.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub(crate) fn write_json(&self, to: impl io::Write) -> io::Result<()> {
        let kind = self.kind();
        let ends: BTreeMap<_, _> = self.ends.named().collect();
        let written = Written {
            begin: ends.get("begin").copied(),
            chars: match kind {
                Kind::Chars(chars) => Some(chars.iter().collect()),
                _ => None,
            },
            end: ends.get("end").copied(),
            json: match kind {
                Kind::Hf(hf) => Some(hf.json()),
                _ => None,
            },
            kind: self.kind_name(),
            more_ends: self.more_ends(),
            pad: self.pad(),
            unknown: self.unknown(),
            vocab_size: self.is_padded().then_some(self.vocab_size),
            words: match kind {
                Kind::Words(words) => Some(&words.list),
                _ => None,
            },
        };
        Ok(serde_json::to_writer(to, &written)?)
    }

    /// Reads a tokenizer that [`to_json`](Self::to_json) wrote. The fingerprint stays the same.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::Tokenizer`] for any other text, and [`DataError::Stopped`] if the user stops the process.
    pub fn from_json(json: &str) -> Result<Self, DataError> {
        Self::from_envelope(Self::parse(json)?, SAVED)
    }

    /// Like [`from_json`](Self::from_json), for a text that may be long. Frees the text before building the tokenizer,
    /// because building takes more memory.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`from_json`](Self::from_json).
    pub fn from_long_json(json: String) -> Result<Self, DataError> {
        let envelope = Self::parse(&json)?;
        drop(json);
        Self::from_envelope(envelope, SAVED)
    }

    fn parse(json: &str) -> Result<Envelope, DataError> {
        serde_json::from_str(json).map_err(|e| DataError::tokenizer(SAVED, e))
    }

    pub(super) fn from_envelope(envelope: Envelope, origin: &str) -> Result<Self, DataError> {
        let wrong = |problem: String| DataError::tokenizer(origin, problem);
        let kind = envelope.kind.as_str();
        let tokenizer = match (kind, envelope.chars, envelope.words, envelope.json) {
            ("bytes", None, None, None) => Ok(Self::of(Kind::Bytes)),
            // Checked before collecting: a list of characters may take four times the memory of the
            // text, but a list of distinct characters is short.
            ("chars", Some(chars), None, None) if chars.chars().is_sorted_by(|a, b| a < b) => {
                Self::chars(chars.chars().collect())
            }
            ("words", None, Some(words), None) => Self::words(words),
            ("hf", None, None, Some(json)) => Self::from_hf_json(json, origin),
            _ => Err(wrong(format!(
                "its fields and values do not fit the kind {kind:?}"
            ))),
        }?;
        let tokenizer = tokenizer.with_ends(envelope.begin, envelope.end)?;
        let tokenizer = tokenizer.with_more_ends(envelope.more_ends);
        let tokenizer = tokenizer.with_names(envelope.pad, envelope.unknown);
        match envelope.vocab_size {
            Some(vocab_size) => tokenizer.padded(vocab_size),
            None => Ok(tokenizer),
        }
    }
}

/// The origin of a saved tokenizer in errors.
const SAVED: &str = "saved in a run or the cache";
