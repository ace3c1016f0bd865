//! Random numbers on the host: the number of loops of a step, and the random state outside training.
//!
//! This module implements the generator and the distributions itself, because a resumed run needs the same numbers with
//! any version of a library.

use std::f64::consts::TAU;

/// The standard deviation of ln λ.
const SIGMA: f64 = 0.5;

/// A random number generator with one seed: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a uniform number above 0 and at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Draws a normal number with mean 0 and variance 1 (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (TAU * self.unit()).cos()
    }

    /// Draws a Poisson number with mean `rate`: the number of arrivals within a time of `rate`.
    fn poisson(&mut self, rate: f64) -> usize {
        let mut time = -self.unit().ln();
        let mut arrivals = 0;
        while time < rate {
            time -= self.unit().ln();
            arrivals += 1;
        }
        arrivals
    }
}

/// Draws Poisson(λ) + 1 with ln λ ~ N(ln mean − 1/8, 1/4), so that the mean of λ is `mean` (Geiping et al. 2025,
/// section 3.3).
pub(crate) fn loops(mean: usize, seed: u64) -> usize {
    let mut numbers = Numbers::new(seed);
    let rate = (mean as f64).ln() - SIGMA * SIGMA / 2.0 + SIGMA * numbers.normal();
    numbers.poisson(rate.exp()) + 1
}

/// Returns the random state of `width` features at a position outside training, from N(0, `std`²). The state depends
/// only on the position, so that passes with a cache have the same state as one pass over the whole sequence.
pub(crate) fn state(position: usize, width: usize, std: f64) -> impl Iterator<Item = f64> {
    // Seeds that differ by a step of the generator would give overlapping sequences, so a first generator mixes the
    // position.
    let mut numbers = Numbers::new(Numbers::new(position as u64).next());
    (0..width).map(move |_| std * numbers.normal())
}
