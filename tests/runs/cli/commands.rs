//! Commands other than `train`.

use super::*;

#[test]
fn generation_goes_on_beyond_the_context() {
    let scratch = Scratch::new();
    ok(&mut smoke(&scratch.path("run")));
    let mut command = zoo("generate");
    let sample = ok(command.arg(scratch.path("run")).args(["--tokens", "100"]));
    // The output has the prompt, which is one token, and 100 further tokens. The context has only 32.
    assert_eq!(sample.split_whitespace().count(), 101);
}

#[test]
fn compare_prints_a_table_and_writes_a_report() {
    let scratch = Scratch::new();
    let directory = scratch.path("compare");
    let of_steps = |steps: usize, options: &[&str]| {
        let mut command = zoo("compare");
        command.arg("--run").arg(&directory).args(options);
        for assignment in [
            &format!("train.steps={steps}"),
            "train.warmup=1",
            "train.batch=1",
            "train.validate_batches=1",
            "data.source.tokens=20000",
        ] {
            command.args(["--set", assignment]);
        }
        command
    };
    let command = |options: &[&str]| of_steps(4, options);
    let compare = |options: &[&str]| ok(&mut command(options));
    let shown = compare(&[]);
    assert!(!shown.contains("warm-up"), "{shown}");
    // A finished run must not continue with the learning rates of another schedule.
    let mut longer = of_steps(6, &[]);
    fails(
        &mut longer,
        2,
        &["gpt2", "train.steps was 4, now 6", "--force"],
    );
    for part in [
        "model",
        "parameters",
        "FLOPs/token",
        "valid loss",
        "above entropy",
        "tokens/s",
    ] {
        assert!(shown.contains(part), "no `{part}` in: {shown}");
    }
    for model in [
        "gpt2",
        "rmt",
        "laurel",
        "tokenformer",
        "recurrent",
        "laurel-rmt",
        "llama",
    ] {
        let row = |line: &str| line.split_whitespace().next() == Some(model);
        let rows = shown
            .lines()
            .filter(|line| row(line) && line.contains('%'))
            .count();
        assert_eq!(rows, 1, "rows of {model} in: {shown}");
        assert!(directory.join(model).join("metrics.jsonl").exists());
    }
    let report = fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(report.contains("<svg") && report.contains("entropy rate"));
    let last_of = |model: &str| {
        let rows = run_dir::read_metrics(&directory.join(model)).unwrap();
        rows.last().unwrap().clone()
    };
    let first = last_of("rmt");
    assert!(compare(&[]).contains("laurel-rmt"));
    assert_eq!(
        last_of("rmt"),
        first,
        "what is trained is not trained again"
    );
    compare(&["--force"]);
    assert_ne!(last_of("rmt").seconds, first.seconds);
    let report = fs::read(directory.join("report.html")).unwrap();
    let mut other = zoo("compare");
    other
        .arg("--run")
        .arg(&directory)
        .args(["--set", "train.steps=4"]);
    fails(
        &mut other,
        2,
        &["gpt2", "train.warmup was 1, now 50", "--force"],
    );
    assert_eq!(fs::read(directory.join("report.html")).unwrap(), report);
    fs::write(directory.join("notes.txt"), "mine").unwrap();
    fails(
        zoo("compare").arg("--run").arg(&directory),
        2,
        &["already exists", "--run"],
    );
    assert_eq!(
        fs::read_to_string(directory.join("notes.txt")).unwrap(),
        "mine"
    );
}

