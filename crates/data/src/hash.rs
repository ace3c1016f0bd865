//! Hashes of several parts.

use blake3::{Hash, Hasher};

/// Hashes `parts` for the purpose `domain`. Lengths are hashed too, so the boundaries between parts matter.
pub fn of_parts(domain: &str, parts: &[&[u8]]) -> Hash {
    let mut hasher = Hasher::new_derive_key(domain);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_boundaries_and_domain() {
        let hash = of_parts("a", &[b"xy", b"z"]);
        assert_eq!(hash, of_parts("a", &[b"xy", b"z"]));
        assert_ne!(hash, of_parts("a", &[b"x", b"yz"]));
        assert_ne!(hash, of_parts("b", &[b"xy", b"z"]));
    }
}
