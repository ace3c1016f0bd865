//! Tasks: files of documents, in the fields of the public data sets.
//!
//! What a model is asked follows the tasks of the same names in EleutherAI's `lm_eval` 0.4.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;
use residual_zoo_data::{read_documents, read_utf8};
use serde_json::{Map, Value};

use crate::Error;

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
    /// `page`, a tokenized article of WikiText (Merity et al., "Pointer sentinel mixture models", 2017); or the text
    /// file, as it was published.
    WikiText,
    /// Plain texts: a text file, or `text`.
    Text,
}

/// The kinds by the names that a user gives.
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
    /// The name that a user gives.
    pub fn name(self) -> &'static str {
        let named = KINDS.iter().find(|(_, kind)| *kind == self);
        named.map_or("", |(name, _)| name)
    }

    /// The metrics of a task of this kind, as in `lm_eval`.
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

/// What a model is asked about a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// How likely, and whether the most likely, a continuation is.
    Continue {
        /// What comes before.
        context: String,
        /// What is to come.
        continuation: String,
    },
    /// Which of several pairs of context and continuation is the most likely.
    Choose {
        /// The pairs.
        pairs: Vec<(String, String)>,
        /// Characters of each choice.
        lengths: Vec<usize>,
        /// The right one.
        gold: usize,
    },
    /// How likely a text is.
    Roll {
        /// The text.
        text: String,
        /// Its words, and one for white space at each end.
        words: usize,
        /// Its bytes.
        bytes: usize,
    },
}

/// The documents of a file.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its name in results.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// The form of the documents.
    pub kind: Kind,
    /// The documents.
    pub documents: Vec<Document>,
    /// BLAKE3 of the file, with those that were not kept.
    pub blake3: String,
}

impl Task {
    /// Reads `FILE`, whose kind follows from its fields, or `KIND=FILE`. At most `limit` documents are kept.
    ///
    /// # Errors
    ///
    /// A file that is missing or of another kind; a document that lacks a field.
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
        let is_lines = file.ends_with(".jsonl");
        if !is_lines {
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
        let text = read_utf8(path)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let lines = (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim().is_empty());
        let (mut kind, mut documents) = (named.map(|(kind, _)| kind), Vec::new());
        for (line, text) in lines.take(most) {
            let failed = |problem: String| Error::Task {
                path: path.into(),
                line: Some(line),
                problem,
            };
            let fields: Map<String, Value> = serde_json::from_str(text)
                .map_err(|e| failed(format!("is not a JSON object: {e}")))?;
            let kind = match kind {
                Some(kind) => kind,
                None => *kind.insert(kind_of(&fields).map_err(failed)?),
            };
            documents.push(document(kind, &fields).map_err(failed)?);
        }
        match kind {
            Some(kind) => Ok(Self {
                name,
                path: path.into(),
                kind,
                documents,
                blake3: blake3::hash(text.as_bytes()).to_string(),
            }),
            None => Err(empty(path)),
        }
    }

    fn of_text(name: String, path: &Path, most: usize) -> Result<Self, Error> {
        let texts = read_documents(path, "text")?;
        let mut hash = blake3::Hasher::new();
        for text in &texts {
            hash.update(&(text.len() as u64).to_le_bytes())
                .update(text.as_bytes());
        }
        let texts = texts.into_iter().take(most);
        let documents: Vec<Document> = texts.map(|text| roll(&text, text.clone())).collect();
        match documents.is_empty() {
            true => Err(empty(path)),
            false => Ok(Self {
                name,
                path: path.into(),
                kind: Kind::Text,
                documents,
                blake3: hash.finalize().to_string(),
            }),
        }
    }

    /// The articles of a file of WikiText as it was published. Each begins with a heading `= Title =`.
    fn of_wikitext(name: String, path: &Path, most: usize) -> Result<Self, Error> {
        let text = read_utf8(path)?;
        let mut starts = vec![0];
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            if is_title(line.trim()) {
                starts.push(at);
            }
            at += line.len();
        }
        starts.push(text.len());
        let pages = starts.windows(2).map(|range| &text[range[0]..range[1]]);
        let pages = pages.filter(|page| !page.trim().is_empty()).take(most);
        let documents: Vec<Document> = pages.map(|page| roll(page, detokenized(page))).collect();
        match documents.is_empty() {
            true => Err(empty(path)),
            false => Ok(Self {
                name,
                path: path.into(),
                kind: Kind::WikiText,
                documents,
                blake3: blake3::hash(text.as_bytes()).to_string(),
            }),
        }
    }
}

/// Whether a line is the heading of an article, and not one within it, such as `= = History = =`.
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

/// The names of all kinds.
fn kinds() -> String {
    KINDS.map(|(name, _)| name).join(", ")
}

