//! The actions and the output of the program when a user runs it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use residual_zoo::runs::{checkpoint, run_dir};
use residual_zoo::{RunConfig, builtin};
use residual_zoo_testing::program::{
    SMOKE, Scratch, end, ends, example, fails, ok, run, signal, smoke, smoke_of, stopped_by, text,
    zoo,
};
use residual_zoo_testing::root;
use residual_zoo_testing::runs::start;

#[test]
fn a_run_writes_its_config_metrics_samples_and_checkpoints() {
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    let mut command = zoo("train");
    command.arg(SMOKE).arg("--run").arg(&directory);
    for assignment in [
        "train.steps=30",
        "train.checkpoint_every=20",
        "model.n_head=4",
    ] {
        command.args(["--set", assignment]);
    }
    let shown = ok(&mut command);
    for part in [
        "step 30/30",
        "valid loss",
        "perplexity",
        " lr ",
        " norm ",
        " tok/s",
        " left ",
        "above the entropy rate",
    ] {
        assert!(shown.contains(part), "no `{part}` in: {shown}");
    }
    let wide = |line: &&str| line.starts_with("step") && line.chars().count() > 80;
    assert_eq!(shown.lines().find(wide), None);

    let config: RunConfig = run_dir::read_config(&directory).unwrap();
    assert_eq!(
        (config.train.steps, config.train.checkpoint_every),
        (30, Some(20))
    );
    assert!(matches!(config.model.plain(), Some(residual_zoo::Zoo::Gpt2(c)) if c.n_head == 4));

    let rows = run_dir::read_metrics(&directory).unwrap();
    let steps: Vec<usize> = rows.iter().map(|row| row.step).collect();
    assert_eq!(steps, [0, 10, 20, 30]);
    let last = rows.last().unwrap();
    assert_eq!(last.tokens, 30 * 8 * 32);
    assert!(last.flops > 0.0 && last.seconds > 0.0);
    let first_line = fs::read_to_string(directory.join("metrics.jsonl")).unwrap();
    let keys = [
        "step",
        "tokens",
        "flops",
        "seconds",
        "train_loss",
        "valid_loss",
        "lr",
        "grad_norm",
        "tokens_per_second",
    ];
    let line = first_line.lines().last().unwrap();
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
    for key in keys {
        assert!(object.contains_key(key), "no {key} in {line}");
    }

    assert!(
        checkpoint::directory(&directory, 20)
            .join("model.safetensors")
            .is_file()
    );
    assert_eq!(
        checkpoint::newest(&directory).unwrap().path,
        checkpoint::directory(&directory, 30)
    );
    assert!(
        fs::read_to_string(directory.join("samples.txt"))
            .unwrap()
            .contains("=== step 30")
    );
}

#[test]
fn mfu_is_shown_when_the_peak_is_known() {
    let scratch = Scratch::new();
    let shown = ok(smoke(&scratch.path("run")).args(["--peak-tflops", "0.1"]));
    assert!(shown.contains("MFU"), "{shown}");
    assert!(
        run_dir::read_metrics(&scratch.path("run")).unwrap()[1]
            .mfu
            .unwrap()
            > 0.0
    );
}

#[test]
fn the_same_run_gives_the_same_losses() {
    let scratch = Scratch::new();
    let losses = |name: &str, seed: &str| -> Vec<Option<f64>> {
        let directory = scratch.path(name);
        ok(smoke(&directory).args(["--set", "model.dropout=0.1", "--set", seed]));
        let rows = run_dir::read_metrics(&directory).unwrap();
        rows.iter()
            .flat_map(|row| [row.train_loss, row.valid_loss])
            .collect()
    };
    let first = losses("a", "train.seed=1");
    assert_eq!(first, losses("b", "train.seed=1"));
    assert_ne!(first, losses("c", "train.seed=2"));
}

