//! The token cache: one directory, called an entry, for each tokenized corpus.
//!
//! An entry has `manifest.json`, `tokenizer.json` and shards of tokens: `train-00000.bin`, …, `valid-00000.bin`, …. An
//! incomplete entry is in a directory `.part-KEY`, beside its final directory. If a process is stopped, the next
//! process continues the entry there. On a file system without locks, each process makes the entry in a directory of
//! its own, `.new-PID-…`, which no other process continues.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use residual_zoo_system::Blame as _;
use residual_zoo_system::files::{has_no_locks, is_same};
use serde::{Deserialize, Serialize};

use crate::error::one_line;
use crate::files::TEMPORARY;
use crate::tokenize::Part;
use crate::{DataError, Shard, Tokenizer, Tokens, files, hash, write_shard};

/// Version of the format. It is part of the cache key, so entries of other versions are not found.
pub(crate) const FORMAT: u32 = 5;

const TOKENIZER: &str = "tokenizer.json";
const MANIFEST: &str = "manifest.json";

/// Description of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub format: u32,
    /// Origin of the text, for people who inspect the cache.
    pub source: String,
    pub source_hash: String,
    pub tokenizer_fingerprint: String,
    pub valid_fraction: f64,
    pub train: PartFacts,
    pub valid: PartFacts,
    /// A hash that ties this manifest to its shards; see [`bond`](Self::bond).
    #[serde(default)]
    pub bond: String,
}

/// Description of the training or validation part of an entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PartFacts {
    /// Bytes of text.
    pub bytes: usize,
    /// Number of shards.
    pub shards: usize,
    /// Number of tokens.
    pub tokens: usize,
    /// The hash of the tokens; see [`Tokens::blake3`].
    pub blake3: String,
}

impl Manifest {
    /// Hashes the fields that determine the tokens, and the checksums of all shards. The hash reveals whether files of
    /// two entries were mixed.
    fn bond(&self, checksums: [Vec<u8>; 2]) -> String {
        let fraction = self.valid_fraction.to_le_bytes();
        let parts: [&[u8]; 7] = [
            self.source_hash.as_bytes(),
            self.tokenizer_fingerprint.as_bytes(),
            &fraction,
            self.train.blake3.as_bytes(),
            self.valid.blake3.as_bytes(),
            &checksums[0],
            &checksums[1],
        ];
        hash::of_parts("residual-zoo-data bond of a cache entry", &parts).to_string()
    }

    /// Adds a segment with this many bytes of text to the counts.
    pub fn add(&mut self, part: Part, bytes: usize) {
        let facts = self.part(part);
        facts.bytes += bytes;
        facts.shards += 1;
    }

    fn part(&mut self, part: Part) -> &mut PartFacts {
        match part {
            Part::Train => &mut self.train,
            Part::Valid => &mut self.valid,
        }
    }
}

/// A tokenized corpus, ready for use.
pub(crate) struct Entry {
    pub manifest: Manifest,
    pub tokenizer: Tokenizer,
    pub train: Tokens,
    pub valid: Tokens,
}

/// Returns the file name of a shard.
fn shard_name(part: Part, number: usize) -> String {
    let part = match part {
        Part::Train => "train",
        Part::Valid => "valid",
    };
    format!("{part}-{number:05}.bin")
}

/// Opens the shards of a part, and checks that their tokens come from `tokenizer`.
fn shards(
    dir: &Path,
    part: Part,
    facts: &PartFacts,
    tokenizer: &Tokenizer,
) -> Result<Vec<Shard>, DataError> {
    let fingerprint = tokenizer.fingerprint();
    let open = |number| {
        let path = dir.join(shard_name(part, number));
        let shard = Shard::open(&path)?;
        match shard.is_of(&fingerprint) && shard.vocab_size() == tokenizer.vocab_size() {
            true => Ok(shard),
            false => Err(foreign(path)),
        }
    };
    let shards: Vec<Shard> = (0..facts.shards).map(open).collect::<Result<_, _>>()?;
    match shards.iter().map(Shard::len).sum::<usize>() == facts.tokens {
        true => Ok(shards),
        false => Err(foreign(dir.join(shard_name(part, 0)))),
    }
}

