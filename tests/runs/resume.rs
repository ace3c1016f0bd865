//! The changes with which a run can be resumed, and the effect of damage, which costs only time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use residual_zoo::runs::{checkpoint, run_dir};
use residual_zoo_testing::program::{Scratch, ends, fails, ok, run, text};
use residual_zoo_testing::runs::{
    self, MODELS, STEPS, assert_same, config, killed, outcome, resume, start, train, with_fault,
};

#[test]
fn recomputed_activations_give_the_same_run_and_may_change_within_it() {
    let earlier = (
        "previous activations",
        "Composed(connection: PerSublayer(Laurel(augmentation: PreviousActivations(k: 3))), \
         layers: [Gpt2(n_layer: 2, n_head: 2, width: 16, context: 16, dropout: 0.1)])",
    );
    for (name, model) in MODELS.into_iter().chain([earlier]) {
        let scratch = Scratch::new();
        // Recomputation groups consist of one update, of one layer and of two layers.
        let file = config(&scratch, &model.replace("n_layer: 2", "n_layer: 5"));
        ok(&mut train(&file, &scratch.path("kept")));
        let expected = outcome(&scratch.path("kept"));
        let same = |directory: &Path, what: &str| {
            let what = format!("{name}, {what}");
            // Several groups read the earlier streams and the blocks of a recurrence, so gradients of these tensors are
            // added in another order. Then only losses are compared, because AdamW makes steps of full size even for
            // gradients that are only rounding error. An example is the gradient of the keys' bias.
            if !model.contains("(k: ") && !model.contains("recurrence") {
                return assert_same(directory, &expected, &what);
            }
            let found = outcome(directory);
            let pairs = found.rows.iter().zip(&expected.rows);
            let apart = pairs.filter_map(|(a, b)| Some((a.train_loss? - b.train_loss?).abs()));
            let apart = apart.fold(0.0, f64::max);
            println!("{what}: losses differ by up to {apart:.1e}");
            assert!(apart < 1e-5, "{what}: {apart}");
        };
        for recompute in ["Layers", "Every(1)", "Every(2)"] {
            let directory = scratch.path(recompute);
            let mut command = train(&file, &directory);
            ok(command.args(["--set", &format!("train.recompute={recompute}")]));
            same(&directory, recompute);
        }
        // The run is killed while it recomputes, and is continued without recomputation.
        let directory = scratch.path("both");
        let mut first = with_fault(train(&file, &directory), 60, "kill");
        first.args(["--set", "train.recompute=Layers"]);
        assert!(killed(&run(&mut first)), "{name}");
        ok(&mut train(&file, &directory));
        same(&directory, "then kept");
    }
}

#[test]
fn a_finished_run_stays_as_it_is() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    ok(&mut train(&file, &directory));
    let metrics = fs::read(directory.join("metrics.jsonl")).unwrap();
    let before = outcome(&directory);
    for mut again in [train(&file, &directory), resume(&directory)] {
        let shown = ok(&mut again);
        assert!(shown.contains("already trained"), "{shown}");
        assert!(!shown.contains("step 24/24"), "{shown}");
        assert_eq!(fs::read(directory.join("metrics.jsonl")).unwrap(), metrics);
        assert_same(&directory, &before, "trained again");
    }
}

#[test]
fn a_longer_budget_goes_on_and_the_change_is_written_down() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    ok(&mut train(&file, &directory));
    let shown = ok(resume(&directory).args(["--set", "train.steps=30"]));
    assert!(shown.contains("raised from 24 to 30"), "{shown}");
    let rows = run_dir::read_metrics(&directory).unwrap();
    let steps: Vec<usize> = rows.iter().map(|row| row.step).collect();
    assert_eq!(steps[steps.len() - 6..], [24, 25, 26, 27, 28, 30]);
    let history = run_dir::read_history(&directory).unwrap();
    assert_eq!(history.len(), 2);
    assert_eq!(history[1].step, 24);
    assert!(history[1].changes[0].contains("train.steps"));
    // From now on, the run has the larger number of steps. With a smaller number, it would be another run.
    let shown = ok(&mut resume(&directory));
    assert!(shown.contains("step-00000030"), "{shown}");
    fails(
        &mut train(&file, &directory),
        2,
        &["train.steps was 30, now 24"],
    );
}

