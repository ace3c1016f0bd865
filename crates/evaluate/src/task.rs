//! Tasks: files of documents, with the fields of the public data sets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use residual_zoo_data::json::without_nan;
use residual_zoo_data::{DataError, read_documents, read_utf8};
use residual_zoo_system::counted;

use crate::Error;
use crate::document::{Document, article, document, kind_of, roll};
use crate::fields::Fields;
use crate::python::strip;

/// The form of a task's documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `text`, whose last word is to be predicted (Paperno et al., "The LAMBADA dataset", 2016).
    Lambada,
    /// `activity_label`, `ctx_a`, `ctx_b`, `endings`, `label` (Zellers et al., "HellaSwag", 2019).
    HellaSwag,
    /// `goal`, `sol1`, `sol2`, `label` (Bisk et al., "PIQA", 2020).
    Piqa,
    /// `question`, `choices` with `text` and `label`, `answerKey` (Clark et al., "Think you have solved question
    /// answering?", 2018). In the original files, `question` has `stem` and `choices`.
    Arc,
    /// `sentence` with `_`, `option1`, `option2`, `answer` (Sakaguchi et al., "WinoGrande", 2020).
    WinoGrande,
    /// `page`, a tokenized article of WikiText (Merity et al., "Pointer sentinel mixture models", 2017); or the
    /// published text file.
    WikiText,
    /// Plain texts: a text file, or `text`.
    Text,
}

/// The kinds, by the names that users write.
pub const KINDS: [(&str, Kind); 7] = [
    ("lambada", Kind::Lambada),
    ("hellaswag", Kind::HellaSwag),
    ("piqa", Kind::Piqa),
    ("arc", Kind::Arc),
    ("winogrande", Kind::WinoGrande),
    ("wikitext", Kind::WikiText),
    ("text", Kind::Text),
];

impl Kind {
    /// Returns the name that users write.
    pub fn name(self) -> &'static str {
        let named = KINDS.iter().find(|(_, kind)| *kind == self);
        named.map_or("", |(name, _)| name)
    }

    /// Returns the names of the metrics of a task of this kind; see [`Metric::name`](crate::Metric::name).
    pub fn metrics(self) -> &'static [&'static str] {
        match self {
            Self::Lambada => &["perplexity", "acc"],
            Self::HellaSwag | Self::Piqa | Self::Arc => &["acc", "acc_norm"],
            Self::WinoGrande => &["acc"],
            Self::WikiText | Self::Text => &[
                "word_perplexity",
                "byte_perplexity",
                "bits_per_byte",
                "token_perplexity",
                "bits_per_token",
            ],
        }
    }
}

/// The documents of a file. They are kept as in the file, and parsed one at a time.
#[derive(Clone, Debug)]
pub struct Task {
    /// The name of the task in results.
    pub name: String,
    /// The file or, for plain texts, a directory of files.
    pub path: PathBuf,
    /// The form of the documents.
    pub kind: Kind,
    /// BLAKE3 of the file's content or, for plain texts outside a `.jsonl` file, of the texts and their lengths.
    /// Includes documents that were not kept.
    pub blake3: String,
    /// Number of documents in the file, including documents that were not kept.
    pub original: usize,
    documents: Documents,
}

/// The documents of a task: byte ranges of its file, or texts.
#[derive(Clone, Debug)]
enum Documents {
    /// The text of the file, and the start and end of each line of JSON, in bytes.
    Lines(Arc<String>, Vec<(usize, usize)>),
    /// The text of the file, and the start and end of each WikiText article, in bytes.
    Articles(Arc<String>, Vec<(usize, usize)>),
    /// Texts.
    Texts(Vec<Arc<String>>),
}

