//! Other programs change the files of a run, while it trains or between two starts. No row is repeated. If rows are
//! lost, the run reports the loss. Nothing is written outside the run.

mod files;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use residual_zoo::runs::{checkpoint, run_dir};
use residual_zoo_testing::program::{self, Scratch, end, fails, ok, signal, stopped_by, text, zoo};
use residual_zoo_testing::runs::{
    MODELS, STEPS, assert_same, config, config_on, outcome, resume, start, train, with_fault,
};
use residual_zoo_testing::terminal::wait;

/// Returns a command for a run that logs every step, saves every `every` steps, and does not end by itself.
fn endless(directory: &Path, every: usize) -> Command {
    of_steps(100_000_000, directory, every)
}

/// Returns a command for a run of `steps` steps that logs every step, and saves every `every` steps.
fn of_steps(steps: usize, directory: &Path, every: usize) -> Command {
    let mut command = zoo("train");
    command.arg("gpt2/smoke").arg("--run").arg(directory);
    command.arg("--no-tui");
    for setting in [
        &format!("train.steps={steps}"),
        "train.validate_every=100000000",
        "train.log_every=1",
        "train.sample_tokens=4",
        &format!("train.checkpoint_every={every}"),
        &format!("train.sample_every={every}"),
    ] {
        command.args(["--set", setting]);
    }
    command
}

/// Returns the step of each line in the metrics, including repeated rows.
fn steps(run: &Path) -> Vec<usize> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).ok()?;
        row["step"].as_u64()
    });
    lines.map(|step| step as usize).collect()
}

/// Continues a run up to step `steps`. Returns the output.
fn go_on(run: &Path, steps: usize) -> String {
    let steps = format!("train.steps={steps}");
    ok(resume(run).args(["--allow-config-change", "--set", &steps]))
}

/// Waits until a run has logged `more` further steps.
fn wait_for(run: &Path, more: usize) {
    let last = |run: &Path| steps(run).last().copied().unwrap_or(0);
    let before = last(run);
    assert!(wait(|| (last(run) >= before + more).then_some(())).is_some());
}

/// Stops a run with the signal `name`. Returns the output.
fn stop(child: Child, name: &str) -> String {
    signal(&child, name);
    let output = end(child);
    if name != "-KILL" {
        assert_eq!(output.status.code(), stopped_by(name));
    }
    text(&output.stdout) + &text(&output.stderr)
}

/// Checks that every step has one row.
fn assert_whole(run: &Path) {
    let steps = steps(run);
    let last = *steps.last().unwrap();
    assert!(steps.iter().copied().eq(0..=last), "{steps:?}");
    assert_eq!(run_dir::read_metrics(run).unwrap().len(), last + 1);
}

#[test]
fn rows_that_are_lost_while_a_run_trains_are_reported_and_written_again() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 5] = [
        ("deleted", |log| fs::remove_file(log).unwrap()),
        ("emptied", |log| {
            fs::write(log, "").unwrap();
        }),
        ("some lines deleted", |log| {
            let text = fs::read_to_string(log).unwrap();
            let lines = text.split_inclusive('\n').enumerate();
            let kept: String = lines
                .filter(|(i, _)| i % 5 != 3)
                .map(|(_, line)| line)
                .collect();
            fs::write(log, kept).unwrap();
        }),
        ("a number changed", |log| {
            let text = fs::read_to_string(log).unwrap();
            fs::write(log, text.replacen("\"step\":1,", "\"step\":2,", 1)).unwrap();
        }),
        ("replaced by another file", |log| {
            let other = log.with_extension("other");
            fs::write(&other, "{}\n").unwrap();
            fs::rename(other, log).unwrap();
        }),
    ];
    for (what, harm) in harms {
        let scratch = Scratch::new();
        let run = scratch.path("run");
        let child = start(&mut endless(&run, 20));
        wait_for(&run, 30);
        // If the run continued in the middle of the change, it would report the change twice.
        signal(&child, "-STOP");
        harm(&run.join("metrics.jsonl"));
        signal(&child, "-CONT");
        wait_for(&run, 30);
        let shown = stop(child, "-TERM");
        let lines = shown.lines();
        let notes: Vec<_> = lines
            .filter(|line| line.contains("written again"))
            .collect();
        assert_eq!(notes.len(), 1, "{what}: {shown}");
        assert!(notes[0].contains("metrics.jsonl"), "{what}: {shown}");
        assert!(
            notes[0].contains(" has lost ") || notes[0].contains(" was changed "),
            "{what}: {shown}"
        );
        assert_whole(&run);
        // The rows that were written again are the rows that the checkpoint has seen, so the next start reports no
        // change.
        let steps = steps(&run).len() + 5;
        let shown = go_on(&run, steps);
        assert!(!shown.contains("metrics.jsonl"), "{what}: {shown}");
        assert_whole(&run);
    }
}