#[test]
fn a_comparison_that_is_stopped_says_so_and_continues() {
    let scratch = Scratch::new();
    let directory = scratch.path("compare");
    let compare = || {
        let mut command = zoo("compare");
        command.args(["compare/gpt2", "compare/rmt", "compare/laurel"]);
        command.arg("--run").arg(&directory);
        for assignment in ["train.steps=150", "data.source.tokens=20000"] {
            command.args(["--set", assignment]);
        }
        command
    };
    let mut child = start(&mut compare());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "compare-rmt"));
    signal(&child, "-TERM");
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let output = end(child);
    assert_eq!(output.status.code(), stopped_by("-TERM"));
    let rest = rest.join("\n");
    let missing = "Not complete: compare-rmt and compare-laurel were not trained to the end.";
    assert!(rest.contains(missing), "{rest}");
    let said = text(&output.stderr);
    assert!(
        said.ends_with("stopped; to continue: repeat the command\n"),
        "{said}"
    );
    let report = || fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(report().contains(missing) && !report().contains("<td>compare-rmt"));
    for absent in [
        "All models",
        "Each was trained",
        "Every model",
        "same tokens",
        "is marked",
    ] {
        let said = rest.contains(absent) || report().contains(absent);
        assert!(!said, "{absent} in: {rest}");
    }
    assert!(!ok(&mut compare()).contains("Not complete"));
    assert!(report().contains("Every model was trained on the same tokens"));
    assert!(!report().contains("Not complete"));
}

#[test]
fn tokenize_takes_the_fields_of_the_data_and_refuses_what_is_no_text() {
    let scratch = Scratch::new();
    let lines = "{\"body\": \"to be or not to be\"}\n".repeat(50);
    let text = scratch.file("d.jsonl", &lines);
    let tokenize = || {
        let mut command = zoo("tokenize");
        command.arg("--data").arg(&text);
        command.args(["--tokenizer", "bytes", "--set"]);
        command.arg(format!("data.cache=Some({:?})", scratch.path("cache")));
        command
    };
    fails(&mut tokenize(), 2, &["line 1", "data.text_field"]);
    let mut command = tokenize();
    let shown = ok(command.args([
        "--set",
        "data.text_field=body",
        "--set",
        "data.valid_fraction=0.5",
    ]));
    assert!(
        shown.contains("474 training and 475 validation tokens"),
        "{shown}"
    );
    fails(&mut zoo("tokenize"), 2, &["data.source", "--data"]);
    let parquet = root().join("crates/data/testdata/pyarrow.parquet");
    let mut command = zoo("tokenize");
    command
        .arg("--data")
        .arg(&parquet)
        .args(["--tokenizer", "bpe:100000", "--set"]);
    let shown = ok(command.arg(format!("data.cache=Some({:?})", scratch.path("cache"))));
    assert!(
        shown.contains("no more pairs to merge for 100000"),
        "{shown}"
    );
}

#[test]
fn plan_says_what_every_experiment_of_the_papers_takes() {
    for source in builtin::experiments() {
        let output = run(zoo("plan").args([&source.name, "--tflops", "100"]));
        let (shown, error) = (text(&output.stdout), text(&output.stderr));
        match output.status.success() {
            true => assert!(shown.contains("100 TFLOP/s"), "{}: {shown}", source.name),
            false => assert!(error.contains("trains nothing"), "{}: {error}", source.name),
        }
    }
    let shown = ok(zoo("plan").args([SMOKE, "--memory", "--tokens-per-second", "1000"]));
    let row = shown.lines().find(|line| line.contains("MiB")).unwrap();
    let sizes: Vec<f64> = (row.split_whitespace().zip(row.split_whitespace().skip(1)))
        .filter(|(_, unit)| *unit == "MiB")
        .map(|(size, _)| size.parse().unwrap())
        .collect();
    // The sizes are the memory with all activations, the memory with recomputed activations, and the moments.
    assert!(sizes.len() == 3, "{shown}");
    assert!(sizes[1] <= sizes[0] && sizes[2] < sizes[1], "{shown}");
    for (arguments, says) in [
        (["rmt_scaling", "--tflops", "0"], "--tflops"),
        (["rmt_scaling", "--gbit", "nan"], "--gbit"),
        (["rmt_scaling", "--devices", "0"], "--devices"),
        (["rmt_scaling", "--set", "train.steps=0"], "train.steps"),
    ] {
        fails(zoo("plan").args(arguments), 2, &[says]);
    }
}

