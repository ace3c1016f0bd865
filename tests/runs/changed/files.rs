//! Checkpoints and other files of a run, apart from its logs.

use super::*;

/// Changes the directory `checkpoints` of a run with `replace` while the run trains. Returns the run, its output and
/// its exit code.
fn replaced(scratch: &Scratch, replace: impl Fn(&Path)) -> (PathBuf, String, Option<i32>) {
    let run = scratch.path("run");
    let mut command = endless(&run, 5);
    let child = start(command.args(["--set", "train.keep_checkpoints=2"]));
    wait_for(&run, 20);
    // The run is stopped, so it does not see intermediate states.
    signal(&child, "-STOP");
    replace(&run.join("checkpoints"));
    signal(&child, "-CONT");
    let mut child = child;
    // The run ends by itself, or continues training.
    let status = wait(|| match steps(&run).last() {
        Some(step) if *step > 200 => Some(None),
        _ => child.try_wait().unwrap().map(Some),
    });
    if status.flatten().is_none() {
        signal(&child, "-TERM");
    }
    let output = end(child);
    let shown = text(&output.stdout) + &text(&output.stderr);
    (run, shown, output.status.code())
}

#[test]
fn nothing_is_written_through_a_link_that_replaces_the_checkpoints() {
    let scratch = Scratch::new();
    let outside = scratch.path("outside");
    fs::create_dir(&outside).unwrap();
    let (run, shown, code) = replaced(&scratch, |checkpoints| {
        fs::rename(checkpoints, checkpoints.with_file_name("aside")).unwrap();
        std::os::unix::fs::symlink(&outside, checkpoints).unwrap();
    });
    assert_eq!(code, Some(2), "{shown}");
    assert!(shown.contains("checkpoints is a link"), "{shown}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // When the run has its own directory again, it continues.
    fs::remove_file(run.join("checkpoints")).unwrap();
    fs::rename(run.join("aside"), run.join("checkpoints")).unwrap();
    let last = checkpoint::step_of(&checkpoint::newest(&run).unwrap().path).unwrap();
    go_on(&run, last + 20);
    assert_whole(&run);
}

#[test]
fn what_stands_at_the_name_of_a_new_checkpoint_is_moved_away() {
    let scratch = Scratch::new();
    let (run, outside) = (scratch.path("run"), scratch.path("outside"));
    fs::create_dir(&outside).unwrap();
    let mut command = endless(&run, 20);
    let child = start(command.args(["--set", "train.keep_checkpoints=None"]));
    wait_for(&run, 5);
    signal(&child, "-STOP");
    // The next checkpoint may already be in progress, so the test uses later ones.
    let first = (steps(&run).last().unwrap() / 20 + 2) * 20;
    let place = |i: usize| checkpoint::directory(&run, first + 20 * i);
    let moved = |i: usize| run.join(format!("checkpoints/moved-step-{:08}", first + 20 * i));
    fs::create_dir_all(run.join("checkpoints")).unwrap();
    fs::create_dir(place(0)).unwrap();
    fs::create_dir(place(1)).unwrap();
    fs::write(place(1).join("mine.txt"), "mine").unwrap();
    fs::write(place(2), "mine").unwrap();
    std::os::unix::fs::symlink(&outside, place(3)).unwrap();
    let made = Command::new("mkfifo").arg(place(4)).status().unwrap();
    assert!(made.success());
    signal(&child, "-CONT");
    let is_past = || steps(&run).last().is_some_and(|step| *step > first + 85);
    assert!(wait(|| is_past().then_some(())).is_some());
    let shown = stop(child, "-TERM");
    let notes = shown.matches("stood in the way of the checkpoint").count();
    assert_eq!(notes, 5, "{shown}");
    for i in 0..5 {
        assert!(place(i).join("manifest.json").is_file(), "{i}: {shown}");
        assert!(!place(i).is_symlink(), "{i}");
    }
    assert!(fs::read_dir(moved(0)).unwrap().next().is_none());
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    assert_eq!(text(&moved(1).join("mine.txt")), "mine");
    assert_eq!(text(&moved(2)), "mine");
    assert!(moved(3).is_symlink() && fs::read_dir(&outside).unwrap().next().is_none());
    let kind = fs::symlink_metadata(moved(4)).unwrap().file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind));
    let last = checkpoint::step_of(&checkpoint::newest(&run).unwrap().path).unwrap();
    go_on(&run, last + 5);
    assert_whole(&run);
}

