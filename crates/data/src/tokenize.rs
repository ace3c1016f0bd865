//! Cuts a text into segments that are tokenized one after the other, so that only one segment is in memory at a time.

use std::collections::BTreeSet;
use std::mem;
use std::path::PathBuf;

use crate::chunks;
use crate::progress::{OnProgress, Stage, report};
use crate::text::{Piece, Pieces};
use crate::{DataError, Tokenizer, TokenizerConfig, hf};

/// Minimum bytes of text in a segment, except in the last segment of a part. A byte may be a token, and a token takes
/// four bytes in memory.
pub(crate) const SEGMENT: usize = if cfg!(test) { 1 << 12 } else { 1 << 25 };

/// Number of bytes after which [`Places::Nearly`] cuts a longer text if the text has no better place for a cut.
const FAR: usize = 1 << 18;

/// A text that can be read several times.
pub(crate) enum Text {
    /// A text in memory.
    Memory(String),
    /// A text in files. The documents are joined by `separator`.
    Files {
        paths: Vec<PathBuf>,
        field: String,
        separator: String,
    },
}

/// The pieces of a text.
type Strings<'a> = Box<dyn Iterator<Item = Result<String, DataError>> + Send + 'a>;

impl Text {
    /// Returns the text in pieces. A text in memory is a single piece; files are read piece by piece.
    fn pieces(&self) -> Result<Strings<'_>, DataError> {
        Ok(match self {
            Self::Memory(text) => Box::new(std::iter::once(Ok(text.clone()))),
            Self::Files {
                paths,
                field,
                separator,
            } => {
                let mut is_first = true;
                let mut join = move |Piece { text, begins }: Piece| {
                    let joins = begins && !mem::take(&mut is_first);
                    if joins {
                        separator.clone() + &text
                    } else {
                        text
                    }
                };
                let pieces = Pieces::open(paths, field)?;
                Box::new(pieces.map(move |piece| piece.map(&mut join)))
            }
        })
    }
}

/// Facts about a text, known after reading it once.
pub(crate) struct Survey {
    /// BLAKE3 of the text.
    pub hash: String,
    /// Bytes of the text.
    pub bytes: usize,
    /// The distinct characters of the text, if the tokenizer needs them; otherwise empty.
    chars: BTreeSet<char>,
}

impl Survey {
    /// Reads `text`. Collects its characters if `tokenizer` needs them.
    ///
    /// # Errors
    ///
    /// Returns an error if the text cannot be read, and [`DataError::Stopped`] if the user stops the work.
    pub fn of(
        text: &Text,
        tokenizer: &TokenizerConfig,
        progress: OnProgress,
    ) -> Result<Self, DataError> {
        let (mut hasher, mut bytes, mut chars) = (blake3::Hasher::new(), 0, BTreeSet::new());
        for piece in text.pieces()? {
            let piece = piece?;
            hasher.update(piece.as_bytes());
            bytes += piece.len();
            if *tokenizer == TokenizerConfig::Chars {
                let mut last = None;
                for c in piece.chars().filter(|c| last.replace(*c) != Some(*c)) {
                    chars.insert(c);
                }
            }
            report(progress, Stage::Reading, bytes, 0)?;
        }
        Ok(Self {
            hash: hasher.finalize().to_string(),
            bytes,
            chars,
        })
    }
}

/// A part of a corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The training part.
    Train,
    /// The validation part.
    Valid,
}

/// A stretch of consecutive text in a part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub part: Part,
    /// Number of the segment in its part, from 0.
    pub number: usize,
    pub text: String,
}

/// Places where a text may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// After any character.
    Characters,
    /// Before white space that follows another kind of character.
    Words,
    /// Like `Words`, but after any character in a long stretch without such a place.
    Nearly,
    /// Only between training and validation.
    Nowhere,
}

/// The segments of a text, training before validation. A segment has at least `size` bytes, unless it is the last of
/// its part. Each part has at least one segment.
pub(crate) struct Segments<'a> {
    pieces: Strings<'a>,
    /// Number of training bytes that have not been read yet.
    split: usize,
    /// The first text for validation, if it was read together with the last text for training.
    first_valid: Option<String>,
    size: usize,
    places: Places,
    part: Part,
    number: usize,
    /// Text of the part. The text before `start` was already returned.
    buffer: String,
    start: usize,
    /// The position, counted from `start`, at which the search for the next cut begins.
    searched: usize,
    is_over: bool,
}