#[test]
fn lines_that_another_program_appends_are_cut_off() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let child = start(&mut endless(&run, 20));
    wait_for(&run, 30);
    let log = OpenOptions::new()
        .append(true)
        .open(run.join("metrics.jsonl"));
    log.unwrap().write_all(b"{\"step\":1,\"junk\n").unwrap();
    wait_for(&run, 30);
    let shown = stop(child, "-TERM");
    assert!(!shown.contains("metrics.jsonl"), "{shown}");
    assert_whole(&run);
}

#[test]
fn samples_that_are_lost_while_a_run_trains_are_reported() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let child = start(&mut endless(&run, 10));
    wait_for(&run, 30);
    fs::remove_file(run.join("samples.txt")).unwrap();
    wait_for(&run, 30);
    let shown = stop(child, "-TERM");
    assert!(shown.contains("samples.txt has lost"), "{shown}");
    let samples = fs::read_to_string(run.join("samples.txt")).unwrap();
    assert!(samples.starts_with("=== step "), "{samples}");
}

#[test]
fn a_killed_run_repeats_no_row_whatever_its_log_has_lost() {
    type Harm = fn(Vec<&str>) -> Vec<&str>;
    let harms: [(&str, Harm); 4] = [
        ("the first 90 lines", |lines| lines[90..].to_vec()),
        ("the first lines up to the checkpoint", |lines| {
            lines[102..].to_vec()
        }),
        ("lines in the middle", |lines| {
            [&lines[..40], &lines[70..]].concat()
        }),
        ("all lines", |_| Vec::new()),
    ];
    for (what, harm) in harms {
        let scratch = Scratch::new();
        let run = scratch.path("run");
        let child = start(&mut endless(&run, 100));
        let saved = || run.join("checkpoints/step-00000100").exists();
        assert!(wait(|| saved().then_some(())).is_some());
        wait_for(&run, 30);
        stop(child, "-KILL");
        let newest = checkpoint::step_of(&checkpoint::newest(&run).unwrap().path).unwrap();
        let log = run.join("metrics.jsonl");
        let before = fs::read_to_string(&log).unwrap();
        let kept = harm(before.split_inclusive('\n').collect());
        fs::write(&log, kept.concat()).unwrap();
        let left: Vec<usize> = steps(&run).into_iter().filter(|s| *s <= newest).collect();
        let steps_now = newest + 60;
        let shown = go_on(&run, steps_now);
        assert!(
            shown.contains("metrics.jsonl has lost") || shown.contains("metrics.jsonl was changed"),
            "{what}: {shown}"
        );
        // The metrics have the rows that were left up to the checkpoint, and every step after it once.
        let expected: Vec<usize> = left.into_iter().chain(newest + 1..=steps_now).collect();
        assert_eq!(steps(&run), expected, "{what}");
        ok(zoo("plot")
            .arg(&run)
            .args(["--out".as_ref(), scratch.path("p.svg").as_os_str()])
            .args(["--y", "train_loss"]));
        // The change was reported once, and the run continues.
        let shown = go_on(&run, steps_now + 10);
        assert!(!shown.contains("metrics.jsonl"), "{what}: {shown}");
    }
}