/// Trains to step 100 and calls `harm` with the run while its last checkpoint is written. Returns the run and the
/// output.
fn harmed_at_the_end(scratch: &Scratch, harm: impl Fn(&Path)) -> (PathBuf, String) {
    let run = scratch.path("run");
    let child = start(&mut of_steps(100, &run, 100));
    let last = run.join("checkpoints");
    let begins = || {
        let mut entries = fs::read_dir(&last).ok()?.filter_map(Result::ok);
        let is_last = |name: &str| name.starts_with("step-00000100");
        entries.find(|entry| is_last(&entry.file_name().to_string_lossy()))
    };
    // Looks without a pause, because the checkpoint is written within milliseconds.
    let patience = Instant::now();
    while begins().is_none() && patience.elapsed() < Duration::from_secs(60) {}
    signal(&child, "-STOP");
    harm(&run);
    signal(&child, "-CONT");
    let output = end(child);
    assert!(output.status.success(), "{output:?}");
    (run, text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn what_is_lost_during_the_last_checkpoint_is_written_again() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 4] = [
        ("metrics.jsonl", |run| {
            fs::write(run.join("metrics.jsonl"), "{}").unwrap();
        }),
        ("metrics.jsonl", |run| {
            fs::remove_file(run.join("metrics.jsonl")).unwrap();
        }),
        ("config.ron", |run| {
            fs::remove_file(run.join("config.ron")).unwrap();
        }),
        // Appended lines are cut off without a message, as during training.
        ("", |run| {
            let mut log = OpenOptions::new();
            let mut log = log.append(true).open(run.join("metrics.jsonl")).unwrap();
            log.write_all(b"{\"step\":50,\"tokens\":1}\n").unwrap();
        }),
    ];
    for (name, harm) in harms {
        // The process may end before it is stopped.
        let is_mended = |_| {
            let scratch = Scratch::new();
            let (run, shown) = harmed_at_the_end(&scratch, harm);
            let is_whole = steps(&run).len() == 101 && run.join("config.ron").exists();
            if is_whole {
                assert!(name.is_empty() || shown.contains(name), "{name}: {shown}");
                assert_whole(&run);
                go_on(&run, 120);
                assert_whole(&run);
            }
            is_whole
        };
        assert!((0..5).any(is_mended), "{name}");
    }
}

#[test]
fn a_lost_checkpoint_is_told_and_another_one_is_written() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let child = start(&mut endless(&run, 20));
    wait_for(&run, 30);
    signal(&child, "-STOP");
    for entry in fs::read_dir(run.join("checkpoints")).unwrap() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    signal(&child, "-CONT");
    wait_for(&run, 30);
    let shown = stop(child, "-TERM");
    assert!(
        shown.contains("vanished while the run was training; a new checkpoint is written"),
        "{shown}"
    );
    assert_whole(&run);
    let last = steps(&run).len() + 10;
    go_on(&run, last);
    assert_whole(&run);
}

#[test]
fn checkpoints_that_are_deleted_are_reported_and_made_again() {
    let scratch = Scratch::new();
    let (run, shown, code) = replaced(&scratch, |checkpoints| {
        // The run may be writing to this directory.
        fs::rename(checkpoints, checkpoints.with_file_name("aside")).unwrap();
    });
    if code == stopped_by("-TERM") {
        assert!(shown.contains("checkpoints has vanished"), "{shown}");
        assert!(checkpoint::newest(&run).is_ok());
        assert_whole(&run);
    } else {
        // The directory vanished while a checkpoint was written.
        assert!(shown.contains("checkpoints/step-"), "{shown}");
    }
}

