//! The manifest of a checkpoint: a file with the lengths and checksums of all other files. The manifest is written
//! last, so a reader can tell that all other files are complete and undamaged.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use residual_zoo_system::counted;
use serde::{Deserialize, Serialize};

use crate::{Error, disk};

/// The name of the manifest file.
pub const MANIFEST: &str = "manifest.json";
/// Maximum size of a manifest, in bytes. Larger files are refused.
const MOST_BYTES: u64 = 1024 * 1024;

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

/// Writes the manifest of `files` in `directory` and waits until it is on disk.
///
/// # Errors
///
/// Returns I/O errors.
pub fn write(directory: &Path, files: &[String]) -> Result<(), Error> {
    let entries = files.iter().map(|name| {
        let path = directory.join(name);
        let (bytes, blake3) = digest(&path).map_err(Error::io("read", &path))?;
        Ok((name.clone(), Entry { bytes, blake3 }))
    });
    let files = entries.collect::<Result<_, Error>>()?;
    let text = serde_json::to_vec_pretty(&Manifest { files });
    let text = text.unwrap_or_else(|e| unreachable!("a manifest is plain data: {e}"));
    disk::write(&directory.join(MANIFEST), &text)
}

/// Returns the names of the files that the manifest in `directory` lists, in order.
///
/// # Errors
///
/// Returns an error if the manifest is missing or damaged, and I/O errors.
pub(crate) fn names(directory: &Path) -> Result<Vec<String>, Error> {
    Ok(read(directory)?.files.into_keys().collect())
}

/// Checks that the manifest in `directory` lists exactly `files`, and that each is a regular file with the listed
/// length and checksum. Returns the errors of damaged files that are not `needed`.
///
/// # Errors
///
/// Returns [`Error::Checkpoint`] for a missing or damaged manifest, for a manifest that lists other files, and for the
/// first needed file that differs from the manifest. Also returns I/O errors.
pub(crate) fn verify(
    directory: &Path,
    files: &[String],
    needed: impl Fn(&str) -> bool,
) -> Result<Vec<Error>, Error> {
    let manifest = read(directory)?;
    if !manifest.files.keys().eq(files) {
        let path = directory.join(MANIFEST);
        return Err(problem(
            &path,
            "does not list exactly the files of a checkpoint",
        ));
    }
    let mut damaged = Vec::new();
    for (name, entry) in &manifest.files {
        // The name is one of `files`, so the path stays in the directory.
        match (entry.verify(&directory.join(name)), needed(name)) {
            (Ok(()), _) => {}
            (Err(error), true) => return Err(error),
            (Err(error), false) => damaged.push(error),
        }
    }
    Ok(damaged)
}

impl Entry {
    /// Checks that `path` is a regular file with this length and checksum.
    fn verify(&self, path: &Path) -> Result<(), Error> {
        let Some(metadata) = look(path)? else {
            return Err(problem(path, "is missing"));
        };
        if !metadata.is_file() {
            return Err(problem(path, "is not a regular file"));
        }
        if metadata.len() != self.bytes {
            let lengths = format!(
                "has {} instead of {}",
                counted(metadata.len(), "byte"),
                self.bytes
            );
            return Err(problem(path, &lengths));
        }
        let (bytes, blake3) = digest(path).map_err(Error::io("read", path))?;
        match (Entry { bytes, blake3 }) == *self {
            true => Ok(()),
            false => Err(problem(path, "is damaged: its checksum is wrong")),
        }
    }
}

/// Returns the BLAKE3 hash of `file` according to the manifest in `directory`.
///
/// # Errors
///
/// Returns [`Error::Checkpoint`] if the manifest is missing or damaged, or does not list `file`. Also returns I/O
/// errors.
pub fn blake3_of(directory: &Path, file: &str) -> Result<String, Error> {
    let entry = read(directory)?.files.remove(file);
    let missing = || problem(&directory.join(MANIFEST), &format!("does not list {file}"));
    Ok(entry.ok_or_else(missing)?.blake3)
}

fn read(directory: &Path) -> Result<Manifest, Error> {
    let path = directory.join(MANIFEST);
    let Some(metadata) = look(&path)? else {
        return Err(problem(directory, "is not complete: it has no manifest"));
    };
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return Err(problem(&path, "is not a manifest"));
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

/// Reads the metadata of `path`, without following links; `None` if nothing is there.
fn look(path: &Path) -> Result<Option<fs::Metadata>, Error> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

/// Computes the length and BLAKE3 hash of a file.
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