fn foreign(path: PathBuf) -> DataError {
    let problem = "it belongs to another corpus".into();
    DataError::BadShard { path, problem }
}

/// Reads and verifies the entry `dir`, which must have this source and validation fraction.
///
/// `known` is a tokenizer that the caller already has. If the entry stores the same tokenizer, it is not built a second
/// time.
pub(crate) fn load(
    dir: &Path,
    source_hash: &str,
    valid_fraction: f64,
    known: Option<&Tokenizer>,
) -> Result<Entry, DataError> {
    let path = dir.join(MANIFEST);
    let manifest: Manifest = serde_json::from_str(&files::read_utf8(&path)?)
        .map_err(|e| bad(&path, format!("it is not a manifest ({})", one_line(e))))?;
    if (
        manifest.format,
        manifest.source_hash.as_str(),
        manifest.valid_fraction,
    ) != (FORMAT, source_hash, valid_fraction)
    {
        return Err(bad(&path, "it belongs to another corpus"));
    }

    let tokenizer = match known {
        Some(known) if has_tokenizer(dir, known)? => known.clone(),
        _ => read_tokenizer(dir)?,
    };
    if tokenizer.fingerprint() != manifest.tokenizer_fingerprint {
        let path = dir.join(TOKENIZER);
        return Err(bad(&path, "its fingerprint differs from the manifest"));
    }
    let train = shards(dir, Part::Train, &manifest.train, &tokenizer)?;
    let valid = shards(dir, Part::Valid, &manifest.valid, &tokenizer)?;
    let checksums = [&train, &valid].map(|shards| {
        let all = shards.iter().flat_map(|shard| shard.checksum());
        all.copied().collect()
    });
    if manifest.bond(checksums) != manifest.bond {
        return Err(bad(
            &dir.join(MANIFEST),
            "its shards belong to another entry",
        ));
    }
    Ok(Entry {
        train: Tokens::of_shards(train, Some(manifest.train.blake3.clone())),
        valid: Tokens::of_shards(valid, Some(manifest.valid.blake3.clone())),
        manifest,
        tokenizer,
    })
}

fn read_tokenizer(dir: &Path) -> Result<Tokenizer, DataError> {
    let path = dir.join(TOKENIZER);
    Tokenizer::from_long_json(files::read_utf8(&path)?).map_err(|e| match e.is_stop() {
        true => e,
        false => bad(&path, e.to_string()),
    })
}

/// Whether the entry `dir` has this tokenizer.
fn has_tokenizer(dir: &Path, tokenizer: &Tokenizer) -> Result<bool, DataError> {
    let path = dir.join(TOKENIZER);
    files::check_is_file(&path)?;
    let [mut stored, mut known] = [blake3::Hasher::new(), blake3::Hasher::new()];
    let read = File::open(&path).and_then(|file| stored.update_reader(file).map(drop));
    read.map_err(|e| DataError::io(&path, "read", e))?;
    let written = tokenizer.write_json(io::BufWriter::new(&mut known));
    written.map_err(|e| DataError::io(&path, "compare", e))?;
    Ok(known.finalize() == stored.finalize())
}

/// An entry that is being made, segment by segment.
pub(crate) struct Work {
    /// The final directory of the entry.
    entry: PathBuf,
    folder: Folder,
}

enum Folder {
    /// The directory `.part-KEY` and its lock. The directory is kept if this process ends before the entry is complete.
    Kept(PathBuf, File),
    /// A directory that only this process uses, for file systems without locks. It is deleted when this value is
    /// dropped.
    Own(tempfile::TempDir),
}

const LOCK: &str = "lock";

