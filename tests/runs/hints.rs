//! Errors and notes name the remedy of a likely mistake.

use std::fs;

use residual_zoo_testing::program::{Scratch, fails, ok, run, text, zoo};
use residual_zoo_testing::runs::{MODELS, config, resume, train};

#[test]
fn a_name_that_is_nearly_right_is_suggested() {
    let scratch = Scratch::new();
    let mine = scratch.file("my.txt", "some text ".repeat(500));
    let data = format!("data.source={}", mine.display());
    let path = format!("write `Path(\"{}\")`", mine.display());
    for (setting, hint) in [
        ("train.lr=0.1", "did you mean `learning_rate`?"),
        ("train.Steps=1", "did you mean `steps`?"),
        (&data, path.as_str()),
        ("data.tokenizer=bytes", "did you mean `Bytes`?"),
        ("train.precision=bf16", "did you mean `Bf16`?"),
        ("train.steps=1.5", "the field was 60 before"),
        ("train.steps =-1", "expected a whole number from 0"),
        (
            "train.steps=[1]",
            "expected one whole number from 0, without brackets",
        ),
        (
            "train.min_learning_rate=0",
            "the field was Ratio(0.1) before",
        ),
        ("train.optimizer=Muon", "write `train.optimizer=Muon()`"),
        ("train.optimizer=", "the value is empty"),
        ("train.ema=0.99", "write `train.ema=(decay: …)`"),
        ("train.schedule=Wsd", "write `train.schedule=Wsd(decay: …)`"),
        ("train.schedule=Kausik()", "write `train.schedule=Kausik`"),
        ("model=Gpt2", "write `model=Gpt2()`"),
    ] {
        let mut command = zoo("train");
        command.args(["gpt2/smoke", "--check", "--set", setting]);
        fails(&mut command, 2, &[hint]);
    }
    for (tokenizer, hint) in [
        ("bpe", "did you mean `bpe:1024`?"),
        ("BPE:300", "did you mean `bpe:1024`?"),
        ("Bytes", "did you mean `bytes`?"),
        ("character", "did you mean `chars`?"),
    ] {
        let mut command = zoo("train");
        command.args(["gpt2/smoke", "--check", "--tokenizer", tokenizer, "--data"]);
        fails(command.arg(&mine), 2, &[hint]);
    }
}

#[test]
fn words_in_the_wrong_place_are_answered_with_their_option() {
    for (arguments, tip) in [
        (
            &["generate", "run", "Once upon"][..],
            "an option: --prompt 'Once upon'",
        ),
        (&["evaluate", "run", "my.txt"], "an option: --task my.txt"),
        (
            &["train", "gpt2/smoke", "my text.txt"],
            "an option: --data 'my text.txt'",
        ),
        (
            &["train", "gpt2/smoke", "runs/a"],
            "an option: --run runs/a",
        ),
        (
            &["train", "gpt2/smoke", "--set", "train.steps", "10"],
            "as one word: --set train.steps=10",
        ),
        (
            &["sweep", "gpt2/smoke", "--over", "train.batch", "1,2"],
            "as one word: --over train.batch='1,2'",
        ),
        (
            &["sweep", "gpt2/smoke", "--over", "train.batch=[1,2]"],
            "expected one whole number from 0, without brackets",
        ),
        (
            &["train", "gpt2/smoke", "--data", "TinyShakespeare"],
            "did you mean `tinyshakespeare`?",
        ),
    ] {
        let done = run(zoo(arguments[0]).args(&arguments[1..]));
        let error = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{error}");
        assert!(error.contains(tip), "{tip}: {error}");
    }
    // An unknown option is not treated as a misplaced word.
    let done = run(zoo("generate").args(["run", "--prompts"]));
    let error = text(&done.stderr);
    assert!(!error.contains("is an option"), "{error}");
}

#[test]
fn a_run_file_in_the_place_of_a_trained_run_is_named() {
    let scratch = Scratch::new();
    let file = scratch.path("my.ron");
    fs::write(&file, MODELS[0].1).unwrap();
    let says = |name: &str| {
        format!("is a run file; train it first with `residual-zoo train {name} --run DIR`")
    };
    for name in ["gpt2/smoke", file.to_str().unwrap()] {
        for command in ["generate", "plot", "evaluate", "serve"] {
            fails(zoo(command).arg(name), 2, &[&says(name)]);
        }
        let mut from = zoo("train");
        from.args(["gpt2/smoke", "--check", "--init-from", name]);
        fails(&mut from, 2, &[&says(name)]);
    }
    let path = scratch.path("run");
    ok(&mut train(&config(&scratch, MODELS[0].1), &path));
    let config = path.join("config.ron");
    let says = format!(
        "is the config of a run; give its directory, {}",
        path.display()
    );
    fails(zoo("generate").arg(&config), 2, &[&says]);
    fails(zoo("train").arg("--resume").arg(&config), 2, &[&says]);
    fails(
        zoo("experiment").arg(&path),
        2,
        &["is a directory; give a file"],
    );
    for name in ["a.csv", "a.html"] {
        let text = scratch.file(name, "a,b\n");
        fails(
            zoo("train").arg(&text),
            2,
            &["a run file belongs here", "`--data "],
        );
    }
    let other = scratch.file("notes.txt", "x");
    fails(
        zoo("plot").arg(&other),
        2,
        &["is a file; give a run directory"],
    );
}

