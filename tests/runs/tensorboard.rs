//! Event files for TensorBoard.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use residual_zoo::runs::run_dir;
use residual_zoo_testing::program::{SMOKE, Scratch, ok, zoo};
use residual_zoo_testing::root;
use serde_json::Value;

/// Returns a command that trains the smallest run with event files.
fn train(run: &Path, steps: usize) -> Command {
    let mut command = zoo("train");
    command.arg(SMOKE).arg("--run").arg(run);
    command.args([
        "--set",
        "train.tensorboard=true",
        "--set",
        &format!("train.steps={steps}"),
    ]);
    command
}

fn event_file(run: &Path) -> PathBuf {
    let entries = fs::read_dir(run.join("tensorboard")).unwrap();
    let files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

/// Counts the records of a file, whose lengths must add up to the file's length.
fn records(file: &Path) -> usize {
    let mut rest = fs::read(file).unwrap();
    let mut count = 0;
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        rest.drain(..8 + 4 + length + 4);
        count += 1;
    }
    count
}

/// Returns the expected number of records: for the rows and samples of a run, its config, and the format version.
fn expected(run: &Path) -> usize {
    let rows = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let rows = rows
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    // Every number of a row counts, except the step, the FLOPs and the seconds.
    let numbers: usize = rows.map(|row| row.as_object().unwrap().len() - 3).sum();
    let samples = fs::read_to_string(run.join("samples.txt")).unwrap();
    2 + numbers + samples.matches("=== step ").count()
}

#[test]
fn every_row_and_sample_is_an_event_also_after_a_restart() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    ok(&mut train(&run, 30));
    let before = records(&event_file(&run));
    assert_eq!(before, expected(&run));
    // Event files can be added to a run later, and then contain all rows.
    fs::remove_dir_all(run.join("tensorboard")).unwrap();
    ok(&mut train(&run, 60));
    assert_eq!(records(&event_file(&run)), expected(&run));
    assert!(expected(&run) > before);
    // Event files are part of the run, so the run can be deleted.
    run_dir::delete(&[run.clone()].into()).unwrap();
    assert!(!run.exists());
}

#[test]
fn a_foreign_file_among_the_events_keeps_a_run_from_being_deleted() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    ok(&mut train(&run, 2));
    // Other programs may write events to the same directory. When the run continues, these events stay.
    for name in ["notes.txt", "events.out.tfevents.1700000000.host"] {
        let foreign = run.join("tensorboard").join(name);
        fs::write(&foreign, "mine").unwrap();
        ok(&mut train(&run, 4));
        assert_eq!(fs::read_to_string(&foreign).unwrap(), "mine");
        let error = run_dir::delete(&[run.clone()].into())
            .unwrap_err()
            .to_string();
        assert!(error.contains(name), "{error}");
        assert!(run.join("config.ron").exists());
        fs::remove_file(&foreign).unwrap();
    }
}

#[test]
#[ignore = "needs Python with tensorboard"]
fn tensorboard_reads_every_point() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    ok(&mut train(&run, 40));
    ok(&mut train(&run, 60));
    let python = std::env::var("RESIDUAL_ZOO_PYTHON").unwrap_or("python3".into());
    let mut reference = Command::new(python);
    reference
        .arg(root().join("tests/runs/read_events.py"))
        .arg(run.join("tensorboard"));
    let found: Value = serde_json::from_str(&ok(&mut reference)).unwrap();
    let rows = run_dir::read_metrics(&run).unwrap();
    let points = |tag: &str| -> Vec<(u64, f64)> {
        let points = found["scalars"][tag].as_array().unwrap().iter();
        points
            .map(|point| (point[0].as_u64().unwrap(), point[1].as_f64().unwrap()))
            .collect()
    };
    let losses: Vec<(u64, f64)> = rows
        .iter()
        .filter_map(|row| Some((row.step as u64, f64::from(row.train_loss? as f32))))
        .collect();
    assert_eq!(points("loss/train"), losses);
    assert!(losses.len() >= 6);
    let valid = rows.iter().filter(|row| row.valid_loss.is_some()).count();
    assert_eq!(points("loss/valid").len(), valid);
    assert_eq!(points("tokens").len(), rows.len());
    let config = found["texts"]["config"][0][1].as_str().unwrap();
    assert!(config.contains("tensorboard: true"), "{config}");
    let samples = fs::read_to_string(run.join("samples.txt")).unwrap();
    assert_eq!(
        found["texts"]["sample"].as_array().unwrap().len(),
        samples.matches("=== step ").count()
    );
}
