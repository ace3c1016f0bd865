//! One file for several scales.

use std::path::Path;

use super::Gpt2Experiment;
use crate::{Error, ExperimentFile};

const FILE: &str = r#"// A comment.
(
  title: "A question", // (of (brackets
  model: (n_layer: 2, context: 16),
  train: (steps: 10, warmup: 2),
  runs: [
    (name: "base, 4 layers", model: (width: 32), published: {"valid_loss": 3.0}, scales: (
      small: (name: "base, 1 layer", model: (n_layer: 1), published: {}),
    )),
    (name: "later", model: (width: 64, n_layer: 3), after: (run: "base, 4 layers"), scales: (large: (set: ["train.steps=7"]))),
    // Only one scale has this run.
    (name: "extra", model: (), scales: (small: None)),
  ],
  columns: ["valid_loss"],
  charts: [(title: "Loss", x: "tokens", y: "valid_loss", scales: (large: None))],
  claims: [
    (
      says: "It is (not) better [here]", source: "Table 1",
      test: Lower(quantity: "valid_loss", run: "later", than: "base, 4 layers"),
      scales: (large: (says: "It is better", test: Lower(within: 0.5))),
    ),
  ],
  scales: (
    small: (judge: false, train: (steps: 3)),
    large: (seeds: [1, 2], model: (width: 48)),
  ),
)
"#;

fn at(text: &str, scale: Option<&str>) -> Result<Gpt2Experiment, Error> {
    let file = ExperimentFile::new(text, Path::new("file.ron"))?;
    file.at(scale)?.parse()
}

/// Makes the same file without scales.
fn plain(fields: &str) -> Gpt2Experiment {
    let text = format!("(title: \"A question\", columns: [\"valid_loss\"], {fields})");
    at(&text, None).unwrap()
}

#[test]
fn a_scale_changes_only_what_it_names() {
    let file = ExperimentFile::new(FILE, Path::new("file.ron")).unwrap();
    assert_eq!(file.scales(), ["small", "large"]);
    assert!(ExperimentFile::is_experiment(FILE) && !ExperimentFile::is_experiment("(model: ())"));
    let small = plain(
        r#"judge: false, train: (steps: 3, warmup: 2),
        runs: [
          (name: "base, 1 layer", model: (n_layer: 1, context: 16, width: 32)),
          (name: "later", model: (n_layer: 3, context: 16, width: 64), after: (run: "base, 1 layer")),
        ],
        charts: [(title: "Loss", x: "tokens", y: "valid_loss")],
        claims: [(says: "It is (not) better [here]", source: "Table 1",
          test: Lower(quantity: "valid_loss", run: "later", than: "base, 1 layer"))]"#,
    );
    assert_eq!(at(FILE, Some("small")).unwrap(), small);
    // Without a name, the first scale is used.
    assert_eq!(at(FILE, None).unwrap(), small);
    let large = plain(
        r#"seeds: [1, 2], train: (steps: 10, warmup: 2),
        runs: [
          (name: "base, 4 layers", model: (n_layer: 2, context: 16, width: 32), published: {"valid_loss": 3.0}),
          (name: "later", model: (n_layer: 3, context: 16, width: 64), after: (run: "base, 4 layers"), set: ["train.steps=7"]),
          (name: "extra", model: (n_layer: 2, context: 16, width: 48)),
        ],
        claims: [(says: "It is better", source: "Table 1",
          test: Lower(quantity: "valid_loss", run: "later", than: "base, 4 layers", within: 0.5))]"#,
    );
    assert_eq!(at(FILE, Some("large")).unwrap(), large);
}

/// Returns the error of the file after `from` is replaced by `to`, and the number of the changed line.
fn error(from: &str, to: &str, scale: &str) -> (String, usize) {
    let (before, _) = FILE.split_once(from).unwrap();
    let text = FILE.replacen(from, to, 1);
    let error = at(&text, Some(scale)).unwrap_err().to_string();
    (error, before.matches('\n').count() + 1)
}

#[test]
fn errors_have_the_place_in_the_file() {
    for (from, to, scale, says) in [
        ("n_layer: 2,", "n_layers: 2,", "large", "n_layers"),
        ("n_layer: 3", "n_leyer: 3", "small", "n_leyer"),
        ("judge: false", "jugde: false", "small", "jugde"),
        ("steps: 3", "steps: many", "small", "steps"),
        (
            "says: \"It is better",
            "say: \"It is better",
            "large",
            "say",
        ),
        (
            "large: None",
            "lerge: None",
            "small",
            "`lerge` is not a scale of the experiment; the scales are small, large",
        ),
        (
            "scales: (small: None)",
            "scales: (small: None, small: None)",
            "large",
            "`small` is given twice",
        ),
        (
            "small: None",
            "small: 3",
            "small",
            "`3` has no fields with names",
        ),
        (
            "(n_layer: 2, context: 16)",
            "Gpt2(n_layer: 2)",
            "small",
            "`Gpt2` is an architecture",
        ),
        ("[\"valid_loss\"],", "[\"valid_loss\",", "small", ""),
    ] {
        let (error, line) = error(from, to, scale);
        // An unclosed bracket is noticed in a later line.
        let is_there = says.is_empty() || error.starts_with(&format!("file.ron:{line}:"));
        assert!(is_there && error.contains(says), "{line} {says}: {error}");
    }
    // The position is exact to the character.
    let (error, _) = error("steps: 3", "steps: many", "small");
    assert!(error.starts_with("file.ron:24:40: "), "{error}");
}

