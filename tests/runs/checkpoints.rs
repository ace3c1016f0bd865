//! Any change to a checkpoint's files is detected, and the checkpoint is passed over.

use std::fs;
use std::path::{Path, PathBuf};

use burn::backend::{Autodiff, Flex};
use residual_zoo::RunConfig;
use residual_zoo::data::{Corpus, Source, SyntheticConfig};
use residual_zoo::runs::{best, checkpoint, run_dir};
use residual_zoo::train::{RunOptions, run};
use residual_zoo_testing::my_turn;
use residual_zoo_testing::program::{self, Scratch, fails, ok, zoo};
use tempfile::TempDir;

const FILES: [&str; 4] = [
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
];

/// Trains a tiny model in `directory`. Returns the steps of its checkpoints.
fn trained(directory: &Path, settings: &[&str]) -> Vec<usize> {
    trained_until(None, directory, settings)
}

/// Like `trained`, but stops after step `until`.
fn trained_until(until: Option<usize>, directory: &Path, settings: &[&str]) -> Vec<usize> {
    let text = "(model: Gpt2(n_layer: 1, n_head: 1, width: 4, context: 8), \
                train: (steps: 12, batch: 2, warmup: 2, validate_every: 3, validate_batches: 2, \
                checkpoint_every: 3))";
    let config: RunConfig = RunConfig::parse(text, Path::new("test.ron")).unwrap();
    let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
    let mut config = config.set(&settings).unwrap();
    config.data.source = Source::Synthetic(SyntheticConfig {
        tokens: 3_000,
        seed: 5,
        ..SyntheticConfig::default()
    });
    let corpus = Corpus::open(&config.data).unwrap();
    let options = RunOptions {
        until,
        ..RunOptions::new(directory)
    };
    let _turn = my_turn();
    run::<Autodiff<Flex>, _>(config, &corpus, &options, Default::default()).unwrap();
    steps(directory)
}

