mod finished;
mod index;
mod judge;
mod ladder;
mod ladder_chain;
mod observe;
mod results;
mod scales;
mod train_runs;

use std::path::Path;

use residual_zoo_backend::BackendKind;
use residual_zoo_core::PlainModel;
use residual_zoo_gpt2::Gpt2Config;
use residual_zoo_runs::Row;
use residual_zoo_train::FirstWeights;

use crate::plan::only;
use crate::*;

type Gpt2Experiment = Experiment<PlainModel<Gpt2Config>>;

const EXPERIMENT: &str = r#"(
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

fn experiment() -> Gpt2Experiment {
    parse(EXPERIMENT)
}

fn parse(text: &str) -> Gpt2Experiment {
    Experiment::parse(text, Path::new("experiment.ron")).unwrap()
}

fn changed(from: &str, to: &str) -> String {
    let text = EXPERIMENT.replace(from, to);
    assert_ne!(text, EXPERIMENT);
    parse(&text).check().unwrap_err().to_string()
}

#[test]
fn an_experiment_plans_its_runs_in_order_and_varies_what_it_says() {
    let experiment = experiment();
    experiment.check().unwrap();
    let planned = experiment.plan(&["train.steps=7".into()]).unwrap();
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
        FirstWeights::GrowFresh
    );
}

