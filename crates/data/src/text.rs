//! Reads documents from files and directories.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};

use crate::{DataError, files};

/// Reads the documents at `path`.
///
/// - A `.jsonl` file has one document per line: the string `text_field` of a JSON object. Blank
///   lines are skipped.
/// - Any other file is one document.
/// - A directory has the documents of all `.txt`, `.md` and `.jsonl` files in it and in its
///   subdirectories, sorted by path. Symbolic links in it are not followed.
///
/// # Errors
///
/// [`DataError::Empty`] if there is no text at all; files that are not UTF-8 or not JSON; I/O
/// errors.
pub fn read_documents(path: &Path, text_field: &str) -> Result<Vec<String>, DataError> {
    let metadata = fs::metadata(path).map_err(|e| DataError::io(path, "read", e))?;
    let files = if metadata.is_dir() {
        text_files(path)?
    } else {
        vec![path.to_path_buf()]
    };
    let mut documents = Vec::new();
    for file in files {
        let text = files::read_utf8(&file)?;
        if has_extension(&file, &["jsonl"]) {
            json_lines(&file, &text, text_field, &mut documents)?;
        } else {
            documents.push(text);
        }
    }
    if documents.iter().all(String::is_empty) {
        return Err(DataError::Empty {
            path: path.to_path_buf(),
        });
    }
    Ok(documents)
}

/// Reads the documents at `path` (see [`read_documents`]) and joins them with line breaks.
///
/// # Errors
///
/// Those of [`read_documents`].
pub fn read_text(path: &Path, text_field: &str) -> Result<String, DataError> {
    let mut documents = read_documents(path, text_field)?;
    match documents.as_mut_slice() {
        [only] => Ok(std::mem::take(only)),
        _ => Ok(documents.join("\n")),
    }
}

fn text_files(root: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let failed = |e| DataError::io(&folder, "read", e);
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let kind = entry.file_type().map_err(failed)?;
            let path = entry.path();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && has_extension(&path, &["txt", "md", "jsonl"]) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension()
        .is_some_and(|ext| extensions.iter().any(|e| ext.eq_ignore_ascii_case(e)))
}

fn json_lines(
    path: &Path,
    text: &str,
    field: &str,
    documents: &mut Vec<String>,
) -> Result<(), DataError> {
    // Reserved at once, because growing step by step may double the memory. A shorter line cannot
    // hold a document.
    let shortest = r#"{"":""}"#.len();
    documents.reserve(text.lines().filter(|line| line.len() >= shortest).count());
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (path, line_number) = (path.to_path_buf(), index + 1);
        let mut json = serde_json::Deserializer::from_str(line);
        let document = OfField(field).deserialize(&mut json);
        match document.and_then(|document| json.end().map(|()| document)) {
            Ok(Some(document)) => documents.push(document),
            Ok(None) => {
                let field = field.to_owned();
                return Err(DataError::MissingField {
                    path,
                    line: line_number,
                    field,
                });
            }
            Err(e) => {
                let message = format!("{} (column {})", json_problem(&e), e.column());
                return Err(DataError::Json {
                    path,
                    line: line_number,
                    message,
                });
            }
        }
    }
    Ok(())
}

/// Deserializes the text in this field of an object; the last one if the field is repeated. Other
/// fields are skipped, because they could take many times their size in memory.
struct OfField<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for OfField<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OfField<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut text = None;
        while let Some(name) = object.next_key::<String>()? {
            if name == self.0 {
                text = Some(object.next_value()?);
            } else {
                object.next_value::<IgnoredAny>()?;
            }
        }
        Ok(text)
    }
}

/// The message of `error` without its line number, which is always 1.
fn json_problem(error: &serde_json::Error) -> String {
    let message = crate::error::one_line(error);
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
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
            read_text(dir.path(), "text").unwrap(),
            "one\ntwo\nthree\nfour"
        );
    }

    #[cfg(unix)]
    #[test]
    fn symbolic_links_in_a_directory_are_not_followed() {
        let outside = folder(&[("secret.txt", b"secret")]);
        let dir = folder(&[("a.txt", b"text")]);
        std::os::unix::fs::symlink(outside.path(), dir.path().join("loop")).unwrap();
        let file = outside.path().join("secret.txt");
        std::os::unix::fs::symlink(file, dir.path().join("b.txt")).unwrap();
        assert_eq!(read_documents(dir.path(), "text").unwrap(), ["text"]);
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
    fn the_field_of_the_text_can_be_chosen() {
        let dir = folder(&[("d.jsonl", br#"{"text": "a", "body": "b"}"#)]);
        assert_eq!(read_documents(dir.path(), "body").unwrap(), ["b"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_not_a_file() {
        let error = read_documents(Path::new("/dev/null"), "text").unwrap_err();
        assert!(matches!(error, DataError::NotAFile { .. }));
    }
}
