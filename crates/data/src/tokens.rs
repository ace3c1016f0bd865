//! Token ids in memory or on disk.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::{DataError, Shard};

/// A sequence of token ids in memory or in [shards](Shard). Cheap to clone.
#[derive(Clone)]
pub struct Tokens(Store);

#[derive(Clone)]
enum Store {
    Memory(Arc<[u32]>),
    Shards(Arc<Shards>),
}

/// Consecutive shards of the same vocabulary.
struct Shards {
    list: Vec<Shard>,
    /// For each shard, the number of tokens up to its end.
    ends: Vec<usize>,
    /// BLAKE3 of the tokens, if known.
    blake3: Option<String>,
}

impl Shards {
    fn new(list: Vec<Shard>, blake3: Option<String>) -> Self {
        let mut all = 0;
        let ends = list.iter().map(|shard| {
            all += shard.len();
            all
        });
        Self {
            ends: ends.collect(),
            list,
            blake3,
        }
    }

    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Appends the tokens in `range` to `out`.
    fn append(&self, range: Range<usize>, out: &mut Vec<u32>) {
        let all = self.len();
        assert!(range.end <= all, "range {range:?} of {all} tokens");
        let mut start = range.start;
        let mut i = self.ends.partition_point(|end| *end <= start);
        while start < range.end {
            let (shard, end) = (&self.list[i], self.ends[i]);
            let first = end - shard.len();
            let to = range.end.min(end);
            shard.append(start - first..to - first, out);
            (start, i) = (to, i + 1);
        }
    }
}

impl Tokens {
    /// Makes a sequence of tokens in memory.
    pub fn from_vec(tokens: Vec<u32>) -> Self {
        Self(Store::Memory(tokens.into()))
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        match &self.0 {
            Store::Memory(tokens) => tokens.len(),
            Store::Shards(shards) => shards.len(),
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
    /// Returns [`DataError::UnknownId`] for the first token that is `vocab_size` or above.
    pub fn check(&self, vocab_size: usize) -> Result<(), DataError> {
        let unknown = |id: &u32| *id as usize >= vocab_size;
        let found = match &self.0 {
            Store::Memory(tokens) => tokens.iter().copied().find(unknown),
            // A shard's tokens were verified against its own vocabulary when it was opened, so only shards with a
            // larger vocabulary are checked.
            Store::Shards(shards) => shards
                .list
                .iter()
                .filter(|shard| shard.vocab_size() > vocab_size)
                .find_map(|shard| shard.get(0..shard.len()).into_iter().find(unknown)),
        };
        found.map_or(Ok(()), |id| Err(DataError::UnknownId { id, vocab_size }))
    }

    /// Returns the BLAKE3 hash of all tokens, encoded as 32-bit little-endian integers. The hash has 64 hexadecimal
    /// digits.
    pub fn blake3(&self) -> String {
        if let Store::Shards(shards) = &self.0
            && let Some(known) = &shards.blake3
        {
            return known.clone();
        }
        let mut hasher = blake3::Hasher::new();
        self.hash_into(&mut hasher);
        hasher.finalize().to_string()
    }

    /// Adds all tokens to a hash, as [`blake3`](Self::blake3) does.
    pub(crate) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        const BLOCK: usize = 1 << 16;
        let mut tokens = Vec::new();
        for start in (0..self.len()).step_by(BLOCK) {
            tokens.clear();
            self.read(start, BLOCK.min(self.len() - start), &mut tokens);
            let bytes: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
            hasher.update(&bytes);
        }
    }

    /// Appends `len` tokens, starting at token `start`, to `out`.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer than `start + len` tokens.
    pub fn read(&self, start: usize, len: usize, out: &mut Vec<u32>) {
        let range = start..start.saturating_add(len);
        match &self.0 {
            Store::Memory(tokens) => out.extend_from_slice(&tokens[range]),
            Store::Shards(shards) => shards.append(range, out),
        }
    }
}

impl Tokens {
    /// Joins the tokens of consecutive shards. `blake3` is the hash that [`blake3`](Self::blake3) returns for them, if
    /// known.
    pub(crate) fn of_shards(shards: Vec<Shard>, blake3: Option<String>) -> Self {
        Self(Store::Shards(Arc::new(Shards::new(shards, blake3))))
    }
}

impl From<Shard> for Tokens {
    fn from(shard: Shard) -> Self {
        Self::of_shards(vec![shard], None)
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.0 {
            Store::Memory(_) => "memory",
            Store::Shards(_) => "shards",
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
    fn shards_read_as_one() {
        let ids: Vec<u32> = (0..500).map(|i| i * i % 300).collect();
        let dir = tempfile::tempdir().unwrap();
        // Some shards are empty.
        let ends = [0, 0, 100, 101, 350, 350, 500];
        let parts = ends.windows(2).enumerate();
        let shards = parts.map(|(i, ends)| {
            let path = dir.path().join(format!("{i}.bin"));
            crate::write_shard(&path, &ids[ends[0]..ends[1]], 300, "").unwrap();
            Shard::open(&path).unwrap()
        });
        let tokens = Tokens::of_shards(shards.collect(), None);
        assert_eq!(tokens.len(), 500);
        for start in 0..=500 {
            for len in [0, 1, 2, 99, 260, 500 - start] {
                let mut out = Vec::new();
                let len = len.min(500 - start);
                tokens.read(start, len, &mut out);
                assert_eq!(out, ids[start..start + len]);
            }
        }
        let memory = Tokens::from_vec(ids);
        assert_eq!(tokens.blake3(), memory.blake3());
        assert!(tokens.check(300).is_ok() && tokens.check(99).is_err());
        let none = Tokens::of_shards(Vec::new(), None);
        assert!(none.is_empty());
    }

    #[test]
    #[should_panic]
    fn reading_past_the_end_panics() {
        Tokens::from_vec(vec![1, 2, 3]).read(2, 2, &mut Vec::new());
    }
}
