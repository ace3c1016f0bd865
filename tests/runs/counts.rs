//! Numbers that the program prints, their meaning, and options that contradict each other.

use std::fs;

use residual_zoo::builtin;
use residual_zoo_testing::program::{Scratch, fails, ok, outside, smoke, zoo};

/// Returns the value in a line that `describe` prints.
pub fn described(shown: &str, name: &str) -> String {
    let line = shown
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    let value = line.unwrap_or_else(|| panic!("no {name} in {shown}"));
    value[name.len()..].trim().to_owned()
}

/// Returns the vocabulary and the number of parameters that `plan` prints for the run `name`.
fn planned(shown: &str, name: &str) -> [String; 2] {
    let row = shown
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    let row = row.unwrap_or_else(|| panic!("no {name} in {shown}"));
    let mut cells = row[name.len()..].split_whitespace().map(str::to_owned);
    [cells.next().unwrap(), cells.next().unwrap()]
}

#[test]
fn plan_and_describe_count_for_the_same_vocabulary() {
    let scratch = Scratch::new();
    scratch.file(
        "my.txt",
        "to be or not to be, that is the question. ".repeat(100),
    );
    for (config, options, size) in [
        ("gpt2/smoke", [].as_slice(), "56"),
        ("gpt2/bench-124m", &[], "50257"),
        ("recurrent/copy-smoke", &[], "16"),
        ("vit/smoke", &[], "4"),
        (
            "gpt2/smoke",
            &["--data", "my.txt", "--tokenizer", "bytes"],
            "256",
        ),
        (
            "gpt2/smoke",
            &["--data", "my.txt", "--tokenizer", "bpe:270"],
            "270",
        ),
        ("gpt2/smoke", &["--data", "my.txt"], "15"),
    ] {
        let command = |name: &str| {
            let mut command = outside(&scratch, name);
            command.arg(config).args(options);
            command.env("XDG_CACHE_HOME", scratch.path("cache"));
            command
        };
        let plan = ok(command("plan").args(["--tflops", "1", "--devices", "1"]));
        let describe = ok(&mut command("describe"));
        let expected = described(&describe, "parameters");
        assert_eq!(
            planned(&plan, config),
            [size.to_owned(), expected],
            "{plan}"
        );
        let vocabulary = described(&describe, "vocabulary");
        let ends = [format!("{size} token ids"), format!("in {size} classes")];
        assert!(
            ends.iter().any(|end| vocabulary.ends_with(end)),
            "{vocabulary}"
        );
        assert!(!plan.contains("note:"), "{plan}");
    }
}

#[test]
fn run_files_have_the_sizes_that_they_say() {
    let sizes = stated_sizes();
    assert!(sizes.len() >= 6, "{sizes:?}");
    for (name, size) in sizes {
        let shown = ok(zoo("plan").args([&name, "--tflops", "1"]));
        let millions = |size: &str| size.strip_suffix('M').unwrap().parse::<f64>().unwrap();
        let planned = millions(&planned(&shown, &name)[1]);
        assert!(
            (planned / millions(&size) - 1.0).abs() < 0.01,
            "{name}: {shown}"
        );
    }
}

/// Returns the run files whose comment states a number of parameters, such as `124M parameters`, with that number.
fn stated_sizes() -> Vec<(String, String)> {
    let sized = builtin::run_files().filter_map(|(name, text)| {
        let comment = text.lines().map_while(|line| line.strip_prefix("//"));
        let comment = comment.collect::<String>();
        let (before, _) = comment
            .split_once(" parameters with ")
            .or_else(|| comment.split_once(" parameters at "))?;
        let size = before.split_whitespace().last()?.to_owned();
        size.ends_with('M').then_some((name, size))
    });
    sized.collect()
}

