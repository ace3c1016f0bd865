//! Inputs and targets for training.

use burn_dataset::Dataset;

use crate::random::RandomNumbers;
use crate::{DataError, ImageBatch, Tokens};

/// A stretch of tokens and the token that follows each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The tokens: \[time\].
    pub input: Vec<u32>,
    /// The token that follows each input token: \[time\].
    pub target: Vec<u32>,
}

/// Sequences of equal length, with targets for their last positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The tokens, one sequence after the other: \[batch · time\]. Empty if the batch has images.
    pub inputs: Vec<u32>,
    /// The images, for models that read images. Each image is one position.
    pub images: Option<ImageBatch>,
    /// The targets of the last `scored` positions of each sequence: \[batch · scored\]. The target
    /// of a position in a window is the token that follows it.
    pub targets: Vec<u32>,
    /// Number of sequences.
    pub batch: usize,
    /// Length of a sequence.
    pub time: usize,
    /// Number of last positions with a target in each sequence. In a window, every position has a target.
    pub scored: usize,
}

/// All windows of one length in a sequence of tokens. Window i begins at token i.
#[derive(Clone, Debug)]
pub struct Windows {
    tokens: Tokens,
    time: usize,
}

impl Windows {
    /// Returns the windows of `time` tokens in `tokens`. `what` names the tokens in errors.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::TooShort`] for fewer than `time + 1` tokens, and [`DataError::InvalidConfig`] if `time` is
    /// 0.
    pub fn new(tokens: Tokens, time: usize, what: &str) -> Result<Self, DataError> {
        if time == 0 {
            let problem = "is 0; a window must have at least 1 token".into();
            return Err(DataError::InvalidConfig {
                field: "time".into(),
                problem,
            });
        }
        if tokens.len() <= time {
            return Err(DataError::TooShort {
                what: what.into(),
                tokens: tokens.len(),
                needed: time.saturating_add(1),
            });
        }
        Ok(Self { tokens, time })
    }

    /// Returns the number of tokens per window.
    pub fn time(&self) -> usize {
        self.time
    }

    /// Returns micro-batch `micro` of step `step`: `batch` windows drawn uniformly and independently. Windows may
    /// therefore overlap and repeat.
    ///
    /// The draw depends only on `seed`, `step`, `micro` and the number of windows, and is the same on every machine. A
    /// resumed run therefore sees the same batches as an uninterrupted one, and every past batch can be reproduced. A
    /// larger batch begins with the windows of a smaller one.
    pub fn random_batch(&self, seed: u64, step: u64, micro: u64, batch: usize) -> Batch {
        let mut draws = RandomNumbers::new("residual-zoo-data random batch v1", seed, step, micro);
        let starts = (0..batch).map(|_| draws.below(self.len()));
        self.batch(starts)
    }

    /// Returns `batches` batches of `batch` distinct windows, spaced evenly over the tokens; the same on every call.
    ///
    /// If there are not enough windows, there are fewer batches, all of them full. If there are not
    /// enough for one full batch, there is one smaller batch.
    pub fn even_batches(&self, batches: usize, batch: usize) -> Vec<Batch> {
        let places = even_places(self.len(), batches, batch).into_iter();
        places
            .map(|starts| self.batch(starts.into_iter()))
            .collect()
    }

    /// Returns the windows at `starts`, which are all below `len`.
    pub(crate) fn batch(&self, starts: impl Iterator<Item = usize>) -> Batch {
        let time = self.time;
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        let mut window = Vec::with_capacity(time + 1);
        let mut batch = 0;
        for start in starts {
            window.clear();
            self.tokens.read(start, time + 1, &mut window);
            inputs.extend_from_slice(&window[..time]);
            targets.extend_from_slice(&window[1..]);
            batch += 1;
        }
        Batch {
            images: None,
            inputs,
            targets,
            batch,
            time,
            scored: time,
        }
    }
}

/// Returns `batches` lists of `batch` distinct positions below `len`, spaced evenly. There are fewer positions if `len`
/// is too small (see [`Windows::even_batches`]).
pub(crate) fn even_places(len: usize, batches: usize, batch: usize) -> Vec<Vec<usize>> {
    let mut count = batches.saturating_mul(batch).min(len);
    if count == 0 {
        return Vec::new();
    }
    if count > batch {
        count -= count % batch;
    }
    let place = |i: usize| (i as u128 * len as u128 / count as u128) as usize;
    let firsts = (0..count).step_by(batch);
    let places = firsts.map(|first| (first..count.min(first.saturating_add(batch))).map(place));
    places.map(Iterator::collect).collect()
}

impl Dataset<Window> for Windows {
    fn get(&self, index: usize) -> Option<Window> {
        (index < self.len()).then(|| {
            let Batch {
                inputs, targets, ..
            } = self.batch(std::iter::once(index));
            Window {
                input: inputs,
                target: targets,
            }
        })
    }

