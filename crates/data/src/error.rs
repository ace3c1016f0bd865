//! Errors of reading, tokenizing and batching data.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::{fs, io};

use residual_zoo_system::files::is_link_loop;
use residual_zoo_system::{Blame, Fault, counted, harmless};

/// An error in reading, tokenizing or batching data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The path does not exist.
    #[error("{}; check the path", does_not_exist(path))]
    NotFound {
        /// The requested path.
        path: PathBuf,
    },
    /// The path is a dangling symbolic link, or leads through one.
    #[error(
        "`{path}` cannot be read, because {} is a symbolic link to `{target}`, which does not exist; restore the \
         target, or recreate the link",
        if link == path { "it".into() } else { format!("`{}`", link.display()) }
    )]
    LinkToNothing {
        /// The requested path.
        path: PathBuf,
        /// The dangling link: the requested path itself, or one of its ancestors.
        link: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
    /// The path leads through symbolic links that point to each other.
    #[error("`{path}` cannot be read, because its symbolic links form a loop; make the link again")]
    LinkLoop {
        /// The requested path.
        path: PathBuf,
    },
    /// The path is not a regular file, but a directory, pipe, device or the like.
    #[error("`{path}` is {}", not_a_file(path))]
    NotAFile {
        /// The requested path.
        path: PathBuf,
    },
    /// A directory of texts contains a symbolic link.
    #[error(
        "`{path}` is a symbolic link, which is not followed in a directory of texts; replace it with a copy, or \
         give the texts one by one: `--set 'data.source=Paths([\"a.txt\", \"b.txt\"])'`"
    )]
    Linked {
        /// The link.
        path: PathBuf,
    },
    /// The directory of texts was written by the zoo.
    #[error(
        "`{path}` is a directory that this program wrote, such as a run, and holds no texts; give the texts themselves"
    )]
    OfZoo {
        /// The directory.
        path: PathBuf,
    },
    /// The path contains no text.
    #[error(
        "`{path}` contains no text; \
         give a non-empty file, or a directory with non-empty .txt, .md, .jsonl or .parquet files"
    )]
    Empty {
        /// The file or directory.
        path: PathBuf,
    },
    /// There are fewer tokens than one window needs.
    #[error(
        "the {what} has {}, but a window needs {needed}; use more text, a shorter context or another \
         `data.valid_fraction`",
        counted(tokens, "token")
    )]
    TooShort {
        /// Name of the data that are too short.
        what: String,
        /// Number of tokens.
        tokens: usize,
        /// Number of tokens that one window and its targets need.
        needed: usize,
    },
    /// A file is not UTF-8.
    #[error(
        "`{path}` is not valid UTF-8 at byte {offset}; convert the file to UTF-8; for a text from Windows, use \
         `iconv -f WINDOWS-1252 -t UTF-8 < OLD > NEW`"
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first invalid byte.
        offset: usize,
    },
    /// A file is in UTF-16 or UTF-32, as its first bytes or its zero bytes show.
    #[error(
        "`{path}` is {encoding}, as its {} show; convert it to UTF-8: `iconv -f {encoding} -t UTF-8 < OLD > NEW`",
        match encoding.ends_with("LE") || encoding.ends_with("BE") {
            true => "zeros between the letters",
            false => "first bytes",
        }
    )]
    OtherEncoding {
        /// The file.
        path: PathBuf,
        /// The encoding of the file.
        encoding: &'static str,
    },
    /// A file is too large to be read as a whole.
    #[error(
        "`{path}` is larger than {} MiB, too large for a config, tokenizer or task; check the path",
        most >> 20
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Maximum number of bytes of such a file.
        most: u64,
    },
    /// A file is packed in an unsupported format, has the file extension of another format, or is no text at all, such
    /// as a PDF.
    #[error("`{path}` {problem}")]
    Packed {
        /// The file.
        path: PathBuf,
        /// The problem and, in most cases, how to fix it.
        problem: String,
    },
    /// A compressed or Parquet file is damaged.
    #[error("`{path}` is damaged, {place}: {problem}; restore it or create it again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The position where reading failed.
        place: String,
        /// The problem.
        problem: String,
    },
    /// A line of a JSONL file is not a JSON object with text.
    #[error("`{path}`, line {line}: {message}; every line must be one JSON object")]
    Json {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The problem.
        message: String,
    },
    /// An object in a JSONL file lacks the field with the text.
    #[error(
        "`{path}`, line {line}: no field `{field}`; \
         set `data.text_field` to the name of the field with the text"
    )]
    MissingField {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The missing field.
        field: String,
    },
    /// A Parquet file has no text column, or a row without valid text.
    #[error("`{path}`: {problem}")]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The problem, and how to fix it.
        problem: String,
    },
    /// The program was built without a cargo feature that an input needs.
    #[error(
        "{what} needs the cargo feature `{feature}`, which this program was built without; \
         build it with `cargo build --release --features {feature}`"
    )]
    MissingFeature {
        /// The input that needs the feature.
        what: String,
        /// The cargo feature.
        feature: &'static str,
    },
    /// A tokenizer could not be read, trained or applied.
    #[error("tokenizer {origin}: {message}")]
    Tokenizer {
        /// The tokenizer's file, its kind, or the failed operation.
        origin: String,
        /// The problem.
        message: String,
    },
    /// A text contains a character or word that the tokenizer does not know.
    #[error(
        "the tokenizer does not know the {unit} {symbol:?} (it knows {}); {}",
        counted(vocab_size, unit),
        match symbol.as_str() {
            "\r" => "lines of the text end as on Windows: convert it with `tr -d '\\r' < OLD > NEW`",
            _ => "remove it from the text, or train with a byte-level tokenizer",
        }
    )]
    UnknownSymbol {
        /// The character or word, truncated to 40 characters.
        symbol: String,
        /// `character` or `word`.
        unit: &'static str,
        /// Number of characters or words that the tokenizer knows.
        vocab_size: usize,
    },
    /// A token id is outside the vocabulary.
    #[error(
        "token id {id} is outside the vocabulary of {}; use the tokenizer that produced the ids",
        counted(vocab_size, "id")
    )]
    UnknownId {
        /// The id that is outside the vocabulary.
        id: u32,
        /// Size of the vocabulary; valid ids are below it.
        vocab_size: usize,
    },
    /// A text was changed while it was read.
    #[error("`{path}` was changed while it was read; try again when it is complete")]
    Changed {
        /// The file or directory.
        path: PathBuf,
    },
    /// A file in the place of a token shard is damaged, is not a token shard, or belongs to another corpus.
    #[error("`{path}` is not a valid token shard: {problem}; delete it to have it rebuilt")]
    BadShard {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A file or directory in the token cache, other than a shard, is damaged, belongs to another corpus, or has the
    /// wrong kind, such as a link.
    #[error("`{path}` in the token cache is damaged: {problem}; delete it to have it rebuilt")]
    BadCache {
        /// The file or directory.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A file is not a valid CIFAR image file.
    #[error("`{path}` is not a valid file of CIFAR: {problem}; unpack the binary archive again")]
    BadImages {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A CIFAR file has an invalid label.
    #[error(
        "`{path}`, record {record}: label {label} is not between 0 and {}; \
         unpack the archive of CIFAR again",
        classes - 1
    )]
    BadLabel {
        /// The file.
        path: PathBuf,
        /// Index of the record, from 0.
        record: usize,
        /// The invalid label.
        label: u8,
        /// Number of classes.
        classes: usize,
    },
    /// A directory has no CIFAR-10 training images.
    #[error(
        "`{path}` contains none of data_batch_1.bin to data_batch_5.bin; \
         give the directory cifar-10-batches-bin from cifar-10-binary.tar.gz"
    )]
    NoImages {
        /// The directory.
        path: PathBuf,
    },
    /// A directory of images, or a file in it, cannot be used.
    #[error("`{path}` {}", one_line(problem))]
    Pictures {
        /// The directory or file.
        path: PathBuf,
        /// The problem, and how to fix it.
        problem: String,
    },
    /// Some files in a directory of images are damaged, unreadable or too large, or are not images.
    #[error(
        "{}{}; repair or delete {}",
        one_line(named.join(", ")),
        match count - named.len() {
            0 => String::new(),
            more => format!(" and {}", counted(more, "more file")),
        },
        match count { 1 => "it", _ => "them" }
    )]
    BadPictures {
        /// Number of such files.
        count: usize,
        /// The paths and problems of the first such files.
        named: Vec<String>,
    },
    /// An I/O operation failed.
    #[error("could not {action} `{path}`: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The attempted operation: `read`, `write`, …
        action: &'static str,
        /// The cause of the failure.
        source: io::Error,
    },
    /// A file could not be downloaded.
    #[error(
        "could not download {url}: {message}; \
         download the file another way and pass it with `--data PATH` or `--set 'data.source=Path(\"PATH\")'`"
    )]
    Download {
        /// The address.
        url: String,
        /// The cause of the failure.
        message: String,
    },
    /// A path that begins with `hf://` is not a valid address on the Hugging Face hub.
    #[error(
        "`{}` is not an address on the hub; write hf://datasets/OWNER/NAME/PATH or hf://OWNER/NAME/PATH, with \
         @REVISION after NAME if it is not main",
        one_line(address)
    )]
    InvalidAddress {
        /// The address.
        address: String,
    },
    /// A file on the hub has not been downloaded.
    #[error(
        "{address} is not in the cache of the Hugging Face hub; `residual-zoo tokenize` downloads it"
    )]
    NotInHubCache {
        /// The address.
        address: String,
    },
    /// A file on the hub could not be downloaded.
    #[error(
        "could not download {}, which is not in the cache of the hub: {message}; download it another way and give its path, \
         or set HF_HOME to a cache that has it",
        one_line(address)
    )]
    Hub {
        /// The address.
        address: String,
        /// The cause of the failure.
        message: String,
    },
    /// The user stopped the preparation of data. The token cache keeps the parts of the text that were already
    /// tokenized.
    #[error("stopped while the data were prepared; to continue: repeat the command")]
    Stopped,
    /// The system could not start a thread.
    #[error(
        "could not start a thread: {0}; raise the limit of processes (`ulimit -u`), or stop other programs"
    )]
    Thread(io::Error),
    /// A downloaded file differs from the expected file.
    #[error(
        "{url} is not the expected file: {problem}; \
         download the file another way and pass it with `--data PATH` or `--set 'data.source=Path(\"PATH\")'`"
    )]
    Checksum {
        /// The address.
        url: String,
        /// The difference.
        problem: String,
    },
    /// A setting is invalid.
    #[error("`{field}` {problem}")]
    InvalidConfig {
        /// The name of the field in the config.
        field: String,
        /// The problem and the allowed values. The text begins with a verb, such as "is 0".
        problem: String,
    },
}

