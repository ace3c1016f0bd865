//! Experiments whose runs are evaluated on tasks.

use std::fs;

use residual_zoo_testing::program::{Scratch, fails, ok, run, text, zoo};
use residual_zoo_testing::root;
use serde_json::Value;

/// Writes an experiment with two runs and two tasks.
fn experiment(scratch: &Scratch) -> std::path::PathBuf {
    let tasks = root().join("tests/evaluate/tasks");
    let tasks = tasks.display();
    let text = format!(
        r#"(
      title: "Two runs on two tasks", about: "", data: (source: Path("{tasks}/story.txt"), tokenizer: Bytes),
      train: (steps: 10, batch: 2, warmup: 2, validate_every: 10, validate_batches: 2),
      tasks: [(name: "endings", kind: "hellaswag", file: "{tasks}/hellaswag.jsonl"),
              (name: "words", kind: "lambada", file: "{tasks}/lambada.jsonl")],
      runs: [(name: "one", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 64)),
             (name: "two", model: Rmt(n_layer: 1, d_k: 4, d_v: 4, rank: 2, context: 64))],
      columns: ["endings acc_norm", "words perplexity"],
      claims: [(says: "Two is better", source: "nowhere", published: "",
                test: Lower(quantity: "words perplexity", run: "two", than: "one"))],
    )"#
    );
    scratch.file("two.ron", text)
}

#[test]
fn metrics_of_an_experiment_are_those_of_evaluate() {
    let scratch = Scratch::new();
    let (file, runs) = (experiment(&scratch), scratch.path("runs"));
    let command = || {
        let mut command = zoo("experiment");
        command
            .arg(&file)
            .arg("--runs")
            .arg(&runs)
            .args(["--jobs", "2"]);
        command
    };
    ok(&mut command());
    let results = fs::read(runs.join("two/results.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    let observed = results["observations"].as_array().unwrap();
    assert_eq!(observed.len(), 2);
    for found in observed {
        let pool = fs::read_dir(runs.join("pool"))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let kind = if found["run"] == "one" {
            "GPT-2"
        } else {
            "RMT"
        };
        let named = |path: &std::path::PathBuf| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(kind)
        };
        let trained = pool.filter(|path| path.is_dir()).find(named).unwrap();
        let mut evaluate = zoo("evaluate");
        evaluate.arg(&trained).arg("--out").arg(scratch.path(kind));
        let tasks = root().join("tests/evaluate/tasks");
        for task in ["hellaswag.jsonl", "lambada=lambada.jsonl"] {
            let (kind, task) = task
                .split_once('=')
                .map_or(("", task), |(kind, task)| (kind, task));
            let path = tasks.join(task).display().to_string();
            evaluate.arg("--task").arg(match kind {
                "" => path,
                kind => format!("{kind}={path}"),
            });
        }
        ok(&mut evaluate);
        let expected = fs::read(scratch.path(kind).join("results.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        for (quantity, task, metric) in [
            ("endings acc_norm", "hellaswag", "acc_norm,none"),
            ("words acc", "lambada", "acc,none"),
            ("words perplexity", "lambada", "perplexity,none"),
        ] {
            let expected = expected["results"][task][metric].as_f64().unwrap();
            let found = found["quantities"][quantity].as_f64().unwrap();
            // Other batch sizes sum in another order.
            assert!(
                (found - expected).abs() <= 1e-4 * expected.abs(),
                "{quantity}: {found}, not {expected}"
            );
        }
    }
    // Earlier scores are reused, so the samples stay as they are.
    let samples = || {
        let mut all = Vec::new();
        for folder in fs::read_dir(runs.join("evaluations")).unwrap() {
            let path = folder.unwrap().path().join("samples_words.jsonl");
            all.push((
                fs::metadata(&path).unwrap().modified().unwrap(),
                fs::read(path).unwrap(),
            ));
        }
        all
    };
    let before = samples();
    ok(&mut command());
    assert_eq!(samples(), before);
}

#[test]
fn tasks_that_do_not_fit_are_refused_before_training() {
    let scratch = Scratch::new();
    let file = experiment(&scratch);
    let command = |arguments: &[&str]| {
        let mut command = zoo("experiment");
        command
            .arg(&file)
            .arg("--runs")
            .arg(scratch.path("runs"))
            .args(arguments);
        command
    };
    fails(
        &mut command(&["--task", "x=y"]),
        2,
        &["--task x=y", "endings, words"],
    );
    fails(&mut command(&["--task", "words"]), 2, &["TASK=FILE"]);
    fails(
        &mut command(&["--task", "words=missing.jsonl", "--jobs", "2"]),
        2,
        &["missing.jsonl"],
    );
    let long = scratch.file(
        "long.jsonl",
        format!("{{\"text\": \"a {}\"}}\n", "b".repeat(80)),
    );
    let long = format!("words={}", long.display());
    fails(
        &mut command(&["--task", &long]),
        2,
        &["document 0 of words", "81 tokens"],
    );
    assert!(!scratch.path("runs/pool").exists());
    let text_of = |from: &str, to: &str| {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from));
        scratch.file("wrong.ron", text.replace(from, to))
    };
    for (from, to, says) in [
        ("kind: \"lambada\"", "kind: \"lamda\"", "`lamda`"),
        (
            "name: \"words\"",
            "name: \"endings\"",
            "two called `endings`",
        ),
        ("name: \"words\"", "name: \"../words\"", "letters"),
        (
            "columns: [",
            "columns: [\"words acc_norm\", ",
            "words acc_norm",
        ),
    ] {
        let wrong = text_of(from, to);
        let output = run(zoo("experiment").arg(wrong).arg("--check"));
        let error = text(&output.stderr);
        assert!(
            output.status.code() == Some(2) && error.contains(says),
            "{error}"
        );
    }
}

