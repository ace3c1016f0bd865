//! The commands of the program, from a directory outside the clone.

use std::fs;

use residual_zoo::core::ModelConfig;
use residual_zoo::{ConnectionConfig, RunConfig};
use residual_zoo_testing::program::{Scratch, fails, ok, outside, run, smoke, smoke_of, text, zoo};

#[test]
fn files_of_the_other_kind_are_told_apart() {
    let scratch = Scratch::new();
    let run = scratch.file("run.ron", "(model: Gpt2(n_layer: 1))");
    fails(
        zoo("experiment").arg(&run),
        2,
        &["is a run file", "residual-zoo train"],
    );
    // A mistake before the model is reported as a mistake in a run file.
    for (text, says) in [
        ("(train: (stepz: 3), model: Gpt2(n_layer: 1))", "stepz"),
        (
            "(train: (steps: 3, steps: 4), model: Gpt2(n_layer: 1))",
            "steps",
        ),
    ] {
        let run = scratch.file("wrong.ron", text);
        fails(zoo("train").arg(&run).arg("--check"), 2, &[says]);
    }
    let text = "(title: \"a\", about: \"b\", runs: [(name: \"c\", model: Gpt2())], columns: [])";
    let experiment = scratch.file("experiment.ron", text);
    fails(
        zoo("train").arg(&experiment),
        2,
        &["is an experiment", "residual-zoo experiment"],
    );
}

#[test]
fn a_run_that_sees_its_data_again_and_again_is_noted() {
    let many = ok(zoo("describe").args(["gpt2/smoke", "--set", "train.steps=100000"]));
    let note = many.lines().find(|line| line.starts_with("note: "));
    assert!(note.unwrap().contains("passes 569 times"), "{note:?}");
    let few = ok(zoo("describe").arg("gpt2/smoke"));
    assert!(!few.contains("note: "), "{few}");
}

#[test]
fn describe_prints_a_config_that_is_the_same_run() {
    let scratch = Scratch::new();
    let shown = ok(outside(&scratch, "describe").args(["gpt2/smoke", "--set", "train.batch=3"]));
    let (text, rest) = shown.split_once("\n\nmodel").unwrap();
    let described = RunConfig::parse(text, "described".as_ref()).unwrap();
    let preset = residual_zoo::builtin::run_file("gpt2/smoke".as_ref()).unwrap();
    let config = RunConfig::parse(preset, "smoke".as_ref()).unwrap();
    let config = config.set(&["train.batch=3".into()]).unwrap();
    assert_eq!(described, config);
    let line = |name: &str| rest.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(line("vocabulary").ends_with(" 56 token ids"), "{rest}");
    let parameters = config.model.cost(56).params.total() as f64;
    let parameters = residual_zoo::report::si(parameters);
    assert!(line("parameters").ends_with(&parameters), "{rest}");
    assert!(line("checkpoint").ends_with(" MiB"), "{rest}");
    // A checkpoint has the weights and two moments with AdamW, and the weights and one moment with SGD. With Muon, only
    // the tables have a second moment.
    let checkpoint = |setting: &str| {
        let mut describe = outside(&scratch, "describe");
        describe.args([
            "gpt2/smoke",
            "--set",
            "model.width=256",
            "--set",
            "model.n_layer=8",
        ]);
        let shown = ok(describe.args(["--set", &format!("train.{setting}")]));
        let line = shown.lines().find(|line| line.starts_with("checkpoint"));
        let number = line.unwrap().split_whitespace().nth(1).unwrap();
        number.parse::<f64>().unwrap()
    };
    let adam = checkpoint("optimizer=AdamW");
    let sgd = checkpoint("optimizer=Sgd(momentum: 0.9)");
    let muon = checkpoint("optimizer=Muon(form: Keller)");
    let average = checkpoint("ema=(decay: 0.99)");
    assert!((sgd / adam - 2.0 / 3.0).abs() < 0.01, "{sgd} {adam}");
    assert!(
        (average / adam - 4.0 / 3.0).abs() < 0.01,
        "{average} {adam}"
    );
    assert!(sgd < muon && muon < 0.7 * adam, "{sgd} {muon} {adam}");

    ok(&mut smoke(&scratch.path("run")));
    let of_run = ok(outside(&scratch, "describe").arg("run"));
    assert!(of_run.contains("steps: 4,"), "{of_run}");
    fails(
        outside(&scratch, "describe").arg("gpt2/none"),
        2,
        &["gpt2/none", "or a run file of the zoo", "residual-zoo list"],
    );
}