impl<'a> Segments<'a> {
    /// Opens the segments of `text`. The first `split` bytes, rounded up to a whole character, are for training.
    ///
    /// # Errors
    ///
    /// Returns an error if the files of the text cannot be listed.
    pub fn of(
        text: &'a Text,
        split: usize,
        size: usize,
        places: Places,
    ) -> Result<Self, DataError> {
        Ok(Self {
            pieces: text.pieces()?,
            split,
            first_valid: None,
            size,
            places,
            part: Part::Train,
            number: 0,
            buffer: String::new(),
            start: 0,
            searched: size,
            is_over: false,
        })
    }

    /// Returns the next piece and its part; `None` at the end of the text.
    fn next_piece(&mut self) -> Result<Option<(Part, String)>, DataError> {
        if let Some(piece) = self.first_valid.take() {
            return Ok(Some((Part::Valid, piece)));
        }
        let Some(mut piece) = self.pieces.next().transpose()? else {
            let has_valid = self.part == Part::Valid;
            return Ok((!has_valid).then(|| (Part::Valid, String::new())));
        };
        if self.part == Part::Valid {
            return Ok(Some((Part::Valid, piece)));
        }
        if self.split < piece.len() {
            self.first_valid = Some(piece.split_off(piece.ceil_char_boundary(self.split)));
        }
        self.split = self.split.saturating_sub(piece.len());
        Ok(Some((Part::Train, piece)))
    }

    /// Returns the length of the next segment, if it ends in the buffer.
    fn cut(&mut self) -> Option<usize> {
        let text = &self.buffer[self.start..];
        let found = match self.places {
            Places::Nowhere => None,
            Places::Characters => Some(text.ceil_char_boundary(self.size)),
            Places::Words => chunks::cut(text, self.searched),
            Places::Nearly => chunks::cut(text, self.searched)
                .or_else(|| (text.len() > FAR).then(|| text.floor_char_boundary(FAR))),
        };
        let found = found.filter(|at| *at < text.len());
        self.searched = match found {
            Some(_) => self.size,
            None => self.size.max(text.len()),
        };
        found
    }

    fn push(&mut self, piece: &str) {
        self.buffer.drain(..mem::take(&mut self.start));
        self.buffer.push_str(piece);
    }

    /// Returns the next segment: `len` bytes, or the rest of the buffer if `len` is `None`.
    fn take(&mut self, len: Option<usize>) -> Segment {
        let start = self.start;
        self.start = len.map_or(self.buffer.len(), |len| start + len);
        self.number += 1;
        Segment {
            part: self.part,
            number: self.number - 1,
            text: self.buffer[start..self.start].to_owned(),
        }
    }

    /// Returns the next segment; `None` at the end of the text. Calls `goes_on` before each piece that it reads.
    ///
    /// # Errors
    ///
    /// Returns an error if the text cannot be read or cut, and the error of `goes_on`.
    pub fn next_segment(
        &mut self,
        goes_on: &mut dyn FnMut() -> Result<(), DataError>,
    ) -> Result<Option<Segment>, DataError> {
        while !self.is_over {
            if let Some(len) = self.cut() {
                return Ok(Some(self.take(Some(len))));
            }
            let waiting = self.buffer.len() - self.start;
            if self.places == Places::Words && waiting > self.size + 2 * hf::LONGEST_PIECE {
                return Err(hf::uncut());
            }
            goes_on()?;
            match self.next_piece()? {
                Some((part, piece)) if part == self.part => self.push(&piece),
                Some((part, piece)) => {
                    let last = self.take(None);
                    (self.part, self.number, self.searched) = (part, 0, self.size);
                    self.push(&piece);
                    return Ok(Some(last));
                }
                None => {
                    self.is_over = true;
                    return Ok(Some(self.take(None)));
                }
            }
        }
        Ok(None)
    }
}

impl Iterator for Segments<'_> {
    type Item = Result<Segment, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_segment(&mut || Ok(()));
        self.is_over |= next.is_err();
        next.transpose()
    }
}