/// `--force` deletes runs only if other runs can replace them.
#[test]
fn a_command_that_cannot_begin_deletes_no_runs_and_no_report() {
    let scratch = Scratch::new();
    let (file, runs) = (experiment(&scratch), scratch.path("runs"));
    let command = |arguments: &[&str]| {
        let mut command = zoo("experiment");
        command.arg(&file).arg("--runs").arg(&runs).args(arguments);
        command
    };
    ok(&mut command(&[]));
    let report = fs::read(runs.join("two/report.html")).unwrap();
    let tasks = root().join("tests/evaluate/tasks/hellaswag.jsonl");
    let tasks = fs::read_to_string(tasks).unwrap();
    let mut long: Value = serde_json::from_str(tasks.lines().next().unwrap()).unwrap();
    long["endings"][0] = "a long ending ".repeat(30).into();
    let long = scratch.file("long.jsonl", long.to_string());
    let long = format!("endings={}", long.display());
    for arguments in [
        &["--force", "--task", &long][..],
        &["--force", "--jobs", "2", "--task", &long],
        &["--force", "--peak-tflops", "nan"],
        &["--gpu", "0"],
    ] {
        let output = command(arguments).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert_eq!(
            fs::read_dir(runs.join("pool")).unwrap().count(),
            2,
            "{said}"
        );
        assert_eq!(
            fs::read(runs.join("two/report.html")).unwrap(),
            report,
            "{said}"
        );
    }
}

#[test]
fn a_command_whose_runs_all_fail_keeps_the_earlier_report() {
    let scratch = Scratch::new();
    let (file, runs) = (experiment(&scratch), scratch.path("runs"));
    let command = |arguments: &[&str]| {
        let mut command = zoo("experiment");
        command.arg(&file).arg("--runs").arg(&runs).args(arguments);
        command
    };
    ok(&mut command(&[]));
    let report = fs::read(runs.join("two/report.html")).unwrap();
    let rate = ["--set", "train.learning_rate=1e30"];
    let output = command(&[&rate[..], &["--set", "train.max_skipped=1"]].concat()).output();
    let output = output.unwrap();
    let (said, shown) = (text(&output.stderr), text(&output.stdout));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(shown.contains("the earlier report stays"), "{shown}{said}");
    assert_eq!(fs::read(runs.join("two/report.html")).unwrap(), report);
}

#[test]
fn published_metrics_are_known_as_long_as_the_task_is_the_same() {
    let scratch = Scratch::new();
    let file = experiment(&scratch);
    let words = scratch.path("words.jsonl");
    let command = |options: &[&str]| {
        let mut command = zoo("experiment");
        command.current_dir(scratch.path("")).arg(&file);
        command.args(["--runs", "runs", "--task", "words=words.jsonl"]);
        command.args(options);
        command
    };
    let observed = || {
        let results = fs::read(scratch.path("runs/two/results.json")).unwrap();
        serde_json::from_slice::<Value>(&results).unwrap()["observations"].clone()
    };
    fs::copy(root().join("tests/evaluate/tasks/lambada.jsonl"), &words).unwrap();
    ok(&mut command(&["--publish", "pages"]));
    let first = observed();
    fs::remove_dir_all(scratch.path("runs")).unwrap();
    let shown = ok(&mut command(&["--results", "pages"]));
    assert!(!shown.contains("trained in"), "{shown}");
    assert_eq!(observed(), first);
    // With one more document, the runs are trained and evaluated.
    let mut text = fs::read_to_string(&words).unwrap();
    text += "{\"text\": \"one more word\"}\n";
    fs::write(&words, text).unwrap();
    let shown = ok(&mut command(&["--results", "pages"]));
    assert_eq!(shown.matches("trained in").count(), 2, "{shown}");
    assert_ne!(observed(), first);
}