#[test]
fn files_that_are_deleted_while_a_run_trains_are_written_again_at_the_next_checkpoint() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let child = start(&mut endless(&run, 20));
    wait_for(&run, 5);
    let names = ["config.ron", "data.json", "history.jsonl", "tokenizer.json"];
    let before = names.map(|name| fs::read(run.join(name)).unwrap());
    for name in names {
        fs::remove_file(run.join(name)).unwrap();
    }
    let are_back = || names.iter().all(|name| run.join(name).exists());
    assert!(wait(|| are_back().then_some(())).is_some());
    let shown = stop(child, "-TERM");
    for (name, before) in names.iter().zip(before) {
        assert_eq!(fs::read(run.join(name)).unwrap(), before, "{name}");
        let note = format!("{name} vanished while the run was training; it was written again");
        assert_eq!(shown.matches(&note).count(), 1, "{shown}");
    }
    // The history of a resumed run has all of its starts.
    let child = start(&mut resume(&run));
    wait_for(&run, 5);
    let history = run.join("history.jsonl");
    fs::remove_file(&history).unwrap();
    assert!(wait(|| history.exists().then_some(())).is_some());
    let shown = stop(child, "-TERM");
    assert!(shown.contains("history.jsonl vanished"), "{shown}");
    assert_eq!(run_dir::read_history(&run).unwrap().len(), 2);
    assert_whole(&run);
}

#[test]
fn files_that_are_changed_while_a_run_trains_are_written_again_at_the_next_checkpoint() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 4] = [
        ("config.ron", |path| {
            let text = fs::read_to_string(path).unwrap();
            fs::write(
                path,
                text.replacen("learning_rate: ", "learning_rate: 1", 1),
            )
            .unwrap();
        }),
        ("data.json", |path| fs::write(path, "").unwrap()),
        ("history.jsonl", |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("nowhere", path).unwrap();
        }),
        ("tokenizer.json", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
    ];
    let scratch = Scratch::new();
    let run = scratch.path("run");
    // The second command trains on the files that the first command has written.
    for mut command in [endless(&run, 20), resume(&run)] {
        let child = start(&mut command);
        wait_for(&run, 5);
        let before = harms.map(|(name, _)| fs::read(run.join(name)).unwrap());
        let rows = steps(&run).len();
        for (name, harm) in harms {
            harm(&run.join(name));
        }
        let is_past = || steps(&run).len() > rows + 45;
        assert!(wait(|| is_past().then_some(())).is_some());
        let shown = stop(child, "-TERM");
        for ((name, _), before) in harms.iter().zip(before) {
            assert_eq!(fs::read(run.join(name)).unwrap(), before, "{name}: {shown}");
            assert!(!run.join(name).is_symlink());
            let note = format!("{name} was changed by another program while the run was training");
            assert_eq!(shown.matches(&note).count(), 1, "{shown}");
        }
    }
    let moved = |name: &str| run.join(format!("moved-{name}"));
    let edit = fs::read_to_string(moved("config.ron.2")).unwrap();
    assert!(edit.contains("learning_rate: 1"), "{edit}");
    assert_eq!(fs::read(moved("data.json")).unwrap(), b"");
    assert!(moved("history.jsonl").is_symlink() && moved("tokenizer.json").is_dir());
    let last = checkpoint::step_of(&checkpoint::newest(&run).unwrap().path).unwrap();
    go_on(&run, last + 5);
    assert_whole(&run);
}

#[test]
fn a_lock_that_is_deleted_ends_the_run_and_is_named() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let child = start(&mut endless(&run, 5));
    wait_for(&run, 10);
    fs::remove_file(run.join("lock")).unwrap();
    let ended_by_its_lock = |child| {
        let output = end(child);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("run: its file `lock` is gone"), "{error}");
        let last = checkpoint::step_of(&checkpoint::newest(&run).unwrap().path).unwrap();
        go_on(&run, last + 20);
        assert_whole(&run);
    };
    ended_by_its_lock(child);
    // A replaced lock ends the run too.
    let more = ["--allow-config-change", "--set", "train.steps=100000000"];
    let child = start(resume(&run).args(more));
    wait_for(&run, 10);
    fs::write(run.join("other"), "").unwrap();
    fs::rename(run.join("other"), run.join("lock")).unwrap();
    ended_by_its_lock(child);
}

