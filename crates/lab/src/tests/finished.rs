use std::collections::BTreeMap;

use residual_zoo_core::Cost;
use residual_zoo_train::Summary;

use super::*;
use crate::finished::{FinishedRun, FinishedRuns, Goal, Host};
use crate::observe::of_summary;

fn row(step: usize, valid_loss: Option<f64>, train_loss: Option<f64>) -> Row {
    Row {
        step,
        tokens: 10 * step as u64,
        flops: 0.1 * step as f64,
        seconds: 0.3 * step as f64,
        valid_loss,
        valid_accuracy: valid_loss.map(|loss| loss / 7.0),
        train_loss,
        ..Row::default()
    }
}

fn summary(rows: Vec<Row>) -> Summary {
    Summary {
        rows,
        cost: Cost::default(),
        train_loss: 3.0,
        valid_loss: 1.0 / 3.0,
        valid_accuracy: f64::NAN,
        tokens_per_second: 1.0,
        stopped: false,
        trained: true,
        checkpoint: "".into(),
    }
}

/// Writes a run and reads it again. Returns its rows, and whether its quantities are the same as before.
fn written(rows: Vec<Row>, draws_train_loss: bool) -> (Vec<Row>, bool) {
    let summary = summary(rows);
    let (mut quantities, _) = of_summary(&summary, None);
    quantities.insert("learned α".into(), 0.1 + 0.2);
    quantities.insert("peak_memory".into(), 1e9 + 1.0);
    let (goal, none) = (Goal::Whole(&[]), BTreeMap::new());
    let mut runs = FinishedRuns::default();
    let key = ("GPT-2-a".to_owned(), None);
    let run = FinishedRun::of(("a", 1), goal, &summary, &quantities, &none);
    runs.add(key.clone(), run);
    let host = Host {
        backend: "flex".into(),
        machine: "here".into(),
        commit: None,
    };
    let text = runs.to_json(("name", "cpu"), &host, draws_train_loss);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("name.json");
    std::fs::write(&path, text).unwrap();
    let file = FinishedFile::read(&path, "name", "cpu").unwrap();
    let run = file.find(&key, goal).unwrap();
    let (mut again, rows) = of_summary(&run.summary(Cost::default()), None);
    run.put_measured(&[], &mut again);
    (rows, again == quantities)
}

#[test]
fn a_finished_run_has_all_quantities_and_the_rows_of_its_curve() {
    let all = vec![
        row(0, Some(4.1), None),
        row(1, None, Some(3.9)),
        row(2, Some(3.7), Some(3.8)),
        row(3, None, Some(3.6)),
    ];
    let (rows, is_same) = written(all.clone(), true);
    assert!(is_same);
    assert_eq!(rows, all);
    let (rows, is_same) = written(all.clone(), false);
    assert!(is_same);
    let without = |i: usize| Row {
        train_loss: None,
        ..all[i].clone()
    };
    assert_eq!(rows, [without(0), without(2), without(3)]);
}

#[test]
fn a_long_curve_is_thinned_at_equal_distances_and_keeps_its_ends() {
    let all: Vec<Row> = (0..1000).map(|step| row(step, Some(2.0), None)).collect();
    let (rows, is_same) = written(all.clone(), false);
    assert!(is_same);
    assert_eq!(rows.len(), 64);
    assert_eq!((&rows[0], &rows[63]), (&all[0], &all[999]));
    let gaps = rows.windows(2).map(|pair| pair[1].step - pair[0].step);
    assert!(gaps.into_iter().all(|gap| gap == 15 || gap == 16));
}
