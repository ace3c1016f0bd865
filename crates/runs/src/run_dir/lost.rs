//! Finds the rows of metrics that a run has kept or lost.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{HISTORY, METRICS, SAMPLES, changed, place, read, read_history};
use crate::checkpoint::{self, CHECKPOINTS, STATE};
use crate::lock::LOCK;
use crate::log::{Log, Mark};
use crate::{Error, Row, disk, events};

/// Reads the rows of the run in `path` up to the step `logged`, the last step that had a row when a checkpoint was
/// written. Also returns a note for each log, the metrics or the samples, that no longer begins with its content at
/// that checkpoint. Writes nothing.
///
/// # Errors
///
/// Returns [`Error::Checkpoint`] for a damaged row, and I/O errors.
pub fn read_back(
    path: &Path,
    logged: usize,
    [metrics, samples]: [&Mark; 2],
) -> Result<(Vec<Row>, Vec<String>), Error> {
    let mut notes = Vec::new();
    let mut until = metrics.bytes;
    for (name, mark) in [(METRICS, metrics), (SAMPLES, samples)] {
        let log = path.join(name);
        if Log::new(log.clone()).begins_with(mark)? {
            continue;
        }
        let found = fs::metadata(&log).map_or(0, |metadata| metadata.len());
        notes.push(changed(&log, found, mark.bytes));
        if name == METRICS {
            until = u64::MAX;
        }
    }
    let log = path.join(METRICS);
    let mut rows = match log.exists() {
        true => read::rows(&log, until)?,
        false => Vec::new(),
    };
    rows.retain(|row| row.step <= logged);
    Ok((rows, notes))
}

/// Checks that this process may write the files of the run in `path`, which exists. `logs` tells whether the run
/// continues its logs, and `tensorboard` tells whether it writes event files. Writes nothing.
///
/// # Errors
///
/// Returns an error if the path of a file holds something else, and an I/O error if writing is not allowed.
pub fn check_writable(path: &Path, logs: bool, tensorboard: bool) -> Result<(), Error> {
    place::refuse_partials(path)?;
    let appended = [LOCK, HISTORY].map(|name| path.join(name));
    appended
        .iter()
        .try_for_each(|file| disk::refuse_to_write(file))?;
    // A log with a second name is allowed, because the run replaces it rather than writing to it.
    let logs = if logs { &[METRICS, SAMPLES][..] } else { &[] };
    let logs: Vec<PathBuf> = logs.iter().map(|name| path.join(name)).collect();
    logs.iter().try_for_each(|file| disk::refuse_link(file))?;
    let mut directories = vec![path.to_path_buf(), path.join(CHECKPOINTS)];
    if tensorboard {
        let folder = path.join(events::FOLDER);
        disk::refuse_linked_directory(&folder)?;
        directories.push(folder);
    }
    let there = appended.into_iter().chain(logs).chain(directories);
    for place in there.filter(|place| fs::symlink_metadata(place).is_ok()) {
        residual_zoo_system::files::check_writable(&place).map_err(Error::io("write", &place))?;
    }
    Ok(())
}

/// Describes the rows that the metrics of the run in `path` have lost, either since the newest checkpoint or before an
/// earlier start, which recorded the loss. Returns `None` if no rows were lost, or if this is unknown.
///
/// # Errors
///
/// Returns an error if the metrics file is a link, and I/O errors.
pub fn lost_rows(path: &Path) -> Result<Option<String>, Error> {
    /// The part of a checkpoint's state that describes the metrics.
    #[derive(Deserialize)]
    struct State {
        journal: Journal,
    }
    #[derive(Deserialize)]
    struct Journal {
        metrics: u64,
        #[serde(default)]
        metrics_blake3: Option<String>,
    }
    let log = path.join(METRICS);
    disk::refuse_link(&log)?;
    let before = read_history(path).unwrap_or_default();
    if let Some(lost) = before.into_iter().flat_map(|start| start.lost).next() {
        return Ok(Some(lost));
    }
    let steps = checkpoint::steps(path).unwrap_or_default();
    // The newest checkpoint with a state. Other directories may be damaged or foreign.
    let state = steps.into_iter().rev().find_map(|step| {
        let state = checkpoint::directory(path, step).join(STATE);
        let text = residual_zoo_data::read_file(&state).ok()?;
        serde_json::from_slice::<State>(&text).ok()
    });
    // A training process may just have deleted the checkpoint.
    let Some(State { journal }) = state else {
        return Ok(None);
    };
    let mark = Mark {
        bytes: journal.metrics,
        blake3: journal.metrics_blake3,
    };
    if Log::new(log.clone()).begins_with(&mark)? {
        return Ok(None);
    }
    let found = fs::metadata(&log).map_or(0, |metadata| metadata.len());
    Ok(Some(changed(&log, found, mark.bytes)))
}
