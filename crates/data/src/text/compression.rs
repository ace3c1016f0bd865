//! Opens text files, and decompresses them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::GzDecoder;
use residual_zoo_system::counted;
use residual_zoo_system::memory::memory;
use zstd::stream::read::Decoder;

use crate::packed::{Format, START, error_of_no_text};
use crate::{DataError, files};

/// The content of a file, decompressed.
pub(super) type Reader = Box<dyn BufRead + Send>;

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gz,
    Zst,
}

impl Compression {
    /// Returns the extension and the compression of a file. The extension is in lower case, without the ending of the
    /// compression, such as `.gz`.
    pub fn of(path: &Path) -> (String, Self) {
        let ending = |path: &Path| {
            let ending = path.extension().unwrap_or_default();
            ending.to_string_lossy().to_ascii_lowercase()
        };
        let inner = || ending(Path::new(path.file_stem().unwrap_or_default()));
        match ending(path).as_str() {
            "gz" => (inner(), Self::Gz),
            "zst" => (inner(), Self::Zst),
            plain => (plain.into(), Self::None),
        }
    }

    /// Returns the file extension of this compression.
    fn ending(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Gz => Some("gz"),
            Self::Zst => Some("zst"),
        }
    }
}

/// Opens the text in `file`, which is at `path`. Also returns the length of its byte order mark, which is skipped.
///
/// # Errors
///
/// Returns an error if the file is packed in an unsupported format, has an encoding other than UTF-8, or cannot be
/// read.
pub(super) fn open(path: &Path, file: File) -> Result<(Reader, usize), DataError> {
    let mut file = BufReader::with_capacity(1 << 16, file);
    let packed = file
        .fill_buf()
        .map_err(|e| DataError::io(path, "read", e))?;
    check_name(path, packed)?;
    let (_, compression) = Compression::of(path);
    let mut reader: Reader = match compression {
        Compression::None => Box::new(file),
        Compression::Gz => Box::new(BufReader::new(Gz::of(file))),
        Compression::Zst => {
            let mut decoder =
                Decoder::with_buffer(file).map_err(|e| DataError::io(path, "read", e))?;
            let limited = decoder.window_log_max(longest_window());
            limited.map_err(|e| DataError::io(path, "read", e))?;
            Box::new(BufReader::new(decoder))
        }
    };
    let mut start = Vec::new();
    let read = (&mut reader).take(START as u64).read_to_end(&mut start);
    read.map_err(|e| {
        unreadable(
            path,
            format!("after {} of text", counted(start.len(), "byte")),
            e,
        )
    })?;
    if let Some(inner) = Format::of(&start) {
        return Err(match compression.ending().and_then(Format::named) {
            Some(outer) if !inner.is_archive() => inner.error_within(path, outer),
            _ => inner.error_of_text(path, &[]),
        });
    }
    let mark = files::byte_order_mark(path, &start)?;
    start.drain(..mark);
    Ok((Box::new(Cursor::new(start).chain(reader)), mark))
}

/// Refuses a file that begins with `start` if its format is not supported, or differs from the format that its name
/// shows.
fn check_name(path: &Path, start: &[u8]) -> Result<(), DataError> {
    let (ending, compression) = Compression::of(path);
    let read = ["gz", "zst"];
    if let Some(error) = error_of_no_text(path, start).filter(|_| !is_text(start)) {
        return Err(error);
    }
    let found = Format::of(start);
    let named = compression.ending();
    if let ("parquet", Some(outer)) = (ending.as_str(), named) {
        let unpack = if outer == "gz" { "gzip" } else { "zstd" };
        return Err(DataError::Packed {
            path: path.into(),
            problem: format!(
                "is a Parquet file that was compressed again; decompress it: `{unpack} -dc < OLD.parquet.{outer} > \
                 NEW.parquet`"
            ),
        });
    }
    if let Some(format) = Format::named(&ending)
        && (found.is_none_or(|found| found == format) || format.is_archive())
    {
        return Err(format.error_of_text(path, &[]));
    }
    match (found, named) {
        (Some(found), Some(named)) if found.has(named) => Ok(()),
        (Some(found), _) => Err(found.error_of_text(path, &read)),
        (None, Some(named)) if is_text(start) => Err(DataError::Packed {
            path: path.into(),
            problem: format!(
                "is a plain text, but its name ends with `.{named}`, like the name of a packed file; remove this ending"
            ),
        }),
        (None, _) => Ok(()),
    }
}

