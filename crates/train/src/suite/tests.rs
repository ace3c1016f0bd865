use std::path::Path;

use residual_zoo_gpt2::Gpt2Config;

use super::*;
use crate::Row;

type Gpt2Suite = Suite<Gpt2Config>;

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
    assert_eq!((config.model.width, config.model.d_ff), (96, Some(96)));
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

fn judge(test: Test, observations: &[Observation]) -> (Verdict, String) {
    let claim = Claim {
        says: "so".into(),
        source: "Table 1".into(),
        published: String::new(),
        test,
    };
    let found = claim.judge(observations);
    (found.verdict, found.because)
}

fn lower(run: &str, than: &str) -> Test {
    Test::Lower {
        quantity: "valid_loss".into(),
        run: run.into(),
        than: than.into(),
    }
}

#[test]
fn runs_are_compared_seed_by_seed() {
    // The seeds differ by far more than the runs, which always differ by about 0.1.
    let mut found = seeds("new", "valid_loss", &[1.0, 2.0, 3.0]);
    found.extend(seeds("old", "valid_loss", &[1.11, 2.1, 3.09]));
    let (verdict, because) = judge(lower("new", "old"), &found);
    assert_eq!(verdict, Verdict::Holds, "{because}");
    assert_eq!(judge(lower("old", "new"), &found).0, Verdict::DoesNotHold);
    // Mean -0.1, s = 0.01: 4.303 · 0.01 / √3 = 0.0248.
    let expected = "new 2.0000, old 2.1000 nats/token: -0.1000 ± 0.0248 over 3 seeds";
    assert_eq!(because, expected);
}

#[test]
fn a_difference_that_the_seeds_do_not_agree_on_is_undecided() {
    let mut found = seeds("new", "valid_loss", &[1.0, 1.0, 1.0]);
    found.extend(seeds("old", "valid_loss", &[1.3, 1.1, 0.95]));
    assert_eq!(judge(lower("new", "old"), &found).0, Verdict::Undecided);
}

#[test]
fn one_seed_and_missing_runs_test_nothing() {
    let mut found = seeds("new", "valid_loss", &[1.0]);
    let (verdict, because) = judge(lower("new", "old"), &found);
    assert_eq!(
        (verdict, because.as_str()),
        (Verdict::NotTested, "old is missing")
    );
    found.extend(seeds("old", "valid_loss", &[2.0]));
    let (verdict, because) = judge(lower("new", "old"), &found);
    assert_eq!(verdict, Verdict::NotTested);
    assert!(because.contains("one seed"), "{because}");
}

#[test]
fn what_the_model_alone_decides_is_exact_with_any_seeds() {
    let mut found = seeds("new", "parameters", &[1e6]);
    found.extend(seeds("old", "parameters", &[2e6]));
    let test = Test::Lower {
        quantity: "parameters".into(),
        run: "new".into(),
        than: "old".into(),
    };
    let expected = (Verdict::Holds, "new 1M, old 2M".into());
    assert_eq!(judge(test, &found), expected);
}

#[test]
fn tokens_are_exact_but_where_the_length_of_samples_is_learned() {
    let test = || Test::Lower {
        quantity: "tokens".into(),
        run: "new".into(),
        than: "old".into(),
    };
    let mut found = seeds("new", "tokens", &[1e6]);
    found.extend(seeds("old", "tokens", &[2e6]));
    assert_eq!(judge(test(), &found).0, Verdict::Holds);
    found[0].quantities.insert("level".into(), 1.0);
    assert_eq!(judge(test(), &found).0, Verdict::NotTested);
}

#[test]
fn what_is_exact_needs_no_seeds() {
    let mut found = seeds("new", "parameters", &[1.0]);
    found.extend(seeds("old", "parameters", &[2.0]));
    for observation in &mut found {
        observation.seed = None;
    }
    let test = |run: &str, than: &str| Test::Lower {
        quantity: "parameters".into(),
        run: run.into(),
        than: than.into(),
    };
    assert_eq!(judge(test("new", "old"), &found).0, Verdict::Holds);
    assert_eq!(judge(test("old", "new"), &found).0, Verdict::DoesNotHold);
}

