//! μP, the maximal update parametrisation (Yang et al., "Tensor programs V", 2022, Table 8 for Adam), in the form of
//! Mak and Flanigan, "Residual Matrix Transformers", 2025, Appendix C.2.1, and of their code. fan_in is the number of
//! features that a weight reads, and base fan_in is this number in the base model. σ is [`Mup::init_std`], and η is the
//! learning rate:
//!
//! | weights | initial standard deviation | learning rate | multiplier |
//! |---|---|---|---|
//! | input: tables | σ | η | [`Mup::input`] |
//! | hidden | σ / √fan_in | η · base fan_in / fan_in | 1 |
//! | output: a separate unembedding | 0 | η | [`Mup::output`] · base fan_in / fan_in |
//!
//! Attention scores are scaled by [`Mup::attention`] · √(base d) / d, where d is the width of a head and base d its
//! width in the base model. Vectors, such as biases and the scales of norms, have the learning rate η. Weight decay
//! does not depend on these multipliers.

use serde::{Deserialize, Serialize};

use crate::{ConfigError, check};

/// μP: settings that are tuned on a base model hold for wider models. The initial standard deviation is σ for tables, σ
/// / √fan_in for hidden weights and 0 for a separate unembedding. fan_in is the number of features that a weight reads.
/// The learning rate of hidden weights is proportional to 1 / fan_in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mup<S> {
    /// The sizes of the base model, for which the learning rate is tuned.
    pub base: S,
    /// σ, the initial standard deviation of tables.
    pub init_std: f64,
    /// The multiplier of x_0.
    #[serde(default = "one")]
    pub input: f64,
    /// A multiplier of attention scores, in addition to √(base d) / d, where d is the width of a head.
    #[serde(default = "one")]
    pub attention: f64,
    /// A multiplier of logits, in addition to base fan_in / fan_in.
    #[serde(default = "one")]
    pub output: f64,
}

fn one() -> f64 {
    1.0
}

/// A size of a model, such as its width, and the corresponding size of its base model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaled {
    /// The size of the model.
    pub now: usize,
    /// The size of the base model.
    pub base: usize,
}

impl Scaled {
    /// Returns base / now, the multiplier of the learning rate of a hidden weight that reads `now` features.
    pub fn rate(self) -> f64 {
        self.base as f64 / self.now as f64
    }

    /// Returns the multiplier of the learning rate of parameter `name`. `hidden` pairs the suffix of each hidden
    /// weight's name with the number of features that the weight reads, in the model and in its base model. All other
    /// parameters have the multiplier 1.
    pub fn rate_of(name: &str, hidden: &[(&str, Self)]) -> f64 {
        let found = hidden.iter().find(|(end, _)| name.ends_with(end));
        found.map_or(1.0, |(_, fan_in)| fan_in.rate())
    }
}

impl<S> Mup<S> {
    /// Returns σ / √fan_in, the standard deviation of initial hidden weights.
    pub fn hidden_std(&self, fan_in: usize) -> f64 {
        self.init_std / (fan_in as f64).sqrt()
    }

    /// Returns the multiplier of attention scores over heads of width `d`.
    pub fn attention_scale(&self, d: Scaled) -> f64 {
        self.attention * (d.base as f64).sqrt() / d.now as f64
    }

    /// Returns the multiplier of logits of an unembedding that reads `fan_in` features.
    pub fn output_scale(&self, fan_in: Scaled) -> f64 {
        self.output * fan_in.rate()
    }

    /// Checks `init_std` and the multipliers, and that no size in `base` is 0. `base` pairs field names with sizes.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn validate(&self, base: &[(&str, usize)]) -> Result<(), ConfigError> {
        let fields = [
            ("init_std", self.init_std),
            ("input", self.input),
            ("attention", self.attention),
            ("output", self.output),
        ];
        let within = |error: ConfigError| error.within("mup");
        for (field, value) in fields {
            check::positive(field, value).map_err(within)?;
        }
        for (field, size) in base {
            check::at_least_one(&format!("base.{field}"), *size).map_err(within)?;
        }
        Ok(())
    }
}
