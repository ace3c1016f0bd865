//! Reads documents from files and directories, piece by piece.

mod compression;
mod json;
mod listing;
#[cfg(feature = "parquet")]
mod parquet;
mod pieces;

#[cfg(test)]
use std::fs;
use std::path::{Path, PathBuf};

use crate::{DataError, hub};
use compression::Compression;
use listing::Listing;
pub(crate) use pieces::{Piece, Pieces};

/// The extensions of the text files in a directory. Each may be followed by `.gz` or `.zst`, except `.parquet`, because
/// Parquet has its own compression.
const ENDINGS: [&str; 4] = ["txt", "md", "jsonl", "parquet"];

/// Reads the documents at `path`.
///
/// - A `.jsonl` file has one document per line: the string in the field `text_field` of a JSON object. Blank lines are
///   skipped.
/// - A `.parquet` file has one document per row: the text in the column `text_field`. Needs the cargo feature
///   `parquet`.
/// - Any other file is one document.
/// - A file whose name ends with `.gz` or `.zst` is decompressed.
/// - An address on the Hugging Face hub, `hf://…`, names a file or directory in the hub's cache. Needs the cargo
///   feature `hub`.
/// - A directory has the documents of all `.txt`, `.md`, `.jsonl` and `.parquet` files in it and in its subdirectories.
///   The files may be compressed, and are sorted by path. Names that begin with a dot, and directories that the zoo
///   wrote, such as runs, are ignored. A symbolic link with one of these extensions or to a directory is an error, and
///   so is a dangling link.
///
/// A byte order mark at the beginning of a file is not part of the text.
///
/// # Errors
///
/// Returns [`DataError::Empty`] if there is no text at all. Returns an error for a file that is not UTF-8, for a line
/// or row without text in `text_field`, for a damaged file, for a file in an unsupported format, and if `path` is a
/// directory that the zoo wrote. Also returns I/O errors, and [`DataError::MissingFeature`] without a cargo feature
/// that is needed.
pub fn read_documents(path: &Path, text_field: &str) -> Result<Vec<String>, DataError> {
    let mut documents: Vec<String> = Vec::new();
    for piece in Pieces::open(&[path], text_field)? {
        let Piece { text, begins } = piece?;
        match documents.last_mut().filter(|_| !begins) {
            Some(document) => document.push_str(&text),
            None => documents.push(text),
        }
    }
    match documents.iter().all(String::is_empty) {
        true => Err(DataError::Empty { path: path.into() }),
        false => Ok(documents),
    }
}

/// Whether a file name has the extension of a text.
pub(crate) fn is_text_file(path: &Path) -> bool {
    ENDINGS.contains(&Compression::of(path).0.as_str())
}

/// Lists the text files at `path`, in order. For a directory, also lists the files that are left out.
fn files_at(path: &Path) -> Result<Listing, DataError> {
    let of_files = |texts| Listing {
        texts,
        ..Listing::default()
    };
    if let Some(files) = hub::local_texts(path)? {
        return Ok(of_files(files));
    }
    match path.is_dir() {
        true => Listing::of(path),
        false => Ok(of_files(vec![path.to_path_buf()])),
    }
}

/// Lists the text files at `path`, in order.
///
/// # Errors
///
/// Returns an error if the files cannot be listed.
pub(crate) fn texts_at(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    Ok(files_at(path)?.texts)
}

/// Returns one line for the user about a CSV, JSON, HTML or XML file. Such a file is read as one text, including its
/// separators or tags.
fn marked_up(path: &Path) -> Option<String> {
    let ending = Compression::of(path).0;
    let marks = match ending.as_str() {
        "csv" | "tsv" | "json" => "its separators and quotes",
        "html" | "htm" | "xml" => "its tags",
        _ => return None,
    };
    let path = path.display();
    Some(format!(
        "`{path}` is read as one plain text, with {marks}; to train on the texts in it, write them as JSON lines (.jsonl)"
    ))
}