/// The kind whose fields these are.
fn kind_of(fields: &Map<String, Value>) -> Result<Kind, String> {
    let has = |name: &str| fields.contains_key(name);
    let kind = match () {
        () if has("endings") => Kind::HellaSwag,
        () if has("goal") => Kind::Piqa,
        () if has("sentence") && has("option1") => Kind::WinoGrande,
        () if has("question") => Kind::Arc,
        () if has("page") => Kind::WikiText,
        () if has("text") => Kind::Text,
        () => {
            let found: Vec<&str> = fields.keys().map(String::as_str).take(12).collect();
            return Err(format!(
                "its fields ({}) are those of no known task; give its kind as `KIND=FILE`, where KIND is one of {}",
                found.join(", "),
                kinds()
            ));
        }
    };
    Ok(kind)
}

/// What is asked about an object of a file.
fn document(kind: Kind, fields: &Map<String, Value>) -> Result<Document, String> {
    let get = |name: &str| fields.get(name).ok_or_else(|| format!("no field `{name}`"));
    let text = |name: &str| {
        let value = get(name)?.as_str();
        value
            .ok_or_else(|| format!("`{name}` is not a text"))
            .map(str::to_owned)
    };
    match kind {
        Kind::Lambada => {
            let text = text("text")?;
            let Some((context, word)) = text.rsplit_once(' ') else {
                return Err("`text` has only one word".into());
            };
            Ok(Document::Continue {
                context: context.into(),
                continuation: format!(" {word}"),
            })
        }
        Kind::HellaSwag => {
            let (label, a, b) = (text("activity_label")?, text("ctx_a")?, text("ctx_b")?);
            let context = clean(&format!("{label}: {a} {}", capitalised(&b)));
            let endings = texts(get("endings")?, "endings")?;
            let endings: Vec<String> = endings.iter().map(|ending| clean(ending)).collect();
            choose(&context, endings, index(get("label")?, "label", 0)?)
        }
        Kind::Piqa => {
            let context = format!("Question: {}\nAnswer:", text("goal")?);
            choose(
                &context,
                vec![text("sol1")?, text("sol2")?],
                index(get("label")?, "label", 0)?,
            )
        }
        Kind::Arc => {
            let (question, choices) = match get("question")? {
                Value::Object(question) => {
                    let stem = question.get("stem").and_then(Value::as_str);
                    (
                        stem.ok_or("`question` has no `stem`")?.to_owned(),
                        question.get("choices"),
                    )
                }
                _ => (text("question")?, fields.get("choices")),
            };
            let (answers, labels) = arc_choices(choices.ok_or("no field `choices`")?)?;
            let key = text("answerKey")?;
            if labels.len() != answers.len() {
                return Err(format!(
                    "`choices` has {} texts and {} labels",
                    answers.len(),
                    labels.len()
                ));
            }
            let gold = labels.iter().position(|label| *label == key);
            let gold =
                gold.ok_or_else(|| format!("`answerKey` is {key:?}, which no choice has"))?;
            choose(&format!("Question: {question}\nAnswer:"), answers, gold)
        }
        Kind::WinoGrande => {
            let sentence = text("sentence")?;
            let Some((before, after)) = sentence.split_once('_') else {
                return Err("`sentence` has no `_`".into());
            };
            let options = [text("option1")?, text("option2")?];
            let pairs =
                options.map(|option| (format!("{before}{option}"), format!(" {}", after.trim())));
            Ok(Document::Choose {
                lengths: pairs
                    .iter()
                    .map(|(context, _)| context.chars().count())
                    .collect(),
                pairs: pairs.into(),
                gold: index(get("answer")?, "answer", 1)?,
            })
            .and_then(in_range)
        }
        Kind::WikiText => {
            let page = text("page")?;
            Ok(roll(&page, detokenized(&page)))
        }
        Kind::Text => {
            let text = text("text")?;
            Ok(roll(&text, text.clone()))
        }
    }
}

/// A text that is scored, and the original, whose words and bytes count.
fn roll(original: &str, text: String) -> Document {
    static SPACE: LazyLock<Regex> = LazyLock::new(|| pattern(r"\s+"));
    Document::Roll {
        text,
        words: SPACE.split(original).count(),
        bytes: original.len(),
    }
}

fn choose(context: &str, choices: Vec<String>, gold: usize) -> Result<Document, String> {
    let pairs = choices
        .iter()
        .map(|choice| (context.to_owned(), format!(" {choice}")));
    in_range(Document::Choose {
        pairs: pairs.collect(),
        lengths: choices
            .iter()
            .map(|choice| choice.chars().count())
            .collect(),
        gold,
    })
}

/// The most choices of a question. Each has a copy of its context.
const MOST_CHOICES: usize = 256;