/// Whether a file begins with readable text.
fn is_text(start: &[u8]) -> bool {
    let start = &start[..start.len().min(START)];
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The last character may be incomplete.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.is_empty() && text.chars().all(|c| !c.is_control() || c.is_whitespace())
}

/// Returns the error for a file that cannot be read or decompressed at `place`.
pub(super) fn unreadable(path: &Path, place: String, error: io::Error) -> DataError {
    use io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    let compression = Compression::of(path).1;
    if compression == Compression::Zst && error.to_string().contains("too much memory") {
        return window_error(path);
    }
    match (compression, error.kind()) {
        (Compression::None, _) => DataError::io(path, "read", error),
        (_, InvalidData | InvalidInput | Other | UnexpectedEof) => DataError::Damaged {
            path: path.into(),
            place,
            problem: crate::error::one_line(error),
        },
        _ => DataError::io(path, "read", error),
    }
}

/// The members of a gzip file. Padding with zero bytes is skipped, as in `gzip` and Python.
struct Gz<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Gz<R> {
    fn of(file: R) -> Self {
        Self(Some(GzDecoder::new(file)))
    }
}

impl<R: BufRead> Read for Gz<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(mut file) = self.0.take().map(GzDecoder::into_inner) else {
                break;
            };
            loop {
                let ahead = file.fill_buf()?;
                let zeros = ahead.iter().take_while(|byte| **byte == 0).count();
                if ahead.is_empty() {
                    return Ok(0);
                }
                if zeros == 0 {
                    break;
                }
                file.consume(zeros);
            }
            self.0 = Some(GzDecoder::new(file));
        }
        Ok(0)
    }
}

/// Returns the longest accepted window of a zstd file, as an exponent of 2. A window takes only as much memory as the
/// text fills. The limit is a quarter of the machine's memory, rounded down to a power of 2. It is at least 128 MiB,
/// the default limit of the program `zstd`, and at most 2 GiB, the window of `zstd --long=31`.
fn longest_window() -> u32 {
    let quarter = memory().map_or(0, |memory| memory.total.bytes / 4);
    quarter.checked_ilog2().unwrap_or(0).clamp(27, 31)
}

/// Returns the error for a zstd file whose window is too long.
fn window_error(path: &Path) -> DataError {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(6).read_to_end(&mut start));
    let mib = read
        .ok()
        .and_then(|_| window(&start))
        .map(|bytes| bytes >> 20);
    let needs = mib.map_or("a window".to_owned(), |mib| {
        format!("a window of {mib} MiB")
    });
    DataError::Packed {
        path: path.into(),
        problem: format!(
            "is packed as zstd with a long window, which needs {needs}; this machine allows {} MiB; pack it again: \
             `zstd -d --long=31 < OLD.zst | zstd > NEW.zst`",
            1u64 << (longest_window() - 20)
        ),
    }
}