/// Returns one line for the user about files and directories that were left out of the directories among `paths`, and
/// about CSV, JSON, HTML and XML files among `paths`. Returns `None` if there are none of these.
///
/// # Errors
///
/// Returns an error if the files cannot be listed.
pub(crate) fn notes(paths: &[impl AsRef<Path>]) -> Result<Option<String>, DataError> {
    let mut notes = Vec::new();
    for path in paths {
        notes.extend(files_at(path.as_ref())?.note());
        notes.extend(marked_up(path.as_ref()));
    }
    Ok((!notes.is_empty()).then(|| notes.join("; ")))
}

#[cfg(test)]
mod tests {
    use residual_zoo_system::Blame as _;

    use super::*;

    pub(super) fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    #[test]
    fn a_directory_is_read_recursively_in_path_order() {
        let dir = folder(&[
            ("b.txt", b"two"),
            ("a/z.md", b"one"),
            (
                "c.jsonl",
                b"{\"text\": \"three\"}\n\n{\"text\": \"four\"}\r\n",
            ),
            ("skipped.rs", b"fn main() {}"),
        ]);
        assert_eq!(
            read_documents(dir.path(), "text").unwrap(),
            ["one", "two", "three", "four"]
        );
    }

    #[test]
    fn lines_with_nan_or_a_byte_order_mark_are_told_so() {
        for (text, says) in [
            (r#"{"text": NaN}"#, "line 1: `text` is NaN; write text"),
            (
                r#"{"text":-Infinity}"#,
                "line 1: `text` is -Infinity; write text",
            ),
            (r#"{"x": NaN, "text": [1]}"#, "invalid type: sequence"),
            (
                "{\"text\": \"a\"}\n\u{feff}{\"text\": \"b\"}",
                "line 2: begins with a byte order mark",
            ),
        ] {
            let dir = folder(&[("a.jsonl", text.as_bytes())]);
            let error = read_documents(dir.path(), "text").unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        let good = folder(&[(
            "a.jsonl",
            "\u{feff}{\"text\": \"a\", \"x\": NaN}".as_bytes(),
        )]);
        assert_eq!(read_documents(good.path(), "text").unwrap(), ["a"]);
    }

    #[cfg(unix)]
    #[test]
    fn symbolic_links_in_a_directory_are_refused_and_not_left_out() {
        let outside = folder(&[("secret.txt", b"secret")]);
        for (link, target) in [("loop", ""), ("b.txt", "secret.txt")] {
            let dir = folder(&[("a.txt", b"text")]);
            std::os::unix::fs::symlink(outside.path().join(target), dir.path().join(link)).unwrap();
            let error = read_documents(dir.path(), "text").unwrap_err();
            assert!(matches!(&error, DataError::Linked { path } if path.ends_with(link)));
        }
        // Links without the extension of a text are skipped.
        let dir = folder(&[("a.txt", b"text")]);
        let file = outside.path().join("secret.txt");
        std::os::unix::fs::symlink(file, dir.path().join("b.rs")).unwrap();
        assert_eq!(read_documents(dir.path(), "text").unwrap(), ["text"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_nothing_is_called_one_and_its_target_is_named() {
        // A dangling link without the extension of a text may have led to a directory of texts.
        for link in ["b.txt", "books", "d/c.jsonl.gz"] {
            let dir = folder(&[("a.txt", b"text"), ("d/a.md", b"text")]);
            let path = dir.path().join(link);
            std::os::unix::fs::symlink("gone/it", &path).unwrap();
            for named in [dir.path(), &path, &path.join("x.txt")] {
                let error = read_documents(named, "text").unwrap_err();
                assert!(error.is_bad_input(), "{error}");
                let error = error.to_string();
                let says = format!("{}` is a symbolic link to `gone/it`", path.display());
                let says = match named == path || named == dir.path() {
                    true => says.replace("` is", "` cannot be read, because it is"),
                    false => says,
                };
                assert!(error.contains(&says), "{error}");
                assert!(error.contains("which does not exist; restore"), "{error}");
            }
        }
        // A link loop has an error of its own.
        let dir = folder(&[]);
        std::os::unix::fs::symlink("a.txt", dir.path().join("a.txt")).unwrap();
        let error = read_documents(dir.path(), "text").unwrap_err().to_string();
        assert!(error.contains("form a loop"), "{error}");
    }

    #[test]
    fn paths_without_text_are_empty() {
        let dir = folder(&[("e.txt", b""), ("none/x.rs", b"x"), ("e.jsonl", b"\n")]);
        for path in ["", "e.txt", "none", "e.jsonl"] {
            let error = read_documents(&dir.path().join(path), "text").unwrap_err();
            assert!(matches!(error, DataError::Empty { .. }), "{path}: {error}");
        }
        let missing = read_documents(&dir.path().join("missing"), "text").unwrap_err();
        assert!(matches!(missing, DataError::NotFound { .. }));
    }

    #[test]
    fn jsonl_errors_name_the_line() {
        let line = |content: &str| {
            let dir = folder(&[("d.jsonl", content.as_bytes())]);
            read_documents(&dir.path().join("d.jsonl"), "text").unwrap_err()
        };
        let broken = line("{\"text\": \"a\"}\n\n{\"text\": ");
        assert!(
            matches!(broken, DataError::Json { line: 3, .. }),
            "{broken}"
        );
        assert!(!broken.to_string().contains("line 1"), "{broken}");
        let array = line("[1]\n");
        assert!(matches!(array, DataError::Json { line: 1, .. }), "{array}");
        let number = line("{\"text\": \"a\"}\n{\"text\": 7}");
        assert!(
            matches!(number, DataError::Json { line: 2, .. }),
            "{number}"
        );
        let other = line("{\"text\": \"a\"}\n{\"body\": \"b\"}");
        assert!(
            matches!(other, DataError::MissingField { line: 2, .. }),
            "{other}"
        );
    }

    #[test]
    fn numbers_that_python_writes_are_read() {
        let line =
            r#"{"NaN": NaN, "b": [-Infinity, Infinity], "c": "\"NaN", "text": "NaN \\", "d": NaN}"#;
        let dir = folder(&[("d.jsonl", line.as_bytes())]);
        assert_eq!(read_documents(dir.path(), "text").unwrap(), ["NaN \\"]);
        let dir = folder(&[("d.jsonl", br#"{"a": NaN, "text": NaN}"#)]);
        let error = read_documents(dir.path(), "text").unwrap_err();
        assert!(error.to_string().contains("`text` is NaN"), "{error}");
        let half = br#"{"other": "\ud800", "text": "a\ud800"}"#;
        let dir = folder(&[("d.jsonl", half)]);
        let error = read_documents(dir.path(), "other").unwrap_err().to_string();
        assert!(
            error.contains("line 1: ") && error.contains("write \\ufffd"),
            "{error}"
        );
        let dir = folder(&[("d.jsonl", br#"{"other": "\ud800", "text": "a"}"#)]);
        assert_eq!(read_documents(dir.path(), "text").unwrap(), ["a"]);
    }

    #[test]
    fn utf16_without_a_mark_is_named_in_every_kind_of_text() {
        let wide =
            |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_be_bytes).collect() };
        for (name, content) in [
            ("a.txt", wide("Hello, world\n")),
            ("a.jsonl", wide("{\"text\": \"a\"}\n")),
            ("a.txt.gz", gz(&wide("Hello"))),
            ("a.zst", zst(&wide("Hello"))),
        ] {
            let dir = folder(&[(name, &content)]);
            let error = read_documents(&dir.path().join(name), "text").unwrap_err();
            assert!(error.to_string().contains("iconv -f UTF-16BE"), "{error}");
        }
    }

    #[test]
    fn the_field_of_the_text_can_be_chosen() {
        let dir = folder(&[("d.jsonl", br#"{"text": "a", "body": "b"}"#)]);
        assert_eq!(read_documents(dir.path(), "body").unwrap(), ["b"]);
    }

    pub(super) fn gz(text: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    pub(super) fn zst(text: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        // The program `zstd` includes a checksum too.
        encoder.include_checksum(true).unwrap();
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn compressed_files_have_the_documents_of_plain_ones() {
        let text = "É ".repeat(1 << 20);
        let lines = "{\"text\": \"a\"}\n".repeat(1000);
        // Several members or frames form one text.
        let twice = |compress: fn(&[u8]) -> Vec<u8>| {
            let (first, second) = text.as_bytes().split_at(77_777);
            [compress(first), compress(second)].concat()
        };
        for (ending, compress) in [("gz", gz as fn(&[u8]) -> Vec<u8>), ("zst", zst)] {
            let dir = folder(&[
                (&format!("a.txt.{ending}"), &twice(compress)),
                (
                    &format!("b.jsonl.{}", ending.to_uppercase()),
                    &compress(lines.as_bytes()),
                ),
                (&format!("c.rs.{ending}"), &compress(b"skipped")),
            ]);
            let found = read_documents(dir.path(), "text").unwrap();
            assert_eq!(found.len(), 1001);
            assert!(found[0] == text && found[1..].iter().all(|text| text == "a"));
        }
    }

    #[test]
    fn damaged_compressed_files_name_the_file_and_the_place() {
        let text: Vec<u8> = (0..300_000u32)
            .flat_map(|i| i.to_string().into_bytes())
            .collect();
        let lines: String = (0..50_000)
            .map(|i| format!("{{\"text\": \"{i}\"}}\n"))
            .collect();
        for (ending, compress) in [("gz", gz as fn(&[u8]) -> Vec<u8>), ("zst", zst)] {
            for (name, content) in [("txt", &*text), ("jsonl", lines.as_bytes())] {
                let good = compress(content);
                let mut flipped = good.clone();
                let middle = good.len() / 2;
                flipped[middle] ^= 0x55;
                let name = format!("d.{name}.{ending}");
                for bad in [
                    &good[..middle],
                    &flipped,
                    b"\0\x01 no compressed file".as_slice(),
                ] {
                    let dir = folder(&[(&name, bad)]);
                    let error = read_documents(&dir.path().join(&name), "text");
                    let error = error.map(drop).unwrap_err();
                    assert!(error.is_bad_input(), "{error}");
                    let error = error.to_string();
                    assert!(error.contains(&name), "{error}");
                    assert!(
                        error.contains("after ") || error.contains("line "),
                        "{error}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_incomplete_character_at_the_end_is_an_error() {
        // The character crosses the end of the first piece, which has one mebibyte, or the end of the file.
        let whole = ["x".repeat((1 << 20) - 1), "é".into()].concat();
        let dir = folder(&[
            ("a.txt", whole.as_bytes()),
            ("b.txt", &whole.as_bytes()[..1 << 20]),
        ]);
        let read = |name| read_documents(&dir.path().join(name), "text");
        assert_eq!(read("a.txt").unwrap(), [whole]);
        let error = read("b.txt").unwrap_err();
        assert!(
            matches!(error, DataError::NotUtf8 { offset, .. } if offset == (1 << 20) - 1),
            "{error}"
        );
    }

    #[test]
    fn a_short_file_cannot_make_an_endless_line() {
        let line = format!("{{\"text\": \"{}\"}}\n", "a".repeat(3 << 20));
        let file = gz(line.as_bytes());
        assert!(file.len() < 1 << 16);
        let dir = folder(&[("d.jsonl.gz", &file)]);
        let error = read_documents(&dir.path().join("d.jsonl.gz"), "text").map(drop);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("line 1: the line has more than"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_not_a_file() {
        let error = read_documents(Path::new("/dev/null"), "text").unwrap_err();
        assert!(matches!(error, DataError::NotAFile { .. }));
    }
}
