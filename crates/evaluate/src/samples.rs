//! The samples file of a task. Scores are written immediately, so a stopped evaluation can continue.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use residual_zoo_core::Precision;
use residual_zoo_runs::{Error as RunError, disk};
use residual_zoo_system::counted;
use residual_zoo_system::files;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::metric::{Found, Sample};
use crate::task::Task;

/// The first line of a samples file: the task, the weights and the settings of the samples.
#[derive(PartialEq, Serialize, Deserialize)]
pub struct Heading {
    /// The name of the task.
    pub task: String,
    /// The kind of the task.
    pub kind: String,
    /// BLAKE3 of the weights.
    pub weights_blake3: String,
    /// BLAKE3 of the model's config and of the tokenizer. Files of earlier versions have none.
    #[serde(default)]
    pub model_blake3: String,
    /// BLAKE3 of the task's file.
    pub documents_blake3: String,
    /// Number of tokens that each window of a long text predicts, except the first window.
    pub stride: usize,
    /// Number of tokens that the model reads.
    pub context: usize,
    /// The precision of matrix products. Files of earlier versions are in f32.
    #[serde(default, skip_serializing_if = "is_f32")]
    pub precision: Precision,
}

fn is_f32(precision: &Precision) -> bool {
    *precision == Precision::F32
}

/// Maximum size of a heading or a sample, in bytes. A question has at most 256 choices, so its sample is smaller.
const MOST: u64 = 1 << 16;

