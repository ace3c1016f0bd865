//! Token ids in a file that is memory-mapped.
//!
//! A shard is a header of 96 bytes and the tokens, all little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `RZTOKENS` |
//! | 8..12 | version, 2 |
//! | 12..16 | bytes per token: 2 up to 65,536 token ids, 4 above |
//! | 16..24 | number of token ids |
//! | 24..32 | number of tokens |
//! | 32..64 | BLAKE3 of the tokenizer's fingerprint |
//! | 64..96 | BLAKE3 of all other bytes |

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use crate::{DataError, files};

const MAGIC: [u8; 8] = *b"RZTOKENS";
const VERSION: u32 = 2;
const HEADER: usize = 96;
/// Tokens that are converted at once.
const BLOCK: usize = 1 << 15;

/// Writes `tokens` to the shard `path`, all at once: a reader sees the old file or the new one.
/// `tokenizer_fingerprint` is the [fingerprint](crate::Tokenizer::fingerprint) of what made them.
///
/// # Errors
///
/// [`DataError::UnknownId`] if a token is not below `vocab_size`; failures to write.
pub fn write_shard(
    path: &Path,
    tokens: &[u32],
    vocab_size: usize,
    tokenizer_fingerprint: &str,
) -> Result<(), DataError> {
    if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab_size) {
        return Err(DataError::UnknownId { id, vocab_size });
    }
    let width = Width::of(vocab_size as u64);
    let mut header = Vec::with_capacity(HEADER);
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend((width as u32).to_le_bytes());
    header.extend((vocab_size as u64).to_le_bytes());
    header.extend((tokens.len() as u64).to_le_bytes());
    header.extend(blake3::hash(tokenizer_fingerprint.as_bytes()).as_bytes());
    let mut checksum = blake3::Hasher::new();
    checksum.update(&header);
    for block in tokens.chunks(BLOCK) {
        checksum.update(&width.to_bytes(block));
    }
    header.extend(checksum.finalize().as_bytes());
    files::write_atomically(path, |file| {
        file.write_all(&header)?;
        tokens
            .chunks(BLOCK)
            .try_for_each(|block| file.write_all(&width.to_bytes(block)))
    })
}

/// Bytes per token.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Width {
    Two = 2,
    Four = 4,
}

impl Width {
    fn of(vocab_size: u64) -> Self {
        if vocab_size <= 1 << 16 {
            Self::Two
        } else {
            Self::Four
        }
    }

    fn to_bytes(self, tokens: &[u32]) -> Vec<u8> {
        match self {
            Self::Two => tokens
                .iter()
                .flat_map(|&t| (t as u16).to_le_bytes())
                .collect(),
            Self::Four => tokens.iter().flat_map(|t| t.to_le_bytes()).collect(),
        }
    }

    fn append_tokens(self, bytes: &[u8], tokens: &mut Vec<u32>) {
        match self {
            Self::Two => {
                let (pairs, _) = bytes.as_chunks();
                tokens.extend(pairs.iter().map(|&b| u32::from(u16::from_le_bytes(b))));
            }
            Self::Four => {
                let (quads, _) = bytes.as_chunks();
                tokens.extend(quads.iter().map(|&b| u32::from_le_bytes(b)));
            }
        }
    }
}

/// Token ids in a memory-mapped file, all checked to be below [`vocab_size`](Self::vocab_size).
#[derive(Debug)]
pub struct Shard {
    map: Mmap,
    width: Width,
    vocab_size: usize,
    len: usize,
}