#[test]
fn texts_of_other_formats_are_noted() {
    let scratch = Scratch::new();
    for (name, marks) in [
        ("a.csv", "its separators and quotes"),
        ("a.html", "its tags"),
    ] {
        let file = scratch.file(name, "one,two\n".repeat(500));
        let mut command = zoo("train");
        command.args(["gpt2/smoke", "--check", "--data"]).arg(&file);
        let done = run(&mut command);
        let error = text(&done.stderr);
        assert!(done.status.success(), "{error}");
        assert!(
            error.contains(&format!("{name}` is read as one plain text, with {marks}")),
            "{error}"
        );
    }
}

#[test]
fn line_ends_of_windows_are_named_with_their_remedy() {
    let scratch = Scratch::new();
    let lines = "the king\nis here\n";
    let unix = scratch.file("unix.txt", lines.repeat(200));
    let windows = scratch.file("windows.txt", lines.replace('\n', "\r\n"));
    let path = scratch.path("run");
    let mut first = zoo("train");
    first.args(["gpt2/smoke", "--no-tui", "--set", "train.steps=2", "--data"]);
    ok(first
        .arg(&unix)
        .args(["--tokenizer", "chars", "--run"])
        .arg(&path));
    let mut evaluate = zoo("evaluate");
    evaluate.arg(&path).arg("--task").arg(&windows);
    evaluate.arg("--out").arg(scratch.path("results"));
    fails(
        &mut evaluate,
        2,
        &["end as on Windows: convert it with `tr -d '\\r' < OLD > NEW`"],
    );
}

#[test]
fn run_files_of_the_zoo_are_found_by_their_path_too() {
    let scratch = Scratch::new();
    for name in ["gpt2/smoke", "gpt2/smoke.ron", "experiments/gpt2/smoke.ron"] {
        let mut command = zoo("describe");
        ok(command.arg(name).current_dir(scratch.path("")));
    }
}

#[test]
fn errors_of_files_say_what_stands_there() {
    let scratch = Scratch::new();
    for (name, start, says) in [
        (
            "a.png",
            &b"\x89PNG\r\n\x1a\n\0\0"[..],
            "is a picture (PNG), not a text",
        ),
        (
            "a.txt",
            b"\xff\xd8\xff\xe0\0\x10JFIF",
            "is a picture (JPEG), not a text",
        ),
        (
            "a.pdf",
            b"%PDF-1.7\n%\xe2\xe3\xcf\xd3",
            "is a PDF, not a text",
        ),
        (
            "b.txt",
            b"caf\xe9 au lait",
            "`iconv -f WINDOWS-1252 -t UTF-8 < OLD > NEW`",
        ),
    ] {
        let file = scratch.file(name, start);
        let mut command = zoo("train");
        command.args(["gpt2/smoke", "--check", "--data"]);
        fails(command.arg(&file), 2, &[name, says]);
    }
    for (ron, says) in [
        ("# comment\n(model: Gpt2())", "comments begin with `//`"),
        ("(model: Gpt2(bias: True))", "expected true or false"),
        ("(model: Gpt2(dropout: None))", "expected a number"),
        (
            "(model: Gpt2(), train: (steps: 1, steps: 2))",
            "the field `steps` is given twice",
        ),
        (
            "model:\n  gpt2",
            "expected fields with names in parentheses",
        ),
        (
            "(model: Gpt2(), data: (source: Path(a.txt)))",
            "expected text in quotes",
        ),
        (
            "(model: Gpt2(), train: (optimizer: Muon))",
            "write `Muon()`",
        ),
        (
            "(model: Gpt2(), train: (ema: 0.99, steps: 3))",
            "`train.ema`: the value has another form; write `(decay: …)`",
        ),
        (
            "(model: Gpt2(), train: (steps: 3, tokens: 1e4))",
            "train.steps` is 3, but `train.tokens` = 10000 takes 2 steps; leave one of them out",
        ),
    ] {
        let file = scratch.file("a.ron", ron);
        fails(zoo("describe").arg(&file), 2, &["a.ron:", says]);
    }
}

#[test]
fn a_checkpoint_in_the_place_of_its_run_is_named() {
    let scratch = Scratch::new();
    let path = scratch.path("run");
    ok(&mut train(&config(&scratch, MODELS[0].1), &path));
    let step = residual_zoo::runs::checkpoint::newest(&path).unwrap().path;
    for command in ["generate", "plot"] {
        let says = ["is a checkpoint; give its run", "`--checkpoint "];
        fails(zoo(command).arg(&step), 2, &says);
    }
}