/// A samples file.
pub struct Samples {
    path: PathBuf,
    file: fs::File,
    /// The first line.
    heading: String,
    /// The metrics' part of the sample of each document; `None` if the document is not scored yet.
    pub found: Vec<Option<Found>>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Samples {
    /// Opens the file in `directory` with the samples of `task`. A file with other samples is set aside.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Stopped`] if `goes_on` returns false, and an error if the file cannot be read or written.
    pub fn open(
        directory: &Path,
        task: &Task,
        heading: &Heading,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Self, Error> {
        let path = directory.join(format!("samples_{}.jsonl", task.name));
        let (mut notes, mut found) = (Vec::new(), vec![None; task.len()]);
        let is_there = fs::symlink_metadata(&path).is_ok();
        let keep = match is_there {
            true => read(&path, task, heading, (&mut found, &mut notes), goes_on)?,
            false => None,
        };
        let line = json_line(heading);
        let keep = match keep {
            Some(keep) => keep,
            None => {
                if is_there {
                    let aside = set_aside(&path)?;
                    notes.push(format!(
                        "the samples with other weights or settings were moved to {}",
                        aside.display()
                    ));
                }
                disk::replace(&path, line.as_bytes())?;
                line.len() as u64
            }
        };
        let known = found.iter().flatten().count();
        if known > 0 {
            notes.push(format!(
                "{known} of {} {} scored before",
                counted(task.len(), "document"),
                if known == 1 { "was" } else { "were" }
            ));
        }
        Ok(Self {
            file: disk::open_to_append(&path, keep)?,
            path,
            heading: line,
            found,
            notes,
        })
    }

    /// Adds the sample of a document.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Vanished`] if the path no longer leads to the opened file, and an error if the file cannot be
    /// written.
    pub fn add(&mut self, sample: &Sample, found: Found) -> Result<(), Error> {
        self.check_is_here()?;
        let line = sealed(&self.heading, &json_line(sample));
        disk::append(&mut self.file, &self.path, line.as_bytes())?;
        self.found[sample.doc_id] = Some(found);
        Ok(())
    }

    /// Checks that the path still leads to the opened file.
    pub fn check_is_here(&self) -> Result<(), Error> {
        let own = self.file.metadata();
        let own = own.map_err(RunError::io("read", &self.path))?;
        match fs::symlink_metadata(&self.path) {
            Ok(there) if files::is_same(&there, &own) => Ok(()),
            _ => Err(Error::Vanished(self.path.clone())),
        }
    }
}

/// Reads the samples in the file `path`, and removes damaged lines from the file. Returns the number of bytes of the
/// complete lines that are left, or `None` if the file has a different heading.
fn read(
    path: &Path,
    task: &Task,
    heading: &Heading,
    (found, notes): (&mut [Option<Found>], &mut Vec<String>),
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Option<u64>, Error> {
    check_is_file(path)?;
    let file = fs::File::open(path).map_err(RunError::io("read", path))?;
    let mut lines = Lines(BufReader::new(file), path);
    let first = lines.next()?;
    let is_same =
        |line: &String| serde_json::from_str::<Heading>(line).is_ok_and(|other| other == *heading);
    let Some(first) = first.filter(is_same) else {
        return Ok(None);
    };
    let heading = json_line(heading);
    let (mut keep, mut damaged) = (first.len() as u64, Damaged::default());
    while let Some(line) = lines.next()? {
        if !goes_on() {
            return Err(Error::Stopped);
        }
        let from = keep;
        keep += line.len() as u64;
        let sample = serde_json::from_str::<Sample>(&line).ok();
        let Some(sample) = sample.filter(|_| is_sealed(&heading, &line)) else {
            damaged.add(from..keep);
            continue;
        };
        // Samples of documents beyond the limit of this evaluation stay in the file.
        if let Some(place) = found.get_mut(sample.doc_id) {
            let document = task.document(sample.doc_id)?;
            match sample.is_of(&document) {
                true => *place = Some(Found::of(&document, &sample)),
                false => damaged.add(from..keep),
            }
        }
    }
    if damaged.lines == 0 {
        return Ok(Some(keep));
    }
    notes.push(format!(
        "{} in {} {were} damaged, or changed by another program, and {were} scored again",
        counted(damaged.lines, "sample"),
        path.display(),
        were = if damaged.lines == 1 { "was" } else { "were" }
    ));
    without(path, keep, &damaged.parts).map(Some)
}

/// The damaged lines of a file.
#[derive(Default)]
struct Damaged {
    /// The number of damaged lines.
    lines: usize,
    /// The byte ranges of the damaged lines in the file, in order. Adjacent lines form one range.
    parts: Vec<Range<u64>>,
}

impl Damaged {
    fn add(&mut self, line: Range<u64>) {
        self.lines += 1;
        match self.parts.last_mut() {
            Some(last) if last.end == line.start => last.end = line.end,
            _ => self.parts.push(line),
        }
    }
}

/// Removes the ranges `damaged` from the first `keep` bytes of a file, and removes all later bytes. Returns the new
/// length.
fn without(path: &Path, keep: u64, damaged: &[Range<u64>]) -> Result<u64, Error> {
    let content = fs::read(path).map_err(RunError::io("read", path))?;
    let starts = std::iter::once(0).chain(damaged.iter().map(|range| range.end));
    let ends = damaged.iter().map(|range| range.start).chain([keep]);
    let parts = starts.zip(ends);
    let parts = parts.filter_map(|(start, end)| content.get(start as usize..end as usize));
    let left = parts.collect::<Vec<_>>().concat();
    disk::replace(path, &left)?;
    Ok(left.len() as u64)
}

/// The text before the hash in the line of a sample.
const SEAL: &str = ",\"blake3\":\"";

/// Returns the line of a sample: a JSON object with a hash of itself and of the file's heading. Other programs can
/// change the file, so an evaluation trusts only lines whose hash matches.
fn sealed(heading: &str, sample: &str) -> String {
    let sample = sample.trim_end().trim_end_matches('}');
    let mut hasher = blake3::Hasher::new();
    hasher.update(heading.as_bytes()).update(sample.as_bytes());
    let hash = hasher.finalize().to_hex();
    format!("{sample}{SEAL}{}\"}}\n", &hash[..32])
}

/// Whether a line is unchanged since [`sealed`] made it.
fn is_sealed(heading: &str, line: &str) -> bool {
    let sample = line.rsplit_once(SEAL);
    sample.is_some_and(|(sample, _)| sealed(heading, sample) == line)
}

/// The complete lines of a file, up to the first line that is too long or is not valid UTF-8.
struct Lines<'a>(BufReader<fs::File>, &'a Path);

impl Lines<'_> {
    fn next(&mut self) -> Result<Option<String>, Error> {
        let mut line = String::new();
        let read = (&mut self.0).take(MOST).read_line(&mut line);
        match read {
            // Invalid UTF-8 also ends the complete lines.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(RunError::io("read", self.1)(error).into()),
            Ok(_) => Ok(Some(line).filter(|line| line.ends_with('\n'))),
        }
    }
}

fn json_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|e| unreachable!("plain data: {e}")) + "\n"
}

/// Refuses links and special files, because reading them may never end.
///
/// # Errors
///
/// Returns an error with the path of the file and the remedy.
pub fn check_is_file(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(Error::Task {
            path: path.into(),
            line: None,
            problem: "is not a regular file; move it away, or give another directory with `--out`"
                .into(),
        }),
        _ => Ok(()),
    }
}

/// Renames the file `path` to `NAME.before-HASH.ENDING`, so that another file can take its place.
///
/// # Errors
///
/// Returns an error if the file cannot be read or renamed.
pub fn set_aside(path: &Path) -> Result<PathBuf, Error> {
    let mut hash = blake3::Hasher::new();
    let file = fs::File::open(path).map_err(RunError::io("read", path))?;
    hash.update_reader(file)
        .map_err(RunError::io("read", path))?;
    let hash = hash.finalize().to_hex();
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    let aside = path.with_extension(format!("before-{}.{ending}", &hash[..8]));
    disk::rename(path, &aside)?;
    Ok(aside)
}
