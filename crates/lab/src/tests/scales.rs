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

/// The same file without scales.
fn plain(fields: &str) -> Gpt2Experiment {
    let text = format!("(title: \"A question\", columns: [\"valid_loss\"], {fields})");
    at(&text, None).unwrap()
}

#[test]
fn a_scale_changes_only_what_it_names() {
    let file = ExperimentFile::new(FILE, Path::new("file.ron")).unwrap();
    assert_eq!(file.scales(), ["small", "large"]);
    assert!(ExperimentFile::is_one(FILE) && !ExperimentFile::is_one("(model: ())"));
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
    // Without a name, the first scale.
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

#[test]
fn errors_have_the_place_in_the_file() {
    let line = |text: &str| {
        let (at, _) = FILE.split_once(text).unwrap();
        at.lines().count().max(1)
    };
    for (from, to, scale, says) in [
        ("n_layer: 2,", "n_layers: 2,", "large", "n_layers"),
        (
            "(width: 64, n_layer",
            "(width: 64, n_leyer",
            "small",
            "n_leyer",
        ),
        ("judge: false", "jugde: false", "small", "jugde"),
        ("steps: 3", "steps: many", "small", "steps"),
        (
            "says: \"It is better\"",
            "say: \"It is better\"",
            "large",
            "say",
        ),
        (
            "large: None",
            "lerge: None",
            "small",
            "`lerge` is not a scale of the experiment",
        ),
        (
            "small: None",
            "small: 3",
            "small",
            "`3` has no fields with names",
        ),
        ("scales: (large: (set", "scales: [(set", "small", ""),
        ("[\"valid_loss\"],", "[\"valid_loss\",", "small", ""),
    ] {
        let text = FILE.replacen(from, to, 1);
        let error = at(&text, Some(scale)).unwrap_err().to_string();
        let place = format!("file.ron:{}:", line(from));
        let is_there = error.starts_with(&place) || says.is_empty();
        assert!(is_there && error.contains(says), "{place} {says}: {error}");
        // The run is fine at a scale that leaves it out.
        assert!(error.starts_with("file.ron:"), "{error}");
    }
    let error = at(FILE, Some("larger")).unwrap_err().to_string();
    assert_eq!(
        error,
        "`--scale larger`: is not a scale of the experiment (did you mean `large`?); give one of small, large"
    );
    let error = at("(title: \"\", runs: [], columns: [])", Some("large")).unwrap_err();
    assert!(
        error.to_string().contains("the file has no scales"),
        "{error}"
    );
    let named = FILE.replace(
        "model: (n_layer: 2, context: 16)",
        "model: Gpt2(n_layer: 2)",
    );
    let error = at(&named, None).unwrap_err().to_string();
    assert!(
        error.starts_with("file.ron:4:10: `Gpt2` is an architecture"),
        "{error}"
    );
    let left_out = FILE.replace("large: (seeds", "large: None, other: (seeds");
    let error = at(&left_out, Some("large")).unwrap_err().to_string();
    assert!(
        error.contains("large: ") || error.contains("`large`"),
        "{error}"
    );
}
