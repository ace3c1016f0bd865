//! Hashes of several parts.

use blake3::{Hash, Hasher};

/// The hash of `parts` for the purpose `domain`. No two lists of parts run into each other.
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
    fn where_parts_end_and_what_they_are_for_matters() {
        let hash = of_parts("a", &[b"xy", b"z"]);
        assert_eq!(hash, of_parts("a", &[b"xy", b"z"]));
        assert_ne!(hash, of_parts("a", &[b"x", b"yz"]));
        assert_ne!(hash, of_parts("b", &[b"xy", b"z"]));
    }
}
