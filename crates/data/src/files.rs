//! Reads whole regular files, and writes files atomically.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use crate::DataError;
use crate::meanwhile::unless_stopped;
use crate::packed::{Format, error_of_no_text};

/// Returns the bytes of the regular file `path`. If the read hangs, for example on a network file system, it is
/// abandoned when the user stops the process.
///
/// # Errors
///
/// Returns [`DataError::NotFound`], [`DataError::Stopped`] and I/O errors. Also returns [`DataError::NotAFile`] for a
/// directory, and for a pipe or a device, which might never end.
pub fn read_file(path: &Path) -> Result<Vec<u8>, DataError> {
    let path = path.to_owned();
    unless_stopped(move || {
        check_is_file(&path)?;
        fs::read(&path).map_err(|e| DataError::io(&path, "read", e))
    })?
}

/// Refuses a path that does not exist or is not a regular file.
///
/// # Errors
///
/// Returns [`DataError::NotFound`], [`DataError::NotAFile`] and I/O errors.
pub fn check_is_file(path: &Path) -> Result<(), DataError> {
    let metadata = fs::metadata(path).map_err(|e| DataError::io(path, "read", e))?;
    match metadata.is_file() {
        true => Ok(()),
        false => Err(DataError::NotAFile {
            path: path.to_path_buf(),
        }),
    }
}

/// Whether something exists at a path.
///
/// # Errors
///
/// Returns [`DataError::LinkToNothing`], [`DataError::LinkLoop`] and other I/O errors.
pub fn is_there(path: &Path) -> Result<bool, DataError> {
    match fs::metadata(path).map_err(|e| DataError::io(path, "read", e)) {
        Ok(_) => Ok(true),
        Err(DataError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Maximum number of bytes of a text file that is read as a whole: a config, a tokenizer or a task.
const MOST_TEXT: u64 = if cfg!(test) { 1 << 24 } else { 1 << 28 };

/// Returns the text of the regular file `path`, without its byte order mark. If the read hangs, for example on a
/// network file system, it is abandoned when the user stops the process.
///
/// # Errors
///
/// Returns the errors of [`read_file`], and [`DataError::TooLarge`] above 256 MiB. Also returns [`DataError::NotUtf8`],
/// [`DataError::OtherEncoding`] or [`DataError::Packed`] if the file is not UTF-8 text.
pub fn read_utf8(path: &Path) -> Result<String, DataError> {
    let path = path.to_owned();
    unless_stopped(move || read_text(&path))?
}

fn read_text(path: &Path) -> Result<String, DataError> {
    check_is_file(path)?;
    let failed = |e| DataError::io(path, "read", e);
    let file = File::open(path).map_err(failed)?;
    // Reserves all memory at once, because growing the buffer step by step may double it.
    let length = file.metadata().map_err(failed)?.len().min(MOST_TEXT);
    let mut bytes = Vec::with_capacity(length as usize + 1);
    file.take(MOST_TEXT + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MOST_TEXT {
        return Err(DataError::TooLarge {
            path: path.to_path_buf(),
            most: MOST_TEXT,
        });
    }
    if let Some(format) = Format::of(&bytes) {
        return Err(format.error(path));
    }
    bytes.drain(..byte_order_mark(path, &bytes)?);
    String::from_utf8(bytes).map_err(|e| {
        error_of_no_text(path, e.as_bytes()).unwrap_or_else(|| DataError::NotUtf8 {
            path: path.to_path_buf(),
            offset: e.utf8_error().valid_up_to(),
        })
    })
}

/// Returns the length of the UTF-8 byte order mark if a file begins with one; otherwise 0. `start` has at least the
/// first 256 bytes of the file, or the whole file if it is shorter.
///
/// # Errors
///
/// Returns [`DataError::OtherEncoding`] if the byte order mark or the zero bytes of the file show another encoding.
pub(crate) fn byte_order_mark(path: &Path, start: &[u8]) -> Result<usize, DataError> {
    let encoding = match start {
        [0xef, 0xbb, 0xbf, ..] => return Ok(3),
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => "UTF-32",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "UTF-16",
        _ => match encoding_of(start) {
            Some(encoding) => encoding,
            None => return Ok(0),
        },
    };
    Err(DataError::OtherEncoding {
        path: path.to_path_buf(),
        encoding,
    })
}

/// Recognizes UTF-16 and UTF-32 without a byte order mark by their many zero bytes, which UTF-8 would decode to the
/// character U+0000. Returns `None` for other texts.
fn encoding_of(start: &[u8]) -> Option<&'static str> {
    const LOOKED_AT: usize = 256;
    let start = &start[..start.len().min(LOOKED_AT)];
    // A text in these encodings has a whole number of code units.
    let has_units_of = |bytes: usize| start.len().is_multiple_of(bytes);
    let characters = start.chunks_exact(4);
    let count = characters.len();
    // Counts the zero bytes at each of the four positions in a group of four bytes.
    let zeros: [usize; 4] = characters.fold([0; 4], |zeros, bytes| {
        std::array::from_fn(|place| zeros[place] + usize::from(bytes[place] == 0))
    });
    // Many zero bytes mean that at least half of the characters are Latin letters, digits or white space.
    let many = |zeros: usize| count > 0 && 2 * zeros >= count;
    Some(match zeros {
        _ if !has_units_of(2) => return None,
        [0, b, c, d] if has_units_of(4) && d == count && many(b) && many(c) => "UTF-32LE",
        [a, b, c, 0] if has_units_of(4) && a == count && many(b) && many(c) => "UTF-32BE",
        [0, b, 0, d] if many(b) && many(d) => "UTF-16LE",
        [a, 0, c, 0] if many(a) && many(c) => "UTF-16BE",
        _ => return None,
    })
}

/// Writes the file `path` atomically: the file has either its old content or the whole output of `fill`.
pub(crate) fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), DataError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let write = || {
        let file = temporary().tempfile_in(folder)?;
        let mut writer = BufWriter::with_capacity(1 << 16, file.as_file());
        fill(&mut writer)?;
        writer.flush()?;
        drop(writer);
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|e| e.error)
    };
    write().map_err(|e| DataError::io(path, "write", e))
}