#[test]
fn another_config_or_other_data_are_refused_unless_allowed() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    ok(train(&file, &directory).args(["--set", "train.steps=6"]));
    let before = fs::read(directory.join("metrics.jsonl")).unwrap();
    let changed = |assignments: &[&str]| {
        let mut command = train(&file, &directory);
        for assignment in assignments {
            command.args(["--set", assignment]);
        }
        command
    };
    fails(
        &mut changed(&["train.learning_rate=2e-2", "model.dropout=0.2"]),
        2,
        &[
            "model.dropout was 0.1, now 0.2",
            "train.learning_rate was 0.01, now 0.02",
            "--allow-config-change",
        ],
    );
    for optimizer in ["Sgd(momentum: 0.9)", "Muon()"] {
        let mut changed = changed(&[&format!("train.optimizer={optimizer}")]);
        fails(
            changed.arg("--allow-config-change"),
            2,
            &["`train.optimizer`", "--init-from"],
        );
    }
    fails(
        &mut changed(&["data.source.tokens=4000"]),
        2,
        &[
            "the data was 2700 training and 300 validation tokens",
            "3600",
        ],
    );
    let poem = scratch.file("poem.txt", "tell me what it is. ".repeat(100));
    let mut other = changed(&[]);
    fails(
        other.arg("--data").arg(&poem),
        2,
        &["another tokenizer", "or start another run with `--run DIR`"],
    );
    let file_of_another_model = config(&scratch, MODELS[1].1);
    fails(
        &mut train(&file_of_another_model, &directory),
        2,
        &["model was Gpt2(…), now Rmt(…)"],
    );
    assert_eq!(fs::read(directory.join("metrics.jsonl")).unwrap(), before);

    config(&scratch, MODELS[0].1);
    let mut allowed = changed(&["train.learning_rate=2e-2", "data.source.tokens=4000"]);
    let shown = ok(allowed.arg("--allow-config-change"));
    assert!(shown.contains("changed: train.learning_rate"), "{shown}");
    let history = run_dir::read_history(&directory).unwrap();
    assert_eq!(history[1].step, 6);
    assert_eq!(history[1].changes.len(), 3, "{:?}", history[1].changes);
    // From now on, the run has these settings.
    let shown = ok(&mut changed(&[
        "train.learning_rate=2e-2",
        "data.source.tokens=4000",
    ]));
    let unused = "no step used these changes";
    assert!(!shown.contains(unused), "{shown}");
    let mut too_late = changed(&["train.learning_rate=3e-2", "data.source.tokens=4000"]);
    let shown = ok(too_late.arg("--allow-config-change"));
    assert!(shown.contains(unused), "{shown}");
}

#[test]
fn the_same_data_from_another_place_are_the_same() {
    let scratch = Scratch::new();
    let words = "to be or not to be, that is the question. ".repeat(60);
    let (here, there) = (
        scratch.file("here.txt", &words),
        scratch.file("there.txt", &words),
    );
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    let from = |data: &Path, steps: &str| {
        let mut command = train(&file, &directory);
        command.arg("--data").arg(data).args(["--set", steps]);
        command.env("XDG_CACHE_HOME", scratch.path("cache"));
        command
    };
    ok(&mut from(&here, "train.steps=6"));
    fs::remove_file(&here).unwrap();
    ok(&mut from(&there, "train.steps=9"));
    // From now on, the run knows the new path.
    ok(resume(&directory).env("XDG_CACHE_HOME", scratch.path("cache")));
}

#[test]
fn one_run_has_one_process() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    let endless = ["--set", "train.steps=100000000"];
    let mut child = start(train(&file, &directory).args(endless));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("step         2/")));
    let host = fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.map_or(String::new(), |host| format!(" on {}", host.trim()));
    let owner = format!("process {}{host}", child.id());
    fails(
        train(&file, &directory).args(endless),
        1,
        &["in use by", &owner],
    );
    fails(&mut resume(&directory), 1, &["in use by", &owner]);
    child.kill().unwrap();
    ends(&mut child);
    // The lock ends with its process, whatever the lock file contains.
    assert!(
        fs::read_to_string(directory.join("lock"))
            .unwrap()
            .contains(&owner)
    );
    let mut next = start(resume(&directory).args(endless));
    let mut lines = BufReader::new(next.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("valid loss")));
    next.kill().unwrap();
    ends(&mut next);
}

