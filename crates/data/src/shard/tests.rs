use super::*;
use std::path::PathBuf;

fn shard(tokens: &[u32], vocab_size: usize) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.bin");
    write_shard(&path, tokens, vocab_size, "finger").unwrap();
    (dir, path)
}

/// Returns the error for a shard of 1,000 tokens after `change`.
fn problem(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let tokens: Vec<u32> = (0..1000).collect();
    let (_dir, path) = shard(&tokens, 1000);
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    match Shard::open(&path).unwrap_err() {
        DataError::BadShard { problem, path: p } if p == path => problem,
        other => panic!("{other}"),
    }
}

#[test]
fn shards_of_both_widths_round_trip() {
    for (vocab_size, width) in [(1 << 16, 2), ((1 << 16) + 1, 4), (1 << 32, 4)] {
        let id = |i: u64| (i * 1_000_003 % vocab_size as u64) as u32;
        let tokens: Vec<u32> = (0..70_000).map(id).collect();
        let (_dir, path) = shard(&tokens, vocab_size);
        let size = std::fs::metadata(&path).unwrap().len();
        assert_eq!(size, 96 + width * tokens.len() as u64);
        let shard = Shard::open(&path).unwrap();
        assert_eq!(
            (shard.len(), shard.vocab_size()),
            (tokens.len(), vocab_size)
        );
        assert_eq!(shard.get(0..tokens.len()), tokens);
        assert_eq!(shard.get(1..2), tokens[1..2]);
        assert!(shard.is_of("finger") && !shard.is_of("other"));
    }
}

#[test]
fn an_empty_shard_is_a_shard() {
    let (_dir, path) = shard(&[], 0);
    let shard = Shard::open(&path).unwrap();
    assert!(shard.is_empty() && shard.get(0..0).is_empty());
}

#[test]
fn ids_outside_the_vocabulary_are_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let error = write_shard(&dir.path().join("a"), &[0, 5], 5, "").unwrap_err();
    assert!(matches!(
        error,
        DataError::UnknownId {
            id: 5,
            vocab_size: 5
        }
    ));
}

#[test]
fn every_kind_of_damage_is_detected() {
    assert!(problem(|b| b.truncate(50)).contains("50 bytes, fewer than its header"));
    assert!(problem(Vec::clear).contains("0 bytes, fewer than its header"));
    assert!(problem(|b| b[0] = b'X').contains("RZTOKENS"));
    assert!(problem(|b| b[8] = 9).contains("version 9"));
    assert!(problem(|b| b[12] = 3).contains("3 bytes per token"));
    assert!(problem(|b| b[12] = 4).contains("4 bytes per token"));
    assert!(problem(|b| b[22] = 1).contains("bytes per token"));
    assert!(problem(|b| b.truncate(96 + 1999)).contains("has 999"));
    assert!(problem(|b| b.push(0)).contains("declares 1000"));
    assert!(problem(|b| b[500] ^= 1).contains("checksum"));
    assert!(problem(|b| b[16] = 0).contains("checksum"));
    assert!(problem(|b| b[40] ^= 1).contains("checksum"));
    let repaired = |b: &mut Vec<u8>| {
        b[16] = 0;
        let rest = [&b[..64], &b[96..]].concat();
        b[64..96].copy_from_slice(blake3::hash(&rest).as_bytes());
    };
    assert!(problem(repaired).contains("token id 768 is outside its vocabulary of 768 ids"));
}

#[test]
fn a_huge_declared_count_is_refused_before_allocating_memory() {
    for count in [
        u64::MAX,
        u64::MAX / 2 + 1,
        (u64::MAX / 2 + 1) + 1000,
        1 << 40,
    ] {
        let found = problem(|b| b[24..32].copy_from_slice(&count.to_le_bytes()));
        assert!(found.contains(&format!("declares {count}")), "{found}");
    }
}

#[test]
fn a_missing_shard_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Shard::open(&dir.path().join("none")).unwrap_err();
    assert!(matches!(missing, DataError::NotFound { .. }));
    let folder = Shard::open(dir.path()).unwrap_err();
    assert!(matches!(folder, DataError::NotAFile { .. }));
}
