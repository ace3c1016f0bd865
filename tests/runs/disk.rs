//! On a failing disk, runs report the error, and earlier checkpoints stay good.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use residual_zoo::runs::{checkpoint, run_dir};
use residual_zoo_testing::program::{Scratch, end, ok, run, text, zoo};
use residual_zoo_testing::runs::{
    self, MODELS, assert_same, config, killed, outcome, resume, start, train, with_fault,
};

/// Returns a command for a run, which is short because the test repeats it with a failure at each change on disk.
fn short(file: &Path, directory: &Path) -> Command {
    let mut command = train(file, directory);
    command.args(["--set", "train.checkpoint_every=12"]);
    command.args(["--set", "train.keep_checkpoints=1"]);
    // The first checkpoint is not validated, so it is not the best one and is deleted.
    command.args(["--set", "train.validate_every=24"]);
    command
}

#[test]
fn whichever_change_on_disk_fails_or_is_the_last_the_run_goes_on_from_a_good_checkpoint() {
    let scratch = Scratch::new();
    let file = config(&scratch, MODELS[0].1);
    ok(&mut short(&file, &scratch.path("straight")));
    let expected = outcome(&scratch.path("straight"));
    let changes = runs::count_changes(short(&file, &scratch.path("counted")));
    let (mut struck, mut kept) = (String::new(), 0);
    for at in 1..=changes {
        for kind in ["fail", "kill"] {
            let directory = scratch.path(&format!("{kind}-{at}"));
            let output = run(&mut with_fault(short(&file, &directory), at, kind));
            let error = text(&output.stderr);
            let what = format!("{kind} {at}: {error}");
            struck += error.lines().next().unwrap();
            match kind {
                "kill" => assert!(killed(&output), "{what}"),
                // A failure to delete an old checkpoint loses nothing.
                _ if output.status.success() => {
                    let told =
                        text(&output.stdout).contains("an old checkpoint could not be deleted");
                    assert!(told || error.contains("delete"), "{what}");
                    kept += usize::from(told);
                }
                _ => {
                    assert_eq!(output.status.code(), Some(1), "{what}");
                    assert!(error.contains("error: could not "), "{what}");
                    assert!(error.contains("free some space"), "{what}");
                }
            }
            // Every existing checkpoint is good.
            let run = directory.join("checkpoints");
            if fs::read_dir(run)
                .is_ok_and(|all| all.flatten().any(|e| e.path().extension().is_none()))
            {
                let newest = checkpoint::newest(&directory).unwrap();
                assert!(newest.passed_over.is_empty(), "{what}");
            }
            ok(&mut short(&file, &directory));
            assert_same(&directory, &expected, &what);
        }
    }
    assert!(kept > 0, "no deletion of an old checkpoint failed");
    for change in ["create", "write", "sync", "rename", "delete"] {
        assert!(
            struck.contains(&format!(": {change} ")),
            "no {change} in {struck}"
        );
    }
}

#[test]
fn a_run_that_may_trains_on_until_the_disk_works_again() {
    let scratch = Scratch::new();
    let file = config(&scratch, MODELS[0].1);
    let goes_on = |directory: &Path| {
        let mut command = short(&file, directory);
        command.args(["--set", "train.on_disk_error=Continue"]);
        command
    };
    ok(&mut goes_on(&scratch.path("straight")));
    let expected = outcome(&scratch.path("straight"));
    let counted = scratch.path("counted");
    let output = run(&mut with_fault(goes_on(&counted), 0, "trace"));
    let changes: Vec<String> = text(&output.stderr).lines().map(Into::into).collect();
    let last = format!("{}.", checkpoint::directory(&counted, 24).display());
    let of_last = |change: &String| change.contains(&last);
    let syncs = |change: &String| change.contains("sync") && change.contains("metrics.jsonl");
    let end = changes.iter().rposition(of_last).unwrap();
    let last_save = changes[..end].iter().rposition(syncs).unwrap();
    let begun = changes
        .iter()
        .position(|c| c.contains("metrics.jsonl"))
        .unwrap();
    let mut survived = 0;
    for at in begun + 1..=end {
        let directory = scratch.path(&format!("{at}"));
        let output = run(&mut with_fault(goes_on(&directory), at, "fail"));
        let what = format!("{at}: {}\n{}", changes[at - 1], text(&output.stderr));
        if output.status.success() {
            assert!(
                text(&output.stdout).contains("training continues: could not"),
                "{what}"
            );
            assert_same(&directory, &expected, &what);
            survived += 1;
        } else {
            // Saving starts with the metrics. Only the last checkpoint is not attempted again.
            assert!(at >= last_save, "{what}");
        }
    }
    assert!(survived > 20, "{survived}");

    // If the disk stays full, the run trains to the end and reports that nothing was saved.
    let full = scratch.path("full");
    let output = run(&mut with_fault(goes_on(&full), begun + 5, "sticky"));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("step 24/24"));
    assert!(text(&output.stderr).contains("error: could not write"));
    ok(&mut goes_on(&full));
    assert_same(&full, &expected, "after a full disk");
}

