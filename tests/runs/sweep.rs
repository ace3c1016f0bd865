//! Sweeps, and processes that share a pool of runs.

mod points;
mod processes;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use residual_zoo_testing::program::{
    Scratch, end, ends, fails, ok, run, signal, stopped_by, text, zoo,
};
use residual_zoo_testing::runs::four_runs;
use serde_json::Value;

/// Writes the run file of a tiny model, with 8 steps and a validation every 2 steps.
fn small(scratch: &Scratch) -> PathBuf {
    scratch.file(
        "small.ron",
        "(model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 8), data: (source: Synthetic(tokens: 3000)), \
         train: (steps: 8, batch: 2, warmup: 2, log_every: 2, validate_every: 2, validate_batches: 2))",
    )
}

fn sweep(scratch: &Scratch, file: &Path, options: &[&str]) -> Command {
    let mut command = zoo("sweep");
    command.arg(file).args(options);
    command
        .current_dir(scratch.path(""))
        .args(["--runs", "out"]);
    command
}

fn results(directory: &Path) -> Value {
    let text = fs::read_to_string(directory.join("results.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the name of a sweep of `small.ron`.
fn name(scratch: &Scratch) -> String {
    let folder = scratch.path("");
    let folder = folder.file_name().unwrap().to_string_lossy().into_owned();
    format!("{folder}-small")
}

/// Returns the mean loss of every point and its share of the steps, by the point's assignments. A seed that diverged
/// has no loss.
fn tried(results: &Value, run: usize) -> BTreeMap<String, (f64, f64)> {
    let points = results["tuning"]["runs"][run]["tried"].as_array().unwrap();
    let mean = |losses: &Value| {
        let losses = losses.as_array().unwrap().iter();
        let losses: Vec<f64> = losses
            .map(|loss| loss.as_f64().unwrap_or(f64::INFINITY))
            .collect();
        losses.iter().sum::<f64>() / losses.len() as f64
    };
    let found = points.iter().map(|point| {
        let share = point["share"].as_f64().unwrap();
        (point["set"].to_string(), (mean(&point["losses"]), share))
    });
    found.collect()
}

#[test]
fn an_experiment_that_only_counts_cannot_be_swept() {
    let scratch = Scratch::new();
    let error = "trains nothing: it counts or measures its models";
    for options in [&["--over", RATES][..], &[]] {
        let mut command = sweep(&scratch, Path::new("scaling_law"), options);
        fails(
            &mut command,
            2,
            &["scaling_law-smoke", error, "residual-zoo experiment"],
        );
    }
}

const RATES: &str = "train.learning_rate=1e-3..1:log:4";

#[test]
fn the_best_point_is_found_marked_and_warned_of_at_an_edge() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    let options = ["--over", RATES, "--over", "train.batch=2,4", "--seeds", "2"];
    let shown = ok(&mut sweep(&scratch, &file, &options));
    let directory = scratch
        .path("out")
        .join(format!("{}-sweep", name(&scratch)));
    let found = results(&directory);
    let points = tried(&found, 0);
    assert_eq!(points.len(), 8);
    let best = points
        .iter()
        .min_by(|a, b| a.1.0.total_cmp(&b.1.0))
        .unwrap()
        .0;
    let marked = found["tuning"]["runs"][0]["best"].as_u64().unwrap() as usize;
    let marked = &found["tuning"]["runs"][0]["tried"][marked]["set"];
    assert_eq!(marked.to_string(), *best);
    let set: Vec<String> = serde_json::from_value(marked.clone()).unwrap();
    let line = shown
        .lines()
        .find(|line| line.starts_with("best of "))
        .unwrap();
    for assignment in &set {
        assert!(line.contains(&format!("--set {assignment}")), "{line}");
    }
    // The table has the values of every point. It also has the directories that are printed for the best point.
    let csv = fs::read_to_string(directory.join("results.csv")).unwrap();
    let columns = "run,train.learning_rate,train.batch,seed,directory,";
    assert!(
        csv.starts_with(columns) && csv.lines().count() == 1 + 8 * 2,
        "{csv}"
    );
    let places = shown.lines().filter_map(|line| line.strip_prefix("  in "));
    let places: Vec<&str> = places.collect();
    assert_eq!(places.len(), 2, "{shown}");
    for place in places {
        assert!(scratch.path(place).join("config.ron").exists(), "{place}");
        let values: Vec<&str> = set
            .iter()
            .map(|set| set.split_once('=').unwrap().1)
            .collect();
        let line = csv.lines().find(|line| line.contains(place)).unwrap();
        assert!(line.contains(&format!(",{},", values.join(","))), "{line}");
    }
    // With only two values, the best batch is always at an edge.
    assert!(
        shown.contains("end of its range; extend the range"),
        "{shown}"
    );
    let report = fs::read_to_string(directory.join("report.html")).unwrap();
    for part in [
        "✓ best",
        "Validation loss over learning rate",
        "extend the range",
    ] {
        assert!(report.contains(part), "{part}");
    }
    // Nothing is trained twice, and the results are the same.
    let again = ok(&mut sweep(&scratch, &file, &options));
    assert!(!again.contains("trained in"), "{again}");
    assert_eq!(results(&directory)["tuning"], found["tuning"]);
    // A point equals the run of `train` with the same settings.
    let plain = scratch.path("plain");
    let mut command = zoo("train");
    command
        .arg(&file)
        .arg("--run")
        .arg(&plain)
        .args(["--set", "train.seed=1"]);
    for assignment in &set {
        command.args(["--set", assignment]);
    }
    ok(&mut command);
    let rows = residual_zoo::runs::run_dir::read_metrics(&plain).unwrap();
    let points = found["tuning"]["runs"][0]["tried"].as_array().unwrap();
    let point = points.iter().find(|point| point["set"] == *marked).unwrap();
    assert_eq!(rows.last().unwrap().valid_loss, point["losses"][0].as_f64());
}

#[test]
fn an_experiment_of_the_zoo_is_swept_by_its_name_and_scale() {
    let scratch = Scratch::new();
    let options = [
        "--over",
        "train.learning_rate=1e-3,1e-2",
        "--set",
        "train.steps=11",
        "--seeds",
        "2",
    ];
    let shown = ok(&mut sweep(&scratch, Path::new("laurel_rank"), &options));
    assert!(shown.contains("best of RW: "), "{shown}");
    assert!(
        shown.contains("± is the standard deviation over the seeds."),
        "{shown}"
    );
    assert!(
        scratch
            .path("out/laurel_rank-smoke-sweep/report.html")
            .exists()
    );
    let mut wrong = sweep(&scratch, Path::new("gpt2/smoke"), &options);
    fails(
        wrong.args(["--scale", "cpu"]),
        2,
        &["--scale", "leave it out"],
    );
}

#[test]
fn several_jobs_find_the_same_as_one() {
    let one = Scratch::new();
    let several = Scratch::new();
    let found = [(&one, "1"), (&several, "3")].map(|(scratch, jobs)| {
        let file = small(scratch);
        let options = ["--over", RATES, "--seeds", "2", "--halving", "--jobs", jobs];
        ok(&mut sweep(scratch, &file, &options));
        tried(
            &results(&scratch.path("out").join(format!("{}-sweep", name(scratch)))),
            0,
        )
    });
    assert_eq!(found[0], found[1]);
}

const EXPERIMENT: &str = r#"(
  title: "Is wider better?",
  about: "Two widths, each at its best learning rate.",
  data: (source: Synthetic(tokens: 3000)),
  train: (steps: 8, batch: 2, warmup: 2, log_every: 2, validate_every: 2, validate_batches: 2),
  seeds: [1, 2],
  sweep: (
    over: [(field: "train.learning_rate", values: Log(from: 1e-3, to: 1, count: 3))],
    seeds: [SEEDS],
    tuned: true,
  ),
  runs: [
    (name: "narrow", model: Gpt2(n_layer: 1, n_head: 1, width: 4, context: 8)),
    (name: "wide", model: Gpt2(n_layer: 1, n_head: 1, width: 16, context: 8)AFTER),
  ],
  columns: ["valid_loss"],
  charts: [(title: "Losses", x: "tokens", y: "valid_loss", curves: true)],
  claims: [(says: "Wider is better", source: "here", test: Lower(quantity: "valid_loss", run: "wide", than: "narrow"))],
)"#;

#[test]
fn claims_are_judged_on_each_models_best_with_other_seeds() {
    let scratch = Scratch::new();
    let text = EXPERIMENT.replace("SEEDS", "7").replace("AFTER", "");
    let file = scratch.file("mine.ron", &text);
    let mut command = zoo("experiment");
    command.arg(&file).arg("--runs").arg(scratch.path("out"));
    ok(&mut command);
    let found = results(&scratch.path("out").join("mine"));
    for (i, name) in ["narrow", "wide"].into_iter().enumerate() {
        let best = found["tuning"]["runs"][i]["best"].as_u64().unwrap() as usize;
        let set = &found["tuning"]["runs"][i]["tried"][best]["set"][0];
        // The claim is about the runs at the best point.
        let plain = scratch.path(name);
        let config = scratch.path(&format!("{name}.ron"));
        let model = text
            .split(&format!("name: \"{name}\", model: "))
            .nth(1)
            .unwrap();
        let model = model.split("),\n").next().unwrap();
        let train = text
            .lines()
            .find(|line| line.starts_with("  train: "))
            .unwrap();
        let data = text
            .lines()
            .find(|line| line.starts_with("  data: "))
            .unwrap();
        fs::write(&config, format!("(model: {model},\n{data}\n{train}\n)")).unwrap();
        let mut command = zoo("train");
        command.arg(&config).arg("--run").arg(&plain);
        command.args(["--set", "train.seed=2", "--set", set.as_str().unwrap()]);
        ok(&mut command);
        let rows = residual_zoo::runs::run_dir::read_metrics(&plain).unwrap();
        let observed = found["observations"].as_array().unwrap().iter();
        let mut observed = observed.filter(|o| o["run"] == *name && o["seed"] == 2);
        let observed = &observed.next().unwrap()["quantities"]["valid_loss"];
        assert_eq!(rows.last().unwrap().valid_loss, observed.as_f64());
    }
    assert!(
        found["claims"][0]["because"]
            .as_str()
            .unwrap()
            .contains("2 seeds")
    );
    // The report names the point of each run.
    let directory = scratch.path("out").join("mine");
    let report = fs::read_to_string(directory.join("report.html")).unwrap();
    for part in [
        "trained at the best point of its sweep, chosen with other seeds (7)",
        "narrow: learning rate",
    ] {
        assert!(report.contains(part), "{part}");
    }
    let csv = fs::read_to_string(directory.join("results.csv")).unwrap();
    let head = csv.lines().next().unwrap();
    let columns = "run,train.learning_rate,seed,directory,";
    assert!(
        head.starts_with(columns) && head.contains("learning rate"),
        "{csv}"
    );
    let sweep = fs::read_to_string(directory.join("sweep.csv")).unwrap();
    assert_eq!(sweep.lines().count(), 1 + 2 * 3);
    assert!(sweep.starts_with(columns), "{sweep}");
    // Each line names the directory of its run.
    let runs = [(&csv, 2 * 2), (&sweep, 2 * 3)].map(|(csv, count)| {
        let lines = csv.lines().skip(1).take(count);
        let runs: Vec<PathBuf> = lines
            .map(|line| line.split(',').nth(3).unwrap().into())
            .collect();
        assert!(
            runs.iter().all(|run| run.join("config.ron").exists()),
            "{csv}"
        );
        runs
    });
    let shown = ok(&mut command);
    let places = shown.lines().filter_map(|line| line.strip_prefix("  in "));
    let places: Vec<PathBuf> = places.map(Into::into).collect();
    let (of_sweep, best) = places.split_at(2);
    assert!(
        of_sweep.iter().all(|place| runs[1].contains(place)),
        "{shown}"
    );
    assert!(best.len() == 1 && runs[0].contains(&best[0]), "{shown}");
}

#[test]
fn claims_on_runs_of_different_length_are_noted() {
    let scratch = Scratch::new();
    let text = EXPERIMENT.replace("SEEDS", "7").replace("AFTER", "");
    let shown = |text: &str| {
        let file = scratch.file("lengths.ron", text);
        ok(zoo("experiment").arg(&file).arg("--check"))
    };
    assert!(!shown(&text).contains("note: "));
    let longer = text.replace("width: 16, context: 8)", "width: 16, context: 16)");
    let shown = shown(&longer);
    for expected in [
        "different length: wide has 256 training tokens, narrow 128",
        "different validations: wide reads ",
    ] {
        assert!(shown.contains(expected), "{shown}");
    }
}

#[test]
fn sweeps_that_cannot_be_are_refused() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    let refused =
        |options: &[&str], says: &[&str]| fails(&mut sweep(&scratch, &file, options), 2, says);
    refused(&[], &["--over", "is missing", "FIELD=VALUES"]);
    refused(&["--over", "train.batch=2,2.0"], &["twice"]);
    let swept = ["--over", "train.batch=2,4", "--set", "train.batch=8"];
    refused(&swept, &["--set train.batch=8", "the sweep varies"]);
    let jobs = ["--over", "train.batch=2,4", "--jobs", "2", "--watch"];
    refused(&jobs, &["--watch", "--jobs"]);
    refused(&["--over", "train.nothing=1,2"], &["nothing"]);
    refused(&["--over", "train.batch=0,2"], &["batch"]);
    let lacking = ["--over", "train.precision=F32,Bf16"];
    refused(&lacking, &["precision", "the backend Flex"]);
    assert!(!scratch.path("out").exists());
    let unset = ["--over", "model.mup.init_std=1,2"];
    refused(&unset, &["init_std", "None", "as a whole"]);
    for (over, says) in [
        ("train.batch=2..4", "without the number of its values"),
        ("train.seed=1,2", "--seeds"),
        ("data.valid_fraction=0.1,0.2", "different validation data"),
    ] {
        let output = run(&mut sweep(&scratch, &file, &["--over", over]));
        assert_eq!(output.status.code(), Some(2));
        let error = text(&output.stderr);
        assert!(error.contains(says), "{error}");
    }
    let experiment = |seeds: &str, after: &str| {
        let text = EXPERIMENT.replace("SEEDS", seeds).replace("AFTER", after);
        let mut command = zoo("experiment");
        command.arg(scratch.file("bad.ron", text)).arg("--check");
        command
    };
    fails(&mut experiment("2", ""), 2, &["seed of the experiment too"]);
    let mut more = experiment("7", "");
    fails(
        more.args(["--seeds", "7"]),
        2,
        &["seed of the experiment too"],
    );
    let mut set = experiment("7", "");
    fails(
        set.args(["--set", "train.learning_rate=1"]),
        2,
        &["the sweep varies"],
    );
    let text = EXPERIMENT.replace("SEEDS", "7").replace("AFTER", "");
    let unknown = text.replace("train.learning_rate", "train.lr");
    let file = scratch.file("unknown.ron", unknown);
    fails(
        zoo("experiment").arg(&file).arg("--check"),
        2,
        &["train.lr", "run `narrow`"],
    );
    let file = scratch.file("good.ron", text);
    let shown = ok(zoo("experiment").arg(&file).arg("--check"));
    assert!(
        shown.contains("sweep: 6 more runs, 3 points for each"),
        "{shown}"
    );
    let vary = ", vary: (field: \"train.learning_rate\", name: \"rate\", over: [1e-3, 1e-2])";
    fails(
        &mut experiment("7", vary),
        2,
        &["varies `train.learning_rate`", "`vary` of a run"],
    );
    let after = ", after: (run: \"narrow\")";
    let halving = "tuned: true, halving: (rungs: 2, keep: 0.5),";
    let text = EXPERIMENT.replace("SEEDS", "7").replace("AFTER", after);
    let file = scratch.file("halved.ron", text.replace("tuned: true,", halving));
    fails(
        zoo("experiment").arg(&file).arg("--check"),
        2,
        &["sweep.halving", "starts from the weights of another run"],
    );
}

