//! The questions about a document, as in the tasks of the same names in EleutherAI's `lm_eval` 0.4.

use std::sync::{Arc, LazyLock};

use regex::Regex;
use residual_zoo_system::counted;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fields::{Fields, First, brief, is_object, text};
use crate::python::{SPACE, capitalize, count_words, pattern, strip};
use crate::task::{KINDS, Kind};

/// The questions that a model is asked about a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// The likelihood of a continuation, and whether each of its tokens is the most likely one.
    Continue {
        /// The text before the continuation.
        context: String,
        /// The text that is scored.
        continuation: String,
    },
    /// The choice of the pair whose continuation is the most likely, given its context.
    Choose {
        /// The pairs. Equal texts are shared.
        pairs: Vec<(Arc<String>, Arc<String>)>,
        /// Number of characters of each choice.
        lengths: Vec<usize>,
        /// Index of the right choice.
        gold: usize,
    },
    /// The likelihood of a text.
    Roll {
        /// The text. An article of WikiText is detokenized.
        text: Arc<String>,
        /// Number of words before detokenization, plus one for white space at each end.
        words: usize,
        /// Number of bytes before detokenization.
        bytes: usize,
    },
}

impl Document {
    /// Returns the number of bytes of the longest text that a model reads at once, regardless of the model's context.
    pub(crate) fn longest(&self) -> usize {
        match self {
            Self::Continue {
                context,
                continuation,
            } => context.len() + continuation.len(),
            Self::Choose { pairs, .. } => {
                let lengths = pairs.iter().map(|(a, b)| a.len() + b.len());
                lengths.max().unwrap_or(0)
            }
            Self::Roll { text, .. } => text.len(),
        }
    }
}

/// Returns the kind of a task whose documents have these fields.
pub fn kind_of(fields: &Fields) -> Result<Kind, String> {
    let has = |name: &str| fields.has(name);
    let kind = match () {
        () if has("endings") => Kind::HellaSwag,
        () if has("goal") => Kind::Piqa,
        () if has("sentence") && has("option1") => Kind::WinoGrande,
        () if has("question") => Kind::Arc,
        () if has("page") => Kind::WikiText,
        () if has("text") => Kind::Text,
        () => {
            return Err(format!(
                "its fields ({}) match no known task; give its kind as `KIND=FILE`, where KIND is one of {}",
                fields.names.join(", "),
                KINDS.map(|(name, _)| name).join(", ")
            ));
        }
    };
    Ok(kind)
}

/// Makes the questions about the document in a line of a file.
pub fn document(kind: Kind, fields: &Fields) -> Result<Document, String> {
    match kind {
        Kind::Lambada => {
            let text = fields.text("text")?;
            // A single word has no context.
            let (context, word) = text.rsplit_once(' ').unwrap_or(("", &text));
            Ok(Document::Continue {
                context: context.into(),
                continuation: format!(" {word}"),
            })
        }
        Kind::HellaSwag => {
            let mut context = fields.text("activity_label")? + ": " + &fields.text("ctx_a")? + " ";
            context += &capitalize(&fields.text("ctx_b")?);
            let endings = texts(fields.get("endings")?, "endings")?;
            let endings = endings.into_iter().map(clean).collect();
            let gold = index(fields.get("label")?, "label", 0)?;
            choose(clean(context), endings, gold)
        }
        Kind::Piqa => choose(
            format!("Question: {}\nAnswer:", fields.text("goal")?),
            vec![fields.text("sol1")?, fields.text("sol2")?],
            index(fields.get("label")?, "label", 0)?,
        ),
        Kind::Arc => {
            let question = fields.get("question")?;
            let (question, choices) = match is_object(question) {
                true => original(question)?,
                false => (text(question, "question")?, fields.get("choices").ok()),
            };
            let (answers, labels) = arc_choices(choices.ok_or("no field `choices`")?)?;
            let key = fields.text("answerKey")?;
            if labels.len() != answers.len() {
                return Err(format!(
                    "`choices` has {} and {}",
                    counted(answers.len(), "text"),
                    counted(labels.len(), "label")
                ));
            }
            let gold = labels.iter().position(|label| *label == key);
            let gold = gold
                .ok_or_else(|| format!("`answerKey` is {:?}, which no choice has", brief(&key)))?;
            choose(format!("Question: {question}\nAnswer:"), answers, gold)
        }
        Kind::WinoGrande => {
            let sentence = fields.text("sentence")?;
            let Some((before, after)) = sentence.split_once('_') else {
                return Err("`sentence` has no `_`".into());
            };
            let after = Arc::new(format!(" {}", strip(after)));
            let options = [fields.text("option1")?, fields.text("option2")?];
            let contexts = options.map(|option| format!("{before}{option}"));
            in_range(Document::Choose {
                lengths: contexts
                    .iter()
                    .map(|context| context.chars().count())
                    .collect(),
                pairs: contexts
                    .map(|context| (Arc::new(context), after.clone()))
                    .into(),
                gold: index(fields.get("answer")?, "answer", 1)?,
            })
        }
        Kind::WikiText => Ok(article(fields.text("page")?)),
        Kind::Text => Ok(roll(Arc::new(fields.text("text")?))),
    }
}

