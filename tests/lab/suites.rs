//! Runs the experiments as a user does. Tests scales, shared runs, and runs that are missing, are stopped or fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use residual_zoo_testing::program::{
    self, Scratch, end, example, fails, ok, stopped_by, text, zoo,
};
use serde_json::Value;

fn run_example(name: &str, arguments: &[&str]) -> Output {
    let mut command = example(name);
    command.args(arguments);
    command.output().unwrap()
}

fn results(runs: &Path, name: &str) -> Value {
    let path = runs.join(format!("{name}-smoke/results.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_suite_is_trained_once_shared_with_others_and_forced_again() {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().to_str().unwrap();
    let first = run_example("laurel_ablation", &["--runs", runs]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(!text(&first.stdout).contains("already trained"));
    let files = fs::read_dir(directory.path().join("laurel_ablation-smoke")).unwrap();
    let mut files: Vec<String> = files
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let expected = [
        "report.html",
        "results-1.svg",
        "results-2.svg",
        "results.csv",
        "results.json",
        "results.md",
    ];
    assert_eq!(files, expected);

    // Runs the same experiment again, then another experiment with the same runs.
    let again = run_example("laurel_ablation", &["--runs", runs]);
    assert_eq!(text(&again.stdout).matches("already trained").count(), 7);
    let other = run_example("laurel_naive_scaling", &["--runs", runs]);
    assert!(other.status.success());
    assert_eq!(text(&other.stdout).matches("already trained").count(), 3);
    let of = |name: &str, run: &str| {
        let results = results(directory.path(), name);
        let found = results["observations"].as_array().unwrap().clone();
        found.into_iter().find(|o| o["run"] == run).unwrap()["quantities"].clone()
    };
    assert_eq!(
        of("laurel_ablation", "baseline-2"),
        of("laurel_naive_scaling", "baseline-2")
    );
    assert_eq!(
        of("laurel_ablation", "RW+LR"),
        of("laurel_naive_scaling", "LAuReL-2")
    );
    assert!(of("laurel_ablation", "RW")["peak_memory"].as_f64().unwrap() > 1e6);

    // With two seeds, only the second seed is trained. With --force, all runs are trained again.
    let two_seeds = || run_example("laurel_naive_scaling", &["--runs", runs, "--seeds", "2"]);
    assert_eq!(
        text(&two_seeds().stdout).matches("already trained").count(),
        3
    );
    let forced = run_example("laurel_naive_scaling", &["--runs", runs, "--force"]);
    assert!(forced.status.success());
    assert!(!text(&forced.stdout).contains("already trained"));
    assert_eq!(
        text(&two_seeds().stdout).matches("already trained").count(),
        6
    );
}

#[test]
fn several_seeds_make_an_interval() {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().to_str().unwrap();
    let done = run_example(
        "rmt_vs_transformer",
        &["--runs", runs, "--seeds", "2", "--set", "train.steps=10"],
    );
    assert!(done.status.success(), "{}", text(&done.stderr));
    let results = results(directory.path(), "rmt_vs_transformer");
    assert_eq!(results["observations"].as_array().unwrap().len(), 4);
    let claims = results["claims"].as_array().unwrap();
    let fewer = claims
        .iter()
        .find(|c| c["claim"]["says"] == "An RMT step takes longer");
    assert!(
        fewer.unwrap()["because"]
            .as_str()
            .unwrap()
            .contains(" over 2 seeds, detectable ")
    );
    // Two seeds would be enough to judge, but the runs are too short. The output is not a terminal, so it has no color.
    let said = text(&done.stdout);
    assert_eq!(said.matches("  – not tested: ").count(), 5, "{said}");
    let meaning = "± in the table is the standard deviation over the seeds; in a claim, half the width of the 95 % interval.";
    assert!(said.contains(meaning), "{said}");
    assert!(!said.contains('\u{1b}') && said.contains("nats"), "{said}");
    assert_eq!(results["data"][0]["source"], "a synthetic language");
    let index = fs::read_to_string(directory.path().join("index.html")).unwrap();
    assert!(
        index.contains(r#"href="rmt_vs_transformer-smoke/report.html""#),
        "{index}"
    );
    let command = results["origin"]["command"].as_str().unwrap();
    assert!(
        command.ends_with("--scale smoke --set train.steps=10 --seeds 2"),
        "{command}"
    );
}

#[test]
fn what_a_model_of_a_paper_takes_is_near_its_estimate() {
    let done = run_example("recurrent_image", &["--scale", "paper", "--try"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = text(&done.stdout);
    for model in ["4 layers", "1 layer", "recurrent, 1 layer"] {
        let line = said.lines().find(|line| line.starts_with(model)).unwrap();
        let numbers = line[model.len()..].split_whitespace();
        let numbers: Vec<f64> = numbers.map(|n| n.parse().unwrap()).collect();
        let [vocabulary, whole, estimate, tried, off] = numbers[..] else {
            panic!("{line}");
        };
        assert_eq!(vocabulary, 256.0, "{line}");
        assert!(0.0 < tried && estimate < whole, "{line}");
        assert!(off.abs() < 10.0, "{line}");
        // Each number is rounded to one decimal, so the printed percentage can differ a little.
        let rounded = 0.05 * (1.0 + estimate / tried) / (tried - 0.05) + 0.0005;
        assert!(
            (estimate / tried - 1.0 - off / 100.0).abs() < rounded + 1e-9,
            "{line}"
        );
    }
    let nothing = run_example("recurrent_cost", &["--scale", "paper", "--try"]);
    assert!(nothing.status.success());
    assert!(text(&nothing.stdout).contains("nothing is trained here"));
}

#[test]
fn a_model_that_cannot_be_tried_is_named_and_the_error_has_its_own_line() {
    let too_short = [
        "--scale",
        "paper",
        "--try",
        "--set",
        "data.valid_fraction=0.999",
    ];
    let failed = run_example("recurrent_shakespeare", &too_short);
    assert!(!failed.status.success());
    let said = text(&failed.stdout);
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("6 layers") && last.ends_with(" failed") && said.ends_with('\n'));
    assert!(text(&failed.stderr).starts_with("error: the training text has"));
}

#[test]
fn a_part_of_the_runs_can_be_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().to_str().unwrap();
    let part = |name: &str, text: &str| {
        let done = run_example(name, &["--runs", runs, "--only", text]);
        assert!(done.status.success(), "{}", program::text(&done.stderr));
        let report = directory.path().join(format!("{name}-smoke-only"));
        let results = fs::read_to_string(report.join("results.json")).unwrap();
        assert!(!directory.path().join(format!("{name}-smoke")).exists());
        serde_json::from_str::<Value>(&results).unwrap()
    };
    let names = |results: &Value| {
        let found = results["observations"].as_array().unwrap().iter();
        let names = found.map(|o| o["run"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    // Selects a run by its exact name, which is also part of other names.
    let results = part("laurel_ablation", "RW");
    assert_eq!(names(&results), ["RW"]);
    assert_eq!(results["missing"][0], "baseline-2: left out");
    assert_eq!(results["claims"][0]["because"], "baseline-2 is missing");
    // Selects runs by a part of their name, and the runs that they start from.
    let results = part("tokenformer_growth", "to middle");
    assert_eq!(names(&results), ["small", "grown to middle"]);
    let command = results["origin"]["command"].as_str().unwrap();
    assert!(command.ends_with("--only 'to middle'"), "{command}");

    let none = run_example("tokenformer_growth", &["--runs", runs, "--only", "Grown"]);
    assert_eq!(none.status.code(), Some(2));
    let message = text(&none.stderr);
    assert!(
        message.contains("`--only Grown`: matches no run; the runs are `small`, `grown to middle`"),
        "{message}"
    );
}

#[test]
fn what_began_with_a_run_is_trained_again_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().to_str().unwrap();
    let growth = |arguments: &[&str]| {
        let done = run_example(
            "tokenformer_growth",
            &[&["--runs", runs], arguments].concat(),
        );
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stdout).matches("already trained").count()
    };
    assert_eq!(growth(&[]), 0);
    assert_eq!(growth(&[]), 7);
    assert_eq!(growth(&["--only", "small", "--force"]), 0);
    assert_eq!(growth(&[]), 5, "two grew from it");
}

#[test]
fn a_wrong_scale_names_the_right_ones() {
    let failed = run_example("rmt_resources", &["--scale", "huge"]);
    assert_eq!(failed.status.code(), Some(2));
    let message = text(&failed.stderr);
    assert!(
        message.contains("--scale huge") && message.contains("smoke, cpu, paper"),
        "{message}"
    );
}

#[test]
fn missing_data_are_named_before_anything_is_trained() {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().to_str().unwrap();
    let cases: [(&str, &[&str], &str); 8] = [
        (
            "rmt_vs_transformer",
            &["--data", "nowhere.txt"],
            "nowhere.txt",
        ),
        ("recurrent_image", &[], "cifar-10-batches-bin"),
        (
            "recurrent_copy",
            &["--data", "text.txt"],
            "draws its data itself",
        ),
        (
            "rmt_resources",
            &["--data", "text.txt"],
            "nothing here reads data",
        ),
        (
            "rmt_resources",
            &["--set", "train.steps=3"],
            "this experiment trains nothing; leave it out",
        ),
        (
            "rmt_vs_transformer",
            &["--data", "nowhere.txt", "--set", "data.valid_fraction=0.2"],
            "nowhere.txt",
        ),
        (
            "rmt_vs_transformer",
            &["--new-data", "text.txt"],
            "no run is on new data",
        ),
        (
            "tokenformer_net2net",
            &["--new-data", "nowhere.txt"],
            "nowhere.txt",
        ),
    ];
    for (name, arguments, expected) in cases {
        let mut all = vec!["--runs", runs];
        all.extend(arguments);
        let failed = run_example(name, &all);
        assert_eq!(failed.status.code(), Some(2), "{name}");
        let message = text(&failed.stderr);
        assert!(message.contains(expected), "{name}: {message}");
        assert!(!directory.path().join("pool").exists(), "{name}");
    }
}

#[test]
fn one_failed_run_leaves_the_others_and_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().to_str().unwrap();
    let first = run_example("laurel_naive_scaling", &["--runs", runs]);
    assert!(first.status.success());
    // One run cannot continue because its config is gone.
    let pool = directory.path().join("pool");
    let is_laurel = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .contains("LAuReL")
    };
    let broken = fs::read_dir(&pool)
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(is_laurel)
        .unwrap();
    fs::write(broken.join("config.ron"), "(model: ").unwrap();
    let second = run_example("laurel_naive_scaling", &["--runs", runs]);
    assert_eq!(second.status.code(), Some(1));
    let message = text(&second.stderr);
    assert!(
        message.contains("runs are missing: LAuReL-2, seed 1: "),
        "{message}"
    );
    let results = results(directory.path(), "laurel_naive_scaling");
    assert_eq!(results["observations"].as_array().unwrap().len(), 2);
    assert_eq!(results["missing"].as_array().unwrap().len(), 1);
    assert_eq!(results["claims"][0]["verdict"], "not-tested");
    assert_eq!(results["claims"][0]["because"], "LAuReL-2 is missing");
    let report = directory
        .path()
        .join("laurel_naive_scaling-smoke/report.html");
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("Not complete") && report.contains("LAuReL-2, seed 1"));
}

#[cfg(unix)]
#[test]
fn a_suite_that_is_stopped_goes_on_and_ends_as_if_it_had_not_been() {
    let directory = tempfile::tempdir().unwrap();
    let whole = tempfile::tempdir().unwrap();
    let arguments = |runs: &Path| {
        let runs = runs.to_str().unwrap().to_owned();
        [
            "--runs".into(),
            runs,
            "--set".into(),
            "train.steps=400".into(),
        ]
    };
    let pages = directory.path().join("pages");
    let start = || {
        let mut command = example("rmt_stream_size");
        command.args(arguments(directory.path()));
        command.arg("--publish").arg(&pages);
        command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let mut child = start();
    let pool = directory.path().join("pool");
    let begun = || {
        let entries = fs::read_dir(&pool)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        entries
            .filter(|entry| entry.path().join("metrics.jsonl").exists())
            .count()
    };
    while begun() < 2 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let interrupt = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(interrupt.success());
    let stopped = end(child);
    let said = text(&stopped.stderr);
    assert_eq!(stopped.status.code(), stopped_by("-INT"), "{said}");
    assert!(
        said.contains("stopped; to continue: repeat the command"),
        "{said}"
    );
    let partial = results(directory.path(), "rmt_stream_size");
    assert!(!partial["missing"].as_array().unwrap().is_empty());
    let page = pages.join("rmt_stream_size.md");
    assert!(!page.exists(), "a part is not published");

    let second = end(start());
    assert!(second.status.success(), "{}", text(&second.stderr));
    assert!(page.exists());
    let mut command = example("rmt_stream_size");
    let reference = command.args(arguments(whole.path())).output().unwrap();
    assert!(reference.status.success());
    let losses = |runs: &Path| {
        let results = results(runs, "rmt_stream_size");
        let found = results["observations"].as_array().unwrap().clone();
        let loss = |o: &Value| (o["run"].clone(), o["quantities"]["valid_loss"].clone());
        found.iter().map(loss).collect::<Vec<_>>()
    };
    assert_eq!(losses(directory.path()), losses(whole.path()));
    assert_eq!(losses(whole.path()).len(), 3);
}

#[test]
fn reports_and_pages_replace_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("pages/laurel_rank.md");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(&own, "notes").unwrap();
    let [runs, pages] = ["runs", "pages"].map(|name| directory.path().join(name));
    let [runs, pages] = [&runs, &pages].map(|path| path.to_str().unwrap());
    let refused = run_example("laurel_rank", &["--runs", runs, "--publish", pages]);
    assert!(!refused.status.success());
    let error = text(&refused.stderr);
    assert!(
        error.contains("is not a page of this experiment"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&own).unwrap(), "notes");
    assert!(!Path::new(runs).exists(), "nothing is trained before");
    let file = own.to_str().unwrap();
    let refused = run_example("laurel_rank", &["--runs", runs, "--publish", file]);
    assert!(text(&refused.stderr).contains("is not a directory"));

    // A full disk has left a part of a report.
    let report = Path::new(runs).join("laurel_rank-smoke");
    fs::create_dir_all(&report).unwrap();
    fs::write(report.join("report.1.partial"), "").unwrap();
    fs::remove_file(&own).unwrap();
    for _ in 0..2 {
        let published = run_example("laurel_rank", &["--runs", runs, "--publish", pages]);
        assert!(published.status.success(), "{}", text(&published.stderr));
        assert!(text(&published.stdout).contains("published: "));
    }
    assert!(
        fs::read_to_string(&own)
            .unwrap()
            .contains("experiment laurel_rank")
    );

    // A page of another scale, or of more seeds, is not replaced.
    for (page, says) in [
        (
            "\nexperiment laurel_rank, scale cpu\n",
            "has the scale `cpu`; move it",
        ),
        (
            "Means over 8 seeds ± …\n\nexperiment laurel_rank, scale smoke\n",
            "has 8 seeds, more than this command trains",
        ),
        (
            "zoo experiment laurel_rank --set train.steps=3\n\nexperiment laurel_rank, scale smoke\n",
            "was made with other `--set` or `--task` options; move it",
        ),
    ] {
        fs::write(&own, page).unwrap();
        let refused = run_example("laurel_rank", &["--runs", runs, "--publish", pages]);
        assert!(!refused.status.success());
        let error = text(&refused.stderr);
        assert!(error.contains(says), "{error}");
        assert_eq!(fs::read_to_string(&own).unwrap(), page);
    }
}

#[test]
fn reports_of_other_experiments_are_kept() {
    let scratch = Scratch::new();
    for folder in ["c1", "c2", "out"] {
        fs::create_dir(scratch.path(folder)).unwrap();
    }
    let file = |name: &str, title: &str, scales: &str| {
        let model = |width| format!("Gpt2(n_layer: 1, n_head: 1, width: {width}, context: 16)");
        let (a, b) = (model(8), model(16));
        let text = format!(
            r#"(title: "{title}", about: "", count: 256, columns: ["parameters"],
                runs: [(name: "A", model: {a}), (name: "B", model: {b})]{scales})"#
        );
        scratch.file(name, text)
    };
    let small = ", scales: (small: ())";
    let first = file("c1/ok.ron", "First", small);
    let experiment = |file: &Path, options: &[&str]| {
        let mut command = zoo("experiment");
        command.arg(file).args(options);
        command.arg("--runs").arg(scratch.path("out"));
        command
    };
    ok(&mut experiment(&first, &[]));
    ok(&mut experiment(&first, &["--only", "A"]));
    let title = || {
        let text = fs::read_to_string(scratch.path("out/ok-small/results.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["title"].clone()
    };
    for (other, report) in [
        (file("c2/ok.ron", "Second", small), "ok-small"),
        (file("c2/ok-small.ron", "First", ""), "ok-small"),
        (file("c2/ok-small-only.ron", "Third", ""), "ok-small-only"),
    ] {
        let whose = format!(
            "out/{report} holds the report of another experiment, \"First\" (experiment ok, scale small)"
        );
        let remedy = "rename the file of this one, delete that directory, or choose another place with `--runs DIR`";
        for options in [&[][..], &["--force"]] {
            fails(&mut experiment(&other, options), 2, &[&whose, remedy]);
        }
        assert_eq!(title(), "First");
    }
    // An experiment's own report is replaced, even if the title was edited or the file was moved.
    file("c1/ok.ron", "Edited", small);
    ok(&mut experiment(&first, &[]));
    assert_eq!(title(), "Edited");
    let moved = scratch.path("c2/ok.ron");
    fs::rename(&first, &moved).unwrap();
    ok(&mut experiment(&moved, &[]));
}

#[test]
fn the_file_that_is_not_of_a_report_is_named() {
    let scratch = Scratch::new();
    let file = scratch.file(
        "ok.ron",
        r#"(title: "One", about: "", count: 256, columns: ["parameters"],
            runs: [(name: "A", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16))])"#,
    );
    let experiment = || {
        let mut command = zoo("experiment");
        command.arg(&file).arg("--runs").arg(scratch.path("out"));
        command
    };
    ok(&mut experiment());
    let report = scratch.path("out/ok");
    fs::create_dir(report.join("notes")).unwrap();
    fails(
        &mut experiment(),
        2,
        &["out/ok/notes is a link or something else"],
    );
    fs::remove_dir(report.join("notes")).unwrap();
    fs::remove_dir_all(&report).unwrap();
    fs::write(&report, "mine").unwrap();
    fails(&mut experiment(), 2, &["out/ok"]);
    assert_eq!(fs::read_to_string(&report).unwrap(), "mine");
}
