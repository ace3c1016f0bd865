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

use std::fs::{self, File, TryLockError};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use residual_zoo_core::ModelConfig;
use residual_zoo_data::{Corpus, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::{Error, Row, RunConfig, checkpoint, disk};

const CONFIG: &str = "config.ron";
const TOKENIZER: &str = "tokenizer.json";
const DATA: &str = "data.json";
const HISTORY: &str = "history.jsonl";
const METRICS: &str = "metrics.jsonl";
const SAMPLES: &str = "samples.txt";
const LOCK: &str = "lock";

/// What may be left of a run that was stopped before it began, besides its first checkpoint.
const BEFORE_THE_CONFIG: [&str; 5] = [LOCK, TOKENIZER, DATA, HISTORY, "config.partial"];

/// A run directory open for writing, by this process alone.
pub struct RunDir {
    path: PathBuf,
    /// Unlocked when it is closed, also when the process is killed.
    _lock: File,
    metrics: Option<Metrics>,
    /// Bytes of the samples.
    samples: u64,
}

/// What the data of a run are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataIdentity {
    /// Hash of source, tokenizer and split, see [`Corpus::identity`].
    pub identity: String,
    /// BLAKE3 of the training tokens.
    pub train_blake3: String,
    /// BLAKE3 of the validation tokens.
    pub valid_blake3: String,
    /// Training tokens.
    pub train_tokens: usize,
    /// Validation tokens.
    pub valid_tokens: usize,
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
            train_tokens: corpus.train.len(),
            valid_tokens: corpus.valid.len(),
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
    /// The run whose weights were the first ones.
    pub init_from: Option<PathBuf>,
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
    let Ok(entries) = fs::read_dir(path) else {
        return match fs::symlink_metadata(path) {
            Ok(_) => Err(Error::RunExists(path.into())),
            Err(_) => Ok(true),
        };
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
        disk::create_directory(path)?;
        Ok(Self {
            path: path.into(),
            _lock: lock(path)?,
            metrics: None,
            samples: 0,
        })
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
        disk::remove_directory(&self.path.join(checkpoint::CHECKPOINTS))?;
        let write = |name: &str, text: String| disk::write(&self.path.join(name), text.as_bytes());
        write(TOKENIZER, corpus.tokenizer.to_json())?;
        write(DATA, json_lines(&DataIdentity::of(corpus)))?;
        write(HISTORY, json_line(start))?;
        before()?;
        disk::replace(&self.path.join(CONFIG), config.to_ron().as_bytes())?;
        self.open_logs(0, 0)?;
        Ok(())
    }

    /// Goes on with the run that is there, which is `config` on `corpus` from now on. Of its logs
    /// stays what came before `step` and the first `samples` bytes; with `logged` also the row of
    /// `step`. Returns the rows.
    ///
    /// # Errors
    ///
    /// When a log is damaged, or the disk refuses.
    pub fn go_on<C: ModelConfig>(
        &mut self,
        config: &RunConfig<C>,
        corpus: &Corpus,
        start: &Start,
        (step, logged, samples): (usize, bool, u64),
    ) -> Result<Vec<Row>, Error> {
        let metrics = self.path.join(METRICS);
        let mut rows = match metrics.exists() {
            true => read_rows(&metrics)?,
            // It was stopped before its first row.
            false => Vec::new(),
        };
        rows.retain(|(row, _)| row.step < step || (row.step == step && logged));
        if !start.changes.is_empty() {
            let data = json_lines(&DataIdentity::of(corpus));
            disk::replace(&self.path.join(DATA), data.as_bytes())?;
            disk::replace(&self.path.join(CONFIG), config.to_ron().as_bytes())?;
        }
        let history = self.path.join(HISTORY);
        let whole = whole_lines(&history)?;
        let mut file = disk::open_to_append(&history, whole)?;
        disk::append(&mut file, &history, json_line(start).as_bytes())?;
        disk::sync(&history)?;
        let bytes = rows.last().map_or(0, |(_, end)| *end);
        self.open_logs(bytes, samples)?;
        Ok(rows.into_iter().map(|(row, _)| row).collect())
    }

    fn open_logs(&mut self, metrics: u64, samples: u64) -> Result<(), Error> {
        let path = self.path.join(SAMPLES);
        self.samples = match path.exists() {
            true => disk::open_to_append(&path, samples).and_then(|file| {
                let metadata = file.metadata().map_err(Error::io("read", &path))?;
                Ok(metadata.len())
            })?,
            false => 0,
        };
        self.metrics = Some(Metrics::open(self.path.join(METRICS), metrics)?);
        Ok(())
    }

    /// Appends a row to the metrics.
    ///
    /// # Errors
    ///
    /// When the disk refuses or the directory has vanished. The row waits for the next one, or for
    /// [`sync`](Self::sync).
    pub fn log(&mut self, row: &Row) -> Result<(), Error> {
        if let Some(metrics) = &mut self.metrics {
            metrics.waiting.push_str(&json_line(row));
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.is_here()?;
        self.metrics.as_mut().map_or(Ok(()), Metrics::flush)
    }

    /// Appends text drawn after `step` steps to the samples.
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub fn sample(&mut self, step: usize, text: &str) -> Result<(), Error> {
        self.is_here()?;
        let path = self.path.join(SAMPLES);
        let text = format!("=== step {step}\n{text}\n\n");
        let mut file = disk::open_to_append(&path, self.samples)?;
        disk::append(&mut file, &path, text.as_bytes())?;
        self.samples += text.len() as u64;
        Ok(())
    }

    /// Bytes of the samples so far.
    pub fn sampled(&self) -> u64 {
        self.samples
    }

    /// Waits until the disk has all rows.
    ///
    /// # Errors
    ///
    /// When it refuses, or the directory has vanished.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.flush()?;
        disk::sync(&self.path.join(METRICS))
    }

    /// Where the checkpoint after `step` steps goes.
    pub fn checkpoint(&self, step: usize) -> PathBuf {
        checkpoint::directory(&self.path, step)
    }

    /// What is written to a directory that was deleted is lost without an error.
    fn is_here(&self) -> Result<(), Error> {
        match self.path.join(CONFIG).is_file() {
            true => Ok(()),
            false => Err(Error::Vanished(self.path.clone())),
        }
    }
}