/// A process that is killed at any change on disk leaves no files permanently, even while it deletes an old checkpoint.
#[test]
fn what_is_left_of_a_deleted_checkpoint_is_removed() {
    let scratch = Scratch::new();
    let file = config_on(
        &scratch,
        MODELS[0].1,
        "Synthetic(tokens: 3000)",
        "sample_every: 100",
    );
    let straight = scratch.path("straight");
    let traced = with_fault(train(&file, &straight), 0, "trace").output();
    let trace = text(&traced.unwrap().stderr);
    let expected = outcome(&straight);
    // Changes are numbered from 1.
    let deletions = trace
        .lines()
        .filter_map(|line| line.strip_prefix("fault "))
        .filter(|line| line.contains(": delete ") && line.ends_with(".partial"))
        .filter_map(|line| line.split(':').next()?.parse::<usize>().ok());
    let last: Vec<usize> = deletions
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .take(2)
        .collect();
    assert_eq!(last.len(), 2, "{trace}");
    for at in last {
        let run = scratch.path(&format!("run-{at}"));
        let killed = with_fault(train(&file, &run), at, "kill").output().unwrap();
        assert!(!killed.status.success());
        ok(&mut resume(&run));
        assert_same(&run, &expected, &format!("killed at change {at}"));
        let entries = fs::read_dir(run.join("checkpoints")).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert!(
            names.iter().all(|name| !name.contains("partial")),
            "{names:?}"
        );
        for name in &names {
            assert!(
                run.join("checkpoints")
                    .join(name)
                    .join("manifest.json")
                    .exists(),
                "{name} is half a checkpoint"
            );
        }
        assert!(names.contains(&format!("step-{STEPS:08}")), "{names:?}");
    }
}

#[test]
fn a_config_that_was_edited_is_refused_unless_allowed() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let file = config(&scratch, MODELS[0].1);
    ok(train(&file, &run).args(["--set", "train.steps=12"]));
    let path = run.join("config.ron");
    let text = fs::read_to_string(&path).unwrap();
    let edited = text.replacen("learning_rate: 0.01", "learning_rate: 0.02", 1);
    assert_ne!(edited, text);
    fs::write(&path, &edited).unwrap();
    fails(
        &mut resume(&run),
        2,
        &["config.ron was edited", "--allow-config-change"],
    );
    let described = program::run(zoo("describe").arg(&run));
    let note = program::text(&described.stderr);
    assert!(note.contains("config.ron has been edited since"), "{note}");
    // The original file is accepted again.
    fs::write(&path, &text).unwrap();
    ok(&mut resume(&run));
    fs::write(&path, &edited).unwrap();
    let shown = go_on(&run, 14);
    assert!(shown.contains("changed: config.ron was edited"), "{shown}");
    let history = run_dir::read_history(&run).unwrap();
    assert!(history.last().unwrap().changes[0].contains("config.ron"));
    ok(&mut resume(&run));
}

#[test]
fn directories_that_look_like_checkpoints_cost_none() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let mut command = endless(&run, 5);
    let child = start(command.args(["--set", "train.keep_checkpoints=1"]));
    wait_for(&run, 20);
    let checkpoints = run.join("checkpoints");
    for stray in ["step-99999999", "step-00000001"] {
        fs::create_dir_all(checkpoints.join(stray).join("mine")).unwrap();
    }
    wait_for(&run, 30);
    let shown = stop(child, "-TERM");
    // The current step may not have a row yet.
    let last = checkpoint::step_of(&checkpoint::newest(&run).unwrap().path).unwrap();
    assert!(last >= *steps(&run).last().unwrap());
    assert!(shown.contains(&format!("at step {last}")), "{shown}");
    assert!(checkpoints.join("step-99999999/mine").exists());
    assert!(checkpoints.join("step-00000001/mine").exists());
    // The false checkpoints are set aside, not deleted, and the run continues.
    go_on(&run, last + 10);
    assert!(checkpoints.join("damaged-step-99999999/mine").exists());
    assert_whole(&run);
}

