use std::collections::BTreeMap;

use residual_zoo_data::{Corpus, Source, SyntheticConfig};
use residual_zoo_report::{Reference, Tone};
use residual_zoo_runs::parse_ron;

use super::*;
use crate::Missing;
use crate::charts::RunRow;
use crate::facts::data_table;
use crate::sweep::Value;

pub(super) fn results(missing: &[&str]) -> Results {
    results_of(&experiment(), missing)
}

/// Makes a missing run, from `run, seed 1: why` or `run: why`.
fn missing_run(text: &str) -> Missing {
    let (run, why) = text.split_once(": ").unwrap();
    let (run, seed) = match run.split_once(", seed ") {
        Some((run, seed)) => (run, Some(seed.parse().unwrap())),
        None => (run, None),
    };
    Missing {
        run: run.into(),
        seed,
        why: why.into(),
        diverged: false,
    }
}

fn results_of(experiment: &Gpt2Experiment, missing: &[&str]) -> Results {
    results_with(experiment, missing, |_| ())
}

/// Makes results from observations after `change` has modified them.
fn results_with(
    experiment: &Gpt2Experiment,
    missing: &[&str],
    change: impl FnMut(&mut Observation),
) -> Results {
    let planned = experiment.plan(&[]).unwrap();
    let mut observations = seeds("base", "valid_loss", &[3.0, 3.2]);
    for (name, x) in [("wide, stream 96", 96.0), ("wide, stream 192", 192.0)] {
        let mut found = seeds(name, "valid_loss", &[300.0 / x, 301.0 / x]);
        for observation in &mut found {
            observation.line = "wide".into();
            observation.quantities.insert("stream".into(), x);
        }
        observations.extend(found);
    }
    observations.iter_mut().for_each(change);
    let outcome = Outcome {
        observations,
        missing: missing.iter().map(|text| missing_run(text)).collect(),
        finished: FinishedRuns::default(),
        tuning: None,
        stopped: false,
        seconds: [("a".into(), 60.0), ("b".into(), 1.0)].into(),
        data: vec![DataFacts {
            source: "my.txt".into(),
            token: "a byte".into(),
            vocabulary: Some(256),
            train_tokens: Some(90_000),
            valid_tokens: Some(10_000),
            read: Some((640, 1_280)),
            passes: Some((0.25, 1.5)),
            runs: vec!["base".into()],
        }],
        configs: vec![("base".into(), "(model: `x`)".into())],
        notes: Vec::new(),
    };
    let origin = Origin {
        name: "question".into(),
        scale: "cpu".into(),
        file: "f".into(),
        command: "run it".into(),
        hash: "abc".into(),
        machine: "a machine".into(),
        backend: "flex".into(),
        commit: Some("def".into()),
    };
    let claims = experiment.verdicts(&planned, &outcome.observations);
    Results::new(experiment, &planned, outcome, claims, origin)
}

#[test]
fn results_have_means_spreads_and_what_was_printed() {
    let table = results(&[]).table();
    let titles: Vec<&str> = table.columns.iter().map(|c| c.title.as_str()).collect();
    let expected = [
        "run",
        "parameters",
        "valid loss",
        "valid loss, reported",
        "stream",
    ];
    assert_eq!(titles, expected);
    let texts =
        |row: usize| -> Vec<&str> { table.rows[row].iter().map(|cell| &*cell.text).collect() };
    assert_eq!(texts(0), ["base", "–", "3.1000 ± 0.1414", "3.0000", "–"]);
    assert_eq!(texts(2)[0], "wide, stream 192");
    assert_eq!(texts(2)[4], "192");
    assert_eq!(texts(3), ["later", "–", "–", "", "–"]);
}

