//! The copy and selective copy tasks: remember some tokens across noise.
//!
//! The tasks follow Gu and Dao, "Mamba" (2023), section 4.1.1, and Kausik, "Recurrent transformers" (2024), section
//! 6.2. There are 16 token ids: 14 symbols to copy, one noise token, and one recall token, which asks for the next
//! symbol.
//!
//! ```text
//! copy            d a c n . . . . . . . . ? ? ? ?
//! selective copy  . . d . a . . . c . . n ? ? ? ?
//! targets                                 d a c n
//! ```

use serde::{Deserialize, Serialize};

use crate::random::RandomNumbers;
use crate::{Batch, DataError};

/// Number of distinct symbols that can be copied, one letter each.
const LETTERS: u32 = 14;
/// The token id of the noise.
const NOISE: u32 = LETTERS;
/// The token id that asks for the next symbol.
const RECALL: u32 = LETTERS + 1;

/// Maximum number of tokens of each kind in a sequence, far more than a model reads.
const MOST_TOKENS: usize = 1 << 24;

/// A copy task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CopyConfig {
    /// Number of tokens to copy.
    pub tokens: usize,
    /// Number of noise tokens at level 0 of the curriculum.
    pub noise: usize,
    /// Maximum number of noise tokens. The curriculum doubles `noise` up to this number. `None`
    /// means no curriculum.
    pub most_noise: Option<usize>,
    /// Whether the tokens are scattered among the noise, in order, instead of preceding it.
    pub selective: bool,
}

impl Default for CopyConfig {
    fn default() -> Self {
        Self {
            tokens: 16,
            noise: 128,
            most_noise: None,
            selective: false,
        }
    }
}

impl CopyConfig {
    /// Returns the length of a sequence at `level`: the tokens to copy, the noise, and one recall token for each token
    /// to copy.
    pub fn time(&self, level: usize) -> usize {
        self.noise_at(level)
            .saturating_add(self.tokens.saturating_mul(2))
    }

    /// Returns the number of noise tokens at `level` of the curriculum.
    pub fn noise_at(&self, level: usize) -> usize {
        let doubled = u32::try_from(level)
            .ok()
            .and_then(|l| 2usize.checked_pow(l));
        let noise = self.noise.saturating_mul(doubled.unwrap_or(usize::MAX));
        noise.min(self.most_noise.unwrap_or(self.noise))
    }