#[test]
fn a_run_is_tuned_after_the_run_that_it_starts_from() {
    let scratch = Scratch::new();
    let more = "),\n    (name: \"wide, longer\", model: Gpt2(n_layer: 1, n_head: 1, width: 16, context: 8), \
                after: (run: \"wide\", by: GrowFresh)";
    let text = EXPERIMENT.replace("SEEDS", "7").replace("AFTER", more);
    let file = scratch.file("mine.ron", &text);
    let mut command = zoo("experiment");
    command.arg(&file).arg("--runs").arg(scratch.path("out"));
    ok(&mut command);
    let found = results(&scratch.path("out").join("mine"));
    let runs = &found["tuning"]["runs"];
    let best = runs[1]["best"].as_u64().unwrap() as usize;
    let best = runs[1]["tried"][best]["values"][0].as_f64().unwrap();
    assert!(runs[2]["best"].is_u64(), "{}", runs[2]);
    // Three points have one seed, and the best point has two. All these runs start from the best parent.
    let pool = fs::read_dir(scratch.path("out").join("pool")).unwrap();
    let mut count = 0;
    for run in pool.map(|entry| entry.unwrap().path()) {
        let Ok(history) = residual_zoo::runs::run_dir::read_history(&run) else {
            continue;
        };
        if let Some(parent) = &history[0].init_from {
            let config = fs::read_to_string(parent.join("config.ron")).unwrap();
            let of_parent = config.lines().find_map(|line| {
                let rate = line.trim().strip_prefix("learning_rate: ")?;
                rate.trim_end_matches(',').parse::<f64>().ok()
            });
            assert_eq!(of_parent, Some(best), "{config}");
            count += 1;
        }
    }
    assert_eq!(count, 5);
}

