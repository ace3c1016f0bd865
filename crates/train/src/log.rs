//! Files of lines that only grow.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, disk};

/// A file that only grows, by what is whole.
pub struct Log {
    pub path: PathBuf,
    /// Bytes that were written as a whole.
    pub bytes: u64,
    /// What is still to be written.
    pub waiting: String,
}

impl Log {
    /// An empty one.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            bytes: 0,
            waiting: String::new(),
        }
    }

    /// Goes on after the first `bytes` bytes of what is there, or where it ends.
    pub fn cut(&mut self, bytes: u64) -> Result<(), Error> {
        disk::refuse_link(&self.path)?;
        let found = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        self.bytes = match found < bytes {
            true => whole_lines(&self.path)?,
            false => bytes,
        };
        match found > self.bytes {
            true => disk::open_to_append(&self.path, self.bytes).map(drop),
            false => Ok(()),
        }
    }

    /// Writes what waits, in place of what is left of an attempt that failed.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut file = disk::open_to_append(&self.path, self.bytes)?;
        disk::append(&mut file, &self.path, self.waiting.as_bytes())?;
        self.bytes += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }
}

/// `value` as a line.
pub fn json_line<T: Serialize>(value: &T) -> String {
    let line = serde_json::to_string(value);
    line.unwrap_or_else(|e| unreachable!("plain data: {e}")) + "\n"
}

/// Every line of the first `bytes` bytes of a file as a `T`. A last one that was cut short is left
/// out.
pub fn read_lines<T: for<'de> Deserialize<'de>>(path: &Path, bytes: u64) -> Result<Vec<T>, Error> {
    let content = residual_zoo_data::read_file(path)?;
    let end = usize::try_from(bytes).map_or(content.len(), |bytes| bytes.min(content.len()));
    let lines = || content[..end].split_inclusive(|&byte| byte == b'\n');
    // All values at once, so that memory is not taken by doubling; a shorter line is no row.
    let count = lines().filter(|line| line.len() > 40).count();
    let mut values = Vec::with_capacity(count);
    for (i, line) in lines()
        .enumerate()
        .filter(|(_, line)| line.ends_with(b"\n"))
    {
        let value = serde_json::from_slice(line).map_err(|error| Error::Checkpoint {
            path: path.into(),
            problem: format!(
                "line {}: {}; mend or delete that line",
                i + 1,
                one_line_problem(&error)
            ),
        })?;
        values.push(value);
    }
    Ok(values)
}

/// The message of an error in a text of one line: with the column, without the line.
fn one_line_problem(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let problem = message.split(" at line ").next().unwrap_or(&message);
    format!("column {}: {problem}", error.column())
}

/// Where the last whole line of a file ends, 0 where there is no file.
pub fn whole_lines(path: &Path) -> Result<u64, Error> {
    if !path.exists() {
        return Ok(0);
    }
    let bytes = residual_zoo_data::read_file(path)?;
    let end = bytes.iter().rposition(|byte| *byte == b'\n');
    Ok(end.map_or(0, |end| end as u64 + 1))
}
