//! The directory of a run.
//!
//! ```text
//! config.ron       the run with every field written out
//! tokenizer.json   the tokenizer
//! data.json        what the data are: hashes and counts
//! history.jsonl    a line for every start: the backend, and what was changed
//! metrics.jsonl    a row for every log line
//! samples.txt      text drawn while training
//! checkpoints/     step-00000100/ and so on
//! lock             held by the process that trains
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use residual_zoo_core::ModelConfig;
use residual_zoo_data::{Corpus, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{self, Journal};
use crate::lock::{LOCK, Lock};
use crate::log::{Log, json_line, read_lines, whole_lines};
use crate::{Error, Row, RunConfig, disk};

const CONFIG: &str = "config.ron";
const TOKENIZER: &str = "tokenizer.json";
const DATA: &str = "data.json";
const HISTORY: &str = "history.jsonl";
const METRICS: &str = "metrics.jsonl";
const SAMPLES: &str = "samples.txt";

/// What may be left of a run that was stopped before it began, besides its first checkpoint.
const BEFORE_THE_CONFIG: [&str; 5] = [LOCK, TOKENIZER, DATA, HISTORY, "config.partial"];

/// A run directory open for writing, by this process alone.
pub struct RunDir {
    path: PathBuf,
    lock: Lock,
    metrics: Log,
    samples: Log,
}

/// What the data of a run are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataIdentity {
    /// Hash of source, tokenizer and split, see [`Corpus::identity`].
    pub identity: String,
    /// BLAKE3 of what is trained on.
    pub train_blake3: String,
    /// BLAKE3 of what is validated on.
    pub valid_blake3: String,
    /// Training tokens, where they are not drawn without end.
    pub train_tokens: Option<usize>,
    /// Validation tokens, where they are not drawn without end.
    pub valid_tokens: Option<usize>,
    /// Token ids.
    pub vocab_size: usize,
}

impl DataIdentity {
    /// Of `corpus`, all of which is read.
    pub fn of(corpus: &Corpus) -> Self {
        Self {
            identity: corpus.identity.clone(),
            train_blake3: corpus.train.blake3(),
            valid_blake3: corpus.valid.blake3(),
            train_tokens: corpus.train.tokens(),
            valid_tokens: corpus.valid.tokens(),
            vocab_size: corpus.tokenizer.vocab_size(),
        }
    }
}

/// A start of a run: a line of `history.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Start {
    /// Steps that were made before.
    pub step: usize,
    /// Version of this crate.
    pub version: String,
    /// The backend, as Burn names it.
    pub backend: String,
    /// Threads that the system offers.
    pub threads: usize,
    /// The run whose weights were the first ones, where it was then.
    pub init_from: Option<PathBuf>,
    /// BLAKE3 of these weights, by which they are known wherever the run has moved.
    pub init_weights: Option<String>,
    /// What differs from before, each as [`differences`](crate::resume::differences) tells it.
    pub changes: Vec<String>,
}

/// Whether a new run can have the directory `path`; else there is a run.
///
/// # Errors
///
/// When there is something else.
pub fn is_free(path: &Path) -> Result<bool, Error> {
    if path.join(CONFIG).is_file() {
        return Ok(false);
    }
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => match (error.kind(), fs::symlink_metadata(path)) {
            (ErrorKind::NotFound, Err(_)) => return Ok(true),
            (ErrorKind::NotFound | ErrorKind::NotADirectory, _) => {
                return Err(Error::RunExists(path.into()));
            }
            _ => return Err(Error::io("read", path)(error)),
        },
    };
    let mut names = entries.filter_map(Result::ok).map(|e| e.file_name());
    let left_over = |name: std::ffi::OsString| {
        BEFORE_THE_CONFIG.iter().any(|known| name == *known)
            || (name == checkpoint::CHECKPOINTS && checkpoint::only_the_first(path))
    };
    match names.all(left_over) {
        true => Ok(true),
        false => Err(Error::RunExists(path.into())),
    }
}

impl RunDir {
    /// Locks the directory `path`, which is made where there is none.
    ///
    /// # Errors
    ///
    /// When another process trains there, or the disk refuses.
    pub fn open(path: &Path) -> Result<Self, Error> {
        disk::create_directories(path)?;
        let directory = Self {
            path: path.into(),
            lock: Lock::take(path)?,
            metrics: Log::new(path.join(METRICS)),
            samples: Log::new(path.join(SAMPLES)),
        };
        // It may have been deleted between making and locking it.
        directory.is_here()?;
        Ok(directory)
    }

    /// Whether the lock keeps others out: some network file systems have none.
    pub fn is_locked(&self) -> bool {
        self.lock.keeps_out()
    }