#[test]
fn models_of_ones_own_files_are_compared() {
    let scratch = Scratch::new();
    for (name, model) in [
        (
            "narrow",
            "Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16)",
        ),
        (
            "wide",
            "Gpt2(n_layer: 1, n_head: 2, width: 16, context: 16)",
        ),
    ] {
        let train = "steps: 4, warmup: 1, batch: 2, validate_batches: 1";
        let text =
            format!("(model: {model}, data: (source: Synthetic(tokens: 3000)), train: ({train}))");
        scratch.file(&format!("{name}.ron"), text);
    }
    let shown = ok(outside(&scratch, "compare").args(["narrow.ron", "wide.ron"]));
    for name in ["narrow", "wide"] {
        assert!(shown.contains(name), "{shown}");
        assert!(scratch.path("runs/compare").join(name).is_dir());
    }
    assert!(!shown.contains("rmt"), "{shown}");
    let report = fs::read_to_string(scratch.path("runs/compare/report.html")).unwrap();
    assert!(report.contains("residual-zoo compare narrow.ron wide.ron"));
    fails(
        outside(&scratch, "compare").args(["narrow.ron", "narrow.ron"]),
        2,
        &["narrow", "two models"],
    );
}

#[test]
fn a_comparison_of_other_models_is_replaced_by_force_alone() {
    let scratch = Scratch::new();
    for name in ["a", "b"] {
        let model = "Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16)";
        let train = "steps: 2, warmup: 1, batch: 2, validate_batches: 1";
        let text =
            format!("(model: {model}, data: (source: Synthetic(tokens: 3000)), train: ({train}))");
        scratch.file(&format!("{name}.ron"), text);
    }
    let run = |name: &str| scratch.path("runs/compare").join(name);
    ok(outside(&scratch, "compare").args(["a.ron", "b.ron"]));
    fails(
        outside(&scratch, "compare").arg("a.ron"),
        2,
        &[
            "runs/compare",
            "other models, such as `b`",
            "--run",
            "--force",
        ],
    );
    // A missing device is found before anything is deleted.
    let mut nowhere = outside(&scratch, "compare");
    nowhere.args(["a.ron", "--force", "--gpu", "7"]);
    fails(&mut nowhere, 2, &["`--gpu`"]);
    assert!(run("a").is_dir() && run("b").is_dir());
    ok(outside(&scratch, "compare").args(["a.ron", "--force"]));
    assert!(run("a").is_dir() && !run("b").exists());
    // Neither a run outside the comparison nor a file that no comparison writes is ever deleted.
    let model = ["train", "b.ron", "--run", "runs/compare/mine"];
    ok(outside(&scratch, model[0]).args(&model[1..]));
    let mut forced = outside(&scratch, "compare");
    fails(
        forced.args(["a.ron", "--force"]),
        2,
        &["runs/compare", "other content"],
    );
    assert!(run("a").is_dir() && run("mine").is_dir());
    fs::remove_dir_all(run("mine")).unwrap();
    scratch.file("runs/compare/notes.txt", "mine");
    for options in [["a.ron"].as_slice(), &["a.ron", "--force"]] {
        let mut command = outside(&scratch, "compare");
        fails(command.args(options), 2, &["runs/compare", "other content"]);
    }
    assert!(run("a").is_dir() && run("notes.txt").exists());
}

