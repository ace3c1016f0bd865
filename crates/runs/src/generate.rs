//! Samples text from a model, token by token.

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use residual_zoo_core::{ConfigError, LanguageModel, check};
use residual_zoo_data::derive_seed;

use crate::Error;

/// Settings for sampling the next token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// The divisor of the logits. At 0, the most likely token is always taken.
    pub temperature: f64,
    /// Only the k most likely tokens can be sampled.
    pub top_k: Option<usize>,
    /// Only the smallest set of most likely tokens whose probabilities sum to at least p can be sampled (Holtzman et
    /// al., "The curious case of neural text degeneration", 2020).
    pub top_p: Option<f64>,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: None,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::not_negative("temperature", self.temperature)?;
        check::at_least_one("top-k", self.top_k.unwrap_or(1))?;
        let top_p = self.top_p.unwrap_or(1.0);
        if !(top_p > 0.0 && top_p <= 1.0) {
            let problem = format!("is {top_p}; it must be above 0 and at most 1");
            return Err(ConfigError::new("top-p", problem));
        }
        Ok(())
    }

    /// Samples a token id from the logits of all ids.
    pub fn draw(&self, logits: &[f32], rng: &mut StdRng) -> u32 {
        // Ties go to the smaller id, so the result does not depend on the sort.
        let is_before = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let all = (0..).zip(logits.iter().map(|x| *x as f64));
        let Some((likeliest, largest)) = all.clone().min_by(is_before) else {
            return 0;
        };
        if self.temperature == 0.0 {
            return likeliest;
        }
        let mut candidates: Vec<(u32, f64)> = all.collect();
        if let Some(k) = self.top_k.filter(|k| *k < candidates.len()) {
            candidates.select_nth_unstable_by(k - 1, is_before);
            candidates.truncate(k);
        }
        if self.top_p.is_some() {
            candidates.sort_unstable_by(is_before);
        }
        for (_, x) in &mut candidates {
            *x = ((*x - largest) / self.temperature).exp();
        }
        if let Some(top_p) = self.top_p {
            let nucleus = top_p * candidates.iter().map(|(_, p)| p).sum::<f64>();
            let mut mass = 0.0;
            let reach = candidates.iter().position(|(_, p)| {
                mass += p;
                mass >= nucleus
            });
            candidates.truncate(reach.map_or(usize::MAX, |last| last + 1));
        }
        let mut rest = rng.random::<f64>() * candidates.iter().map(|(_, p)| p).sum::<f64>();
        let drawn = candidates.iter().find(|(_, p)| {
            rest -= p;
            rest < 0.0
        });
        drawn.map_or(likeliest, |(id, _)| *id)
    }
}

/// Separates the random streams of several texts.
const TEXT: u64 = 1;

/// An iterator over the tokens that follow a prompt. The iterator ends only if the logits are not finite.
pub struct Generator<'a, B: Backend, M: LanguageModel<B>>(Generators<'a, B, M>);

impl<'a, B: Backend, M: LanguageModel<B>> Generator<'a, B, M> {
    /// Prepares to continue `prompt`. `sizes` are the number of token ids and the context length of the model.
    ///
    /// # Errors
    ///
    /// Returns an error for an empty prompt, an id outside the vocabulary, or an invalid field of `sampling`.
    pub fn new(
        model: &'a M,
        sizes: (usize, usize),
        prompt: &[u32],
        sampling: Sampling,
        device: &B::Device,
    ) -> Result<Self, Error> {
        Generators::new(model, sizes, &[prompt.to_vec()], sampling, device).map(Self)
    }
}

impl<B: Backend, M: LanguageModel<B>> Iterator for Generator<'_, B, M> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        // A single prompt is read in one pass, so the first step already gives a new token.
        self.0.next()?.into_iter().next()?
    }
}

/// An iterator over the tokens that follow several prompts. Each item has one entry for each text: the next token, or
/// `None` while the model still reads the prompt of that text. The iterator ends only if the logits are not finite.
///
/// All texts are at the same position, so there is no padding. The model first reads all prompts in one pass, up to the
/// length of the shortest prompt. The model then continues the shortest prompt, while it reads the longer prompts token
/// by token. Until a prompt has been read to its end, it gets no new token.
pub struct Generators<'a, B: Backend, M: LanguageModel<B>> {
    model: &'a M,
    device: B::Device,
    cache: M::Cache,
    texts: Vec<Text>,
    /// Number of positions that the cache has seen.
    seen: usize,
    context: usize,
    sampling: Sampling,
}

/// The part of a text that fits the context: the end of the prompt and the sampled tokens.
struct Text {
    tokens: Vec<u32>,
    rng: StdRng,
}

