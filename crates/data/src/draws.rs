//! Random numbers that are a function of where they are used.

/// Numbers for one purpose at one place of a run: the same on any machine, at any time.
pub(crate) struct Draws(blake3::OutputReader);

impl Draws {
    /// The numbers of `purpose` for the `micro`-th batch of step `step`.
    pub fn new(purpose: &str, seed: u64, step: u64, micro: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        for part in [seed, step, micro] {
            hasher.update(&part.to_le_bytes());
        }
        Self(hasher.finalize_xof())
    }

    /// The next number, uniform below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        let mut number = [0; 8];
        self.0.fill(&mut number);
        // Scaled rather than reduced: no number is more likely than another by 2⁻⁶⁴ · end.
        let scaled = u128::from(u64::from_le_bytes(number)) * end as u128;
        (scaled >> 64) as usize
    }
}
