//! Decodes ids that arrive one at a time.

use crate::tokenizer::Kind;
use crate::{DataError, Tokenizer};

/// Turns ids into text as they arrive. The returned pieces join to what [`Tokenizer::decode`]
/// returns for all ids. Incomplete characters are held back until they are complete.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    /// The ids of the context, followed by those whose text is held back.
    ids: Vec<u32>,
    /// Number of ids at the beginning of `ids` that are already decoded. They are kept because the
    /// text of a token depends on the one before it: a first token may lose its space.
    context: usize,
}

impl StreamDecoder {
    /// A decoder at the beginning of a text.
    pub fn new(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            ids: Vec::new(),
            context: 0,
        }
    }

    /// Adds `id` and returns the text that it completes, which may be empty.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownId`] for an id outside the vocabulary. The id is then ignored.
    pub fn push(&mut self, id: u32) -> Result<String, DataError> {
        self.tokenizer.check(id)?;
        if id as usize >= self.tokenizer.kind().tokens() {
            return Ok(String::new());
        }
        self.ids.push(id);
        match self.tokenizer.kind() {
            Kind::Bytes => Ok(self.complete_bytes()),
            Kind::Chars(_) | Kind::Words(_) => self.release(),
            Kind::Hf(_) => {
                // An incomplete character at the end decodes to U+FFFD.
                let all = self.tokenizer.decode(&self.ids)?;
                if all.ends_with('\u{fffd}') {
                    Ok(String::new())
                } else {
                    self.release()
                }
            }
        }
    }

    /// Ends the text and returns the part that is still held back.
    ///
    /// # Errors
    ///
    /// Those of [`Tokenizer::decode`].
    pub fn finish(mut self) -> Result<String, DataError> {
        self.release()
    }

    /// The text of all ids after the context. They become the next context.
    fn release(&mut self) -> Result<String, DataError> {
        let before = self
            .tokenizer
            .decode(&self.ids[..self.context])?
            .chars()
            .count();
        let text = self
            .tokenizer
            .decode(&self.ids)?
            .chars()
            .skip(before)
            .collect();
        self.ids.drain(..self.context);
        self.context = self.ids.len();
        Ok(text)
    }

    /// The text of all bytes except an incomplete character at the end, which is kept.
    fn complete_bytes(&mut self) -> String {
        let bytes: Vec<u8> = self.ids.iter().map(|&id| id as u8).collect();
        let tail = bytes
            .utf8_chunks()
            .last()
            .map_or(&[][..], |chunk| chunk.invalid());
        // An error without a length means that the bytes end within a character.
        let incomplete = std::str::from_utf8(tail).is_err_and(|e| e.error_len().is_none());
        let kept = if incomplete { tail.len() } else { 0 };
        let complete = bytes.len() - kept;
        self.ids.drain(..complete);
        String::from_utf8_lossy(&bytes[..complete]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenizerConfig;
    use crate::testing::random_text;

    fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
        let mut stream = tokenizer.stream();
        let mut text: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        text += &stream.finish().unwrap();
        text
    }

    /// Deterministic ids that are mostly invalid UTF-8.
    fn arbitrary_ids(seed: u64, count: usize, below: usize) -> Vec<u32> {
        let hash = |i: usize| blake3::hash(format!("{seed} {i}").as_bytes());
        let number = |i| u32::from_le_bytes(*hash(i).as_bytes().first_chunk().unwrap());
        (0..count).map(|i| number(i) % below as u32).collect()
    }

    #[test]
    fn pushed_ids_give_the_text_of_all_ids() {
        let sample = random_text(7, 3000);
        let bpe = TokenizerConfig::Bpe { vocab_size: 600 };
        for config in [TokenizerConfig::Bytes, TokenizerConfig::Chars, bpe] {
            let tokenizer = Tokenizer::train(&config, &[&sample]).unwrap();
            assert_eq!(
                streamed(&tokenizer, &tokenizer.encode(&sample).unwrap()),
                sample
            );
            for seed in 0..200 {
                let ids = arbitrary_ids(seed, 40, tokenizer.vocab_size());
                assert_eq!(streamed(&tokenizer, &ids), tokenizer.decode(&ids).unwrap());
            }
        }
    }

    #[test]
    fn only_incomplete_characters_are_held_back() {
        let sample = "añb🦀c";
        let bpe = TokenizerConfig::Bpe { vocab_size: 256 };
        for config in [TokenizerConfig::Bytes, bpe] {
            let tokenizer = Tokenizer::train(&config, &[sample]).unwrap();
            let mut stream = tokenizer.stream();
            let ids = tokenizer.encode(sample).unwrap();
            let pushed: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
            assert_eq!(pushed, ["a", "", "ñ", "b", "", "", "", "🦀", "c"]);
        }
    }

    #[test]
    fn text_held_back_at_the_end_is_returned() {
        let tokenizer = Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap();
        let mut stream = tokenizer.stream();
        assert_eq!(stream.push(0xe2).unwrap(), "");
        assert_eq!(stream.push(0x82).unwrap(), "");
        assert_eq!(stream.finish().unwrap(), "\u{fffd}");
    }

    #[test]
    fn a_space_precedes_each_word_but_the_first() {
        let tokenizer = Tokenizer::words(vec!["cat".into(), "sat".into()]).unwrap();
        let mut stream = tokenizer.stream();
        let pushed = [0, 1, 1].map(|id| stream.push(id).unwrap());
        assert_eq!(pushed, ["cat", " sat", " sat"]);
    }

    #[test]
    fn an_unknown_id_is_an_error_and_then_ignored() {
        let tokenizer = Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap();
        let mut stream = tokenizer.stream();
        assert!(matches!(
            stream.push(256),
            Err(DataError::UnknownId { id: 256, .. })
        ));
        assert_eq!(stream.push(0x61).unwrap(), "a");
    }
}
