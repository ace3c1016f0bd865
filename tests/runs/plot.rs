//! Charts of runs.

use std::fs;
use std::process::Command;

use residual_zoo_testing::program::{Scratch, fails, ok, run, smoke, zoo};
use residual_zoo_testing::runs::with_fault;

/// Returns a command that runs the subcommand `command` in the directory of `scratch`.
fn outside(scratch: &Scratch, command: &str) -> Command {
    let mut program = zoo(command);
    program.current_dir(scratch.path(""));
    program.env("XDG_CACHE_HOME", scratch.path("cache"));
    program
}

#[test]
fn plot_draws_runs_as_svg_html_and_csv() {
    let scratch = Scratch::new();
    for run in ["a", "b"] {
        ok(smoke(&scratch.path(run)).args(["--set", "train.log_every=1"]));
    }
    let plot = |out: &str, options: &[&str]| {
        let mut command = outside(&scratch, "plot");
        command.args(["a", "b", "--out", out]).args(options);
        ok(&mut command);
        fs::read_to_string(scratch.path(out)).unwrap()
    };
    assert!(plot("plot.svg", &[]).starts_with("<svg"));
    let html = plot("plot.html", &["--x", "seconds"]);
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("valid loss over seconds"));
    let csv = plot("plot.csv", &["--y", "train_loss", "--x", "steps"]);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "run,steps,train_loss");
    assert_eq!(lines.len(), 1 + 2 * 4, "{csv}");
    assert!(
        lines[1].starts_with("a,1,") && lines[8].starts_with("b,4,"),
        "{csv}"
    );

    fails(
        outside(&scratch, "plot").args(["a", "--out", "plot.png"]),
        2,
        &["plot.png", ".svg, .html or .csv"],
    );
    fails(
        outside(&scratch, "plot").args(["a", "none"]),
        2,
        &["none", "run directory"],
    );
}

#[test]
fn runs_that_differ_only_in_their_seed_are_averaged() {
    let scratch = Scratch::new();
    for seed in ["1", "2"] {
        ok(smoke(&scratch.path(&format!("a-{seed}")))
            .args(["--set", &format!("train.seed={seed}")]));
    }
    let mut command = outside(&scratch, "plot");
    ok(command.args(["a-1", "a-2", "--mean", "--x", "steps", "--out", "mean.csv"]));
    let csv = fs::read_to_string(scratch.path("mean.csv")).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("run,steps,valid_loss,lowest,highest"));
    for line in lines {
        let numbers = line
            .strip_prefix("\"a, mean of 2 seeds\",")
            .expect(line)
            .split(',');
        let numbers: Vec<f64> = numbers.map(|number| number.parse().unwrap()).collect();
        let [_, mean, low, high] = numbers[..] else {
            panic!("{line}")
        };
        assert!(
            low < high && ((low + high) / 2.0 - mean).abs() < 1e-12,
            "{line}"
        );
    }
    let mut command = outside(&scratch, "plot");
    fails(
        command.args(["a-1", "--mean"]),
        2,
        &["--mean", "differ only in their seed"],
    );
}

#[test]
fn losses_per_token_of_different_tokenizers_are_not_overlaid_silently() {
    let scratch = Scratch::new();
    scratch.file(
        "my.txt",
        "to be or not to be, that is the question. ".repeat(400),
    );
    for (name, tokenizer) in [("bytes", "bytes"), ("bpe", "bpe:280")] {
        let mut command = outside(&scratch, "train");
        command.args([
            "gpt2/smoke",
            "--data",
            "my.txt",
            "--tokenizer",
            tokenizer,
            "--run",
            name,
            "--no-tui",
        ]);
        for set in [
            "train.steps=2",
            "train.warmup=1",
            "train.batch=2",
            "train.validate_batches=1",
            "train.sample_every=None",
        ] {
            command.args(["--set", set]);
        }
        ok(&mut command);
    }
    let plot = |options: &[&str]| {
        let mut command = outside(&scratch, "plot");
        command
            .args(["bytes", "bpe", "--out", "plot.csv"])
            .args(options);
        let output = run(&mut command);
        assert!(output.status.success(), "{output:?}");
        let csv = fs::read_to_string(scratch.path("plot.csv")).unwrap();
        (csv, String::from_utf8(output.stderr).unwrap())
    };
    let (csv, note) = plot(&[]);
    assert!(csv.starts_with("run,tokens,bits_per_byte\n"), "{csv}");
    assert!(
        note.contains("so losses are in bits per byte of text"),
        "{note}"
    );
    let (nats, note) = plot(&["--y", "valid_loss"]);
    assert!(
        note.contains("values per token are not comparable"),
        "{note}"
    );
    assert!(
        note.contains("each run's own tokens; FLOPs and seconds are comparable"),
        "{note}"
    );
    // A loss of ln 2 nats per byte is one bit per byte. A part of a word has several bytes.
    let last = |csv: &str, run: &str| -> f64 {
        let line = csv
            .lines()
            .rfind(|line| line.starts_with(&format!("{run},")))
            .unwrap();
        line.rsplit(',').next().unwrap().parse().unwrap()
    };
    let ratio = |run: &str| last(&nats, run) / std::f64::consts::LN_2 / last(&csv, run);
    assert!((ratio("bytes") - 1.0).abs() < 1e-9, "{}", ratio("bytes"));
    assert!(ratio("bpe") > 1.2, "{}", ratio("bpe"));
    // Without the text, the number of bytes per token is unknown.
    fs::remove_file(scratch.path("my.txt")).unwrap();
    let (csv, note) = plot(&[]);
    assert!(csv.starts_with("run,tokens,valid_loss\n"), "{csv}");
    assert!(note.contains("bits per byte are not known"), "{note}");
    let mut command = outside(&scratch, "plot");
    fails(
        command.args(["bpe", "--y", "bits_per_byte"]),
        2,
        &["my.txt"],
    );
}