/// Returns the window size, in bytes, of the zstd frame that begins with these bytes, if the frame declares it (RFC
/// 8878, section 3.1.1.1).
fn window(start: &[u8]) -> Option<u64> {
    const SINGLE_SEGMENT: u8 = 1 << 5;
    let [0x28, 0xb5, 0x2f, 0xfd, header, descriptor] = *start else {
        return None;
    };
    let base = 1u64 << (10 + (descriptor >> 3));
    (header & SINGLE_SEGMENT == 0).then(|| base + base / 8 * u64::from(descriptor & 7))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use super::super::read_documents;
    use super::super::tests::{folder, gz, zst};
    use super::*;

    /// Returns the text read from a file of this name and content.
    fn read(name: &str, content: &[u8]) -> Result<String, String> {
        let dir = folder(&[(name, content)]);
        let documents = read_documents(&dir.path().join(name), "text");
        documents
            .map(|texts| texts.join("|"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn gzip_members_and_padding_are_read_as_by_gzip() {
        let two = [gz(b"one "), gz(b"two")].concat();
        assert_eq!(read("a.gz", &two).unwrap(), "one two");
        let padded = [&two, [0; 100_000].as_slice()].concat();
        assert_eq!(read("a.gz", &padded).unwrap(), "one two");
        let between = [gz(b"one "), vec![0; 512], gz(b""), gz(b"two")].concat();
        assert_eq!(read("a.gz", &between).unwrap(), "one two");
        let garbage = [two, b"garbage".to_vec()].concat();
        assert!(read("a.gz", &garbage).unwrap_err().contains("is damaged"));
    }

    #[test]
    fn zstd_frames_are_read_as_by_zstd() {
        let skipped = [b"\x50\x2a\x4d\x18\x05\0\0\0".as_slice(), b"notes"].concat();
        let all = [
            &skipped,
            &zst(b"one "),
            &zst(b""),
            &skipped,
            &zst(b"two"),
            &skipped,
        ];
        assert_eq!(
            read("a.zst", &all.map(|part| &**part).concat()).unwrap(),
            "one two"
        );
        let garbage = [zst(b"one"), b"garbage!".to_vec()].concat();
        assert!(read("a.zst", &garbage).unwrap_err().contains("is damaged"));
    }

    #[test]
    fn long_windows_are_read_or_named() {
        // A file with the longest accepted window, as `zstd --long` writes it from a pipe.
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(longest_window()).unwrap();
        encoder.write_all(b"text").unwrap();
        encoder.flush().unwrap();
        let mut frame = encoder.finish().unwrap();
        assert_eq!(window(&frame[..6]), Some(1 << longest_window()));
        assert_eq!(read("a.zst", &frame).unwrap(), "text");
        // The longest window that a frame can have.
        frame[5] = 0xff;
        let error = read("a.zst", &frame).unwrap_err();
        assert!(
            error.contains("MiB") && error.contains("--long=31"),
            "{error}"
        );
    }

    #[test]
    fn packed_files_are_named_by_ending_and_by_content() {
        for (name, content, format) in [
            ("x.txt.xz", b"".as_slice(), "as xz"),
            ("x.txt", b"\xfd7zXZ\0\0\x04", "as xz"),
            ("x.jsonl", b"BZh91AY&SY\xa0", "as bzip2"),
            ("x.BZ2", b"", "as bzip2"),
            ("x.txt", b"PK\x03\x04\x14", "as zip"),
            (
                "x",
                b"\x1f\x8b\x08\0",
                "as gzip, but its name says something else; rename it so that it ends with `.gz`",
            ),
            (
                "x.md",
                b"\x28\xb5\x2f\xfd\x04",
                "rename it so that it ends with `.zst`",
            ),
            (
                "x.zst",
                b"\x1f\x8b\x08\0",
                "rename it so that it ends with `.gz`",
            ),
            (
                "x.gz",
                b"\x28\xb5\x2f\xfd\x04",
                "rename it so that it ends with `.zst`",
            ),
            (
                "x.gz",
                b"BZh91AY&SY\xa0",
                "as bzip2, which is not supported; unpack it: `bzip2 -dc < OLD > NEW`",
            ),
            (
                "x.jsonl.gz",
                b"\xfd7zXZ\0\0\x04",
                "unpack it: `xz -dc < OLD > NEW`",
            ),
            ("x.txt.zst", b"PK\x03\x04\x14", "unpack it: `unzip OLD`"),
            ("x.txt.gz", b"7z\xbc\xaf\x27\x1c\0", "unpack it: `7z x OLD`"),
            (
                "x.xz",
                b"\x1f\x8b\x08\0",
                "rename it so that it ends with `.gz`",
            ),
            (
                "x.gz",
                "Ein Text, na\u{ef}v.\n".as_bytes(),
                "is a plain text, but its name ends with `.gz`",
            ),
            ("x.tgz", b"\x1f\x8b\x08\0", "as tar"),
            ("x.tar.gz", b"", "as tar"),
            ("x.lz4", b"", "as lz4"),
        ] {
            let error = read(name, content).unwrap_err();
            assert!(error.contains(format), "{name}: {error}");
            assert!(error.contains('`'), "{error}");
        }
        let mut tar = vec![b'a'; 600];
        tar[257..262].copy_from_slice(b"ustar");
        assert!(read("x.gz", &gz(&tar)).unwrap_err().contains("as tar"));
        // A text that begins like a packed file is still a text.
        assert_eq!(read("a.txt", b"PK, BZh9").unwrap(), "PK, BZh9");
    }

    #[test]
    fn files_that_are_packed_twice_are_told_so() {
        let parquet = b"PAR1\x15\x04\x15\xff".as_slice();
        let zip = b"PK\x03\x04\x14".as_slice();
        for (name, content, says) in [
            (
                "x.gz",
                gz(&gz(b"text")),
                "packed twice, as gzip within gzip; unpack it once: `gzip -dc < OLD > NEW.gz`",
            ),
            (
                "x.txt.gz",
                gz(&zst(b"text")),
                "as zstd within gzip; unpack it once: `gzip -dc < OLD > NEW.zst`",
            ),
            (
                "x.parquet.gz",
                gz(parquet),
                "compressed again; decompress it: `gzip -dc < OLD.parquet.gz > NEW.parquet`",
            ),
            (
                "x.parquet.zst",
                zst(parquet),
                "`zstd -dc < OLD.parquet.zst > NEW.parquet`",
            ),
            (
                "x.jsonl.zst",
                zst(&gz(b"text")),
                "as gzip within zstd; unpack it once: `zstd -dc < OLD > NEW.gz`",
            ),
            (
                "x.zst",
                zst(zip),
                "as zip within zstd; unpack it once: `zstd -dc < OLD > NEW.zip`",
            ),
        ] {
            let error = read(name, &content).unwrap_err();
            assert!(error.contains(says), "{error}");
            assert!(!error.contains("not supported"), "{error}");
        }
    }

    #[test]
    fn byte_order_marks_are_no_text() {
        let mark = |text: &str| [b"\xef\xbb\xbf", text.as_bytes()].concat();
        let line = "{\"text\": \"a\"}\r\n\r\n";
        assert_eq!(read("a.txt", &mark("text")).unwrap(), "text");
        assert_eq!(read("a.jsonl", &mark(line)).unwrap(), "a");
        assert_eq!(read("a.jsonl.gz", &gz(&mark(line))).unwrap(), "a");
        assert_eq!(read("a.txt.zst", &zst(&mark("text"))).unwrap(), "text");
        let wide = read("a.txt", b"\xff\xfet\0").unwrap_err();
        assert!(wide.contains("UTF-16"), "{wide}");
        // Offsets count from the beginning of the file.
        let bad = [mark("ab"), vec![0xff]].concat();
        assert!(read("a.txt", &bad).unwrap_err().contains("at byte 5"));
        let dir = folder(&[("a.txt", &mark("one")), ("b.txt", &mark("two"))]);
        let texts = read_documents(&PathBuf::from(dir.path()), "text").unwrap();
        assert_eq!(texts, ["one", "two"]);
    }
}
