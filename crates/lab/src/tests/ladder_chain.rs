//! Ladders on which runs start from the weights of other runs.

use residual_zoo_runs::parse_ron;

use super::*;

const CHAIN: &str = r#"(
  title: "Training on over sizes",
  data: (source: Synthetic(tokens: 2000, seed: 2)),
  train: (steps: 4, batch: 2, warmup: 2, validate_batches: 1, validate_every: 2),
  seeds: [1, 2],
  ladder: (
    baseline: "on",
    sizes: [
      (name: "small", set: ["model.width=8"], own: {"scratch": ["train.steps=8"]}),
      (name: "middle", set: ["model.width=12"], own: {"scratch": ["train.steps=8"]}),
      (name: "large", set: ["model.width=16", "train.steps=8"], own: {"start": ["train.steps=4"], "scratch": ["train.steps=12"]}),
    ],
    more_tokens: [1.5],
  ),
  sweep: (
    over: [(field: "train.learning_rate", values: Log(from: 1e-3, to: 1e-1, count: 3))],
    seeds: [11],
    tuned: true,
    rule: (fitted: ["small", "middle"], checked: "large"),
  ),
  runs: [
    (name: "start", model: (n_layer: 1, n_head: 1, context: 8)),
    (name: "on", model: (n_layer: 1, n_head: 1, context: 8), after: (run: "start")),
    (name: "wide", model: (n_layer: 1, n_head: 1, d_ff: 80, context: 8), after: (run: "start", by: GrowFresh)),
    (name: "scratch", model: (n_layer: 1, n_head: 1, context: 8)),
  ],
  columns: ["size", "valid_loss", "gain", "tokens"],
)"#;

#[test]
fn a_run_starts_from_another_run_at_its_own_size() {
    let experiment = parse(CHAIN);
    experiment.check().unwrap();
    let planned = experiment.plan(&[]).unwrap();
    let run = |name: &str| planned.iter().find(|run| run.name == name).unwrap();
    let start = |name: &str| run(name).after.as_ref().map(|after| after.run.as_str());
    assert_eq!(start("start, small"), None);
    assert_eq!(start("on, small"), Some("start, small"));
    assert_eq!(start("wide, large"), Some("start, large"));
    // 4 steps of the start and 4 by itself, times 1.5, are 4 and 8; 4 and 8, times 1.5, are 4 and 14.
    let steps = |name: &str| run(name).config.as_ref().unwrap().train.steps;
    assert_eq!(steps("on, small, 1.5 × the tokens"), 8);
    assert_eq!(steps("on, large, 1.5 × the tokens"), 14);
    let longer = start("on, large, 1.5 × the tokens");
    assert_eq!(longer, Some("start, large"));
    // The start has fewer tokens, so it has no size at which it is compared.
    let has_size = |name: &str| run(name).values.contains_key("size");
    assert!(!has_size("start, small") && has_size("on, small") && has_size("scratch, small"));
}

