//! `residual-zoo depth`: maps of the outputs that each sublayer reads.

use std::fs;

use residual_zoo::backend::BackendKind;
use residual_zoo::drive::{Error, open_corpus};
use residual_zoo::train::Interrupter;
use residual_zoo::{Run, experiment};
use residual_zoo_testing::program::{Scratch, fails, ok, outside, smoke, zoo};
use residual_zoo_testing::runs::{MODELS, config, train};

#[test]
fn the_map_of_a_plain_run_has_ones_and_is_written_in_each_format() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    ok(&mut smoke(&run));
    let mut table = String::new();
    for name in ["a.svg", "a.html", "a.csv"] {
        let out = scratch.path(name);
        let mut depth = zoo("depth");
        depth.arg(&run).arg("--out").arg(&out);
        table = ok(&mut depth);
        assert!(out.metadata().unwrap().len() > 0);
    }
    // The rows are the sublayers of two layers, two in each, and the end of the stream.
    assert_eq!(table.matches(" 100.0 ").count(), 5, "{table}");
    assert!(
        table.contains("h1 Attention") && table.contains("f0 × 1.00 (100 %)"),
        "{table}"
    );
    let svg = fs::read_to_string(scratch.path("a.svg")).unwrap();
    assert_eq!(
        svg.matches(">1.00</text>").count(),
        1 + 2 + 3 + 4 + 5,
        "{svg}"
    );
    assert!(
        fs::read_to_string(scratch.path("a.html"))
            .unwrap()
            .contains("heat")
    );
    let csv = fs::read_to_string(scratch.path("a.csv")).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(
        (lines[0], lines.len()),
        ("stream,input,output,weight,share", 1 + 15)
    );
    assert!(
        table.contains("a.csv, from 32 validation sequences"),
        "{table}"
    );
    let mut shares = zoo("depth");
    let svg = scratch.path("shares.svg");
    shares
        .arg(&run)
        .args(["--shares", "--sequences", "3"])
        .arg("--out")
        .arg(&svg);
    let said = ok(&mut shares);
    assert!(said.contains("from 3 validation sequences"), "{said}");
    assert_ne!(
        fs::read_to_string(svg)
            .unwrap()
            .matches(">1.00</text>")
            .count(),
        15
    );
}

#[test]
fn a_recurrence_has_a_map_for_each_of_its_streams() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let (_, recurrent) = MODELS[4];
    ok(&mut train(&config(&scratch, recurrent), &run));
    let depth = |out: &str| {
        let mut depth = zoo("depth");
        depth.arg(&run).arg("--out").arg(scratch.path(out));
        depth
    };
    // Each of two layers has three windows over two blocks.
    fails(
        &mut depth("a.svg"),
        2,
        &["--out", "6 streams", ".html or .csv"],
    );
    let mut usual = outside(&scratch, "depth");
    ok(usual.arg("run"));
    assert!(scratch.path("depth.html").exists());
    let table = ok(&mut depth("a.html"));
    assert_eq!(table.matches("h1 Attention").count(), 6, "{table}");
    assert!(
        table.contains("stream 1\n") && table.contains("stream 6\n"),
        "{table}"
    );
}

#[test]
fn what_has_no_map_is_refused() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    ok(&mut smoke(&run));
    let depth = |options: &[&str]| {
        let mut depth = zoo("depth");
        depth.arg(&run).args(options);
        depth
    };
    fails(
        &mut depth(&["--out", "a.png"]),
        2,
        &["--out", ".svg, .html or .csv"],
    );
    let text = scratch.file("text.txt", "other characters! ".repeat(60));
    let text = text.to_str().unwrap();
    fails(
        &mut depth(&["--data", text]),
        2,
        &["data.source", "other tokens"],
    );
    fails(zoo("depth").arg(scratch.path("none")), 2, &["none"]);
}

#[test]
fn a_stop_ends_the_passes() {
    let scratch = Scratch::new();
    let path = scratch.path("run");
    ok(&mut smoke(&path));
    let run = Run::open(&path).unwrap();
    let stop = Interrupter::new();
    let corpus = open_corpus(&run.config.data, &stop).unwrap();
    let depth = || experiment::depth(&run, &corpus, Some(5), (BackendKind::Flex, None), &stop);
    assert_eq!(depth().unwrap().sequences, 5);
    stop.stop(None);
    assert!(matches!(depth(), Err(Error::Stopped(_))));
}
