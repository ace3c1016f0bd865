//! The event file of a run for TensorBoard.
//!
//! The event file repeats the content of `metrics.jsonl` and `samples.txt`. Each start of the run writes the event file
//! again from these two files. Rows that a resumed run discards thus do not remain. A record consists of a length, a
//! TensorFlow message `Event` (`event.proto`, `summary.proto`), and their checksums.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use residual_zoo_system::files;

use crate::{Error, Row, disk};

/// The folder of the event file in a run directory.
pub const FOLDER: &str = "tensorboard";
/// The prefix of every event file's name; the start time in seconds follows.
const NAME: &str = "events.out.tfevents.";
/// The part of the name that marks the zoo's event files; the process id follows.
const OWN: &str = ".residual-zoo.";

/// The event file of a run during training.
pub struct Events {
    path: PathBuf,
    file: File,
}

impl Events {
    /// Replaces the event file in the run directory `run`. The new file has the `config`, the `rows`, and the
    /// `samples`, which are the content of `samples.txt`.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn start(run: &Path, config: &str, rows: &[Row], samples: &str) -> Result<Self, Error> {
        let folder = run.join(FOLDER);
        disk::refuse_linked_directory(&folder)?;
        disk::create_directories(&folder)?;
        let before = fs::read_dir(&folder).map_err(Error::io("read", &folder))?;
        for entry in before.filter_map(Result::ok) {
            if is_event_file(&entry.path()) {
                disk::remove_file(&entry.path())?;
            }
        }
        let (now, process) = (now(), std::process::id());
        let path = folder.join(format!("{NAME}{}{OWN}{process}", now as u64));
        disk::write(&path, &[])?;
        let file = disk::open_to_append(&path, 0)?;
        let mut events = Self { path, file };
        let mut records = record(&event(now, 0, &version()));
        records.extend(record(&event(now, 0, &text("config", &fenced(config)))));
        // Rows have seconds of training, not the time of day, so their times are counted back from now.
        let last = rows.last().map_or(0.0, |row| row.seconds);
        for row in rows {
            records.extend(scalars(row, now - (last - row.seconds)));
        }
        for (step, sample) in samples_of(samples) {
            records.extend(record(&event(now, step, &text("sample", &fenced(sample)))));
        }
        events.append(&records)?;
        Ok(events)
    }

    /// Appends a row.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn log(&mut self, row: &Row) -> Result<(), Error> {
        self.append(&scalars(row, now()))
    }

    /// Appends text that was sampled after `step` steps.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn sample(&mut self, step: usize, sample: &str) -> Result<(), Error> {
        self.append(&record(&event(
            now(),
            step,
            &text("sample", &fenced(sample)),
        )))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let found = self.file.metadata();
        if found.is_ok_and(|found| files::has_other_names(&found)) {
            // The old file may be part of a backup made of hard links, so a copy replaces it.
            let content = fs::read(&self.path).map_err(Error::io("read", &self.path))?;
            disk::replace_shared(&self.path, &content)?;
            self.file = disk::open_to_append(&self.path, content.len() as u64)?;
        }
        disk::append(&mut self.file, &self.path, bytes)
    }
}

/// Whether [`Events`] wrote the file. Other programs may write event files into the same directory.
pub fn is_event_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let numbers = name.and_then(|name| name.strip_prefix(NAME)?.split_once(OWN));
    numbers.is_some_and(|(start, process)| {
        start.parse::<u64>().is_ok() && process.parse::<u32>().is_ok()
    })
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Returns the samples in the content of `samples.txt`, with their steps. Each sample begins with `=== step N`.
fn samples_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let parts = text.split("=== step ").skip(1);
    parts.filter_map(|part| {
        let (step, sample) = part.split_once('\n')?;
        Some((step.parse().ok()?, sample.trim_end_matches('\n')))
    })
}

/// Formats `text` as Markdown that TensorBoard shows unchanged.
fn fenced(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("    {line}")).collect();
    lines.join("\n")
}

/// Returns a record for each number of a row.
fn scalars(row: &Row, time: f64) -> Vec<u8> {
    let count = |count: Option<usize>| count.map(|count| count as f64);
    let numbers = [
        ("loss/train", row.train_loss),
        ("loss/valid", row.valid_loss),
        ("loss/valid_ema", row.ema_valid_loss),
        ("accuracy/valid", row.valid_accuracy),
        ("learning_rate", row.lr),
        ("learning_rate/muon", row.muon_lr),
        ("grad_norm", row.grad_norm),
        ("level", count(row.level)),
        ("skipped", count(row.skipped)),
        ("spike", row.spike),
        ("speed/tokens_per_second", row.tokens_per_second),
        ("speed/mfu", row.mfu),
        ("memory", row.memory.map(|bytes| bytes as f64)),
        ("tokens", Some(row.tokens as f64)),
    ];
    let found = numbers
        .into_iter()
        .filter_map(|(tag, number)| Some((tag, number?)));
    found
        .flat_map(|(tag, number)| record(&event(time, row.step, &scalar(tag, number))))
        .collect()
}

