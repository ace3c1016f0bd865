//! Random numbers that depend only on the seed, the purpose and the position in a run.

/// Random numbers for one purpose at one position in a run, the same on every machine.
pub(crate) struct RandomNumbers(blake3::OutputReader);

impl RandomNumbers {
    /// Returns the numbers of `purpose` for micro-batch `micro` of step `step`.
    pub fn new(purpose: &str, seed: u64, step: u64, micro: u64) -> Self {
        Self::of(purpose, &[seed, step, micro])
    }

    /// Returns the numbers of `purpose` for the example with index `i` in micro-batch `micro` of step `step`.
    pub fn of_example(purpose: &str, (seed, step, micro): (u64, u64, u64), i: u64) -> Self {
        Self::of(purpose, &[seed, step, micro, i])
    }

    fn of(purpose: &str, parts: &[u64]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        for part in parts {
            hasher.update(&part.to_le_bytes());
        }
        Self(hasher.finalize_xof())
    }

    /// Draws the next number, uniform in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1u64 << 53) as f64
    }

    // This module computes the distributions itself, because a resumed run needs the same numbers, and a new version of
    // a library may draw other numbers.

    /// Draws the next number, normal with mean 0 and variance 1 (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Draws the next number from Beta(α, α) (Jöhnk, 1964). The method takes Γ(2α + 1) / Γ(α + 1)² tries on average: 2
    /// for α = 1 and 70 for α = 4.
    pub fn beta(&mut self, alpha: f64) -> f64 {
        loop {
            let [x, y] = [(); 2].map(|()| (1.0 - self.unit()).powf(1.0 / alpha));
            if x + y <= 1.0 && x + y > 0.0 {
                return x / (x + y);
            }
        }
    }

    /// Draws the next number, uniform in `0..end`.
    pub fn below(&mut self, end: usize) -> usize {
        let mut number = [0; 8];
        self.0.fill(&mut number);
        // Scales the number instead of taking it modulo `end`. Each probability differs from 1 / end by less than 2⁻⁶⁴.
        let scaled = u128::from(u64::from_le_bytes(number)) * end as u128;
        (scaled >> 64) as usize
    }
}

/// Derives an independent seed for each purpose and step, for random generators that take a single number as their
/// seed, such as a backend's generator. Applies the output function of SplitMix64 (Steele et al., "Fast splittable
/// pseudorandom number generators", 2014) to the parts one after the other.
///
/// The first part should be a constant, because seed 1 with part 2 gives the same number as seed 2 with part 1.
pub fn derive_seed(seed: u64, parts: &[u64]) -> u64 {
    parts.iter().fold(seed, |state, part| {
        let z = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