#[test]
fn a_text_of_ones_own_trains_and_generates() {
    let scratch = Scratch::new();
    let sentence = "the quick brown fox jumps over the lazy dog. ";
    let data = scratch.file("my.txt", sentence.repeat(50));
    for tokenizer in ["bytes", "chars", "bpe:300"] {
        let directory = scratch.path(&tokenizer.replace(':', ""));
        let mut command = smoke(&directory);
        command
            .arg("--data")
            .arg(&data)
            .args(["--tokenizer", tokenizer]);
        let shown = ok(command.env("XDG_CACHE_HOME", scratch.path("cache")));
        assert!(shown.contains("bits/byte"), "{shown}");
        let generate = |seed: &str| {
            let mut command = zoo("generate");
            command
                .arg(&directory)
                .args(["--prompt", "the ", "--tokens", "40", "--seed", seed]);
            ok(&mut command)
        };
        let sample = generate("1");
        assert!(sample.starts_with("the "), "{sample}");
        assert_eq!(sample, generate("1"));
        assert_ne!(sample, generate("2"));
    }
}

#[test]
fn generation_goes_on_beyond_the_context() {
    let scratch = Scratch::new();
    ok(&mut smoke(&scratch.path("run")));
    let mut command = zoo("generate");
    let sample = ok(command.arg(scratch.path("run")).args(["--tokens", "100"]));
    // The context is 32 words; the prompt is one token longer.
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
fn the_memory_of_a_run_that_recomputes_all_layers_as_one_is_estimated() {
    let every = "train.recompute=Every(9223372036854775808)";
    let layers = "Gpt2(n_layer: 4, n_head: 1, width: 8, context: 8)";
    let data = "(source: Synthetic(tokens: 2000))";
    // A tree needs layers in pairs, and twice this number is zero in 64 bits.
    let text = format!(
        "(model: Composed(layers: [{layers}], connection: PerLayer(Tree())), data: {data})"
    );
    let scratch = Scratch::new();
    let file = scratch.file("tree.ron", text);
    let shown = ok(zoo("describe").arg(file).args(["--memory", "--set", every]));
    assert!(shown.contains("MiB"), "{shown}");
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
    // All activations, recomputed ones, and the moments.
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

#[cfg(not(feature = "mpi"))]
#[test]
fn one_of_several_processes_needs_mpi_and_a_script_of_slurm_is_none() {
    let scratch = Scratch::new();
    let two = |mut command: Command| {
        command.env("OMPI_COMM_WORLD_SIZE", "2");
        command
    };
    fails(
        &mut two(smoke(&scratch.path("run"))),
        1,
        &["--features mpi"],
    );
    fails(&mut two(zoo("list")), 1, &["only `train`"]);
    let mut script = smoke(&scratch.path("run"));
    ok(script.envs([("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]));
}

#[test]
fn a_run_in_place_of_a_file_is_named() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    ok(&mut smoke(&run));
    fails(zoo("train").arg(&run), 2, &["is a run", "train --resume"]);
    let text = scratch.file("a.txt", "text");
    fails(zoo("train").arg(text), 2, &["is a text", "--data"]);
    fails(
        zoo("train").arg("gpt2/smok"),
        2,
        &["did you mean `gpt2/smoke`?"],
    );
    let mut command = zoo("train");
    command.arg(SMOKE).args(["--set", "train.step=5"]);
    fails(&mut command, 2, &["did you mean `steps`?"]);
    let mut command = zoo("train");
    command.arg(SMOKE).args(["--set", "train.steps=many"]);
    fails(
        &mut command,
        2,
        &["expected a whole number from 0; the field was"],
    );
    let mut command = zoo("bench");
    command.args([SMOKE, "tokenformer/bench", "--set", "model.bias=true"]);
    fails(
        &mut command,
        2,
        &["tokenformer/bench: --set model.bias=true`", "unknown field"],
    );
    fails(
        zoo("generate").arg(scratch.path("none")),
        2,
        &["none: does not exist"],
    );
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
    // A profile needs a file that can be made.
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
    // Flex has a fast form of each operation of GPT-2; the environment variable turns them off.
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

    // The stored steps take a nanosecond, so the present ones are slower.
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

/// Starts an endless run, waits until it trains, and sends it a signal.
fn interrupted_by(name: &str) {
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    let mut command = smoke_of(&directory, 100_000_000);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The line of a step has its speed.
    let trains = |line: &String| line.contains("tok/s");
    let mut head = lines.by_ref().map(Result::unwrap).take(200);
    assert!(head.any(|line| trains(&line)));
    signal(&child, name);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(ends(&mut child).code(), stopped_by(name));
    assert!(
        rest.iter().any(|line| line.contains("stopped after")),
        "{rest:?}"
    );

    // The current step is saved, and its row is written when the run continues.
    let last = run_dir::read_metrics(&directory).unwrap().pop().unwrap();
    let newest = checkpoint::newest(&directory).unwrap().path;
    assert!(newest >= checkpoint::directory(&directory, last.step));
}

#[test]
fn ctrl_c_stops_after_the_step_and_saves() {
    interrupted_by("-INT");
}

#[test]
fn sigterm_stops_after_the_step_and_saves() {
    interrupted_by("-TERM");
}

#[test]
fn a_hang_up_stops_after_the_step_and_saves() {
    interrupted_by("-HUP");
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

#[test]
fn a_tokenformer_grows_from_a_run_and_other_runs_are_refused() {
    let scratch = Scratch::new();
    let file = |name: &str, model: &str| {
        let path = scratch.path(name);
        let text = format!(
            "(model: {model}, data: (source: Synthetic(tokens: 20000)), \
             train: (steps: 20, batch: 4, warmup: 2, learning_rate: 1e-2, validate_batches: 2))"
        );
        fs::write(&path, text).unwrap();
        path
    };
    let train = |config: &Path, run: &str| {
        let mut command = zoo("train");
        command
            .arg(config)
            .arg("--run")
            .arg(scratch.path(run))
            .arg("--no-tui");
        command
    };
    let sizes = "n_layer: 1, n_head: 2, width: 16, context: 24";
    let small = file(
        "small.ron",
        &format!("TokenFormer({sizes}, n_attn: 9, n_ffn: 16)"),
    );
    let shown = ok(&mut train(&small, "small"));
    let loss = |shown: &str, which: usize| -> f64 {
        let losses = shown.split("valid loss ").skip(1);
        let losses = losses.map(|rest| rest.split_whitespace().next().unwrap().parse().unwrap());
        losses.collect::<Vec<f64>>()[which]
    };
    let grown = format!("TokenFormer({sizes}, n_attn: 12, n_ffn: 20, tau: (attn: 3, ffn: 4))");
    let grown = file("grown.ron", &grown);
    let from = |mut command: Command, run: &str| {
        command.arg("--init-from").arg(scratch.path(run));
        command
    };
    let after = ok(&mut from(train(&grown, "grown"), "small"));
    let last = shown.matches("valid loss ").count() - 1;
    assert!(
        (loss(&shown, last) - loss(&after, 0)).abs() < 2e-4,
        "{shown}\n{after}"
    );
    assert!(!after.contains("not trained"), "{after}");
    let changes = ["model.n_attn was 9, now 12", "model.n_ffn was 16, now 20"];
    let history = run_dir::read_history(&scratch.path("grown")).unwrap();
    for change in changes {
        assert!(after.contains(&format!("changed: {change}")), "{after}");
        let recorded = &history[0].changes;
        assert!(recorded.iter().any(|it| it == change), "{recorded:?}");
    }

    // τ comes from the run, even if the config has another value, and a note tells the user.
    let other_tau = file(
        "tau.ron",
        &format!("TokenFormer({sizes}, n_attn: 12, n_ffn: 20)"),
    );
    let shown = ok(&mut from(train(&other_tau, "tau"), "small"));
    assert!(shown.contains("5 values that are not trained"), "{shown}");

    let refused = |config: &Path, run: &str, parts: &[&str]| {
        fails(&mut from(train(config, "refused"), run), 2, parts);
        assert!(!scratch.path("refused").exists());
    };
    refused(&small, "nowhere", &["nowhere", "does not exist"]);
    // The error lists all differences.
    let differs = ["cannot shrink from 12 to 9", "model.n_ffn was 20, now 16"];
    refused(&small, "grown", &differs);
    let other = format!(
        "Composed(layers: [TokenFormer({sizes}, n_attn: 12, n_ffn: 20)], connection: PerSublayer(Hyper(n: 2)))"
    );
    refused(
        &file("other.ron", &other),
        "small",
        &[
            "`model.connection`",
            "differs from that of the first weights",
            "model.layers.0.n_attn was 9, now 12",
            "model.connection was None, now PerSublayer(Hyper(",
        ],
    );
    let gpt2 = file("gpt2.ron", &format!("Gpt2({sizes})"));
    refused(
        &gpt2,
        "small",
        &[
            "is GPT-2, which cannot start from weights of TokenFormer",
            "model was TokenFormer(…), now Gpt2(…)",
        ],
    );
    // Errors in the config of the first run name its file, even if the config is only read.
    let config = scratch.path("tau").join("config.ron");
    let broken = fs::read_to_string(&config).unwrap();
    fs::write(&config, broken.replace("n_head: 2", "n_head: 3")).unwrap();
    refused(&grown, "tau", &["tau/config.ron: model.n_head"]);
    let mut generate = zoo("generate");
    generate.arg(scratch.path("tau"));
    fails(&mut generate, 2, &["tau/config.ron: model.n_head"]);
    let text = scratch.path("text.txt");
    fs::write(&text, "Other words, other tokens. ".repeat(200)).unwrap();
    let mut other = from(train(&grown, "refused"), "small");
    other.arg("--data").arg(text).args(["--tokenizer", "chars"]);
    fails(&mut other, 2, &["another tokenizer"]);
}

#[test]
fn numbers_of_options_are_checked_by_their_options() {
    for (command, options, says) in [
        (
            "generate",
            &["run", "--tokens", "-1"][..],
            "must be a whole number from 0 on",
        ),
        (
            "generate",
            &["run", "--tokens", "ten"],
            "must be a whole number from 0 on",
        ),
        ("generate", &["run", "--top-p", "x"], "must be a number"),
        (
            "sweep",
            &[SMOKE, "--over", "train.batch=4,8", "--seeds", "-1"],
            "must be a number from 1 to 10000",
        ),
        ("plan", &[SMOKE, "--tflops", "x"], "must be a number"),
        (
            "sweep",
            &[SMOKE, "--over", "train.learning_rate=1e-3..1e-1"],
            "'--over <FIELD=VALUES>': it is a range without the number of its values",
        ),
    ] {
        let output = zoo(command).args(options).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn a_run_that_continues_elsewhere_says_how_its_data_are_found() {
    let scratch = Scratch::new();
    let inside = scratch.path("inside");
    fs::create_dir(&inside).unwrap();
    fs::write(scratch.path("mine.txt"), "a text of my own\n".repeat(200)).unwrap();
    let run = scratch.path("run");
    let mut first = zoo("train");
    first.current_dir(scratch.path("."));
    ok(first
        .args(["gpt2/smoke", "--data", "mine.txt", "--set", "train.steps=2"])
        .arg("--run")
        .arg(&run));
    let mut elsewhere = zoo("train");
    elsewhere.current_dir(&inside).arg("--resume").arg(&run);
    fails(
        &mut elsewhere,
        2,
        &[
            "`mine.txt`, the data of the run, does not exist here",
            "`--data PATH`",
        ],
    );
}