/// A line of runs called `line, X` at each x.
fn line(values: &[(f64, [f64; 3])]) -> Vec<Observation> {
    let run = |(x, losses): &(f64, [f64; 3])| {
        let mut found = seeds(&format!("line, {x}"), "valid_loss", losses);
        for observation in &mut found {
            observation.line = "line".into();
            observation.quantities.insert("size".into(), *x);
        }
        found
    };
    values.iter().flat_map(run).collect()
}

fn falls() -> Test {
    Test::Falls {
        quantity: "valid_loss".into(),
        along: "size".into(),
        line: "line".into(),
    }
}

#[test]
fn a_loss_falls_along_a_line_by_its_slope_for_each_doubling() {
    let found = line(&[
        (1.0, [3.0, 3.1, 3.2]),
        (2.0, [2.9, 3.0, 3.1]),
        (4.0, [2.8, 2.9, 3.01]),
    ]);
    let (verdict, because) = judge(falls(), &found);
    assert_eq!(verdict, Verdict::Holds, "{because}");
    let expected =
        "-0.0983 ± 0.0072 nats/token for each doubling over 3 seeds; 6 of 6 steps go down";
    assert_eq!(because, expected);
    // A fourth seed that has but one size so far changes nothing.
    let mut going_on = found.clone();
    going_on.push(Observation {
        seed: Some(4),
        ..found[0].clone()
    });
    assert_eq!(judge(falls(), &going_on).1, expected);
    let rising: Vec<_> = found
        .into_iter()
        .map(|mut observation| {
            *observation.quantities.get_mut("valid_loss").unwrap() *= -1.0;
            observation
        })
        .collect();
    assert_eq!(judge(falls(), &rising).0, Verdict::DoesNotHold);
}

#[test]
fn an_exponent_is_that_of_the_power_law() {
    // The line bends, for every seed alike: more of them say no more of its slope.
    let at = |x: f64, bend: f64| (x, [1.0, 1.01, 0.99].map(|noise| bend * noise * x.powf(0.5)));
    let found = line(&[at(1.0, 1.0), at(10.0, 1.05), at(100.0, 1.0)]);
    let test = |low, high| Test::Exponent {
        quantity: "valid_loss".into(),
        along: "size".into(),
        line: "line".into(),
        low,
        high,
    };
    let (verdict, because) = judge(test(0.3, 0.7), &found);
    assert_eq!(verdict, Verdict::Holds);
    assert!(
        because.starts_with("exponent 0.500 ± 0.16 over 3 sizes, "),
        "{because}"
    );
    assert_eq!(judge(test(0.5, 0.55), &found).0, Verdict::Undecided);
    assert_eq!(judge(test(0.7, 0.8), &found).0, Verdict::DoesNotHold);
    let again = found.iter().cloned().map(|found| Observation {
        seed: found.seed.map(|seed| seed + 10),
        ..found
    });
    let twice: Vec<_> = found.iter().cloned().chain(again).collect();
    assert_eq!(judge(test(0.3, 0.7), &twice).1, because);
}

/// A run whose validation loss falls by `step` for every 100 tokens, from 4.
fn curve(run: &str, seed: u64, step: f64) -> Observation {
    let row = |i: u64| Row {
        step: i as usize,
        tokens: 100 * i,
        valid_loss: Some(4.0 - step * i as f64),
        ..Row::default()
    };
    Observation {
        run: run.into(),
        line: run.into(),
        seed: Some(seed),
        quantities: [("valid_loss".to_owned(), 4.0 - step * 10.0)].into(),
        rows: (0..=10).map(row).collect(),
    }
}