/// A stopped run has not yet written the row for the steps since the last row.
#[test]
fn a_stopped_run_repeats_no_row_of_a_log_that_was_changed() {
    for at in [12, 25, 38] {
        let scratch = Scratch::new();
        let run = scratch.path("run");
        let child = start(&mut endless(&run, 100_000));
        wait_for(&run, at);
        stop(child, "-TERM");
        let newest = checkpoint::step_of(&checkpoint::newest(&run).unwrap().path).unwrap();
        let log = run.join("metrics.jsonl");
        let mut text = fs::read_to_string(&log).unwrap();
        let last = text.lines().last().unwrap().to_owned();
        // The log looks like the log of a copy of the run that has trained further.
        for step in *steps(&run).last().unwrap()..newest + 3 {
            let row = last.replacen(
                &format!("\"step\":{}", steps(&run).last().unwrap()),
                &format!("\"step\":{}", step + 1),
                1,
            );
            text += &(row + "\n");
        }
        fs::write(&log, text.replace(",\"", ", \"")).unwrap();
        let shown = go_on(&run, newest + 20);
        assert!(shown.contains("metrics.jsonl was changed"), "{shown}");
        assert_whole(&run);
        assert!(!go_on(&run, newest + 25).contains("metrics.jsonl"));
        assert_whole(&run);
    }
}

#[test]
fn what_replaces_a_log_while_a_run_trains_is_moved_away_and_no_row_is_lost() {
    let scratch = Scratch::new();
    let (run, outside) = (scratch.path("run"), scratch.path("outside"));
    fs::write(&outside, "mine").unwrap();
    let child = start(&mut endless(&run, 20));
    wait_for(&run, 10);
    let replace = |name: &str, put: &dyn Fn(&Path)| {
        signal(&child, "-STOP");
        fs::remove_file(run.join(name)).unwrap();
        put(&run.join(name));
        signal(&child, "-CONT");
        // Reading a FIFO would wait forever.
        let is_file = || fs::symlink_metadata(run.join(name)).is_ok_and(|file| file.is_file());
        assert!(wait(|| is_file().then_some(())).is_some(), "{name}");
        wait_for(&run, 30);
    };
    replace("metrics.jsonl", &|path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success())
    });
    replace("metrics.jsonl", &|path| fs::create_dir(path).unwrap());
    replace("metrics.jsonl", &|path| {
        std::os::unix::fs::symlink(&outside, path).unwrap()
    });
    replace("samples.txt", &|path| fs::create_dir(path).unwrap());
    let shown = stop(child, "-TERM");
    let note = "metrics.jsonl was replaced by another program while the run was training; what stood there is now ";
    assert_eq!(shown.matches(note).count(), 3, "{shown}");
    assert_eq!(
        shown.matches("samples.txt was replaced").count(),
        1,
        "{shown}"
    );
    assert_whole(&run);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");
    for name in [
        "moved-metrics.jsonl",
        "moved-metrics.jsonl.2",
        "moved-metrics.jsonl.3",
        "moved-samples.txt",
    ] {
        assert!(fs::symlink_metadata(run.join(name)).is_ok(), "{name}");
    }
}

