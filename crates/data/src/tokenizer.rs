//! Maps text to token ids and back.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod ends;
mod saved;

use residual_zoo_system::counted;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::ends::Ends;
use self::saved::Envelope;
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
    /// One token per character. The vocabulary is the sorted list of the distinct characters in the corpus.
    #[default]
    Chars,
    /// A byte-level BPE trained on the corpus. Any text can be encoded.
    Bpe {
        /// Number of tokens, at least 256. A small corpus may yield fewer.
        vocab_size: usize,
    },
    /// A Hugging Face `tokenizer.json`, or the `tokenizer.json` of a run.
    File(PathBuf),
}

impl TokenizerConfig {
    /// Checks every field without reading any file.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::InvalidConfig`] for a BPE vocabulary that is too small or too large.
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
pub struct Tokenizer {
    kind: Arc<Kind>,
    vocab_size: usize,
    ends: Ends,
}

pub(crate) enum Kind {
    Bytes,
    Chars(Vec<char>),
    Words(Words),
    Hf(Arc<Hf>),
}

impl Kind {
    /// Returns the smallest number that is above every id with a token.
    pub(crate) fn tokens(&self) -> usize {
        match self {
            Self::Bytes => 256,
            Self::Chars(chars) => chars.len(),
            Self::Words(words) => words.list.len(),
            Self::Hf(hf) => hf.vocab_size(),
        }
    }
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

impl Tokenizer {
    /// Makes the tokenizer that `config` describes. `texts` are the corpus.
    ///
    /// # Errors
    ///
    /// Returns an error for a BPE vocabulary that is too small or too large, a BPE training that fails, a missing or
    /// invalid file, or a character tokenizer for empty texts. Returns [`DataError::Stopped`] if the user stops the
    /// process.
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
                let json = files::read_utf8(&hub::local_tokenizer(path)?)?;
                return match serde_json::from_str::<Envelope>(&json) {
                    Ok(envelope) => {
                        drop(json);
                        Self::from_envelope(envelope, &origin)
                    }
                    Err(_) => Self::from_hf_json(json, &origin),
                };
            }
        };
        Ok(Self::of(kind))
    }

    fn of(kind: Kind) -> Self {
        Self {
            vocab_size: kind.tokens(),
            kind: Arc::new(kind),
            ends: Ends::default(),
        }
    }

    /// Makes the tokenizer of a Hugging Face `tokenizer.json` with this content. `origin` names the file in errors.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::Tokenizer`] if the content is not a supported `tokenizer.json`, and [`DataError::Stopped`]
    /// if the user stops the process.
    pub fn from_hf_json(json: String, origin: &str) -> Result<Self, DataError> {
        Ok(Self::of(Kind::Hf(Hf::from_json(json, origin)?.into())))
    }

    /// Returns the content of a Hugging Face `tokenizer.json` that gives the same ids.
    pub fn to_hf_json(&self) -> String {
        let mut file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "post_processor": null,
        });
        let (split, decoder, model) = match self.kind() {
            Kind::Hf(hf) => return hf.json().to_owned(),
            // The byte-level alphabet has a printable character for each byte.
            Kind::Bytes => {
                let byte_level = json!({
                    "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
                });
                let vocab: BTreeMap<String, usize> =
                    hf::bytes().map(|(c, b)| (c.into(), b.into())).collect();
                let model = json!({ "type": "BPE", "vocab": vocab, "merges": [] });
                (byte_level.clone(), byte_level, model)
            }
            Kind::Chars(chars) => {
                let split = json!({
                    "type": "Split", "pattern": { "Regex": "[\\s\\S]" }, "behavior": "Isolated", "invert": false,
                });
                let words = chars.iter().map(char::to_string);
                (split, json!({ "type": "Fuse" }), word_level(words))
            }
            Kind::Words(words) => {
                let split = json!({ "type": "WhitespaceSplit" });
                (split, Value::Null, word_level(words.list.iter().cloned()))
            }
        };
        file["pre_tokenizer"] = split;
        file["decoder"] = decoder;
        file["model"] = model;
        file.to_string()
    }

    /// Returns the kind, as in [`to_json`](Self::to_json): `bytes`, `chars`, `words` or `hf`.
    pub fn kind_name(&self) -> &'static str {
        match self.kind() {
            Kind::Bytes => "bytes",
            Kind::Chars(_) => "chars",
            Kind::Words(_) => "words",
            Kind::Hf(_) => "hf",
        }
    }

    /// Returns the same tokenizer with `vocab_size` ids. The new ids at the end have no token, as in models whose
    /// embedding table has more rows than the tokenizer has tokens.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokenizer has more than `vocab_size` ids, or if `vocab_size` is above 1,048,576.
    pub fn padded(self, vocab_size: usize) -> Result<Self, DataError> {
        let most = *VOCAB_SIZES.end();
        if vocab_size < self.vocab_size || vocab_size > most {
            let problem = format!(
                "it has {} and cannot be padded to {vocab_size}; the most is {most}",
                counted(self.vocab_size, "token id")
            );
            return Err(DataError::tokenizer("of a model", problem));
        }
        Ok(Self { vocab_size, ..self })
    }

    /// Makes a tokenizer for texts that consist of words of `list`, separated by white space. The id of a word is its
    /// index in the list.
    ///
    /// # Errors
    ///
    /// Returns an error if the list is empty or has more than 262,144 words. Also returns an error if a word is empty,
    /// contains white space or is repeated.
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
        Ok(Self::of(Kind::Words(Words { list, sorted })))
    }

    /// Trains a byte-level BPE on `pieces`, which have `all` bytes and can be tokenized separately.
    ///
    /// # Errors
    ///
    /// Returns the first error of the pieces, [`DataError::Tokenizer`] if the training fails or would take more memory
    /// than is available, and [`DataError::Stopped`] if the user stops the work.
    pub(crate) fn bpe(
        vocab_size: usize,
        pieces: impl Iterator<Item = Result<String, DataError>> + Send,
        all: usize,
        progress: OnProgress,
    ) -> Result<Self, DataError> {
        let hf = Hf::train(vocab_size, pieces, all, progress)?;
        Ok(Self::of(Kind::Hf(hf.into())))
    }

    /// Makes a tokenizer for the characters `chars`, which must be sorted and distinct.
    ///
    /// # Errors
    ///
    /// Returns an error if the characters are not sorted and distinct, or there are none.
    pub fn chars(chars: Vec<char>) -> Result<Self, DataError> {
        if chars.is_empty() || !chars.is_sorted_by(|a, b| a < b) {
            let problem = "the list must be sorted, distinct and not empty";
            return Err(DataError::tokenizer("with a character list", problem));
        }
        Ok(Self::of(Kind::Chars(chars)))
    }

    /// Returns the number of token ids. All ids are below this number. Some ids may have no token.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether every token is a byte.
    pub fn is_bytes(&self) -> bool {
        matches!(self.kind(), Kind::Bytes)
    }

    /// Returns the ids of `text`. No special tokens are added.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::UnknownSymbol`] for a character or word that is not in the vocabulary. With a
    /// `tokenizer.json`, also returns an error if the text cannot be encoded, or if this takes longer than 10 seconds
    /// plus 20 microseconds for each byte of `text`.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let (start, most) = (Instant::now(), PATIENCE + PER_BYTE * bytes);
        self.encode_with(text, &mut |_| match start.elapsed() < most {
            true => Ok(()),
            false => {
                let seconds = most.as_secs();
                let problem = format!(
                    "{bytes} bytes of text take more than {seconds} s; the regular expressions of this tokenizer are slow \
                     on such a text, so give another text or another tokenizer.json"
                );
                Err(DataError::tokenizer("encoding", problem))
            }
        })
    }

    /// Encodes like [`encode`](Self::encode), but without a time limit, and reports the number of encoded bytes from
    /// time to time. An error of `progress` ends the work.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`encode`](Self::encode), except the error of its time limit, and the errors of
    /// `progress`.
    pub fn encode_with<'t>(
        &self,
        text: impl Into<Cow<'t, str>>,
        progress: &mut dyn FnMut(usize) -> Result<(), DataError>,
    ) -> Result<Vec<u32>, DataError> {
        const OFTEN: usize = 1 << 16;
        progress(0)?;
        let (text, size) = (text.into(), self.vocab_size());
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
                let mut done = 0;
                let mut id = |(i, word): (usize, &str)| {
                    done += word.len() + 1;
                    if i % OFTEN == OFTEN - 1 {
                        progress(done)?;
                    }
                    let id = words.id(word);
                    id.ok_or_else(|| DataError::unknown(word, "word", size))
                };
                text.split_whitespace().enumerate().map(&mut id).collect()
            }
            Kind::Hf(hf) => hf.encode(text.into_owned(), progress),
        }
    }

    /// Decodes `ids`. Bytes that are not UTF-8 become U+FFFD. Ids without a token have no text.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::UnknownId`] for an id outside the vocabulary, and [`DataError::Tokenizer`] if the decoder
    /// of a `tokenizer.json` fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        for &id in ids {
            self.check(id)?;
        }
        Ok(match self.kind() {
            Kind::Bytes => {
                let bytes = ids.iter().filter(|id| **id < 256).map(|&id| id as u8);
                String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
            }
            Kind::Chars(chars) => ids
                .iter()
                .filter_map(|&id| chars.get(id as usize))
                .collect(),
            Kind::Words(words) => {
                let words = ids.iter().filter_map(|&id| words.list.get(id as usize));
                words.map(String::as_str).collect::<Vec<_>>().join(" ")
            }
            Kind::Hf(hf) => hf.decode(ids)?,
        })
    }

    /// Returns a decoder for ids that arrive one at a time.
    pub fn stream(&self) -> StreamDecoder {
        StreamDecoder::new(self.clone())
    }

    /// Returns a hash that two tokenizers share only if they map all texts to the same ids: BLAKE3, as 64 hexadecimal
    /// digits.
    pub fn fingerprint(&self) -> String {
        let chars: String;
        let mut parts: Vec<&[u8]> = Vec::new();
        let vocab_size = self.vocab_size.to_le_bytes();
        if self.is_padded() {
            parts.extend([b"padded".as_slice(), &vocab_size]);
        }
        let ends = self.ends.named().map(|(name, id)| (name, id.to_le_bytes()));
        let ends: Vec<_> = ends.collect();
        parts.extend(ends.iter().flat_map(|(name, id)| [name.as_bytes(), id]));
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

    fn is_padded(&self) -> bool {
        self.vocab_size > self.kind.tokens()
    }

    /// Returns the places where a text may be cut so that the tokens of its parts are the tokens of the whole text.
    pub(crate) fn places(&self) -> Places {
        match self.kind() {
            Kind::Bytes | Kind::Chars(_) => Places::Characters,
            Kind::Hf(hf) if hf.is_separable() => Places::Words,
            Kind::Hf(_) | Kind::Words(_) => Places::Nowhere,
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
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

/// Returns the JSON of a model whose tokens are `words`, in the order of their ids.
fn word_level(words: impl Iterator<Item = String>) -> Value {
    let vocab: serde_json::Map<String, Value> = words
        .zip(0..)
        .map(|(word, id)| (word, Value::from(id)))
        .collect();
    // An unknown word is an error, because the token `<unknown>` is not in the vocabulary.
    json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "<unknown>" })
}

/// Maximum time that [`Tokenizer::encode`] takes for a text: a constant plus a time per byte.
const PATIENCE: Duration = Duration::from_secs(10);
const PER_BYTE: Duration = Duration::from_micros(20);

/// Maximum number of words in a list. The longest lists have a word for each class of an image directory.
const MOST_WORDS: usize = 1 << 18;

const FINGERPRINT: &str = "residual-zoo-data tokenizer fingerprint v1";

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tokenizer({}, {} ids)",
            self.kind_name(),
            self.vocab_size()
        )
    }
}

#[cfg(test)]
mod tests;
