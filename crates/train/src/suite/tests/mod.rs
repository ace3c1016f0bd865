mod judge;
mod observe;
mod results;
mod run_suite;

use std::path::Path;

use residual_zoo_core::PlainModel;
use residual_zoo_gpt2::Gpt2Config;

use super::*;
use crate::Row;

type Gpt2Suite = Suite<PlainModel<Gpt2Config>>;

const SUITE: &str = r#"(
  title: "A question",
  about: "What is done.",
  train: (steps: 10),
  seeds: [1, 2],
  runs: [
    (name: "base", model: (n_layer: 1), published: {"valid_loss": 3.0}),
    (name: "wide", model: (n_layer: 1), set: ["train.batch=2"], vary: (field: "model.width, model.d_ff", name: "stream", over: [48, 96], times: 2)),
    (name: "later", model: (n_layer: 1), after: (run: "base", by: GrowFresh), seeds: [2]),
  ],
  columns: ["parameters", "valid_loss", "stream"],
  charts: [(title: "Loss", x: "stream", y: "valid_loss", fit: true, lines: ["wide"])],
  claims: [(says: "It is better", source: "Table 1", test: Lower(quantity: "valid_loss", run: "wide, stream 192", than: "base"))],
)"#;

fn suite() -> Gpt2Suite {
    Suite::parse(SUITE, Path::new("suite.ron")).unwrap()
}

fn changed(from: &str, to: &str) -> String {
    let text = SUITE.replace(from, to);
    assert_ne!(text, SUITE);
    let suite: Gpt2Suite = Suite::parse(&text, Path::new("suite.ron")).unwrap();
    suite.check(&[]).unwrap_err().to_string()
}

#[test]
fn a_suite_plans_its_runs_in_order_and_varies_what_it_says() {
    let suite = suite();
    suite.check(&[]).unwrap();
    let planned = suite.plan(&["train.steps=7".into()]).unwrap();
    let names: Vec<&str> = planned.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(
        names,
        ["base", "wide, stream 96", "wide, stream 192", "later"]
    );
    let config = planned[2].config.as_ref().unwrap();
    assert_eq!((config.model.0.width, config.model.0.d_ff), (96, Some(96)));
    assert_eq!((config.train.batch, config.train.steps), (2, 7));
    assert_eq!(planned[2].values["stream"], 192.0);
    assert_eq!(planned[2].line, "wide");
    assert!(planned[0].is_for(1) && planned[0].is_for(2));
    assert!(planned[3].is_for(2) && !planned[3].is_for(1));
    assert_eq!(
        planned[3].after.as_ref().unwrap().by,
        crate::FirstWeights::GrowFresh
    );
}

#[test]
fn what_a_suite_speaks_of_must_be_there() {
    let cases = [
        (r#"name: "base""#, r#"name: "later""#, "two called `later`"),
        (
            r#"(run: "base""#,
            r#"(run: "later""#,
            "no run `later` before `later`",
        ),
        (r#""parameters", "#, r#""parmeters", "#, "`parmeters`"),
        (r#"x: "stream""#, r#"x: "steam""#, "`steam`"),
        (r#"lines: ["wide"]"#, r#"lines: ["wid"]"#, "`wid`"),
        (r#"than: "base""#, r#"than: "bas""#, "`bas`"),
        (
            r#"Lower(quantity: "valid_loss""#,
            r#"Lower(quantity: "loss""#,
            "`loss`",
        ),
        (
            "model: (n_layer: 1), published",
            "published",
            "`base` has no model",
        ),
        ("seeds: [1, 2]", "seeds: []", "seeds"),
        ("seeds: [1, 2]", "seeds: [2, 2]", "one of them twice"),
        ("seeds: [2]", "seeds: [3]", "`later` has 3"),
        (
            r#"model: (n_layer: 1), after"#,
            r#"on_new_data: true, model: (n_layer: 1), after"#,
            "new_data",
        ),
    ];
    for (from, to, expected) in cases {
        let error = changed(from, to);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_suite_that_does_not_parse_says_where() {
    let text = SUITE.replace("steps: 10", "stops: 10");
    let error = Gpt2Suite::parse(&text, Path::new("suite.ron")).unwrap_err();
    assert!(error.to_string().starts_with("suite.ron:4:"), "{error}");
}

/// Observations of `run`, one for each seed from 1, with these values of `quantity`.
fn seeds(run: &str, quantity: &str, values: &[f64]) -> Vec<Observation> {
    let observe = |(seed, value): (u64, &f64)| Observation {
        run: run.into(),
        line: run.into(),
        seed: Some(seed),
        quantities: [(quantity.to_owned(), *value)].into(),
        rows: Vec::new(),
    };
    (1..).zip(values).map(observe).collect()
}