/// The input is at fault for an invalid config, for a file that is missing, empty, too short or invalid, and for a
/// missing cargo feature. The machine is at fault for failures of the network and the cache, for a thread that cannot
/// start, and for a downloaded file that is not the expected one. The fault of an I/O error depends on its cause: a full
/// disk, for example, is the fault of the machine. A stop by the user has a [`Fault`] of its own.
impl Blame for DataError {
    fn fault(&self) -> Fault {
        match self {
            Self::NotFound { .. }
            | Self::LinkToNothing { .. }
            | Self::LinkLoop { .. }
            | Self::NotAFile { .. }
            | Self::Linked { .. }
            | Self::OfZoo { .. }
            | Self::Empty { .. }
            | Self::TooShort { .. }
            | Self::NotUtf8 { .. }
            | Self::OtherEncoding { .. }
            | Self::TooLarge { .. }
            | Self::Packed { .. }
            | Self::Damaged { .. }
            | Self::Changed { .. }
            | Self::Json { .. }
            | Self::MissingField { .. }
            | Self::Parquet { .. }
            | Self::MissingFeature { .. }
            | Self::InvalidAddress { .. }
            | Self::NotInHubCache { .. }
            | Self::Tokenizer { .. }
            | Self::UnknownSymbol { .. }
            | Self::UnknownId { .. }
            | Self::BadImages { .. }
            | Self::BadLabel { .. }
            | Self::NoImages { .. }
            | Self::Pictures { .. }
            | Self::BadPictures { .. }
            | Self::InvalidConfig { .. } => Fault::Input,
            Self::Io { source, .. } => source.fault(),
            Self::BadShard { .. }
            | Self::BadCache { .. }
            | Self::Download { .. }
            | Self::Hub { .. }
            | Self::Thread(_)
            | Self::Checksum { .. } => Fault::Machine,
            Self::Stopped => Fault::Stop,
        }
    }
}