#[test]
fn a_vanished_run_directory_is_told_and_not_brought_back() {
    for policy in ["Stop", "Continue"] {
        let scratch = Scratch::new();
        let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
        let mut command = train(&file, &directory);
        command.args(["--set", "train.steps=100000000"]);
        command.args(["--set", &format!("train.on_disk_error={policy}")]);
        let mut child = start(&mut command);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("/100000000")));
        fs::rename(&directory, scratch.path("moved")).unwrap();
        assert!(lines.all(|line| line.is_ok()));
        let output = end(child);
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        assert!(
            error.starts_with("error: ") && error.contains("has vanished"),
            "{error}"
        );
        assert!(!directory.exists(), "nothing is written where the run was");
        let moved = run_dir::read_metrics(&scratch.path("moved")).unwrap();
        assert!(moved[0].valid_loss.is_some());
    }
}

#[test]
fn a_run_in_the_place_of_another_is_not_written_to() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    let mut first = train(&file, &directory);
    first.args(["--set", "train.steps=100000000"]);
    let mut child = start(&mut first);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("/100000000")));
    fs::rename(&directory, scratch.path("moved")).unwrap();
    ok(&mut train(&file, &directory));
    assert!(lines.all(|line| line.is_ok()));
    let output = end(child);
    assert!(text(&output.stderr).contains("vanished or was replaced"));
    ok(&mut train(&file, &scratch.path("straight")));
    assert_same(
        &directory,
        &outcome(&scratch.path("straight")),
        "the second run",
    );
}

/// Runs `script` in a separate mount namespace. Returns `None` if mounts are not allowed.
fn in_namespace(script: &str) -> Option<std::process::Output> {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", script]);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command.output()
    };
    let allowed = unshare("mount -t tmpfs tmpfs /mnt").is_ok_and(|o| o.status.success());
    allowed.then(|| unshare(script).unwrap())
}

/// Writes a command as a line of a shell script.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted: Vec<String> = words
        .map(|w| format!("'{}'", w.to_str().unwrap()))
        .collect();
    quoted.join(" ")
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_up_during_a_checkpoint_leaves_the_one_before() {
    let scratch = Scratch::new();
    let file = config(&scratch, MODELS[0].1);
    ok(&mut train(&file, &scratch.path("straight")));
    let expected = outcome(&scratch.path("straight"));
    let disk = scratch.path("disk");
    fs::create_dir(&disk).unwrap();
    let (directory, copy) = (disk.join("run"), scratch.path("copy"));
    // The first command leaves checkpoints at steps 3 and 6. Then 30 kB are free, which is too little for the next
    // checkpoint.
    let mut begin = train(&file, &directory);
    begin.args(["--set", "train.steps=6"]);
    let mut generate = zoo("generate");
    generate.arg(&directory).args(["--tokens", "5"]);
    let mut full = train(&file, &directory);
    full.arg("--allow-config-change");
    let script = format!(
        "mount -t tmpfs -o size=1m tmpfs '{disk}' && {begin} >&2 || exit 90
         free=$(df --output=avail -B1 '{disk}' | tail -1)
         head -c $((free - 30000)) /dev/zero > '{disk}/filler' || exit 91
         {full}; test $? = 1 || exit 92
         {generate} >&2 || exit 93
         ls '{disk}/run/checkpoints'
         rm '{disk}/filler'; {full} >&2 || exit 94
         cp -r '{disk}/run' '{copy}'",
        disk = disk.display(),
        copy = copy.display(),
        begin = line(&begin),
        full = line(&full),
        generate = line(&generate),
    );
    let Some(output) = in_namespace(&script) else {
        // If mounts are not allowed, the sticky fault in the test above covers this case.
        eprintln!("mounting is not allowed here");
        return;
    };
    let (shown, error) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{:?}\n{shown}\n{error}",
        output.status
    );
    assert!(error.contains("No space left on device"), "{error}");
    assert!(error.contains("free some space"), "{error}");
    assert!(shown.contains("step-00000006"), "{shown}");
    assert!(!shown.contains("partial"), "{shown}");
    // The first six steps followed the schedule of a shorter run, so only the steps are equal.
    let steps = |outcome: &runs::Outcome| -> Vec<usize> {
        outcome.rows.iter().map(|row| row.step).collect()
    };
    assert_eq!(steps(&outcome(&copy)), steps(&expected));
}

#[cfg(target_os = "linux")]
#[test]
fn a_read_only_run_directory_is_named() {
    let scratch = Scratch::new();
    let (file, directory) = (config(&scratch, MODELS[0].1), scratch.path("run"));
    ok(train(&file, &directory).args(["--set", "train.steps=6"]));
    let before = fs::read(directory.join("metrics.jsonl")).unwrap();
    let resumed = resume(&directory);
    let mut other = zoo("generate");
    other.arg(&directory).args(["--tokens", "5"]);
    let checked = |run: &Path| {
        let mut command = train(&file, run);
        command.arg("--check");
        line(&command)
    };
    let script = format!(
        "mount --bind '{run}' '{run}' && mount -o remount,ro,bind '{run}' || exit 90
         {}; test $? = 2 || exit 91
         {} >&2 || exit 92
         {}; test $? = 2 || exit 93
         {}; test $? = 2 || exit 94",
        line(&resumed),
        line(&other),
        checked(&directory),
        checked(&directory.join("new/run")),
        run = directory.display(),
    );
    if let Some(output) = in_namespace(&script) {
        let error = text(&output.stderr);
        assert!(output.status.success(), "{:?}\n{error}", output.status);
        assert!(error.contains("Read-only file system"), "{error}");
        assert!(error.contains("; make it writable"), "{error}");
        assert!(error.contains("could not create"), "{error}");
    }
    assert_eq!(fs::read(directory.join("metrics.jsonl")).unwrap(), before);
}
