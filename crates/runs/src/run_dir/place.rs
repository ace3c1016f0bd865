//! Directories where a run can begin, and runs that can be deleted.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use residual_zoo_data::is_there;
use residual_zoo_system::files;

use super::{BEFORE_RESTART, CONFIG, DATA, HISTORY, MEASURED, METRICS, RunDir, SAMPLES, TOKENIZER};
use crate::checkpoint;
use crate::lock::{LOCK, Lock};
use crate::{Error, Remedy, disk, events};

/// Files that a run may leave, besides its first checkpoint, if it is stopped before its config is written.
const BEFORE_THE_CONFIG: [&str; 5] = [LOCK, TOKENIZER, DATA, HISTORY, "config.partial"];

/// Whether a new run can use the directory `path`; false if the directory already holds a run.
///
/// # Errors
///
/// Returns [`Error::RunExists`] if the directory holds something other than a run. Also returns an error for a run
/// whose config is lost or is a link, and I/O errors.
pub fn is_free(path: &Path) -> Result<bool, Error> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => match (error.kind(), fs::symlink_metadata(path)) {
            (ErrorKind::NotFound, Err(_)) => {
                // A dangling link in the path has its own error.
                is_there(path)?;
                return Ok(true);
            }
            (ErrorKind::NotADirectory, Err(_)) => return Err(Error::io("create", path)(error)),
            (ErrorKind::NotFound | ErrorKind::NotADirectory, _) => {
                is_there(path)?;
                return Err(Error::run_exists(path));
            }
            _ => return Err(Error::io("read", path)(error)),
        },
    };
    let mut names = entries.filter_map(Result::ok).map(|e| e.file_name());
    let left_over = |name: std::ffi::OsString| {
        BEFORE_THE_CONFIG.iter().any(|known| name == *known)
            || (name == checkpoint::CHECKPOINTS && checkpoint::only_the_first(path))
    };
    if names.all(left_over) {
        return Ok(true);
    }
    // The config is checked after the names were listed, because another process may have begun the run meanwhile.
    let config = path.join(CONFIG);
    match fs::symlink_metadata(&config).is_ok() {
        true => disk::refuse_link(&config).map(|()| false),
        false if path.join(METRICS).is_file() && path.join(HISTORY).is_file() => {
            let lost = Error::NoRun {
                path: path.into(),
                problem: format!("is a run that has lost its {CONFIG}"),
            };
            Err(lost.then("; restore it, or ", Remedy::AnotherDirectory))
        }
        false => Err(Error::run_exists(path)),
    }
}

/// The names, without the ending, of the files that a run replaces. A new version is first written with the ending
/// [`PARTIAL`].
const REPLACED: [&str; 6] = [
    "config",
    "data",
    "history",
    "metrics",
    "samples",
    "tokenizer",
];
const PARTIAL: &str = ".partial";

/// Refuses anything but a leftover regular file at each path where the run first writes a new version of a file.
pub(super) fn refuse_partials(run: &Path) -> Result<(), Error> {
    let mut partials = REPLACED
        .iter()
        .map(|stem| run.join(format!("{stem}{PARTIAL}")));
    partials.try_for_each(|path| disk::refuse_to_write(&path))
}

/// Checks that this process may create the directory `path` of a new run, or write there if it exists. Writes nothing.
///
/// # Errors
///
/// Returns an error if the path of a file holds a link or a directory, and an I/O error if writing is not allowed.
pub fn check_creatable(path: &Path) -> Result<(), Error> {
    refuse_partials(path)?;
    let mut files = BEFORE_THE_CONFIG.iter().map(|name| path.join(name));
    files.try_for_each(|file| disk::refuse_to_write(&file))?;
    let checked = std::path::absolute(path).and_then(|absolute| {
        let existing = absolute.ancestors().find(|path| path.exists());
        existing.map_or(Ok(()), files::check_writable)
    });
    checked.map_err(Error::io("create", path))
}

/// Refuses a run directory with a file that no run writes.
fn check_own(run: &Path) -> Result<(), Error> {
    let known = [
        CONFIG, TOKENIZER, DATA, HISTORY, METRICS, SAMPLES, LOCK, MEASURED,
    ];
    let folders = [checkpoint::CHECKPOINTS, events::FOLDER];
    let is_known = |name: &str| known.contains(&name) || folders.contains(&name);
    let is_partial = |name: &str| match name.strip_suffix(PARTIAL) {
        Some(stem) if REPLACED.contains(&stem) => true,
        Some(name) => name
            .strip_prefix("measured.")
            .is_some_and(|process| process.parse::<u32>().is_ok()),
        None => false,
    };
    let is_remainder = |name: &str| name.starts_with(BEFORE_RESTART) || is_partial(name);
    let entries = fs::read_dir(run).map_err(Error::io("read", run))?;
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let mut others = paths.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        !name.is_some_and(|name| is_known(name) || is_remainder(name))
    });
    let other = others
        .next()
        .or_else(|| checkpoint::foreign(run))
        .or_else(|| {
            let entries = fs::read_dir(run.join(events::FOLDER)).into_iter().flatten();
            let mut paths = entries.filter_map(Result::ok).map(|entry| entry.path());
            paths.find(|path| !events::is_event_file(path))
        });
    match other {
        None => Ok(()),
        Some(other) => Err(Error::NoRun {
            path: run.into(),
            problem: format!(
                "is not deleted, because {} is not part of a run; move it away",
                other.display()
            ),
        }),
    }
}

/// Whether another process trains in the directory `path`. Creates nothing there.
pub fn is_in_use(path: &Path) -> bool {
    Lock::is_held(path)
}

/// Deletes the runs in `runs` that exist.
///
/// # Errors
///
/// Returns [`Error::Locked`] if another process trains one of them, an error for a file that is not part of a run, and
/// I/O errors. In the first two cases, nothing is deleted.
pub fn delete(runs: &BTreeSet<PathBuf>) -> Result<(), Error> {
    let runs: Vec<&PathBuf> = runs.iter().filter(|run| run.is_dir()).collect();
    // Links are refused before the lock is written.
    runs.iter()
        .try_for_each(|run| disk::refuse_linked_directory(run))?;
    let locks: Result<Vec<RunDir>, Error> = runs.iter().map(|run| RunDir::open(run)).collect();
    let _locks = locks?;
    runs.iter().try_for_each(|run| check_own(run))?;
    for run in runs {
        fs::remove_dir_all(run).map_err(Error::io("delete", run))?;
    }
    Ok(())
}