#[test]
fn torn_lines_and_damaged_checkpoints_cost_only_time() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    ok(&mut train(&file, &directory));
    let expected = outcome(&directory);
    let append = |name: &str, what: &str| {
        let path = directory.join(name);
        let content = fs::read_to_string(&path).unwrap();
        fs::write(path, content + what).unwrap();
    };
    append("metrics.jsonl", "{\"step\": 26, \"tok");
    append("history.jsonl", "{\"st");
    append("samples.txt", "=== step 26\nhalf a sam");
    let newest = checkpoint::directory(&directory, STEPS);
    let path = newest.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let shown = ok(&mut resume(&directory));
    for part in [
        "skipped a damaged checkpoint, now ",
        "model.safetensors",
        "its checksum is wrong",
        "resuming from",
        "step-00000021",
    ] {
        assert!(shown.contains(part), "no `{part}` in {shown}");
    }
    assert_same(&directory, &expected, "after damage");
    assert!(directory.join("checkpoints/damaged-step-00000024").is_dir());

    // The error names a damaged row, and no file is changed.
    let metrics = directory.join("metrics.jsonl");
    let rows = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, rows.replacen("\"step\":4", "\"step\":x", 1)).unwrap();
    fails(
        &mut resume(&directory),
        2,
        &["metrics.jsonl: line 4: column 9: expected value"],
    );
}

#[test]
fn what_is_no_run_is_not_touched() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    fs::create_dir(&directory).unwrap();
    fails(&mut resume(&directory), 2, &["config.ron", "run directory"]);
    // A run without its config still has its checkpoints.
    ok(&mut train(&file, &directory));
    fs::remove_file(directory.join("config.ron")).unwrap();
    fs::remove_file(directory.join("metrics.jsonl")).unwrap();
    fs::remove_file(directory.join("samples.txt")).unwrap();
    fails(&mut train(&file, &directory), 2, &["already exists"]);
    assert!(directory.join("checkpoints/step-00000024").is_dir());
}

#[test]
fn a_run_from_other_weights_begins_with_them_again() {
    let scratch = Scratch::new();
    let file = config(&scratch, MODELS[3].1);
    let (first, second) = (scratch.path("first"), scratch.path("second"));
    ok(&mut train(&file, &first));
    let from = |directory: &Path| {
        let mut command = train(&file, directory);
        command.arg("--init-from").arg(&first);
        command
    };
    ok(&mut from(&second));
    let expected = outcome(&second);
    let changes = runs::count_changes(from(&scratch.path("counted")));
    let mut restarts = 0;
    for at in (1..changes.min(45)).step_by(3) {
        let directory = scratch.path(&format!("killed-{at}"));
        let output = run(&mut with_fault(from(&directory), at, "kill"));
        assert!(killed(&output), "{at}");
        // From its first step, the run has its own copy of the weights.
        let mut command = match directory.join("config.ron").exists() {
            true => resume(&directory),
            false => from(&directory),
        };
        restarts += usize::from(ok(&mut command).contains("resuming from"));
        assert_same(&directory, &expected, &format!("killed at {at}"));
    }
    assert!(restarts > 0);
    let mut other = train(&file, &second);
    other.arg("--init-from").arg(scratch.path("third"));
    other.arg("--allow-config-change");
    fails(&mut other, 2, &["third", "give a run directory"]);
    ok(train(&file, &scratch.path("third")).args(["--set", "train.seed=5"]));
    fails(
        &mut other,
        2,
        &["began with", "first", "third", "--run DIR"],
    );
    // The same weights at another path are accepted.
    let copied = scratch.path("copied");
    fs::rename(scratch.path("third"), scratch.path("other")).unwrap();
    fs::rename(&first, &copied).unwrap();
    ok(train(&file, &second).arg("--init-from").arg(&copied));
    fs::rename(&copied, &first).unwrap();

    // A run that is stopped before its first step also has these weights.
    let stopped = scratch.path("stopped");
    let changes = with_fault(from(&scratch.path("traced")), 0, "trace");
    let changes = text(&run(&mut { changes }).stderr);
    let begun = changes
        .lines()
        .position(|line| line.contains("rename") && line.contains("config.ron"));
    let output = run(&mut with_fault(from(&stopped), begun.unwrap() + 2, "kill"));
    assert!(killed(&output));
    fs::rename(&first, scratch.path("gone")).unwrap();
    ok(&mut resume(&stopped));
    assert_same(&stopped, &expected, "stopped before its first step");
    // The run does not continue with fresh weights.
    fs::remove_dir_all(stopped.join("checkpoints")).unwrap();
    fails(&mut resume(&stopped), 2, &["lost its checkpoints", "first"]);
}