impl DataError {
    /// Whether the error comes from the token cache that contains the entry `dir`, and not from the text.
    pub(crate) fn is_of_cache(&self, dir: &Path) -> bool {
        let root = dir.parent().unwrap_or(dir);
        match self {
            Self::Io { path, .. } | Self::NotFound { path } | Self::NotAFile { path } => {
                path.starts_with(root)
            }
            Self::LinkToNothing { path, .. } | Self::LinkLoop { path } => path.starts_with(root),
            Self::BadShard { .. } | Self::BadCache { .. } => true,
            _ => false,
        }
    }

    /// Returns the error for the failed `action` on `path`. If a file to read is missing, the error is
    /// [`LinkToNothing`](Self::LinkToNothing) or [`NotFound`](Self::NotFound). If links on the way to the file form a
    /// loop, the error is [`LinkLoop`](Self::LinkLoop).
    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound if action == "read" => match link_to_nothing(&path) {
                Some((link, target)) => Self::LinkToNothing { path, link, target },
                None => Self::NotFound { path },
            },
            _ if action == "read" && is_link_loop(&source) => Self::LinkLoop { path },
            _ => Self::Io {
                path,
                action,
                source,
            },
        }
    }

    /// Returns the error for a `problem` with `path`, a directory of images or a file in it.
    pub(crate) fn pictures(path: &Path, problem: impl Into<String>) -> Self {
        Self::Pictures {
            path: path.to_path_buf(),
            problem: problem.into(),
        }
    }

    /// Returns an error of the tokenizer that `origin` describes, with `message` on one line.
    pub(crate) fn tokenizer(origin: impl Display, message: impl Display) -> Self {
        Self::Tokenizer {
            origin: origin.to_string(),
            message: one_line(message),
        }
    }

    /// Returns the error for a character or word that is not in a vocabulary of `vocab_size`.
    pub(crate) fn unknown(symbol: &str, unit: &'static str, vocab_size: usize) -> Self {
        Self::UnknownSymbol {
            symbol: symbol.chars().take(40).collect(),
            unit,
            vocab_size,
        }
    }
}