fn in_range(document: Document) -> Result<Document, String> {
    match &document {
        Document::Choose { pairs, .. } if pairs.len() > MOST_CHOICES => Err(format!(
            "{} choices; at most {MOST_CHOICES} are read",
            pairs.len()
        )),
        Document::Choose { pairs, gold, .. } if *gold >= pairs.len() => Err(format!(
            "the right choice is number {gold}, from 0, but there are {}",
            pairs.len()
        )),
        _ => Ok(document),
    }
}

fn texts(value: &Value, name: &str) -> Result<Vec<String>, String> {
    let texts = value
        .as_array()
        .into_iter()
        .flatten()
        .map(|text| text.as_str().map(str::to_owned));
    let texts: Option<Vec<String>> = texts.collect();
    let texts = texts.filter(|texts| !texts.is_empty());
    texts.ok_or_else(|| format!("`{name}` is not a list of texts"))
}

/// A number or the text of one, less `first`.
fn index(value: &Value, name: &str, first: u64) -> Result<usize, String> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    let index = number.and_then(|number: u64| number.checked_sub(first));
    let problem = || {
        format!(
            "`{name}` is {value}, no number from {first} on; the test sets of some tasks hide it"
        )
    };
    index.map(|index| index as usize).ok_or_else(problem)
}

/// The answers and their labels: two lists, or in the original files a list of pairs.
fn arc_choices(choices: &Value) -> Result<(Vec<String>, Vec<String>), String> {
    if let Value::Object(lists) = choices {
        let list = |name: &str| {
            texts(
                lists.get(name).unwrap_or(&Value::Null),
                &format!("choices.{name}"),
            )
        };
        return Ok((list("text")?, list("label")?));
    }
    let pairs = choices.as_array().into_iter().flatten().map(|pair| {
        let part = |name: &str| pair.get(name)?.as_str().map(str::to_owned);
        Some((part("text")?, part("label")?))
    });
    let pairs: Option<Vec<_>> = pairs.collect();
    let pairs = pairs.filter(|pairs| !pairs.is_empty());
    Ok(pairs
        .ok_or("`choices` has neither `text` and `label` nor pairs of them")?
        .into_iter()
        .unzip())
}

/// The first letter large, all others small, as Python's `str.capitalize`.
fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars.flat_map(char::to_lowercase)).collect()
}

/// A text of HellaSwag without the marks of WikiHow.
fn clean(text: &str) -> String {
    static MARKS: LazyLock<Regex> = LazyLock::new(|| pattern(r"\[.*?\]"));
    let text = text.trim().replace(" [title]", ". ");
    MARKS.replace_all(&text, "").replace("  ", " ")
}

/// An article of WikiText as ordinary text.
fn detokenized(page: &str) -> String {
    static BRACKETS: LazyLock<[(Regex, &str); 6]> = LazyLock::new(|| {
        [
            (pattern(r"/' [0-9]/"), "/'[0-9]/"),
            (pattern(r"\(\s*([^\)]*?)\s*\)"), "($1)"),
            (pattern(r"\[\s*([^\]]*?)\s*\]"), "[$1]"),
            (pattern(r"\{\s*([^}]*?)\s*\}"), "{$1}"),
            (pattern(r#""\s*([^"]*?)\s*""#), "\"$1\""),
            (pattern(r"'\s*([^']*?)\s*'"), "'$1'"),
        ]
    });
    let [digits, brackets @ ..] = &*BRACKETS;
    let mut text = page.replace("s '", "s'");
    text = digits.0.replace_all(&text, digits.1).into_owned();
    for (from, to) in [
        (" @-@ ", "-"),
        (" @,@ ", ","),
        (" @.@ ", "."),
        (" : ", ": "),
        (" ; ", "; "),
        (" . ", ". "),
        (" ! ", "! "),
        (" ? ", "? "),
        (" , ", ", "),
    ] {
        text = text.replace(from, to);
    }
    for (from, to) in brackets {
        text = from.replace_all(&text, *to).into_owned();
    }
    for (from, to) in [
        ("= = = =", "===="),
        ("= = =", "==="),
        ("= =", "=="),
        (" \u{b0} ", "\u{b0}"),
        (" \n", "\n"),
        ("\n ", "\n"),
        (" N ", " 1 "),
        (" 's", "'s"),
    ] {
        text = text.replace(from, to);
    }
    text
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|e| unreachable!("{e}"))
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
        let bytes = |document: &Document| match document {
            Document::Roll { bytes, .. } => *bytes,
            other => panic!("{other:?}"),
        };
        let found: Vec<usize> = task.documents.iter().map(bytes).collect();
        let second = text.find(" = Second").unwrap();
        // What comes before the first heading is white space.
        assert_eq!(found, [second - 2, text.len() - second]);
        assert!(Task::read(&format!("piqa={}", path.display()), None).is_err());
    }
}
