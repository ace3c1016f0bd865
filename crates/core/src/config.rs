//! The config of a model.

use std::fmt::Debug;

use burn::tensor::backend::Backend;
use serde::{Serialize, de::DeserializeOwned};

use crate::{Cost, LanguageModel, Shape, Tensors, Vocabulary};

/// A setting that no model can be built from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {problem}")]
pub struct ConfigError {
    /// The field, as it is called in the config.
    pub field: String,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

impl ConfigError {
    /// An error about `field`.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// The same error with the path of its field prefixed by `outer`.
    pub fn within(self, outer: &str) -> Self {
        Self {
            field: format!("{outer}.{}", self.field),
            ..self
        }
    }
}

/// The config of a language model: all that the trainer knows of it.
pub trait ModelConfig:
    Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The model it builds.
    type Model<B: Backend>: LanguageModel<B>;

    /// The name of the model, for tables and logs.
    fn name(&self) -> String;

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field that no model can have.
    fn validate(&self) -> Result<(), ConfigError>;

    /// The sizes of the model. Its dropout is above 0 if a forward pass under autodiff draws random
    /// numbers.
    fn shape(&self) -> Shape;

    /// Builds a model with fresh weights, which are drawn from the backend's generator: call
    /// `B::seed` first to repeat it.
    ///
    /// # Errors
    ///
    /// What [`validate`](Self::validate) finds.
    fn build<B: Backend>(
        &self,
        vocabulary: impl Into<Vocabulary>,
        device: &B::Device,
    ) -> Result<Self::Model<B>, ConfigError>;

    /// Exact counts of trained parameters and FLOPs of what [`build`](Self::build) makes. FLOPs are
    /// per token at full context. They include the logits of every token, although a classifier reads
    /// only those of the last, and a connection counts all streams it may read.
    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost;

    /// The weights of this model, made from the `weights` of a `smaller` one; `fresh` are the initial
    /// weights of this model. See [`Architecture::grow`](crate::Architecture::grow).
    ///
    /// # Errors
    ///
    /// A smaller model that this one cannot be made from.
    fn grow(
        &self,
        smaller: &Self,
        weights: Tensors,
        fresh: &Tensors,
    ) -> Result<Tensors, ConfigError>;
}