#[test]
fn starts_that_failed_do_not_make_a_config_an_edited_one() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let file = config(&scratch, MODELS[0].1);
    ok(train(&file, &run).args(["--set", "train.steps=12"]));
    let longer = |run: &Path, at: usize, kind: &str| {
        let mut command = with_fault(resume(run), at, kind);
        command.args(["--set", "train.steps=16"]).output().unwrap()
    };
    let copied = scratch.path("copy");
    let copy = Command::new("cp").arg("-r").args([&run, &copied]).status();
    assert!(copy.unwrap().success());
    let trace = text(&longer(&copied, 0, "trace").stderr);
    let written = trace.lines().find(|line| line.ends_with("config.partial"));
    let number = |line: &str| line.strip_prefix("fault ")?.split(':').next()?.parse().ok();
    let at = written.and_then(number).unwrap();
    // The new config cannot be written.
    for _ in 0..3 {
        let output = longer(&run, at, "fail");
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains("could not write"));
    }
    ok(resume(&run).args(["--set", "train.steps=16"]));
    assert_eq!(
        run_dir::read_metrics(&run).unwrap().last().unwrap().step,
        16
    );
    // Without a whole line in the history, the program cannot know whether the config was edited.
    let history = fs::read(run.join("history.jsonl")).unwrap();
    for left in [Some(&b""[..]), Some(&history[..50]), Some(b"\0\xff"), None] {
        fs::remove_file(run.join("history.jsonl")).unwrap();
        if let Some(left) = left {
            fs::write(run.join("history.jsonl"), left).unwrap();
        }
        fails(
            resume(&run).args(["--set", "train.steps=18"]),
            2,
            &["has lost its history.jsonl; restore it"],
        );
        assert_eq!(fs::read(run.join("history.jsonl")).ok().as_deref(), left);
        fs::write(run.join("history.jsonl"), &history).unwrap();
    }
    fs::remove_file(run.join("config.ron")).unwrap();
    fails(
        &mut resume(&run),
        2,
        &["has lost its config.ron; restore it"],
    );
    fails(
        &mut train(&file, &run),
        2,
        &["has lost its config.ron; restore it"],
    );
}

#[test]
fn a_backup_of_hard_links_keeps_what_it_has_and_the_run_goes_on() {
    let scratch = Scratch::new();
    let (run, backup) = (scratch.path("run"), scratch.path("backup"));
    fs::create_dir(&backup).unwrap();
    let child = start(&mut endless(&run, 10));
    wait_for(&run, 30);
    let logs = ["metrics.jsonl", "samples.txt"];
    for log in logs {
        fs::hard_link(run.join(log), backup.join(log)).unwrap();
    }
    let before = logs.map(|log| fs::read(backup.join(log)).unwrap());
    wait_for(&run, 30);
    stop(child, "-TERM");
    assert_whole(&run);
    for (log, before) in logs.iter().zip(before) {
        let now = fs::read(backup.join(log)).unwrap();
        // The last row may be half-written.
        assert!(
            now.starts_with(&before) && now.len() < before.len() + 2000,
            "{log}"
        );
        assert!(fs::read(run.join(log)).unwrap().len() > now.len(), "{log}");
    }
}

#[test]
fn an_edit_that_keeps_length_and_time_is_noticed() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let child = start(&mut endless(&run, 50));
    wait_for(&run, 30);
    let log = run.join("metrics.jsonl");
    signal(&child, "-STOP");
    let time = fs::metadata(&log).unwrap().modified().unwrap();
    let edited = fs::read_to_string(&log)
        .unwrap()
        .replacen("\"step\":3,", "\"step\":4,", 1);
    let mut file = OpenOptions::new().write(true).open(&log).unwrap();
    file.write_all(edited.as_bytes()).unwrap();
    file.set_modified(time).unwrap();
    drop(file);
    signal(&child, "-CONT");
    wait_for(&run, 10);
    let shown = stop(child, "-TERM");
    assert!(shown.contains("metrics.jsonl was changed"), "{shown}");
    assert_whole(&run);
}

#[test]
fn the_logs_of_every_restart_are_kept() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let mut rows = Vec::new();
    for _ in 0..3 {
        let child = start(&mut endless(&run, 100_000_000));
        wait_for(&run, 5);
        stop(child, "-KILL");
        rows.push(fs::read(run.join("metrics.jsonl")).unwrap());
    }
    let aside = [
        "before-restart-metrics.jsonl",
        "before-restart-metrics.jsonl.2",
    ];
    for (name, rows) in aside.iter().zip(&rows) {
        assert_eq!(&fs::read(run.join(name)).unwrap(), rows, "{name}");
    }
}
