//! Random numbers that are a function of where they are used.

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