/// Prefix of the names of files that are being written.
pub(crate) const TEMPORARY: &str = ".tmp";

/// Makes temporary files with the permissions of an ordinary new file.
fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder
}

#[cfg(test)]
mod tests {
    use residual_zoo_system::Blame as _;

    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_content_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write_atomically(&path, |w| w.write_all(b"old")).unwrap();
        let failed = write_atomically(&path, |w| {
            w.write_all(b"new")?;
            Err(io::Error::other("stop"))
        });
        assert!(!failed.unwrap_err().is_bad_input());
        assert_eq!(read_file(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn text_that_is_not_utf8_is_refused_with_its_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("latin1.txt");
        fs::write(&path, b"caf\xe9").unwrap();
        assert!(matches!(
            read_utf8(&path).unwrap_err(),
            DataError::NotUtf8 { offset: 3, path: p } if p == path
        ));
    }

    #[test]
    fn packed_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("task.jsonl");
        fs::write(&path, b"\x1f\x8b\x08\0").unwrap();
        let error = read_utf8(&path).unwrap_err().to_string();
        let expected = "is packed as gzip; unpack it: `gzip -dc < OLD > NEW`";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn byte_order_marks_are_skipped_or_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            read_utf8(&path).map_err(|error| error.to_string())
        };
        assert_eq!(read(b"\xef\xbb\xbf{}").unwrap(), "{}");
        assert_eq!(read(b"\xef\xbb\xbf").unwrap(), "");
        // A text with zeros is read if it looks like no other encoding.
        assert_eq!(read(b"a\0b\0\0cde").unwrap(), "a\0b\0\0cde");
        assert_eq!(read(b"{\0").unwrap(), "{\0");
        // Only the first U+FEFF is a byte order mark.
        assert_eq!(read(b"\xef\xbb\xbf\xef\xbb\xbf").unwrap(), "\u{feff}");
        for (bytes, name) in [
            (b"\xff\xfe{\0".as_slice(), "UTF-16"),
            (b"\xfe\xff\0{", "UTF-16"),
            (b"\xff\xfe\0\0{\0\0\0", "UTF-32"),
            (b"{\0\"\0a\0\"\0:\x001\0}\0", "-f UTF-16LE"),
            (b"\0h\0e\0l\0l\0o\0\n", "-f UTF-16BE"),
            (b"h\0e\0\xac\x20y\0", "-f UTF-16LE"),
            (b"{\0\0\0}\0\0\0", "-f UTF-32LE"),
            (b"\0\0\0{\0\0\0}", "-f UTF-32BE"),
        ] {
            let error = read(bytes).unwrap_err();
            assert!(error.contains(name) && error.contains("iconv"), "{error}");
        }
    }

    #[test]
    fn a_text_that_is_too_large_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse.ron");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read_utf8(&path).unwrap_err();
        assert!(matches!(error, DataError::TooLarge { .. }), "{error}");
        fs::write(&path, "x".repeat(MOST_TEXT as usize)).unwrap();
        assert_eq!(read_utf8(&path).unwrap().len() as u64, MOST_TEXT);
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_refused_and_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        for read in [read_file(&path).map(drop), read_utf8(&path).map(drop)] {
            assert!(matches!(read.unwrap_err(), DataError::NotAFile { .. }));
        }
    }
}
