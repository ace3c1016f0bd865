//! Helpers for several tests.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Makes a random text of `chars` characters: letters, all kinds of white space, digits, combining marks and others.
pub(crate) fn random_text(seed: u64, chars: usize) -> String {
    let mut rng = StdRng::seed_from_u64(seed);
    let common: Vec<char> = "aebt's .,\n\r\t 0\u{a0}\u{2003}\u{301}é本🦀\u{fffd}"
        .chars()
        .collect();
    (0..chars)
        .map(|_| match rng.random_range(0..10) {
            0 => char::from_u32(rng.random_range(0..0x11_0000)).unwrap_or('x'),
            1..4 => rng.random_range('a'..='e'),
            4..6 => ' ',
            _ => common[rng.random_range(0..common.len())],
        })
        .collect()
}
