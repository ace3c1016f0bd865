//! Numbers that the program prints, their meaning, and options that contradict each other.

use std::fs;

use residual_zoo::builtin;
use residual_zoo_testing::program::{Scratch, fails, ok, outside, smoke, zoo};

/// The value of a line that `describe` prints.
fn described(shown: &str, name: &str) -> String {
    let line = shown
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    let value = line.unwrap_or_else(|| panic!("no {name} in {shown}"));
    value[name.len()..].trim().to_owned()
}

/// The vocabulary and the number of parameters that `plan` prints for the run `name`.
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

/// The run files whose comment states a number of parameters, such as `124M parameters`, and that number.
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
    // The content of tiny shakespeare is known, so nothing has to be downloaded.
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
fn a_check_trains_nothing_and_says_what_would_be_trained() {
    let scratch = Scratch::new();
    let mut command = outside(&scratch, "train");
    let shown = ok(command.args(["gpt2/smoke", "--check"]));
    for part in [
        "27.6k parameters for 56 token ids",
        "45k training and 5k validation tokens",
        "60 steps of 256 tokens: 15.4k tokens, 0.341 passes over the training tokens",
    ] {
        assert!(shown.contains(part), "no `{part}` in: {shown}");
    }
    assert!(!scratch.path("runs").exists());
    let curriculum = ok(outside(&scratch, "train").args(["recurrent/copy-smoke", "--check"]));
    assert!(
        curriculum.contains("600 steps of at most 1.28k tokens: at most 768k tokens"),
        "{curriculum}"
    );
    let described_as = ok(outside(&scratch, "describe").arg("recurrent/copy-smoke"));
    assert_eq!(
        described(&described_as, "tokens of the run"),
        "at most 768k"
    );
    let images = ok(outside(&scratch, "describe").arg("vit/smoke"));
    assert_eq!(described(&images, "images of the run"), "6.4k");
    let mut wrong = outside(&scratch, "train");
    wrong.args(["gpt2/smoke", "--check", "--set", "model.n_head=5"]);
    fails(&mut wrong, 2, &["model.n_head"]);
    let short = scratch.file("short.txt", "too short");
    let mut wrong = outside(&scratch, "train");
    wrong.args(["gpt2/smoke", "--check", "--data"]).arg(short);
    fails(
        &mut wrong,
        2,
        &["text has ", " tokens, but a window needs "],
    );
    let experiment = ok(outside(&scratch, "experiment").args(["rmt_scaling", "--check"]));
    let header = experiment.lines().find(|line| line.starts_with("run "));
    for column in [
        "vocabulary",
        "parameters",
        "steps",
        "tokens",
        "passes",
        "seeds",
    ] {
        assert!(header.unwrap().contains(column), "{experiment}");
    }
    assert!(!scratch.path("runs").exists());
}

