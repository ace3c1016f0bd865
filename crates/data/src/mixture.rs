//! Several texts with weights.

use burn_dataset::Dataset;

use crate::random::RandomNumbers;
use crate::{Batch, DataError, Tokens, Windows, hash};

/// Tokenized texts with the same vocabulary, each with a weight. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Mixture(Vec<(f64, Tokens)>);

impl Mixture {
    /// Makes a mixture of texts with positive weights.
    pub fn new(texts: impl Iterator<Item = (f64, Tokens)>) -> Self {
        Self(texts.collect())
    }

    /// Returns the texts.
    pub fn texts(&self) -> impl Iterator<Item = &Tokens> {
        self.0.iter().map(|(_, tokens)| tokens)
    }

    /// Returns the number of tokens in all texts.
    pub fn len(&self) -> usize {
        self.texts().map(Tokens::len).sum()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the BLAKE3 hash of the weights and the texts, as 64 hexadecimal digits.
    pub fn blake3(&self) -> String {
        let parts = self.0.iter().map(|(weight, tokens)| {
            let weight = weight.to_le_bytes();
            [weight.as_slice(), tokens.blake3().as_bytes()].concat()
        });
        let parts: Vec<Vec<u8>> = parts.collect();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        hash::of_parts("residual-zoo-data mixture v1", &parts).to_string()
    }

    /// Returns the windows of `time` tokens. `what` names the texts in errors.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Windows::new`] for each text.
    pub fn windows(&self, time: usize, what: &str) -> Result<MixedWindows, DataError> {
        let all: f64 = self.0.iter().map(|(weight, _)| weight).sum();
        let texts = self.0.iter().enumerate().map(|(i, (weight, tokens))| {
            let what = format!("{what} of text {} of the mixture", i + 1);
            Ok((weight / all, Windows::new(tokens.clone(), time, &what)?))
        });
        Ok(MixedWindows {
            texts: texts.collect::<Result<_, _>>()?,
            time,
        })
    }
}

/// Windows of one length in several texts, drawn with the texts' weights.
#[derive(Clone, Debug)]
pub struct MixedWindows {
    /// The texts, each with its share of the windows; at least one text. The shares add up to 1.
    texts: Vec<(f64, Windows)>,
    time: usize,
}

impl MixedWindows {
    /// Returns the number of tokens per window.
    pub fn time(&self) -> usize {
        self.time
    }

    /// Returns micro-batch `micro` of step `step`. For each of `batch` windows, draws the text by weight, then the
    /// window uniformly. Otherwise like [`Windows::random_batch`].
    pub fn random_batch(&self, seed: u64, step: u64, micro: u64, batch: usize) -> Batch {
        const UNIT: usize = 1 << 53;
        let mut draws = RandomNumbers::new("residual-zoo-data mixed batch v1", seed, step, micro);
        let places = (0..batch).map(|_| {
            let mut left = draws.below(UNIT) as f64 / UNIT as f64;
            let last = self.texts.len() - 1;
            let text = self.texts[..last].iter().position(|(share, _)| {
                left -= share;
                left < 0.0
            });
            let text = text.unwrap_or(last);
            (text, draws.below(self.texts[text].1.len()))
        });
        self.batch(&places.collect::<Vec<_>>())
    }

    /// Returns `batches` batches of `batch` windows, the same on every call. Each text has its share of the windows, to
    /// within one. The windows of a text are spaced evenly over its tokens. The mean over all windows thus weights the
    /// texts correctly. The windows of a text repeat only if the text has fewer windows than its share. The total never
    /// exceeds the number of windows of all texts. If the texts have too few windows, there are fewer full batches, or
    /// a single smaller batch.
    pub fn even_batches(&self, batches: usize, batch: usize) -> Vec<Batch> {
        let most = self.texts.iter().map(|(_, windows)| windows.len()).sum();
        let mut all = batches.saturating_mul(batch).min(most);
        if all > batch {
            all -= all % batch.max(1);
        }
        let (mut places, mut before) = (Vec::new(), 0.0);
        for (i, (share, windows)) in self.texts.iter().enumerate() {
            let first = (before * all as f64).round() as usize;
            before += share;
            let end = match i + 1 == self.texts.len() {
                true => all,
                false => (before * all as f64).round() as usize,
            };
            let count = end.saturating_sub(first);
            let start = |n: usize| (n as u128 * windows.len() as u128 / count as u128) as usize;
            places.extend((0..count).map(|n| (i, start(n))));
        }
        places
            .chunks(batch.max(1))
            .map(|places| self.batch(places))
            .collect()
    }

