//! Draws the curves of any runs in one chart.

use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::LN_2;

use residual_zoo_core::ConfigError;
use residual_zoo_report::{Axis as ChartAxis, Chart, Series};
use residual_zoo_runs::Row;

use crate::quantity::{BITS_PER_BYTE, on_curve, title};
use crate::stats::estimates;
use crate::{Axis, Error, Observed};

/// The quantities that have a curve.
pub const CURVES: [&str; 5] = [
    "train_loss",
    "valid_loss",
    "perplexity",
    "valid_accuracy",
    BITS_PER_BYTE,
];

/// A run to draw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// The name of the run.
    pub name: String,
    /// The logged metrics.
    pub rows: Vec<Row>,
    /// All settings except the seed. Runs with equal settings differ only in their seed.
    pub settings: String,
    /// The name of the model.
    pub model: String,
    /// The name of the text.
    pub text: String,
    /// A description of one token, such as `a byte`.
    pub token: String,
    /// The identity of the tokens, such as a hash of the tokenizer.
    pub tokens: String,
    /// A hash of the training tokens, if it is known.
    pub trained_on: Option<String>,
    /// A hash of the validation tokens, if it is known.
    pub validated_on: Option<String>,
    /// Bytes of text per validation token, if they are known.
    pub bytes_per_token: Option<f64>,
}

impl Curve {
    /// Returns the value of `y` at `row`, if it was measured there.
    fn value(&self, y: &str, row: &Row) -> Option<f64> {
        match y {
            BITS_PER_BYTE => Some(row.valid_loss? / LN_2 / self.bytes_per_token?),
            y => Some(on_curve(y, row).ok()?? * Observed::of(y).scale()),
        }
    }
}

/// Whether runs have different tokens, so that losses per token are not comparable.
pub fn have_different_tokens(runs: &[Curve]) -> bool {
    let tokens: BTreeSet<&str> = runs.iter().map(|run| run.tokens.as_str()).collect();
    tokens.len() > 1
}

/// Draws the quantity `y` over `x`, with a line for each run. `x` is `steps`, `tokens`, `flops` or `seconds`, and `y`
/// is one of [`CURVES`]. With `mean`, runs that differ only in their seed share a line, and a band shows their range.
///
/// # Errors
///
/// Returns an error for any other axis, or if a run has no value of `y`. With `mean`, also returns an error if no two
/// runs differ only in their seed.
pub fn curves(runs: &[Curve], x: &str, y: &str, mean: bool) -> Result<Chart, Error> {
    let mut lines: Vec<Vec<&Curve>> = Vec::new();
    for run in runs {
        let same = |line: &&mut Vec<&Curve>| mean && line[0].settings == run.settings;
        match lines.iter_mut().find(same) {
            Some(line) => line.push(run),
            None => lines.push(vec![run]),
        }
    }
    if mean && lines.len() == runs.len() {
        let problem = "is given, but no two of these runs differ only in their seed; leave it out";
        return Err(ConfigError::new("--mean", problem).into());
    }
    let mut series = Vec::new();
    for (i, (line, name)) in lines.iter().zip(names(&lines)).enumerate() {
        let drawn = Series {
            group: i,
            name,
            ..line_of(line, x, y)
        };
        if drawn.points.is_empty() {
            let missing = match y {
                BITS_PER_BYTE => "a validation loss of a text whose bytes are known".into(),
                y => title(y),
            };
            return Err(ConfigError::new(&drawn.name, format!("has no {missing} over {x}")).into());
        }
        series.push(drawn);
    }
    let unit = |of: &str| match of {
        "steps" => "",
        BITS_PER_BYTE => "bits/byte",
        of => Observed::of(of).unit,
    };
    let label = match y {
        BITS_PER_BYTE => "valid loss".into(),
        y => title(y),
    };
    Ok(Chart {
        heading: format!("{label} over {x}"),
        note: note(runs, (x, y), mean),
        x: ChartAxis::linear(x, unit(x)),
        y: ChartAxis::linear(label, unit(y)),
        series,
        ..Chart::default()
    })
}