/// Takes the lock of a run directory, and writes down who has it.
fn lock(run: &Path) -> Result<File, Error> {
    let path = run.join(LOCK);
    let mut options = fs::OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let mut file = file.map_err(Error::io("write", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            file.take(1000).read_to_string(&mut owner).ok();
            let owner = match owner.trim() {
                "" => "another process".into(),
                owner => owner.into(),
            };
            return Err(Error::Locked {
                path: run.into(),
                owner,
            });
        }
        // Some network file systems have no locks; a run there is as safe as its user is careful.
        Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {}
        Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
    }
    let written = file.set_len(0).and_then(|()| {
        file.seek(SeekFrom::Start(0))?;
        writeln!(file, "process {}{}", std::process::id(), host())
    });
    written.map_err(Error::io("write", &path))?;
    Ok(file)
}

#[cfg(unix)]
fn host() -> String {
    let host = rustix::system::uname();
    format!(" on {}", host.nodename().to_string_lossy())
}

#[cfg(not(unix))]
fn host() -> String {
    String::new()
}

/// The open file of the metrics, in which every line is whole.
struct Metrics {
    path: PathBuf,
    file: File,
    /// Bytes of the lines that were written as a whole.
    bytes: u64,
    /// Lines that are still to be written.
    waiting: String,
}

impl Metrics {
    fn open(path: PathBuf, keep: u64) -> Result<Self, Error> {
        Ok(Self {
            file: disk::open_to_append(&path, keep)?,
            path,
            bytes: keep,
            waiting: String::new(),
        })
    }

    fn flush(&mut self) -> Result<(), Error> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        if let Err(error) = disk::append(&mut self.file, &self.path, self.waiting.as_bytes()) {
            // Half a line would be in the way of the next one.
            self.file.set_len(self.bytes).ok();
            return Err(error);
        }
        self.bytes += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }
}

fn json_line<T: Serialize>(value: &T) -> String {
    let line = serde_json::to_string(value);
    line.unwrap_or_else(|e| unreachable!("plain data: {e}")) + "\n"
}

fn json_lines<T: Serialize>(value: &T) -> String {
    let lines = serde_json::to_string_pretty(value);
    lines.unwrap_or_else(|e| unreachable!("plain data: {e}")) + "\n"
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
    let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let damaged = |e| Error::Checkpoint {
        path: path.clone(),
        problem: format!("{e}"),
    };
    Tokenizer::from_json(&text).map_err(damaged)
}

/// What the data of the run in `path` were.
///
/// # Errors
///
/// When it is missing or does not parse.
pub fn read_data(path: &Path) -> Result<DataIdentity, Error> {
    let path = path.join(DATA);
    let text = fs::read(&path).map_err(Error::io("read", &path))?;
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
    let lines = read_lines(&path.join(HISTORY))?;
    Ok(lines.into_iter().map(|(start, _)| start).collect())
}

/// The metrics of the run in `path`. A last line that was cut short is left out.
///
/// # Errors
///
/// When the file is missing, or a line is no row.
pub fn read_metrics(path: &Path) -> Result<Vec<Row>, Error> {
    let rows = read_rows(&path.join(METRICS))?;
    Ok(rows.into_iter().map(|(row, _)| row).collect())
}

fn read_rows(path: &Path) -> Result<Vec<(Row, u64)>, Error> {
    let rows: Vec<(Row, u64)> = read_lines(path)?;
    let steps = rows.iter().zip(rows.iter().skip(1));
    let backwards = steps.map(|((a, _), (b, _))| a.step >= b.step);
    match backwards.enumerate().find(|(_, backwards)| *backwards) {
        None => Ok(rows),
        Some((i, _)) => Err(Error::Checkpoint {
            path: path.into(),
            problem: format!("line {}: not after the step of the line before", i + 2),
        }),
    }
}

/// Every line of a file as a `T`, with the place of its end. A last one that was cut short is
/// left out.
fn read_lines<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Vec<(T, u64)>, Error> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    let mut reader = BufReader::new(file);
    let (mut values, mut line, mut end) = (Vec::new(), Vec::new(), 0);
    for number in 1.. {
        line.clear();
        let read = reader.read_until(b'\n', &mut line);
        end += read.map_err(Error::io("read", path))? as u64;
        if !line.ends_with(b"\n") {
            break;
        }
        let value = serde_json::from_slice(&line).map_err(|error| Error::Checkpoint {
            path: path.into(),
            problem: format!("line {number}: {}", one_line_problem(&error)),
        })?;
        values.push((value, end));
    }
    Ok(values)
}

/// The message of an error in a text of one line: with the column, without the line.
fn one_line_problem(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let problem = message.split(" at line ").next().unwrap_or(&message);
    format!("column {}: {problem}", error.column())
}

/// Where the last whole line of a file ends.
fn whole_lines(path: &Path) -> Result<u64, Error> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let end = bytes.iter().rposition(|byte| *byte == b'\n');
    Ok(end.map_or(0, |end| end as u64 + 1))
}
