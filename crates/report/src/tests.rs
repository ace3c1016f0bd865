use crate::domain::Domain;
use crate::labels::spread;
use crate::number::{flops_per_second, label, tick_labels};
use crate::series::thin;
use crate::*;

fn html(scale: Scale, series: Vec<Series>, references: Vec<Reference>) -> String {
    let chart = Chart {
        x: Axis {
            scale,
            ..Axis::linear("tokens", "")
        },
        y: Axis {
            scale,
            ..Axis::linear("loss", "nats/token")
        },
        series,
        references,
        ..Chart::default()
    };
    let sections = vec![Section::Chart(chart)];
    Report {
        sections,
        ..Report::default()
    }
    .to_html()
}

fn check_tags(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some((_, after)) = rest.split_once('<') {
        let (tag, after) = after.split_once('>').expect("a tag ends");
        let name = tag.split_whitespace().next().unwrap_or("");
        rest = after;
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed));
        } else if !tag.ends_with('/') && !["!DOCTYPE", "meta"].contains(&name) {
            open.push(name);
        }
        if ["script", "style"].contains(&name) {
            let end = rest.find(&format!("</{name}>"));
            rest = &rest[end.expect("raw text ends")..];
        }
    }
    assert!(open.is_empty(), "{open:?} stay open");
}

fn linear(lo: f64, hi: f64) -> Vec<String> {
    Domain::new(Scale::Linear, lo, hi).ticks(5).labels
}

fn log(lo: f64, hi: f64) -> Vec<String> {
    let domain = Domain::new(Scale::Log, lo.log10(), hi.log10());
    domain.ticks(4).labels
}

