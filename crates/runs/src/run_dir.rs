//! The directory of a run.
//!
//! ```text
//! config.ron       the config with every field written out
//! tokenizer.json   the tokenizer
//! data.json        the identity of the data: hashes and counts; not for an imported or merged model
//! history.jsonl    a line for each start: the backend and the changes
//! metrics.jsonl    a row for each log line
//! samples.txt      text sampled during training
//! checkpoints/     step-00000100/ and so on
//! tensorboard/     the same rows and samples for TensorBoard, with `train.tensorboard`
//! lock             locked by the process that trains
//! ```

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use residual_zoo_core::ModelConfig;
use residual_zoo_data::Tokenizer;
use serde::Serialize;

use crate::checkpoint::{self, free};
use crate::events::{self, Events};
use crate::lock::Lock;
use crate::log::{Log, Mark, json_line, whole_lines};
use crate::{Error, Row, RunConfig, disk};

use fixed::Fixed;

mod fixed;
mod lost;
mod place;
mod read;
mod start;

pub use lost::{check_writable, lost_rows, read_back};
pub use place::{check_creatable, delete, is_free, is_in_use};
pub use read::{
    check_paths, check_tokenizer, not_trained, read_config, read_data, read_history, read_metrics,
    read_tokenizer, tokenizer_error, wrong_tokenizer,
};
pub use start::{DataIdentity, Start, is_config_edited};

/// The file name of a run's config.
pub const CONFIG: &str = "config.ron";
/// The file name of a run's tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
const DATA: &str = "data.json";
const HISTORY: &str = "history.jsonl";
/// The file name of a run's metrics.
pub const METRICS: &str = "metrics.jsonl";
const SAMPLES: &str = "samples.txt";
/// The file name of the measurements that an experiment makes of a run.
pub const MEASURED: &str = "measured.json";
/// The prefix of each sample, before its step.
const SAMPLE: &str = "=== step ";
/// The name prefix of logs that were kept when a run started over.
const BEFORE_RESTART: &str = "before-restart-";

/// A run directory that only this process writes to.
pub struct RunDir {
    path: PathBuf,
    lock: Lock,
    metrics: Log,
    samples: Log,
    events: Option<Events>,
    /// The files that do not change while the run trains.
    fixed: Vec<Fixed>,
    notes: Vec<String>,
}

impl RunDir {
    /// Creates the directory `path` if it does not exist, and locks it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Locked`] if another process trains there, and [`Error::Checkpoint`] if something else, such as
    /// a link, is in the place of a file or directory of the run. Returns [`Error::Vanished`] if the directory is
    /// deleted before it is locked. Also returns I/O errors.
    pub fn open(path: &Path) -> Result<Self, Error> {
        disk::create_directories(path)?;
        disk::refuse_linked_directory(&path.join(checkpoint::CHECKPOINTS))?;
        place::refuse_partials(path)?;
        let directory = Self {
            path: path.into(),
            lock: Lock::take(path)?,
            metrics: Log::new(path.join(METRICS)),
            samples: Log::new(path.join(SAMPLES)),
            events: None,
            fixed: Vec::new(),
            notes: Vec::new(),
        };
        // The directory may have been deleted before it was locked.
        directory.is_here()?;
        Ok(directory)
    }

    /// Whether the lock excludes other processes. Some network file systems have no locks.
    pub fn is_locked(&self) -> bool {
        self.lock.keeps_out()
    }

    /// Begins a new run with `tokenizer`, and with the identity of the data if it is known. The config is written last
    /// and makes the directory a run. `before` is called just before the config is written.
    ///
    /// # Errors
    ///
    /// Returns [`Error::RunExists`] if there is a run already, the errors of [`is_free`] and `before`, and I/O errors.
    pub fn begin<C: ModelConfig>(
        &mut self,
        config: &RunConfig<C>,
        (tokenizer, data): (&Tokenizer, Option<&DataIdentity>),
        start: &Start,
        before: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !is_free(&self.path)? {
            return Err(Error::run_exists(&self.path));
        }
        let checkpoints = self.path.join(checkpoint::CHECKPOINTS);
        disk::remove_directory(&checkpoints)?;
        disk::create_directory(&checkpoints)?;
        let text = config.to_ron();
        let history = json_line(&start.with(&text));
        let data = data.map(|data| Fixed::new(DATA, json_lines(data)));
        self.fixed = vec![Fixed::tokenizer(tokenizer.clone())];
        self.fixed.extend(data);
        self.fixed.push(Fixed::new(HISTORY, history));
        for file in &self.fixed {
            file.write(&self.path)?;
        }
        before()?;
        disk::replace(&self.path.join(CONFIG), text.as_bytes())?;
        self.fixed.push(Fixed::new(CONFIG, text));
        Ok(())
    }