#[test]
fn pages_of_others_are_not_overwritten() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    fs::create_dir(scratch.path("out")).unwrap();
    let page = scratch.path("out").join("index.html");
    fs::write(&page, "<h1>mine</h1>").unwrap();
    let options = ["--over", "train.batch=2,4"];
    fails(
        &mut sweep(&scratch, &file, &options),
        2,
        &["index.html", "something else"],
    );
    assert_eq!(fs::read_to_string(&page).unwrap(), "<h1>mine</h1>");
    assert!(!scratch.path("out").join("pool").exists());
    fs::remove_file(&page).unwrap();
    let folder = scratch
        .path("out")
        .join(format!("{}-sweep", name(&scratch)));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("results.json"), "mine").unwrap();
    fails(
        &mut sweep(&scratch, &file, &options),
        2,
        &["-sweep", "something else"],
    );
    assert_eq!(
        fs::read_to_string(folder.join("results.json")).unwrap(),
        "mine"
    );
    fs::remove_dir_all(&folder).unwrap();
    ok(&mut sweep(&scratch, &file, &options));
    ok(&mut sweep(&scratch, &file, &options));
}

#[test]
fn errors_name_the_option_or_the_place_in_the_file() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    for (options, says) in [
        (
            vec!["--over", "train.batch=0,4"],
            vec!["run `", "`, --over train.batch=0: train.batch: is 0"],
        ),
        (
            vec!["--over", "train.batch=4,x"],
            vec!["--over train.batch=x", "whole number"],
        ),
        (
            vec!["--over", "train.btch=2,4"],
            vec!["--over train.btch=2", "did you mean `batch`"],
        ),
        (
            vec!["--over", "train.batch=4,4"],
            vec!["`--over` has the point batch 4 twice"],
        ),
        (
            vec!["--over", "train.batch=2,4", "--over", "train.batch=2,4"],
            vec!["`--over` has `train.batch` twice"],
        ),
        (
            vec!["--over", "train.batch=2,4", "--set", "train.seed=3"],
            vec!["--set train.seed=3", "use only `--seeds`"],
        ),
        (
            vec!["--over", "train.batch=2,4", "--set", "train.warmup=-1"],
            vec!["--set train.warmup=-1"],
        ),
    ] {
        let output = run(&mut sweep(&scratch, &file, &options));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        for part in says {
            assert!(said.contains(part), "{part} in {said}");
        }
        let is_set = options.contains(&"--set");
        assert!(is_set || !said.contains("--set"), "{said}");
        assert!(!said.contains("sweep.over"), "{said}");
    }
    // If the sweep is in a file, errors name the field of the file.
    let model = "Gpt2(n_layer: 1, n_head: 1, width: 8, context: 8)";
    for (fields, of_run, place) in [
        (
            "sweep: (over: [(field: \"train.batch\", values: Grid([0]))]),",
            "",
            "sweep.over train.batch=0",
        ),
        ("", "set: [\"train.btch=2\"]", "run `a`, set train.btch=2"),
        (
            "",
            "vary: (field: \"model.widht\", name: \"w\", over: [8])",
            "run `a`, vary model.widht=8",
        ),
    ] {
        let file = scratch.file(
            "experiment.ron",
            format!("(title: \"t\", about: \"a\", columns: [\"parameters\"], {fields} runs: [(name: \"a\", model: {model}, {of_run})])"),
        );
        let mut check = zoo("experiment");
        let output = run(check.arg(&file).arg("--check"));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(place) && !said.contains("--set"), "{said}");
    }
    for (arguments, says) in [
        (
            ["laurel_start", "--scale", "cpu", "--seeds", "20"],
            "--seeds 20` does not fit: `sweep.seeds` has 11",
        ),
        (
            [
                "tokenformer_tuning",
                "--scale",
                "cpu",
                "--new-data",
                "nowhere.txt",
            ],
            "`--new-data`: `nowhere.txt` does not exist",
        ),
    ] {
        let mut experiment = zoo("experiment");
        fails(experiment.args(arguments).arg("--check"), 2, &[says]);
    }
    // If files cannot be written, the error names the option of the command.
    for (command, arguments, place) in [
        (
            "compare",
            ["compare/gpt2", "--run", "/proc/x"],
            "with `--run DIR`",
        ),
        (
            "sweep",
            ["gpt2/smoke", "--runs", "/proc/x"],
            "with `--runs DIR`",
        ),
    ] {
        let mut command = zoo(command);
        command.args(arguments);
        if place.contains("--runs") {
            command.args(["--over", "train.batch=2,4"]);
        }
        let said = text(&run(&mut command).stderr);
        assert!(said.trim_end().ends_with(place), "{said}");
    }
    let mut halved = zoo("sweep");
    halved.args([
        "tokenformer_growth",
        "--over",
        "train.batch=4,8",
        "--halving",
    ]);
    fails(&mut halved, 2, &["`--halving`: `"]);
    let mut counted = zoo("sweep");
    counted.args(["laurel_latency", "--over", "train.batch=4,8"]);
    fails(&mut counted, 2, &["trains nothing"]);
    let mut generate = zoo("generate");
    fails(
        generate.args(["run", "--top-p", "2"]),
        2,
        &["`--top-p` is 2"],
    );
}