#[test]
fn every_string_is_escaped() {
    let evil = || "</script><b>&\"'\u{1b}]0;\u{7}\u{202e}\u{ffff}".to_owned();
    let points = vec![(0.0, 1.0), (1.0, 2.0)];
    let chart = Chart {
        heading: evil(),
        note: evil(),
        x: Axis::linear(evil(), evil()),
        y: Axis::linear(evil(), evil()),
        series: vec![
            Series::line(evil(), 0, points.clone()),
            Series::markers(evil(), 1, points),
        ],
        references: vec![Reference::new(evil(), 1.0)],
    };
    let marked = Cell {
        text: evil(),
        notes: vec![evil()],
        link: evil(),
        tone: Tone::Bad,
    };
    let table = Table {
        heading: evil(),
        note: evil(),
        columns: vec![Column::number(evil(), evil()), Column::text(evil())],
        rows: vec![vec![evil().into(), marked]],
        highlight: Some(0),
    };
    let (heading, body) = (evil(), evil());
    let code = Section::Code { heading, body };
    let (heading, body) = (evil(), evil());
    let text = Section::Text { heading, body };
    let folded = Section::Folded {
        heading: evil(),
        note: evil(),
        language: "ron".into(),
        texts: vec![(evil(), evil())],
    };
    let is_control = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{ffff}".contains(c);
    let svg = chart.to_svg();
    assert!(!svg.contains(is_control));
    let sections = vec![
        Section::Chart(chart),
        Section::Table(table),
        code,
        text,
        folded,
    ];
    let (title, lead) = (evil(), evil());
    let html = Report {
        title,
        lead,
        sections,
    }
    .to_html();
    for written in [&html, &svg] {
        assert!(!written.contains("<b>") && !written.contains("&\""));
        assert!(written.contains("&lt;/script&gt;&lt;b&gt;&amp;&quot;'"));
        check_tags(written);
    }
    assert_eq!(html.matches("</script>").count(), 1);
    // Values for the pointer, as JSON in an attribute.
    assert!(html.contains(r#"&quot;label&quot;:&quot;&lt;/script&gt;&lt;b&gt;&amp;\&quot;'"#));
}

#[test]
fn linear_ticks_are_multiples_of_1_2_or_5() {
    let ticks = |lo, hi| Domain::new(Scale::Linear, lo, hi).ticks(5).major;
    assert_eq!(ticks(0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
    assert_eq!(ticks(-3.1, 7.2), [-2.0, 0.0, 2.0, 4.0, 6.0]);
    assert_eq!(linear(3.17, 3.41), ["3.20", "3.25", "3.30", "3.35", "3.40"]);
    assert_eq!(linear(0.0, 2100.0), ["0", "500", "1k", "1.5k", "2k"]);
    assert_eq!(linear(1e4, 1e4 + 11.0)[1..3], ["10.002k", "10.004k"]);
    assert_eq!(linear(0.0, 6e-4)[..3], ["0", "10⁻⁴", "2×10⁻⁴"]);
    assert_eq!(linear(0.0, 2e18)[1..4], ["5×10¹⁷", "10¹⁸", "1.5×10¹⁸"]);
    assert_eq!(tick_labels(&[]), [""; 0]);
}

#[test]
fn log_ticks_are_decades_or_1_2_5() {
    let ticks = Domain::new(Scale::Log, 0.0, 3.0).ticks(5);
    assert_eq!(ticks.major, [1.0, 10.0, 100.0, 1000.0]);
    assert_eq!(ticks.minor.len(), 24);
    assert_eq!(ticks.minor[..3], [2.0, 3.0, 4.0]);
    assert_eq!(log(0.01, 10.0), ["0.01", "0.1", "1", "10"]);
    assert_eq!(log(2.4, 4.1), ["2.5", "3.0", "3.5", "4.0"]);
    assert_eq!(log(3.0, 45.0), ["5", "10", "20"]);
    // Labels that are evenly spaced in value would overlap at the right end.
    let narrow = Domain::new(Scale::Log, 0.003f64.log10(), 0.024f64.log10()).ticks(8);
    assert_eq!(
        narrow.labels,
        [
            "0.004", "0.006", "0.008", "0.010", "0.012", "0.016", "0.020", "0.024"
        ]
    );
    assert_eq!(narrow.minor, [0.014, 0.018, 0.022]);
    assert_eq!(log(1e12, 1e20), ["10¹²", "10¹⁴", "10¹⁶", "10¹⁸", "10²⁰"]);
}

#[test]
fn rates_have_a_space_before_their_unit() {
    assert_eq!(flops_per_second(23.84e9), "23.8 GFLOP/s");
    assert_eq!(flops_per_second(472e12), "472 TFLOP/s");
    assert_eq!(flops_per_second(12.0), "12 FLOP/s");
    assert_eq!(flops_per_second(0.0), "0 FLOP/s");
}

#[test]
fn numbers_are_short() {
    let cases = [0.0, 950.0, 1234.0, 999_999.0, 124e6, 1e10].map(si);
    assert_eq!(cases, ["0", "950", "1.23k", "1M", "124M", "10G"]);
    let cases = [2.5e18, 1e18, 3e-4, -1500.0, f64::NAN].map(si);
    assert_eq!(cases, ["2.5×10¹⁸", "10¹⁸", "3×10⁻⁴", "-1.5k", "–"]);
    let cases = [3.21987, 0.0012, 12_345.6, 9.9996, -0.0].map(|v| sig(v, 4));
    assert_eq!(cases, ["3.220", "0.001200", "12346", "10.00", "0.000"]);
    let cases = [1e-5, f64::INFINITY].map(|v| sig(v, 4));
    assert_eq!(cases, ["10⁻⁵", "∞"]);
    let cases = [3.21987, 47.3, 12_345.6, 3_243_524_096.0].map(label);
    assert_eq!(cases, ["3.220", "47.30", "12346", "3.24G"]);
}

#[test]
fn bytes_are_in_binary_units() {
    let cases = [0.0, 77.5e6, 1023.94 * 1048576.0, 1.5 * 1073741824.0].map(bytes);
    assert_eq!(cases, ["0.0 MiB", "73.9 MiB", "1023.9 MiB", "1.50 GiB"]);
}

#[test]
fn thinning_keeps_ends_and_extremes() {
    let y = |i: usize| match i {
        7_777 => 99.0,
        12_345 => -99.0,
        _ => (i as f64 * 0.37).sin(),
    };
    let points: Vec<_> = (0..20_000).map(|i| (i as f64, y(i), y(i))).collect();
    let thinned = thin(&points, &Domain::new(Scale::Linear, 0.0, 19_999.0), 800);
    assert!(thinned.len() <= 800);
    for i in [0, 7_777, 12_345, 19_999] {
        assert!(thinned.contains(&points[i]), "point {i}");
    }
    assert!(thinned.is_sorted_by(|a, b| a.0 < b.0));
}

#[test]
fn points_without_a_place_are_dropped() {
    let clean = vec![(1.0, 2.0), (2.0, 1.0)];
    let mut dirty = clean.clone();
    dirty.extend([(f64::NAN, 1.0), (1.5, f64::INFINITY), (1.5, f64::NAN)]);
    dirty.extend([(-1.0, 1.0), (1.2, 0.0), (0.0, 1.0)]);
    let page = |points| html(Scale::Log, vec![Series::line("run", 0, points)], vec![]);
    let drawn = |points| {
        let page = page(points);
        let paths = page.split(" d=\"").skip(1);
        let paths = paths.map(|part| part.split('"').next().unwrap_or_default().to_owned());
        paths.collect::<Vec<_>>()
    };
    assert_eq!(drawn(clean), drawn(dirty.clone()));
    assert!(page(dirty).contains(
        "Not shown: run (tokens NaN), run (loss inf), run (loss NaN), run (tokens -1), run (loss 0) and 1 more; a \
         logarithmic axis has only values above 0."
    ));
}

#[test]
fn a_chart_says_what_has_no_place_on_its_axes() {
    let mut series = vec![
        Series::line("a", 0, vec![(0.0, 3.0)]),
        Series::line("b", 1, vec![(4.0, 2.0), (16.0, 1.0)]),
    ];
    series[1].band = vec![(4.0, 0.0, 3.0), (16.0, 0.5, 2.0)];
    let chart = |scale| Chart {
        x: Axis {
            scale,
            ..Axis::linear("size", "")
        },
        y: Axis {
            scale,
            ..Axis::linear("loss", "")
        },
        series: series.clone(),
        references: vec![Reference::new("least", 0.0)],
        ..Chart::default()
    };
    let says = "Not shown: a (size 0), b (a part of its band), least (loss 0); a logarithmic axis has only values above 0.";
    let log = chart(Scale::Log);
    assert_eq!(log.notes(), says);
    assert!(log.to_svg().contains(">Not shown: a (size 0)"));
    assert_eq!(chart(Scale::Linear).notes(), "");
}

#[test]
fn lines_differ_in_color_or_in_dashes() {
    let series: Vec<Series> = (0..40)
        .map(|i| Series::line(format!("run {i}"), i, vec![(0.0, 1.0), (1.0, i as f64)]))
        .collect();
    let chart = Chart {
        series,
        ..Chart::default()
    };
    let svg = chart.to_svg();
    let samples: Vec<&str> = svg
        .split("translate(")
        .skip(1)
        .filter_map(|part| part.split("d=").next())
        .collect();
    let samples: Vec<&str> = samples
        .iter()
        .filter_map(|sample| sample.split("<path ").nth(1))
        .collect();
    assert_eq!(samples.len(), 40);
    let distinct: std::collections::BTreeSet<&str> = samples.iter().copied().collect();
    assert_eq!(distinct.len(), 40, "{distinct:?}");
    assert!(samples[0] == "class=\"line c0\" ", "{}", samples[0]);
    assert!(
        samples[8] == "class=\"line c0\" stroke-dasharray=\"9 3\" ",
        "{}",
        samples[8]
    );
}

#[test]
fn names_beside_lines_differ_where_they_are_cut() {
    let name = |end: &str| format!("runs/experiments/pool/GPT-2-{end}");
    let line =
        |(i, end): (usize, &str)| Series::line(name(end), i, vec![(0.0, 1.0), (1.0, i as f64)]);
    let series = ["0a1b2c", "3d4e5f"]
        .into_iter()
        .enumerate()
        .map(line)
        .collect();
    let page = html(Scale::Linear, series, vec![]);
    assert!(
        page.contains(">…pool/GPT-2-0a1b2c <") && page.contains(">…pool/GPT-2-3d4e5f <"),
        "{page}"
    );
}

#[test]
fn the_first_losses_do_not_flatten_the_rest() {
    let loss = |i| if i < 5 { 1e6 } else { 3.0 + 1.0 / i as f64 };
    let points = (0..1000).map(|i| (i as f64, loss(i))).collect();
    let series = vec![Series::line("run", 0, points)];
    let page = |references| html(Scale::Linear, series.clone(), references);
    assert!(page(vec![]).contains("Values above 3.0"));
    assert!(page(vec![Reference::new("uniform", 10.8)]).contains("Values above 11."));
}

#[test]
fn noise_is_averaged() {
    let points = |n| {
        (0..n)
            .map(|i| (i as f64, 3.0 + (i * 7919 % 101) as f64))
            .collect()
    };
    let page = |n| {
        html(
            Scale::Linear,
            vec![Series::line("run", 0, points(n))],
            vec![],
        )
    };
    assert!(page(5000).contains("are averages"));
    assert!(!page(50).contains("are averages"));
}

#[test]
fn labels_keep_their_distance() {
    let spread = |wanted| spread(wanted, 10.0, 0.0, 100.0);
    assert_eq!(spread(&[10.0, 11.0, 50.0]), Some(vec![5.5, 15.5, 50.0]));
    assert_eq!(spread(&[99.0, 99.0]), Some(vec![90.0, 100.0]));
    assert_eq!(spread(&[50.0; 12]), None);
}

#[test]
fn edge_cases_give_closed_local_deterministic_pages() {
    let line = |points| vec![Series::line("run", 9, points)];
    let mut band = line(vec![]);
    band[0].band = vec![(0.0, 1.0, 2.0), (1.0, 0.5, f64::NAN)];
    let cases = [
        vec![],
        band,
        line(vec![]),
        line(vec![(1.0, 1.0)]),
        line(vec![(0.0, 3.0), (1.0, 3.0), (1.0, 3.0)]),
        line(vec![(0.0, 1e-180), (1e150, 1e180), (1e199, -1e199)]),
        line((0..20_000).map(|i| (i as f64, 1e-9 * i as f64)).collect()),
        vec![Series::markers("published", 3, vec![(1e9, 3.0)])],
    ];
    for series in cases {
        for scale in [Scale::Linear, Scale::Log] {
            let text = html(scale, series.clone(), vec![]);
            assert_eq!(text, html(scale, series.clone(), vec![]));
            let drawn = text.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
            assert!(!drawn.contains("http:") && !drawn.contains("https:"));
            assert!(!drawn.contains("NaN") && !drawn.contains("inf,"));
            check_tags(&text);
        }
    }
}

fn small_table() -> Table {
    let row = |cells: [&str; 3]| cells.map(Cell::from).to_vec();
    Table {
        heading: "Results".into(),
        note: "In short.".into(),
        columns: vec![
            Column::text("model"),
            Column::number("loss", "nats/token"),
            Column::text("sees"),
        ],
        rows: vec![row(["gpt2", "3.1", "a|b"]), row(["größer", "12.25", ""])],
        highlight: None,
    }
}

#[test]
fn text_has_aligned_columns() {
    let text = small_table().to_text();
    let lines: Vec<&str> = text.split('\n').collect();
    assert_eq!(
        lines,
        [
            "model         loss  sees",
            "        nats/token",
            "gpt2           3.1  a|b",
            "größer       12.25"
        ]
    );
    assert_eq!(Table::default().to_text(), "");
}

#[test]
fn markdown_has_the_heading_the_note_and_the_units() {
    let mut table = small_table();
    let rows = "| model | loss (nats/token) | sees |\n| --- | ---: | --- |\n\
                | gpt2 | 3.1 | a\\|b |\n| größer | 12.25 |  |";
    assert_eq!(
        table.to_markdown(),
        format!("## Results\n\nIn short.\n\n{rows}")
    );
    table.note.clear();
    assert_eq!(table.to_markdown(), format!("## Results\n\n{rows}"));
    table.rows = vec![vec!["two\nlines".into()]];
    assert!(table.to_markdown().ends_with("\n| two lines |  |  |"));
}

#[test]
fn a_cell_has_its_color_its_link_and_its_small_print() {
    let cell = Cell {
        text: "✓ holds".into(),
        notes: vec!["± 0.1".into(), "3 seeds".into()],
        link: "a/report.html".into(),
        tone: Tone::Good,
    };
    let table = Table {
        heading: "Claims".into(),
        columns: vec![Column::text("claim"), Column::number("verdict", "")],
        rows: vec![vec!["A".into(), cell]],
        ..Table::default()
    };
    assert!(table.to_text().ends_with("\nA      ✓ holds"));
    let markdown = table.to_markdown();
    assert!(markdown.ends_with("| A | [✓ holds](a/report.html) (± 0.1; 3 seeds) |"));
    let sections = vec![Section::Table(table)];
    let report = Report {
        sections,
        ..Report::default()
    };
    let cell = r#"<td role="cell" class="num good" data-label="verdict"><a href="a/report.html">✓ holds</a> <small>± 0.1</small> <small>3 seeds</small></td>"#;
    let html = report.to_html();
    assert!(html.contains(cell), "{html}");
    assert!(html.contains("<caption>Claims</caption>"));
}

#[test]
fn rows_have_as_many_cells_as_columns() {
    let mut even = small_table();
    even.rows = vec![["a", "", ""].map(Cell::from).to_vec()];
    for ragged in [&["a"][..], &["a", "", "", "too many"]] {
        let mut table = even.clone();
        table.rows = vec![ragged.iter().map(|&cell| cell.into()).collect()];
        assert_eq!(table.to_text(), even.to_text());
        assert_eq!(table.to_markdown(), even.to_markdown());
        let page = |table: &Table| {
            let sections = vec![Section::Table(table.clone())];
            let report = Report {
                sections,
                ..Report::default()
            };
            report.to_html()
        };
        assert_eq!(page(&table), page(&even));
        let row = ragged.iter().map(|&cell| cell.to_owned()).collect();
        assert_eq!(csv(&["x", "y", "z"], [row]), "x,y,z\na,,\n");
    }
}

#[test]
fn csv_quotes_what_has_to_be_quoted() {
    let rows = [["a,b", "1.5"], ["say \"so\"", ""], ["two\nlines", "-2"]];
    let rows = rows.map(|row| row.map(str::to_owned).to_vec());
    assert_eq!(
        csv(&["run", "loss, train"], rows),
        "run,\"loss, train\"\n\"a,b\",1.5\n\"say \"\"so\"\"\",\ntwo\\u{a}lines,-2\n"
    );
    assert_eq!(csv(&["run", "seed"], []), "run,seed\n");
}

fn wide_table() -> Table {
    let row = |name: &str| {
        let numbers = ["193k", "98.6k", "1.4030 ± 0.1234", "1.4072", "77k"];
        std::iter::once(name)
            .chain(numbers)
            .map(Cell::from)
            .collect()
    };
    Table {
        columns: vec![
            Column::text("model"),
            Column::number("parameters", ""),
            Column::number("non-embedding", ""),
            Column::number("train loss", "nats/token"),
            Column::number("valid loss", "nats/token"),
            Column::number("tokens/s", ""),
        ],
        rows: vec![
            row("日本, \"q\" | <i>&"),
            row("a model with a long name, width 16"),
            row("a model with a long name, width 32"),
        ],
        ..Table::default()
    }
}

#[test]
fn columns_are_aligned_by_what_a_terminal_shows() {
    let text = wide_table().to_text();
    let widths: Vec<usize> = text.lines().map(crate::width::width).collect();
    assert_eq!([widths[2], widths[3], widths[4]], [widths[0]; 3], "{text}");
    let mut table = wide_table();
    table.rows[0][0] = "a\u{1b}[31m\nb".into();
    let text = table.to_text();
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.contains("a\\u{1b}[31m b "), "{text}");
}

#[test]
fn a_wide_table_fits_a_terminal_and_no_number_is_cut() {
    let table = wide_table();
    assert_eq!(table.fit(160), table.to_text());
    for columns in [24, 40, 60, 80, 85, 100] {
        let text = table.fit(columns);
        let widest = text.lines().map(crate::width::width).max();
        assert!(widest <= Some(columns.max(29)), "{columns}:\n{text}");
        for number in ["193k", "98.6k", "1.4030 ± 0.1234", "1.4072", "77k"] {
            assert_eq!(
                text.matches(number).count(),
                3,
                "{number} at {columns}:\n{text}"
            );
        }
    }
    // Cut names still differ.
    let text = table.fit(85);
    assert!(
        text.contains("width 16 ") && text.contains("width 32 "),
        "{text}"
    );
    assert!(!text.contains("\n\n"), "{text}");
    // Titles are broken before names are cut, and end at the same line.
    let mut more = table.clone();
    more.columns.push(Column::number("training tokens", ""));
    more.rows.iter_mut().for_each(|row| row.push("640".into()));
    let text = more.fit(112);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].ends_with("valid loss            training"),
        "{text}"
    );
    assert!(
        lines[1].starts_with("model ") && lines[1].ends_with("nats/token  tokens/s    tokens"),
        "{text}"
    );
    assert!(
        text.contains("a model with a long name, width 16 "),
        "{text}"
    );
    // Too narrow for all columns: one table for some columns, and another for the other columns.
    let text = table.fit(60);
    let heads: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("model"))
        .collect();
    assert_eq!(heads.len(), 2, "{text}");
    assert_eq!(Table::default().fit(10), "");
}
