//! Token ids in memory or on disk.

use std::fmt;
use std::sync::Arc;

use crate::{DataError, Shard};

/// A sequence of token ids in memory or in a [`Shard`]. Cheap to clone.
#[derive(Clone)]
pub struct Tokens(Store);

#[derive(Clone)]
enum Store {
    Memory(Arc<[u32]>),
    Shard(Arc<Shard>),
}

impl Tokens {
    /// Tokens in memory.
    pub fn from_vec(tokens: Vec<u32>) -> Self {
        Self(Store::Memory(tokens.into()))
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        match &self.0 {
            Store::Memory(tokens) => tokens.len(),
            Store::Shard(shard) => shard.len(),
        }
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that every token is below `vocab_size`.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownId`] for the first one that is not.
    pub fn check(&self, vocab_size: usize) -> Result<(), DataError> {
        let unknown = |id: &u32| *id as usize >= vocab_size;
        let found = match &self.0 {
            Store::Memory(tokens) => tokens.iter().copied().find(unknown),
            // Its tokens were verified when it was opened.
            Store::Shard(shard) if shard.vocab_size() <= vocab_size => None,
            Store::Shard(shard) => (0..shard.len())
                .flat_map(|i| shard.get(i..i + 1))
                .find(unknown),
        };
        found.map_or(Ok(()), |id| Err(DataError::UnknownId { id, vocab_size }))
    }

    /// BLAKE3 of all tokens as 32-bit little-endian integers, as 64 hexadecimal digits.
    pub fn blake3(&self) -> String {
        const BLOCK: usize = 1 << 16;
        let mut hasher = blake3::Hasher::new();
        let mut tokens = Vec::new();
        for start in (0..self.len()).step_by(BLOCK) {
            tokens.clear();
            self.read(start, BLOCK.min(self.len() - start), &mut tokens);
            let bytes: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
            hasher.update(&bytes);
        }
        hasher.finalize().to_string()
    }

    /// Appends `len` tokens, starting at token `start`, to `out`.
    ///
    /// # Panics
    ///
    /// If there are not enough tokens.
    pub fn read(&self, start: usize, len: usize, out: &mut Vec<u32>) {
        let range = start..start.saturating_add(len);
        match &self.0 {
            Store::Memory(tokens) => out.extend_from_slice(&tokens[range]),
            Store::Shard(shard) => shard.append(range, out),
        }
    }
}

impl From<Shard> for Tokens {
    fn from(shard: Shard) -> Self {
        Self(Store::Shard(Arc::new(shard)))
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.0 {
            Store::Memory(_) => "memory",
            Store::Shard(_) => "shard",
        };
        write!(f, "Tokens({} in {place})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_shard_read_alike() {
        let ids: Vec<u32> = (0..500).map(|i| i * i % 300).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        crate::write_shard(&path, &ids, 300, "").unwrap();
        let shard = Tokens::from(Shard::open(&path).unwrap());
        let memory = Tokens::from_vec(ids.clone());
        for tokens in [shard, memory] {
            assert_eq!(tokens.len(), 500);
            let mut out = vec![7];
            tokens.read(490, 10, &mut out);
            assert_eq!(out[1..], ids[490..]);
            assert_eq!(out[0], 7);
            assert!(tokens.check(300).is_ok());
            let unknown = tokens.check(99).unwrap_err();
            assert!(matches!(unknown, DataError::UnknownId { id: 100, .. }));
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            assert_eq!(tokens.blake3(), blake3::hash(&bytes).to_string());
        }
    }

    #[test]
    #[should_panic]
    fn reading_past_the_end_panics() {
        Tokens::from_vec(vec![1, 2, 3]).read(2, 2, &mut Vec::new());
    }
}