    fn len(&self) -> usize {
        self.tokens.len() - self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes windows over 0, 1, 2, …, so a token is its own position.
    fn windows(tokens: u32, time: usize) -> Windows {
        Windows::new(Tokens::from_vec((0..tokens).collect()), time, "test data").unwrap()
    }

    fn starts(batch: &Batch) -> Vec<u32> {
        assert_eq!(batch.inputs.len(), batch.batch * batch.time);
        assert_eq!(batch.targets.len(), batch.inputs.len());
        batch.inputs.iter().step_by(batch.time).copied().collect()
    }

    #[test]
    fn the_target_is_the_input_shifted_by_one() {
        let windows = windows(10, 4);
        assert_eq!(windows.len(), 6);
        let last = windows.get(5).unwrap();
        assert_eq!(
            last,
            Window {
                input: vec![5, 6, 7, 8],
                target: vec![6, 7, 8, 9]
            }
        );
        assert_eq!(windows.get(6), None);
        assert_eq!(windows.get(usize::MAX), None);
        let batch = windows.random_batch(0, 0, 0, 3);
        assert!(
            batch
                .inputs
                .iter()
                .zip(&batch.targets)
                .all(|(i, t)| i + 1 == *t)
        );
    }

    #[test]
    fn data_with_one_token_too_few_are_refused() {
        let new = |tokens, time| Windows::new(Tokens::from_vec(vec![0; tokens]), time, "test data");
        assert_eq!(new(5, 4).unwrap().len(), 1);
        let error = new(4, 4).unwrap_err();
        assert!(matches!(
            error,
            DataError::TooShort {
                tokens: 4,
                needed: 5,
                ..
            }
        ));
        assert!(
            error
                .to_string()
                .starts_with("the test data has 4 tokens, but a window needs 5")
        );
        let one = new(1, 4).unwrap_err().to_string();
        assert!(one.starts_with("the test data has 1 token, but"), "{one}");
        assert!(new(0, usize::MAX).is_err());
        assert!(matches!(
            new(4, 0).unwrap_err(),
            DataError::InvalidConfig { .. }
        ));
    }

    #[test]
    fn random_batches_depend_only_on_seed_step_and_micro_batch() {
        let windows = windows(100_000, 8);
        let batch = windows.random_batch(1, 2, 3, 16);
        assert_eq!((batch.batch, batch.time), (16, 8));
        windows.random_batch(9, 9, 9, 5);
        assert_eq!(windows.clone().random_batch(1, 2, 3, 16), batch);
        assert_eq!(
            starts(&windows.random_batch(1, 2, 3, 4)),
            starts(&batch)[..4]
        );
        for (seed, step, micro) in [(0, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3), (1, 3, 2)] {
            assert_ne!(windows.random_batch(seed, step, micro, 16), batch);
        }
    }

    #[test]
    fn random_batches_of_a_seed_never_change() {
        let batch = windows(1_000_001, 1).random_batch(42, 7, 0, 4);
        assert_eq!(starts(&batch), [920_620, 302_233, 752_673, 374_523]);
    }

    #[test]
    fn random_starts_are_uniform() {
        let windows = windows(104, 4);
        let mut counts = [0.0_f64; 100];
        for step in 0..1000 {
            for start in starts(&windows.random_batch(5, step, 0, 100)) {
                counts[start as usize] += 1.0;
            }
        }
        // 99 degrees of freedom: mean 99, standard deviation 14.
        let chi2: f64 = counts.iter().map(|c| (c - 1000.0).powi(2) / 1000.0).sum();
        assert!((50.0..170.0).contains(&chi2), "{chi2}");
    }

    #[test]
    fn even_batches_are_distinct_evenly_spaced_and_fixed() {
        let windows = windows(1004, 4);
        let batches = windows.even_batches(5, 8);
        assert_eq!(batches.len(), 5);
        let all: Vec<u32> = batches.iter().flat_map(starts).collect();
        assert_eq!(all, (0..40).map(|i| i * 25).collect::<Vec<_>>());
        assert_eq!(windows.even_batches(5, 8), batches);
    }

    #[test]
    fn even_batches_are_fewer_rather_than_repeated() {
        let sizes = |tokens, batches, batch| -> Vec<usize> {
            let even = windows(tokens, 4).even_batches(batches, batch);
            let mut all: Vec<u32> = even.iter().flat_map(starts).collect();
            let drawn = all.len();
            all.dedup();
            assert_eq!(all.len(), drawn);
            even.iter().map(|batch| batch.batch).collect()
        };
        assert_eq!(sizes(14, 5, 4), [4, 4]);
        assert_eq!(sizes(7, 5, 4), [3]);
        assert_eq!(sizes(5, usize::MAX, usize::MAX), [1]);
        assert_eq!(sizes(24, 5, 4), [4; 5]);
        assert!(sizes(24, 0, 4).is_empty() && sizes(24, 4, 0).is_empty());
    }
}