#[test]
fn a_run_that_diverges_is_noted() {
    let scratch = Scratch::new();
    let shown = |rate: &str, name: &str| {
        let mut command = zoo("train");
        command.args(["gpt2/smoke", "--no-tui", "--set", rate, "--run"]);
        text(&run(command.arg(scratch.path(name))).stderr)
    };
    let diverged = shown("train.learning_rate=10", "a");
    assert!(
        diverged.contains("note: the run diverged: the validation loss rose from "),
        "{diverged}"
    );
    assert!(!shown("train.learning_rate=0.01", "b").contains("diverged"));
}

#[test]
fn data_with_another_content_and_equal_counts_are_told_apart() {
    let scratch = Scratch::new();
    let mine = scratch.file("my.txt", "some text ".repeat(500));
    let path = scratch.path("run");
    let mut first = zoo("train");
    first.args(["gpt2/smoke", "--no-tui", "--set", "train.steps=4", "--data"]);
    ok(first.arg(&mine).arg("--run").arg(&path));
    fs::write(&mine, "text some ".repeat(500)).unwrap();
    let says = ["outside of the run", "--allow-paths --allow-config-change"];
    fails(&mut resume(&path), 2, &says);
    let changed = "the content of the data has changed, but not the number of tokens";
    fails(resume(&path).arg("--data").arg(&mine), 2, &[changed]);
    let allowed = [
        "--allow-paths",
        "--allow-config-change",
        "--set",
        "train.steps=6",
    ];
    assert!(ok(resume(&path).args(allowed)).contains("changed: the content of the data"));
}

/// Reads a number such as `2.01T`.
fn number(text: &str) -> f64 {
    let prefix = "kMGT".find(|prefix| text.ends_with(prefix));
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic());
    digits.parse::<f64>().unwrap() * prefix.map_or(1.0, |at| 1e3_f64.powi(at as i32 + 1))
}

#[test]
fn a_plan_adds_up_what_an_experiment_trains() {
    let plan = |scale: &str| {
        let mut command = zoo("plan");
        ok(command.args(["hyper_ladder", "--scale", scale, "--tflops", "1e-3"]))
    };
    // One seed and no sweep.
    let shown = plan("smoke");
    let is_run = |line: &&str| line.contains(", size ");
    let flops = shown.lines().filter(is_run).map(|line| {
        let cells = line.split("  ").map(str::trim);
        let cells: Vec<&str> = cells.filter(|cell| !cell.is_empty()).collect();
        number(cells[4])
    });
    let flops: f64 = flops.sum();
    let (_, all) = shown
        .split_once("With all seeds: 16 runs, ")
        .unwrap_or_else(|| panic!("{shown}"));
    let (found, all) = all.split_once(" FLOP, ").unwrap();
    assert!((number(found) / flops - 1.0).abs() < 0.01, "{shown}");
    let (seconds, _) = all.split_once(" s on one device").unwrap();
    let seconds: f64 = seconds.parse().unwrap();
    assert!((seconds * 1e9 / flops - 1.0).abs() < 0.01, "{shown}");
    assert!(!shown.contains("the sweep takes"), "{shown}");
    // Five seeds of 16 runs, and two seeds of the points of the three swept sizes of three models.
    let shown = plan("cpu");
    assert!(shown.contains("With all seeds: 80 runs, "), "{shown}");
    assert!(
        shown.contains("the sweep takes at least 72 runs, "),
        "{shown}"
    );
    // A part of a ladder takes the swept sizes along: 4 runs of 2 seeds, and 24 of the sweep.
    let part = ["hyper_ladder", "--scale", "cpu", "--tflops", "1e-3"];
    let mut part = part.to_vec();
    part.extend(["--only", "static hyper, size 4", "--seeds", "2"]);
    let shown = ok(zoo("plan").args(part));
    assert!(shown.contains("With all seeds: 8 runs, "), "{shown}");
    assert!(
        shown.contains("the sweep takes at least 24 runs, "),
        "{shown}"
    );
    for (arguments, expected) in [
        (
            ["gpt2/smoke", "--only", "x"],
            "`--only` is given, but a run file has a single run",
        ),
        (
            ["gpt2/smoke", "--seeds", "2"],
            "`--seeds` is given, but a run file has a single run",
        ),
        (
            ["hyper_ladder", "--only", "none"],
            "`--only none`: matches no run",
        ),
        (
            ["growth_lader", "--only", "grown"],
            "did you mean `growth_ladder`",
        ),
        (
            ["hyper_ladder", "--seeds", "0"],
            "`--seeds` is 0; at least one seed is needed",
        ),
    ] {
        fails(zoo("plan").args(arguments), 2, &[expected]);
    }
}