    /// Begins a new run. It is one as soon as its config is there, which is written last;
    /// `before` is called just before that.
    ///
    /// # Errors
    ///
    /// When there is a run already, or the disk refuses.
    pub fn begin<C: ModelConfig>(
        &mut self,
        config: &RunConfig<C>,
        corpus: &Corpus,
        start: &Start,
        before: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !is_free(&self.path)? {
            return Err(Error::RunExists(self.path.clone()));
        }
        let checkpoints = self.path.join(checkpoint::CHECKPOINTS);
        disk::remove_directory(&checkpoints)?;
        disk::create_directory(&checkpoints)?;
        let write = |name: &str, text: String| disk::write(&self.path.join(name), text.as_bytes());
        write(TOKENIZER, corpus.tokenizer.to_json())?;
        write(DATA, json_lines(&DataIdentity::of(corpus)))?;
        write(HISTORY, json_line(start))?;
        before()?;
        disk::replace(&self.path.join(CONFIG), config.to_ron().as_bytes())
    }

    /// What is left of the metrics that a checkpoint after `step` steps counts on, and a note if
    /// that is not all. Nothing is written.
    ///
    /// # Errors
    ///
    /// When a row is damaged.
    pub fn read_back(
        &self,
        step: usize,
        journal: &Journal,
    ) -> Result<(Vec<Row>, Vec<String>), Error> {
        let mut notes = Vec::new();
        for (log, bytes) in [
            (&self.metrics, journal.metrics),
            (&self.samples, journal.samples),
        ] {
            let found = fs::metadata(&log.path).map_or(0, |metadata| metadata.len());
            if found < bytes {
                let path = log.path.display();
                notes.push(format!(
                    "{path} has lost {} of {bytes} bytes",
                    bytes - found
                ));
            }
        }
        let mut rows = match self.metrics.path.exists() {
            true => read_rows(&self.metrics.path, journal.metrics)?,
            false => Vec::new(),
        };
        rows.retain(|row| row.step <= step);
        Ok((rows, notes))
    }

    /// Goes on with the run that is there, which is `config` on data of `identity` from now on.
    /// What the logs have after the checkpoint is cut off.
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub fn go_on<C: ModelConfig>(
        &mut self,
        config: &RunConfig<C>,
        identity: &DataIdentity,
        start: &Start,
        journal: &Journal,
    ) -> Result<(), Error> {
        // First what has changed, so that no change goes unrecorded.
        let history = self.path.join(HISTORY);
        let mut file = disk::open_to_append(&history, whole_lines(&history)?)?;
        disk::append(&mut file, &history, json_line(start).as_bytes())?;
        disk::sync(&history)?;
        for (name, text) in [(DATA, json_lines(identity)), (CONFIG, config.to_ron())] {
            let path = self.path.join(name);
            if fs::read(&path).ok().as_deref() != Some(text.as_bytes()) {
                disk::replace(&path, text.as_bytes())?;
            }
        }
        self.metrics.cut(journal.metrics)?;
        self.samples.cut(journal.samples)
    }

    /// Keeps the logs of a run that begins again, under other names.
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub fn set_logs_aside(&self) -> Result<(), Error> {
        for log in [&self.metrics, &self.samples] {
            if fs::metadata(&log.path).is_ok_and(|metadata| metadata.len() > 0) {
                let name = log.path.file_name().unwrap_or_default().to_string_lossy();
                let aside = log.path.with_file_name(format!("before-restart-{name}"));
                disk::rename(&log.path, &aside)?;
            }
        }
        Ok(())
    }

    /// Appends a row to the metrics.
    ///
    /// # Errors
    ///
    /// When the disk refuses or the directory has vanished. The row waits for the next one, or for
    /// [`sync`](Self::sync).
    pub fn log(&mut self, row: &Row) -> Result<(), Error> {
        self.metrics.waiting.push_str(&json_line(row));
        self.is_here()?;
        let written = self.metrics.flush();
        written.map_err(|error| self.explain(error))
    }

    /// Appends text drawn after `step` steps to the samples.
    ///
    /// # Errors
    ///
    /// As [`log`](Self::log).
    pub fn sample(&mut self, step: usize, text: &str) -> Result<(), Error> {
        let text = format!("=== step {step}\n{text}\n\n");
        self.samples.waiting.push_str(&text);
        self.is_here()?;
        let written = self.samples.flush();
        written.map_err(|error| self.explain(error))
    }

    /// Waits until the disk has all rows and samples. Returns the bytes of both.
    ///
    /// # Errors
    ///
    /// When it refuses, or the directory has vanished.
    pub fn sync(&mut self) -> Result<(u64, u64), Error> {
        self.is_here()?;
        let mut sync = || {
            for log in [&mut self.metrics, &mut self.samples] {
                log.flush()?;
                if log.bytes > 0 {
                    disk::sync(&log.path)?;
                }
            }
            disk::sync(&self.path)
        };
        let synced = sync();
        synced.map_err(|error| self.explain(error))?;
        Ok((self.metrics.bytes, self.samples.bytes))
    }

