//! One machine publishes the results of its runs, and another machine uses them instead of training the runs again.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use residual_zoo::data::hash_of_parts;
use residual_zoo_testing::program::{self, Scratch, end, fails, ok, run, stopped_by, text, zoo};
use serde_json::Value;

/// An experiment with two runs, the second of which starts from the first. It sweeps over learning rates, one of which
/// diverges, and has each kind of claim that reads rows.
const EXPERIMENT: &str = r#"(
  title: "Published runs",
  data: (source: Synthetic(tokens: 3000)),
  train: (steps: 12, batch: 2, warmup: 2, log_every: 1, validate_every: 3, validate_batches: 2),
  seeds: [1, 2, 3],
  sweep: (over: [(field: "train.learning_rate", values: Grid([0.01, 0.02, 1e30]))], seeds: [11, 12], tuned: true),
  runs: [
    (name: "base", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 8), values: {"size": 1}),
    (name: "later", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 8), after: (run: "base"), values: {"size": 2}),
  ],
  columns: ["parameters", "tokens", "seconds", "train_loss", "valid_loss", "perplexity", "lowest_valid_loss", "step_time"],
  charts: [
    (title: "Loss", x: "tokens", y: "valid_loss", curves: true),
    (title: "Training loss", x: "flops", y: "train_loss", curves: true),
    (title: "Sizes", x: "size", y: "valid_loss"),
  ],
  claims: [
    (says: "More steps help", source: "not in the paper", test: Lower(quantity: "valid_loss", run: "later", than: "base")),
    (says: "It is sooner", source: "not in the paper", test: Sooner(axis: Tokens, run: "later", than: "base")),
  ],
)"#;

fn experiment(scratch: &Scratch, options: &[&str]) -> Command {
    let mut command = zoo("experiment");
    command.current_dir(scratch.path(""));
    command
        .args(["published.ron", "--runs", "out"])
        .args(options);
    command
}

