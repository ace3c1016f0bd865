//! Random numbers that are a function of the seed and of where they are used.

/// Random numbers for one purpose at one place in a run, the same on every machine.
pub(crate) struct Draws(blake3::OutputReader);

impl Draws {
    /// The numbers of `purpose` for micro-batch `micro` of step `step`.
    pub fn new(purpose: &str, seed: u64, step: u64, micro: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        for part in [seed, step, micro] {
            hasher.update(&part.to_le_bytes());
        }
        Self(hasher.finalize_xof())
    }

    /// The next number, uniform in `0..end`.
    pub fn below(&mut self, end: usize) -> usize {
        let mut number = [0; 8];
        self.0.fill(&mut number);
        // Scaled instead of taken modulo `end`. Probabilities differ by less than 2⁻⁶⁴ · end.
        let scaled = u128::from(u64::from_le_bytes(number)) * end as u128;
        (scaled >> 64) as usize
    }
}

/// Derives an independent seed for each purpose and step, for generators that take a single number, such
/// as a backend's. Applies the output function of SplitMix64 (Steele et al., "Fast splittable pseudorandom
/// number generators", 2014) to the parts in turn.
///
/// The first part should be a constant: seeds 1 and 2 with the parts 2 and 1 give the same number.
pub fn derive_seed(seed: u64, parts: &[u64]) -> u64 {
    parts.iter().fold(seed, |state, part| {
        let z = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
