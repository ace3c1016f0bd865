//! Decodes ids that arrive one at a time.

use crate::tokenizer::Kind;
use crate::{DataError, Tokenizer};

/// Maximum number of ids that are held back. Without this limit, the time per id would grow for a model that never
/// completes a character.
const MOST_HELD: usize = 16;

/// Turns ids into text as they arrive. Joined together, the returned pieces are the result of [`Tokenizer::decode`] for
/// all ids. Incomplete characters are held back until they are complete.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    /// The ids of the context, followed by the ids whose text is held back.
    ids: Vec<u32>,
    /// Number of ids at the beginning of `ids` that are already decoded. They are kept because the text of a token
    /// depends on the token before it: the first token of a text may lose its space.
    context: usize,
}

impl StreamDecoder {
    /// Makes a decoder at the beginning of a text.
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
    /// Returns the errors of [`Tokenizer::decode`]. An id outside the vocabulary is ignored after its error.
    pub fn push(&mut self, id: u32) -> Result<String, DataError> {
        self.tokenizer.check(id)?;
        if id as usize >= self.tokenizer.kind().tokens() {
            return Ok(String::new());
        }
        self.ids.push(id);
        match self.tokenizer.kind() {
            Kind::Bytes => Ok(self.complete_bytes()),
            Kind::Chars(_) | Kind::Words(_) => self.release(self.ids.len()),
            Kind::Hf(_) => {
                // An incomplete character at the end decodes to U+FFFD.
                let all = self.tokenizer.decode(&self.ids)?;
                let held = self.ids.len() - self.context;
                match all.ends_with('\u{fffd}') {
                    false => self.release(self.ids.len()),
                    true if held <= MOST_HELD => Ok(String::new()),
                    true => self.release(self.end_of_definite(&all)?),
                }
            }
        }
    }

    /// Returns the number of ids whose text no later id can change. `all` is the text of all ids.
    fn end_of_definite(&self, all: &str) -> Result<usize, DataError> {
        // An incomplete character has at most three bytes.
        for end in (self.context + 1..self.ids.len() - 2).rev() {
            if all.starts_with(&self.tokenizer.decode(&self.ids[..end])?) {
                return Ok(end);
            }
        }
        Ok(self.ids.len())
    }

    /// Ends the text and returns the part that is still held back.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Tokenizer::decode`].
    pub fn finish(mut self) -> Result<String, DataError> {
        self.release(self.ids.len())
    }

    /// Returns the text of the first `end` ids, without the text of the context. The ids of the returned text become
    /// the next context.
    fn release(&mut self, end: usize) -> Result<String, DataError> {
        let before = self
            .tokenizer
            .decode(&self.ids[..self.context])?
            .chars()
            .count();
        let text = self
            .tokenizer
            .decode(&self.ids[..end])?
            .chars()
            .skip(before)
            .collect();
        self.ids.drain(..self.context);
        self.context = end - self.context;
        Ok(text)
    }

    /// Returns the text of all bytes, except an incomplete character at the end, which is kept.
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

    /// Makes deterministic ids that are mostly invalid UTF-8.
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
    fn ids_that_never_complete_a_character_are_not_held_back_without_end() {
        let bpe = TokenizerConfig::Bpe { vocab_size: 256 };
        let tokenizer = Tokenizer::train(&bpe, &["a"]).unwrap();
        let crab = tokenizer.encode("🦀").unwrap();
        // Repeats the second byte of the crab, and each time adds a whole crab.
        let ids: Vec<u32> = (0..100)
            .flat_map(|i| vec![crab[1]; i].into_iter().chain(crab.clone()))
            .collect();
        let mut stream = tokenizer.stream();
        let mut text = String::new();
        for id in &ids {
            text += &stream.push(*id).unwrap();
            assert!(stream.ids.len() <= 3 * MOST_HELD, "{}", stream.ids.len());
        }
        text += &stream.finish().unwrap();
        assert_eq!(text, tokenizer.decode(&ids).unwrap());
        assert_eq!(text.matches('🦀').count(), 100);
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
