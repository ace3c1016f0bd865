//! Rows of metrics that a run has lost.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::{METRICS, changed};
use crate::checkpoint::{self, STATE};
use crate::log::{Log, Mark};
use crate::{Error, disk};

/// Says what the metrics of the run in `path` have lost since its newest checkpoint; `None` if they have lost nothing,
/// or nothing is known of them.
///
/// # Errors
///
/// Returns an error if there is a link in the place of the metrics, and I/O errors.
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
    let newest = checkpoint::steps(path)
        .ok()
        .and_then(|steps| steps.last().copied());
    let state = newest.and_then(|step| {
        let state = checkpoint::directory(path, step).join(STATE);
        let text = residual_zoo_data::read_file(&state).ok()?;
        serde_json::from_slice::<State>(&text).ok()
    });
    // A process that trains may just have deleted the checkpoint.
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