/// Returns the mean and the range of `y` over runs, at the steps that all runs have.
fn line_of(runs: &[&Curve], x: &str, y: &str) -> Series {
    let horizontal = |row: &Row| match (x, Axis::parse(x)) {
        ("steps", _) => Some(row.step as f64),
        (_, axis) => axis.map(|axis| axis.of(row)),
    };
    if let [run] = runs {
        let point = |row: &Row| Some((horizontal(row)?, run.value(y, row)?));
        return Series::line("", 0, run.rows.iter().filter_map(point).collect());
    }
    let mut at: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
    for run in runs {
        for row in &run.rows {
            if let Some(point) = horizontal(row).zip(run.value(y, row)) {
                at.entry(row.step).or_default().push(point);
            }
        }
    }
    let mut line = Series::default();
    for points in at.values().filter(|points| points.len() == runs.len()) {
        if let Some([x, y]) = estimates(points) {
            line.points.push((x.mean, y.mean));
            line.band.push((x.mean, y.lowest, y.highest));
        }
    }
    line
}

/// Returns a note if values on the vertical axis are not comparable, or may not be, because the runs read different
/// texts. Hashes of texts depend on the tokenizer, so they are compared only between runs with the same tokens.
fn texts_note(runs: &[Curve], y: &str) -> String {
    let is_training = y == "train_loss";
    let done = if is_training { "trained" } else { "validated" };
    let known = runs.iter().filter_map(|run| {
        let hash = match is_training {
            true => run.trained_on.as_ref(),
            false => run.validated_on.as_ref(),
        };
        Some((&run.tokens, hash?))
    });
    let known: BTreeSet<_> = known.collect();
    let tokens: BTreeSet<_> = known.iter().map(|(tokens, _)| *tokens).collect();
    if known.len() > tokens.len() {
        return format!(
            " The runs were {done} on different texts, so values on the vertical axis are not comparable."
        );
    }
    let texts: BTreeSet<&str> = runs.iter().map(|run| run.text.as_str()).collect();
    match texts.len() > 1 && have_different_tokens(runs) {
        true => format!(
            " The runs name different texts ({}); values on the vertical axis are comparable only if these are the same text.",
            texts.into_iter().collect::<Vec<_>>().join("; ")
        ),
        false => String::new(),
    }
}

/// Returns a unique name for each line: the name of its run, or a name for all its runs.
fn names(lines: &[Vec<&Curve>]) -> Vec<String> {
    let short: Vec<String> = lines.iter().map(|line| without_seed(line)).collect();
    let name = |(i, line): (usize, &Vec<&Curve>)| {
        let mut others = short.iter().enumerate().filter(|(j, _)| i != *j);
        let name = match others.any(|(_, other)| *other == short[i]) {
            true => &line[0].name,
            false => &short[i],
        };
        match line.len() {
            1 => line[0].name.clone(),
            count => format!("{name}, mean of {count} seeds"),
        }
    };
    lines.iter().enumerate().map(name).collect()
}

/// Returns the words that the names of all runs share, without the word for the seed: `runs/gpt2` for `runs/gpt2-seed1`
/// and `runs/gpt2-seed2`. Returns the model's name if nothing is left that identifies the runs.
fn without_seed(runs: &[&Curve]) -> String {
    let names: Vec<Vec<Word>> = runs.iter().map(|run| words(&run.name)).collect();
    let first = &names[0];
    // Names with different numbers of words may share words by chance after the first difference.
    let is_aligned = names.iter().all(|words| words.len() == first.len());
    let mut kept: Vec<Word> = Vec::new();
    let mut left_out: Option<Word> = None;
    for (i, word) in first.iter().enumerate() {
        if names.iter().all(|words| words.get(i) == Some(word)) {
            let before = left_out
                .take()
                .map_or(word.before, |left_out| left_out.before);
            kept.push(Word { before, ..*word });
            continue;
        }
        if left_out.is_none() {
            left_out = kept.pop_if(|last| is_seed(last.text)).or(Some(*word));
        }
        if !is_aligned {
            break;
        }
    }
    let text: String = kept
        .iter()
        .flat_map(|word| [word.before, word.text])
        .collect();
    let last = first.last().map_or("", |word| word.text);
    // If the last components of the paths share no word, the name of the folder stands for the runs only if these
    // components are seeds.
    let folder = first.iter().rposition(|word| word.before.contains('/'));
    let own = &first[folder.unwrap_or(0)..];
    let has_own = own
        .iter()
        .any(|own| kept.iter().any(|word| word.at == own.at));
    let is_of_seed = last.chars().all(char::is_numeric) || last.to_lowercase().starts_with("seed");
    match (has_own || is_of_seed) && !text.is_empty() && !text.ends_with("runs") {
        true => text,
        false => runs[0].model.clone(),
    }
}

/// A word of a name, its index, and the characters before it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Word<'a> {
    at: usize,
    before: &'a str,
    text: &'a str,
}