#[test]
fn a_run_is_sooner_by_where_it_reaches_the_last_loss_of_the_other() {
    let test = |run: &str, than: &str| Test::Sooner {
        axis: Axis::Tokens,
        run: run.into(),
        than: than.into(),
    };
    let found: Vec<_> = [1, 2, 3]
        .into_iter()
        .flat_map(|seed| {
            let noise = 0.001 * seed as f64;
            [curve("fast", seed, 0.16 + noise), curve("slow", seed, 0.1)]
        })
        .collect();
    // The slow one ends at 3, which the fast one reaches after 1/0.16 = 6.2 of its ten rows.
    assert_eq!(found[0].reaches(Axis::Tokens, 3.0).unwrap().round(), 621.0);
    let (verdict, because) = judge(test("fast", "slow"), &found);
    assert_eq!(verdict, Verdict::Holds);
    assert!(because.starts_with("after 61.7 ± "), "{because}");
    let (verdict, because) = judge(test("slow", "fast"), &found);
    assert_eq!(verdict, Verdict::DoesNotHold);
    assert!(because.contains("does not reach"), "{because}");
}

#[test]
fn bounds_ask_every_seed() {
    let found = seeds("copy", "valid_accuracy", &[0.995, 0.97]);
    let test = |value| Test::AtLeast {
        quantity: "valid_accuracy".into(),
        run: "copy".into(),
        value,
    };
    assert_eq!(judge(test(0.96), &found).0, Verdict::Holds);
    assert_eq!(judge(test(0.99), &found).0, Verdict::Undecided);
    let (verdict, because) = judge(test(0.999), &found);
    assert_eq!(verdict, Verdict::DoesNotHold);
    assert_eq!(because, "99.5, 97.0 %; asked for at least 99.9");
    let between = |low, high| Test::Between {
        quantity: "valid_accuracy".into(),
        run: "copy".into(),
        low,
        high,
    };
    assert_eq!(judge(between(0.9, 1.0), &found).0, Verdict::Holds);
    assert_eq!(judge(between(0.98, 1.0), &found).0, Verdict::Undecided);
}

#[test]
fn runs_are_close_when_the_interval_is_within() {
    let mut found = seeds("a", "valid_loss", &[1.0, 1.01, 0.99]);
    found.extend(seeds("b", "valid_loss", &[1.0, 1.005, 0.995]));
    let test = |within| Test::Close {
        quantity: "valid_loss".into(),
        run: "a".into(),
        than: "b".into(),
        than_quantity: None,
        within,
    };
    assert_eq!(judge(test(0.05), &found).0, Verdict::Holds);
    assert_eq!(judge(test(0.01), &found).0, Verdict::Undecided);
    found.extend(seeds("c", "valid_loss", &[2.0, 2.01, 1.99]));
    let far = Test::Close {
        quantity: "valid_loss".into(),
        run: "a".into(),
        than: "c".into(),
        than_quantity: None,
        within: 0.05,
    };
    assert_eq!(judge(far, &found).0, Verdict::DoesNotHold);
}

#[test]
fn values_and_ratios_are_set_beside_what_was_printed() {
    let mut found = seeds("a", "parameters", &[300.0]);
    found.extend(seeds("b", "parameters", &[400.0]));
    let ratio = |value| Test::Ratio {
        quantity: "parameters".into(),
        run: "a".into(),
        than: "b".into(),
        value,
        within: 0.01,
    };
    assert_eq!(judge(ratio(0.75), &found).0, Verdict::Holds);
    assert_eq!(judge(ratio(0.5), &found).0, Verdict::DoesNotHold);
    let is = |value| Test::Is {
        quantity: "parameters".into(),
        run: "a".into(),
        value,
        within: 1.0,
    };
    assert_eq!(judge(is(300.0), &found).0, Verdict::Holds);
    assert_eq!(judge(is(305.0), &found).0, Verdict::DoesNotHold);
    let (verdict, because) = judge(Test::NotTested("needs images".into()), &found);
    assert_eq!(
        (verdict, because.as_str()),
        (Verdict::NotTested, "needs images")
    );
}