    /// Returns a batch of windows. Each of `places` has the index of a text and the index of the window in it.
    fn batch(&self, places: &[(usize, usize)]) -> Batch {
        let time = self.time;
        let mut all = Batch {
            images: None,
            inputs: Vec::with_capacity(places.len() * time),
            targets: Vec::with_capacity(places.len() * time),
            batch: places.len(),
            time,
            scored: time,
        };
        for (text, start) in places {
            let one = self.texts[*text].1.batch(std::iter::once(*start));
            all.inputs.extend(one.inputs);
            all.targets.extend(one.targets);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes texts of 100, 1000 and 50 tokens, whose ids begin at 0, 1000 and 2000.
    fn mixture(weights: [f64; 3]) -> Mixture {
        let texts = [100, 1000, 50].into_iter().enumerate().map(|(i, len)| {
            let first = i as u32 * 1000;
            Tokens::from_vec((first..first + len).collect())
        });
        Mixture::new(weights.into_iter().zip(texts))
    }

    /// Counts the sequences of each text. Checks that every sequence is a window.
    fn counts(batches: &[Batch]) -> [usize; 3] {
        let mut counts = [0; 3];
        for batch in batches {
            assert_eq!(batch.inputs.len(), batch.batch * batch.time);
            let windows = batch
                .inputs
                .chunks(batch.time)
                .zip(batch.targets.chunks(batch.time));
            for (input, target) in windows {
                let expected: Vec<u32> = (input[0]..).take(batch.time).collect();
                assert_eq!(input, expected);
                assert!(
                    target
                        .iter()
                        .zip(input)
                        .all(|(target, input)| *target == input + 1)
                );
                counts[input[0] as usize / 1000] += 1;
            }
        }
        counts
    }

    #[test]
    fn sequences_are_drawn_with_the_weights() {
        let windows = mixture([1.0, 2.0, 7.0]).windows(8, "text").unwrap();
        let batches: Vec<Batch> = (0..1000)
            .map(|step| windows.random_batch(3, step, 0, 10))
            .collect();
        let found = counts(&batches);
        for (count, share) in found.into_iter().zip([0.1, 0.2, 0.7f64]) {
            // Five standard deviations of a binomial distribution.
            let bound = 5.0 * (1e4 * share * (1.0 - share)).sqrt();
            assert!((count as f64 - 1e4 * share).abs() < bound, "{found:?}");
        }
    }

    #[test]
    fn a_batch_depends_on_seed_step_and_micro_batch_alone() {
        let windows = mixture([1.0, 1.0, 1.0]).windows(8, "text").unwrap();
        let batch = windows.random_batch(3, 4, 5, 6);
        assert_eq!(batch, windows.clone().random_batch(3, 4, 5, 6));
        for other in [(2, 4, 5), (3, 5, 5), (3, 4, 4)] {
            assert_ne!(batch, windows.random_batch(other.0, other.1, other.2, 6));
        }
        let larger = windows.random_batch(3, 4, 5, 9);
        assert_eq!(larger.inputs[..batch.inputs.len()], batch.inputs);
    }

    #[test]
    fn validation_has_the_shares_of_the_texts() {
        let windows = mixture([1.0, 2.0, 1.0]).windows(8, "text").unwrap();
        let batches = windows.even_batches(5, 4);
        assert!(batches.iter().all(|batch| batch.batch == 4));
        assert_eq!(counts(&batches), [5, 10, 5]);
        assert_eq!(batches, windows.even_batches(5, 4));
        // The first text has only 92 windows, and the last one 42.
        let batches = windows.even_batches(100, 4);
        assert!(batches.len() == 100 && batches.iter().all(|batch| batch.batch == 4));
        assert_eq!(counts(&batches), [100, 200, 100]);
    }

    #[test]
    fn validation_has_the_weights_whatever_the_lengths_are() {
        // The text of 7 windows gets 0.9 of 20 batches of 8, and the text of 484 windows gets 0.1.
        let texts = [(0.9, 23), (0.1, 500)].map(|(weight, len)| {
            let first = if len == 23 { 0 } else { 1000 };
            (weight, Tokens::from_vec((first..first + len).collect()))
        });
        let mixture = Mixture::new(texts.into_iter());
        let batches = mixture.windows(16, "text").unwrap().even_batches(20, 8);
        assert_eq!(counts(&batches), [144, 16, 0]);
        // Each of the 7 windows occurs equally often, to within one.
        let starts = batches
            .iter()
            .flat_map(|batch| batch.inputs.iter().step_by(16));
        let mut repeated = [0; 7];
        for start in starts.filter(|start| **start < 1000) {
            repeated[*start as usize] += 1;
        }
        assert!(
            repeated.iter().all(|count| [20, 21].contains(count)),
            "{repeated:?}"
        );
        // There are 491 windows.
        let windows = mixture.windows(16, "text").unwrap();
        let all = windows.even_batches(usize::MAX, 8);
        assert_eq!(counts(&all), [439, 49, 0]);
        assert_eq!(counts(&windows.even_batches(1, 1000)), [442, 49, 0]);
        // Weights whose sum is rounded still fill every batch.
        let thirds = mixture.0.iter().map(|(_, tokens)| (0.1, tokens.clone()));
        let thirds = Mixture::new(thirds.chain([(0.1, Tokens::from_vec(vec![2000; 40]))]));
        let windows = thirds.windows(16, "text").unwrap();
        assert!(
            windows
                .even_batches(7, 3)
                .iter()
                .all(|batch| batch.batch == 3)
        );
    }

    #[test]
    fn a_text_that_is_too_short_is_named() {
        let error = mixture([1.0; 3])
            .windows(60, "training text")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("training text of text 3 of the mixture"),
            "{error}"
        );
    }

    #[test]
    fn weights_and_texts_are_the_identity() {
        let same = mixture([1.0; 3]).blake3();
        assert_eq!(same, mixture([1.0; 3]).blake3());
        assert_ne!(same, mixture([1.0, 1.0, 2.0]).blake3());
    }
}
