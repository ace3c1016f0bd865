//! Transfer of weights from one model to another, and the choice of weights to train.

use std::collections::BTreeMap;

use burn::tensor::TensorData;

use crate::ConfigError;

/// Tensors by name.
pub type Tensors = BTreeMap<String, TensorData>;

/// Uses of trained weights: a model can train a part of them, scale their learning rates, grow from a smaller model,
/// and be merged with another.
///
/// By default, a model can only start from the weights of an equal model. `impl Transfer for MyConfig {}` is then
/// enough.
pub trait Transfer: Sized {
    /// Returns the field that restricts training to a part of the weights, if it is set.
    fn tuned(&self) -> Option<&'static str> {
        None
    }

    /// Returns the multiplier of the learning rate of parameter `name`, as under [μP](crate::Mup); by default 1.
    fn rate(&self, name: &str) -> f64 {
        let _ = name;
        1.0
    }

    /// Whether parameters have learning rates of their own, which [`rate`](Self::rate) returns.
    fn has_rates(&self) -> bool {
        false
    }

    /// Checks that the weights of a model of config `smaller` can initialise a part of this model, as far as the
    /// configs show.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first field that does not fit.
    fn grows_from(&self, smaller: &Self) -> Result<(), ConfigError> {
        let _ = smaller;
        Ok(())
    }

    /// Makes the weights of this model from the `weights` of a `smaller` model and the initial weights `fresh` of this
    /// model. By default, returns `weights` unchanged.
    ///
    /// # Errors
    ///
    /// Returns an error if this model cannot grow from the smaller one.
    fn grow(
        &self,
        smaller: &Self,
        weights: Tensors,
        fresh: &Tensors,
    ) -> Result<Tensors, ConfigError> {
        let _ = (smaller, fresh);
        Ok(weights)
    }

    /// Merges this model and `other` into one model with the parameter tokens of both. The tokens' values are
    /// multiplied by `value_scale`. Without weights, returns the merged config and no tensors. By default, models
    /// cannot be merged.
    ///
    /// # Errors
    ///
    /// Returns an error if these models cannot be merged.
    fn merge(
        &self,
        weights: &Tensors,
        (other, of_other): (&Self, &Tensors),
        value_scale: f64,
    ) -> Result<(Self, Tensors), ConfigError> {
        let _ = (weights, other, of_other, value_scale);
        Err(no_merge())
    }
}

/// Makes the error for models that cannot be merged.
pub fn no_merge() -> ConfigError {
    ConfigError::new(
        "model",
        "has no parts to join; only models with parameter tokens and plain connections, such as a TokenFormer, can be \
         merged",
    )
}
