use std::collections::BTreeMap;

use residual_zoo_report::Reference;

use super::*;
use crate::charts::RunRow;

fn results(missing: &[&str]) -> Results {
    let experiment = experiment();
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
    Results::new(&experiment, &planned, outcome, origin)
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
    };
    let observations = [
        observed(1, 1),
        observed(1, 3),
        observed(2, 1),
        observed(2, 3),
    ];
    // The third run is missing, so it is not drawn.
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