#[test]
fn the_check_of_an_experiment_finds_what_would_fail_at_the_start() {
    let scratch = Scratch::new();
    let text = scratch.file("text.txt", "to be or not to be ".repeat(40));
    let of = |fields: &str, run: &str| {
        let text = format!(
            "(title: \"t\", data: (source: Path({text:?}), tokenizer: Bytes), train: (steps: 2, batch: 1), \
             columns: [\"valid_loss\"], {fields} runs: [\
             (name: \"short\", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16)), \
             (name: \"long\", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 80), {run})])"
        );
        scratch.file("experiment.ron", text)
    };
    let window = "`long`: the validation text has 76 tokens, but a window needs 81";
    let point = "short, context 80`: the validation text has";
    let sweep = "sweep: (over: [(field: \"model.context\", values: Grid([16, 80]))], seeds: [7], tuned: true),";
    let tasks = scratch.file(
        "words.jsonl",
        format!("{{\"text\": \"a {}\"}}\n", "b".repeat(80)),
    );
    let tasks = format!("tasks: [(name: \"words\", kind: \"lambada\", file: {tasks:?})],");
    let shorter = "set: [\"train.time=20\"]";
    for (fields, run, says) in [
        ("", "", window),
        (sweep, "", point),
        (&tasks, shorter, "document 0 of words"),
    ] {
        let file = of(fields, run);
        for check in [&["--check"][..], &[]] {
            fails(
                outside(&scratch, "experiment").arg(&file).args(check),
                2,
                &[says],
            );
        }
    }
    // Nothing is trained before the error.
    assert!(!scratch.path("runs").exists());
    let huge = "set: [\"model.width=100000\", \"train.time=20\"]";
    let huge = ok(outside(&scratch, "experiment")
        .arg(of("", huge))
        .arg("--check"));
    assert!(
        huge.contains("note: `long` cannot be trained here: `model` needs at least"),
        "{huge}"
    );
    let file = of("", shorter);
    ok(outside(&scratch, "experiment").arg(&file).arg("--check"));
    fs::create_dir_all(scratch.path("runs/experiments/experiment")).unwrap();
    fs::write(scratch.path("runs/experiments/experiment/mine.txt"), "mine").unwrap();
    let mut taken = outside(&scratch, "experiment");
    fails(taken.arg(&file).arg("--check"), 2, &["mine.txt"]);
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
fn missing_data_are_named_with_the_option_that_gives_them() {
    let scratch = Scratch::new();
    let text = scratch.file("text.txt", "to be or not to be ".repeat(400));
    let data = ["--data", text.to_str().unwrap()];
    let cpu = ["--scale", "cpu", data[0], data[1]];
    let paper = ["--scale", "paper", data[0], data[1]];
    let swept = [
        "--scale",
        "cpu",
        data[0],
        data[1],
        "--over",
        "train.z_loss=0,1",
    ];
    for (command, name, options, says) in [
        (
            "experiment",
            "recurrent_image",
            &[][..],
            "give the data with `--data PATH`",
        ),
        (
            "experiment",
            "recurrent_image",
            &["--jobs", "2"],
            "give the data with `--data PATH`",
        ),
        (
            "experiment",
            "tokenformer_merge",
            &cpu,
            "give the new data with `--new-data PATH`",
        ),
        (
            "experiment",
            "rmt_scaling",
            &paper,
            "give a tokenizer with `--tokenizer NAME|PATH`",
        ),
        (
            "experiment",
            "zero_shot",
            &cpu,
            "give the task with `--task wikitext=FILE`",
        ),
        (
            "sweep",
            "tokenformer_merge",
            &swept,
            "change `new_data` in the file",
        ),
    ] {
        let mut command = outside(&scratch, command);
        fails(
            command.arg(name).args(options),
            2,
            &["does not exist", says],
        );
        // A check needs no data, but notes what is missing.
        if command.get_args().next() == Some("experiment".as_ref()) {
            let shown = ok(command.arg("--check"));
            assert_eq!(shown.matches(says).count(), 1, "{shown}");
            assert!(shown.contains("note: "), "{shown}");
        }
    }
    assert!(!scratch.path("runs").exists());
}

#[test]
fn plan_and_check_name_the_scale_and_plan_notes_passes() {
    let plan = ok(zoo("plan").arg("rmt_scaling"));
    assert!(plan.starts_with("scale paper\n\nrun "), "{plan}");
    let times = "Times are at the full rate of matrix products on this machine, ";
    assert!(
        plan.contains(times) && plan.contains("; a real run takes longer."),
        "{plan}"
    );
    let smoke = ok(zoo("plan").args(["rmt_scaling", "--scale", "smoke", "--tflops", "1"]));
    assert!(smoke.starts_with("scale smoke\n"), "{smoke}");
    assert!(!smoke.contains("passes "), "{smoke}");
    let check = ok(zoo("experiment").args(["rmt_scaling", "--check"]));
    assert_eq!(check.lines().nth(1), Some("scale smoke"));
    let many = ["gpt2/smoke", "--set", "train.steps=100000", "--tflops", "1"];
    let many = ok(zoo("plan").args(many));
    assert!(
        many.contains("note: the run passes 569 times over its training tokens"),
        "{many}"
    );
    assert!(!many.contains("scale "), "{many}");
    let many = [
        "laurel_rank",
        "--scale",
        "smoke",
        "--set",
        "train.steps=1000000",
        "--tflops",
        "1",
    ];
    let many = ok(zoo("plan").args(many));
    assert_eq!(
        many.matches(" times over its training tokens").count(),
        1,
        "{many}"
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
    // Fields that the two do not share are set.
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
    // Files have the plain name of a variant that RON writes as `r#None`.
    for run in ["a", "both"] {
        let config = fs::read_to_string(scratch.path(run).join("config.ron")).unwrap();
        assert!(
            config.contains("norm_params: None,") && !config.contains("r#"),
            "{config}"
        );
    }
}

/// The user can change a path that cannot be used: exit code 2. A full disk, as in `disk.rs`, gives exit code 1.
#[cfg(unix)]
#[test]
fn a_place_that_cannot_be_written_gives_one_exit_code() {
    let scratch = Scratch::new();
    ok(&mut smoke(&scratch.path("r")));
    scratch.file("file", "");
    let few = ["--set", "train.steps=1"];
    for place in ["file/x", "/proc/x"] {
        for (command, options) in [
            ("train", ["gpt2/smoke", "--run"].as_slice()),
            ("compare", &["gpt2/smoke", "--run"]),
            (
                "sweep",
                &["gpt2/smoke", "--over", "train.batch=1,2", "--runs"],
            ),
            ("experiment", &["rmt_stream_size", "--runs"]),
        ] {
            let mut command = outside(&scratch, command);
            fails(command.args(options).arg(place).args(few), 2, &[place]);
        }
        let figure = format!("{place}/a.svg");
        fails(
            outside(&scratch, "plot").args(["r", "--out", &figure]),
            2,
            &[place],
        );
        fails(
            outside(&scratch, "export").args(["r", "--to", "hf", place]),
            2,
            &[place],
        );
        let json = format!("{place}/a.json");
        let mut bench = outside(&scratch, "bench");
        fails(bench.args(["gpt2/smoke", "--json", &json]), 2, &[place]);
    }
    let mut full = outside(&scratch, "plot");
    fails(full.args(["r", "--out", "r"]), 2, &["--out"]);
}
