//! Token ids in a memory-mapped file.
//!
//! A shard is a header of 96 bytes followed by the tokens, all little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `RZTOKENS` |
//! | 8..12 | version, 2 |
//! | 12..16 | bytes per token: 2 up to 65,536 token ids, 4 above |
//! | 16..24 | vocabulary size |
//! | 24..32 | number of tokens |
//! | 32..64 | BLAKE3 of the tokenizer's fingerprint |
//! | 64..96 | BLAKE3 of all other bytes |

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;
use residual_zoo_system::counted;

use crate::{DataError, files};

const MAGIC: [u8; 8] = *b"RZTOKENS";
const VERSION: u32 = 2;
const HEADER: usize = 96;
/// Number of tokens converted at once.
const BLOCK: usize = 1 << 15;

/// Writes `tokens` to the shard `path` atomically: a reader sees the old file or the new one. `tokenizer_fingerprint`
/// is the [fingerprint](crate::Tokenizer::fingerprint) of the tokens' tokenizer.
///
/// # Errors
///
/// Returns [`DataError::UnknownId`] if a token is not below `vocab_size`, and I/O errors.
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

/// Token ids in a memory-mapped file, all verified to be below [`vocab_size`](Self::vocab_size).
#[derive(Debug)]
pub struct Shard {
    map: Mmap,
    width: Width,
    vocab_size: usize,
    len: usize,
}

impl Shard {
    /// Returns the verified checksum from the header.
    pub(crate) fn checksum(&self) -> &[u8] {
        &self.map[HEADER - 32..HEADER]
    }

    /// Opens the shard `path` and reads it once to verify its checksum and ids.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::BadShard`] if the file is not exactly as [`write_shard`] wrote it, and the errors of
    /// [`check_is_file`](crate::check_is_file).
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let bad = |problem: String| DataError::BadShard {
            path: path.to_path_buf(),
            problem,
        };
        let failed = |e| DataError::io(path, "read", e);
        // Checks before opening, because opening a pipe would wait for its other end.
        files::check_is_file(path)?;
        let mut file = File::open(path).map_err(failed)?;
        let map = map(&file).map_err(failed)?;
        let header = Header::parse(&map).map_err(&bad)?;
        let shard = Self {
            width: header.width,
            vocab_size: header.vocab_size,
            len: header.len,
            map,
        };
        let (checksum, ids) = shard.verify(&mut file).map_err(failed)?;
        if checksum != header.checksum {
            return Err(bad("its checksum does not match its content".into()));
        }
        ids.map_err(bad)?;
        Ok(shard)
    }

    /// Returns the checksum of the file, and an error if an id is outside the vocabulary. Reads the file instead of the
    /// memory map, because the pages of a map would count as memory of this process.
    fn verify(&self, file: &mut File) -> io::Result<([u8; 32], Result<(), String>)> {
        let mut checksum = blake3::Hasher::new();
        let mut header = [0; HEADER];
        file.read_exact(&mut header)?;
        checksum.update(&header[..64]);
        let (mut bytes, mut tokens, mut ids) = (Vec::new(), Vec::new(), Ok(()));
        let block = (BLOCK * self.width as usize) as u64;
        loop {
            bytes.clear();
            tokens.clear();
            if file.take(block).read_to_end(&mut bytes)? == 0 {
                return Ok((*checksum.finalize().as_bytes(), ids));
            }
            checksum.update(&bytes);
            self.width.append_tokens(&bytes, &mut tokens);
            let unknown = tokens.iter().find(|&&id| id as usize >= self.vocab_size);
            if let (Some(id), Ok(())) = (unknown, &ids) {
                ids = Err(format!(
                    "token id {id} is outside its vocabulary of {}",
                    counted(self.vocab_size, "id")
                ));
            }
        }
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of token ids in the vocabulary. All ids are below this number.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether the tokenizer with this [fingerprint](crate::Tokenizer::fingerprint) made the
    /// tokens.
    pub fn is_of(&self, tokenizer_fingerprint: &str) -> bool {
        self.map[32..64] == *blake3::hash(tokenizer_fingerprint.as_bytes()).as_bytes()
    }

    /// Returns the tokens in `range`.
    ///
    /// # Panics
    ///
    /// Panics if the range is not within `0..len`.
    pub fn get(&self, range: Range<usize>) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(range.len());
        self.append(range, &mut tokens);
        tokens
    }

    /// Appends the tokens in `range` to `tokens`. Panics like [`get`](Self::get).
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
}

struct Header {
    width: Width,
    vocab_size: usize,
    len: usize,
    checksum: [u8; 32],
}

impl Header {
    /// Parses the header of the shard `file`. The declared size must be the size of the file.
    fn parse(file: &[u8]) -> Result<Self, String> {
        let too_short = || {
            format!(
                "it has {}, fewer than its header of {HEADER}",
                counted(file.len(), "byte")
            )
        };
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
                "it has version {version}, but this program reads version {VERSION}"
            ));
        }
        let vocab_size = u64::from_le_bytes(*vocab_size);
        let (declared, width) = (u32::from_le_bytes(*width), Width::of(vocab_size));
        if declared != width as u32 || vocab_size > 1 << 32 {
            return Err(format!(
                "it declares {} per token for a vocabulary of {}",
                counted(declared, "byte"),
                counted(vocab_size, "id")
            ));
        }
        let len = u64::from_le_bytes(*len);
        if len.checked_mul(width as u64) != Some(payload.len() as u64) {
            let found = payload.len() / width as usize;
            return Err(format!(
                "it declares {} but has {found}",
                counted(len, "token")
            ));
        }
        let too_large = |_| format!("its vocabulary of {vocab_size} ids is too large");
        Ok(Self {
            width,
            vocab_size: usize::try_from(vocab_size).map_err(too_large)?,
            // The number is at most the length of the file, so it fits.
            len: len as usize,
            checksum: *checksum,
        })
    }
}

#[allow(unsafe_code)]
fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is only read, as plain bytes, and every byte is valid. Shards are replaced by
    // renaming and never written in place, so the file does not change under the map.
    unsafe { Mmap::map(file) }
}

#[cfg(test)]
mod tests;
