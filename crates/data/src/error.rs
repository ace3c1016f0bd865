//! Everything that can go wrong between a path and a batch.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// Why data could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// There is nothing at the path.
    #[error("`{path}` does not exist; check the path")]
    NotFound {
        /// What was asked for.
        path: PathBuf,
    },
    /// The path is a directory, a pipe, a device or the like.
    #[error("`{path}` is no regular file; give a file, or write its content to one first")]
    NotAFile {
        /// What was asked for.
        path: PathBuf,
    },
    /// The path holds no text.
    #[error("`{path}` has no text; a directory needs non-empty .txt, .md or .jsonl files")]
    Empty {
        /// The file or directory.
        path: PathBuf,
    },
    /// There are fewer tokens than one window takes.
    #[error(
        "the {what} has {tokens} tokens, a window takes {needed}; use more text or a shorter context"
    )]
    TooShort {
        /// Which part of the data.
        what: String,
        /// Tokens that there are.
        tokens: usize,
        /// Tokens that one window and its targets take.
        needed: usize,
    },
    /// A file is not UTF-8.
    #[error("`{path}` is not UTF-8 at byte {offset}; convert it to UTF-8")]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        offset: usize,
    },
    /// A line of a JSONL file is not a JSON object with a text.
    #[error("`{path}`, line {line}: {message}; every line must be one JSON object")]
    Json {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// An object of a JSONL file lacks the field of the text.
    #[error("`{path}`, line {line}: no field `{field}`; set `text_field` to the field of the text")]
    MissingField {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The field.
        field: String,
    },
    /// A tokenizer cannot be read, trained or applied.
    #[error("tokenizer {origin}: {message}")]
    Tokenizer {
        /// The file of the tokenizer, or what it is.
        origin: String,
        /// What is wrong with it.
        message: String,
    },
    /// A text has a character or word that the tokenizer does not know.
    #[error(
        "{symbol:?} is none of the tokenizer's {vocab_size} {unit}s; \
         leave it out or train with a byte-level tokenizer"
    )]
    UnknownSymbol {
        /// The character or word, cut after 40 characters.
        symbol: String,
        /// `character` or `word`.
        unit: &'static str,
        /// Number of those that the tokenizer knows.
        vocab_size: usize,
    },
    /// A token id is outside of the vocabulary.
    #[error(
        "token id {id} is outside of the vocabulary of {vocab_size}; \
         is this the tokenizer the ids were made with?"
    )]
    UnknownId {
        /// The id.
        id: u32,
        /// The ids are those below.
        vocab_size: usize,
    },
    /// A token shard is damaged or not a token shard.
    #[error("`{path}` is no valid token shard: {problem}; delete it to have it written again")]
    BadShard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of the token cache other than a shard is damaged.
    #[error(
        "`{path}` in the token cache is damaged: {problem}; delete it to have it written again"
    )]
    BadCache {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file is no batch of CIFAR-10 images.
    #[error("`{path}` is no valid CIFAR-10 batch: {problem}; unpack cifar-10-binary.tar.gz again")]
    BadImages {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A label of a CIFAR-10 batch is that of no class.
    #[error(
        "`{path}`, record {record}: label {label} is not from 0 to 9; \
         unpack cifar-10-binary.tar.gz again"
    )]
    BadLabel {
        /// The file.
        path: PathBuf,
        /// The record, counted from 0.
        record: usize,
        /// Its label.
        label: u8,
    },
    /// A directory has no CIFAR-10 images to train on.
    #[error(
        "`{path}` has no data_batch_1.bin to data_batch_5.bin; \
         give the directory cifar-10-batches-bin of cifar-10-binary.tar.gz"
    )]
    NoImages {
        /// The directory.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("could not {action} `{path}`: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried: `read`, `write`, …
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// A file could not be downloaded.
    #[error(
        "could not download {url} ({message}); \
         fetch the file by other means and pass `--data PATH`"
    )]
    Download {
        /// Where it should have come from.
        url: String,
        /// Why it did not.
        message: String,
    },
    /// A download is not the file that was expected.
    #[error(
        "{url} is not the expected file ({problem}); \
         fetch the file by other means and pass `--data PATH`"
    )]
    Checksum {
        /// Where it came from.
        url: String,
        /// How it differs.
        problem: String,
    },
    /// A setting that no data can be made with.
    #[error("`{field}`: {problem}")]
    InvalidConfig {
        /// The field, as it is called in the config.
        field: String,
        /// What is wrong with it and what would be right.
        problem: String,
    },
}

