//! Append-only files of lines.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, disk};

/// An append-only file. A failed write is cut off before the next one.
pub struct Log {
    pub path: PathBuf,
    /// Number of bytes written successfully.
    pub bytes: u64,
    /// Text that is not written yet.
    pub waiting: String,
}

impl Log {
    /// A log without content.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            bytes: 0,
            waiting: String::new(),
        }
    }

    /// Cuts the file to its first `bytes` bytes. A shorter file is cut to its whole lines.
    pub fn cut(&mut self, bytes: u64) -> Result<(), Error> {
        disk::refuse_link(&self.path)?;
        let found = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        if (1..=found).contains(&bytes) && !is_end_of_line(&self.path, bytes)? {
            return Err(Error::Checkpoint {
                path: self.path.clone(),
                problem: format!(
                    "was changed: the checkpoint has seen its first {bytes} bytes, which do not end with a \
                     line; restore it"
                ),
            });
        }
        self.bytes = match found < bytes {
            true => whole_lines(&self.path)?,
            false => bytes,
        };
        match found > self.bytes {
            true => disk::open_to_append(&self.path, self.bytes).map(drop),
            false => Ok(()),
        }
    }

    /// Writes the waiting text, after cutting off the rest of a failed attempt.
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

/// `value` as one line of JSON.
pub fn json_line<T: Serialize>(value: &T) -> String {
    let line = serde_json::to_string(value);
    line.unwrap_or_else(|e| unreachable!("plain data: {e}")) + "\n"
}

/// Reads each line in the first `bytes` bytes of a file as a `T`. An incomplete last line is left
/// out.
pub fn read_lines<T: for<'de> Deserialize<'de>>(path: &Path, bytes: u64) -> Result<Vec<T>, Error> {
    let content = residual_zoo_data::read_file(path)?;
    if content.starts_with(b"\xef\xbb\xbf") {
        return Err(Error::Checkpoint {
            path: path.into(),
            problem: "begins with a byte order mark, as some editors write it; save it without"
                .into(),
        });
    }
    let end = usize::try_from(bytes).map_or(content.len(), |bytes| bytes.min(content.len()));
    let lines = || content[..end].split_inclusive(|&byte| byte == b'\n');
    // Reserved at once, because growing step by step may double the memory. A shorter line is not a
    // row.
    let count = lines().filter(|line| line.len() > 40).count();
    let mut values = Vec::with_capacity(count);
    for (i, line) in lines()
        .enumerate()
        .filter(|(_, line)| line.ends_with(b"\n"))
    {
        let value = serde_json::from_slice(line).map_err(|error| Error::Checkpoint {
            path: path.into(),
            problem: format!(
                "line {}: {}; fix or delete that line",
                i + 1,
                one_line_problem(&error)
            ),
        })?;
        values.push(value);
    }
    Ok(values)
}

/// The message of an error in one line of JSON: with the column, without the line number.
fn one_line_problem(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let problem = message.split(" at line ").next().unwrap_or(&message);
    format!("column {}: {problem}", error.column())
}

/// Whether the first `bytes` bytes of a file end with a line break.
fn is_end_of_line(path: &Path, bytes: u64) -> Result<bool, Error> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let read = || {
        let mut file = fs::File::open(path)?;
        file.seek(SeekFrom::Start(bytes - 1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        Ok(last == *b"\n")
    };
    read().map_err(Error::io("read", path))
}

/// The offset at which the last whole line of a file ends; 0 if there is no file.
pub fn whole_lines(path: &Path) -> Result<u64, Error> {
    if !path.exists() {
        return Ok(0);
    }
    let bytes = residual_zoo_data::read_file(path)?;
    let end = bytes.iter().rposition(|byte| *byte == b'\n');
    Ok(end.map_or(0, |end| end as u64 + 1))
}
