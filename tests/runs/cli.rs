//! The actions and the output of the program when a user runs it.

mod commands;

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
fn the_memory_of_a_run_that_recomputes_all_layers_as_one_is_estimated() {
    let every = "train.recompute=Every(9223372036854775808)";
    let layers = "Gpt2(n_layer: 4, n_head: 1, width: 8, context: 8)";
    let data = "(source: Synthetic(tokens: 2000))";
    // A tree needs layers in pairs, and twice the number in `every` overflows to zero in 64 bits.
    let text = format!(
        "(model: Composed(layers: [{layers}], connection: PerLayer(Tree())), data: {data})"
    );
    let scratch = Scratch::new();
    let file = scratch.file("tree.ron", text);
    let shown = ok(zoo("describe").arg(file).args(["--memory", "--set", every]));
    assert!(shown.contains("MiB"), "{shown}");
}

#[test]
fn the_memory_of_a_depth_loop_grows_with_its_core_alone() {
    let layers = "Gpt2(n_layer: 8, n_head: 4, width: 64, context: 64)";
    let loops = "(prelude: 2, coda: 2, times: Fixed(8))";
    let text = format!(
        "(model: Composed(layers: [{layers}], loops: {loops}), data: (source: Synthetic(tokens: 20000)), \
         train: (batch: 16))"
    );
    let scratch = Scratch::new();
    let (file, json) = (scratch.file("loop.ron", text), scratch.path("bench.json"));
    let shown = ok(zoo("describe").arg(&file).arg("--memory"));
    let line = shown.lines().find(|line| line.starts_with("memory of"));
    let (_, estimated) = line.unwrap().split_once("about ").unwrap();
    let estimated = estimated.strip_suffix(" MiB").unwrap().parse::<f64>();
    let mut bench = zoo("bench");
    bench
        .arg(&file)
        .args(["--warmup", "1", "--steps", "1", "--json"]);
    ok(bench.arg(&json));
    let found: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let measured = found[0]["peak_memory"].as_f64().unwrap() / f64::from(1 << 20);
    let share = estimated.unwrap() / measured;
    assert!((0.8..1.2).contains(&share), "{share} of {measured} MiB");
}

#[test]
fn a_bench_of_connections_compares_each_with_the_plain_residual() {
    let mut bench = zoo("bench");
    bench.args([
        "gpt2/smoke",
        "--connections",
        "--warmup",
        "0",
        "--steps",
        "1",
    ]);
    let shown = ok(&mut bench);
    let (_, ratios) = shown.split_once("× plain").unwrap();
    let line = |name: &str| {
        let found = ratios
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        let words = found.unwrap_or_else(|| panic!("no {name} in {shown}"));
        words
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(line("None")[2..], ["1.00", "1.00", "1.00"]);
    let parameters = line("Highway")[2].parse::<f64>().unwrap();
    assert!(parameters > 1.0, "{shown}");
    let mut two = zoo("bench");
    two.args(["gpt2/smoke", "rmt/bench", "--connections"]);
    fails(&mut two, 2, &["--connections", "one run file"]);
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
        &["none does not exist"],
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
    // The line of a step contains the speed.
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

    // The current step is saved. Its row is written when the run continues.
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
            "differs from the model of the first weights",
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
    // An error in the config of the first run names that config file, even if the config is only read.
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
            "must be a whole number of at least 0",
        ),
        (
            "generate",
            &["run", "--tokens", "ten"],
            "must be a whole number of at least 0",
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
