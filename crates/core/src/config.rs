//! The config of a model.

use std::fmt::Debug;
use std::path::Path;

use std::fmt::Display;

use burn::module::Module;
use burn::tensor::backend::Backend;
use serde::{Serialize, de::DeserializeOwned};

use crate::{Cost, LanguageModel, Reads, Shape, Transfer, Vocabulary, check};

/// An invalid setting, such as "`train.batch` is 0".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", sentence(quoted(field), problem))]
pub struct ConfigError {
    /// The name of the field in the config.
    pub field: String,
    /// The problem and the valid values.
    pub problem: String,
}

/// Puts a name between backticks, unless it contains backticks.
fn quoted(name: &str) -> String {
    match name.contains('`') {
        true => name.into(),
        false => format!("`{name}`"),
    }
}

/// Joins a subject and its problem. If the subject is a name, a problem that begins with one of the verbs in `VERBS`
/// continues the sentence, as in "`train.batch` is 0". Otherwise, a colon separates subject and problem. A subject is a
/// name if it is in backticks or has no spaces.
pub fn sentence(subject: impl Display, problem: impl Display) -> String {
    let (subject, problem) = (subject.to_string(), problem.to_string());
    const VERBS: &str = "aggregates are begins belongs cannot connects contains differs do does gives goes has have \
                         holds is keeps lists makes may must names needs sets subtracts takes varies was would";
    let first = problem.split(' ').next().unwrap_or_default();
    let name = subject.trim_matches('`');
    let is_name = !name.contains('`') && (name.len() < subject.len() || !name.contains(' '));
    match is_name && VERBS.split(' ').any(|verb| verb == first) {
        true => format!("{subject} {problem}"),
        false => format!("{subject}: {problem}"),
    }
}

impl ConfigError {
    /// Makes an error about `field`.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// Prefixes the path of the field with `outer`.
    pub fn within(self, outer: &str) -> Self {
        Self {
            field: format!("{outer}.{}", self.field),
            ..self
        }
    }

    /// Prefixes the path of the field with the path of its file.
    pub fn in_file(self, path: &Path) -> Self {
        Self {
            field: format!("{}: {}", path.display(), self.field),
            ..self
        }
    }
}

