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
    let last = rows.last().and_then(|row| row.valid_loss);
    Summary {
        rows,
        cost: Cost::default(),
        train_loss: 3.0,
        valid_loss: last.unwrap_or(f64::NAN),
        valid_accuracy: f64::NAN,
        tokens_per_second: 1.0,
        stopped: false,
        trained: true,
        checkpoint: "".into(),
    }
}

const KEY: &str = "GPT-2-a";

/// Makes the text of a results file with one run that has these rows. Also returns the quantities of the run.
fn file(rows: Vec<Row>, draws_train_loss: bool) -> (String, BTreeMap<String, f64>) {
    let summary = summary(rows);
    let (mut quantities, _) = of_summary(&summary, None);
    quantities.insert("learned α".into(), 0.1 + 0.2);
    quantities.insert("peak_memory".into(), 1e9 + 1.0);
    let given = BTreeMap::new();
    let run = FinishedRun::of(("a", 1), Goal::Whole(&[]), &summary, &quantities, &given);
    let mut runs = FinishedRuns::default();
    runs.add((KEY.to_owned(), None), run);
    let host = Host {
        backend: "flex".into(),
        machine: "here".into(),
        commit: None,
    };
    let text = runs.to_json(("name", "cpu"), &host, draws_train_loss);
    (text, quantities)
}

/// Returns the rows and the quantities of the run in a file.
fn read(text: &[u8]) -> Result<(Vec<Row>, BTreeMap<String, f64>), Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("name.json");
    std::fs::write(&path, text).unwrap();
    let file = FinishedFile::read(&path, "name", "cpu")?;
    let Some((_, run)) = file.find(&(KEY.to_owned(), None), Goal::Whole(&[])) else {
        return Ok(Default::default());
    };
    let (mut quantities, rows) = of_summary(&run.summary(Cost::default()), None);
    run.put_measured(&[], &mut quantities);
    Ok((rows, quantities))
}

/// Writes a run and reads it again. Returns its rows, and whether its quantities are the same as before.
fn written(rows: Vec<Row>, draws_train_loss: bool) -> (Vec<Row>, bool) {
    let (text, before) = file(rows, draws_train_loss);
    let (rows, quantities) = read(text.as_bytes()).unwrap();
    (rows, quantities == before)
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

#[test]
fn a_file_with_any_other_byte_is_an_error_or_has_finite_numbers() {
    let rows = vec![row(0, Some(4.1), None), row(2, Some(3.7), Some(3.8))];
    let (text, _) = file(rows, true);
    let mut read_anyway = 0;
    for at in 0..text.len() {
        // Tries two of these bytes, which depend on the position.
        let others = [b'9', b'-', b'e', b'"', b'[', b'}', b',', 0x1b, 0xff];
        for byte in [others[at % 9], others[at * 2 % 9]] {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = byte;
            if let Ok((rows, quantities)) = read(&bytes) {
                read_anyway += 1;
                assert!(quantities.values().all(|value| value.is_finite()));
                let totals = |row: &Row| row.flops.is_finite() && row.seconds >= 0.0;
                assert!(rows.iter().all(totals));
            }
        }
    }
    assert!(read_anyway > 0);
}
