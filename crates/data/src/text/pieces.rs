//! Reads the text of documents in pieces.

use std::fs::File;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::{mem, vec};

use residual_zoo_system::counted;

use super::compression::{self, Compression, Reader, unreadable};
use super::{files_at, json};
use crate::{DataError, files};

/// Maximum number of bytes of a piece of a document. A document in a line of JSON, or in a row of a Parquet file, is
/// always one piece, even if it is longer.
const PIECE: usize = 1 << 20;
/// Maximum number of bytes of a line of JSON. A line is in memory as a whole, and a compressed line may be much longer
/// than its file.
const LONGEST_LINE: u64 = if cfg!(test) { 1 << 21 } else { 1 << 28 };

/// A piece of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The text of the piece.
    pub text: String,
    /// Whether the piece begins a document.
    pub begins: bool,
}

/// Reads the documents of files in order, in pieces. Only one piece is in memory at a time; for a Parquet file, also
/// the rows that are decoded with it.
pub(crate) struct Pieces {
    field: String,
    files: vec::IntoIter<PathBuf>,
    open: Option<Open>,
}

/// A file that is being read.
enum Open {
    Whole(Whole),
    Lines(Lines),
    #[cfg(feature = "parquet")]
    Rows(Box<super::parquet::Rows>),
}

/// A file that is one document.
struct Whole {
    path: PathBuf,
    reader: Reader,
    /// Whether nothing has been read yet.
    begins: bool,
    /// Number of bytes that were read.
    read: usize,
    /// The first bytes of a character that the last piece did not complete.
    rest: Vec<u8>,
}

/// A file with a document in each line.
struct Lines {
    path: PathBuf,
    reader: Reader,
    /// Number of lines that were read.
    read: usize,
}

impl Pieces {
    /// Opens the documents at `paths`, see [`read_documents`](super::read_documents).
    ///
    /// # Errors
    ///
    /// Returns an error if the files at `paths` cannot be listed. Other errors come with the pieces, including the
    /// error for a missing file.
    pub fn open(paths: &[impl AsRef<Path>], text_field: &str) -> Result<Self, DataError> {
        let mut files = Vec::new();
        for path in paths {
            files.extend(files_at(path.as_ref())?.texts);
        }
        Ok(Self {
            field: text_field.to_owned(),
            files: files.into_iter(),
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
            self.open = Some(Open::new(path, &self.field)?);
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
    fn new(path: PathBuf, field: &str) -> Result<Self, DataError> {
        // Checks before opening, because opening a pipe would wait for its other end.
        files::check_is_file(&path)?;
        let failed = |e| DataError::io(&path, "read", e);
        let file = File::open(&path).map_err(failed)?;
        let (ending, compression) = Compression::of(&path);
        if (ending.as_str(), compression) == ("parquet", Compression::None) {
            return Self::rows(&path, file, field);
        }
        let (reader, mark) = compression::open(&path, file)?;
        Ok(match ending.as_str() {
            "jsonl" => Self::Lines(Lines {
                path,
                reader,
                read: 0,
            }),
            _ => Self::Whole(Whole {
                path,
                reader,
                begins: true,
                read: mark,
                rest: Vec::new(),
            }),
        })
    }

    #[cfg(feature = "parquet")]
    fn rows(path: &Path, file: File, field: &str) -> Result<Self, DataError> {
        let rows = super::parquet::Rows::open(path, file, field)?;
        Ok(Self::Rows(Box::new(rows)))
    }

    #[cfg(not(feature = "parquet"))]
    fn rows(path: &Path, _: File, _: &str) -> Result<Self, DataError> {
        Err(DataError::MissingFeature {
            what: format!("the Parquet file `{}`", path.display()),
            feature: "parquet",
        })
    }

    /// Returns the next piece; `None` at the end of the file.
    fn next_piece(&mut self, field: &str) -> Result<Option<Piece>, DataError> {
        match self {
            Self::Whole(whole) => whole.next_piece(),
            Self::Lines(lines) => lines.next_piece(field),
            #[cfg(feature = "parquet")]
            Self::Rows(rows) => rows.next_piece(),
        }
    }
}

impl Whole {
    fn next_piece(&mut self) -> Result<Option<Piece>, DataError> {
        let mut bytes = mem::take(&mut self.rest);
        let before = self.read - bytes.len();
        let kept = bytes.len();
        let mut part = (&mut self.reader).take((PIECE - kept) as u64);
        let new = part.read_to_end(&mut bytes).map_err(|e| {
            // `bytes` has the bytes that were read before the error.
            let read = self.read + bytes.len() - kept;
            unreadable(
                &self.path,
                format!("after {} of text", counted(read, "byte")),
                e,
            )
        })?;
        self.read += new;
        let begins = mem::take(&mut self.begins);
        if bytes.is_empty() && !begins {
            return Ok(None);
        }
        let text = String::from_utf8(bytes).or_else(|error| {
            let utf8 = error.utf8_error();
            let valid = utf8.valid_up_to();
            if utf8.error_len().is_some() || new == 0 {
                return Err(DataError::NotUtf8 {
                    path: self.path.clone(),
                    offset: before + valid,
                });
            }
            let mut bytes = error.into_bytes();
            self.rest = bytes.split_off(valid);
            Ok(String::from_utf8(bytes).unwrap_or_default())
        })?;
        Ok(Some(Piece { text, begins }))
    }
}

impl Lines {
    fn next_piece(&mut self, field: &str) -> Result<Option<Piece>, DataError> {
        loop {
            let mut line = Vec::new();
            self.read += 1;
            let mut part = (&mut self.reader).take(LONGEST_LINE + 1);
            let read = part.read_until(b'\n', &mut line);
            let read =
                read.map_err(|e| unreadable(&self.path, format!("line {}", self.read), e))?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 > LONGEST_LINE {
                return Err(self.wrong(format!("the line has more than {LONGEST_LINE} bytes")));
            }
            let line = String::from_utf8(line).map_err(|e| {
                let at = e.utf8_error().valid_up_to() + 1;
                self.wrong(format!("byte {at} is not UTF-8"))
            })?;
            if line.trim().is_empty() {
                continue;
            }
            let line = line.strip_suffix('\n').unwrap_or(&line);
            let text = json::document(&self.path, self.read, line, field)?;
            return Ok(Some(Piece { text, begins: true }));
        }
    }

    fn wrong(&self, message: String) -> DataError {
        DataError::Json {
            path: self.path.clone(),
            line: self.read,
            message,
        }
    }
}
