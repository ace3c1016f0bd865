//! Damaged, linked and lost files in the pool of an experiment.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use residual_zoo_testing::program::{Scratch, fails, ok, run, text};
use residual_zoo_testing::runs::four_runs;
use residual_zoo_testing::terminal::wait;

use super::hardening::{copied, edit, pooled};

#[test]
fn the_remedies_for_a_run_of_a_pool_are_those_of_experiments() {
    let scratch = Scratch::new();
    let place = pooled(&scratch);
    let kept = scratch.path("kept");
    for damage in [
        "lost config",
        "edited config",
        "wrong config",
        "lost data",
        "data",
    ] {
        copied(&place, &kept);
        match damage {
            "lost config" => fs::remove_file(place.join("config.ron")).unwrap(),
            "edited config" => edit(&place, "batch: 2", "batch: 3"),
            "wrong config" => fs::write(place.join("config.ron"), "(").unwrap(),
            "lost data" => fs::remove_file(place.join("data.json")).unwrap(),
            _ => fs::write(place.join("data.json"), "{").unwrap(),
        }
        let output = run(&mut four_runs(&scratch));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{damage}: {error}");
        for says in [
            "delete that run to train it again",
            "`--force`",
            "`--runs DIR`",
        ] {
            assert!(error.contains(says), "{damage}: {error}");
        }
        for other in ["`--run DIR`", "--allow-config-change"] {
            assert!(!error.contains(other), "{damage}: {error}");
        }
        fs::remove_dir_all(&place).unwrap();
        fs::rename(&kept, &place).unwrap();
    }
    fs::remove_file(place.join("config.ron")).unwrap();
    ok(four_runs(&scratch).arg("--force"));
    fs::remove_dir_all(&place).unwrap();
    ok(&mut four_runs(&scratch));
}

#[test]
fn a_link_in_place_of_a_run_of_a_pool_is_not_followed() {
    let scratch = Scratch::new();
    let mut command = four_runs(&scratch);
    ok(&mut command);
    let mut pool = fs::read_dir(scratch.path("out/pool")).unwrap();
    let (place, theirs) = (pool.next().unwrap().unwrap().path(), scratch.path("theirs"));
    fs::rename(&place, &theirs).unwrap();
    symlink(&theirs, &place).unwrap();
    let output = run(&mut command);
    assert!(!output.status.success());
    assert!(text(&output.stdout).contains("is a link"), "{output:?}");
}

#[test]
fn force_writes_nothing_behind_the_link_of_a_run() {
    let scratch = Scratch::new();
    let (place, theirs) = (pooled(&scratch), scratch.path("theirs"));
    fs::remove_dir_all(&place).unwrap();
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("lock"), "mine").unwrap();
    symlink(&theirs, &place).unwrap();
    fails(four_runs(&scratch).arg("--force"), 2, &["is a link"]);
    assert_eq!(fs::read_to_string(theirs.join("lock")).unwrap(), "mine");
}

#[test]
fn no_verdict_rests_on_runs_that_have_lost_rows() {
    let scratch = Scratch::new();
    let metrics = pooled(&scratch).join("metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    let first = whole.lines().next().unwrap().to_owned() + "\n";
    for lost in [Some(first), Some(String::new()), None] {
        match lost {
            Some(text) => fs::write(&metrics, text).unwrap(),
            None => fs::remove_file(&metrics).unwrap(),
        }
        let output = run(&mut four_runs(&scratch));
        let shown = text(&output.stdout);
        assert!(!output.status.success(), "{shown}");
        assert!(
            shown.contains("has lost") && shown.contains("--force"),
            "{shown}"
        );
    }
    ok(four_runs(&scratch).arg("--force"));
    // A missing device is found before runs are deleted.
    let runs = || fs::read_dir(scratch.path("out/pool")).unwrap().count();
    let before = runs();
    fails(
        four_runs(&scratch).args(["--force", "--gpu", "7"]),
        2,
        &["`--gpu`"],
    );
    assert_eq!(runs(), before);
}

#[test]
fn a_pipe_in_place_of_a_measurement_does_not_hold_up_an_experiment() {
    let scratch = Scratch::new();
    let measured = pooled(&scratch).join("measured.json");
    fs::remove_file(&measured).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&measured)
            .status()
            .unwrap()
            .success()
    );
    let mut child = four_runs(&scratch).stdout(Stdio::null()).spawn().unwrap();
    assert!(wait(|| child.try_wait().unwrap()).is_some());
    child.kill().ok();
}