/// Makes the document of a text that is scored unchanged.
pub fn roll(text: Arc<String>) -> Document {
    Document::Roll {
        words: count_words(&text),
        bytes: text.len(),
        text,
    }
}

/// Makes the document of a WikiText article. The article is scored as ordinary text, but its metrics count the words
/// and bytes of the original.
pub fn article(page: String) -> Document {
    let (words, bytes) = (count_words(&page), page.len());
    Document::Roll {
        text: Arc::new(detokenized(page)),
        words,
        bytes,
    }
}

fn choose(context: String, choices: Vec<String>, gold: usize) -> Result<Document, String> {
    let context = Arc::new(context);
    in_range(Document::Choose {
        lengths: choices
            .iter()
            .map(|choice| choice.chars().count())
            .collect(),
        pairs: choices
            .iter()
            .map(|choice| (context.clone(), Arc::new(format!(" {choice}"))))
            .collect(),
        gold,
    })
}

/// Maximum number of choices of a question.
const MOST_CHOICES: usize = 256;

fn in_range(document: Document) -> Result<Document, String> {
    match &document {
        Document::Choose { pairs, gold, .. } if *gold >= pairs.len() => Err(format!(
            "the right choice is number {gold}, counted from 0, but the number of choices is {}",
            pairs.len()
        )),
        _ => Ok(document),
    }
}

/// Returns the values of a list, or an error if the list has too many values.
fn few<T>(first: First<T>) -> Result<Vec<T>, String> {
    match first.count > MOST_CHOICES {
        true => Err(format!(
            "there are {} choices, but at most {MOST_CHOICES} are allowed",
            first.count
        )),
        false => Ok(first.kept),
    }
}

fn texts(json: &RawValue, name: &str) -> Result<Vec<String>, String> {
    let first = First::read(json, MOST_CHOICES);
    few(first.ok_or_else(|| format!("`{name}` is not a list of texts"))?)
}

/// Reads a number, or a string with a number, and subtracts `first`.
fn index(json: &RawValue, name: &str, first: u64) -> Result<usize, String> {
    let given: Option<u64> = match serde_json::from_str::<String>(json.get()) {
        Ok(text) => strip(&text).parse().ok(),
        Err(_) => serde_json::from_str(json.get()).ok(),
    };
    let index = given.and_then(|number| number.checked_sub(first));
    let problem = || {
        format!(
            "`{name}` is {}, not a number of at least {first}; the test sets of some tasks hide it",
            brief(json.get())
        )
    };
    index.map(|index| index as usize).ok_or_else(problem)
}