fn results(missing: &[&str]) -> Results {
    let suite = suite();
    let planned = suite.plan(&[]).unwrap();
    let mut observations = seeds("base", "valid_loss", &[3.0, 3.2]);
    for (name, x) in [("wide, stream 96", 96.0), ("wide, stream 192", 192.0)] {
        let mut found = seeds(name, "valid_loss", &[300.0 / x, 301.0 / x]);
        for observation in &mut found {
            observation.line = "wide".into();
            observation.quantities.insert("stream".into(), x);
        }
        observations.extend(found);
    }
    let outcome = Outcome {
        observations,
        missing: missing.iter().map(|text| (*text).into()).collect(),
        stopped: false,
        seconds: 61.0,
    };
    let origin = Origin {
        name: "question".into(),
        scale: "cpu".into(),
        command: "run it".into(),
        hash: "abc".into(),
        machine: "a machine".into(),
        backend: "flex".into(),
        commit: Some("def".into()),
    };
    Results::new(&suite, &planned, outcome, origin)
}

#[test]
fn results_have_means_spreads_and_what_was_printed() {
    let table = results(&[]).table();
    let titles: Vec<&str> = table.columns.iter().map(|c| c.title.as_str()).collect();
    let expected = [
        "run",
        "parameters",
        "valid loss",
        "valid loss, printed",
        "stream",
    ];
    assert_eq!(titles, expected);
    assert_eq!(
        table.rows[0],
        ["base", "–", "3.1000 ± 0.1414", "3.0000", "–"]
    );
    assert_eq!(table.rows[2][0], "wide, stream 192");
    assert_eq!(table.rows[2][4], "192");
    assert_eq!(table.rows[3], ["later", "–", "–", "", "–"]);
}

#[test]
fn markdown_and_csv_and_json_carry_the_same() {
    let results = results(&["later, seed 1: the disk is full"]);
    let markdown = results.to_markdown("question-");
    for expected in [
        "# A question",
        "Missing are later, seed 1: the disk is full.",
        "| It is better (Table 1) | holds |",
        "| base | – | 3.1000 ± 0.1414 | 3.0000 | – |",
        "![Loss](question-1.svg)",
        "run it\n",
        "configuration abc",
        "commit def",
    ] {
        assert!(markdown.contains(expected), "{expected}\n{markdown}");
    }
    let csv = results.to_csv();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "run,seed,stream,valid_loss");
    assert_eq!(lines[1], "base,1,,3");
    assert_eq!(lines[3], "\"wide, stream 96\",1,96,3.125");
    let json = serde_json::to_value(&results).unwrap();
    assert_eq!(json["claims"][0]["verdict"], "holds");
    assert_eq!(json["observations"].as_array().unwrap().len(), 6);
    assert_eq!(json["missing"][0], "later, seed 1: the disk is full");
}

#[test]
fn a_chart_of_a_line_has_its_fit_and_its_range() {
    let chart = &results(&[]).charts()[0];
    let names: Vec<&str> = chart
        .series
        .iter()
        .map(|series| series.name.as_str())
        .collect();
    assert_eq!(names, ["wide", "wide, fitted"]);
    assert!(
        chart.note.contains("valid loss ∝ stream^(-1.00 ± "),
        "{}",
        chart.note
    );
    assert_eq!(chart.series[0].band.len(), 2);
    let svg = chart.to_svg();
    assert!(svg.starts_with("<svg") && svg.contains("prefers-color-scheme"));
    assert!(svg.contains("wide, fitted"));
}