    /// Continues the run after the checkpoint at step `start.step`. Adds `start` to the history. Writes the config and
    /// the data identity if they have changed, and the tokenizer if it is missing. Truncates metrics and samples to
    /// their content at the checkpoint. If a log no longer begins with this content, it keeps its entries up to the
    /// step `logged`, the last step with a row. For the metrics, these entries are `rows`.
    ///
    /// # Errors
    ///
    /// Returns an error if something else, such as a link, is in the place of a file of the run or of the folder of the
    /// event files. Also returns I/O errors.
    pub fn go_on<C: ModelConfig>(
        &mut self,
        (config, tokenizer, identity): (&RunConfig<C>, &Tokenizer, &DataIdentity),
        start: &Start,
        [metrics, samples]: [&Mark; 2],
        (rows, logged): (&[Row], usize),
    ) -> Result<(), Error> {
        if config.train.tensorboard {
            disk::refuse_linked_directory(&self.path.join(events::FOLDER))?;
        }
        // The history is written first, so that every change is recorded.
        let history = self.path.join(HISTORY);
        let mut file = disk::open_to_append(&history, whole_lines(&history)?)?;
        let text = config.to_ron();
        disk::append(
            &mut file,
            &history,
            json_line(&start.with(&text)).as_bytes(),
        )?;
        disk::sync(&history)?;
        for (name, text) in [(DATA, json_lines(identity)), (CONFIG, text)] {
            let path = self.path.join(name);
            if fs::read(&path).ok().as_deref() != Some(text.as_bytes()) {
                disk::replace(&path, text.as_bytes())?;
            }
            self.fixed.push(Fixed::new(name, text));
        }
        let starts = content_of(&history)?;
        self.fixed.push(Fixed::new(HISTORY, starts));
        let own = Fixed::tokenizer(tokenizer.clone());
        self.fixed.push(own.found_in(&self.path)?);
        self.metrics.cut(metrics, || Ok(text_of(rows)))?;
        let path = self.samples.path.clone();
        self.samples.cut(samples, || samples_until(&path, logged))
    }

