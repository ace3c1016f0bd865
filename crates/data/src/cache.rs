//! The token cache: one directory for each tokenized corpus.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::one_line;
use crate::{DataError, Shard, Tokenizer, Tokens, files, hash, write_shard};

/// Version of the format. It is part of the cache key, so entries of other versions are not found.
pub(crate) const FORMAT: u32 = 3;

const TRAIN: &str = "train.bin";
const VALID: &str = "valid.bin";
const TOKENIZER: &str = "tokenizer.json";
const MANIFEST: &str = "manifest.json";

/// Describes an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub format: u32,
    /// Where the text came from, for people who inspect the cache.
    pub source: String,
    pub source_hash: String,
    pub tokenizer_fingerprint: String,
    pub valid_fraction: f64,
    pub train_tokens: usize,
    pub valid_tokens: usize,
    pub train_bytes: usize,
    pub valid_bytes: usize,
    /// What ties this manifest to its shards, see [`bond`](Self::bond).
    #[serde(default)]
    pub bond: String,
}

impl Manifest {
    /// A hash of the fields that decide the tokens and of the checksums of both shards, so that files of two
    /// entries do not mix.
    fn bond(&self, shards: [&[u8]; 2]) -> String {
        let [train, valid] = shards;
        hash::of_parts(
            "residual-zoo-data bond of a cache entry",
            &[
                self.source_hash.as_bytes(),
                self.tokenizer_fingerprint.as_bytes(),
                &self.valid_fraction.to_le_bytes(),
                train,
                valid,
            ],
        )
        .to_string()
    }
}

/// A tokenized corpus in memory, not yet stored.
pub(crate) struct Fresh {
    pub manifest: Manifest,
    pub tokenizer: Tokenizer,
    pub train: Vec<u32>,
    pub valid: Vec<u32>,
}

/// A tokenized corpus, ready for use.
pub(crate) struct Entry {
    pub manifest: Manifest,
    pub tokenizer: Tokenizer,
    pub train: Tokens,
    pub valid: Tokens,
}

impl From<Fresh> for Entry {
    fn from(fresh: Fresh) -> Self {
        Self {
            manifest: fresh.manifest,
            tokenizer: fresh.tokenizer,
            train: Tokens::from_vec(fresh.train),
            valid: Tokens::from_vec(fresh.valid),
        }
    }
}

/// Reads and verifies the entry `dir`, which must be of this source and validation fraction.
pub(crate) fn load(dir: &Path, source_hash: &str, valid_fraction: f64) -> Result<Entry, DataError> {
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

    let path = dir.join(TOKENIZER);
    let tokenizer =
        Tokenizer::from_json(&files::read_utf8(&path)?).map_err(|e| bad(&path, e.to_string()))?;
    if tokenizer.fingerprint() != manifest.tokenizer_fingerprint {
        return Err(bad(&path, "its fingerprint differs from the manifest"));
    }

    let shard = |name, tokens| {
        let path = dir.join(name);
        let shard = Shard::open(&path)?;
        let same_tokenizer = shard.is_of(&manifest.tokenizer_fingerprint)
            && shard.vocab_size() == tokenizer.vocab_size();
        if !same_tokenizer || shard.len() != tokens {
            let problem = "it belongs to another corpus".into();
            return Err(DataError::BadShard { path, problem });
        }
        Ok(shard)
    };
    let train = shard(TRAIN, manifest.train_tokens)?;
    let valid = shard(VALID, manifest.valid_tokens)?;
    if manifest.bond([train.checksum(), valid.checksum()]) != manifest.bond {
        return Err(bad(
            &dir.join(MANIFEST),
            "its shards are those of another entry",
        ));
    }
    Ok(Entry {
        manifest,
        tokenizer,
        train: train.into(),
        valid: valid.into(),
    })
}

/// Writes the entry `dir` and reads it back. The entry appears complete or not at all. A damaged
/// entry is replaced. A valid entry that another process wrote in the meantime is used.
pub(crate) fn store(dir: &Path, fresh: &Fresh) -> Result<Entry, DataError> {
    let root = dir.parent().unwrap_or(Path::new("."));
    let failed = |e| DataError::io(root, "write", e);
    fs::create_dir_all(root).map_err(failed)?;
    sweep(root);
    let work = tempfile::Builder::new()
        .prefix(&format!("{NEW}{}-", std::process::id()))
        .tempdir_in(root)
        .map_err(failed)?;
    let (new, old) = (work.path().join("new"), work.path().join("old"));

    fs::create_dir(&new).map_err(failed)?;
    let Fresh {
        manifest,
        tokenizer,
        ..
    } = fresh;
    for (name, tokens) in [(TRAIN, &fresh.train), (VALID, &fresh.valid)] {
        let fingerprint = &manifest.tokenizer_fingerprint;
        write_shard(&new.join(name), tokens, tokenizer.vocab_size(), fingerprint)?;
    }
    let json = tokenizer.to_json();
    files::write_atomically(&new.join(TOKENIZER), |file| file.write_all(json.as_bytes()))?;
    let written = [TRAIN, VALID].map(|name| Shard::open(&new.join(name)));
    let [train, valid] = written;
    let (train, valid) = (train?, valid?);
    let manifest = Manifest {
        bond: manifest.bond([train.checksum(), valid.checksum()]),
        ..manifest.clone()
    };
    files::write_atomically(&new.join(MANIFEST), |file| {
        serde_json::to_writer_pretty(&mut *file, &manifest)?;
        file.write_all(b"\n")
    })?;

    let read = || load(dir, &manifest.source_hash, manifest.valid_fraction);
    if fs::rename(&new, dir).is_err() {
        // `dir` exists: another process wrote it, or it is damaged.
        if let Ok(theirs) = read() {
            return Ok(theirs);
        }
        fs::rename(dir, &old).map_err(failed)?;
        fs::rename(&new, dir).map_err(failed)?;
    }
    read()
}

/// The name of an entry that is being written: this, the process and a dash.
const NEW: &str = ".new-";

/// Deletes what processes that were killed have left of the entries that they wrote.
fn sweep(root: &Path) {
    let entries = fs::read_dir(root).into_iter().flatten();
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let process = || -> Option<u32> {
            let rest = name.to_str()?.strip_prefix(NEW)?;
            rest.split_once('-')?.0.parse().ok()
        };
        let is_dead =
            process().is_some_and(|process| !residual_zoo_system::process::exists(process));
        if is_dead && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

fn bad(path: &Path, problem: impl Into<String>) -> DataError {
    DataError::BadCache {
        path: path.to_path_buf(),
        problem: problem.into(),
    }
}
