//! Samples text from a model, token by token.

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use residual_zoo_core::{ConfigError, LanguageModel, check};

use crate::Error;

/// How the next token is sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// The logits are divided by it. At 0, the most likely token is always taken.
    pub temperature: f64,
    /// Only the k most likely tokens can be sampled.
    pub top_k: Option<usize>,
    /// Only the smallest set of most likely tokens whose probabilities sum to p can be sampled
    /// (Holtzman et al., "The curious case of neural text degeneration", 2020).
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
    /// The first invalid field.
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

    /// Samples a token id given the logits of all ids.
    pub fn draw(&self, logits: &[f32], rng: &mut StdRng) -> u32 {
        let mut candidates: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|x| *x as f64)).collect();
        // Ties go to the smaller id, so the result does not depend on the sort.
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if self.temperature == 0.0 {
            candidates.truncate(1);
        }
        candidates.truncate(self.top_k.unwrap_or(usize::MAX));
        let Some(&(likeliest, largest)) = candidates.first() else {
            return 0;
        };
        for (_, x) in &mut candidates {
            *x = ((*x - largest) / self.temperature.max(f64::MIN_POSITIVE)).exp();
        }
        let total: f64 = candidates.iter().map(|(_, p)| p).sum();
        let nucleus = self.top_p.unwrap_or(1.0) * total;
        let mut mass = 0.0;
        let reach = candidates.iter().position(|(_, p)| {
            mass += p;
            mass >= nucleus
        });
        candidates.truncate(reach.map_or(usize::MAX, |last| last + 1));

        let mut rest = rng.random::<f64>() * candidates.iter().map(|(_, p)| p).sum::<f64>();
        let drawn = candidates.iter().find(|(_, p)| {
            rest -= p;
            rest < 0.0
        });
        drawn.map_or(likeliest, |(id, _)| *id)
    }
}

/// An endless iterator over the tokens that follow a prompt.
pub struct Generator<'a, B: Backend, M: LanguageModel<B>> {
    model: &'a M,
    device: B::Device,
    cache: M::Cache,
    /// The prompt and the tokens sampled so far.
    tokens: Vec<u32>,
    /// Number of tokens that the cache has seen.
    cached: usize,
    /// Index in `tokens` of the first token that the cache has seen.
    start: usize,
    context: usize,
    sampling: Sampling,
    rng: StdRng,
}

impl<'a, B: Backend, M: LanguageModel<B>> Generator<'a, B, M> {
    /// Prepares to continue `prompt` with a model of `vocab_size` ids and `context` positions.
    ///
    /// # Errors
    ///
    /// An empty prompt, an id outside the vocabulary, or an invalid field of `sampling`.
    pub fn new(
        model: &'a M,
        (vocab_size, context): (usize, usize),
        prompt: &[u32],
        sampling: Sampling,
        device: &B::Device,
    ) -> Result<Self, Error> {
        sampling.validate()?;
        if prompt.is_empty() {
            return Err(Error::Prompt(
                "has no tokens; give at least one character".into(),
            ));
        }
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab_size) {
            let problem = format!(
                "has token id {id}, but ids must be below {vocab_size}; use the model's tokenizer"
            );
            return Err(Error::Prompt(problem));
        }
        let rng = StdRng::seed_from_u64(sampling.seed);
        Ok(Self {
            model,
            device: device.clone(),
            cache: model.new_cache(),
            tokens: prompt.to_vec(),
            cached: 0,
            start: prompt.len().saturating_sub(context),
            context,
            sampling,
            rng,
        })
    }

    /// Logits of the token after the last one.
    fn logits(&mut self) -> Vec<f32> {
        if self.tokens.len() - self.start > self.context {
            // The context is full: continue from its newest half.
            self.start = self.tokens.len() - self.context.div_ceil(2);
            self.cache = self.model.new_cache();
            self.cached = 0;
        }
        let new: Vec<i32> = self.tokens[self.start + self.cached..]
            .iter()
            .map(|id| *id as i32)
            .collect();
        let count = new.len();
        let ids = TensorData::new(new, [1, count]);
        let ids = Tensor::<B, 2, Int>::from_data(ids, &self.device);
        let logits = self.model.predict(ids, &mut self.cache);
        self.cached += count;
        logits.into_data().iter::<f32>().collect()
    }
}

impl<B: Backend, M: LanguageModel<B>> Iterator for Generator<'_, B, M> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let logits = self.logits();
        let id = self.sampling.draw(&logits, &mut self.rng);
        self.tokens.push(id);
        Some(id)
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

    /// Logits of the probabilities 0.5, 0.3, 0.2.
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