#[test]
fn a_value_that_some_seeds_lack_is_no_mean_of_all() {
    let partial = results_with(&experiment(), &[], |found| {
        if (&*found.run, found.seed) == ("base", Some(2)) {
            found.quantities.remove("valid_loss");
        }
    });
    let table = partial.table();
    assert_eq!(table.rows[0][2].text, "3.0000 (1 of 2)");
    assert!(table.note.contains("(k of n): only k"), "{}", table.note);
    let csv = partial.to_csv();
    for line in ["base,mean,,", "base,deviation,,"] {
        assert!(csv.lines().any(|it| it == line), "{csv}");
    }
    let all = results(&[]).table().note;
    assert!(!all.contains("(k of n)"), "{all}");
}

#[test]
fn the_margin_of_a_claim_stands_under_the_value_that_it_tests() {
    let results = results(&[]);
    let table = results.table();
    // The differences are 300/192 - 3 and 301/192 - 3.2: mean -1.5349, and 12.706 · 0.1377 / √2 = 1.2375.
    let margin = "-1.5349 ± 1.2375 against base";
    assert_eq!(table.rows[2][2].notes, [margin]);
    let others = [&table.rows[0][2], &table.rows[1][2], &table.rows[2][1]];
    assert!(others.iter().all(|cell| cell.notes.is_empty()));
    assert!(table.note.contains("A note on a value states what"));
    assert!(!table.to_text().contains("against"));
    let html = results.report().to_html();
    assert!(html.contains(&format!("<small>{margin}</small>")));
}

#[test]
fn a_verdict_has_a_sign_and_a_color() {
    let verdicts = results(&[]).verdicts();
    let cell = &verdicts.rows[0][1];
    assert_eq!((cell.text.as_str(), cell.tone), ("✓ holds", Tone::Good));
}

#[test]
fn what_models_cost_is_judged_in_runs_that_are_too_short() {
    let text = EXPERIMENT
        .replace("seeds: [1, 2],", "seeds: [1, 2], judge: false,")
        .replace(
            "test: Lower(quantity: \"valid_loss\"",
            "test: Lower(quantity: \"parameters\"",
        );
    let change = |found: &mut Observation| {
        let count = if found.run == "base" { 300.0 } else { 200.0 };
        found.quantities.insert("parameters".into(), count);
    };
    let results = results_with(&parse(&text), &[], change);
    let found = &results.claims()[0];
    assert_eq!(found.verdict, Verdict::Holds, "{}", found.because);
    assert!(!found.because.contains("too short"), "{}", found.because);
}

#[test]
fn runs_that_are_too_short_judge_nothing_but_show_their_numbers() {
    let experiment = parse(&EXPERIMENT.replace("seeds: [1, 2],", "seeds: [1, 2], judge: false,"));
    let results = results_of(&experiment, &[]);
    let found = &results.claims()[0];
    assert_eq!(found.verdict, Verdict::NotTested);
    assert!(
        found
            .because
            .starts_with("wide, stream 192: 1.5651; base: 3.1000 nats; ")
    );
    assert!(
        results
            .verdicts()
            .note
            .starts_with("The runs are too short")
    );
    assert_eq!(results.verdicts().rows[0][1].text, "– not tested");
}

/// A threshold under a value would look as if the value had been judged.
#[test]
fn a_claim_without_a_verdict_has_no_threshold_in_the_table() {
    let test = "Lower(quantity: \"valid_loss\", run: \"wide, stream 192\", than: \"base\")";
    let bound = "AtMost(quantity: \"valid_loss\", run: \"wide, stream 192\", value: 2.0)";
    let notes = |text: &str| {
        let table = results_of(&parse(text), &[]).table();
        let has_legend = table.note.contains("A note on a value");
        let cells = table.rows.into_iter().flatten();
        let notes: Vec<String> = cells.flat_map(|cell| cell.notes).collect();
        assert_eq!(has_legend, !notes.is_empty());
        notes
    };
    let bounded = EXPERIMENT.replace(test, bound);
    assert_eq!(notes(&bounded), ["expected at most 2.0000"]);
    let not_judged = bounded.replace("seeds: [1, 2],", "seeds: [1, 2], judge: false,");
    assert!(notes(&not_judged).is_empty());
    let not_tested = EXPERIMENT.replace(test, "NotTested(\"it needs images\")");
    assert!(notes(&not_tested).is_empty());
}