/// Returns the offset of the byte at which the validation part begins, before rounding up to a whole character.
pub(crate) fn split(bytes: usize, valid_fraction: f64) -> usize {
    (bytes as f64 * (1.0 - valid_fraction)) as usize
}

/// Makes the tokenizer of `config`. A BPE tokenizer is trained on the first `split` bytes of `text`, rounded up to a
/// whole character.
///
/// # Errors
///
/// Returns an error for a missing or invalid file, for a text that cannot be read, and for a training that fails.
/// Returns [`DataError::Stopped`] if the user stops the work.
pub(crate) fn tokenizer(
    config: &TokenizerConfig,
    text: &Text,
    survey: &Survey,
    split: usize,
    progress: OnProgress,
) -> Result<Tokenizer, DataError> {
    match config {
        TokenizerConfig::Chars => Tokenizer::chars(survey.chars.iter().copied().collect()),
        TokenizerConfig::Bpe { vocab_size } => {
            let segments = Segments::of(text, split, hf::CHUNK, Places::Nearly)?;
            let is_train = |segment: &Result<Segment, DataError>| match segment {
                Ok(segment) => segment.part == Part::Train,
                Err(_) => true,
            };
            let pieces = segments.take_while(is_train);
            let pieces = pieces.map(|segment| segment.map(|segment| segment.text));
            Tokenizer::bpe(*vocab_size, pieces, split, progress)
        }
        _ => Tokenizer::train(config, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::chunks;
    use crate::testing::random_text;

    fn segments(text: &str, split: usize, size: usize, places: Places) -> Vec<Segment> {
        let text = Text::Memory(text.into());
        let segments = Segments::of(&text, split, size, places).unwrap();
        segments.map(Result::unwrap).collect()
    }

    fn of_part(segments: &[Segment], part: Part) -> Vec<&str> {
        let of_part = segments.iter().filter(|segment| segment.part == part);
        let numbered = of_part.enumerate().map(|(number, segment)| {
            assert_eq!(segment.number, number);
            segment.text.as_str()
        });
        numbered.collect()
    }

    #[test]
    fn segments_are_the_parts_of_the_text_cut_where_allowed() {
        for seed in 0..200 {
            let text = random_text(seed, 300);
            let split = split(text.len(), 0.03 + seed as f64 * 0.004);
            let (train, valid) = text.split_at(text.ceil_char_boundary(split));
            for places in [Places::Characters, Places::Words, Places::Nowhere] {
                let found = segments(&text, split, 20, places);
                for (part, whole) in [(Part::Train, train), (Part::Valid, valid)] {
                    let found = of_part(&found, part);
                    assert_eq!(found.concat(), whole);
                    assert!(!found.is_empty());
                    let (_, others) = found.split_last().unwrap();
                    match places {
                        Places::Characters => {
                            assert!(others.iter().all(|text| (20..24).contains(&text.len())));
                        }
                        Places::Words | Places::Nearly => {
                            let expected: Vec<&str> = chunks(whole, 20).collect();
                            let found = found.into_iter().filter(|text| !text.is_empty());
                            assert_eq!(found.collect::<Vec<_>>(), expected);
                        }
                        Places::Nowhere => assert!(others.is_empty()),
                    }
                }
            }
        }
    }

    #[test]
    fn segments_do_not_depend_on_the_pieces() {
        let directory = tempfile::tempdir().unwrap();
        // A piece of a file has one mebibyte, and characters of up to four bytes cross the ends of pieces.
        let text: String = (0..8000).map(|seed| random_text(seed, 200)).collect();
        assert!(text.len() > 2 << 20, "{}", text.len());
        let path = directory.path().join("text.txt");
        std::fs::write(&path, &text).unwrap();
        let files = Text::Files {
            paths: vec![path],
            field: "text".into(),
            separator: "\n".into(),
        };
        let split = split(text.len(), 0.3);
        for places in [Places::Characters, Places::Words] {
            let found = Segments::of(&files, split, 300_000, places).unwrap();
            let found: Vec<Segment> = found.map(Result::unwrap).collect();
            assert_eq!(found, segments(&text, split, 300_000, places));
        }
    }
}
