//! What a config promises: it validates itself, counts its cost and builds its model.

use std::collections::BTreeMap;
use std::fmt::Debug;

use burn::module::Module;
use burn::tensor::{TensorData, backend::Backend};
use serde::{Serialize, de::DeserializeOwned};

use crate::{Connection, Cost, Decoder, Ends, LanguageModel, Plain, ResidualBlock, Stack, check};

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

    /// The same error seen from outside of the part called `outer`.
    pub fn within(self, outer: &str) -> Self {
        Self {
            field: format!("{outer}.{}", self.field),
            ..self
        }
    }
}

/// An architecture: its ends, and a layer around whose sublayers any connection can be put.
///
/// This is all that an architecture's crate provides: the config of a whole model follows from it
/// ([`ModelConfig`]).
pub trait Architecture:
    Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// One layer, with a connection of type `C` around each sublayer.
    type Block<B: Backend, C: Connection<B>>: ResidualBlock<B>;
    /// The ends of the stream.
    type Ends<B: Backend>: Ends<B>;

    /// The name of the architecture, for tables and logs.
    fn name(&self) -> String;

    /// Checks every field.
    fn validate(&self) -> Result<(), ConfigError>;

    /// Most positions that the model takes.
    fn context(&self) -> usize;

    /// Width of the stream.
    fn width(&self) -> usize;

    /// Number of layers.
    fn n_layer(&self) -> usize;

    /// Number of sublayers in a layer, each an update of the stream.
    fn n_sublayer(&self) -> usize;

    /// Dropout, wherever the architecture has it. 0 is none.
    fn dropout(&self) -> f64;

    /// Builds the ends for `vocab_size` token ids and logits of width `n_output`. The two are
    /// equal in a language model; a classifier has as many outputs as classes.
    fn ends<B: Backend>(
        &self,
        vocab_size: usize,
        n_output: usize,
        device: &B::Device,
    ) -> Self::Ends<B>;

    /// Builds layer `layer`, counted from 0. `connection` is called once for each sublayer, in
    /// the order in which they update the stream.
    fn block<B: Backend, C: Connection<B>>(
        &self,
        layer: usize,
        connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Self::Block<B, C>;

    /// The cost of the ends.
    fn ends_cost(&self, vocab_size: usize, n_output: usize) -> Cost;

    /// The cost of one layer with plain connections, applied to sequences of `time` tokens.
    fn block_cost(&self, time: usize) -> Cost;

    /// How the parameter called `name` is filled up when a smaller model is loaded; none if the
    /// architecture does not grow that way.
    fn growth(&self, name: &str) -> Option<Growth> {
        let _ = name;
        None
    }

    /// The weights of this model out of those of a narrower one, by name (Net2Net).
    ///
    /// # Errors
    ///
    /// A narrower model out of which this one cannot be made.
    fn widen(&self, narrow: &Self, tensors: &Tensors) -> Result<Tensors, ConfigError> {
        let _ = (narrow, tensors);
        Err(not_widened(&Architecture::name(self)))
    }
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, TensorData>;

/// What an architecture says that Net2Net is not for.
pub fn not_widened(name: &str) -> ConfigError {
    ConfigError::new(
        "model",
        format!("is {name}; only GPT-2 is widened by Net2Net"),
    )
}

/// The ends of architecture `A`.
pub type EndsOf<B, A> = <A as Architecture>::Ends<B>;

/// How a parameter of a smaller model becomes one with more rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// The new rows are zero.
    Zero,
    /// The new rows stay as they were drawn.
    Fresh,
}

/// The config of a language model.
pub trait ModelConfig:
    Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The model it builds.
    type Model<B: Backend>: LanguageModel<B>;

    /// The name of the architecture, for tables and logs.
    fn name(&self) -> String;

    /// Checks every field and `vocab_size`.
    fn validate(&self, vocab_size: usize) -> Result<(), ConfigError>;

    /// Most positions that the model takes.
    fn context(&self) -> usize;

    /// Whether a forward pass under autodiff draws random numbers.
    fn has_dropout(&self) -> bool;

    /// Builds a model of `vocab_size` token ids and logits of width `n_output`, with fresh
    /// parameters drawn from the backend's generator: call `B::seed` first to repeat it.
    ///
    /// # Errors
    ///
    /// What [`validate`](Self::validate) finds.
    fn build<B: Backend>(
        &self,
        vocab_size: usize,
        n_output: usize,
        device: &B::Device,
    ) -> Result<Self::Model<B>, ConfigError>;

    /// Exact counts of trained parameters and FLOPs of what [`build`](Self::build) makes. FLOPs are
    /// per token at full context, the logits of every token included, though a classifier reads
    /// those of the last alone; a connection counts all streams it may read.
    fn cost_of(&self, vocab_size: usize, n_output: usize) -> Cost;

    /// As [`Architecture::growth`].
    fn growth(&self, name: &str) -> Option<Growth> {
        let _ = name;
        None
    }

    /// As [`Architecture::widen`].
    ///
    /// # Errors
    ///
    /// As there.
    fn widen(&self, narrow: &Self, tensors: &Tensors) -> Result<Tensors, ConfigError> {
        let _ = (narrow, tensors);
        Err(not_widened(&self.name()))
    }

    /// Builds a language model: [`build`](Self::build) with as many outputs as token ids.
    ///
    /// # Errors
    ///
    /// What [`validate`](Self::validate) finds.
    fn init<B: Backend>(
        &self,
        vocab_size: usize,
        device: &B::Device,
    ) -> Result<Self::Model<B>, ConfigError> {
        self.build(vocab_size, vocab_size, device)
    }

    /// The cost of a language model.
    fn cost(&self, vocab_size: usize) -> Cost {
        self.cost_of(vocab_size, vocab_size)
    }
}

impl<A: Architecture> ModelConfig for A {
    type Model<B: Backend> = Decoder<B, A::Ends<B>, Stack<B, A::Block<B, Plain>>>;

    fn name(&self) -> String {
        Architecture::name(self)
    }

    fn validate(&self, vocab_size: usize) -> Result<(), ConfigError> {
        check::at_least_one("vocab_size", vocab_size)?;
        Architecture::validate(self)
    }

    fn context(&self) -> usize {
        Architecture::context(self)
    }

    fn has_dropout(&self) -> bool {
        self.dropout() > 0.0
    }

    fn build<B: Backend>(
        &self,
        vocab_size: usize,
        n_output: usize,
        device: &B::Device,
    ) -> Result<Self::Model<B>, ConfigError> {
        ModelConfig::validate(self, vocab_size)?;
        check::at_least_one("n_output", n_output)?;
        let ends = self.ends(vocab_size, n_output, device);
        let layers = (0..self.n_layer()).map(|layer| self.block(layer, Plain::default, device));
        let model = Decoder::new(ends, Stack::new(layers.collect()));
        materialise(&model);
        Ok(model)
    }

    fn cost_of(&self, vocab_size: usize, n_output: usize) -> Cost {
        let layer = self.block_cost(Architecture::context(self));
        self.ends_cost(vocab_size, n_output) + layer * self.n_layer()
    }

    fn growth(&self, name: &str) -> Option<Growth> {
        Architecture::growth(self, name)
    }

    fn widen(&self, narrow: &Self, tensors: &Tensors) -> Result<Tensors, ConfigError> {
        Architecture::widen(self, narrow, tensors)
    }
}

/// Draws every parameter now. Burn 0.21 draws a parameter at its first use, and clones of one
/// not yet drawn get values of their own.
pub fn materialise<B: Backend, M: Module<B>>(model: &M) {
    model.num_params();
}