/// The config of a model, and everything that the trainer knows about a model.
pub trait ModelConfig:
    Transfer + Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The model that this config builds.
    type Model<B: Backend>: LanguageModel<B>;

    /// Returns the name of the model, for tables and logs.
    fn name(&self) -> String;

    /// Checks every field and the [sizes](check::sizes). All other methods need a valid config.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    fn validate(&self) -> Result<(), ConfigError> {
        check::sizes(self)?;
        self.validate_fields()?;
        self.shape().validate()
    }

    /// Checks every field. [`validate`](Self::validate) first checks that no whole number is above [`check::MOST`].
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    fn validate_fields(&self) -> Result<(), ConfigError>;

    /// Returns the sizes of the model. The dropout is above 0 if a forward pass under autodiff drops activations.
    fn shape(&self) -> Shape;

    /// Whether a training pass draws random numbers on the device; by default, whether the dropout is above 0.
    fn draws(&self) -> bool {
        self.shape().dropout > 0.0
    }

    /// Assembles the modules of a valid config, without drawing weights; use [`build`](Self::build) for a model with
    /// weights. Models of the same config may differ only in float parameters. Validation relies on this: it assembles
    /// a model and gives it the parameters of the trained model.
    fn assemble<B: Backend>(&self, vocabulary: Vocabulary, device: &B::Device) -> Self::Model<B>;

    /// Counts the trained parameters and the FLOPs of the model that [`build`](Self::build) makes. FLOPs are per token
    /// at full context. The FLOPs include the logits of every token, even in a classifier, which reads only the last
    /// token's logits. A connection with a product for each of the k latest streams counts k products, although fewer
    /// streams exist near the input.
    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost;

    /// Checks that the model can read this input and write this output.
    ///
    /// # Errors
    ///
    /// Returns an error if the data are images and the model reads text, or the other way round.
    fn reads(&self, vocabulary: Vocabulary) -> Result<(), ConfigError> {
        match vocabulary.reads {
            Reads::Ids(_) => Ok(()),
            Reads::Images(_) => Err(ConfigError::new(
                "model",
                "reads token ids, but the data are images",
            )),
        }
    }

    /// Whether a training pass updates [running statistics](crate::statistics); by default false.
    fn has_statistics(&self) -> bool {
        false
    }

    /// Whether the logits of earlier positions can change when tokens are appended; by default false. If they can, a
    /// full pass and an incremental pass can give different logits at earlier positions.
    fn revises(&self) -> bool {
        false
    }

    /// Returns the number of streams that connections keep side by side; by default one.
    fn copies(&self) -> usize {
        1
    }

    /// Returns the number of layers that a token passes through, counting each repetition; by default the number of
    /// layers.
    fn passes(&self) -> usize {
        self.shape().n_layer
    }

    /// Returns the smallest number of layers by which the repeated part of a depth loop can grow. By default, returns
    /// `None`, for a model without a loop.
    fn repeats(&self) -> Option<usize> {
        None
    }

    /// Returns the config of passes outside training steps; by default this config. The [`cost`](Self::cost) of the
    /// returned config differs if these passes repeat layers a different number of times.
    fn outside_training(&self) -> Self {
        self.clone()
    }

    /// Returns the config that is hashed in place of this one; by default this config. If a default changes, the hash of
    /// every model stays what it was, so results that are stored under a hash keep their meaning.
    fn hashed(&self) -> Self {
        self.clone()
    }

    /// Maps the parameters of the model onto their allowed set, such as [unit vectors](crate::unit). By default,
    /// returns the model unchanged. [`build`](Self::build) calls this method after initialisation, and the trainer
    /// after every optimizer step. Parameters keep their ids, shapes and gradient requirements.
    fn constrain<B: Backend>(&self, model: Self::Model<B>) -> Self::Model<B> {
        model
    }

    /// Builds a model with fresh weights. The weights are drawn from the backend's random generator, so
    /// call `B::seed` first for reproducible weights.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`validate`](Self::validate) and of [`Vocabulary::validate`], and an error if the model
    /// cannot read the data.
    fn build<B: Backend>(
        &self,
        vocabulary: impl Into<Vocabulary>,
        device: &B::Device,
    ) -> Result<Self::Model<B>, ConfigError> {
        let model = self.build_without_weights(vocabulary, device)?;
        materialise(&model);
        Ok(self.constrain(model))
    }

    /// Like [`build`](Self::build), but draws no weights and does not call [`constrain`](Self::constrain). Use this for
    /// a model whose weights are loaded next, because weights that are drawn take memory and time. Clones that are made
    /// before the weights are loaded would draw their own.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`build`](Self::build).
    fn build_without_weights<B: Backend>(
        &self,
        vocabulary: impl Into<Vocabulary>,
        device: &B::Device,
    ) -> Result<Self::Model<B>, ConfigError> {
        let vocabulary = vocabulary.into();
        vocabulary.validate()?;
        self.validate()?;
        self.reads(vocabulary)?;
        Ok(self.assemble(vocabulary, device))
    }
}

/// Draws every parameter now. Burn 0.21 draws a parameter at its first use, so clones made before that use would each
/// draw their own values.
pub fn materialise<B: Backend, M: Module<B>>(model: &M) {
    model.num_params();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_backticks_has_no_others_around_it() {
        let error = |field: &str| ConfigError::new(field, "is 0").to_string();
        assert_eq!(error("train.batch"), "`train.batch` is 0");
        assert_eq!(
            error("run `a`, set train.batch"),
            "run `a`, set train.batch: is 0"
        );
    }

    #[test]
    fn a_problem_that_begins_with_a_verb_continues_the_sentence() {
        assert_eq!(
            sentence("`--seeds 20`", "does not fit"),
            "`--seeds 20` does not fit"
        );
        assert_eq!(sentence("a/run", "has no config"), "a/run has no config");
        assert_eq!(sentence("a run", "has no config"), "a run: has no config");
        assert_eq!(
            sentence("`model`", "unknown field"),
            "`model`: unknown field"
        );
    }
}