#[test]
fn bench_writes_its_figures_as_json() {
    let scratch = Scratch::new();
    let json = scratch.path("bench.json");
    let bench = |more: &[&str]| {
        let mut command = zoo("bench");
        command.arg(SMOKE).args(["--warmup", "1", "--steps", "3"]);
        command.args(more);
        command
    };
    let path = json.to_str().unwrap();
    let shown = ok(&mut bench(&["--json", path]));
    let lines: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    for key in [
        "data",
        "forward",
        "backward",
        "optimizer",
        "step",
        "tokens_per_second",
    ] {
        assert!(lines[0][key].as_f64().unwrap() > 0.0, "{key}: {lines}");
    }
    assert!(lines[0]["peak_memory"].as_u64() > Some(10_000), "{lines}");
    // A profile needs a file that can be created.
    for place in [scratch.path(""), scratch.path("none/trace.json")] {
        let mut command = bench(&[]);
        let done = run(command.env("RESIDUAL_ZOO_PROFILE", place));
        let told = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{told}");
        assert!(
            told.contains("give a file in a folder that exists"),
            "{told}"
        );
    }
    // Flex has a fast form of each operation of GPT-2. The environment variable turns the fast forms off.
    let is_plain = std::env::var_os("RESIDUAL_ZOO_OPS").is_some_and(|forms| forms == "plain");
    let plain = lines[0]["plain"].as_array().unwrap();
    assert_eq!(plain.is_empty(), !is_plain, "{lines}");
    let mut command = bench(&[]);
    let done = run(command.env("RESIDUAL_ZOO_OPS", "plain"));
    let told = text(&done.stderr);
    assert!(
        told.contains(
            "without a fast form: AdamW, GELU, attention, log Z, norm, norm of the gradients"
        ),
        "{told}"
    );
    let head: Vec<&str> = shown
        .lines()
        .filter(|line| !line.is_empty())
        .take(2)
        .collect();
    assert!(
        head[0].contains("backward") && head[1].contains("ms"),
        "{shown}"
    );

    // The stored steps take a nanosecond, so the current steps are slower.
    let mut old = lines.clone();
    let seconds = |line: &serde_json::Value, key: &str| line[key].as_f64().unwrap();
    let tokens = seconds(&old[0], "tokens_per_second") * seconds(&old[0], "step");
    for key in ["step", "fastest", "slowest"] {
        old[0][key] = 1e-9.into();
    }
    old[0]["tokens_per_second"] = (tokens / 1e-9).into();
    fs::write(&json, old.to_string()).unwrap();
    let shown = ok(&mut bench(&["--against", path]));
    assert!(shown.contains(" slower"), "{shown}");
    // If nothing is timed, the stored figures stay.
    let before = fs::read(&json).unwrap();
    assert!(
        !run(bench(&["--json", path]).args(["--gpu", "7"]))
            .status
            .success()
    );
    assert_eq!(fs::read(&json).unwrap(), before);
    // Results of another batch size are not compared.
    let shown = ok(bench(&["--against", path]).args(["--set", "train.batch=3"]));
    assert!(!shown.contains("slower"), "{shown}");
    let missing = json.with_file_name("missing").join("bench.json");
    fails(
        bench(&["--json"]).arg(&missing),
        2,
        &["cannot write", "a folder that exists"],
    );
    fs::write(&json, "{}").unwrap();
    fails(
        &mut bench(&["--against", path]),
        2,
        &["bench.json", "`bench --json"],
    );
}

#[test]
fn every_command_has_help() {
    for mut command in [
        zoo("train"),
        zoo("generate"),
        zoo("bench"),
        example("compare"),
    ] {
        let help = ok(command.arg("--help"));
        assert!(
            help.contains("Usage:") && help.contains("--backend"),
            "{help}"
        );
    }
    for command in [
        "list",
        "describe",
        "plot",
        "tokenize",
        "experiment",
        "completions",
    ] {
        let help = ok(zoo(command).arg("--help"));
        assert!(
            help.contains(&format!("Usage: residual-zoo {command}")),
            "{help}"
        );
    }
}