fn results(scratch: &Scratch) -> Value {
    let text = fs::read_to_string(scratch.path("out/published/results.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the parts of the results that do not depend on the time of the report.
fn measured(results: &Value) -> Value {
    let parts = [
        "observations",
        "claims",
        "tuning",
        "missing",
        "configs",
        "data",
    ];
    let part = |name: &&str| results[name].clone();
    parts.iter().map(part).collect()
}

/// Returns the page without its time, the command, and the line about runs from a file.
fn page(scratch: &Scratch) -> String {
    let text = fs::read_to_string(scratch.path("pages/published.md")).unwrap();
    let differs = |line: &str| {
        let command = line.starts_with("residual-zoo experiment");
        command || line.starts_with("written ") || line.contains(" from a file: ")
    };
    let same = text.lines().filter(|line| !differs(line));
    same.collect::<Vec<_>>().join("\n")
}

fn charts(scratch: &Scratch) -> Vec<String> {
    let chart = |i| fs::read_to_string(scratch.path(&format!("pages/published-{i}.svg"))).unwrap();
    (1..=4).map(chart).collect()
}

fn delete_pool(scratch: &Scratch) {
    fs::remove_dir_all(scratch.path("out")).unwrap();
}

/// Publishes the experiment.
fn published() -> Scratch {
    let scratch = Scratch::new();
    scratch.file("published.ron", EXPERIMENT);
    ok(&mut experiment(&scratch, &["--publish", "pages"]));
    scratch
}

#[test]
fn published_runs_are_not_trained_again_and_give_the_same_report() {
    let scratch = published();
    let first = (
        measured(&results(&scratch)),
        page(&scratch),
        charts(&scratch),
    );
    let missing = results(&scratch)["tuning"]["runs"][0]["tried"][2]["failed"].clone();
    assert!(
        missing.as_str().unwrap().starts_with("diverged"),
        "{missing}"
    );
    let file = fs::read_to_string(scratch.path("pages/published.json")).unwrap();
    // One line for each of 2 · 3 points with 2 seeds, one for each of 2 runs with 3 seeds, and four lines around them.
    assert_eq!(file.lines().count(), 2 * 3 * 2 + 2 * 3 + 4, "{file}");
    let longest = file.lines().map(str::len).max();
    assert!(longest < Some(3000), "{longest:?}");

    for jobs in [&[][..], &["--jobs", "2"]] {
        delete_pool(&scratch);
        let options = [&["--results", "pages", "--publish", "pages"], jobs].concat();
        let shown = ok(&mut experiment(&scratch, &options));
        assert!(!shown.contains("trained in"), "{shown}");
        assert!(!scratch.path("out/pool").exists(), "{shown}");
        assert!(
            shown.contains("18 runs from a file: backend flex on "),
            "{shown}"
        );
        if jobs.is_empty() {
            let line = "already trained (pages/published.json)";
            assert_eq!(shown.matches(line).count(), 16, "{shown}");
        }
        let again = (
            measured(&results(&scratch)),
            page(&scratch),
            charts(&scratch),
        );
        assert_eq!(again, first);
        let of_file = results(&scratch)["from_file"].clone();
        assert!(
            of_file[0].as_str().unwrap().starts_with("18 runs"),
            "{of_file}"
        );
        // The same runs are published again.
        let same = fs::read_to_string(scratch.path("pages/published.json")).unwrap();
        assert_eq!(same, file);
    }
}

/// Another machine can therefore continue if this one is lost.
#[cfg(unix)]
#[test]
fn publishing_with_other_settings_loses_no_results() {
    let scratch = published();
    let read = |name: &str| fs::read_to_string(scratch.path(name)).unwrap();
    let pages = ["pages/published.md", "pages/published.json"];
    let first = pages.map(read);
    let other = ["--publish", "pages", "--set", "train.weight_decay=0.3"];
    let says = "was made with other `--set` or `--task` options; move it";
    fails(&mut experiment(&scratch, &other), 2, &[says]);
    assert_eq!(pages.map(read), first);

    // Without the page, the results file keeps the earlier runs.
    fs::remove_file(scratch.path(pages[0])).unwrap();
    ok(&mut experiment(&scratch, &other));
    let line = |line: &str| line.trim_end_matches(',').to_owned();
    let [first, both] = [first[1].clone(), read(pages[1])];
    let both: Vec<String> = both.lines().map(line).collect();
    assert_eq!(both.len(), 2 * first.lines().count() - 4);
    assert!(first.lines().map(line).all(|line| both.contains(&line)));
    delete_pool(&scratch);
    let shown = ok(&mut experiment(&scratch, &["--results", "pages"]));
    assert!(!shown.contains("trained in"), "{shown}");
    assert!(
        shown.contains("18 runs of 36 in pages/published.json not used"),
        "{shown}"
    );
    fails(
        &mut experiment(&scratch, &["--publish", "pages"]),
        2,
        &[says],
    );
}

#[test]
fn a_stopped_command_keeps_its_finished_runs_beside_the_page() {
    let scratch = Scratch::new();
    scratch.file("published.ron", EXPERIMENT);
    let longer = ["--publish", "pages", "--set", "train.steps=300"];
    let file = || fs::read_to_string(scratch.path("pages/published.json"));
    let mut counts = Vec::new();
    for _ in 0..2 {
        let mut command = experiment(&scratch, &longer);
        command.arg("--results").arg("pages");
        if counts.is_empty() {
            command = experiment(&scratch, &longer);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pool = scratch.path("out/pool");
        let begun = || fs::read_dir(&pool).map_or(0, Iterator::count);
        while begun() < 3 && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        let mut interrupt = Command::new("kill");
        interrupt.args(["-INT", &child.id().to_string()]);
        assert!(interrupt.status().unwrap().success());
        let stopped = end(child);
        let said = text(&stopped.stderr);
        assert_eq!(stopped.status.code(), stopped_by("-INT"), "{said}");
        assert!(!scratch.path("pages/published.md").exists());
        // The sweep was stopped too, which is not a divergence.
        let report = results(&scratch).to_string();
        assert!(report.contains("the sweep was stopped"), "{report}");
        assert!(!report.contains("every point of the sweep"), "{report}");
        counts.push(file().unwrap().lines().count() - 4);
        delete_pool(&scratch);
    }
    assert!(0 < counts[0] && counts[0] < counts[1], "{counts:?}");

    let more = [&longer[..], &["--results", "pages"]].concat();
    let shown = ok(&mut experiment(&scratch, &more));
    let line = "already trained (pages/published.json)";
    assert!(shown.matches(line).count() >= counts[1] - 2, "{shown}");
    assert_eq!(file().unwrap().lines().count(), 18 + 4);
    assert!(scratch.path("pages/published.md").exists());
    // Times and memory differ from one training to the next.
    let losses = || {
        let observations = results(&scratch)["observations"].clone();
        let of = |found: &Value| {
            let loss = &found["quantities"]["valid_loss"];
            [&found["run"], &found["seed"], loss].map(Value::clone)
        };
        observations
            .as_array()
            .unwrap()
            .iter()
            .map(of)
            .collect::<Vec<_>>()
    };
    let first = losses();
    assert_eq!(first.len(), 6);
    delete_pool(&scratch);
    ok(&mut experiment(&scratch, &longer));
    assert_eq!(losses(), first);
}

#[test]
fn a_run_is_trained_if_its_weights_are_needed_or_the_user_forces_it() {
    let scratch = published();
    delete_pool(&scratch);
    // The second run changes, so only the weights of the first run are needed.
    let text = EXPERIMENT.replace(
        r#"after: (run: "base")"#,
        r#"after: (run: "base"), set: ["train.weight_decay=0.2"]"#,
    );
    scratch.file("published.ron", &text);
    let shown = ok(&mut experiment(
        &scratch,
        &["--results", "pages", "--only", "base"],
    ));
    assert!(!shown.contains("trained in"), "{shown}");
    let note = "note: 9 runs of 18 in pages/published.json not used";
    assert!(shown.replace("\n  ", " ").contains(note), "{shown}");
    let shown = ok(&mut experiment(&scratch, &["--results", "pages"]));
    let trained = shown.lines().filter(|line| line.contains("trained in"));
    let trained: Vec<&str> = trained.collect();
    assert!(
        trained.iter().any(|line| line.contains(" later, seed 1:")),
        "{shown}"
    );
    assert!(
        trained.iter().any(|line| line.contains(" base, seed 1:")),
        "{shown}"
    );
    // Checks points of the sweep from which no run starts.
    let known = |name: &str| {
        let mut lines = shown.lines().filter(|line| line.contains(name));
        lines.all(|line| line.contains("already trained (pages/published.json)"))
    };
    let others = [0.01, 0.02].map(|rate| known(&format!(" base, learning rate {rate}, seed 11:")));
    assert!(others.contains(&true), "{shown}");

    // Runs in the pool take precedence.
    let shown = ok(&mut experiment(&scratch, &["--results", "pages"]));
    assert!(!shown.contains("trained in"), "{shown}");
    let own = shown
        .lines()
        .find(|line| line.contains(" base, seed 1:"))
        .unwrap();
    assert!(!own.contains("pages"), "{own}");
    let shown = ok(&mut experiment(
        &scratch,
        &["--results", "pages", "--force"],
    ));
    assert!(!shown.contains("already trained (pages"), "{shown}");
    let shown = ok(&mut experiment(
        &scratch,
        &["--results", "pages", "--force", "--jobs", "2"],
    ));
    assert!(!shown.contains(" from a file: "), "{shown}");
}

#[test]
fn runs_that_another_experiment_has_published_are_not_trained_again() {
    let scratch = published();
    delete_pool(&scratch);
    // Another experiment has the runs under other names, and one more run. It draws no training losses.
    let (before, rest) = EXPERIMENT.split_once("charts: [\n").unwrap();
    let (_, after) = rest.split_once("  ],\n  claims").unwrap();
    let other = format!("{before}charts: [],\n  claims{after}");
    let other = other
        .replace("\"base\"", "\"first\"")
        .replace("\"later\"", "\"second\"");
    let more = "runs: [\n    (name: \"wider\", model: Gpt2(n_layer: 1, n_head: 1, width: 16, context: 8), values: {\"size\": 3}),";
    scratch.file("other.ron", other.replace("runs: [", more));
    let run = |name: &str, options: &[&str]| {
        let mut command = zoo("experiment");
        command.current_dir(scratch.path(""));
        command.args([name, "--runs", "out"]).args(options);
        command
    };
    let options = ["--results", "pages", "--publish", "pages"];
    let shown = ok(&mut run("other.ron", &options));
    // Three points with two seeds, and three seeds at the best point. One point diverges.
    let trained = |shown: &str| {
        let lines = shown.lines().filter(|line| line.contains("trained in"));
        let lines: Vec<&str> = lines.collect();
        assert!(lines.iter().all(|line| line.contains("] wider")), "{shown}");
        lines.len()
    };
    assert_eq!(trained(&shown), 2 * 2 + 3, "{shown}");
    assert!(shown.contains("18 runs from a file: "), "{shown}");
    let note = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        note.contains("pages/other.json does not exist; only runs"),
        "{shown}"
    );
    // The new file has all runs, under the names of this experiment, so the first file is needed no more.
    let file = fs::read_to_string(scratch.path("pages/other.json")).unwrap();
    assert!(
        file.contains(r#""run":"first""#) && !file.contains(r#""run":"base""#),
        "{file}"
    );
    fs::remove_file(scratch.path("pages/published.json")).unwrap();
    delete_pool(&scratch);
    let shown = ok(&mut run("other.ron", &options));
    assert_eq!(trained(&shown), 0, "{shown}");
    assert!(!shown.contains("does not exist"), "{shown}");
    // The first experiment draws training losses, so it needs a file of its own.
    let says = ["pages/published.json", "does not exist"];
    fails(&mut run("published.ron", &["--results", "pages"]), 2, &says);
    // A damaged file of another experiment is named.
    fs::write(
        scratch.path("pages/published.json"),
        &file[..file.len() / 2],
    )
    .unwrap();
    let says = ["pages/published.json", "restore the file"];
    fails(&mut run("other.ron", &["--results", "pages"]), 2, &says);
    // Files of another kind are left out.
    for other in [&b"{}"[..], b"\xff\xfe", b"", b"[1, 2"] {
        fs::write(scratch.path("pages/published.json"), other).unwrap();
        ok(&mut run("other.ron", &["--results", "pages"]));
    }
}

#[test]
fn the_pool_goes_on_beside_the_file() {
    let scratch = published();
    let pool = scratch.path("out/pool");
    // Deletes all runs except the runs that started from the weights of another run.
    let began = |path: &Path| {
        let history = fs::read_to_string(path.join("history.jsonl")).unwrap();
        !history.contains(r#""init_from":null"#)
    };
    let first = measured(&results(&scratch));
    for entry in fs::read_dir(&pool).unwrap() {
        let path = entry.unwrap().path();
        if !began(&path) {
            fs::remove_dir_all(path).unwrap();
        }
    }
    let shown = ok(&mut experiment(&scratch, &["--results", "pages"]));
    assert!(!shown.contains("trained in"), "{shown}");
    assert_eq!(measured(&results(&scratch)), first);
    // With one more seed, only the two runs of this seed are trained.
    let shown = ok(&mut experiment(
        &scratch,
        &["--results", "pages", "--seeds", "4", "--publish", "pages"],
    ));
    assert_eq!(shown.matches("trained in").count(), 2, "{shown}");
    let file = fs::read_to_string(scratch.path("pages/published.json")).unwrap();
    assert_eq!(file.lines().count(), 18 + 2 + 4, "{file}");
}

#[test]
fn a_file_that_is_no_file_of_these_runs_is_an_error() {
    let scratch = published();
    let file = scratch.path("pages/published.json");
    let good = fs::read_to_string(&file).unwrap();
    let refused = |says: &[&str]| {
        let says = [&["pages/published.json"], says].concat();
        fails(&mut experiment(&scratch, &["--results", "pages"]), 2, &says);
    };
    let key = good.split(r#""key":""#).nth(1).unwrap();
    let key = &key[..key.find('"').unwrap()];
    let long = "x".repeat(400);
    for (from, to, says) in [
        ("}\n]}\n", "", "restore the file"),
        (r#"{"format":2"#, r#"{"format":1"#, "has the format 1"),
        (
            r#""experiment":"published""#,
            r#""experiment":"other""#,
            "experiment `other`, not of `published`",
        ),
        (
            r#""scale":"""#,
            r#""scale":"cpu""#,
            "scale `cpu`, not of an experiment without scales",
        ),
        (r#""hosts":[{"#, r#""hosts":[{"a":1,"#, "unknown field `a`"),
        (r#""host":0"#, r#""host":7"#, "on the machine 7"),
        (
            r#""backend":"flex""#,
            r#""backend":"\u001b[2J""#,
            "has a machine with the text",
        ),
        (
            r#""backend":"flex""#,
            &format!(r#""backend":"{long}""#),
            "has a machine with the text",
        ),
        (key, "../../etc", "has a run with the key \"../../etc\""),
        (
            r#""rows":[["#,
            r#""rows":[[3],["#,
            "fewer than four numbers",
        ),
        (
            r#""rows":[["#,
            r#""rows":[[0.5,0,0,0],["#,
            "with 0.5 as a count",
        ),
        (r#""rows":[["#, r#""rows":[[0,0,0,-1],["#, "`seconds` is -1"),
        (
            r#""rows":[["#,
            r#""rows":[[99,0,0,0],["#,
            "steps do not rise",
        ),
        (
            r#""rows":[["#,
            r#""rows":[[0,0,0,1e999],["#,
            "number out of range",
        ),
        (
            r#""train_loss":"#,
            r#""train_loss":1e200,"x":"#,
            "with the number 1e+200",
        ),
        (
            r#""train_loss":"#,
            r#""train_loss":-1,"x":"#,
            "with -1 as the train_loss",
        ),
        (
            r#""valid_loss":"#,
            r#""valid_loss":null,"x":"#,
            "invalid type: null",
        ),
        (
            r#""highest_valid_accuracy":"#,
            r#""highest_valid_accuracy":2,"x":"#,
            "with 2 as the highest_valid_accuracy",
        ),
        (
            r#""peak_memory":"#,
            r#""peak_memory":-1,"x":"#,
            "with -1 as the peak_memory",
        ),
        (
            r#""first_valid_loss":"#,
            r#""first_valid_loss":1"#,
            "as the first_valid_loss, but ",
        ),
        (r#","valid_loss":"#, r#","x":"#, "without the valid_loss"),
        (
            r#""valid_loss":"#,
            r#""valid_loss":1,"valid_loss":"#,
            "has \"valid_loss\" twice",
        ),
        (
            r#","valid_loss":"#,
            r#","valid_loss":1"#,
            "as the valid_loss, but ",
        ),
        (
            r#""lowest_valid_loss":"#,
            r#""lowest_valid_loss":9"#,
            "as the lowest_valid_loss, but ",
        ),
    ] {
        let changed = good.replacen(from, to, 1);
        assert_ne!(changed, good, "{from}");
        fs::write(&file, changed).unwrap();
        refused(&[says]);
    }
    // Swaps the keys of two runs of the same seed and model, or changes a digit of a loss.
    let lines: Vec<&str> = good.lines().collect();
    let of_seed_1 = lines.iter().filter(|line| line.contains(r#""seed":1,"#));
    let keys = of_seed_1.map(|line| line.split('"').nth(3).unwrap());
    let keys: Vec<&str> = keys.collect();
    let swapped = good.replacen(keys[0], "KEY", 1);
    let swapped = swapped.replacen(keys[1], keys[0], 1);
    let swapped = swapped.replacen("KEY", keys[1], 1);
    let later = good.replacen(r#""train_loss":"#, r#""train_loss":1"#, 1);
    let elsewhere = good.replacen(r#""backend":"flex""#, r#""backend":"tch""#, 1);
    for changed in [swapped, later, elsewhere] {
        assert_ne!(changed, good);
        fs::write(&file, changed).unwrap();
        refused(&["was edited, or moved to another key, after it was written"]);
    }
    let twice = good.lines().nth(3).unwrap();
    fs::write(&file, good.replacen(twice, &format!("{twice}\n{twice}"), 1)).unwrap();
    refused(&["twice"]);
    fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    refused(&["cannot be read"]);
    fs::remove_file(&file).unwrap();
    refused(&["does not exist; publish the results first"]);
    // A file with other content, or with damaged results, is not replaced.
    let publish = ["--publish", "pages"];
    fs::write(&file, &good[..good.len() / 2]).unwrap();
    fails(
        &mut experiment(&scratch, &publish),
        2,
        &["published.json: ", "EOF", "restore the file"],
    );
    fs::write(&file, "{}").unwrap();
    fails(
        &mut experiment(&scratch, &publish),
        2,
        &["holds no results of this experiment"],
    );

    let mut nothing = zoo("experiment");
    let nowhere = scratch.path("out");
    nothing.args(["recurrent_cost", "--results", "pages", "--runs"]);
    nothing.arg(nowhere);
    fails(&mut nothing, 2, &["`--results` has no effect"]);
}

#[test]
fn results_that_do_not_fit_the_config_of_their_run_are_missing() {
    let scratch = published();
    let file = scratch.path("pages/published.json");
    let good: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    type Harm = fn(&mut Value);
    let harms: [(Harm, &str); 5] = [
        (
            |run| run["seed"] = 99.into(),
            "has the seed 99 for a run of seed ",
        ),
        (
            |run| last_row(run)[1] = 1_000_000.into(),
            "has 1000000 tokens and ",
        ),
        (
            |run| last_row(run)[2] = 1e15.into(),
            "has 192 tokens and 1000000000000000 FLOPs after 12 steps of `base`",
        ),
        (|run| run["rows"][1][1] = 1.into(), "has 1 token and "),
        (
            |run| last_row(run)[0] = 1000.into(),
            "ends `base` after 1000 steps, and not after 12",
        ),
    ];
    for (harm, says) in harms {
        delete_pool(&scratch);
        let mut changed = good.clone();
        let hosts = changed["hosts"].clone();
        let runs = changed["runs"].as_array_mut().unwrap();
        let is_whole = |run: &&mut Value| run["point"].is_null() && run["run"] == "base";
        let run = runs.iter_mut().find(is_whole).unwrap();
        harm(run);
        seal(&hosts, run);
        fs::write(&file, changed.to_string()).unwrap();
        let done = program::run(&mut experiment(&scratch, &["--results", "pages"]));
        let shown = text(&done.stdout) + &text(&done.stderr);
        assert!(
            !done.status.success() && shown.contains(says),
            "{says}: {shown}"
        );
        assert!(
            shown.contains("restore the file, or choose another directory"),
            "{shown}"
        );
    }
}

/// Sets the hash of a run's line to the hash of its content.
fn seal(hosts: &Value, run: &mut Value) {
    let fields = [
        "key", "until", "run", "seed", "host", "point", "shared", "diverged", "tasks", "measured",
        "rows",
    ];
    let known = fields.iter().filter(|name| !run[**name].is_null());
    let parts: Vec<String> = known
        .map(|name| format!("{name:?}:{}", run[*name]))
        .collect();
    let line = format!("{{{}}}", parts.join(","));
    // Except for the last field, the fields of a machine are in alphabetical order.
    let host = &hosts[run["host"].as_u64().unwrap() as usize];
    let fields = ["backend", "machine", "commit"];
    let known = fields.iter().filter(|name| !host[**name].is_null());
    let parts: Vec<String> = known
        .map(|name| format!("{name:?}:{}", host[*name]))
        .collect();
    let host = format!("{{{}}}", parts.join(","));
    let parts = [line.as_bytes(), host.as_bytes()];
    let hash = hash_of_parts("residual-zoo result v1", &parts);
    run["blake3"] = hash.to_hex()[..12].into();
}

fn last_row(run: &mut Value) -> &mut Value {
    run["rows"].as_array_mut().unwrap().last_mut().unwrap()
}

#[test]
fn results_that_no_run_has_are_harmless() {
    let scratch = published();
    let file = scratch.path("pages/published.json");
    let good = fs::read_to_string(&file).unwrap();
    delete_pool(&scratch);
    let changed = good
        .replace(
            r#""diverged":"diverged"#,
            r#""diverged":"\u001b[2J\n# diverged"#,
        )
        .replace(
            r#""measured":{"#,
            r#""measured":{"=cmd":1,"parameters":1,"perplexity":0.5,"size":7,"#,
        )
        .replace(r#""machine":""#, r#""machine":"<b>|`"#);
    let mut changed: Value = serde_json::from_str(&changed).unwrap();
    let hosts = changed["hosts"].clone();
    let runs = changed["runs"].as_array_mut().unwrap();
    runs.iter_mut().for_each(|run| seal(&hosts, run));
    fs::write(&file, changed.to_string()).unwrap();
    let done = run(&mut experiment(
        &scratch,
        &["--results", "pages", "--publish", "pages"],
    ));
    let shown = text(&done.stdout) + &text(&done.stderr);
    assert!(
        done.status.success() && !shown.contains('\u{1b}'),
        "{shown}"
    );
    let found = results(&scratch);
    for observed in found["observations"].as_array().unwrap() {
        let quantities = &observed["quantities"];
        assert!(quantities["=cmd"].is_null() && quantities["parameters"] != 1.0);
        assert!(quantities["perplexity"].as_f64() > Some(1.0) && quantities["size"] != 7.0);
    }
    let html = fs::read_to_string(scratch.path("out/published/report.html")).unwrap();
    assert!(!html.contains("<b>|") && !html.contains("\u{1b}"));
}

#[test]
fn rungs_of_a_sweep_and_runs_that_shared_the_cores_are_known_too() {
    let scratch = Scratch::new();
    let later = EXPERIMENT.find(r#"    (name: "later""#).unwrap();
    let end = EXPERIMENT.find("  ],\n  columns").unwrap();
    let text = format!("{}{}", &EXPERIMENT[..later], &EXPERIMENT[end..]);
    let claims = text.find("  claims: ").unwrap();
    let text = format!("{})", &text[..claims]);
    let halving = "tuned: true, halving: (rungs: 2, keep: 0.5)";
    let text = text.replace("tuned: true", halving);
    scratch.file(
        "published.ron",
        text.replace("0.02, 1e30", "0.02, 1e-9, 1e30"),
    );
    ok(&mut experiment(
        &scratch,
        &["--publish", "pages", "--jobs", "2"],
    ));
    let first = measured(&results(&scratch));
    let shares: Vec<f64> = {
        let tried = results(&scratch)["tuning"]["runs"][0]["tried"].clone();
        let tried = tried.as_array().unwrap().iter();
        tried
            .map(|point| point["share"].as_f64().unwrap())
            .collect()
    };
    assert!(
        shares.iter().any(|share| 0.0 < *share && *share < 1.0),
        "{shares:?}"
    );
    delete_pool(&scratch);
    let shown = ok(&mut experiment(&scratch, &["--results", "pages"]));
    assert!(!shown.contains("trained in"), "{shown}");
    assert_eq!(measured(&results(&scratch)), first);
}