#[test]
fn a_comparison_replaces_nothing_that_is_not_its_own() {
    let scratch = Scratch::new();
    for name in ["a", "b", "report.html"] {
        let model = "Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16)";
        let train = "steps: 2, warmup: 1, batch: 2, validate_batches: 1";
        let text =
            format!("(model: {model}, data: (source: Synthetic(tokens: 3000)), train: ({train}))");
        scratch.file(&format!("{name}.ron"), text);
    }
    let place = scratch.path("runs/compare");
    let compare = |options: &[&str]| {
        let mut command = outside(&scratch, "compare");
        command.args(options);
        command
    };
    // These foreign files have the names of a comparison's files.
    fs::create_dir_all(&place).unwrap();
    for name in ["comparison.txt", "report.html"] {
        scratch.file(&format!("runs/compare/{name}"), "mine");
        for options in [["a.ron"].as_slice(), &["a.ron", "--force"]] {
            fails(&mut compare(options), 2, &["other content"]);
        }
        assert_eq!(fs::read_to_string(place.join(name)).unwrap(), "mine");
        fs::remove_file(place.join(name)).unwrap();
    }
    // Partial files that a full disk has left are no obstacle.
    scratch.file("runs/compare/comparison.1.partial", "A compa");
    ok(&mut compare(&["a.ron"]));
    // All errors are found before anything is deleted.
    let wrong = [
        ("train.precision=Bf16", "a.train.precision"),
        ("model.width=10000000", "a.model"),
    ];
    for (assignment, says) in wrong {
        let mut command = compare(&["a.ron", "--force", "--set", assignment]);
        fails(&mut command, 2, &[says]);
        assert!(place.join("a/checkpoints").is_dir());
    }
    // Other data are refused before training, and a user's own run does not count as a run of the comparison.
    let mut data = compare(&["a.ron", "b.ron", "--set", "data.source.tokens=6000"]);
    fails(&mut data, 2, &["runs/compare/a", "the data was"]);
    assert!(!place.join("b").exists());
    ok(outside(&scratch, "train").args(["b.ron", "--run", "runs/compare/b"]));
    for options in [
        ["a.ron", "b.ron"].as_slice(),
        &["a.ron", "b.ron", "--force"],
    ] {
        fails(&mut compare(options), 2, &["other content"]);
    }
    assert!(place.join("b").is_dir());
    fails(
        &mut compare(&["report.html.ron", "--run", "other"]),
        2,
        &["cannot be the name of a model"],
    );
}

#[cfg(unix)]
#[test]
fn arguments_that_are_no_text_are_no_panic() {
    use std::os::unix::ffi::OsStrExt;

    let scratch = Scratch::new();
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff.ron");
    for (command, options) in [
        ("compare", [].as_slice()),
        ("sweep", &["--over", "train.batch=1,2"]),
    ] {
        let mut command = outside(&scratch, command);
        fails(command.arg(odd).args(options), 2, &["does not exist"]);
    }
}

#[test]
fn connections_are_compared_in_models_of_other_sizes() {
    let scratch = Scratch::new();
    let mut command = outside(&scratch, "compare");
    command.args(["--connections", "--run", "compared"]);
    for assignment in [
        "model.n_layer=4",
        "model.width=16",
        "model.context=16",
        "train.steps=1",
        "train.warmup=0",
        "train.batch=1",
        "train.validate_batches=1",
    ] {
        command.args(["--set", assignment]);
    }
    let shown = ok(&mut command);
    // A line of units follows the header.
    let rows = shown.lines().skip_while(|line| !line.starts_with("model "));
    let names: Vec<&str> = rows
        .skip(2)
        .map_while(|row| row.split("  ").next().filter(|name| !name.is_empty()))
        .collect();
    // The names include `None`, and two forms of `Hyper`.
    assert_eq!(names.len(), ConnectionConfig::NAMES.len() + 2, "{shown}");
    assert!(
        names.contains(&"None") && names.contains(&"Hyper, static"),
        "{shown}"
    );
    for remark in [
        "All models have the learning rate 0.006,",
        "Each was trained once, with seed 1337:",
        "The models differ in size, from ",
    ] {
        assert!(shown.contains(remark), "{shown}");
    }
    let mut command = outside(&scratch, "compare");
    command.args(["--connections", "--set", "model.n_layer=3"]);
    fails(&mut command, 2, &["Tree.model", "even"]);
    let mut command = outside(&scratch, "compare");
    command.args(["--connections", "--set"]);
    command.arg("model=Composed(layers: [Gpt2()], connection: PerLayer(Dense()))");
    fails(&mut command, 2, &["model.connection", "leave it out"]);
    assert!(!scratch.path("runs").exists());
}

#[test]
fn an_estimate_that_is_too_low_says_so() {
    let scratch = Scratch::new();
    let note = "estimated far too low";
    for (connection, is_low) in [("AttentionResidual()", true), ("SkipInit()", false)] {
        let mut command = outside(&scratch, "describe");
        command.args(["gpt2/smoke", "--memory", "--set"]);
        command.arg(format!("model.connection=PerSublayer({connection})"));
        assert_eq!(ok(&mut command).contains(note), is_low, "{connection}");
    }
}