    /// Returns the last level of the curriculum, which is the first level with the maximum noise.
    pub fn last_level(&self) -> usize {
        let most = self.noise_at(usize::MAX);
        (0..usize::BITS as usize)
            .find(|level| self.noise_at(*level) == most)
            .unwrap_or(0)
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::InvalidConfig`] for the first invalid field.
    pub fn validate(&self) -> Result<(), DataError> {
        let invalid = |field: &str, problem: String| {
            Err(DataError::InvalidConfig {
                field: format!("data.source.{field}"),
                problem,
            })
        };
        let most_noise = self.most_noise.unwrap_or(1);
        for (field, count) in [
            ("tokens", self.tokens),
            ("noise", self.noise),
            ("most_noise", most_noise),
        ] {
            if !(1..=MOST_TOKENS).contains(&count) {
                return invalid(
                    field,
                    format!("is {count}; it must be from 1 to {MOST_TOKENS}"),
                );
            }
        }
        match self.most_noise {
            Some(most) if most < self.noise => invalid(
                "most_noise",
                format!(
                    "is {most}; it must be at least `noise`, which is {}",
                    self.noise
                ),
            ),
            _ => Ok(()),
        }
    }

    /// Draws random sequences at `level`. They depend only on the task and the arguments.
    pub(crate) fn batch(
        &self,
        purpose: &str,
        (seed, step, micro): (u64, u64, u64),
        level: usize,
        batch: usize,
    ) -> Batch {
        let mut draws = RandomNumbers::new(purpose, seed, step, micro);
        let noise = self.noise_at(level);
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..batch {
            let symbols: Vec<u32> = (0..self.tokens)
                .map(|_| draws.below(LETTERS as usize) as u32)
                .collect();
            inputs.extend(match self.selective {
                true => scatter(&symbols, noise, &mut draws),
                false => symbols.iter().copied().chain(vec![NOISE; noise]).collect(),
            });
            inputs.extend(vec![RECALL; self.tokens]);
            targets.extend(symbols);
        }
        Batch {
            inputs,
            images: None,
            targets,
            batch,
            time: self.time(level),
            scored: self.tokens,
        }
    }
}

/// Scatters the symbols, in order, among `noise` noise tokens. Every choice of positions is equally likely.
fn scatter(symbols: &[u32], noise: usize, draws: &mut RandomNumbers) -> Vec<u32> {
    let mut left = symbols.iter();
    let places = symbols.len() + noise;
    (0..places)
        .map(|place| {
            let symbol = draws.below(places - place) < left.len();
            match symbol.then(|| left.next()).flatten() {
                Some(symbol) => *symbol,
                None => NOISE,
            }
        })
        .collect()
}

/// Returns the word of each token, by token id.
pub(crate) fn vocabulary() -> Vec<String> {
    let letters = ('a'..).take(LETTERS as usize).map(String::from);
    letters.chain([".".into(), "?".into()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(selective: bool) -> CopyConfig {
        CopyConfig {
            tokens: 5,
            noise: 20,
            most_noise: Some(70),
            selective,
        }
    }

    #[test]
    fn the_targets_are_the_symbols_in_order() {
        for selective in [false, true] {
            let batch = task(selective).batch("test", (1, 2, 3), 1, 50);
            assert_eq!((batch.time, batch.scored), (50, 5));
            let sequences = batch.inputs.chunks(50).zip(batch.targets.chunks(5));
            for (inputs, targets) in sequences {
                let symbols: Vec<u32> = inputs.iter().copied().filter(|id| *id < LETTERS).collect();
                assert_eq!(symbols, targets);
                assert_eq!(inputs[45..], [RECALL; 5]);
                assert_eq!(inputs.iter().filter(|id| **id == NOISE).count(), 40);
                if !selective {
                    assert_eq!(inputs[..5], *targets);
                }
            }
        }
    }

    #[test]
    fn symbols_and_positions_are_uniform() {
        let batch = task(true).batch("test", (0, 0, 0), 0, 20_000);
        let mut letters = [0.0; LETTERS as usize];
        for id in &batch.targets {
            letters[*id as usize] += 1.0;
        }
        let expected = batch.targets.len() as f64 / f64::from(LETTERS);
        let chi2: f64 = letters
            .iter()
            .map(|n| (n - expected).powi(2) / expected)
            .sum();
        assert!(chi2 < 40.0, "13 degrees of freedom: {chi2}");
        // 5 of 25 positions have a symbol.
        let mut places = [0.0; 25];
        for inputs in batch.inputs.chunks(30) {
            for (place, id) in inputs[..25].iter().enumerate() {
                places[place] += f64::from(u8::from(*id < LETTERS));
            }
        }
        for count in places {
            assert!((count / 4000.0 - 1.0_f64).abs() < 0.08, "{places:?}");
        }
    }

    #[test]
    fn batches_depend_only_on_seed_step_and_micro_batch() {
        let batch = |seed, step, micro| task(true).batch("test", (seed, step, micro), 0, 4);
        assert_eq!(batch(1, 2, 3), batch(1, 2, 3));
        for other in [batch(0, 2, 3), batch(1, 0, 3), batch(1, 2, 0)] {
            assert_ne!(other, batch(1, 2, 3));
        }
        let smaller = task(true).batch("test", (1, 2, 3), 0, 2);
        assert_eq!(smaller.inputs, batch(1, 2, 3).inputs[..60]);
    }

    #[test]
    fn the_noise_doubles_up_to_the_maximum() {
        let noise: Vec<usize> = (0..5).map(|level| task(false).noise_at(level)).collect();
        assert_eq!(noise, [20, 40, 70, 70, 70]);
        assert_eq!(task(false).last_level(), 2);
        assert_eq!(task(false).noise_at(usize::MAX), 70);
        let plain = CopyConfig::default();
        assert_eq!((plain.noise_at(9), plain.last_level()), (128, 0));
        assert_eq!(plain.time(0), 160);
        let paper = CopyConfig {
            most_noise: Some(4096),
            ..plain
        };
        assert_eq!((paper.last_level(), paper.time(5)), (5, 4128));
    }

    #[test]
    fn invalid_settings_are_named() {
        let problem = |config: CopyConfig| config.validate().unwrap_err().to_string();
        let of = |tokens, noise, most_noise| CopyConfig {
            tokens,
            noise,
            most_noise,
            selective: false,
        };
        assert!(problem(of(0, 1, None)).contains("data.source.tokens"));
        assert!(problem(of(1, 0, None)).contains("data.source.noise"));
        for (task, field) in [
            (of(usize::MAX, 1, None), "tokens"),
            (of(1, usize::MAX, None), "noise"),
            (of(1, 1, Some(usize::MAX)), "most_noise"),
        ] {
            let problem = problem(task);
            assert!(
                problem.contains(&format!("data.source.{field}")),
                "{problem}"
            );
            assert!(problem.contains("from 1 to 16777216"), "{problem}");
        }
        assert!(problem(of(1, 9, Some(8))).contains("data.source.most_noise"));
        assert!(of(1, 9, Some(9)).validate().is_ok());
    }
}
