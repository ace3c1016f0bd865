//! A synthetic language whose entropy rate is known exactly.
//!
//! A sentence says what someone does somewhere, as in `downtown some quiet drivers call one busy tailor .`. Its first
//! word sets the topic, and the determiner may set the number. Noun and verb agree with both, across up to two
//! adjectives. The next word therefore depends on words several positions back, which a bigram model cannot see.
//!
//! Every prefix determines the state of the grammar. The language is therefore a *unifilar* source: its entropy rate is
//! the entropy of the next word, averaged over the states (Shannon, "A mathematical theory of communication", 1948,
//! section 7).

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

mod grammar;

pub use grammar::vocabulary;

use grammar::State;

/// The size and seed of a sample of the synthetic language.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SyntheticConfig {
    /// Number of tokens for training and validation together.
    pub tokens: usize,
    /// Seed of the sample.
    pub seed: u64,
    /// Number of token ids; at least 56, the number of words. Ids without a word never occur, but a model has weights
    /// for them. A model can thus be planned and timed with a vocabulary of realistic size. `None` means one id for
    /// each word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
}

impl Default for SyntheticConfig {
    fn default() -> Self {
        Self {
            tokens: 1_000_000,
            seed: 1,
            vocab_size: None,
        }
    }
}

impl SyntheticConfig {
    /// Returns the number of token ids.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size.unwrap_or_else(|| vocabulary().len())
    }
}

/// Maximum number of tokens. They are held in memory.
pub const MOST_TOKENS: usize = 1 << 30;

/// The exact lowest possible losses of three kinds of model, in nats per token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entropy {
    /// For a model that sees all earlier tokens: the entropy rate of the source.
    pub rate: f64,
    /// For a model that sees only the previous token.
    pub bigram: f64,
    /// For a model that sees no earlier token.
    pub unigram: f64,
}

/// Draws `config.tokens` tokens, sentence after sentence.
pub fn sample(config: &SyntheticConfig) -> Vec<u32> {
    let ids: BTreeMap<String, u32> = vocabulary().into_iter().zip(0..).collect();
    let mut rng = StdRng::seed_from_u64(config.seed);
    let mut state = State::Opening;
    let mut tokens = Vec::with_capacity(config.tokens);
    while tokens.len() < config.tokens {
        let next = state.next();
        let mut rest: f64 = rng.random();
        let chosen = next.iter().find(|(_, p, _)| {
            rest -= p;
            rest < 0.0
        });
        // Because of rounding, the probabilities may add up to slightly less than 1.
        if let Some(&(word, _, after)) = chosen.or(next.last()) {
            tokens.push(ids[word]);
            state = after;
        }
    }
    tokens
}

/// Computes the exact entropies of the language.
///
/// Every sentence starts in the opening state and has at most eleven words. The expected number of visits to each state
/// in one sentence is therefore a finite sum. The share of each state in the visits is its stationary probability.
pub fn entropy() -> Entropy {
    let mut visits: BTreeMap<State, f64> = BTreeMap::new();
    // The expected number of times per sentence that each word leads into each state.
    let mut arrivals: BTreeMap<&str, BTreeMap<State, f64>> = BTreeMap::new();
    let mut front = BTreeMap::from([(State::Opening, 1.0)]);
    while !front.is_empty() {
        let mut reached = BTreeMap::new();
        for (state, mass) in front {
            *visits.entry(state).or_default() += mass;
            for (word, p, after) in state.next() {
                *arrivals.entry(word).or_default().entry(after).or_default() += mass * p;
                if after != State::Opening {
                    *reached.entry(after).or_default() += mass * p;
                }
            }
        }
        front = reached;
    }
    let length: f64 = visits.values().sum();
    let mix = |states: &BTreeMap<State, f64>| next_word_entropy(states) / length;
    Entropy {
        rate: visits
            .iter()
            .map(|(state, n)| mix(&BTreeMap::from([(*state, *n)])))
            .sum(),
        bigram: arrivals.values().map(mix).sum(),
        unigram: mix(&visits),
    }
}