impl Shard {
    /// Opens the shard `path` and reads it once, to verify its checksum and its ids.
    ///
    /// # Errors
    ///
    /// [`DataError::BadShard`] if the file is not exactly what [`write_shard`] wrote; failures
    /// to read.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let bad = |problem: String| DataError::BadShard {
            path: path.to_path_buf(),
            problem,
        };
        let failed = |e| DataError::io(path, "read", e);
        // Before it is opened, as that would wait for the other end of a pipe.
        files::check_is_file(path)?;
        let file = File::open(path).map_err(failed)?;
        let map = map(&file).map_err(failed)?;
        let header = Header::parse(&map).map_err(&bad)?;
        let shard = Self {
            width: header.width,
            vocab_size: header.vocab_size,
            len: header.len,
            map,
        };
        let mut checksum = blake3::Hasher::new();
        checksum.update(&shard.map[..64]).update(shard.payload());
        if checksum.finalize() != blake3::Hash::from_bytes(header.checksum) {
            return Err(bad(
                "its checksum does not match, the file is damaged".into()
            ));
        }
        shard.check_ids().map_err(bad)?;
        Ok(shard)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All ids are below this.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether the tokenizer with this [fingerprint](crate::Tokenizer::fingerprint) made the
    /// tokens.
    pub fn is_of(&self, tokenizer_fingerprint: &str) -> bool {
        self.map[32..64] == *blake3::hash(tokenizer_fingerprint.as_bytes()).as_bytes()
    }

    /// The tokens in `range`.
    ///
    /// # Panics
    ///
    /// If the range is not within `0..len`, as a slice does.
    pub fn get(&self, range: Range<usize>) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(range.len());
        self.append(range, &mut tokens);
        tokens
    }

    /// Appends the tokens in `range`. Panics as [`get`](Self::get) does.
    pub(crate) fn append(&self, range: Range<usize>, tokens: &mut Vec<u32>) {
        assert!(
            range.end <= self.len,
            "range {range:?} of a shard of {} tokens",
            self.len
        );
        let width = self.width as usize;
        let bytes = &self.payload()[range.start * width..range.end * width];
        self.width.append_tokens(bytes, tokens);
    }

    fn payload(&self) -> &[u8] {
        &self.map[HEADER..]
    }

    fn check_ids(&self) -> Result<(), String> {
        let mut tokens = Vec::with_capacity(BLOCK);
        for block in self.payload().chunks(BLOCK * self.width as usize) {
            tokens.clear();
            self.width.append_tokens(block, &mut tokens);
            if let Some(id) = tokens.iter().find(|&&id| id as usize >= self.vocab_size) {
                return Err(format!(
                    "token id {id} in a vocabulary of {}",
                    self.vocab_size
                ));
            }
        }
        Ok(())
    }
}

struct Header {
    width: Width,
    vocab_size: usize,
    len: usize,
    checksum: [u8; 32],
}

impl Header {
    /// The header of the shard `file`, whose size it must declare.
    fn parse(file: &[u8]) -> Result<Self, String> {
        let too_short = || format!("{} bytes are less than its header", file.len());
        let (magic, rest) = file.split_first_chunk::<8>().ok_or_else(too_short)?;
        let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(too_short)?;
        let (width, rest) = rest.split_first_chunk::<4>().ok_or_else(too_short)?;
        let (vocab_size, rest) = rest.split_first_chunk::<8>().ok_or_else(too_short)?;
        let (len, rest) = rest.split_first_chunk::<8>().ok_or_else(too_short)?;
        let (_, rest) = rest.split_first_chunk::<32>().ok_or_else(too_short)?;
        let (checksum, payload) = rest.split_first_chunk::<32>().ok_or_else(too_short)?;

        if *magic != MAGIC {
            return Err("it does not begin with RZTOKENS".into());
        }
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(format!(
                "version {version}, this program reads version {VERSION}"
            ));
        }
        let vocab_size = u64::from_le_bytes(*vocab_size);
        let (declared, width) = (u32::from_le_bytes(*width), Width::of(vocab_size));
        if declared != width as u32 || vocab_size > 1 << 32 {
            return Err(format!(
                "{declared} bytes per token for a vocabulary of {vocab_size}"
            ));
        }
        let len = u64::from_le_bytes(*len);
        if len.checked_mul(width as u64) != Some(payload.len() as u64) {
            let found = payload.len() / width as usize;
            return Err(format!("it declares {len} tokens and has {found}"));
        }
        let too_large = |_| format!("a vocabulary of {vocab_size} is too large");
        Ok(Self {
            width,
            vocab_size: usize::try_from(vocab_size).map_err(too_large)?,
            // No more than the file has.
            len: len as usize,
            checksum: *checksum,
        })
    }
}

#[allow(unsafe_code)]
fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is only read, and as plain bytes, any of which are valid. Shards are
    // replaced by renaming and never written to in place, so that the file stays as it is.
    unsafe { Mmap::map(file) }
}

#[cfg(test)]
mod tests;