/// A file with a field in each line, and a closing bracket in the line after the last field of a value.
const LINES: &str = r#"(
  title: "A question",
  model: (width: 32),
  runs: [
    (
      name: "base",
      model: (n_layer: 1),
      vary: (
        field: "train.batch",
        name: "batch",
        over: [1],
      ),
      scales: (large: (name: "first")),
    ),
    (
      name: "later",
      after: (
        run: "base",
        by: Grow,
      ),
    ),
  ],
  columns: [],
  charts: [
    (
      title: "Loss",
      x: "tokens",
      y: "valid_loss",
      lines: ["base"],
    ),
  ],
  claims: [
    (
      says: "It is better",
      source: "Table 1",
      test: Lower(
        quantity: "valid_loss",
        beyond: (
          run: "later",
          than: "base",
        ),
        run: "later",
        than: "base",
      ),
      scales: (large: (says: "It is")),
    ),
  ],
  scales: (
    small: (seeds: [1, 2]),
    large: (train: (steps: 3)),
  ),
)
"#;

#[test]
fn a_missing_or_unknown_field_is_told_where_its_value_is() {
    let without_scales =
        |line: &str| !line.contains("scales: (large") && !line.contains("model: (width");
    let plain: Vec<&str> = LINES.lines().filter(|line| without_scales(line)).collect();
    let (plain, _) = plain
        .join("\n")
        .split_once("  scales: (")
        .map(|(a, b)| (a.to_owned() + ")", b.len()))
        .unwrap();
    for (text, scale) in [
        (LINES, Some("small")),
        (LINES, Some("large")),
        (&plain, None),
    ] {
        assert!(at(text, scale).is_ok());
        let lines: Vec<&str> = text.lines().collect();
        let mut missing = Vec::new();
        for (i, line) in lines.iter().enumerate() {
            let indent = |line: &str| line.len() - line.trim_start().len();
            let Some((field, _)) = line.trim().split_once(": ").filter(|_| indent(line) > 4) else {
                continue;
            };
            let error = |to: &str| {
                let mut lines = lines.clone();
                lines[i] = to;
                at(&lines.join("\n"), scale)
                    .err()
                    .map(|error| error.to_string())
            };
            let unknown = error(&line.replacen(field, "fild", 1)).unwrap();
            let is_there = unknown.starts_with(&format!("file.ron:{}:", i + 1));
            assert!(
                is_there && unknown.contains("fild"),
                "{scale:?} {i} {field}: {unknown}"
            );
            // Only values on a single line are removed.
            if let Some(error) = error("").filter(|_| line.ends_with(',')) {
                let end = lines[i..]
                    .iter()
                    .position(|line| indent(line) < indent(lines[i]))
                    .unwrap();
                let told = format!("file.ron:{}:", i + end + 1);
                let is_there =
                    error.starts_with(&told) && error.contains(&format!("`{field}` is missing"));
                assert!(is_there, "{scale:?} {told} {field}: {error}");
                missing.push(field);
            }
        }
        let claim = ["says", "source", "quantity", "run", "than", "run", "than"];
        let all = [
            &["name", "name", "over", "name", "run", "title", "x", "y"][..],
            &claim,
        ]
        .concat();
        // The scale gives the first name and the sentence of the claim.
        let given = |field: &&str| scale != Some("large") || *field != "says";
        let all: Vec<&str> = all
            .into_iter()
            .filter(given)
            .skip(usize::from(scale == Some("large")))
            .collect();
        assert_eq!(missing, all, "{scale:?}");
    }
}

#[test]
fn a_scale_that_the_file_lacks_names_those_that_it_has() {
    let error = |text: &str, scale| at(text, Some(scale)).unwrap_err().to_string();
    assert_eq!(
        error(FILE, "larger"),
        "`--scale larger` is not a scale of the experiment (did you mean `large`?); give one of small, large"
    );
    let none = error("(title: \"\", runs: [], columns: [])", "large");
    assert!(none.contains("the file has no scales"), "{none}");
    let left_out = FILE.replace("large: (seeds", "large: None, other: (seeds");
    let left_out = error(&left_out, "large");
    assert!(left_out.contains("`large` is None"), "{left_out}");
}

#[test]
fn any_damage_is_read_or_refused() {
    for (at_byte, _) in FILE.char_indices() {
        for new in ["", "(", "\"", "/*"] {
            let text = format!("{}{new}{}", &FILE[..at_byte], &FILE[at_byte + 1..]);
            if let Err(error) = at(&text, Some("large")) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn no_scale_has_the_name_of_another_kind_of_report() {
    for taken in ["only", "sweep"] {
        let text =
            format!("(\n  runs: [],\n  scales: (\n    small: (),\n    {taken}: (),\n  ),\n)");
        let error = ExperimentFile::new(&text, Path::new("file.ron")).unwrap_err();
        let says = format!("file.ron:5:5: `{taken}` cannot be the name of a scale");
        assert!(error.to_string().starts_with(&says), "{error}");
    }
}

#[test]
fn a_scale_with_steps_and_a_file_with_tokens_have_two_lengths() {
    let both = FILE.replace("train: (steps: 10,", "train: (tokens: 1e5,");
    // The large scale has only the tokens.
    at(&both, Some("large")).unwrap();
    let error = at(&both, Some("small")).unwrap_err().to_string();
    assert!(
        error.contains("train.steps` is 3, but `train.tokens` = 100000"),
        "{error}"
    );
    let one = both.replace("train: (steps: 3)", "train: (steps: 3, tokens: None)");
    assert_eq!(at(&one, Some("small")).unwrap().train.steps, 3);
}