impl Work {
    /// Begins or continues the entry `dir`. Returns `None` if another process is making it, or has just completed it.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::BadCache`] if the working directory, its directory `new` or its lock is a link or a file of
    /// the wrong type. Also returns I/O errors.
    pub fn begin(dir: &Path) -> Result<Option<Self>, DataError> {
        let root = dir.parent().unwrap_or(Path::new("."));
        let failed = |e| DataError::io(root, "write", e);
        fs::create_dir_all(root).map_err(failed)?;
        sweep(root);
        let part = part_of(dir);
        let path = part.join(LOCK);
        for (place, is_directory) in [(&part, true), (&part.join("new"), true), (&path, false)] {
            refuse_another_kind(place, is_directory)?;
        }
        let opened = fs::create_dir_all(part.join("new"))
            .and_then(|()| File::options().create(true).append(true).open(&path));
        let lock = match opened {
            // Another process found the entry complete and deleted this directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let folder = match lock.try_lock() {
            Ok(()) => {
                // The process that held the lock may have deleted the file.
                let same = fs::metadata(&path)
                    .and_then(|there| Ok(is_same(&there, &lock.metadata()?)))
                    .unwrap_or(false);
                if !same {
                    return Ok(None);
                }
                sweep_files(&part.join("new"));
                Folder::Kept(part, lock)
            }
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) if has_no_locks(&error) => {
                let own = tempfile::Builder::new()
                    .prefix(&format!("{NEW}{}-", std::process::id()))
                    .tempdir_in(root)
                    .map_err(failed)?;
                fs::create_dir(own.path().join("new")).map_err(failed)?;
                Folder::Own(own)
            }
            Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
        };
        Ok(Some(Self {
            entry: dir.into(),
            folder,
        }))
    }

    fn folder(&self) -> &Path {
        match &self.folder {
            Folder::Kept(path, _) => path,
            Folder::Own(own) => own.path(),
        }
    }

    fn new_entry(&self) -> PathBuf {
        self.folder().join("new")
    }

    /// Returns the tokenizer that an earlier process stored, if there is one that can be read.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::Stopped`] if the user stops the process.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, DataError> {
        match read_tokenizer(&self.new_entry()) {
            Err(error) if error.is_stop() => Err(error),
            found => Ok(found.ok()),
        }
    }

    /// Stores the tokenizer.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn store_tokenizer(&self, tokenizer: &Tokenizer) -> Result<(), DataError> {
        let path = self.new_entry().join(TOKENIZER);
        files::write_atomically(&path, |file| tokenizer.write_json(file))
    }

    /// Whether an earlier process has stored this shard undamaged, with the tokens of `tokenizer`.
    pub fn has(&self, part: Part, number: usize, tokenizer: &Tokenizer) -> bool {
        let shard = Shard::open(&self.new_entry().join(shard_name(part, number)));
        shard.is_ok_and(|shard| shard.is_of(&tokenizer.fingerprint()))
    }

    /// Stores the tokens of a segment.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn store(
        &self,
        part: Part,
        number: usize,
        tokens: &[u32],
        tokenizer: &Tokenizer,
    ) -> Result<(), DataError> {
        let path = self.new_entry().join(shard_name(part, number));
        write_shard(
            &path,
            tokens,
            tokenizer.vocab_size(),
            &tokenizer.fingerprint(),
        )
    }

    /// Completes the entry and reads it back. `manifest` has the numbers of bytes and shards of both parts. Other
    /// processes see either the complete entry or no entry. A damaged entry is replaced. If another process wrote a
    /// valid entry in the meantime, that entry is used.
    ///
    /// # Errors
    ///
    /// Returns an error for a damaged shard, and I/O errors.
    pub fn finish(self, mut manifest: Manifest, tokenizer: &Tokenizer) -> Result<Entry, DataError> {
        let (new, old) = (self.new_entry(), self.folder().join("old"));
        let failed = |e| DataError::io(&self.entry, "write", e);
        let mut describe = |part| -> Result<Vec<u8>, DataError> {
            let facts = manifest.part(part);
            let (mut checksums, mut hasher) = (Vec::new(), blake3::Hasher::new());
            // Opens one shard at a time, because the pages of a memory map count as memory of this process.
            for number in 0..facts.shards {
                let shard = Shard::open(&new.join(shard_name(part, number)))?;
                checksums.extend(shard.checksum());
                facts.tokens += shard.len();
                Tokens::from(shard).hash_into(&mut hasher);
            }
            facts.blake3 = hasher.finalize().to_string();
            Ok(checksums)
        };
        let checksums = [describe(Part::Train)?, describe(Part::Valid)?];
        manifest.bond = manifest.bond(checksums);
        files::write_atomically(&new.join(MANIFEST), |file| {
            serde_json::to_writer_pretty(&mut *file, &manifest)?;
            file.write_all(b"\n")
        })?;

        let (hash, fraction) = (&manifest.source_hash, manifest.valid_fraction);
        let read = || load(&self.entry, hash, fraction, Some(tokenizer));
        if fs::rename(&new, &self.entry).is_err() {
            // The entry exists: another process wrote it, or it is damaged.
            if let Ok(theirs) = read() {
                self.discard();
                return Ok(theirs);
            }
            fs::remove_dir_all(&old).ok();
            fs::rename(&self.entry, &old).map_err(failed)?;
            fs::rename(&new, &self.entry).map_err(failed)?;
        }
        let entry = read()?;
        self.discard();
        Ok(entry)
    }

    /// Deletes the working directory, including the entry if the entry is incomplete.
    pub fn discard(self) {
        if let Folder::Kept(path, _lock) = &self.folder {
            fs::remove_dir_all(path).ok();
        }
    }
}