#[test]
fn losses_on_different_texts_are_noted() {
    let scratch = Scratch::new();
    let said = "note: The runs were validated on different texts, so values on the vertical axis are not comparable.";
    for (run, tokens) in [("a", "20000"), ("b", "30000"), ("c", "30000")] {
        let tokens = format!("data.source.tokens={tokens}");
        ok(smoke(&scratch.path(run)).args(["--set", &tokens]));
    }
    for (runs, is_noted) in [(["a", "b"], true), (["b", "c"], false)] {
        let output = run(outside(&scratch, "plot").args(runs));
        let noted = String::from_utf8(output.stderr).unwrap();
        assert_eq!(noted.contains(said), is_noted, "{runs:?}: {noted}");
        let mut plot = outside(&scratch, "plot");
        let output = run(plot.args(runs).args(["--y", "train_loss"]));
        let noted = String::from_utf8(output.stderr).unwrap();
        let said = said.replace("validated", "trained");
        assert_eq!(noted.contains(&said), is_noted, "{runs:?}: {noted}");
    }
}

/// A merged run, and a run that has no metrics yet, have no curve.
#[test]
fn a_run_without_a_curve_says_why_and_what_to_do() {
    let scratch = Scratch::new();
    let model = "TokenFormer(n_layer: 1, n_head: 1, width: 8, context: 16, n_attn: 8, n_ffn: 8)";
    let train = "steps: 2, warmup: 1, batch: 2, validate_batches: 1";
    scratch.file(
        "a.ron",
        format!("(model: {model}, data: (source: Synthetic(tokens: 3000)), train: ({train}))"),
    );
    ok(outside(&scratch, "train").args(["a.ron", "--run", "a"]));
    ok(outside(&scratch, "merge").args(["a", "a", "--run", "both"]));
    let why = "both` was merged from a and a and has not been trained since";
    let train = "residual-zoo train both/config.ron --init-from both --run NEW";
    fails(
        outside(&scratch, "plot").args(["a", "both"]),
        2,
        &[why, "no training curve", "plot those runs", train],
    );
    fails(
        outside(&scratch, "train").args(["--resume", "both"]),
        2,
        &[why, "no training to continue", train],
    );
    fs::remove_file(scratch.path("a/metrics.jsonl")).unwrap();
    fails(
        outside(&scratch, "plot").arg("a"),
        2,
        &["`a` has lost its metrics.jsonl; restore it"],
    );
}

/// If the disk is full, an earlier chart stays, and no other file is left beside it.
#[test]
fn a_full_disk_keeps_the_old_chart() {
    let scratch = Scratch::new();
    ok(&mut smoke(&scratch.path("a")));
    let plot = || {
        let mut command = outside(&scratch, "plot");
        command.args(["a", "--out", "plot.csv"]);
        command
    };
    let mut failed = 0;
    for at in 1.. {
        fs::write(scratch.path("plot.csv"), "old").unwrap();
        if run(&mut with_fault(plot(), at, "fail")).status.success() {
            break;
        }
        failed += 1;
        let text = fs::read_to_string(scratch.path("plot.csv")).unwrap();
        assert!(text == "old" || text.starts_with("run,"), "{at}: {text}");
        let left = fs::read_dir(scratch.path(""))
            .unwrap()
            .filter_map(Result::ok);
        let left: Vec<_> = left
            .filter(|entry| entry.path().extension().is_some_and(|it| it == "partial"))
            .collect();
        assert!(left.is_empty(), "{at}: {left:?}");
    }
    assert!(failed > 0);
}

/// The name of the temporary file beside a chart is no longer than the chart's name.
#[test]
fn a_chart_may_have_the_longest_name() {
    let scratch = Scratch::new();
    ok(&mut smoke(&scratch.path("a")));
    let name = "x".repeat(251) + ".svg";
    for _ in 0..2 {
        ok(outside(&scratch, "plot").args(["a", "--out", &name]));
        assert!(
            fs::read_to_string(scratch.path(&name))
                .unwrap()
                .starts_with("<svg")
        );
    }
}

/// In every format, names of runs are written as text.
#[cfg(unix)]
#[test]
fn names_of_runs_are_text() {
    let scratch = Scratch::new();
    ok(&mut smoke(&scratch.path("a")));
    let names = [
        "=cmd|' C calc'!A0",
        "@x",
        "<script>alert(1)<",
        "\"><img src=x onerror=y>",
        "\u{1b}]0;x\u{7}",
    ];
    for name in names {
        fs::create_dir(scratch.path(name)).unwrap();
        for file in ["config.ron", "metrics.jsonl"] {
            fs::copy(scratch.path("a").join(file), scratch.path(name).join(file)).unwrap();
        }
    }
    for format in ["svg", "html", "csv"] {
        let out = format!("plot.{format}");
        let mut command = outside(&scratch, "plot");
        ok(command.args(names).args(["--out", &out]));
        let text = fs::read_to_string(scratch.path(&out)).unwrap();
        let bad: &[&str] = match format {
            "csv" => &["\u{1b}", "\n=cmd", "\n@x", "\"=cmd"],
            _ => &["<script>alert", "<img", "\u{1b}"],
        };
        for bad in bad {
            assert!(!text.contains(*bad), "{bad:?} in {out}");
        }
    }
}