#[test]
fn a_vocabulary_that_is_not_that_of_the_data_is_said_for_each_run() {
    let scratch = Scratch::new();
    let plan = |options: &[&str]| {
        let mut command = outside(&scratch, "plan");
        command
            .args(["gpt2/shakespeare-cpu", "--tflops", "1"])
            .args(options);
        command.env("XDG_CACHE_HOME", scratch.path("cache"));
        command
    };
    // The text of tiny shakespeare is known, so nothing has to be downloaded.
    let exact = ok(&mut plan(&[]));
    assert_eq!(planned(&exact, "gpt2/shakespeare-cpu")[0], "65");
    assert!(!exact.contains("note:"), "{exact}");
    let assumed = ok(&mut plan(&["--set", "data.tokenizer=Bpe(vocab_size: 300)"]));
    assert_eq!(planned(&assumed, "gpt2/shakespeare-cpu")[0], "~300");
    let note = "note: ~ marks an assumed vocabulary: the maximum of the tokenizer, because tiny shakespeare \
                is not downloaded yet";
    assert!(assumed.contains(note), "{assumed}");
    let file = ok(&mut plan(&[
        "--set",
        "data.tokenizer=File(\"tokenizer.json\")",
    ]));
    assert_eq!(planned(&file, "gpt2/shakespeare-cpu")[0], "~50304");
    assert!(file.contains("`tokenizer.json` is not here"), "{file}");
    fails(
        &mut plan(&["--data", "typo.txt"]),
        2,
        &["`--data`", "`typo.txt` does not exist"],
    );
    fails(
        &mut plan(&["--scale", "cpu"]),
        2,
        &["`--scale`", "leave it out"],
    );
}

#[test]
fn every_command_says_for_which_vocabulary_it_counts() {
    let scratch = Scratch::new();
    let started = ok(smoke(&scratch.path("run")).arg("--no-tui"));
    assert!(
        started.contains("27.6k parameters for 56 token ids"),
        "{started}"
    );
    let mut bench = outside(&scratch, "bench");
    let benched = ok(bench.args(["gpt2/smoke", "--warmup", "0", "--steps", "1"]));
    let row = benched.lines().find(|line| line.starts_with("gpt2/smoke "));
    assert!(row.unwrap().contains(" 56 "), "{benched}");
    for name in ["a", "b"] {
        let model = "Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16)";
        let train = "steps: 2, warmup: 1, batch: 2, validate_batches: 1";
        let text =
            format!("(model: {model}, data: (source: Synthetic(tokens: 3000)), train: ({train}))");
        scratch.file(&format!("{name}.ron"), text);
    }
    let compared = ok(outside(&scratch, "compare").args(["a.ron", "b.ron"]));
    assert!(compared.contains("56 token ids"), "{compared}");
    let report = fs::read_to_string(scratch.path("runs/compare/report.html")).unwrap();
    assert!(report.contains("56 token ids"));
}

#[test]
fn options_without_effect_on_counts_are_refused() {
    let scratch = Scratch::new();
    let file = scratch.file(
        "counted.ron",
        "(title: \"t\", count: 10, columns: [\"parameters\"], \
         runs: [(name: \"a\", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 8))])",
    );
    let file = file.to_str().unwrap();
    for (name, option) in [
        ("rmt_resources", ["--seeds", "3"]),
        ("rmt_resources", ["--set", "model.n_layer=3"]),
        ("laurel_latency", ["--set", "train.steps=5"]),
        (file, ["--set", "train.steps=5"]),
        (file, ["--set", "data.tokenizer=Bytes"]),
        (file, ["--seeds", "1"]),
    ] {
        let says = format!("`{}` has no effect, because ", option.join(" "));
        for check in [&["--check"][..], &[]] {
            let mut command = outside(&scratch, "experiment");
            fails(
                command.arg(name).args(option).args(check),
                2,
                &[&says, "leave it out"],
            );
        }
    }
    for (name, option) in [
        ("laurel_latency", ["--seeds", "2"]),
        (file, ["--set", "model.n_layer=2"]),
    ] {
        let mut command = outside(&scratch, "experiment");
        ok(command.arg(name).args(option).arg("--check"));
    }
}