/// Returns the directory in which the entry `dir` is made.
fn part_of(dir: &Path) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    dir.with_file_name(format!("{PART}{name}"))
}

/// Deletes the working directory that a killed process left for the entry `dir`, which is complete.
pub(crate) fn clear(dir: &Path) {
    let part = part_of(dir);
    let is_directory = fs::symlink_metadata(&part).is_ok_and(|found| found.is_dir());
    if !is_directory || refuse_another_kind(&part.join(LOCK), false).is_err() {
        return;
    }
    match File::open(part.join(LOCK)) {
        Ok(lock) if lock.try_lock().is_ok() => drop(fs::remove_dir_all(&part)),
        Ok(_) => {}
        // The process was killed before it created the lock.
        Err(_) => drop(fs::remove_dir(part.join("new")).and_then(|()| fs::remove_dir(&part))),
    }
}

/// Refuses a `place` that exists but is of the wrong type. The place must be a directory if `is_directory`, and a
/// regular file otherwise. A link, for example, could lead out of the cache.
fn refuse_another_kind(place: &Path, is_directory: bool) -> Result<(), DataError> {
    let Ok(found) = fs::symlink_metadata(place) else {
        return Ok(());
    };
    match found.is_dir() == is_directory && (is_directory || found.is_file()) {
        true => Ok(()),
        false => Err(bad(place, "it is a link, or a file of another kind")),
    }
}

/// Prefix of the name of an entry's working directory; the entry's key follows.
const PART: &str = ".part-";
/// Prefix of the working directory's name on a file system without locks; the process id and a dash follow.
const NEW: &str = ".new-";
/// Time for which an incomplete entry is kept.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Deletes the incomplete entries of killed processes, unless they may still be continued.
fn sweep(root: &Path) {
    let entries = fs::read_dir(root).into_iter().flatten();
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let process = || -> Option<u32> {
            let rest = name.strip_prefix(NEW)?;
            rest.split_once('-')?.0.parse().ok()
        };
        let is_dead =
            process().is_some_and(|process| !residual_zoo_system::process::exists(process));
        let is_left = is_dead || name.starts_with(PART) && is_forgotten(&entry.path());
        if is_left && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Deletes the files that a killed process was writing.
fn sweep_files(new: &Path) {
    let entries = fs::read_dir(new).into_iter().flatten();
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            fs::remove_file(entry.path()).ok();
        }
    }
}

/// Whether an incomplete entry can be deleted: it is old, and no process is making it.
fn is_forgotten(part: &Path) -> bool {
    let changed = fs::metadata(part.join("new")).and_then(|metadata| metadata.modified());
    let is_old = changed.is_ok_and(|changed| {
        let age = SystemTime::now().duration_since(changed);
        age.is_ok_and(|age| age > KEPT)
    });
    let lock = part.join(LOCK);
    // Opening a pipe would block until its other end is opened.
    let is_file = fs::symlink_metadata(&lock).is_ok_and(|metadata| metadata.is_file());
    is_old && is_file && File::open(lock).is_ok_and(|lock| lock.try_lock().is_ok())
}

fn bad(path: &Path, problem: impl Into<String>) -> DataError {
    DataError::BadCache {
        path: path.to_path_buf(),
        problem: problem.into(),
    }
}