    /// Renames the logs of a run that starts over, to keep them.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn set_logs_aside(&self) -> Result<(), Error> {
        for log in [&self.metrics, &self.samples] {
            if fs::metadata(&log.path).is_ok_and(|metadata| metadata.len() > 0) {
                let name = log.path.file_name().unwrap_or_default().to_string_lossy();
                let aside = free(|n| {
                    log.path
                        .with_file_name(format!("{BEFORE_RESTART}{name}{n}"))
                });
                disk::rename(&log.path, &aside)?;
            }
        }
        Ok(())
    }

    /// Replaces the event files for TensorBoard with a new file, which has `rows` and the existing samples. Later rows
    /// and samples are appended to the new file.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn show_events<C: ModelConfig>(
        &mut self,
        config: &RunConfig<C>,
        rows: &[Row],
    ) -> Result<(), Error> {
        let samples = content_of(&self.samples.path)?;
        self.events = Some(Events::start(&self.path, &config.to_ron(), rows, &samples)?);
        Ok(())
    }

    /// Appends the last of `rows` to the metrics. If another program has changed the metrics meanwhile, writes them
    /// again from all `rows` and adds a note to [`notes`](Self::notes).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`is_here`](Self::is_here), and I/O errors. If writing fails, the row is written together
    /// with the next row, or by [`sync`](Self::sync).
    pub fn log(&mut self, rows: &[Row]) -> Result<(), Error> {
        let Some(row) = rows.last() else {
            return Ok(());
        };
        self.metrics.waiting.push_str(&json_line(row));
        self.is_here()?;
        let written = persist(|| {
            self.mend_metrics(rows)?;
            self.metrics.flush()
        });
        let written = written.and_then(|()| match &mut self.events {
            Some(events) => events.log(row),
            None => Ok(()),
        });
        written.map_err(|error| self.explain(error))
    }

    /// Appends text sampled after `step` steps to the samples. If another program has changed the samples, adds a note
    /// to [`notes`](Self::notes).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`is_here`](Self::is_here), and I/O errors. If writing fails, the text is written together
    /// with the next sample, or by [`sync`](Self::sync).
    pub fn sample(&mut self, step: usize, text: &str) -> Result<(), Error> {
        let sample = format!("{SAMPLE}{step}\n{text}\n\n");
        self.samples.waiting.push_str(&sample);
        self.is_here()?;
        let written = persist(|| {
            self.mend_samples()?;
            self.samples.flush()
        });
        let written = written.and_then(|()| match &mut self.events {
            Some(events) => events.sample(step, text),
            None => Ok(()),
        });
        written.map_err(|error| self.explain(error))
    }

    /// Restores each file that the run itself never changes during training, such as the config, if another program has
    /// deleted or changed it, and adds a note. Then waits until all `rows` and samples are on disk, and returns the
    /// lengths and hashes of metrics and samples.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`is_here`](Self::is_here), and I/O errors.
    pub fn sync(&mut self, rows: &[Row]) -> Result<[Mark; 2], Error> {
        self.is_here()?;
        let path = &self.path;
        let mut fixed = self.fixed.iter_mut();
        let restored = fixed.try_for_each(|file| {
            self.notes.extend(persist(|| file.restore(path))?);
            Ok(())
        });
        let synced = restored.and_then(|()| persist(|| self.sync_logs(rows)));
        synced.map_err(|error| self.explain(error))?;
        Ok([self.metrics.mark(), self.samples.mark()])
    }

    fn sync_logs(&mut self, rows: &[Row]) -> Result<(), Error> {
        self.metrics.doubt();
        self.samples.doubt();
        self.mend_metrics(rows)?;
        self.mend_samples()?;
        for log in [&mut self.metrics, &mut self.samples] {
            log.flush()?;
            log.trim()?;
            if log.mark().bytes > 0 {
                disk::sync(&log.path)?;
            }
        }
        disk::sync(&self.path)
    }

    /// Returns the notes about changes that other programs have made to the run's files since the last call.
    pub fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Writes the metrics again if another program has changed them or given them a second name (a hard link).
    fn mend_metrics(&mut self, rows: &[Row]) -> Result<(), Error> {
        if let Some(note) = self.metrics.make_room()? {
            self.metrics.rewrite(&text_of(rows))?;
            self.notes.push(note + "; all rows were written again");
            return Ok(());
        }
        if self.metrics.has_other_names() {
            // The old file may be part of a backup made of hard links, so a new file replaces it.
            self.metrics.rewrite(&text_of(rows))?;
        }
        if let Some(left) = self.metrics.remains()? {
            let before = self.metrics.mark().bytes;
            self.metrics.rewrite(&text_of(rows))?;
            let changed = changed(&self.metrics.path, left, before);
            self.notes
                .push(changed + " during training; all rows were written again");
        }
        Ok(())
    }

    /// Adds a note if another program has changed the samples. Samples are no longer in memory, so they cannot be
    /// restored.
    fn mend_samples(&mut self) -> Result<(), Error> {
        if let Some(note) = self.samples.make_room()? {
            let waiting = std::mem::take(&mut self.samples.waiting);
            self.samples.rewrite(&waiting)?;
            self.notes.push(note);
            return Ok(());
        }
        if self.samples.has_other_names() {
            let waiting = std::mem::take(&mut self.samples.waiting);
            let content = content_of(&self.samples.path)?;
            self.samples.rewrite(&(content + &waiting))?;
        }
        if let Some(left) = self.samples.remains()? {
            let before = self.samples.mark().bytes;
            let waiting = std::mem::take(&mut self.samples.waiting);
            let kept = content_of(&self.samples.path)?;
            self.samples.rewrite(&(kept + &waiting))?;
            let changed = changed(&self.samples.path, left, before);
            self.notes.push(changed + " during training");
        }
        Ok(())
    }

    /// Checks that `checkpoints` is a directory in the run directory. Creates the directory again if another program
    /// has deleted it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Checkpoint`] if `checkpoints` is a link or not a directory, because the run writes only to its
    /// own directory. Also returns I/O errors.
    pub fn prepare_checkpoints(&mut self) -> Result<(), Error> {
        let directory = self.path.join(checkpoint::CHECKPOINTS);
        disk::refuse_linked_directory(&directory)?;
        if !directory.exists() {
            self.is_here()?;
            disk::create_directory(&directory)?;
            let note = format!(
                "{} has vanished, and with it all earlier checkpoints",
                directory.display()
            );
            self.notes.push(note);
        }
        Ok(())
    }

    /// Returns the cause of a failed write: the error of [`is_here`](Self::is_here) if it returns one, otherwise
    /// `error`.
    pub fn explain(&self, error: Error) -> Error {
        self.is_here().err().unwrap_or(error)
    }

    /// Returns the directory of the checkpoint after `step` steps.
    pub fn checkpoint(&self, step: usize) -> PathBuf {
        checkpoint::directory(&self.path, step)
    }

    /// Checks that the lock still belongs to the directory, and that `checkpoints` is not a link. Writes to a deleted
    /// directory would be lost without an error. A replaced directory belongs to another run.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Vanished`] if the directory was deleted or replaced, and [`Error::Unlocked`] if only the lock
    /// is gone. Also returns [`Error::Checkpoint`] if `checkpoints` is a link or not a directory.
    pub fn is_here(&self) -> Result<(), Error> {
        match self.lock.is_of(&self.path) {
            true => disk::refuse_linked_directory(&self.path.join(checkpoint::CHECKPOINTS)),
            false if self.has_only_lost_its_lock() => Err(Error::Unlocked(self.path.clone())),
            false => Err(Error::Vanished(self.path.clone())),
        }
    }

    /// Whether the directory still has the config of this run. The caller knows that the lock is missing or was
    /// replaced.
    fn has_only_lost_its_lock(&self) -> bool {
        let mut fixed = self.fixed.iter().filter(|file| file.is_called(CONFIG));
        fixed.any(|config| config.is_unchanged_in(&self.path))
    }
}