#[test]
fn an_experiment_has_at_most_1000_seeds() {
    let scratch = Scratch::new();
    let mut command = outside(&scratch, "experiment");
    command.args(["laurel_start", "--check", "--seeds", "1001"]);
    fails(&mut command, 2, &["--seeds", "is 1001", "at most 1000"]);
    let seeds: Vec<String> = (1..=1001).map(|seed| seed.to_string()).collect();
    let file = scratch.file(
        "seeds.ron",
        format!(
            "(title: \"t\", seeds: [{}], data: (source: Synthetic(tokens: 3000)), columns: [\"valid_loss\"], \
             runs: [(name: \"a\", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 8))])",
            seeds.join(", ")
        ),
    );
    let mut command = outside(&scratch, "experiment");
    fails(
        command.arg(file).arg("--check"),
        2,
        &["seeds` are more than 1000"],
    );
}

#[test]
fn every_command_notes_a_warm_up_that_takes_all_steps_once() {
    let scratch = Scratch::new();
    let note = |steps: usize| {
        format!(
            "note: the warm-up takes {steps} steps, so the learning rate stays below its peak; set train.warmup"
        )
    };
    for (command, arguments, steps, report) in [
        (
            "train",
            vec!["gpt2/smoke", "--check", "--set", "train.steps=10"],
            10,
            None,
        ),
        (
            "describe",
            vec!["gpt2/smoke", "--set", "train.steps=10"],
            10,
            None,
        ),
        (
            "experiment",
            vec!["laurel_rank", "--check", "--set", "train.steps=10"],
            10,
            None,
        ),
        (
            "experiment",
            vec!["laurel_rank", "--only", "RW", "--set", "train.steps=2"],
            10,
            Some("runs/experiments/laurel_rank-smoke-only/report.html"),
        ),
        (
            "sweep",
            vec![
                "gpt2/smoke",
                "--over",
                "train.learning_rate=1e-3,1e-2",
                "--set",
                "train.steps=4",
            ],
            10,
            Some("runs/experiments/gpt2-smoke-sweep/report.html"),
        ),
        (
            "compare",
            vec![
                "compare/gpt2",
                "compare/rmt",
                "--set",
                "train.steps=2",
                "--set",
                "train.batch=1",
            ],
            50,
            Some("runs/compare/report.html"),
        ),
    ] {
        let shown = ok(outside(&scratch, command).args(&arguments));
        assert_eq!(shown.matches(&note(steps)).count(), 1, "{command}: {shown}");
        assert_eq!(
            shown.matches("the warm-up").count(),
            1,
            "{command}: {shown}"
        );
        if let Some(report) = report {
            let page = fs::read_to_string(scratch.path(report)).unwrap();
            let sentence = note(steps).replace("note: the", "The");
            assert_eq!(page.matches(&sentence).count(), 1, "{command}");
            if command != "compare" {
                let results = scratch.path(report).with_file_name("results.json");
                let results = fs::read_to_string(results).unwrap();
                let results: serde_json::Value = serde_json::from_str(&results).unwrap();
                let noted = note(steps).replace("note: ", "");
                assert_eq!(results["notes_of_runs"], serde_json::json!([noted]));
            }
        }
        if command == "compare" {
            let remark = "All models have the peak learning rate 0.006, but no run reached it";
            assert!(shown.contains(remark), "{shown}");
        }
    }
    let mut sweep = outside(&scratch, "sweep");
    sweep.args(["gpt2/smoke", "--over", "train.steps=9,11"]);
    let some = note(10).replace("warm-up", "warm-up of `gpt2-smoke, steps 9`");
    assert!(ok(&mut sweep).contains(&some));
}