#[test]
fn an_experiment_of_ones_own_runs_on_ones_own_text() {
    let scratch = Scratch::new();
    scratch.file(
        "my.ron",
        r#"(
          title: "Is wider better?",
          about: "Two widths.",
          train: (steps: 6, warmup: 1, batch: 2, validate_batches: 1, validate_every: 3),
          seeds: [1, 2],
          runs: [
            (name: "narrow", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16)),
            (name: "wide", model: Gpt2(n_layer: 1, n_head: 1, width: 16, context: 16)),
          ],
          columns: ["parameters", "valid_loss"],
          charts: [(title: "Curves", x: "tokens", y: "valid_loss", curves: true)],
          claims: [(says: "The wide one is better", source: "here", test: Lower(quantity: "valid_loss", run: "wide", than: "narrow"))],
        )"#,
    );
    scratch.file(
        "my.txt",
        "to be or not to be, that is the question. ".repeat(100),
    );
    let experiment = |options: &[&str]| {
        let mut command = outside(&scratch, "experiment");
        command.arg("my.ron").args(options);
        command.env("XDG_CACHE_HOME", scratch.path("cache"));
        command
    };
    let checked = ok(&mut experiment(&["--check"]));
    assert!(
        checked.contains("narrow") && checked.contains("claims: 1;"),
        "{checked}"
    );
    assert!(!scratch.path("runs").exists());
    let shown = ok(&mut experiment(&["--data", "my.txt"]));
    assert!(shown.contains("The wide one is better (here)"), "{shown}");
    let directory = scratch.path("runs/experiments/my");
    let report = fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(
        report.contains("residual-zoo experiment my.ron --data my.txt"),
        "{report}"
    );
    // The report has all settings of each run, in the form of a run file.
    assert!(
        report.contains("<details><summary>narrow</summary>"),
        "{report}"
    );
    let markdown = || fs::read_to_string(directory.join("results.md")).unwrap();
    let page = markdown();
    let configs: Vec<&str> = page
        .split("```ron\n")
        .skip(1)
        .map(|part| part.split("```").next().unwrap())
        .collect();
    assert_eq!(configs.len(), 2, "{page}");
    let wide = RunConfig::parse(configs[1], "wide".as_ref()).unwrap();
    assert_eq!(
        (wide.model.shape().width, wide.train.steps, wide.train.seed),
        (16, 6, 1)
    );
    // The page reports seeds that are added after a look, until the results are deleted.
    let looks = "## Looks at the verdicts";
    assert!(!page.contains(looks));
    let more = ["--data", "my.txt", "--seeds", "3"];
    ok(&mut experiment(&more));
    let page = markdown();
    assert!(
        page.contains(looks) && page.contains("| claim | 2 seeds ("),
        "{page}"
    );
    ok(&mut experiment(&more));
    assert_eq!(
        fs::read_to_string(directory.join("looks.jsonl"))
            .unwrap()
            .lines()
            .count(),
        2
    );
    ok(experiment(&more).arg("--force"));
    assert!(!markdown().contains(looks));
    fails(
        &mut experiment(&["--scale", "cpu"]),
        2,
        &["--scale cpu", "the file has no scales"],
    );
    // Writes the same file with two scales.
    let text = fs::read_to_string(scratch.path("my.ron")).unwrap();
    let scales = "scales: (small: (train: (steps: 2)), large: (seeds: [1, 2], claims: [])))";
    let (before, _) = text.trim_end().rsplit_once(')').unwrap();
    scratch.file("scaled.ron", format!("{before}{scales}"));
    let scaled = |scale: &[&str]| {
        let mut command = outside(&scratch, "experiment");
        command.args(["scaled.ron", "--data", "my.txt"]).args(scale);
        command
    };
    ok(&mut scaled(&[]));
    ok(scaled(&["--scale", "large"]).arg("--check"));
    let report = scratch.path("runs/experiments/scaled-small/results.md");
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("scaled.ron --scale small"), "{report}");
    fails(
        &mut scaled(&["--scale", "larg"]),
        2,
        &["--scale larg", "did you mean `large`?", "small, large"],
    );
    fs::write(
        scratch.path("wrong.ron"),
        text.replace("than: \"narrow\"", "than: \"no\""),
    )
    .unwrap();
    fails(
        outside(&scratch, "experiment").arg("wrong.ron"),
        2,
        &["wrong.ron: claims[0]", "`no`, which is not a run"],
    );
    fails(
        outside(&scratch, "experiment").arg("gpt2/smoke"),
        2,
        &["`gpt2/smoke` is a run; train it with `residual-zoo train gpt2/smoke`"],
    );
    fails(
        outside(&scratch, "experiment").arg("rmt_vs_nothing"),
        2,
        &[
            "rmt_vs_nothing",
            "did you mean `rmt_",
            "residual-zoo list experiments",
        ],
    );
}