impl Task {
    /// Reads `FILE` or `KIND=FILE`. Without a kind, the kind of a `.jsonl` file follows from the fields of its first
    /// document, and any other file or directory has plain texts. At most `limit` documents are kept.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is missing, empty or of another kind, or if a document lacks a field or has an
    /// invalid one. Documents beyond `limit` are not checked.
    pub fn read(task: &str, limit: Option<usize>) -> Result<Self, Error> {
        let named = task.split_once('=').and_then(|(name, file)| {
            let kind = KINDS.iter().find(|(known, _)| *known == name)?.1;
            Some((kind, Path::new(file)))
        });
        if let (None, Some((kind, file))) = (named, task.split_once('='))
            && !Path::new(task).exists()
            && Path::new(file).exists()
        {
            return Err(Error::Task {
                path: task.into(),
                line: None,
                problem: format!("has no known kind `{kind}`; give one of {}", kinds()),
            });
        }
        let path = named.map_or(Path::new(task), |(_, file)| file);
        if named.is_none() && !path.exists() && KINDS.iter().any(|(name, _)| *name == task) {
            return Err(Error::Task {
                path: path.into(),
                line: None,
                problem: format!(
                    "is a kind, and there is no file of this name; give the file of the task as `{task}=FILE`, see \
                     docs/evaluation.md"
                ),
            });
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = name.into_owned();
        let most = limit.unwrap_or(usize::MAX);
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if [".json", ".jsonl.gz", ".jsonl.zst", ".parquet"]
            .iter()
            .any(|ending| file.ends_with(ending))
        {
            return Err(Error::Task {
                path: path.into(),
                line: None,
                problem:
                    "is not a .jsonl file; write its documents to one, a JSON object on each line"
                        .into(),
            });
        }
        if !file.ends_with(".jsonl") {
            return match named {
                None | Some((Kind::Text, _)) => Self::of_text(name, path, most),
                Some((Kind::WikiText, _)) => Self::of_wikitext(name, path, most),
                Some(_) => Err(Error::Task {
                    path: path.into(),
                    line: None,
                    problem: "is not a .jsonl file; write the documents as JSON, one on a line"
                        .into(),
                }),
            };
        }
        Self::of_lines(name, path, named.map(|(kind, _)| kind), most)
    }

    /// Returns the number of documents.
    pub fn len(&self) -> usize {
        match &self.documents {
            Documents::Lines(_, parts) | Documents::Articles(_, parts) => parts.len(),
            Documents::Texts(texts) => texts.len(),
        }
    }

    /// Whether there are no documents.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps the first `most` documents.
    pub fn truncate(&mut self, most: usize) {
        match &mut self.documents {
            Documents::Lines(_, parts) | Documents::Articles(_, parts) => parts.truncate(most),
            Documents::Texts(texts) => texts.truncate(most),
        }
    }

    /// Returns the questions about the document `number`, counted from 0.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such document. [`read`](Self::read) has checked all existing documents.
    pub fn document(&self, number: usize) -> Result<Document, Error> {
        let found = match &self.documents {
            Documents::Texts(texts) => texts.get(number).map(|text| Ok(roll(text.clone()))),
            Documents::Lines(text, parts) => parts.get(number).map(|(start, end)| {
                let fields = Fields::read(&text[*start..*end])?;
                document(self.kind, &fields)
            }),
            Documents::Articles(text, parts) => parts
                .get(number)
                .map(|(start, end)| Ok(article(text[*start..*end].into()))),
        };
        let problem = match found {
            Some(Ok(document)) => return Ok(document),
            Some(Err(problem)) => problem,
            None => format!("the task has {}", counted(self.len(), "document")),
        };
        Err(Error::Document {
            task: self.name.clone(),
            document: number,
            problem,
        })
    }

    /// Reads a file of JSON, one object per line.
    fn of_lines(
        name: String,
        path: &Path,
        mut kind: Option<Kind>,
        most: usize,
    ) -> Result<Self, Error> {
        let text = read_utf8(path)?;
        let content = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let blake3 = blake3::hash(content.as_bytes());
        // Python reads and writes numbers that JSON does not allow, such as NaN.
        let text = without_nan(&text).unwrap_or(text);
        let begin = text.len() - text.strip_prefix('\u{feff}').unwrap_or(&text).len();
        let is_blank = |line: &str| line.trim().is_empty();
        let count = text.lines().filter(|line| !is_blank(line)).count();
        let mut parts = Vec::with_capacity(count.min(most));
        let (mut at, mut is_empty) = (begin, true);
        for (line, part) in (1..).zip(text[begin..].split_inclusive('\n')) {
            let (start, end) = (at, at + part.len());
            at = end;
            if is_blank(part) {
                continue;
            }
            if parts.len() == most {
                break;
            }
            let failed = |problem: String| Error::Task {
                path: path.into(),
                line: Some(line),
                problem,
            };
            let fields = Fields::read(part).map_err(failed)?;
            let kind = match kind {
                Some(kind) => kind,
                None => *kind.insert(kind_of(&fields).map_err(failed)?),
            };
            let found = document(kind, &fields).map_err(failed)?;
            is_empty &= matches!(found, Document::Roll { bytes: 0, .. });
            parts.push((start, end));
        }
        match kind.filter(|_| !parts.is_empty()) {
            Some(kind) if !is_empty => Ok(Self {
                name,
                path: path.into(),
                kind,
                blake3: blake3.to_string(),
                original: count,
                documents: Documents::Lines(text.into(), parts),
            }),
            Some(_) => Err(Error::Task {
                path: path.into(),
                line: None,
                problem: "has only empty texts; give at least one that is not empty".into(),
            }),
            None => Err(empty(path)),
        }
    }

    fn of_text(name: String, path: &Path, most: usize) -> Result<Self, Error> {
        let texts = read_documents(path, "text").map_err(|error| match error {
            DataError::MissingField { path, line, field } => DataError::Json {
                path,
                line,
                message: format!(
                    "no field `{field}`, which holds a document of plain text; for another kind of task, give its file"
                ),
            },
            error => error,
        })?;
        let mut hash = blake3::Hasher::new();
        for text in &texts {
            hash.update(&(text.len() as u64).to_le_bytes())
                .update(text.as_bytes());
        }
        let original = texts.len();
        let texts: Vec<Arc<String>> = texts.into_iter().take(most).map(Arc::new).collect();
        match texts.iter().all(|text| text.is_empty()) {
            true => Err(empty(path)),
            false => Ok(Self {
                name,
                path: path.into(),
                kind: Kind::Text,
                blake3: hash.finalize().to_string(),
                original,
                documents: Documents::Texts(texts),
            }),
        }
    }

    /// Reads the articles of a published WikiText file. Each article begins with a heading `= Title =`.
    fn of_wikitext(name: String, path: &Path, most: usize) -> Result<Self, Error> {
        let text = read_utf8(path)?;
        let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
        let ends = text.split_inclusive('\n').map(|line| {
            let before = at;
            at += line.len();
            is_title(line.trim()).then_some(before)
        });
        for end in ends.flatten().chain([text.len()]) {
            if !strip(&text[start..end]).is_empty() {
                parts.push((start, end));
            }
            start = end;
        }
        let original = parts.len();
        parts.truncate(most);
        match parts.is_empty() {
            true => Err(empty(path)),
            false => Ok(Self {
                name,
                path: path.into(),
                kind: Kind::WikiText,
                blake3: blake3::hash(text.as_bytes()).to_string(),
                original,
                documents: Documents::Articles(text.into(), parts),
            }),
        }
    }
}

/// Whether a line is the heading of an article, and not of a section, such as `= = History = =`.
fn is_title(line: &str) -> bool {
    let inner = line
        .strip_prefix("= ")
        .and_then(|line| line.strip_suffix(" ="));
    inner.is_some_and(|inner| !inner.starts_with('=') && !inner.ends_with('='))
}

fn empty(path: &Path) -> Error {
    Error::Task {
        path: path.into(),
        line: None,
        problem: "has no documents".into(),
    }
}

/// Returns the names of all kinds.
fn kinds() -> String {
    KINDS.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_wikitext_is_cut_into_its_articles() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wiki.valid.raw");
        let text =
            " \n = First = \n \n One . \n \n = = Part = = \n Two . \n = Second = \n Three . \n";
        std::fs::write(&path, text).unwrap();
        let task = Task::read(&format!("wikitext={}", path.display()), None).unwrap();
        let bytes = |number| match task.document(number).unwrap() {
            Document::Roll { bytes, .. } => bytes,
            other => panic!("{other:?}"),
        };
        let found: Vec<usize> = (0..task.len()).map(bytes).collect();
        let second = text.find(" = Second").unwrap();
        // Only white space comes before the first heading.
        assert_eq!(found, [second - 2, text.len() - second]);
        assert!(Task::read(&format!("piqa={}", path.display()), None).is_err());
    }

    #[test]
    fn documents_of_another_task_are_no_text() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.jsonl"), "{\"question\": \"a\"}\n").unwrap();
        let task = folder.path().display().to_string();
        let error = Task::read(&task, None).err().unwrap().to_string();
        assert!(
            error.contains("line 1: no field `text`, which holds"),
            "{error}"
        );
        assert!(!error.contains("data.text_field"), "{error}");
    }
}