#[test]
fn a_check_of_a_run_reports_what_its_start_would_refuse() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let file = config(&scratch, MODELS[0].1);
    ok(train(&file, &run).args(["--set", "train.steps=12"]));
    let checked = || {
        let mut command = resume(&run);
        command.arg("--check");
        command
    };
    ok(&mut checked());
    for name in ["metrics.jsonl", "samples.txt", "lock"] {
        let path = run.join(name);
        let before = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let says = [name, "is not a regular file"];
        fails(&mut checked(), 2, &says);
        fails(&mut resume(&run), 2, &says);
        fs::remove_dir(&path).unwrap();
        fs::write(&path, before).unwrap();
    }
    for name in ["config.partial", "metrics.partial"] {
        let path = run.join(name);
        fs::create_dir(&path).unwrap();
        let says = [name, "is not a regular file"];
        fails(&mut checked(), 2, &says);
        fails(&mut resume(&run), 2, &says);
        fs::remove_dir(&path).unwrap();
    }
    let events = ["--set", "train.tensorboard=true", "--allow-config-change"];
    let folder = run.join("tensorboard");
    fs::write(&folder, "mine").unwrap();
    let says = ["tensorboard", "is not a directory"];
    fails(checked().args(events), 2, &says);
    fails(resume(&run).args(events), 2, &says);
    assert_eq!(fs::read(&folder).unwrap(), b"mine");
    ok(&mut checked());
}

#[test]
fn rows_that_were_lost_between_two_starts_are_never_forgotten() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let mut first = train(&config(&scratch, MODELS[0].1), &run);
    ok(first.args(["--set", "train.steps=12"]));
    let log = run.join("metrics.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    let second = text.split_inclusive('\n').nth(1).unwrap();
    fs::write(&log, text.replacen(second, "", 1)).unwrap();
    assert!(go_on(&run, 16).contains("metrics.jsonl has lost"));
    assert!(!go_on(&run, 18).contains("metrics.jsonl"));
    let plotted = |run: &Path| {
        let mut plot = zoo("plot");
        plot.arg(run).arg("--out").arg(scratch.path("p.svg"));
        text_of_errors(&mut plot)
    };
    assert!(plotted(&run).contains("metrics.jsonl has lost"));
    // A directory that looks like a checkpoint does not hide the loss of rows.
    let other = scratch.path("other");
    ok(&mut train(&config(&scratch, MODELS[0].1), &other));
    assert!(!plotted(&other).contains("metrics.jsonl"));
    fs::create_dir(other.join("checkpoints/step-00000999")).unwrap();
    let log = other.join("metrics.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, &text[..text.len() / 2]).unwrap();
    assert!(plotted(&other).contains("metrics.jsonl has lost"));
}

fn text_of_errors(command: &mut Command) -> String {
    text(&program::run(command).stderr)
}

#[test]
fn a_file_in_other_words_is_written_again_once() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    stop(
        {
            let child = start(&mut endless(&run, 20));
            wait_for(&run, 5);
            child
        },
        "-TERM",
    );
    // Writes the tokenizer as another version of the program would.
    let path = run.join("tokenizer.json");
    let tokenizer: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let spaced = format!("{tokenizer:#}\n\n");
    fs::write(&path, spaced).unwrap();
    let child = start(&mut resume(&run));
    wait_for(&run, 5);
    fs::remove_file(&path).unwrap();
    wait_for(&run, 90);
    let shown = stop(child, "-TERM");
    assert_eq!(
        shown.matches("tokenizer.json vanished").count(),
        1,
        "{shown}"
    );
    assert!(!shown.contains("was changed by another program"), "{shown}");
    assert!(!run.join("moved-tokenizer.json").exists());
}

#[test]
fn samples_are_not_repeated_by_a_log_that_was_changed() {
    let scratch = Scratch::new();
    let file = config(&scratch, MODELS[0].1);
    let (straight, run) = (scratch.path("straight"), scratch.path("run"));
    ok(&mut train(&file, &straight));
    ok(&mut train(&file, &run));
    // The run looks as if it had been killed after its last sample. The first line of the samples differs.
    let newest = checkpoint::newest(&run).unwrap().path;
    fs::remove_dir_all(newest).unwrap();
    let log = run.join("samples.txt");
    let samples = fs::read_to_string(&log).unwrap();
    fs::write(&log, format!("note\n{samples}")).unwrap();
    let shown = ok(&mut resume(&run));
    assert!(shown.contains("samples.txt was changed"), "{shown}");
    let found = fs::read_to_string(&log).unwrap();
    assert_eq!(found, format!("note\n{samples}"));
}