fn steps(run: &Path) -> Vec<usize> {
    let entries = fs::read_dir(run.join("checkpoints")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<usize> = names.map(|n| n[5..].parse().unwrap()).collect();
    steps.sort();
    steps
}

/// Returns a run with good checkpoints at steps 9 and 12, and the newer checkpoint.
fn two() -> (TempDir, PathBuf, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let run = scratch.path().join("run");
    trained(&run, &["train.keep_checkpoints=2"]);
    let newer = checkpoint::directory(&run, 12);
    assert_eq!(checkpoint::newest(&run).unwrap().path, newer);
    (scratch, run, newer)
}

/// Checks that the newer checkpoint is passed over, and that the reason contains `part`.
fn assert_passed_over(run: &Path, part: &str, what: &str) {
    let newest = checkpoint::newest(run).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(newest.path, checkpoint::directory(run, 9), "{what}");
    let reason = newest.passed_over[0].1.to_string();
    assert!(reason.contains(part), "{what}: {reason}");
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let (_scratch, run, newer) = two();
    for name in FILES {
        let path = newer.join(name);
        let good = fs::read(&path).unwrap();
        // A wrong manifest can look like a damaged file, so only the checkpoint's name is expected.
        let part = match name {
            "manifest.json" => "step-00000012",
            other => other,
        };
        // The positions are spread over the whole file. The bits of a byte take turns.
        let flips = (0..400).map(|i| (i * good.len() / 400, i % 8));
        for (at, bit) in flips {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            fs::write(&path, bad).unwrap();
            assert_passed_over(&run, part, &format!("{name}: bit {bit} of byte {at}"));
        }
        for i in 0..100 {
            fs::write(&path, &good[..i * good.len() / 100]).unwrap();
            assert_passed_over(&run, part, &format!("{name}: cut at {i} %"));
        }
        fs::write(&path, [good.as_slice(), b"x"].concat()).unwrap();
        assert_passed_over(&run, part, &format!("{name}: a byte too many"));
        fs::remove_file(&path).unwrap();
        assert_passed_over(&run, "", &format!("{name}: missing"));
        fs::write(&path, good).unwrap();
        assert_eq!(checkpoint::newest(&run).unwrap().path, newer);
    }
}

#[test]
fn a_manifest_cannot_lead_elsewhere() {
    let (_scratch, run, newer) = two();
    let path = newer.join("manifest.json");
    let good = fs::read_to_string(&path).unwrap();
    let deep = "[".repeat(30_000);
    let long = format!("{good}{}", " ".repeat(1 << 20));
    for bad in [
        good.replace("state.json", "../state.json"),
        good.replace("state.json", "/etc/passwd"),
        good.replace("optimizer.safetensors", "optimizer/../../x.safetensors"),
        good.replace(
            "optimizer.safetensors",
            "optimizer-00001-of-00002.safetensors",
        ),
        good.replace("\"state.json\"", "\"state.json\": {}, \"more.json\""),
        good.replace("\"bytes\": ", "\"bytes\": 99999999999999999999"),
        good.replace("\"bytes\": ", "\"bytes\": -"),
        deep,
        long,
        String::new(),
        "null".into(),
    ] {
        assert_ne!(bad, good);
        fs::write(&path, bad).unwrap();
        assert_passed_over(&run, "manifest.json", "a hostile manifest");
    }
    fs::write(&path, good).unwrap();
}

#[cfg(unix)]
#[test]
fn a_link_is_no_file_of_a_checkpoint() {
    let (scratch, run, newer) = two();
    for name in FILES {
        let (path, aside) = (newer.join(name), scratch.path().join(name));
        fs::rename(&path, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        assert_passed_over(&run, name, name);
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
}

#[test]
fn what_a_killed_process_leaves_is_ignored() {
    let (_scratch, run, newer) = two();
    let copy = |to: &Path, files: &[&str]| {
        fs::create_dir_all(to).unwrap();
        for name in files {
            fs::copy(newer.join(name), to.join(name)).unwrap();
        }
    };
    // One checkpoint before its rename, and one without its manifest.
    copy(
        &checkpoint::directory(&run, 15).with_extension("1234.partial"),
        &FILES,
    );
    copy(&checkpoint::directory(&run, 18), &FILES[1..]);
    let newest = checkpoint::newest(&run).unwrap();
    assert_eq!(newest.path, newer);
    assert_eq!(newest.passed_over.len(), 1);
    let reason = newest.passed_over[0].1.to_string();
    assert!(reason.contains("not complete"), "{reason}");
}

#[test]
fn a_run_without_a_good_checkpoint_says_why() {
    let (_scratch, run, newer) = two();
    for directory in [newer, checkpoint::directory(&run, 9)] {
        fs::write(directory.join("state.json"), "").unwrap();
    }
    let error = checkpoint::newest(&run).unwrap_err().to_string();
    assert!(
        error.contains("no good checkpoint") && error.contains("state.json"),
        "{error}"
    );
}

#[test]
fn checkpoints_of_stops_are_not_kept_for_ever() {
    let scratch = tempfile::tempdir().unwrap();
    let settings = [
        "train.keep_checkpoints=2",
        "train.checkpoint_every=12",
        "train.validate_every=12",
    ];
    let stopped: Vec<_> = (1..=5)
        .map(|step| trained_until(Some(step), scratch.path(), &settings))
        .collect();
    assert_eq!(
        stopped[..],
        [vec![1], vec![1, 2], vec![2, 3], vec![3, 4], vec![4, 5]]
    );
}

/// Returns the settings of a run that keeps `keep` checkpoints and whose loss is lowest before its end.
fn rising(keep: &str) -> [String; 4] {
    [
        &format!("train.keep_checkpoints={keep}"),
        "train.warmup=0",
        "train.learning_rate=1",
        "train.min_learning_rate=Ratio(1)",
    ]
    .map(str::to_owned)
}

/// Every command that reads a model can read a checkpoint that the user names.
#[test]
fn a_checkpoint_is_chosen_by_its_step_or_its_loss() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let settings = rising("None");
    assert_eq!(
        trained(&run, &settings.each_ref().map(String::as_str)),
        [3, 6, 9, 12]
    );
    let rows = run_dir::read_metrics(&run).unwrap();
    let best = best(&run, &rows).unwrap();
    assert_ne!(best, checkpoint::directory(&run, 12));
    let best = checkpoint::step_of(&best).unwrap().to_string();

    let text = |checkpoint: &[&str]| {
        let mut command = zoo("generate");
        ok(command
            .arg(&run)
            .args(["--tokens", "40", "--temperature", "0"])
            .args(checkpoint))
    };
    let of_best = text(&["--checkpoint", "best"]);
    assert_eq!(of_best, text(&["--checkpoint", &best]));
    assert_eq!(text(&[]), text(&["--checkpoint", "12"]));
    assert_ne!(of_best, text(&[]));

    let weights = |run: &Path, step: usize| {
        fs::read(checkpoint::directory(run, step).join("model.safetensors")).unwrap()
    };
    let from = scratch.path("from");
    let start = |choice: &str| {
        let mut command = zoo("train");
        command.arg(run.join("config.ron")).arg("--no-tui");
        command.arg("--run").arg(&from).arg("--init-from").arg(&run);
        command.args(["--init-checkpoint", choice]);
        command
    };
    let shown = ok(&mut start("best"));
    assert!(
        shown.contains(&format!("checkpoints/step-{best:0>8}")),
        "{shown}"
    );
    assert!(weights(&from, 0) == weights(&run, best.parse().unwrap()));
    // The run continues only with these initial weights.
    ok(&mut start(&best));
    let says = [
        &format!("began with another checkpoint of {}", run.display()),
        "not with the checkpoint of step 12; start another run with `--run DIR`\n",
    ];
    fails(&mut start("12"), 2, &says);
    // A check gives the same error, and accepts a new start.
    fails(start("12").arg("--check"), 2, &says);
    ok(start(&best).arg("--check"));
    // Each command names the checkpoint that it reads.
    let mut command = zoo("generate");
    let generated = program::run(command.arg(&run).args(["--checkpoint", "6"]));
    let shown = program::text(&generated.stderr);
    assert!(
        shown.contains(&format!("{}, step 6\n", run.display())),
        "{shown}"
    );

    let exported = scratch.path("exported");
    let shown = ok(zoo("export")
        .arg(&run)
        .args(["--to", "hf"])
        .arg(&exported)
        .args(["--checkpoint", "6"]));
    assert!(shown.contains("step-00000006"), "{shown}");

    let tasks = scratch.file("a.txt", &of_best);
    let evaluate = |choice: &str| {
        let mut command = zoo("evaluate");
        command.arg(&run).arg("--task").arg(&tasks);
        command.arg("--out").arg(scratch.path(choice));
        command.args(["--checkpoint", choice]);
        let shown = ok(&mut command);
        let step = if choice == "best" { &best } else { choice };
        let head = format!("{}, step {step}\n", run.display());
        assert!(shown.starts_with(&head), "{shown}");
        let results = fs::read_to_string(scratch.path(choice).join("results.json")).unwrap();
        assert!(results.contains(&format!("\"step\": {step},")), "{results}");
        assert!(
            results.contains(&format!("/step-{step:0>8}\"")),
            "{results}"
        );
        let metrics = shown.lines().filter(|line| line.contains("is better"));
        metrics.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(evaluate("best"), evaluate(&best));
    assert_ne!(evaluate("best"), evaluate("12"));

    // The results with other weights are kept, and a note names their new path.
    let mut other = zoo("evaluate");
    other.arg(&run).arg("--task").arg(&tasks);
    let shown = ok(other
        .arg("--out")
        .arg(scratch.path("12"))
        .args(["--checkpoint", "6"]));
    assert!(
        shown.contains("the results with other weights or settings were moved to ")
            && shown.contains("results.before-"),
        "{shown}"
    );

    for (choice, says) in [
        (
            "7",
            "has no checkpoint of step 7; its checkpoints are of steps 3, 6, 9, 12",
        ),
        ("last", "must be a number of steps, `best` or `newest`"),
    ] {
        let mut command = zoo("generate");
        let output = program::run(command.arg(&run).args(["--checkpoint", choice]));
        assert_eq!(output.status.code(), Some(2));
        let error = program::text(&output.stderr);
        assert!(error.contains(says), "{error}");
    }
    let damaged = checkpoint::directory(&run, 6).join("model.safetensors");
    fs::write(&damaged, b"").unwrap();
    fails(
        zoo("generate").arg(&run).args(["--checkpoint", "6"]),
        2,
        &["step-00000006/model.safetensors", "0 bytes instead of"],
    );
}

/// `train --check` refuses everything that the run itself would refuse, and writes nothing.
#[test]
fn a_check_reads_first_weights_and_the_run_that_is_there() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let before = trained(&run, &[]);
    let config = run.join("config.ron");
    let other = scratch.path("other");
    let check = |set: &[&str]| {
        let mut command = zoo("train");
        command.arg("--check").args(set);
        command
    };
    let starts = |from: &Path, set: &[&str]| {
        let mut command = check(set);
        command.arg(&config).arg("--run").arg(&other);
        command.arg("--init-from").arg(from);
        command
    };
    let resumes = |set: &[&str]| {
        let mut command = check(set);
        command.arg("--resume").arg(&run);
        command
    };
    fails(&mut starts(&scratch.path("nosuch"), &[]), 2, &["nosuch"]);
    let deeper = ["--set", "model.n_layer=2"];
    fails(&mut starts(&run, &deeper), 2, &["n_layer"]);
    fails(
        starts(&run, &[]).args(["--init-checkpoint", "7"]),
        2,
        &["has no checkpoint of step 7"],
    );
    let shorter = ["--set", "train.steps=6"];
    fails(&mut resumes(&shorter), 2, &["train.steps was 12, now 6"]);
    fails(&mut resumes(&deeper), 2, &["n_layer"]);
    ok(&mut starts(&run, &[]));
    ok(&mut resumes(&["--set", "train.steps=20"]));
    assert!(!other.exists());
    assert_eq!(run_dir::read_history(&run).unwrap().len(), 1);
    assert_eq!(steps(&run), before);
}

#[test]
fn the_newest_and_the_best_are_kept() {
    let scratch = tempfile::tempdir().unwrap();
    let all = trained(
        &scratch.path().join("all"),
        &["train.keep_checkpoints=None"],
    );
    assert_eq!(all, [3, 6, 9, 12]);
    let two = trained(&scratch.path().join("two"), &["train.keep_checkpoints=2"]);
    assert_eq!(two, [9, 12]);

    // At this learning rate, the first checkpoint is better than the last.
    let run = scratch.path().join("rising");
    let kept = trained(&run, &rising("1").each_ref().map(String::as_str));
    let losses: Vec<(u64, f64)> = fs::read_to_string(run.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter_map(|row| Some((row["step"].as_u64()?, row["valid_loss"].as_f64()?)))
        .filter(|(step, _)| *step > 0)
        .collect();
    let best = losses.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0 as usize;
    assert!(best < 12, "{losses:?}");
    assert_eq!(kept, [best, 12], "{losses:?}");
}

/// Each optimizer has its own moments, but weights suit every optimizer.
#[test]
fn a_run_starts_from_weights_of_another_optimizer_with_fresh_moments() {
    let scratch = Scratch::new();
    let [first, second] = ["first", "second"].map(|name| scratch.path(name));
    ok(&mut program::smoke(&first));
    let start = |by: &str| {
        let mut command = program::smoke(&second);
        command.args(["--set", "train.optimizer=Muon()", "--init-by", by]);
        command.arg("--init-from").arg(&first);
        command
    };
    fails(
        &mut start("grow"),
        2,
        &["`--init-by`", "another optimizer", "grow-fresh"],
    );
    ok(&mut start("grow-fresh"));
}

/// Every command that reads a model can read the average of its weights.
#[test]
fn the_average_of_the_weights_generates_is_evaluated_and_exported() {
    let scratch = Scratch::new();
    let [run, plain, out, back] = ["run", "plain", "out", "back"].map(|name| scratch.path(name));
    let shown = ok(program::smoke(&run).args(["--set", "train.ema=(decay: 0.5, start: Debiased)"]));
    assert!(shown.contains("average of the weights"), "{shown}");
    let last = run_dir::read_metrics(&run).unwrap().pop().unwrap();
    let (trained, average) = (last.valid_loss.unwrap(), last.ema_valid_loss.unwrap());
    assert_ne!(trained, average);

    let text = |run: &Path, weights: &[&str]| {
        let mut command = zoo("generate");
        let greedy = ["--tokens", "40", "--temperature", "0"];
        ok(command.arg(run).args(greedy).args(weights))
    };
    // Scores of one set of weights are not reused for the other set.
    let task = scratch.file("task.txt", text(&run, &[]).trim());
    let evaluated = |weights: &str| {
        let mut command = program::outside(&scratch, "evaluate");
        command.arg(&run).args(["--weights", weights, "--task"]);
        let shown = ok(command.arg(&task));
        assert!(!shown.contains("scored before"), "{shown}");
        let line = shown.lines().find(|line| line.contains("token_perplexity"));
        line.unwrap_or_else(|| panic!("{shown}")).to_owned()
    };
    assert_ne!(evaluated("trained"), evaluated("ema"));

    let of_average = text(&run, &["--weights", "ema"]);
    assert_eq!(text(&run, &[]), text(&run, &["--weights", "trained"]));
    ok(zoo("export")
        .arg(&run)
        .args(["--weights", "ema", "--to", "hf"])
        .arg(&out));
    ok(zoo("import").arg(&out).arg("--run").arg(&back));
    assert_eq!(text(&back, &[]), of_average);
    let card = fs::read_to_string(out.join("README.md")).unwrap();
    assert!(
        card.contains("exponential moving average") && card.contains(&format!("{average:.4}")),
        "{card}"
    );
    let imported = |name: &str, file: &str| {
        let newest = checkpoint::newest(&scratch.path(name)).unwrap().path;
        checkpoint::read_tensors(&newest.join(file)).unwrap().0
    };
    let [imported, average, trained] = [
        imported("back", "model.safetensors"),
        imported("run", "ema.safetensors"),
        imported("run", "model.safetensors"),
    ];
    assert!(imported == average && average != trained);

    ok(&mut program::smoke(&plain));
    for command in ["generate", "export"] {
        let mut command = zoo(command);
        command.arg(&plain).args(["--weights", "ema"]);
        if command.get_args().any(|it| it == "export") {
            command.args(["--to", "hf"]).arg(scratch.path("none"));
        }
        fails(
            &mut command,
            2,
            &["`train.ema`", "leave out `--weights ema`"],
        );
    }
}

#[test]
fn a_budget_of_tokens_replaces_the_steps() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    // A step has two sequences of 16 tokens.
    let train = |tokens: &str| {
        let model = "Gpt2(n_layer: 1, n_head: 1, width: 8, context: 16)";
        let text = format!(
            "(model: {model}, data: (source: Synthetic(tokens: 3000)), train: (tokens: {tokens}, batch: 2))"
        );
        let file = scratch.file("run.ron", text);
        let mut command = zoo("train");
        command.arg(file).arg("--run").arg(&run).arg("--no-tui");
        command
    };
    ok(&mut train("161"));
    let last = || run_dir::read_metrics(&run).unwrap().pop().unwrap();
    assert_eq!((last().step, last().tokens), (6, 6 * 32));
    // A larger budget continues the run.
    ok(&mut train("2.56e2"));
    assert_eq!(last().step, 8);
    let resume = |assignment: &str| {
        let mut command = zoo("train");
        command
            .arg("--resume")
            .arg(&run)
            .arg("--no-tui")
            .args(["--set", assignment]);
        command
    };
    ok(&mut resume("train.tokens=320"));
    assert_eq!(last().step, 10);
    fails(
        &mut resume("train.steps=20"),
        2,
        &[
            "train.steps=20",
            "`train.tokens` = 320",
            "train.tokens=None",
        ],
    );
    fails(&mut train("0"), 2, &["`train.tokens`"]);
}
