//! Formats of packed files, recognized by their first bytes.

use std::path::Path;

use crate::DataError;

/// Number of bytes at the beginning of a file that identify its format.
pub(crate) const START: usize = 262;

/// A format of packed files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// The name of the format in errors.
    name: &'static str,
    /// The file extensions; the usual extension comes first.
    endings: &'static [&'static str],
    /// The offset of the bytes that identify the format, and the bytes themselves; empty if no bytes identify the
    /// format.
    magic: (usize, &'static [u8]),
    /// The command that unpacks `OLD`.
    unpack: &'static str,
}

impl Format {
    /// Returns the format of a file that begins with the bytes `start`. There must be at least [`START`] bytes, unless
    /// the file is shorter.
    pub fn of(start: &[u8]) -> Option<&'static Self> {
        let begins = |format: &&Self| {
            let (at, bytes) = format.magic;
            start.get(at..).is_some_and(|rest| rest.starts_with(bytes)) && !bytes.is_empty()
        };
        FORMATS.iter().find(begins)
    }

    /// Returns the format whose files have the extension `ending`, in lower case.
    pub fn named(ending: &str) -> Option<&'static Self> {
        FORMATS
            .iter()
            .find(|format| format.endings.contains(&ending))
    }

    /// Whether files of this format have the extension `ending`, in lower case.
    pub fn has(&self, ending: &str) -> bool {
        self.endings.contains(&ending)
    }

    /// Whether the format is tar, whose command also unpacks archives that are packed in another format, such as gzip.
    pub fn is_archive(&self) -> bool {
        self.name == "tar"
    }

    /// Returns the error for a file in this format in a place where only plain text is supported.
    pub fn error(&self, path: &Path) -> DataError {
        self.wrong(path, &format!("; unpack it: `{}`", self.unpack))
    }

    /// Returns the error for a text in this format. `read` holds the extensions of the supported formats. If `read` has
    /// an extension of this format, the file has the wrong name; otherwise, the format is not supported.
    pub fn error_of_text(&self, path: &Path, read: &[&str]) -> DataError {
        match self.endings.iter().find(|ending| read.contains(ending)) {
            Some(ending) => {
                let problem = format!(
                    ", but its name says something else; rename it so that it ends with `.{ending}`"
                );
                self.wrong(path, &problem)
            }
            None => {
                let problem = format!(", which is not supported; unpack it: `{}`", self.unpack);
                self.wrong(path, &problem)
            }
        }
    }

    /// Returns the error for a text in this format that is packed again as `outer`.
    pub fn error_within(&self, path: &Path, outer: &Self) -> DataError {
        let (outer, unpack, ending) = (outer.name, outer.unpack, self.endings[0]);
        DataError::Packed {
            path: path.into(),
            problem: format!(
                "is packed twice, as {} within {outer}; unpack it once: `{unpack}.{ending}`",
                self.name
            ),
        }
    }

    fn wrong(&self, path: &Path, problem: &str) -> DataError {
        DataError::Packed {
            path: path.into(),
            problem: format!("is packed as {}{problem}", self.name),
        }
    }
}

/// The first bytes of files that users mistake for texts, and the descriptions of these files in errors.
const NO_TEXTS: [(&[u8], &str); 7] = [
    (b"%PDF-", "a PDF, not a text; save its text as a .txt file"),
    (b"\x89PNG", "a picture (PNG), not a text"),
    (b"\xff\xd8\xff", "a picture (JPEG), not a text"),
    (b"GIF8", "a picture (GIF), not a text"),
    (
        b"\xd0\xcf\x11\xe0",
        "an Office document, not a text; save its text as a .txt file",
    ),
    (b"\x7fELF", "a program, not a text"),
    (b"SQLite format 3\0", "a database of SQLite, not a text"),
];

/// Returns the error for a file whose first bytes show that it is not text; `None` for other files.
pub(crate) fn error_of_no_text(path: &Path, start: &[u8]) -> Option<DataError> {
    let (_, problem) = NO_TEXTS
        .iter()
        .find(|(magic, _)| start.starts_with(magic))?;
    Some(DataError::Packed {
        path: path.into(),
        problem: format!("is {problem}"),
    })
}

const fn format(
    name: &'static str,
    endings: &'static [&'static str],
    magic: (usize, &'static [u8]),
    unpack: &'static str,
) -> Format {
    Format {
        name,
        endings,
        magic,
        unpack,
    }
}

#[rustfmt::skip]
const FORMATS: [Format; 12] = [
    format("gzip", &["gz"], (0, b"\x1f\x8b\x08"), "gzip -dc < OLD > NEW"),
    format("zstd", &["zst"], (0, b"\x28\xb5\x2f\xfd"), "zstd -dc < OLD > NEW"),
    format("xz", &["xz", "txz"], (0, b"\xfd7zXZ\0"), "xz -dc < OLD > NEW"),
    format("bzip2", &["bz2", "tbz2", "tbz"], (4, b"1AY&SY"), "bzip2 -dc < OLD > NEW"),
    format("zip", &["zip"], (0, b"PK\x03\x04"), "unzip OLD"),
    format("7z", &["7z"], (0, b"7z\xbc\xaf\x27\x1c"), "7z x OLD"),
    format("lz4", &["lz4"], (0, b"\x04\x22\x4d\x18"), "lz4 -dc < OLD > NEW"),
    format("lzip or lzma", &["lz", "lzma"], (0, b"LZIP\x01"), "xz -dc < OLD > NEW"),
    format("brotli", &["br"], (0, b""), "brotli -dc < OLD > NEW"),
    format("compress", &["z"], (0, b"\x1f\x9d"), "gzip -dc < OLD > NEW"),
    format("RAR", &["rar"], (0, b"Rar!\x1a\x07"), "unrar x OLD"),
    format("tar", &["tar", "tgz"], (257, b"ustar"), "tar -xf OLD"),
];