#[test]
fn a_budget_in_tokens_is_multiplied_with_the_tokens_of_the_start() {
    let text = CHAIN
        .replace(r#", own: {"scratch": ["train.steps=8"]}"#, "")
        .replace(r#"["model.width=16", "train.steps=8"], own: {"start": ["train.steps=4"], "scratch": ["train.steps=12"]}"#, r#"["model.width=16"]"#)
        .replace(r#"    (name: "scratch", model: (n_layer: 1, n_head: 1, context: 8)),"#, "")
        .replace("steps: 4, batch: 2", "tokens: 72, batch: 2");
    let planned = parse(&text).plan(&[]).unwrap();
    let longer = planned
        .iter()
        .find(|run| run.name == "on, large, 1.5 × the tokens");
    let longer = &longer.unwrap().config.as_ref().unwrap().train;
    // The start has 5 whole steps of 16 tokens.
    assert_eq!(longer.tokens, Some(1.5 * 72.0 + 0.5 * 80.0));
    assert_eq!(longer.steps, 10);
}

#[test]
fn a_chain_that_means_nothing_is_refused() {
    let refused = |from: &str, to: &str| {
        let text = CHAIN.replacen(from, to, 1);
        assert_ne!(text, CHAIN, "{from}");
        parse(&text).check().unwrap_err().to_string()
    };
    let error = refused(r#"after: (run: "start")"#, r#"after: (run: "none")"#);
    assert!(
        error.contains("there is no run `none` before `on`"),
        "{error}"
    );
    let error = refused(r#"after: (run: "start")"#, r#"after: (run: "on")"#);
    assert!(
        error.contains("there is no run `on` before `on`"),
        "{error}"
    );
    let error = refused(r#"["train.steps=12"]"#, r#"["train.steps=13"]"#);
    let expected = "`scratch` has 208 training tokens, with those of the runs from which they start, instead of the \
                    192 of the baseline at `large`";
    assert!(error.contains(expected), "{error}");
    let about = |test: &str| {
        let claims =
            format!("  claims: [(says: \"So\", source: \"none\", test: {test})],\n  columns:");
        refused("  columns:", &claims)
    };
    let error = about(r#"AtLeast(quantity: "gain", run: "on, small", value: 0)"#);
    assert!(
        error.contains("is about the gain of the baseline, `on`; it has none"),
        "{error}"
    );
    let expected =
        "is about the gain or size of a run from which others start, `start`; it has none";
    for test in [
        r#"Lower(quantity: "gain", run: "wide, small", than: "start, small")"#,
        r#"Falls(quantity: "valid_loss", along: "size", line: "start")"#,
    ] {
        let error = about(test);
        assert!(error.contains(expected), "{error}");
    }
    // With the baseline as the start, the other run has more tokens.
    let error = refused(r#"(run: "start", by: GrowFresh)"#, r#"(run: "on")"#);
    assert!(
        error.contains("`wide` has 192 training tokens, with"),
        "{error}"
    );
    // A start that reads other text could read what the others are validated on.
    for (set, expected) in [
        (
            "data.valid_fraction=0.3",
            "`start` has other data than the baseline at `small`",
        ),
        (
            "train.time=4",
            "`start` has 4 tokens in a sequence instead of the 8 of the baseline at `small`",
        ),
    ] {
        let set = format!(r#"(name: "start", set: ["{set}"],"#);
        let error = refused(r#"(name: "start","#, &set);
        assert!(error.contains(expected), "{error}");
    }
    let error = refused(
        r#"(run: "start", by: GrowFresh)"#,
        r#"(run: "start", with: "on")"#,
    );
    let expected = "`wide` has `after.with`, which a ladder does not allow";
    assert!(error.contains(expected), "{error}");
    let error = refused(
        r#"(name: "start","#,
        r#"(name: "start", values: {"size": 1},"#,
    );
    let expected = "`start` has a value `size`, which a ladder sets";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_claim_about_a_run_depends_on_its_start() {
    let experiment = parse(CHAIN);
    let planned = experiment.plan(&[]).unwrap();
    let depends_on = |test: &str, run: &str| {
        let claim = format!("(says: \"So\", source: \"none\", test: {test})");
        let claim: Claim = parse_ron(&claim, Path::new("claim.ron")).unwrap();
        experiment.depends_on(&claim, run, &planned)
    };
    let loss = r#"Lower(quantity: "valid_loss", run: "wide, small", than: "scratch, small")"#;
    assert!(depends_on(loss, "wide") && depends_on(loss, "start") && depends_on(loss, "scratch"));
    assert!(!depends_on(loss, "on"));
    // A gain is over the baseline, which has a start too.
    let gain = r#"AtLeast(quantity: "gain", run: "scratch, large", value: 0)"#;
    assert!(depends_on(gain, "on") && depends_on(gain, "start") && !depends_on(gain, "wide"));
    // That growing keeps the loss is true or false at any learning rate.
    let start = |than: &str, than_quantity: &str| {
        let quantities =
            format!(r#"quantity: "first_valid_loss", than_quantity: "{than_quantity}""#);
        format!(r#"Close({quantities}, run: "wide, large", than: "{than}, large", within: 0.1)"#)
    };
    assert!(!depends_on(&start("start", "valid_loss"), "start"));
    assert!(!depends_on(&start("start", "valid_loss"), "wide"));
    // Only this comparison is exempt.
    assert!(depends_on(&start("start", "train_loss"), "start"));
    assert!(depends_on(&start("on", "valid_loss"), "on"));
}

#[test]
fn gains_are_over_the_run_that_trained_on() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new(&directory.path().join("pool"), BackendKind::Flex);
    let path = Path::new("chain.ron");
    let results = run_experiment::<PlainModel<Gpt2Config>>(CHAIN, path, None, &options).unwrap();
    assert!(results.missing().is_empty(), "{:?}", results.missing());
    let found = |run: &str, seed: u64| {
        let mut all = results.observations().iter();
        all.find(|found| found.run == run && found.seed == Some(seed))
            .unwrap()
    };
    for run in ["wide", "scratch"] {
        for (size, tokens) in [("small", 128.0), ("large", 192.0)] {
            let [own, on] = [run, "on"].map(|run| found(&format!("{run}, {size}"), 2));
            let loss = |of: &Observation| of.get("valid_loss").unwrap();
            assert_eq!(own.get("gain").unwrap(), loss(on) - loss(own));
            assert_eq!(
                (own.get("tokens"), on.get("tokens")),
                (Some(tokens), Some(tokens))
            );
        }
    }
    assert_eq!(found("start, small", 2).get("gain"), None);
    // The tables of gains, of trends and of the rule, and no word about the start in the first two.
    let tables = results.ladder();
    assert_eq!(tables.len(), 3);
    let [gains, trends, rule] = [0, 1, 2].map(|i| format!("{:?}", tables[i]));
    assert!(
        !gains.contains("start, ") && !trends.contains("start, "),
        "{gains}"
    );
    assert!(rule.contains("start"), "{rule}");
}
