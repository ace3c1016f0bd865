//! The text of documents, in pieces.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::{mem, vec};

use super::{Ending, files_at, json};
use crate::{DataError, files};

/// Bytes of a piece of a document. A document in a line of JSON is one piece.
const PIECE: usize = 1 << 20;
/// The longest line of JSON, in bytes.
const LONGEST_LINE: u64 = 1 << 30;

/// A piece of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its text.
    pub text: String,
    /// Whether the document begins with it.
    pub begins: bool,
}

/// The documents of files in order, in pieces. Only a piece is in memory at a time.
pub(crate) struct Pieces {
    field: String,
    files: vec::IntoIter<PathBuf>,
    open: Option<Open>,
}

/// A file that is being read.
struct Open {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    kind: Kind,
}

enum Kind {
    /// The file is one document.
    Whole {
        /// Whether nothing was read yet.
        begins: bool,
        /// Bytes that were read.
        read: usize,
        /// The first bytes of a character whose others were not read yet.
        rest: Vec<u8>,
    },
    /// Each line has a document.
    Lines {
        /// Lines that were read.
        read: usize,
    },
}

impl Pieces {
    /// The documents at `path`, see [`read_documents`](super::read_documents).
    ///
    /// # Errors
    ///
    /// A path that does not exist or cannot be read.
    pub fn open(path: &Path, text_field: &str) -> Result<Self, DataError> {
        Ok(Self {
            field: text_field.to_owned(),
            files: files_at(path)?.into_iter(),
            open: None,
        })
    }

    fn next_piece(&mut self) -> Result<Option<Piece>, DataError> {
        loop {
            if let Some(open) = &mut self.open {
                if let Some(piece) = open.next_piece(&self.field)? {
                    return Ok(Some(piece));
                }
                self.open = None;
            }
            let Some(path) = self.files.next() else {
                return Ok(None);
            };
            self.open = Some(Open::new(path)?);
        }
    }
}

impl Iterator for Pieces {
    type Item = Result<Piece, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_piece();
        if next.is_err() {
            self.open = None;
            self.files = Vec::new().into_iter();
        }
        next.transpose()
    }
}

impl Open {
    fn new(path: PathBuf) -> Result<Self, DataError> {
        // Checked before opening, because opening a pipe would wait for its other end.
        files::check_is_file(&path)?;
        let failed = |e| DataError::io(&path, "read", e);
        let file = File::open(&path).map_err(failed)?;
        let (ending, compression) = Ending::of(&path);
        let reader: Box<dyn BufRead + Send> = match compression {
            Ending::Plain => Box::new(BufReader::new(file)),
            Ending::Gz => Box::new(BufReader::new(flate2::read::MultiGzDecoder::new(file))),
            Ending::Zst => {
                let decoder = zstd::stream::read::Decoder::new(file).map_err(failed)?;
                Box::new(BufReader::new(decoder))
            }
        };
        let kind = match ending.as_str() {
            "jsonl" => Kind::Lines { read: 0 },
            _ => Kind::Whole {
                begins: true,
                read: 0,
                rest: Vec::new(),
            },
        };
        Ok(Self { path, reader, kind })
    }

    /// The next piece; `None` at the end of the file.
    fn next_piece(&mut self, field: &str) -> Result<Option<Piece>, DataError> {
        let Self { path, reader, kind } = self;
        match kind {
            Kind::Whole { begins, read, rest } => {
                let mut bytes = mem::take(rest);
                let before = *read - bytes.len();
                let failed = |e| unreadable(path, format!("after {read} bytes of text"), e);
                let part = reader.take((PIECE - bytes.len()) as u64);
                let new = { part }.read_to_end(&mut bytes).map_err(failed)?;
                *read += new;
                if new == 0 && bytes.is_empty() {
                    // An empty file is an empty document.
                    return Ok(mem::take(begins).then(|| Piece {
                        begins: true,
                        ..Piece::default()
                    }));
                }
                let text = match String::from_utf8(bytes) {
                    Ok(text) => text,
                    Err(error) => {
                        let (valid, invalid) = {
                            let error = error.utf8_error();
                            (error.valid_up_to(), error.error_len())
                        };
                        if invalid.is_some() || new == 0 {
                            return Err(DataError::NotUtf8 {
                                path: path.clone(),
                                offset: before + valid,
                            });
                        }
                        let mut bytes = error.into_bytes();
                        *rest = bytes.split_off(valid);
                        String::from_utf8(bytes).unwrap_or_default()
                    }
                };
                let begins = mem::take(begins);
                Ok(Some(Piece { text, begins }))
            }
            Kind::Lines { read } => loop {
                *read += 1;
                let mut line = Vec::new();
                let failed = |e| unreadable(path, format!("line {read}"), e);
                let part = reader.take(LONGEST_LINE + 1);
                let new = { part }.read_until(b'\n', &mut line).map_err(failed)?;
                if new == 0 {
                    return Ok(None);
                }
                if new as u64 > LONGEST_LINE {
                    return Err(DataError::Json {
                        path: path.clone(),
                        line: *read,
                        message: format!("the line is longer than {LONGEST_LINE} bytes"),
                    });
                }
                let line = String::from_utf8(line).map_err(|e| DataError::Json {
                    path: path.clone(),
                    line: *read,
                    message: format!("byte {} is not UTF-8", e.utf8_error().valid_up_to() + 1),
                })?;
                if line.trim().is_empty() {
                    continue;
                }
                let line = line.strip_suffix('\n').unwrap_or(&line);
                let text = json::document(path, *read, line, field)?;
                return Ok(Some(Piece { text, begins: true }));
            },
        }
    }
}

/// The error of a file that cannot be read or decompressed there.
fn unreadable(path: &Path, place: String, error: io::Error) -> DataError {
    use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    match (Ending::of(path).1, error.kind()) {
        (Ending::Plain, _) => DataError::io(path, "read", error),
        (_, InvalidData | InvalidInput | Other | UnexpectedEof) => DataError::Damaged {
            path: path.into(),
            place,
            problem: crate::error::one_line(error),
        },
        _ => DataError::io(path, "read", error),
    }
}