/// A loss per character is not comparable with a loss per subword.
#[test]
fn reported_losses_are_compared_where_tokens_are_the_same() {
    let because = |same_tokens: &str| {
        let text = EXPERIMENT.replace("seeds: [1, 2],", &format!("seeds: [1, 2],{same_tokens}"));
        let experiment = parse(&text);
        let reported = |observation: &mut Observation| {
            observation.published.insert("valid_loss".into(), 3.0);
        };
        let results = results_with(&experiment, &[], reported);
        results.claims()[0].because.clone()
    };
    assert!(!because("").contains("the reported"));
    assert!(because(" same_tokens: true,").contains("excludes the reported 0.0000"));
}

#[test]
fn a_report_states_its_data_and_its_date() {
    let markdown = results(&[]).to_markdown("");
    let row = "| my.txt | a byte | 256 | 90k | 10k | 640 to 1.28k | 0.25 to 1.5 |";
    assert!(markdown.contains(row), "{markdown}");
    assert!(markdown.contains("\nwritten 20"), "{markdown}");
}

#[test]
fn the_data_of_all_runs_are_known_from_their_configs() {
    let mut experiment =
        parse(&EXPERIMENT.replace("train: (steps: 10)", "train: (steps: 10, batch: 4)"));
    experiment.data.source = Source::Synthetic(SyntheticConfig {
        tokens: 8_000,
        seed: 1,
        ..SyntheticConfig::default()
    });
    experiment.data.valid_fraction = 0.25;
    let mut planned = experiment.plan(&["train.time=30".into()]).unwrap();
    let other = planned[1].config.as_mut().unwrap();
    other.data.source = Source::Synthetic(SyntheticConfig {
        tokens: 4_000,
        seed: 2,
        ..SyntheticConfig::default()
    });
    let corpora: Vec<_> = planned
        .iter()
        .map(|run| Corpus::open(&run.config.as_ref().unwrap().data).unwrap())
        .collect();
    let corpora: Vec<&Corpus> = corpora.iter().collect();
    let facts = DataFacts::of_runs(&planned, &corpora);
    assert_eq!(facts.len(), 2);
    assert_eq!(facts[0].runs, ["base", "wide, stream 192", "later"]);
    assert_eq!(
        (facts[0].train_tokens, facts[0].valid_tokens),
        (Some(6_000), Some(2_000))
    );
    assert_eq!(facts[0].token, "a word");
    // 10 steps of 2 or 4 sequences of 30 tokens; `later` counts `base` as well.
    assert_eq!(facts[0].passes, Some((600.0 / 6000.0, 2400.0 / 6000.0)));
    assert_eq!(facts[1].passes, Some((600.0 / 3000.0, 600.0 / 3000.0)));
    let text = data_table(&facts).to_markdown();
    // 20 batches of 2 or 4 sequences, or all sequences.
    let row = "| a synthetic language | a word | 56 | 6k | 2k | 1.2k to 2k | 0.10 to 0.40 | base; wide, stream 192; later |";
    assert!(text.contains(row), "{text}");
}

