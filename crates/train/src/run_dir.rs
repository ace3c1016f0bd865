//! The directory of a run.
//!
//! ```text
//! config.ron       the run with every field written out
//! tokenizer.json   the tokenizer
//! data.json        what the data were: a hash of their content, counts
//! metrics.jsonl    a row for every log line
//! samples.txt      text drawn while training
//! checkpoints/     step-00000100/ and so on
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use residual_zoo_core::ModelConfig;
use residual_zoo_data::{Corpus, Tokenizer};

use crate::{Error, Row, RunConfig, checkpoint};

const CONFIG: &str = "config.ron";
const TOKENIZER: &str = "tokenizer.json";
const DATA: &str = "data.json";
const METRICS: &str = "metrics.jsonl";
const SAMPLES: &str = "samples.txt";

/// A run directory open for writing.
pub struct RunDir {
    path: PathBuf,
    metrics: File,
}

impl RunDir {
    /// Creates the directory of a new run.
    ///
    /// # Errors
    ///
    /// When something is there already, or the disk refuses.
    pub fn create<C: ModelConfig>(
        path: &Path,
        config: &RunConfig<C>,
        corpus: &Corpus,
    ) -> Result<Self, Error> {
        let taken = path.is_file() || fs::read_dir(path).is_ok_and(|mut e| e.next().is_some());
        if taken {
            return Err(Error::RunExists(path.into()));
        }
        fs::create_dir_all(path).map_err(Error::io("create", path))?;
        let write = |name: &str, text: String| {
            let path = path.join(name);
            fs::write(&path, text).map_err(Error::io("write", &path))
        };
        write(CONFIG, config.to_ron())?;
        write(TOKENIZER, corpus.tokenizer.to_json())?;
        let data = serde_json::json!({
            "identity": corpus.identity,
            "train_tokens": corpus.train.len(),
            "valid_tokens": corpus.valid.len(),
            "vocab_size": corpus.tokenizer.vocab_size(),
        });
        write(DATA, format!("{data:#}\n"))?;
        let metrics = path.join(METRICS);
        let file = OpenOptions::new().create(true).append(true).open(&metrics);
        let metrics = file.map_err(Error::io("create", &metrics))?;
        Ok(Self {
            path: path.into(),
            metrics,
        })
    }

    /// Appends a row to the metrics.
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub fn log(&mut self, row: &Row) -> Result<(), Error> {
        let mut line = serde_json::to_string(row).unwrap_or_else(|e| unreachable!("{e}"));
        line.push('\n');
        let written = self.metrics.write_all(line.as_bytes());
        written.map_err(Error::io("write", &self.path.join(METRICS)))
    }

    /// Appends text drawn after `step` steps to the samples.
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub fn sample(&self, step: usize, text: &str) -> Result<(), Error> {
        let path = self.path.join(SAMPLES);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| write!(file, "=== step {step}\n{text}\n\n"));
        written.map_err(Error::io("write", &path))
    }

    /// Where the checkpoint after `step` steps goes.
    pub fn checkpoint(&self, step: usize) -> PathBuf {
        checkpoint::directory(&self.path, step)
    }
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

/// The metrics of the run in `path`. A last line that was cut short is left out.
///
/// # Errors
///
/// When the file is missing, or a line is no row.
pub fn read_metrics(path: &Path) -> Result<Vec<Row>, Error> {
    let path = path.join(METRICS);
    let file = File::open(&path).map_err(Error::io("read", &path))?;
    let mut rows = Vec::new();
    let mut lines = BufReader::new(file).lines().enumerate().peekable();
    while let Some((i, line)) = lines.next() {
        let line = line.map_err(Error::io("read", &path))?;
        match serde_json::from_str(&line) {
            Ok(row) => rows.push(row),
            Err(_) if lines.peek().is_none() => break,
            Err(error) => {
                let problem = format!("line {}: {error}", i + 1);
                return Err(Error::Checkpoint { path, problem });
            }
        }
    }
    Ok(rows)
}