/// Returns the question and the choices of a document in ARC's original files.
fn original(question: &RawValue) -> Result<(String, Option<&RawValue>), String> {
    #[derive(Deserialize)]
    struct Question<'a> {
        stem: Option<String>,
        #[serde(borrow)]
        choices: Option<&'a RawValue>,
    }
    let problem = "`question` has no `stem`";
    let found: Question = serde_json::from_str(question.get()).map_err(|_| problem)?;
    Ok((found.stem.ok_or(problem)?, found.choices))
}

/// Returns the answers and their labels. `choices` holds two lists or, in the original files, a list of pairs.
fn arc_choices(choices: &RawValue) -> Result<(Vec<String>, Vec<String>), String> {
    #[derive(Deserialize)]
    struct Lists<'a> {
        #[serde(borrow)]
        text: Option<&'a RawValue>,
        #[serde(borrow)]
        label: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Pair {
        text: String,
        label: String,
    }
    let problem = "`choices` has neither `text` and `label` nor pairs of them";
    if is_object(choices) {
        let lists: Lists = serde_json::from_str(choices.get()).map_err(|_| problem)?;
        let list = |list: Option<&RawValue>, name: &str| match list {
            Some(list) => texts(list, name),
            None => Err(format!("`{name}` is not a list of texts")),
        };
        return Ok((
            list(lists.text, "choices.text")?,
            list(lists.label, "choices.label")?,
        ));
    }
    let pairs: First<Pair> = First::read(choices, MOST_CHOICES).ok_or(problem)?;
    let pairs = few(pairs)?.into_iter().map(|pair| (pair.text, pair.label));
    Ok(pairs.unzip())
}

/// Removes WikiHow's markup from a HellaSwag text.
fn clean(text: String) -> String {
    static MARKS: LazyLock<Regex> = LazyLock::new(|| pattern(r"\[.*?\]"));
    let text = strip(&text).replace(" [title]", ". ");
    MARKS.replace_all(&text, "").replace("  ", " ")
}

/// Turns a WikiText article into ordinary text.
fn detokenized(page: String) -> String {
    static BRACKETS: LazyLock<[(Regex, &str); 6]> = LazyLock::new(|| {
        let within = |open: &str, no_close: &str, close: &str| {
            pattern(&format!("{open}{SPACE}*({no_close}*?){SPACE}*{close}"))
        };
        [
            (pattern(r"/' [0-9]/"), "/'[0-9]/"),
            (within(r"\(", r"[^\)]", r"\)"), "($1)"),
            (within(r"\[", r"[^\]]", r"\]"), "[$1]"),
            (within(r"\{", r"[^}]", r"\}"), "{$1}"),
            (within("\"", "[^\"]", "\""), "\"$1\""),
            (within("'", "[^']", "'"), "'$1'"),
        ]
    });
    let [digits, brackets @ ..] = &*BRACKETS;
    let exactly = |text: String, pairs: &[(&str, &str)]| {
        let each = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
        pairs.iter().fold(text, each)
    };
    let by_pattern = |text: String, (from, to): &(Regex, &str)| from.replace_all(&text, *to).into();
    let text = exactly(page, &[("s '", "s'")]);
    let text = by_pattern(text, digits);
    let text = exactly(
        text,
        &[
            (" @-@ ", "-"),
            (" @,@ ", ","),
            (" @.@ ", "."),
            (" : ", ": "),
            (" ; ", "; "),
            (" . ", ". "),
            (" ! ", "! "),
            (" ? ", "? "),
            (" , ", ", "),
        ],
    );
    let text = brackets.iter().fold(text, by_pattern);
    exactly(
        text,
        &[
            ("= = = =", "===="),
            ("= = =", "==="),
            ("= =", "=="),
            (" \u{b0} ", "\u{b0}"),
            (" \n", "\n"),
            ("\n ", "\n"),
            (" N ", " 1 "),
            (" 's", "'s"),
        ],
    )
}