#[test]
fn what_an_experiment_refers_to_must_be_there() {
    let cases = [
        (r#"name: "base""#, r#"name: "later""#, "two called `later`"),
        (
            r#"(run: "base""#,
            r#"(run: "later""#,
            "no run `later` before `later`",
        ),
        (
            r#"by: GrowFresh"#,
            r#"with: "nothing""#,
            "no run `nothing` before `later`",
        ),
        (
            r#"by: GrowFresh"#,
            r#"with: "wide, stream 96""#,
            "`base` cannot be merged with `wide, stream 96`",
        ),
        (
            r#""parameters", "#,
            r#""parmeters", "#,
            "`columns`: nothing called `parmeters`",
        ),
        (r#"x: "stream""#, r#"x: "steam""#, "`steam`"),
        (
            r#"lines: ["wide"]"#,
            r#"lines: ["wid"]"#,
            "`charts[0]`: \"Loss\" draws `wid`, which is not a run (did you mean `wide`?); there are `base`, `later`, `wide`",
        ),
        (
            r#"than: "base""#,
            r#"than: "bas""#,
            "`claims[0]`: \"It is better\" refers to `bas`, which is not a run (did you mean `base`?); there are `base`, `later`, \
             `wide, stream 192`",
        ),
        (
            r#"than: "base""#,
            r#"than: "wide, stream 192""#,
            "compares `wide, stream 192` with itself",
        ),
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
        (
            r#""model.width, model.d_ff""#,
            r#""model.width, ""#,
            "`vary.field`: of `wide` is `model.width, `, with an empty path",
        ),
        (
            r#"{"valid_loss": 3.0}"#,
            r#"{"valid_loss": NaN}"#,
            "`published`: of `base` has NaN for `valid_loss`; give a finite number",
        ),
        (
            "published: {",
            "values: {\"seen\": inf}, published: {",
            "`values`: of `base` has inf for `seen`",
        ),
        (
            r#"test: Lower(quantity: "valid_loss", run: "wide, stream 192", than: "base")"#,
            r#"test: NotTested(" ")"#,
            "\"It is better\" is not tested, but gives no reason",
        ),
        ("seeds: [1, 2]", "seeds: [2, 2]", "`seeds` has 2 twice"),
        (
            "seeds: [1, 2]",
            "seeds: []",
            "`seeds` is empty; give at least one",
        ),
        ("seeds: [2]", "seeds: [3]", "`later` has 3"),
        ("seeds: [2]", "seeds: []", "`seeds` has none for `later`"),
        (
            r#"model: (n_layer: 1), after"#,
            r#"on_new_data: true, model: (n_layer: 1), after"#,
            "new_data",
        ),
        (
            "seeds: [1, 2],",
            "seeds: [1, 2], measure: RmtVariance,",
            "`measure` is given without `count`",
        ),
        (
            r#""train.batch=2""#,
            r#""train.seed=2""#,
            "`wide` sets `train.seed`",
        ),
        (
            r#""train.batch=2""#,
            r#""model.width=64""#,
            "`vary`: of `wide` replaces its `set` model.width=64",
        ),
        ("seeds: [2])", "seeds: [2, 2])", "`later` has 2 twice"),
        (
            r#"published: {"valid_loss": 3.0})"#,
            r#"published: {"valid_loss": 3.0}, seeds: [1])"#,
            "`later` has 2, which `base`, from whose weights it starts, does not have",
        ),
        (
            r#""train.batch=2""#,
            r#""data.valid_fraction=0.5""#,
            "different validation data",
        ),
        (
            r#"published: {"valid_loss""#,
            r#"published: {"valid_los""#,
            "`published`: of `base` has `valid_los`, which nothing measures, draws or claims (did you mean `valid_loss`?)",
        ),
        (
            r#"published: {"valid_loss""#,
            r#"values: {"valid_loss""#,
            "sets `valid_loss`, which is measured",
        ),
        (
            r#"published: {"valid_loss""#,
            r#"values: {"lowest_valid_loss""#,
            "sets `lowest_valid_loss`, which is measured",
        ),
        (r#"(name: "later""#, r#"(name: " ""#, r#"the name " ""#),
        (r#"(name: "later""#, r#"(name: "a\nb""#, "control character"),
        (
            r#"Lower(quantity: "valid_loss", run: "wide, stream 192", than: "base")"#,
            r#"Close(quantity: "valid_loss", run: "wide, stream 192", than: "base", within: -1)"#,
            "a tolerance below 0",
        ),
        (
            r#"run: "wide, stream 192", than: "base")"#,
            r#"run: "wide, stream 192", than: "base", within: -1)"#,
            "a tolerance below 0",
        ),
        (
            r#"Lower(quantity: "valid_loss", run: "wide, stream 192", than: "base")"#,
            r#"Between(quantity: "valid_loss", run: "base", low: 2, high: 1)"#,
            "a lower bound above the upper one",
        ),
    ];
    for (from, to, expected) in cases {
        let error = changed(from, to);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn bits_per_byte_compare_different_tokens_of_one_text() {
    let check = |quantity: &str, set: &str| {
        let text = EXPERIMENT.replace("train.batch=2", set);
        let claimed = format!("Lower(quantity: \"{quantity}\"");
        let text = text.replace("Lower(quantity: \"valid_loss\"", &claimed);
        parse(&text).check()
    };
    check("bits_per_byte", "data.tokenizer=Bpe(vocab_size: 300)").unwrap();
    for (quantity, set) in [
        ("valid_loss", "data.tokenizer=Bpe(vocab_size: 300)"),
        ("bits_per_byte", "data.valid_fraction=0.5"),
    ] {
        let error = check(quantity, set).unwrap_err().to_string();
        assert!(error.contains("different validation data"), "{error}");
    }
}

#[test]
fn what_is_measured_may_be_drawn_and_claimed() {
    let text = r#"(
      title: "", about: "", count: 65, measure: RecurrentCost,
      runs: [(name: "a", values: {"layers": 2, "sequence length": 8, "width": 4})],
      columns: ["operations", "FLOPs of a sequence", "layers"],
    )"#;
    let experiment = parse(text);
    experiment.check().unwrap();
    let other = parse(&text.replace("RecurrentCost", "RmtVariance"));
    let error = other.check().unwrap_err().to_string();
    assert!(error.contains("`operations`"), "{error}");
    let options = Options::new(Path::new("nowhere"), BackendKind::Flex);
    let planned = experiment.plan(&[]).unwrap();
    let outcome = experiment.run(&planned, &options).unwrap();
    // r(l² d + l d²) with r = 2, l = 8, d = 4.
    let [observed] = &outcome.observations[..] else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        (observed.get("operations"), observed.seed),
        (Some(768.0), None)
    );
    let lacking = parse(&text.replace(r#""width": 4"#, r#""depth": 4"#));
    let planned = lacking.plan(&[]).unwrap();
    let error = lacking.run(&planned, &options).unwrap_err().to_string();
    assert_eq!(error, "run `a` has no value `width`");
}

#[test]
fn a_part_of_the_runs_has_what_they_start_from() {
    let planned = experiment().plan(&[]).unwrap();
    let names = |asked: &str| {
        let kept = only(&[asked.to_owned()], &planned).unwrap();
        kept.into_iter().map(|run| run.name).collect::<Vec<_>>()
    };
    assert_eq!(names("later"), ["base", "later"]);
    assert_eq!(names("wide"), ["wide, stream 96", "wide, stream 192"]);
    assert_eq!(only(&[], &planned).unwrap().len(), 4);
    let error = only(&["narrow".to_owned()], &planned)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`--only narrow`: matches no run; the runs are `base`, `wide, stream 96`"),
        "{error}"
    );
}

#[test]
fn an_experiment_that_does_not_parse_says_where() {
    let text = EXPERIMENT.replace("steps: 10", "stops: 10");
    let error = Gpt2Experiment::parse(&text, Path::new("experiment.ron")).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("experiment.ron:4:"), "{error}");
}

/// Makes observations of `run` with these values of `quantity`, one per seed, counted from 1.
fn seeds(run: &str, quantity: &str, values: &[f64]) -> Vec<Observation> {
    let observe = |(seed, value): (u64, &f64)| Observation {
        run: run.into(),
        line: run.into(),
        seed: Some(seed),
        quantities: [(quantity.to_owned(), *value)].into(),
        ..Observation::default()
    };
    (1..).zip(values).map(observe).collect()
}
