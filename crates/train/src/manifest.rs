//! What a checkpoint consists of: the file that is written last, by which a reader knows that the
//! others are all there and as they were written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, disk};

/// The name of the file.
pub const MANIFEST: &str = "manifest.json";
/// A manifest is small; what is longer is none.
const MOST_BYTES: u64 = 64 * 1024;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    files: BTreeMap<String, Entry>,
}

#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    bytes: u64,
    blake3: String,
}

/// Writes the manifest of `files` in `directory`, and waits until the disk has it.
///
/// # Errors
///
/// When the disk refuses.
pub fn write(directory: &Path, files: &[&str]) -> Result<(), Error> {
    let entries = files.iter().map(|name| {
        let path = directory.join(name);
        let (bytes, blake3) = digest(&path).map_err(Error::io("read", &path))?;
        Ok((name.to_string(), Entry { bytes, blake3 }))
    });
    let files = entries.collect::<Result<_, Error>>()?;
    let text = serde_json::to_vec_pretty(&Manifest { files });
    let text = text.unwrap_or_else(|e| unreachable!("a manifest is plain data: {e}"));
    disk::write(&directory.join(MANIFEST), &text)
}

/// Checks that `files`, and no others, are those of the manifest in `directory`, each a regular
/// file of its length and checksum.
///
/// # Errors
///
/// [`Error::Checkpoint`] for a manifest that is missing or damaged, and for the first file that is
/// not as it was written; failures to read.
pub fn verify(directory: &Path, files: &[&str]) -> Result<(), Error> {
    let manifest = read(directory)?;
    if !manifest.files.keys().eq(files) {
        let path = directory.join(MANIFEST);
        return Err(problem(&path, "names other files than a checkpoint has"));
    }
    for (name, entry) in &manifest.files {
        // The name is one of ours, so it leads nowhere else.
        let path = directory.join(name);
        let Some(metadata) = look(&path)? else {
            return Err(problem(&path, "is missing"));
        };
        if !metadata.is_file() {
            return Err(problem(&path, "is no regular file"));
        }
        if metadata.len() != entry.bytes {
            let lengths = format!("has {} bytes, not {}", metadata.len(), entry.bytes);
            return Err(problem(&path, &lengths));
        }
        let (bytes, blake3) = digest(&path).map_err(Error::io("read", &path))?;
        if (Entry { bytes, blake3 }) != *entry {
            return Err(problem(&path, "is damaged: its checksum is wrong"));
        }
    }
    Ok(())
}

/// The BLAKE3 hash of `file` as the manifest in `directory` has it.
///
/// # Errors
///
/// When the manifest is missing or damaged, or has no such file.
pub fn blake3_of(directory: &Path, file: &str) -> Result<String, Error> {
    let entry = read(directory)?.files.remove(file);
    let missing = || problem(&directory.join(MANIFEST), &format!("has no {file}"));
    Ok(entry.ok_or_else(missing)?.blake3)
}

fn read(directory: &Path) -> Result<Manifest, Error> {
    let path = directory.join(MANIFEST);
    let Some(metadata) = look(&path)? else {
        return Err(problem(directory, "is not complete: it has no manifest"));
    };
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return Err(problem(&path, "is no manifest"));
    }
    let text = fs::read(&path).map_err(Error::io("read", &path))?;
    serde_json::from_slice(&text).map_err(|e| problem(&path, &format!("is damaged: {e}")))
}

fn problem(path: &Path, problem: &str) -> Error {
    Error::Checkpoint {
        path: path.into(),
        problem: problem.into(),
    }
}

/// What is at `path`, links not followed, if there is anything.
fn look(path: &Path) -> Result<Option<fs::Metadata>, Error> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

/// Length and BLAKE3 hash of a file.
fn digest(path: &Path) -> std::io::Result<(u64, String)> {
    let (mut file, mut hasher) = (File::open(path)?, blake3::Hasher::new());
    let (mut buffer, mut bytes) = (vec![0; 1 << 16], 0);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((bytes, hasher.finalize().to_hex().to_string()));
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
    }
}
