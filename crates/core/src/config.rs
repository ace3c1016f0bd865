//! The config of a model.

use std::fmt::Debug;
use std::path::Path;

use burn::module::Module;
use burn::tensor::backend::Backend;
use serde::{Serialize, de::DeserializeOwned};

use crate::{Cost, LanguageModel, Reads, Shape, Tensors, Vocabulary};

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {problem}")]
pub struct ConfigError {
    /// The name of the field in the config.
    pub field: String,
    /// What is wrong with it, and the valid values.
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

    /// The same error of a field in the file `path`.
    pub fn in_file(self, path: &Path) -> Self {
        Self {
            field: format!("{}: {}", path.display(), self.field),
            ..self
        }
    }
}

/// The config of a language model. The trainer knows models only by this trait.
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
    /// Names the first invalid field.
    fn validate(&self) -> Result<(), ConfigError>;

    /// The sizes of the model. The dropout is above 0 if a forward pass under autodiff draws random
    /// numbers.
    fn shape(&self) -> Shape;

    /// Puts the modules of a valid config together. No weight is drawn yet; use [`build`](Self::build)
    /// for a model with weights. It must give the same model every time, and everything that differs
    /// between two models of a config must be a float parameter: a validation assembles a model and
    /// gives it the parameters of the trained one.
    fn assemble<B: Backend>(&self, vocabulary: Vocabulary, device: &B::Device) -> Self::Model<B>;

    /// Exact counts of the trained parameters and the FLOPs of the model that [`build`](Self::build)
    /// makes. FLOPs are per token at full context. They include the logits of every token, although a
    /// classifier reads only those of the last one. A connection counts all streams that it can read,
    /// although there are fewer near the input.
    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost;

    /// Checks that the model can read and write these.
    ///
    /// # Errors
    ///
    /// If the data are images and the model reads text, or the other way round.
    fn reads(&self, vocabulary: Vocabulary) -> Result<(), ConfigError> {
        match vocabulary.reads {
            Reads::Ids(_) => Ok(()),
            Reads::Images(_) => Err(ConfigError::new(
                "model",
                "reads token ids, but the data are images",
            )),
        }
    }

    /// Whether a training pass moves [running statistics](crate::statistics). By default it does not.
    fn has_statistics(&self) -> bool {
        false
    }

    /// Whether logits can change when tokens are appended. A full pass and an incremental one then differ at earlier
    /// positions. By default they do not.
    fn revises(&self) -> bool {
        false
    }

    /// The number of streams that connections keep side by side. By default one.
    fn copies(&self) -> usize {
        1
    }

    /// The factor of the learning rate of parameter `name`. By default 1.
    fn rate(&self, name: &str) -> f64 {
        let _ = name;
        1.0
    }

    /// Whether the weights of a model of config `smaller` can become the first ones of this model, as far
    /// as the configs tell.
    ///
    /// # Errors
    ///
    /// The first field that does not fit.
    fn grows_from(&self, smaller: &Self) -> Result<(), ConfigError> {
        let _ = smaller;
        Ok(())
    }

    /// Makes the weights of this model from the `weights` of a `smaller` model. `fresh` has the initial
    /// weights of this model. See [`Architecture::grow`](crate::Architecture::grow).
    ///
    /// # Errors
    ///
    /// When this model cannot grow from the smaller one.
    fn grow(
        &self,
        smaller: &Self,
        weights: Tensors,
        fresh: &Tensors,
    ) -> Result<Tensors, ConfigError>;

    /// One model of this one and `other`. See [`Architecture::merge`](crate::Architecture::merge).
    ///
    /// # Errors
    ///
    /// When these models cannot be merged.
    fn merge(
        &self,
        weights: &Tensors,
        (other, of_other): (&Self, &Tensors),
        value_scale: f64,
    ) -> Result<(Self, Tensors), ConfigError> {
        let _ = (weights, other, of_other, value_scale);
        Err(no_merge(&self.name()))
    }

    /// Builds a model with fresh weights. The weights are drawn from the backend's random generator, so
    /// call `B::seed` first for reproducible weights.
    ///
    /// # Errors
    ///
    /// Those of [`validate`](Self::validate).
    fn build<B: Backend>(
        &self,
        vocabulary: impl Into<Vocabulary>,
        device: &B::Device,
    ) -> Result<Self::Model<B>, ConfigError> {
        let vocabulary = vocabulary.into();
        vocabulary.validate()?;
        self.validate()?;
        self.reads(vocabulary)?;
        let model = self.assemble(vocabulary, device);
        materialise(&model);
        Ok(model)
    }
}

/// Why a model called `name` cannot be merged.
pub fn no_merge(name: &str) -> ConfigError {
    let problem = format!(
        "is a {name}; only models with parameter tokens and plain connections, such as a TokenFormer, can be merged"
    );
    ConfigError::new("model", problem)
}

/// Draws every parameter now. Burn 0.21 draws a parameter at its first use. If a module is cloned
/// before that, each clone draws its own values.
pub fn materialise<B: Backend, M: Module<B>>(model: &M) {
    model.num_params();
}