#[test]
fn what_was_printed_is_drawn_as_a_point_or_across() {
    let mut spec: ChartSpec =
        ron::from_str(r#"(title: "", x: "tokens", y: "valid_accuracy", printed: true)"#).unwrap();
    let row = |name: &str, published: &[(&str, f64)]| results::PlannedRow {
        name: name.into(),
        line: name.into(),
        published: published
            .iter()
            .map(|(k, v)| ((*k).to_owned(), *v))
            .collect(),
    };
    let rows = [
        row("both", &[("tokens", 1e9), ("valid_accuracy", 0.47)]),
        row("across", &[("valid_accuracy", 0.39)]),
        row("neither", &[("tokens", 1e9)]),
    ];
    let chart = spec.chart(&rows, &[]);
    let names: Vec<_> = chart
        .series
        .iter()
        .map(|s| (s.name.as_str(), s.points.as_slice()))
        .collect();
    assert_eq!(names, [("both, printed", [(1e9, 47.0)].as_slice())]);
    assert_eq!(
        chart.references,
        [crate::report::Reference::new("across, printed", 39.0)]
    );

    spec.printed = false;
    let chart = spec.chart(&rows, &[]);
    assert!(chart.series.is_empty() && chart.references.is_empty());
}

#[test]
fn every_run_is_a_curve_from_where_it_was_trained() {
    let spec: ChartSpec =
        ron::from_str(r#"(title: "", x: "tokens", y: "valid_loss", curves: true)"#).unwrap();
    let run = |size: usize| results::PlannedRow {
        name: format!("sizes, {size}"),
        line: "sizes".into(),
        published: BTreeMap::new(),
    };
    let observed = |size: usize, seed: u64| Observation {
        run: format!("sizes, {size}"),
        line: "sizes".into(),
        seed: Some(seed),
        quantities: BTreeMap::new(),
        rows: (0..=size)
            .map(|step| Row {
                step,
                tokens: 10 * step as u64,
                valid_loss: Some((10 * size - step) as f64 + seed as f64),
                ..Row::default()
            })
            .collect(),
    };
    let observations = [
        observed(1, 1),
        observed(1, 3),
        observed(2, 1),
        observed(2, 3),
    ];
    let chart = spec.chart(&[run(1), run(2)], &observations);
    let points: Vec<_> = chart.series.iter().map(|s| s.points.as_slice()).collect();
    assert_eq!(
        points,
        [[(10.0, 11.0)].as_slice(), &[(10.0, 21.0), (20.0, 20.0)]]
    );
    assert_eq!(chart.series[1].name, "sizes, 2");
    assert_eq!(
        chart.series[1].band,
        [(10.0, 20.0, 22.0), (20.0, 19.0, 21.0)]
    );
    assert_ne!(chart.series[0].group, chart.series[1].group);
}

#[test]
fn totals_count_the_run_before() {
    let row = |step: usize, tokens, loss| Row {
        step,
        tokens,
        flops: tokens as f64,
        seconds: step as f64,
        valid_loss: Some(loss),
        ..Row::default()
    };
    let summary = |rows: Vec<Row>| crate::Summary {
        rows,
        cost: Default::default(),
        train_loss: 1.0,
        valid_loss: 1.0,
        valid_accuracy: 0.5,
        tokens_per_second: 1.0,
        stopped: false,
        checkpoint: Default::default(),
    };
    let (quantities, rows) =
        observe::of_summary(&summary(vec![row(0, 0, 4.0), row(10, 100, 2.0)]), None);
    assert_eq!(
        (
            quantities["first_valid_loss"],
            quantities["lowest_valid_loss"]
        ),
        (4.0, 2.0)
    );
    assert_eq!(
        (quantities["step_time"], quantities["tokens"]),
        (1.0, 100.0)
    );
    assert_eq!(quantities.get("level"), None);
    let mut row_of_curriculum = row(20, 200, 1.0);
    row_of_curriculum.level = Some(2);
    let (quantities_of_it, _) = observe::of_summary(&summary(vec![row_of_curriculum]), None);
    assert_eq!(quantities_of_it["level"], 2.0);
    let before = Observation {
        rows,
        ..Observation::default()
    };
    let second = summary(vec![row(0, 0, 2.0), row(5, 50, 1.0)]);
    let (quantities, rows) = observe::of_summary(&second, Some(&before));
    assert_eq!((quantities["tokens"], quantities["seconds"]), (150.0, 15.0));
    assert_eq!(rows[0].tokens, 100);
    // A step takes as long as it takes.
    assert_eq!(quantities["step_time"], 1.0);
}

#[test]
fn what_is_learned_is_the_mean_of_single_numbers_by_the_end_of_their_names() {
    let scalars = [("a.alpha", 0.25), ("b.alpha", 0.75), ("tau", 2.0)];
    let scalars = scalars.map(|(name, value)| (name.to_owned(), value)).into();
    let found = observe::learned(&scalars);
    assert_eq!((found["learned alpha"], found["learned tau"]), (0.5, 2.0));
}