    /// Why a write failed: not what the disk says, if the directory is no longer there.
    pub fn explain(&self, error: Error) -> Error {
        self.is_here().err().unwrap_or(error)
    }

    /// Where the checkpoint after `step` steps goes.
    pub fn checkpoint(&self, step: usize) -> PathBuf {
        checkpoint::directory(&self.path, step)
    }

    /// Checks that the lock that is held is that of the directory: what is written to one that was
    /// deleted is lost without an error, and one that was replaced is another run's.
    ///
    /// # Errors
    ///
    /// [`Error::Vanished`].
    pub fn is_here(&self) -> Result<(), Error> {
        match self.lock.is_of(&self.path) {
            true => Ok(()),
            false => Err(Error::Vanished(self.path.clone())),
        }
    }
}

fn json_lines<T: Serialize>(value: &T) -> String {
    let lines = serde_json::to_string_pretty(value);
    lines.unwrap_or_else(|e| unreachable!("plain data: {e}")) + "\n"
}

/// Deletes those of `runs` that are there.
///
/// # Errors
///
/// A run that another process trains, before anything is deleted; or when the disk refuses.
pub fn delete(runs: &BTreeSet<PathBuf>) -> Result<(), Error> {
    let runs: Vec<&PathBuf> = runs.iter().filter(|run| run.is_dir()).collect();
    let locks: Result<Vec<RunDir>, Error> = runs.iter().map(|run| RunDir::open(run)).collect();
    let _locks = locks?;
    for run in runs {
        fs::remove_dir_all(run).map_err(Error::io("delete", run))?;
    }
    Ok(())
}

/// The config of the run in `path`.
///
/// # Errors
///
/// When `path` is no run directory, or its config does not parse.
pub fn read_config<C: ModelConfig>(path: &Path) -> Result<RunConfig<C>, Error> {
    let config = path.join(CONFIG);
    if !config.is_file() {
        let problem = format!("has no {CONFIG}; is it a run directory?");
        return Err(Error::NoRun {
            path: path.into(),
            problem,
        });
    }
    RunConfig::read(&config)
}

/// The tokenizer of the run in `path`.
///
/// # Errors
///
/// When it is missing or does not parse.
pub fn read_tokenizer(path: &Path) -> Result<Tokenizer, Error> {
    let path = path.join(TOKENIZER);
    let text = residual_zoo_data::read_utf8(&path)?;
    let damaged = |e| Error::Checkpoint {
        path: path.clone(),
        problem: format!("{e}"),
    };
    Tokenizer::from_json(&text).map_err(damaged)
}

/// Checks that the run in `path` has the tokenizer of `corpus`.
///
/// # Errors
///
/// When it has another one, or none that can be read.
pub fn check_tokenizer(path: &Path, corpus: &Corpus) -> Result<(), Error> {
    match read_tokenizer(path)?.fingerprint() == corpus.tokenizer.fingerprint() {
        true => Ok(()),
        false => Err(Error::NoRun {
            path: path.into(),
            problem: "was trained with another tokenizer, so its weights mean other tokens; use \
                      the same data, or give its tokenizer.json by --tokenizer"
                .into(),
        }),
    }
}

/// What the data of the run in `path` were.
///
/// # Errors
///
/// When it is missing or does not parse.
pub fn read_data(path: &Path) -> Result<DataIdentity, Error> {
    let path = path.join(DATA);
    let text = residual_zoo_data::read_file(&path)?;
    let problem = |e: serde_json::Error| Error::Checkpoint {
        path: path.clone(),
        problem: format!("is damaged: {e}"),
    };
    serde_json::from_slice(&text).map_err(problem)
}

/// The starts of the run in `path`. A last line that was cut short is left out.
///
/// # Errors
///
/// When the file is missing, or a line is no start.
pub fn read_history(path: &Path) -> Result<Vec<Start>, Error> {
    read_lines(&path.join(HISTORY), u64::MAX)
}

/// The metrics of the run in `path`. A last line that was cut short is left out.
///
/// # Errors
///
/// When the file is missing, or a line is no row.
pub fn read_metrics(path: &Path) -> Result<Vec<Row>, Error> {
    read_rows(&path.join(METRICS), u64::MAX)
}

fn read_rows(path: &Path, bytes: u64) -> Result<Vec<Row>, Error> {
    let rows: Vec<Row> = read_lines(path, bytes)?;
    let backwards = rows
        .windows(2)
        .position(|pair| pair[0].step >= pair[1].step);
    match backwards {
        None => Ok(rows),
        Some(i) => Err(Error::Checkpoint {
            path: path.into(),
            problem: format!(
                "line {}: not after the step of the line before; delete one of them",
                i + 2
            ),
        }),
    }
}