/// Calls `write`, and repeats it up to [`TRIES`] times if the file is missing or its path has other content. Another
/// program may have moved the file, or put something at its path, since the last check.
fn persist<T>(mut write: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    use ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory, NotFound};
    let is_of_place = |kind| {
        matches!(
            kind,
            AlreadyExists | DirectoryNotEmpty | IsADirectory | NotADirectory | NotFound
        )
    };
    for _ in 0..TRIES {
        match write() {
            Err(Error::Checkpoint { .. }) => {}
            Err(Error::Io { source, .. }) if is_of_place(source.kind()) => {}
            done => return done,
        }
        thread::sleep(Duration::from_millis(10));
    }
    write()
}

/// Maximum number of times that [`persist`] tries again.
const TRIES: usize = 5;

/// Says that a file of `before` bytes was changed, and how many bytes it has lost if only `left` bytes remain.
fn changed(path: &Path, left: u64, before: u64) -> String {
    let path = path.display();
    match before.saturating_sub(left) {
        0 => format!("{path} was changed by another program, and may have lost lines"),
        lost => format!("{path} has lost {lost} of {before} bytes"),
    }
}

/// Returns the content of a metrics file with `rows`.
fn text_of(rows: &[Row]) -> String {
    rows.iter().map(json_line).collect()
}

/// Reads the samples in the file `path` up to step `step`.
fn samples_until(path: &Path, step: usize) -> Result<String, Error> {
    let content = content_of(path)?;
    let is_later = |line: &str| {
        let number = line.strip_prefix(SAMPLE).map(str::trim_end);
        number.is_some_and(|number| number.parse::<usize>().is_ok_and(|number| number > step))
    };
    let lines = content.split_inclusive('\n');
    Ok(lines.take_while(|line| !is_later(line)).collect())
}

/// Reads the content of a log; the content is empty if there is no file.
fn content_of(path: &Path) -> Result<String, Error> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(Error::io("read", path)(error)),
        Ok(content) => Ok(String::from_utf8_lossy(&content).into_owned()),
    }
}

fn json_lines<T: Serialize>(value: &T) -> String {
    let lines = serde_json::to_string_pretty(value);
    lines.unwrap_or_else(|e| unreachable!("plain data: {e}")) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_repeated_if_something_else_stands_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.ron");
        let mut looks = 0;
        // Another program creates a directory after the first check.
        let mut write = || {
            looks += 1;
            match looks {
                1 => fs::create_dir(&path).unwrap(),
                4 => fs::remove_dir(&path).unwrap(),
                _ => {}
            }
            disk::replace(&path, b"text")
        };
        persist(&mut write).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"text");
        let mut tries = 0;
        let full = persist(|| {
            tries += 1;
            Err::<(), _>(Error::io("write", &path)(ErrorKind::StorageFull.into()))
        });
        full.unwrap_err();
        assert_eq!(tries, 1);
    }
}