/// Describes what is at the path instead of a file, and the remedy.
fn not_a_file(path: &Path) -> &'static str {
    match path.is_dir() {
        true => "a directory; give a file",
        false => "not a regular file; give a file, or save the content to one first",
    }
}

/// Finds the dangling symbolic link in a path. Returns the link and its target.
fn link_to_nothing(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut places = path.ancestors().filter(|place| !place.exists());
    places.find_map(|place| Some((place.into(), fs::read_link(place).ok()?)))
}

/// Returns the end of a message about a path. For a relative path, the end names the current directory; for an absolute
/// path, it is empty.
fn from_here(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let here = here.filter(|_| path.is_relative());
    here.map_or(String::new(), |here| format!(" in `{}`", here.display()))
}

/// Returns the message that a path does not exist, without a remedy.
pub fn does_not_exist(path: &Path) -> String {
    format!("`{}` does not exist{}", path.display(), from_here(path))
}

/// Formats `message` on one line of at most about 600 characters.
///
/// Each run of white space, including line breaks, becomes one space. Control characters are escaped. A long message
/// loses its middle. Use this function for messages that quote a file, which may be huge or contain terminal escape
/// sequences.
pub fn one_line(message: impl Display) -> String {
    let message = cut(&message.to_string());
    let words: Vec<&str> = message.split_whitespace().collect();
    // Cut again, because escaping lengthens the line.
    cut(&harmless(&words.join(" ")))
}

/// Returns `text`, without its middle if it is long.
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
    fn messages_are_one_line_even_if_their_cause_has_several() {
        let error = DataError::tokenizer("t.json", "a\n  b");
        assert_eq!(error.to_string(), "tokenizer t.json: a b");
        let error = DataError::unknown(&"x\n".repeat(100), "word", 3);
        assert_eq!(error.to_string().lines().count(), 1);
        assert!(error.to_string().len() < 200);
    }

    #[test]
    fn quoted_text_is_shortened_and_escaped() {
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
