//! Append-only files of lines.

use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use residual_zoo_data::json::problem_in;
use residual_zoo_system::files;
use serde::{Deserialize, Serialize};

use crate::checkpoint::move_away;
use crate::{Error, disk};

/// The length and hash of a log's content at a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mark {
    /// The length in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash. Checkpoints of earlier versions have none.
    pub blake3: Option<String>,
}

/// An append-only file. The log knows the length and hash of its content, because other programs can change the file.
/// The remains of a failed write are cut off before the next write.
pub struct Log {
    pub path: PathBuf,
    /// Number of bytes written successfully.
    bytes: u64,
    /// The hasher that has read these bytes.
    hasher: blake3::Hasher,
    /// The metadata of the file when this process last knew its content; `None` if the content may have changed since.
    left: Option<Metadata>,
    /// Text that is still to be written.
    pub waiting: String,
}

impl Log {
    /// Makes a log without content.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            bytes: 0,
            hasher: blake3::Hasher::new(),
            left: None,
            waiting: String::new(),
        }
    }

    /// Returns the length and hash of the written content.
    pub fn mark(&self) -> Mark {
        Mark {
            bytes: self.bytes,
            blake3: Some(self.hasher.finalize().to_hex().to_string()),
        }
    }

    /// Whether the file still begins with the content at `mark`, which must end with a whole line.
    pub fn begins_with(&self, mark: &Mark) -> Result<bool, Error> {
        Ok(self.hash(mark)?.is_some())
    }

    /// Hashes the content at `mark`. Returns `None` if the file no longer begins with this content.
    fn hash(&self, mark: &Mark) -> Result<Option<blake3::Hasher>, Error> {
        disk::refuse_link(&self.path)?;
        if mark.bytes == 0 {
            return Ok(Some(blake3::Hasher::new()));
        }
        let read = || {
            let file = match File::open(&self.path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            let (mut file, mut hasher) = (file.take(mark.bytes), blake3::Hasher::new());
            let (mut buffer, mut last) = (vec![0; 1 << 16], 0);
            loop {
                let read = file.read(&mut buffer)?;
                if read == 0 {
                    break;
                }
                hasher.update(&buffer[..read]);
                last = buffer[read - 1];
            }
            let is_same = |blake3: &String| *blake3 == hasher.finalize().to_hex().as_str();
            let is_whole = hasher.count() == mark.bytes && last == b'\n';
            let is_known = is_whole && mark.blake3.as_ref().is_none_or(is_same);
            Ok(is_known.then_some(hasher))
        };
        read().map_err(Error::io("read", &self.path))
    }

    /// Cuts the file back to the content at `mark`. If the file no longer begins with this content, replaces its
    /// content with `kept`.
    pub fn cut(
        &mut self,
        mark: &Mark,
        kept: impl FnOnce() -> Result<String, Error>,
    ) -> Result<(), Error> {
        let Some(hasher) = self.hash(mark)? else {
            return self.rewrite(&kept()?);
        };
        (self.bytes, self.hasher) = (mark.bytes, hasher);
        let found = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        if found > self.bytes {
            disk::open_to_append(&self.path, self.bytes)?;
        }
        self.look();
        Ok(())
    }

    /// Replaces the content of the file with `text`, which includes the waiting text.
    pub fn rewrite(&mut self, text: &str) -> Result<(), Error> {
        disk::replace(&self.path, text.as_bytes())?;
        self.waiting.clear();
        self.bytes = text.len() as u64;
        self.hasher = blake3::Hasher::new();
        self.hasher.update(text.as_bytes());
        self.look();
        Ok(())
    }

    /// Returns how many of the written bytes are still in the file if another program has changed the file; otherwise
    /// `None`.
    pub fn remains(&mut self) -> Result<Option<u64>, Error> {
        let found = fs::symlink_metadata(&self.path).ok();
        if found.as_ref().is_some_and(|found| self.is_as_left(found)) || self.bytes == 0 {
            return Ok(None);
        }
        match self.begins_with(&self.mark())? {
            true => {
                self.left = found;
                Ok(None)
            }
            false => Ok(Some(found.map_or(0, |found| found.len().min(self.bytes)))),
        }
    }

    /// Makes the next check read the whole file, because the metadata do not show every change: another program may
    /// change the file between a write and the reading of the metadata.
    pub fn doubt(&mut self) {
        self.left = None;
    }

    /// Whether the metadata `found` show that no program has changed the file since this process last knew its content.
    fn is_as_left(&self, found: &Metadata) -> bool {
        self.left.as_ref().is_some_and(|left| {
            files::is_same(left, found)
                && left.len() == found.len()
                && left.modified().ok() == found.modified().ok()
                && files::changed(left) == files::changed(found)
        })
    }

    /// Renames a directory, a link or a special file at the path of the log. Returns a note about the renaming; `None`
    /// if the path holds a regular file or nothing.
    pub fn make_room(&self) -> Result<Option<String>, Error> {
        let found = fs::symlink_metadata(&self.path);
        if found.map_or(true, |found| found.is_file()) {
            return Ok(None);
        }
        let moved = move_away(&self.path)?;
        let (path, moved) = (self.path.display(), moved.display());
        Ok(Some(format!(
            "{path} was replaced by another program while the run was training; what stood there is now {moved}"
        )))
    }

    /// Whether the file has a second name (a hard link). Under that name, its content must not change.
    pub fn has_other_names(&self) -> bool {
        let found = fs::symlink_metadata(&self.path);
        self.bytes > 0 && found.is_ok_and(|found| found.is_file() && files::has_other_names(&found))
    }

    /// Writes the waiting text, after cutting off the remains of a failed attempt.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut file = disk::open_to_append(&self.path, self.bytes)?;
        let is_known = match self.bytes {
            0 => true,
            _ => file.metadata().is_ok_and(|found| self.is_as_left(&found)),
        };
        disk::append(&mut file, &self.path, self.waiting.as_bytes())?;
        self.bytes += self.waiting.len() as u64;
        self.hasher.update(self.waiting.as_bytes());
        self.waiting.clear();
        match is_known {
            true => self.look(),
            // Another program has changed the file since the last check; the next check finds the change.
            false => self.left = None,
        }
        Ok(())
    }

    /// Cuts off bytes that another program has appended.
    pub fn trim(&mut self) -> Result<(), Error> {
        let found = fs::metadata(&self.path).map_or(0, |found| found.len());
        if found > self.bytes {
            disk::open_to_append(&self.path, self.bytes)?;
            self.look();
        }
        Ok(())
    }

    /// Remembers the current metadata of the file, whose content is known.
    fn look(&mut self) {
        self.left = fs::symlink_metadata(&self.path).ok();
    }
}