impl<'a, B: Backend, M: LanguageModel<B>> Generators<'a, B, M> {
    /// Prepares to continue `prompts` with a model of `vocab_size` ids and `context` positions. Each prompt has
    /// independent random numbers. The first prompt gets the random numbers and, up to rounding, the logits that it
    /// would get alone.
    ///
    /// # Errors
    ///
    /// Returns an error for an empty list of prompts, an empty prompt, an id outside the vocabulary, or an invalid
    /// field of `sampling`.
    pub fn new(
        model: &'a M,
        (vocab_size, context): (usize, usize),
        prompts: &[Vec<u32>],
        sampling: Sampling,
        device: &B::Device,
    ) -> Result<Self, Error> {
        sampling.validate()?;
        if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
            return Err(Error::Prompt(
                "has no tokens; give at least one character".into(),
            ));
        }
        if let Some(id) = (prompts.iter().flatten()).find(|id| **id as usize >= vocab_size) {
            let problem = format!(
                "has token id {id}, but ids must be below {vocab_size}; use the model's tokenizer"
            );
            return Err(Error::Prompt(problem));
        }
        let seed = |i: usize| match i {
            0 => sampling.seed,
            i => derive_seed(sampling.seed, &[TEXT, i as u64]),
        };
        let texts = prompts.iter().enumerate().map(|(i, prompt)| Text {
            tokens: prompt[prompt.len().saturating_sub(context)..].to_vec(),
            rng: StdRng::seed_from_u64(seed(i)),
        });
        Ok(Self {
            model,
            device: device.clone(),
            cache: model.new_cache(),
            texts: texts.collect(),
            seen: 0,
            context,
            sampling,
        })
    }

    /// Reads the positions up to the end of the shortest text. Returns one row of logits for each text: the logits of
    /// the token at the next position.
    fn logits(&mut self) -> Vec<f32> {
        let shortest = |texts: &[Text]| texts.iter().map(|text| text.tokens.len()).min();
        let mut end = shortest(&self.texts).unwrap_or(0);
        if end > self.context {
            // The context is full: continue from the newest half. No prompt is longer than the context, so all texts
            // have the same length.
            for text in &mut self.texts {
                let old = text.tokens.len() - self.context.div_ceil(2);
                text.tokens.drain(..old);
            }
            self.cache = self.model.new_cache();
            self.seen = 0;
            end = shortest(&self.texts).unwrap_or(0);
        }
        let new = (self.texts.iter()).flat_map(|text| &text.tokens[self.seen..end]);
        let new: Vec<i32> = new.map(|id| *id as i32).collect();
        let ids = TensorData::new(new, [self.texts.len(), end - self.seen]);
        let ids = Tensor::<B, 2, Int>::from_data(ids, &self.device);
        let logits = self.model.predict(ids, &mut self.cache);
        self.seen = end;
        logits.into_data().iter::<f32>().collect()
    }
}

impl<B: Backend, M: LanguageModel<B>> Iterator for Generators<'_, B, M> {
    type Item = Vec<Option<u32>>;

    fn next(&mut self) -> Option<Self::Item> {
        let logits = self.logits();
        if !logits.iter().all(|x| x.is_finite()) {
            return None;
        }
        let rows = logits.chunks_exact(logits.len() / self.texts.len());
        let drawn = self.texts.iter_mut().zip(rows).map(|(text, logits)| {
            if text.tokens.len() > self.seen {
                return None;
            }
            let id = self.sampling.draw(logits, &mut text.rng);
            text.tokens.push(id);
            Some(id)
        });
        Some(drawn.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
        let mut rng = StdRng::seed_from_u64(3);
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            counts[sampling.draw(logits, &mut rng) as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() < 0.015, "{found:?} is not {expected:?}");
        }
    }

    /// Returns the logits of the probabilities 0.5, 0.3, 0.2.
    fn logits() -> Vec<f32> {
        [0.5_f32, 0.3, 0.2].map(f32::ln).to_vec()
    }

    #[test]
    fn draws_follow_the_probabilities() {
        assert_near(
            &frequencies(&Sampling::default(), &logits()),
            &[0.5, 0.3, 0.2],
        );
    }

    #[test]
    fn temperature_sharpens() {
        let sampling = Sampling {
            temperature: 0.5,
            ..Sampling::default()
        };
        // Squares of the probabilities, normalised.
        let total = 0.25 + 0.09 + 0.04;
        let expected = [0.25 / total, 0.09 / total, 0.04 / total];
        assert_near(&frequencies(&sampling, &logits()), &expected);
        let greedy = Sampling {
            temperature: 0.0,
            ..Sampling::default()
        };
        assert_near(&frequencies(&greedy, &logits()), &[1.0, 0.0, 0.0]);
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let top_k = Sampling {
            top_k: Some(2),
            ..Sampling::default()
        };
        assert_near(&frequencies(&top_k, &logits()), &[0.625, 0.375, 0.0]);
        let top_p = Sampling {
            top_p: Some(0.7),
            ..Sampling::default()
        };
        assert_near(&frequencies(&top_p, &logits()), &[0.625, 0.375, 0.0]);
        let narrow = Sampling {
            top_p: Some(1e-9),
            ..Sampling::default()
        };
        assert_near(&frequencies(&narrow, &logits()), &[1.0, 0.0, 0.0]);
    }

    #[test]
    fn invalid_settings_are_named() {
        let cases = [
            (
                Sampling {
                    temperature: -1.0,
                    ..Sampling::default()
                },
                "temperature",
            ),
            (
                Sampling {
                    top_k: Some(0),
                    ..Sampling::default()
                },
                "top-k",
            ),
            (
                Sampling {
                    top_p: Some(1.5),
                    ..Sampling::default()
                },
                "top-p",
            ),
        ];
        for (sampling, field) in cases {
            assert_eq!(sampling.validate().unwrap_err().field, field);
        }
    }
}
