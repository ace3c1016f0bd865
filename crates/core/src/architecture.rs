//! What the crate of an architecture provides.

use std::collections::BTreeMap;
use std::fmt::Debug;

use burn::module::Module;
use burn::tensor::{TensorData, backend::Backend};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    ConfigError, Connection, Cost, Decoder, Embeddings, ModelConfig, Plain, ResidualBlock, Stack,
    check,
};

/// The sizes of a model that other parts must know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Most positions that the model takes.
    pub context: usize,
    /// Width of the stream.
    pub width: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Number of sublayers in a layer, each an update of the stream.
    pub n_sublayer: usize,
    /// Dropout probability, 0 for no dropout.
    pub dropout: f64,
}

impl Shape {
    /// Checks that every size is at least 1 and that the dropout is in [0, 1).
    ///
    /// # Errors
    ///
    /// The first field that no model can have.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::at_least_one("n_layer", self.n_layer)?;
        check::at_least_one("width", self.width)?;
        check::at_least_one("context", self.context)?;
        check::fraction("dropout", self.dropout)
    }
}

/// What a model reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Number of token ids.
    pub ids: usize,
    /// Width of the logits: the number of token ids in a language model, the number of classes in a
    /// classifier.
    pub outputs: usize,
}

impl Vocabulary {
    /// Checks that there is an id and an output.
    ///
    /// # Errors
    ///
    /// The number that is 0.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::at_least_one("vocab_size", self.ids)?;
        check::at_least_one("outputs", self.outputs)
    }
}

/// The vocabulary of a language model with so many token ids.
impl From<usize> for Vocabulary {
    fn from(ids: usize) -> Self {
        Self { ids, outputs: ids }
    }
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, TensorData>;

/// An architecture: its embeddings, and a layer that takes any connection around its sublayers.
pub trait Architecture:
    Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// One layer, with a connection of type `C` around each sublayer.
    type Block<B: Backend, C: Connection<B>>: ResidualBlock<B>;
    /// What maps ids to the stream and the stream to logits.
    type Embeddings<B: Backend>: Embeddings<B>;

    /// The name of the architecture, for tables and logs.
    fn name(&self) -> &'static str;

    /// The sizes of the model.
    fn shape(&self) -> Shape;

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field that no model can have.
    fn validate(&self) -> Result<(), ConfigError> {
        self.shape().validate()
    }

    /// Builds the embeddings.
    fn embeddings<B: Backend>(
        &self,
        vocabulary: Vocabulary,
        device: &B::Device,
    ) -> Self::Embeddings<B>;

    /// Builds layer `layer`, counted from 0. `connection` is called once for each sublayer, in
    /// the order in which they update the stream.
    fn block<B: Backend, C: Connection<B>>(
        &self,
        layer: usize,
        connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Self::Block<B, C>;

    /// The cost of the embeddings.
    fn embeddings_cost(&self, vocabulary: Vocabulary) -> Cost;

    /// The cost of one layer with plain connections, applied to sequences of `time` tokens.
    fn block_cost(&self, time: usize) -> Cost;

    /// The weights of this model, made from the `weights` of a `smaller` one. `fresh` are the initial
    /// weights of this model. An architecture that does not grow returns `weights` as they are.
    ///
    /// # Errors
    ///
    /// A smaller model that this one cannot be made from.
    fn grow(
        &self,
        smaller: &Self,
        weights: Tensors,
        fresh: &Tensors,
    ) -> Result<Tensors, ConfigError> {
        let _ = (smaller, fresh);
        Ok(weights)
    }

    /// Builds the model with plain connections and fresh weights, which are drawn from the backend's
    /// generator: call `B::seed` first to repeat it.
    ///
    /// # Errors
    ///
    /// What [`validate`](Self::validate) finds.
    fn build<B: Backend>(
        &self,
        vocabulary: impl Into<Vocabulary>,
        device: &B::Device,
    ) -> Result<DecoderOf<B, Self>, ConfigError> {
        let vocabulary = vocabulary.into();
        vocabulary.validate()?;
        self.validate()?;
        let embeddings = self.embeddings(vocabulary, device);
        let layers = (0..self.shape().n_layer).map(|i| self.block(i, Plain::default, device));
        let model = Decoder::new(embeddings, Stack::new(layers.collect()));
        materialise(&model);
        Ok(model)
    }

    /// The cost of the model with plain connections.
    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost {
        let Shape {
            context, n_layer, ..
        } = self.shape();
        self.embeddings_cost(vocabulary.into()) + self.block_cost(context) * n_layer
    }
}

/// The embeddings of architecture `A`.
pub type EmbeddingsOf<B, A> = <A as Architecture>::Embeddings<B>;

/// The model of architecture `A` with plain connections.
pub type DecoderOf<B, A> =
    Decoder<B, EmbeddingsOf<B, A>, Stack<B, <A as Architecture>::Block<B, Plain>>>;

/// The config of a model of one architecture with plain connections.
#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
#[serde(transparent, bound = "A: Architecture")]
pub struct PlainModel<A>(pub A);

impl<A: Architecture> ModelConfig for PlainModel<A> {
    type Model<B: Backend> = DecoderOf<B, A>;

    fn name(&self) -> String {
        self.0.name().into()
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.0.validate()
    }

    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn build<B: Backend>(
        &self,
        vocabulary: impl Into<Vocabulary>,
        device: &B::Device,
    ) -> Result<Self::Model<B>, ConfigError> {
        self.0.build(vocabulary, device)
    }

    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost {
        self.0.cost(vocabulary)
    }

    fn grow(
        &self,
        smaller: &Self,
        weights: Tensors,
        fresh: &Tensors,
    ) -> Result<Tensors, ConfigError> {
        self.0.grow(&smaller.0, weights, fresh)
    }
}

/// Draws every parameter now. Burn 0.21 draws a parameter at its first use, and clones of one
/// not yet drawn get values of their own.
pub fn materialise<B: Backend, M: Module<B>>(model: &M) {
    model.num_params();
}