/// Returns `value` as one line of JSON.
pub fn json_line<T: Serialize>(value: &T) -> String {
    let line = serde_json::to_string(value);
    line.unwrap_or_else(|e| unreachable!("plain data: {e}")) + "\n"
}

/// Reads each line in the first `bytes` bytes of a file as a `T`. Skips an incomplete last line.
pub fn read_lines<T: for<'de> Deserialize<'de>>(path: &Path, bytes: u64) -> Result<Vec<T>, Error> {
    let content = residual_zoo_data::read_file(path)?;
    if content.starts_with(b"\xef\xbb\xbf") {
        return Err(Error::Checkpoint {
            path: path.into(),
            problem:
                "begins with a byte order mark, which some editors write; save it without the mark"
                    .into(),
        });
    }
    let end = usize::try_from(bytes).map_or(content.len(), |bytes| bytes.min(content.len()));
    let lines = || content[..end].split_inclusive(|&byte| byte == b'\n');
    // All memory is reserved at once, because growing step by step may double it. Lines of up to 40 bytes cannot be
    // rows, so they do not count.
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
                one_line_problem(line, &error)
            ),
        })?;
        values.push(value);
    }
    Ok(values)
}

/// Returns the message of an error in one line of JSON, with the column but without the line number.
fn one_line_problem(line: &[u8], error: &serde_json::Error) -> String {
    let message = problem_in(&String::from_utf8_lossy(line), error);
    let place = format!(" at line {} column {}", error.line(), error.column());
    format!(
        "column {}: {}",
        error.column(),
        message.replacen(&place, "", 1)
    )
}

/// Returns the offset at which the last whole line of a file ends; 0 if there is no file.
pub fn whole_lines(path: &Path) -> Result<u64, Error> {
    if !path.exists() {
        return Ok(0);
    }
    let bytes = residual_zoo_data::read_file(path)?;
    let end = bytes.iter().rposition(|byte| *byte == b'\n');
    Ok(end.map_or(0, |end| end as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_between_the_look_and_the_write_is_found_by_the_next_look() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        type Harm = fn(&Path);
        let harms: [Harm; 3] = [
            |path| fs::remove_file(path).unwrap(),
            |path| fs::write(path, "").unwrap(),
            |path| {
                let aside = path.with_extension("other");
                fs::write(&aside, "b\n").unwrap();
                fs::rename(aside, path).unwrap();
            },
        ];
        for harm in harms {
            let mut log = Log::new(path.clone());
            log.rewrite("a\n").unwrap();
            assert_eq!(log.remains().unwrap(), None);
            harm(&path);
            log.waiting = "c\n".into();
            log.flush().unwrap();
            assert!(log.remains().unwrap().is_some());
            log.rewrite("a\nc\n").unwrap();
            assert_eq!(log.remains().unwrap(), None);
        }
        // If only the modification time has changed, the file is read once.
        fs::write(&path, "a\nc\n").unwrap();
        let mut log = Log::new(path);
        log.rewrite("a\nc\n").unwrap();
        fs::write(&log.path, "a\nc\n").unwrap();
        assert_eq!(log.remains().unwrap(), None);
        assert!(log.left.is_some());
    }
}