#[test]
fn a_killed_run_continues_from_a_validation_by_default() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    let mut long = train(&file, &directory);
    long.args(["--set", "train.checkpoint_every=None"]);
    long.args(["--set", "train.steps=100000000"]);
    let mut child = start(&mut long);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The first validation after step 0 is at step 4.
    assert!(lines.any(|line| line.unwrap().contains("step         8/")));
    child.kill().unwrap();
    ends(&mut child);
    let newest = checkpoint::newest(&directory).unwrap().path;
    assert!(newest >= checkpoint::directory(&directory, 4));
    let name = newest.file_name().unwrap().to_str().unwrap();
    let step: usize = name.trim_start_matches("step-").parse().unwrap();
    assert_eq!(step % 4, 0, "{name}");
    let steps = format!("train.steps={}", step + 6);
    let shown = ok(resume(&directory).args(["--allow-config-change", "--set", &steps]));
    assert!(
        shown.contains(&format!("resuming from {}", newest.display())),
        "{shown}"
    );
    let rows = run_dir::read_metrics(&directory).unwrap();
    assert_eq!(rows.last().unwrap().step, step + 6);
}

#[test]
fn a_first_kill_before_any_checkpoint_starts_again() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    let mut long = train(&file, &directory);
    long.args([
        "--set",
        "train.checkpoint_every=100000000",
        "--set",
        "train.steps=100000000",
    ]);
    let mut child = start(&mut long);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("step         8/")));
    std::thread::sleep(Duration::from_millis(20));
    child.kill().unwrap();
    ends(&mut child);
    let mut command = resume(&directory);
    command.arg("--allow-config-change");
    command.args([
        "--set",
        "train.steps=24",
        "--set",
        "train.checkpoint_every=3",
    ]);
    let shown = ok(&mut command);
    assert!(shown.contains("starting over from step 0"), "{shown}");
    ok(&mut train(&file, &scratch.path("straight")));
    assert_same(
        &directory,
        &outcome(&scratch.path("straight")),
        "started again",
    );
}

#[test]
fn a_run_that_lost_its_checkpoints_loses_no_more() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    ok(&mut train(&file, &directory));
    let expected = outcome(&directory);
    let checkpoints = directory.join("checkpoints");
    let metrics = fs::read(directory.join("metrics.jsonl")).unwrap();
    // The checkpoints are on a disk that is not mounted.
    fs::rename(&checkpoints, scratch.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("/nonexistent/disk", &checkpoints).unwrap();
    fails(&mut resume(&directory), 2, &["checkpoints"]);
    assert_eq!(fs::read(directory.join("metrics.jsonl")).unwrap(), metrics);
    // Without its checkpoints, the run starts over and keeps the old rows.
    fs::remove_file(&checkpoints).unwrap();
    assert!(ok(&mut resume(&directory)).contains("starting over from step 0"));
    assert_same(&directory, &expected, "again");
    let old = directory.join("before-restart-metrics.jsonl");
    assert_eq!(fs::read(old).unwrap(), metrics);
}

#[test]
fn rows_that_are_lost_are_told_and_junk_after_the_checkpoint_is_cut() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    ok(&mut train(&file, &directory));
    let metrics = directory.join("metrics.jsonl");
    let whole = fs::read(&metrics).unwrap();
    fs::write(&metrics, [&whole[..], b"\0\0\0\n{\"step\":26}\n"].concat()).unwrap();
    ok(&mut resume(&directory));
    assert_eq!(fs::read(&metrics).unwrap(), whole);
    fs::write(&metrics, &whole[..whole.len() / 2]).unwrap();
    let shown = ok(resume(&directory).args(["--set", "train.steps=26"]));
    assert!(shown.contains("metrics.jsonl has lost"), "{shown}");
    let rows = run_dir::read_metrics(&directory).unwrap();
    assert_eq!(rows.last().unwrap().step, 26);
}

#[test]
fn links_lead_to_nothing_that_is_not_the_run_s_own() {
    let scratch = Scratch::new();
    let file = config(&scratch, MODELS[0].1);
    let (first, second) = (scratch.path("first"), scratch.path("second"));
    ok(&mut train(&file, &first));
    let kept = checkpoint::newest(&first).unwrap().path;
    ok(train(&file, &second).args(["--set", "train.steps=12"]));
    let link = checkpoint::directory(&second, 1);
    std::os::unix::fs::symlink(&kept, &link).unwrap();
    ok(resume(&second).args(["--set", "train.steps=24"]));
    assert!(checkpoint::newest(&first).unwrap().passed_over.is_empty());

    let precious = scratch.file("precious.txt", "precious");
    for name in ["lock", "metrics.jsonl", "samples.txt", "history.jsonl"] {
        let path = first.join(name);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        let output = run(resume(&first).args(["--set", "train.steps=26"]));
        assert!(!output.status.success(), "{name}");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious", "{name}");
        fs::remove_file(&path).unwrap();
        fs::copy(second.join(name), &path).unwrap();
    }
}