/// Returns the entropy of the next word given only the mass of each state, times the total mass.
fn next_word_entropy(states: &BTreeMap<State, f64>) -> f64 {
    let total: f64 = states.values().sum();
    let mut words: BTreeMap<&str, f64> = BTreeMap::new();
    for (state, mass) in states {
        for (word, p, _) in state.next() {
            *words.entry(word).or_default() += mass * p;
        }
    }
    words.values().map(|mass| -mass * (mass / total).ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn language(tokens: usize) -> Vec<u32> {
        sample(&SyntheticConfig {
            tokens,
            seed: 5,
            vocab_size: None,
        })
    }

    #[test]
    fn a_bigram_model_stays_a_quarter_above_the_rate() {
        let entropy = entropy();
        assert!(entropy.bigram > 1.25 * entropy.rate, "{entropy:?}");
        assert!(entropy.unigram > entropy.bigram, "{entropy:?}");
    }

    #[test]
    fn every_state_gives_a_distribution_over_distinct_words() {
        let mut seen = vec![State::Opening];
        let mut at = 0;
        while at < seen.len() {
            let next = seen[at].next();
            let total: f64 = next.iter().map(|(_, p, _)| p).sum();
            assert!(
                (total - 1.0).abs() < 1e-12,
                "{:?} sums to {total}",
                seen[at]
            );
            let words: std::collections::BTreeSet<_> = next.iter().map(|(w, ..)| w).collect();
            assert_eq!(
                words.len(),
                next.len(),
                "a repeated word would hide the state"
            );
            for (.., after) in next {
                if !seen.contains(&after) {
                    seen.push(after);
                }
            }
            at += 1;
        }
    }

    #[test]
    fn words_are_distinct() {
        let words = vocabulary();
        assert!(words.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn the_rate_is_the_mean_surprise_of_a_long_sample() {
        let words = vocabulary();
        let tokens = language(400_000);
        let mut state = State::Opening;
        let mut surprise = Vec::new();
        for token in &tokens {
            let next = state.next();
            let (_, p, after) = next
                .iter()
                .find(|(word, ..)| *word == words[*token as usize])
                .unwrap();
            surprise.push(-p.ln());
            state = *after;
        }
        // Surprisals within a sentence are correlated, so the error is estimated from blocks.
        let blocks: Vec<f64> = surprise
            .chunks(1000)
            .map(|c| c.iter().sum::<f64>() / c.len() as f64)
            .collect();
        let n = blocks.len() as f64;
        let mean = blocks.iter().sum::<f64>() / n;
        let variance = blocks.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let error = (variance / n).sqrt();
        let rate = entropy().rate;
        assert!(
            (mean - rate).abs() < 4.0 * error,
            "sample {mean} ± {error}, exactly {rate}"
        );
    }

    #[test]
    fn the_bigram_entropy_is_the_loss_of_a_fitted_bigram_model() {
        let tokens = language(400_000);
        let v = vocabulary().len();
        let mut pairs = vec![0.0_f64; v * v];
        let mut firsts = vec![0.0_f64; v];
        for pair in tokens.windows(2) {
            pairs[pair[0] as usize * v + pair[1] as usize] += 1.0;
            firsts[pair[0] as usize] += 1.0;
        }
        let n: f64 = firsts.iter().sum();
        let loss: f64 = (0..v * v)
            .filter(|i| pairs[*i] > 0.0)
            .map(|i| -pairs[i] / n * (pairs[i] / firsts[i / v]).ln())
            .sum();
        let exact = entropy().bigram;
        assert!(
            (loss / exact - 1.0).abs() < 5e-3,
            "fitted {loss}, exactly {exact}"
        );
    }

    #[test]
    fn the_same_seed_gives_the_same_text() {
        assert_eq!(language(1000), language(1000));
        assert_ne!(
            language(1000),
            sample(&SyntheticConfig {
                tokens: 1000,
                seed: 6,
                ..SyntheticConfig::default()
            })
        );
        assert_eq!(language(1000), language(2000)[..1000]);
    }
}
