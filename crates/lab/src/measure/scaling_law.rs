//! Lemma 1 of the recurrent transformer paper, about the number of unique sequences in a corpus. Computes the exponents
//! of this number from fitted scaling laws, and counts the unique sequences in growing corpora.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use residual_zoo_core::ConfigError;
use residual_zoo_data::{DataConfig, Source, SyntheticConfig};
use residual_zoo_train::Interrupter;

use super::{Quantities, Setting, quantities};
use crate::{Error, PlannedRun};
use residual_zoo_drive::open_corpus;

pub(super) const NAMES: &[&str] = &["least exponent", "largest exponent", "unique sequences"];

pub(super) fn measure<C>(run: &PlannedRun<C>, setting: &Setting) -> Result<Quantities, Error> {
    // In a corpus of D tokens, the number of unique sequences is between Ω[D^(1-2β)] and O[D^(1-β)], where β is the
    // exponent of the power law by which the loss falls with the amount of data.
    if let Some(&beta) = run.values.get("β") {
        return Ok(quantities(NAMES, [1.0 - 2.0 * beta, 1.0 - beta]));
    }
    let (tokens, longest) = (run.size("corpus length")?, run.size("longest")?);
    let corpus = corpus(setting, tokens)?;
    let unique = unique_sequences(&corpus, longest);
    Ok(quantities(&NAMES[2..], [unique as f64]))
}

/// Returns `tokens` tokens of the data. Each seed takes a different piece of a text, or a different draw of the
/// synthetic language.
fn corpus(setting: &Setting, tokens: usize) -> Result<Vec<u32>, Error> {
    let data = match &setting.data.source {
        Source::Synthetic(_) => DataConfig {
            source: Source::Synthetic(SyntheticConfig {
                tokens: tokens * 2,
                seed: setting.seed,
                ..SyntheticConfig::default()
            }),
            valid_fraction: 0.5,
            ..setting.data.clone()
        },
        _ => setting.data.clone(),
    };
    let corpus = open_corpus(&data, &Interrupter::new())?;
    let text = corpus.train.text().filter(|text| text.len() >= tokens);
    let text = text.ok_or_else(|| {
        let problem = format!("is not a text of at least {tokens} tokens; give a longer one");
        ConfigError::new("--data", problem)
    })?;
    let mut read = Vec::new();
    let start = StdRng::seed_from_u64(setting.seed).random_range(0..=text.len() - tokens);
    text.read(start, tokens, &mut read);
    Ok(read)
}

/// Returns the number of different sequences of at most `longest` tokens in `corpus`.
///
/// Each suffix of the corpus has min(longest, its length) prefixes of at most `longest` tokens. In sorted order, the
/// prefixes that a suffix shares with its predecessor are not new.
fn unique_sequences(corpus: &[u32], longest: usize) -> usize {
    let suffixes = sorted_suffixes(corpus);
    let shared = shared_with_the_one_before(corpus, &suffixes);
    let new =
        |(start, shared): (&usize, usize)| longest.min(corpus.len() - start) - longest.min(shared);
    suffixes.iter().zip(shared).map(new).sum()
}

/// Returns the start indices of all suffixes of `corpus`, sorted by suffix.
fn sorted_suffixes(corpus: &[u32]) -> Vec<usize> {
    // As big-endian bytes, suffixes sort like the tokens.
    let bytes: Vec<u8> = corpus.iter().flat_map(|id| id.to_be_bytes()).collect();
    let (_, sorted) = divsufsort::sort(&bytes).into_parts();
    let starts = sorted.into_iter().map(|start| start as usize);
    let of_tokens = starts.filter(|start| start.is_multiple_of(4));
    of_tokens.map(|start| start / 4).collect()
}

/// Returns the number of tokens that each suffix shares with its predecessor in sorted order; 0 for the first one
/// (Kasai et al., "Linear-time longest-common-prefix computation in suffix arrays", 2001).
fn shared_with_the_one_before(corpus: &[u32], suffixes: &[usize]) -> Vec<usize> {
    let mut rank = vec![0; corpus.len()];
    for (i, &start) in suffixes.iter().enumerate() {
        rank[start] = i;
    }
    let mut shared = vec![0; corpus.len()];
    let mut length = 0;
    for start in 0..corpus.len() {
        let Some(before) = rank[start].checked_sub(1) else {
            length = 0;
            continue;
        };
        let tail = |from: usize| corpus[from + length..].iter();
        length += (tail(start).zip(tail(suffixes[before])))
            .take_while(|(a, b)| a == b)
            .count();
        shared[rank[start]] = length;
        // Without its first token, a suffix shares at most one token less with its predecessor.
        length = length.saturating_sub(1);
    }
    shared
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_sequences_are_those_that_windows_find() {
        let mut rng = StdRng::seed_from_u64(1);
        for (tokens, ids) in [(1, 1), (2, 1), (50, 1), (60, 2), (200, 3), (300, 70_000)] {
            let corpus: Vec<u32> = (0..tokens).map(|_| rng.random_range(0..ids)).collect();
            for longest in [1, 2, 7, 64, 1000] {
                let of_length = |length| corpus.windows(length).collect::<HashSet<_>>().len();
                let expected: usize = (1..=longest).map(of_length).sum();
                assert_eq!(unique_sequences(&corpus, longest), expected);
            }
        }
    }
}
