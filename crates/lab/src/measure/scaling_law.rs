//! Lemma 1 of the recurrent transformer paper: exponents of the number of unique sequences from
//! fitted scaling laws, and the number of unique sequences of a corpus as it grows.

use std::collections::HashSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use residual_zoo_core::ConfigError;
use residual_zoo_data::{DataConfig, Source, SyntheticConfig};
use residual_zoo_train::Interrupter;

use super::{Quantities, Setting, quantities};
use crate::corpora::open_corpus;
use crate::{Error, PlannedRun};

pub(super) const NAMES: &[&str] = &["least exponent", "largest exponent", "unique sequences"];

pub(super) fn measure<C>(run: &PlannedRun<C>, setting: &Setting) -> Result<Quantities, Error> {
    // Between Ω[D^(1-2β)] and O[D^(1-β)].
    if let Some(&beta) = run.values.get("β") {
        return Ok(quantities(NAMES, [1.0 - 2.0 * beta, 1.0 - beta]));
    }
    let (tokens, longest) = (run.size("corpus length")?, run.size("longest")?);
    let corpus = corpus(setting, tokens)?;
    let unique = unique_sequences(&corpus, longest);
    Ok(quantities(&NAMES[2..], [unique as f64]))
}

/// `tokens` tokens of the data: for every seed another piece of a text, or another draw of the
/// synthetic language.
fn corpus(setting: &Setting, tokens: usize) -> Result<Vec<u32>, Error> {
    let data = match &setting.data.source {
        Source::Synthetic(_) => DataConfig {
            source: Source::Synthetic(SyntheticConfig {
                tokens: tokens * 2,
                seed: setting.seed,
            }),
            valid_fraction: 0.5,
            ..setting.data.clone()
        },
        _ => setting.data.clone(),
    };
    let corpus = open_corpus(&data, &Interrupter::new())?;
    let text = corpus.train.text().filter(|text| text.len() >= tokens);
    let text = text.ok_or_else(|| {
        let problem = format!("is no text of at least {tokens} tokens; take a longer one");
        ConfigError::new("--data", problem)
    })?;
    let mut read = Vec::new();
    let start = StdRng::seed_from_u64(setting.seed).random_range(0..=text.len() - tokens);
    text.read(start, tokens, &mut read);
    Ok(read)
}

/// The number of different sequences of at most `longest` tokens that stand in `corpus`.
fn unique_sequences(corpus: &[u32], longest: usize) -> usize {
    let of_length = |length| corpus.windows(length).collect::<HashSet<_>>().len();
    (1..=longest).map(of_length).sum()
}
