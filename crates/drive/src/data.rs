//! Opens data and models, and shows the progress.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use residual_zoo_data::{Corpus, DataConfig, DataError, OnProgress, Stage};
use residual_zoo_report::{duration, si};
use residual_zoo_system::console::{Status, warn};
use residual_zoo_train::Interrupter;

/// Opens the data. Shows notes and the progress of a long preparation on standard error. `stop` ends the preparation.
///
/// # Errors
///
/// Returns the errors of [`Corpus::open_with`].
pub fn open_corpus(config: &DataConfig, stop: &Interrupter) -> Result<Corpus, DataError> {
    prepare(stop, |progress| Corpus::open_with(config, progress))
}

/// Like [`open_corpus`], but fails if the tokens of a text cannot be stored in the cache.
///
/// # Errors
///
/// Returns the errors of [`Corpus::store`].
pub fn store_corpus(config: &DataConfig, stop: &Interrupter) -> Result<Corpus, DataError> {
    prepare(stop, |progress| Corpus::store(config, progress))
}

/// Runs `work` on the data, and shows its progress and the notes of the data.
fn prepare(
    stop: &Interrupter,
    work: impl FnOnce(OnProgress) -> Result<Corpus, DataError>,
) -> Result<Corpus, DataError> {
    let corpus = with_progress(stop, work)?;
    if let Some(note) = &corpus.note {
        warn(&format!("note: {note}"));
    }
    Ok(corpus)
}

/// The preparation in progress: the stage, the bytes done (or images, while they are checked), the number of all bytes
/// (or images), and the time at which the stage began.
type Preparing = Option<(Stage, u64, u64, Instant)>;

/// Fetches the model at `path`, which may be an address on the hub, and returns its directory; see
/// [`residual_zoo_data::fetch_model`]. Shows the progress of downloads.
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_data::fetch_model`], and [`DataError::Stopped`] if the user stops the program.
pub fn fetch_model(path: &Path, stop: &Interrupter) -> Result<PathBuf, DataError> {
    with_progress(stop, |progress| {
        residual_zoo_data::fetch_model(path, progress)
    })
}

/// Runs `work`, shows its progress, and stops it on request.
fn with_progress<T>(stop: &Interrupter, work: impl FnOnce(OnProgress) -> T) -> T {
    let now: Mutex<Preparing> = Mutex::new(None);
    let set = |preparing| *now.lock().unwrap_or_else(PoisonError::into_inner) = preparing;
    let (ended, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Some stages, such as the training of a tokenizer, do not report progress.
        let now = &now;
        scope.spawn(move || {
            let mut status = Status::default();
            let timeout = Err(RecvTimeoutError::Timeout);
            while end.recv_timeout(Duration::from_millis(250)) == timeout {
                let now = *now.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(now) = now {
                    status.show(|| describe(now, Instant::now()));
                }
            }
        });
        let mut since = (Stage::Downloading, Instant::now());
        let done = work(&mut |stage, done, all| {
            if since.0 != stage || done == 0 {
                since = (stage, Instant::now());
            }
            set(Some((stage, done, all, since.1)));
            !stop.should_stop()
        });
        drop(ended);
        done
    })
}

/// Describes a stage such as `tokenizing: 30 %, 2.5MB/s, left 12s`.
fn describe((stage, done, all, since): (Stage, u64, u64, Instant), now: Instant) -> String {
    let taken = now.saturating_duration_since(since);
    let share = done as f64 / all.max(1) as f64;
    if done == 0 || matches!(stage, Stage::Training | Stage::Waiting) {
        return format!("{stage}: {} so far", duration(taken));
    }
    let rate = si(done as f64 / taken.as_secs_f64().max(1e-3));
    let rate = match stage {
        Stage::Checking => format!("{rate} images/s"),
        _ => format!("{rate}B/s"),
    };
    if all == 0 {
        return format!("{stage}: {}B, {rate}", si(done as f64));
    }
    let percent = 100.0 * share;
    let left = taken.mul_f64((1.0 / share - 1.0).clamp(0.0, 1e6));
    format!("{stage}: {percent:.0} %, {rate}, left {}", duration(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_a_share_and_the_time_left() {
        let start = Instant::now();
        let at = |stage, done| describe((stage, done, 100, start), start + Duration::from_secs(30));
        assert_eq!(
            at(Stage::Tokenizing, 25),
            "tokenizing: 25 %, 0.833B/s, left 1m 30s"
        );
        let reading = (Stage::Reading, 6_000_000, 0, start);
        assert_eq!(
            describe(reading, start + Duration::from_secs(3)),
            "reading the text: 6MB, 2MB/s"
        );
        assert_eq!(at(Stage::Tokenizing, 0), "tokenizing: 30s so far");
        assert_eq!(
            at(Stage::Training, 100),
            "training the tokenizer: 30s so far"
        );
    }

    #[test]
    fn the_preparation_of_data_can_be_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("text.txt");
        std::fs::write(&text, "to be or not to be\n".repeat(10_000)).unwrap();
        let config = DataConfig {
            source: residual_zoo_data::Source::Path(text),
            tokenizer: residual_zoo_data::TokenizerConfig::Bpe { vocab_size: 300 },
            cache: Some(directory.path().join("cache")),
            ..DataConfig::default()
        };
        let stop = Interrupter::new();
        stop.stop(None);
        let stopped = open_corpus(&config, &stop).unwrap_err();
        assert!(matches!(stopped, DataError::Stopped), "{stopped}");
        assert!(open_corpus(&config, &Interrupter::new()).is_ok());
    }
}