#[test]
fn markdown_and_csv_and_json_carry_the_same() {
    let results = results(&["later, seed 1: the disk is full"]);
    let markdown = results.to_markdown("question-");
    for expected in [
        "# A question",
        "Missing: later, seed 1: the disk is full.",
        "| It is better (Table 1) | ✓ holds |",
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
    // Then the means and standard deviations.
    assert_eq!(lines.len(), 1 + 6 + 6);
    assert_eq!(lines[7], "base,mean,,3.1");
    assert!(
        lines[8].starts_with("base,deviation,,0.1414"),
        "{}",
        lines[8]
    );
    assert!(lines[9].starts_with("\"wide, stream 96\",mean,96,3.130"));
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

/// Size 0 has no logarithm; the chart says which points it omits.
#[test]
fn a_chart_says_why_it_has_no_fit_and_what_it_cannot_show() {
    let text = EXPERIMENT.replace("fit: true,", "fit: true, log_x: true,");
    let results = results_with(&parse(&text), &[], |observation| {
        let stream = observation.quantities.get_mut("stream");
        if let Some(stream) = stream.filter(|stream| **stream == 96.0) {
            *stream = 0.0;
        }
    });
    let chart = &results.charts()[0];
    assert!(
        chart
            .note
            .contains("wide: no power law, because a value is not above 0."),
        "{}",
        chart.note
    );
    let says = "Not shown: wide (stream 0); a logarithmic axis has only values above 0.";
    assert_eq!(chart.notes(), says);
    for written in [
        results.to_markdown(""),
        results.report().to_html(),
        chart.to_svg(),
    ] {
        assert!(written.contains("Not shown: wide (stream 0)"), "{written}");
    }
}

#[test]
fn what_was_printed_is_drawn_as_a_point_or_across() {
    let mut spec: ChartSpec =
        ron::from_str(r#"(title: "", x: "tokens", y: "valid_accuracy", printed: true)"#).unwrap();
    let row = |name: &str, published: &[(&str, f64)]| RunRow {
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
    assert_eq!(names, [("both, reported", [(1e9, 47.0)].as_slice())]);
    assert_eq!(chart.references, [Reference::new("across, reported", 39.0)]);

    spec.printed = false;
    let chart = spec.chart(&rows, &[]);
    assert!(chart.series.is_empty() && chart.references.is_empty());
}

#[test]
fn every_run_is_a_curve_from_where_it_was_trained() {
    let spec: ChartSpec =
        ron::from_str(r#"(title: "", x: "tokens", y: "valid_loss", curves: true)"#).unwrap();
    let run = |size: usize| RunRow {
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
        ..Observation::default()
    };
    let observations = [
        observed(1, 1),
        observed(1, 3),
        observed(2, 1),
        observed(2, 3),
    ];
    // The third run is missing, so the chart leaves it out.
    let chart = spec.chart(&[run(1), run(2), run(3)], &observations);
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
fn a_column_of_memory_has_one_unit() {
    let text = EXPERIMENT.replace(r#""valid_loss", "stream"]"#, r#""peak_memory"]"#);
    let experiment = parse(&text);
    let planned = experiment.plan(&[]).unwrap();
    let unit_and_cell = |bytes: f64| {
        let mut observations = seeds("base", "peak_memory", &[bytes]);
        observations.extend(seeds("later", "peak_memory", &[300.0 * 1_048_576.0]));
        let outcome = Outcome {
            observations,
            ..Outcome::default()
        };
        let table = Results::new(
            &experiment,
            &planned,
            outcome,
            Vec::new(),
            Origin::default(),
        )
        .table();
        (table.columns[2].hint.clone(), table.rows[3][2].text.clone())
    };
    assert_eq!(unit_and_cell(1e9), ("MiB".into(), "300.0".into()));
    assert_eq!(unit_and_cell(2e9), ("GiB".into(), "0.29".into()));
}

#[test]
fn times_are_drawn_in_milliseconds() {
    let spec: ChartSpec = ron::from_str(r#"(title: "", x: "step_time", y: "valid_loss")"#).unwrap();
    let mut found = seeds("run", "valid_loss", &[2.0]);
    found[0].quantities.insert("step_time".into(), 0.0615);
    let run = RunRow {
        name: "run".into(),
        line: "run".into(),
        published: BTreeMap::new(),
    };
    let chart = spec.chart(&[run], &found);
    assert_eq!(chart.series[0].points, [(61.5, 2.0)]);
    assert_eq!(chart.x.unit, "ms");
    let of = Observed::of("step_time");
    assert_eq!(
        [0.0615, 7.17, 4.56e-4].map(|time| of.show(time)),
        ["61.5", "7170", "0.456"]
    );
}

/// Makes a point of a sweep that was trained to the end.
fn point(losses: &[Option<f64>]) -> TriedPoint {
    TriedPoint {
        directories: vec![None; losses.len()],
        values: vec![Value::Number(0.1)],
        set: Vec::new(),
        share: 1.0,
        tokens: 0.0,
        losses: losses.to_vec(),
        failed: None,
        is_beyond: false,
        is_untrained: false,
    }
}

#[test]
fn claims_are_compared_on_the_seeds_of_the_sweep_too() {
    let lower = |run: &str, than: &str| Judgement {
        claim: judge::claim(judge::lower(run, than)),
        verdict: Verdict::Holds,
        because: String::new(),
        margin: None,
        p: None,
    };
    // The second claim compares a run that was not swept.
    let claims = [
        lower("new", "old"),
        lower("new", "other"),
        lower("new", "old"),
    ];
    let mut found = seeds("new", "valid_loss", &[2.0, 2.1]);
    found.extend(seeds("old", "valid_loss", &[2.2, 2.4]));
    found.extend(seeds("other", "valid_loss", &[2.2, 2.4]));
    let swept = |run: &str, losses: &[Option<f64>]| SweptRun {
        run: run.into(),
        tried: vec![point(&[Some(9.0); 3]), point(losses)],
        best: Some(1),
        broken: None,
    };
    let sweep = r#"(over: [(field: "train.learning_rate", values: Grid([0.1]))], seeds: [7, 1, 8], tuned: true)"#;
    let mut tuning = Tuning {
        sweep: parse_ron(sweep, "sweep.ron".as_ref()).unwrap(),
        runs: vec![
            // Seed 1 judges the claims, and seed 8 of the old model failed.
            swept("new", &[Some(2.1), Some(5.0), Some(2.0)]),
            swept("old", &[Some(2.0), Some(3.0), None]),
        ],
        rule: Vec::new(),
    };
    let table = |tuning: &Tuning| crate::results::sweep_seeds::table(&claims, &found, tuning);
    let rows = table(&tuning).unwrap().rows;
    let cells: Vec<&str> = rows.iter().flatten().map(|cell| &*cell.text).collect();
    assert_eq!(
        cells,
        [
            "new minus old",
            "-0.2500 ± 0.6353 (2)",
            "+0.1000 (1)",
            "-0.1333 ± 0.5171 (3)"
        ]
    );
    tuning.sweep.tuned = false;
    assert!(table(&tuning).is_none());
}

#[test]
fn the_losses_of_a_sweep_are_those_of_their_seeds() {
    let point = TriedPoint {
        directories: vec![None, Some("pool/b".into())],
        failed: Some("diverged".into()),
        ..point(&[None, Some(2.5)])
    };
    let sweep = r#"(over: [(field: "train.learning_rate", values: Grid([0.1]))], seeds: [7, 8])"#;
    let run = SweptRun {
        run: "a".into(),
        tried: vec![point],
        best: None,
        broken: None,
    };
    let tuning = Tuning {
        sweep: parse_ron(sweep, "sweep.ron".as_ref()).unwrap(),
        runs: vec![run],
        rule: Vec::new(),
    };
    let csv = tuning.to_csv();
    let lines: Vec<&str> = csv.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "a,0.1,7,,1,0,,false,diverged",
            "a,0.1,8,pool/b,1,0,2.5,false,"
        ]
    );
    let table = tuning.table();
    assert!(
        table
            .to_text()
            .contains("diverged; 1 of 2 seeds ended at 2.5"),
        "{}",
        table.to_text()
    );
    assert!(
        table
            .note
            .ends_with("in all, without points at which a run ended early."),
        "{}",
        table.note
    );
}