#[test]
fn tokenize_counts_and_fills_the_cache() {
    let scratch = Scratch::new();
    scratch.file(
        "my.txt",
        "to be or not to be, that is the question. ".repeat(100),
    );
    let mut command = outside(&scratch, "tokenize");
    command.args(["--data", "my.txt", "--tokenizer", "bpe:300"]);
    command.env("XDG_CACHE_HOME", scratch.path("cache"));
    let shown = ok(&mut command);
    assert!(
        shown.contains("training") && shown.contains("bytes per token"),
        "{shown}"
    );
    let cache = scratch.path("cache/residual-zoo/tokens");
    let head = format!(
        "my.txt, tokenized with bpe:300\ncache: {}\n",
        cache.display()
    );
    assert!(shown.starts_with(&head), "{shown}");
    assert!(cache.is_dir());
    let set = ["--set", "data.text_field=body"];
    fails(
        command.args(set),
        2,
        &["`--set data.text_field=body` has no effect, because a plain text has no fields"],
    );
}

/// Each command suggests only remedies that it has.
#[test]
fn remedies_fit_their_command() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    ok(&mut smoke_of(&run, 2));
    let config = format!("is a run; give its config, {}/config.ron\n", run.display());
    fails(zoo("tokenize").arg(&run), 2, &[&config]);
    fails(zoo("train").arg(&run), 2, &["train --resume"]);
    let to = scratch.path("nosuch/a.svg");
    let written = format!(
        "could not write {}: No such file or directory (os error 2); create its folder first, or choose another one, with `--out FILE`\n",
        to.display()
    );
    fails(zoo("plot").arg(&run).arg("--out").arg(&to), 2, &[&written]);
    fails(
        zoo("describe").args(["vit/smoke", "--tokenizer", "bpe:300"]),
        2,
        &["these data need no tokenizer", "; leave it out\n"],
    );
    fails(
        zoo("tokenize").arg("vit/smoke"),
        2,
        &["images have no tokens"],
    );
    let counting = |count: usize| {
        let model = "Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16)";
        let runs = format!(r#"[(name: "A", model: {model})]"#);
        scratch.file(
            "count.ron",
            format!(r#"(title: "Count", about: "", count: {count}, runs: {runs}, columns: ["parameters"])"#),
        )
    };
    for option in ["--data", "--tokenizer"] {
        let says = format!("`{option}` is bytes, but nothing here reads data; leave it out\n");
        let mut command = zoo("experiment");
        command.arg(counting(256)).args([option, "bytes"]);
        fails(&mut command, 2, &[&says]);
    }
    fails(
        zoo("experiment").arg(counting(0)),
        2,
        &["count` is 0; it must be at least 1"],
    );
    let mut greedy = zoo("generate");
    greedy
        .arg(&run)
        .args(["--temperature", "0", "--top-k", "5"]);
    fails(
        &mut greedy,
        2,
        &["`--top-k` has no effect with `--temperature 0`"],
    );
    let mut paths = smoke(&scratch.path("other"));
    fails(
        paths.arg("--allow-paths"),
        2,
        &["`--allow-paths` has no effect"],
    );
    let mut paths = zoo("describe");
    paths.args(["gpt2/smoke", "--allow-paths"]);
    fails(&mut paths, 2, &["`--allow-paths` has no effect"]);
    for (command, option, most) in [("experiment", "--jobs", 256), ("serve", "--batch", 1024)] {
        let (code, error) = run_of(zoo(command).arg("rmt_scaling").args([option, "0"]));
        assert_eq!(code, Some(2));
        let says = format!("must be a number from 1 to {most}");
        assert!(error.contains(&says), "{error}");
    }
    #[cfg(target_os = "linux")]
    {
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = zoo("list").stdout(full).output().unwrap();
        let error = text(&output.stderr);
        assert!(error.ends_with("; free some space\n"), "{error}");
    }
}

/// Returns the exit code of a command and its error.
fn run_of(command: &mut std::process::Command) -> (Option<i32>, String) {
    let output = run(command);
    (output.status.code(), text(&output.stderr))
}

#[test]
fn the_version_names_the_commit_and_the_backends() {
    let version = ok(&mut zoo("--version"));
    assert!(
        version.contains("commit") && version.contains("flex"),
        "{version}"
    );
}