#[test]
fn an_option_and_an_assignment_of_the_same_field_are_refused() {
    let scratch = Scratch::new();
    scratch.file("my.txt", "to be or not to be ".repeat(200));
    let model = "TokenFormer(n_layer: 1, n_head: 1, width: 8, context: 16, n_attn: 8, n_ffn: 8)";
    scratch.file("t.ron", format!("(model: {model}, train: (steps: 2))"));
    let source = "data.source=TinyShakespeare";
    for (command, arguments) in [
        ("train", ["gpt2/smoke", "--data", "my.txt", source]),
        (
            "describe",
            ["gpt2/smoke", "--data", "my.txt", "data.source.tokens=5000"],
        ),
        ("plan", ["gpt2/smoke", "--data", "my.txt", source]),
        ("plan", ["rmt_scaling", "--data", "my.txt", source]),
        ("compare", ["gpt2/smoke", "--data", "my.txt", source]),
        ("sweep", ["gpt2/smoke", "--data", "my.txt", source]),
        ("experiment", ["rmt_scaling", "--data", "my.txt", source]),
        ("tokenize", ["gpt2/smoke", "--data", "my.txt", source]),
        (
            "train",
            [
                "gpt2/shakespeare-cpu",
                "--tokenizer",
                "bytes",
                "data.tokenizer=Chars",
            ],
        ),
        (
            "tokenize",
            [
                "gpt2/shakespeare-cpu",
                "--tokenizer",
                "bytes",
                "data.tokenizer=Chars",
            ],
        ),
        ("sweep", ["gpt2/smoke", "--seeds", "2", "train.seed=5"]),
        (
            "experiment",
            ["rmt_scaling", "--seeds", "2", "train.seed=5"],
        ),
        (
            "train",
            [
                "t.ron",
                "--tune",
                "new_tokens=2",
                "model.added=(attn: 4, ffn: 4)",
            ],
        ),
        (
            "import",
            ["gpt2", "--tokenizer", "bytes", "data.tokenizer=Bytes"],
        ),
        ("bench", ["gpt2/smoke", "--steps", "2", "train.steps=3"]),
        ("import", ["gpt2", "--heads", "2", "model.n_head=4"]),
    ] {
        let [config, option, value, set] = arguments;
        let mut run = outside(&scratch, command);
        run.args([config, option, value, "--set", set]);
        match command {
            "sweep" => run.args(["--over", "train.batch=1,2"]),
            "import" => run.args(["--run", "runs/imported"]),
            _ if option == "--tune" => run.args(["--init-from", "none"]),
            _ => &mut run,
        };
        fails(
            &mut run,
            2,
            &[&format!("--set {set}"), &format!("`{option}`")],
        );
        assert!(!scratch.path("runs").exists(), "{command}");
    }
    let mut train = outside(&scratch, "tokenize");
    train.args(["--data", "my.txt", "--set", "train.steps=5"]);
    fails(&mut train, 2, &["--set train.steps=5", "only the data"]);
    // `--data` and `--set` can set different fields.
    let mut both = outside(&scratch, "describe");
    both.args([
        "gpt2/smoke",
        "--data",
        "my.txt",
        "--set",
        "data.valid_fraction=0.5",
    ]);
    both.env("XDG_CACHE_HOME", scratch.path("cache"));
    assert!(ok(&mut both).contains("valid_fraction: 0.5"));
    let mut images = outside(&scratch, "describe");
    fs::create_dir(scratch.path("cifar")).unwrap();
    images.args([
        "vit/cifar-cpu",
        "--data",
        "cifar",
        "--set",
        "data.source.crop=2",
    ]);
    fails(&mut images, 2, &["cifar"]);
}

#[test]
fn a_merged_run_is_described() {
    let scratch = Scratch::new();
    let model = "TokenFormer(n_layer: 1, n_head: 1, width: 8, context: 16, n_attn: 8, n_ffn: 8)";
    let train = "steps: 2, warmup: 1, batch: 2, validate_batches: 1";
    let text =
        format!("(model: {model}, data: (source: Synthetic(tokens: 3000)), train: ({train}))");
    scratch.file("a.ron", text);
    ok(outside(&scratch, "train").args(["a.ron", "--run", "a"]));
    let merged = ok(outside(&scratch, "merge").args(["a", "a", "--run", "both"]));
    assert!(merged.contains("parameters for 56 token ids"), "{merged}");
    let shown = ok(outside(&scratch, "describe").arg("both"));
    assert_eq!(described(&shown, "vocabulary"), "56 token ids");
    assert_eq!(
        described(&shown, "data"),
        "none, the model was merged from a and a"
    );
    let count = described(&shown, "parameters");
    assert!(
        merged.contains(&format!("{count} parameters")),
        "{merged} {shown}"
    );
    // Files have the plain name of a variant that RON would write as `r#None`.
    for run in ["a", "both"] {
        let config = fs::read_to_string(scratch.path(run).join("config.ron")).unwrap();
        assert!(
            config.contains("norm_params: None,") && !config.contains("r#"),
            "{config}"
        );
    }
}