/// Splits a name into words of letters and digits.
fn words(name: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut rest = name;
    while let Some(start) = rest.find(char::is_alphanumeric) {
        let end = rest[start..].find(|c: char| !c.is_alphanumeric());
        let end = end.map_or(rest.len(), |end| start + end);
        words.push(Word {
            at: words.len(),
            before: &rest[..start],
            text: &rest[start..end],
        });
        rest = &rest[end..];
    }
    words
}

/// Whether a word announces a seed.
fn is_seed(word: &str) -> bool {
    ["s", "seed", "seeds"].contains(&word.to_lowercase().as_str())
}

/// Explains which values are comparable between runs, and the meaning of the bands.
fn note(runs: &[Curve], (x, y): (&str, &str), mean: bool) -> String {
    let mut note = String::new();
    if have_different_tokens(runs) {
        let mut tokens: Vec<&str> = runs.iter().map(|run| run.token.as_str()).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let differ = match tokens.len() {
            1 => format!(
                "Tokens differ between the runs (always {}, with different ids)",
                tokens[0]
            ),
            _ => format!("Tokens differ between the runs ({})", tokens.join("; ")),
        };
        note += &match y {
            BITS_PER_BYTE => format!("{differ}, so losses are in bits per byte of text."),
            _ => format!("{differ}, so values per token are not comparable."),
        };
        if ["steps", "tokens"].contains(&x) {
            note += &format!(
                " The horizontal axis counts each run's own {x}; FLOPs and seconds are comparable."
            );
        }
    }
    note += &texts_note(runs, y);
    if mean {
        note += " Means over runs that differ only in their seed; bands are their range.";
    }
    note.trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(name: &str, settings: &str, losses: &[f64]) -> Curve {
        let row = |(step, loss): (usize, &f64)| Row {
            step,
            tokens: 10 * step as u64,
            valid_loss: Some(*loss),
            ..Row::default()
        };
        Curve {
            name: name.into(),
            settings: settings.into(),
            token: "a byte".into(),
            tokens: "bytes".into(),
            rows: losses
                .iter()
                .enumerate()
                .map(|(i, loss)| row((i + 1, loss)))
                .collect(),
            ..Curve::default()
        }
    }

    #[test]
    fn runs_that_differ_only_in_their_seed_are_averaged_on_request() {
        let runs = [
            curve("runs/a-1", "a", &[4.0, 3.0, 2.0]),
            curve("runs/b", "b", &[1.0]),
            // A run that was stopped.
            curve("runs/a-2", "a", &[5.0, 4.0]),
        ];
        assert_eq!(
            curves(&runs, "steps", "valid_loss", false)
                .unwrap()
                .series
                .len(),
            3
        );
        let chart = curves(&runs, "steps", "valid_loss", true).unwrap();
        let [a, b] = &chart.series[..] else {
            panic!("{chart:?}")
        };
        assert_eq!(
            (a.name.as_str(), b.name.as_str()),
            ("runs/a, mean of 2 seeds", "runs/b")
        );
        assert_eq!(a.points, [(1.0, 4.5), (2.0, 3.5)]);
        assert_eq!(a.band, [(1.0, 4.0, 5.0), (2.0, 3.0, 4.0)]);
        assert!(chart.note.contains("bands are their range"));
        let error = curves(&runs[..2], "steps", "valid_loss", true).unwrap_err();
        assert!(
            error.to_string().contains("no two of these runs"),
            "{error}"
        );
    }

    #[test]
    fn lines_of_means_have_different_names() {
        let of = |name: &str, settings: &str| curve(name, settings, &[1.0]);
        let runs = [
            of("pool/GPT-2-0a", "x"),
            of("pool/GPT-2-1b", "x"),
            of("pool/GPT-2-2c", "y"),
            of("pool/GPT-2-3d", "y"),
        ];
        let chart = curves(&runs, "tokens", "valid_loss", true).unwrap();
        let names: Vec<&str> = chart
            .series
            .iter()
            .map(|series| series.name.as_str())
            .collect();
        assert_eq!(
            names,
            [
                "pool/GPT-2-0a, mean of 2 seeds",
                "pool/GPT-2-2c, mean of 2 seeds"
            ]
        );
    }

    #[test]
    fn a_mean_is_named_by_what_its_runs_share() {
        for (runs, expected) in [
            (["runs/gpt2-1", "runs/gpt2-2"], "runs/gpt2"),
            (["runs/gpt2-seed1", "runs/gpt2-seed2"], "runs/gpt2"),
            (["runs/gpt2-seed-1", "runs/gpt2-seed-2"], "runs/gpt2"),
            (["runs/gpt2_s_1", "runs/gpt2_s_2"], "runs/gpt2"),
            (["runs/seed1-small", "runs/seed2-small"], "runs/small"),
            (["runs/1/gpt2", "runs/2/gpt2"], "runs/gpt2"),
            (["seed1/gpt2", "seed2/gpt2"], "gpt2"),
            (["runs/gpt2/1", "runs/gpt2/12"], "runs/gpt2"),
            (["pool/RMT--0a1b", "pool/RMT--93cf"], "pool/RMT"),
            (
                ["/data/runs/gpt2-1", "/data/runs/gpt2-2"],
                "/data/runs/gpt2",
            ),
            // Paths whose shared words do not identify the runs.
            (["runs/s1", "runs/s2"], "GPT-2"),
            (["out/a", "out/b"], "GPT-2"),
            (["runs/1", "runs/2"], "GPT-2"),
            (["a", "b"], "GPT-2"),
            (["/data/runs/one", "/data/runs/two"], "GPT-2"),
        ] {
            let of = |name: &str| Curve {
                model: "GPT-2".into(),
                ..curve(name, "a", &[1.0])
            };
            let runs = runs.map(of);
            let chart = curves(&runs, "steps", "valid_loss", true).unwrap();
            let expected = format!("{expected}, mean of 2 seeds");
            assert_eq!(chart.series[0].name, expected, "{}", runs[0].name);
        }
    }

    #[test]
    fn losses_of_different_texts_are_noted() {
        let of = |text: Option<&str>, tokens: &str| Curve {
            validated_on: text.map(str::to_owned),
            tokens: tokens.into(),
            ..curve("a", "a", &[1.0])
        };
        let note = |runs: &[Curve], y: &str| note(runs, ("steps", y), false);
        let said = "The runs were validated on different texts, so values on the vertical axis are not comparable.";
        let mut runs = [of(Some("x"), "bytes"), of(Some("y"), "bytes")];
        assert_eq!(note(&runs, "valid_loss"), said);
        assert_eq!(note(&runs, "train_loss"), "");
        for (run, text) in runs.iter_mut().zip(["x", "y"]) {
            run.trained_on = Some(text.into());
        }
        assert_eq!(
            note(&runs, "train_loss"),
            said.replace("validated", "trained")
        );
        for other in [of(Some("x"), "bytes"), of(None, "bytes")] {
            assert_eq!(note(&[runs[0].clone(), other], "valid_loss"), "");
        }
        // The hash of a text depends on the tokenizer, so only the name of the text can be compared.
        let mut others = [of(Some("x"), "bytes"), of(Some("z"), "bpe")];
        assert!(!note(&others, "valid_loss").contains("vertical"));
        (others[0].text, others[1].text) = ("a.txt".into(), "b.txt".into());
        let named = "(a.txt; b.txt); values on the vertical axis are comparable only if these are the same text.";
        for y in ["valid_loss", "train_loss", BITS_PER_BYTE] {
            assert!(note(&others, y).contains(named), "{y}");
        }
    }

    #[test]
    fn losses_of_different_tokens_are_in_bits_per_byte() {
        let mut runs = [
            curve("chars", "a", &[LN_2]),
            curve("bpe", "b", &[4.0 * LN_2]),
        ];
        assert!(!have_different_tokens(&runs));
        runs[1].tokens = "bpe".into();
        runs[1].token = "a part of a word".into();
        assert!(have_different_tokens(&runs));
        let note = curves(&runs, "tokens", "valid_loss", false).unwrap().note;
        assert!(
            note.contains("(a byte; a part of a word), so values per token are not comparable"),
            "{note}"
        );
        let error = curves(&runs, "tokens", BITS_PER_BYTE, false).unwrap_err();
        assert!(
            error.to_string().contains("whose bytes are known"),
            "{error}"
        );
        (runs[0].bytes_per_token, runs[1].bytes_per_token) = (Some(1.0), Some(4.0));
        let chart = curves(&runs, "tokens", BITS_PER_BYTE, false).unwrap();
        // A loss of ln 2 nats on a token of one byte is one bit per byte, and so is a loss of 4 ln 2 nats on a token of
        // four bytes.
        let points: Vec<_> = chart
            .series
            .iter()
            .map(|series| series.points[0].1)
            .collect();
        assert_eq!(points, [1.0, 1.0]);
        assert_eq!(chart.y.unit, "bits/byte");
        assert!(chart.note.contains(
            "in bits per byte of text. The horizontal axis counts each run's own tokens; FLOPs"
        ));
    }
}