impl DataError {
    /// Whether the user asked for something wrong: a missing, empty, short or invalid file, or
    /// an invalid config. False for failures of the disk, the network and the cache.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::NotFound { .. }
            | Self::NotAFile { .. }
            | Self::Empty { .. }
            | Self::TooShort { .. }
            | Self::NotUtf8 { .. }
            | Self::Json { .. }
            | Self::MissingField { .. }
            | Self::Tokenizer { .. }
            | Self::UnknownSymbol { .. }
            | Self::UnknownId { .. }
            | Self::BadImages { .. }
            | Self::BadLabel { .. }
            | Self::NoImages { .. }
            | Self::InvalidConfig { .. } => true,
            Self::BadShard { .. }
            | Self::BadCache { .. }
            | Self::Io { .. }
            | Self::Download { .. }
            | Self::Checksum { .. } => false,
        }
    }

    /// The failure of `action` on `path`; [`NotFound`](Self::NotFound) if that is what it is.
    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound if action == "read" => Self::NotFound { path },
            _ => Self::Io {
                path,
                action,
                source,
            },
        }
    }

    /// The error `message` of the tokenizer called `origin`, on one line.
    pub(crate) fn tokenizer(origin: impl Display, message: impl Display) -> Self {
        Self::Tokenizer {
            origin: origin.to_string(),
            message: one_line(message),
        }
    }

    /// A character or word that a vocabulary of `vocab_size` lacks.
    pub(crate) fn unknown(symbol: &str, unit: &'static str, vocab_size: usize) -> Self {
        Self::UnknownSymbol {
            symbol: symbol.chars().take(40).collect(),
            unit,
            vocab_size,
        }
    }
}

/// `message` on one line of some hundred characters: every run of white space, line breaks too, is
/// one space, control characters are escaped, and the middle of what is long is left out.
///
/// For messages that quote a file: it could bring megabytes, or commands to the terminal.
pub fn one_line(message: impl Display) -> String {
    let message = cut(&message.to_string());
    let words: Vec<&str> = message.split_whitespace().collect();
    let mut line = String::new();
    for c in words.join(" ").chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    // Once more, as what is escaped is longer.
    cut(&line)
}

/// `text` without its middle if it is long.
fn cut(text: &str) -> String {
    const ENDS: usize = 300;
    if text.chars().nth(2 * ENDS).is_none() {
        return text.into();
    }
    let head = text.char_indices().nth(ENDS).map_or(0, |(at, _)| at);
    let tail = text.char_indices().nth_back(ENDS - 1);
    let tail = tail.map_or(0, |(at, _)| at);
    format!("{} … {}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_bad_input_and_a_full_disk_is_not() {
        let path = Path::new("corpus.txt");
        let missing = DataError::io(path, "read", io::ErrorKind::NotFound.into());
        assert!(matches!(missing, DataError::NotFound { .. }));
        assert!(missing.is_bad_input());
        assert!(!DataError::io(path, "write", io::ErrorKind::StorageFull.into()).is_bad_input());
    }

    #[test]
    fn messages_are_one_line_even_if_their_cause_is_not() {
        let error = DataError::tokenizer("t.json", "a\n  b");
        assert_eq!(error.to_string(), "tokenizer t.json: a b");
        let error = DataError::unknown(&"x\n".repeat(100), "word", 3);
        assert_eq!(error.to_string().lines().count(), 1);
        assert!(error.to_string().len() < 200);
    }

    #[test]
    fn what_a_message_quotes_is_cut_and_cannot_command_a_terminal() {
        assert_eq!(
            one_line("red \u{1b}[31m\u{9b}K\u{0}"),
            "red \\u{1b}[31m\\u{9b}K\\u{0}"
        );
        let long = one_line(format!("unknown `{}` at line 7", "é".repeat(1 << 20)));
        assert!(long.starts_with("unknown `é") && long.ends_with("é` at line 7"));
        assert!(long.chars().count() < 700);
        assert!(one_line("\0".repeat(600)).len() < 700);
        let whole = "x".repeat(600);
        assert_eq!(one_line(&whole), whole);
    }
}