/// Encodes an `Event` with the time, the step and a field.
fn event(time: f64, step: usize, field: &[u8]) -> Vec<u8> {
    let mut event = vec![1 << 3 | 1];
    event.extend(time.to_le_bytes());
    event.extend(number(2, step as u64));
    event.extend(field);
    event
}

/// Encodes the field `Event.file_version`.
fn version() -> Vec<u8> {
    bytes(3, b"brain.Event:2")
}

/// Encodes the field `Event.summary` with a `Value` whose `simple_value` is a number.
fn scalar(tag: &str, value: f64) -> Vec<u8> {
    let mut content = bytes(1, tag.as_bytes());
    content.push(2 << 3 | 5);
    content.extend((value as f32).to_le_bytes());
    bytes(5, &bytes(1, &content))
}

/// Encodes the field `Event.summary` with a `Value` whose `tensor` is text.
fn text(tag: &str, text: &str) -> Vec<u8> {
    const STRING: u64 = 7;
    let shape = bytes(2, &number(1, 1));
    let tensor = [
        number(1, STRING),
        bytes(2, &shape),
        bytes(8, text.as_bytes()),
    ]
    .concat();
    let plugin = bytes(1, &bytes(1, b"text"));
    let value = [
        bytes(1, tag.as_bytes()),
        bytes(8, &tensor),
        bytes(9, &plugin),
    ]
    .concat();
    bytes(5, &bytes(1, &value))
}

/// Encodes a message field that holds a number.
fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// Encodes a message field that holds text, bytes or another message.
fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    let length = varint(content.len() as u64);
    [varint(field << 3 | 2), length, content.to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Encodes a record of an event file.
fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let checksums =
        [length.as_slice(), event].map(|bytes| masked(crc32c::crc32c(bytes)).to_le_bytes());
    [&length, checksums[0].as_slice(), event, &checksums[1]].concat()
}

/// Masks a checksum for storage. Without the mask, a checksum of data that contain checksums would be weaker.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_bytes_that_tensorflow_writes() {
        // The first record of any event file, at time 0.
        let mut event = vec![9, 0, 0, 0, 0, 0, 0, 0, 0];
        event.extend(version());
        assert_eq!(&event[9..], b"\x1a\x0dbrain.Event:2");
        let record = record(&event);
        assert_eq!(record[..8], 24_u64.to_le_bytes());
        assert_eq!(record.len(), 8 + 4 + 24 + 4);
        // The example of RFC 3720, B.4: 32 bytes of zeros.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked(0), 0xa282_ead8);
        assert_eq!(varint(300), [0xac, 0x02]);
    }

    #[test]
    fn only_event_files_of_the_zoo_are_its_own() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join(FOLDER);
        let start = || Events::start(run.path(), "", &[], "").unwrap();
        let first = start().path;
        let others = [
            "events.out.tfevents.1700000000.host",
            "events.out.tfevents.1.residual-zoo.x",
        ];
        for other in others {
            fs::write(folder.join(other), "theirs").unwrap();
            assert!(!is_event_file(&folder.join(other)));
        }
        assert!(is_event_file(&first));
        let second = start().path;
        assert!(second.exists() && (first == second || !first.exists()));
        for other in others {
            assert_eq!(fs::read_to_string(folder.join(other)).unwrap(), "theirs");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_backup_of_hard_links_keeps_its_events() {
        let run = tempfile::tempdir().unwrap();
        let mut events = Events::start(run.path(), "", &[], "").unwrap();
        let backup = run.path().join("backup");
        fs::hard_link(&events.path, &backup).unwrap();
        let before = fs::read(&backup).unwrap();
        for step in [1, 2] {
            events.sample(step, "text").unwrap();
        }
        assert_eq!(fs::read(&backup).unwrap(), before);
        let after = fs::read(&events.path).unwrap();
        assert!(after.starts_with(&before) && after.len() > before.len() + 20);
        assert_eq!(fs::read_dir(run.path().join(FOLDER)).unwrap().count(), 1);
    }

    #[test]
    fn samples_are_found_with_their_steps() {
        let text = "=== step 5\na\nb\n\n=== step 10\n\n\n";
        let found: Vec<_> = samples_of(text).collect();
        assert_eq!(found, [(5, "a\nb"), (10, "")]);
        assert_eq!(samples_of("=== step x\na\n").count(), 0);
    }
}
