//! The trait that each architecture crate implements.

use std::fmt::Debug;

use burn::tensor::backend::Backend;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    AttentionSize, ConfigError, Connection, Cost, Decoder, Embeddings, Frame, ImageSize,
    ModelConfig, Plain, Reads, ResidualBlock, Stack, Tensors, TokenEmbeddingsOptions, Transfer,
    check, unit,
};

/// The main sizes of a model, for code outside its architecture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Maximum number of positions.
    pub context: usize,
    /// Width of the stream.
    pub width: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Number of sublayers per layer. Each sublayer is one update of the stream.
    pub n_sublayer: usize,
    /// Dropout probability, 0 for no dropout.
    pub dropout: f64,
}

impl Shape {
    /// Checks that `n_layer`, `width` and `context` are from 1 to [`check::MOST`] and that the dropout is in [0, 1).
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::size("n_layer", self.n_layer)?;
        check::size("width", self.width)?;
        check::size("context", self.context)?;
        check::fraction("dropout", self.dropout)
    }
}

/// The size of one stream of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSize {
    /// Width of the stream.
    pub width: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Whether this stream is a single update between two streams of different shapes. The connection of this update
    /// then opens and closes the stream.
    pub alone: bool,
}

/// The kind and size of a model's input, and the size of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// The kind of input, token ids or images, and its size.
    pub reads: Reads,
    /// Width of the logits: the number of token ids of a language model, or of classes of a
    /// classifier.
    pub outputs: usize,
}

impl Vocabulary {
    /// Makes a vocabulary of `ids` token ids and `outputs` logits.
    pub fn new(ids: usize, outputs: usize) -> Self {
        let reads = Reads::Ids(ids);
        Self { reads, outputs }
    }

    /// Makes a vocabulary with images of this `size` as input and `classes` classes as output.
    pub fn of_images(size: ImageSize, classes: usize) -> Self {
        Self {
            reads: Reads::Images(size),
            outputs: classes,
        }
    }

    /// Returns the number of token ids; 0 for images.
    pub fn ids(&self) -> usize {
        match self.reads {
            Reads::Ids(ids) => ids,
            Reads::Images(_) => 0,
        }
    }

    /// Returns the size of the images; `None` for token ids.
    pub fn image(&self) -> Option<ImageSize> {
        match self.reads {
            Reads::Ids(_) => None,
            Reads::Images(size) => Some(size),
        }
    }

    /// Checks that each number is from 1 to [`check::MOST`], including the number of pixels in an image.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid number.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self.reads {
            Reads::Ids(ids) => check::size("vocab_size", ids)?,
            Reads::Images(ImageSize {
                channels,
                height,
                width,
            }) => {
                check::size("channels of the images", channels)?;
                check::size("height of the images", height)?;
                check::size("width of the images", width)?;
                check::size("pixels of an image", height * width)?;
            }
        }
        check::size("outputs", self.outputs)
    }
}

/// The vocabulary of a language model with `ids` token ids.
impl From<usize> for Vocabulary {
    fn from(ids: usize) -> Self {
        Self::new(ids, ids)
    }
}

/// The config of an architecture. It builds the embeddings and the layers, with any connection around each sublayer.
pub trait Architecture:
    Transfer + Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// One layer with a connection of type `C` around each sublayer.
    type Block<B: Backend, C: Connection<B>>: ResidualBlock<B>;
    /// The module that maps the input to the stream and the stream to logits.
    type Embeddings<B: Backend>: Embeddings<B>;

    /// Returns the name of the architecture, for tables and logs.
    fn name(&self) -> &'static str;

    /// Returns the sizes of the model.
    fn shape(&self) -> Shape;

    /// Returns the streams of the model, in order from the input; by default one. Together, the streams contain all
    /// layers. The layers of a stream have the same cost.
    fn streams(&self) -> Vec<StreamSize> {
        let Shape { width, n_layer, .. } = self.shape();
        vec![StreamSize {
            width,
            n_layer,
            alone: false,
        }]
    }

    /// Returns the number of positions of the stream after layer `layer`, for sequences of `time` tokens; by default
    /// `time`.
    fn positions(&self, layer: usize, time: usize, frame: &Frame) -> usize {
        let _ = (layer, frame);
        time
    }

    /// Returns the sizes of the layers' attention, if their first sublayer is attention; by default `None`. A
    /// connection that changes attention needs these sizes.
    fn attention(&self) -> Option<AttentionSize> {
        None
    }

    /// Whether the embeddings read images instead of token ids. The model then has no incremental pass.
    fn reads_images(&self) -> bool {
        false
    }

    /// Whether a training pass updates [running statistics](crate::statistics).
    fn has_statistics(&self) -> bool {
        false
    }

    /// Returns the config that is hashed in place of this one, as [`ModelConfig::hashed`]; by default this config.
    fn hashed(&self) -> Self {
        self.clone()
    }

    /// Whether the layers or the embeddings have matrices of [unit vectors](crate::unit). After initialisation and
    /// after every optimizer step, [`ModelConfig::constrain`] then sets the lengths of these vectors to 1.
    fn is_constrained(&self) -> bool {
        false
    }

    /// Checks every field; by default, only the sizes and the dropout of the [`shape`](Self::shape).
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    fn validate(&self) -> Result<(), ConfigError> {
        self.shape().validate()
    }

    /// Builds the embeddings of a model with this `frame`.
    fn embeddings<B: Backend>(
        &self,
        vocabulary: Vocabulary,
        frame: &Frame,
        device: &B::Device,
    ) -> Self::Embeddings<B>;

    /// Returns the options of the tables and the final norm, for image embeddings that replace the token embeddings.
    /// Returns `None` if no image embeddings can replace them.
    fn tables(&self, vocabulary: Vocabulary, frame: &Frame) -> Option<TokenEmbeddingsOptions> {
        let _ = (vocabulary, frame);
        None
    }

    /// Builds layer `layer`, counted from 0, of a model with this `frame`. Calls `connection` once per sublayer, in
    /// the order in which the sublayers update the stream.
    fn block<B: Backend, C: Connection<B>>(
        &self,
        layer: usize,
        frame: &Frame,
        connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Self::Block<B, C>;

    /// Returns the cost of the embeddings of a model with this `frame`.
    fn embeddings_cost(&self, vocabulary: Vocabulary, frame: &Frame) -> Cost;

    /// Returns the cost of layer `layer` of a model with this `frame` and plain connections, for sequences of `time`
    /// tokens. If the embeddings read images, the FLOPs are per image.
    fn block_cost(&self, layer: usize, time: usize, frame: &Frame) -> Cost;

    /// Builds the model with plain connections and fresh weights. The weights are drawn from the
    /// backend's random generator, so call `B::seed` first for reproducible weights.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ModelConfig::build`].
    fn build<B: Backend>(
        &self,
        vocabulary: impl Into<Vocabulary>,
        device: &B::Device,
    ) -> Result<DecoderOf<B, Self>, ConfigError> {
        PlainModel(self.clone()).build(vocabulary, device)
    }

    /// Returns the cost of the model with plain connections.
    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost {
        let vocabulary = vocabulary.into();
        let (context, frame) = (self.shape().context, Frame::default().reading(vocabulary));
        let mut layer = 0;
        let streams = self.streams().into_iter().map(|stream| {
            let first = layer;
            layer += stream.n_layer;
            self.block_cost(first, context, &frame) * stream.n_layer
        });
        streams.fold(self.embeddings_cost(vocabulary, &frame), |sum, cost| {
            sum + cost
        })
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

    fn validate_fields(&self) -> Result<(), ConfigError> {
        self.0.validate()
    }

    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn reads(&self, vocabulary: Vocabulary) -> Result<(), ConfigError> {
        match (self.0.reads_images(), vocabulary.reads) {
            (true, Reads::Images(_)) | (false, Reads::Ids(_)) => Ok(()),
            (false, Reads::Images(_)) => Err(ConfigError::new(
                "model",
                "reads token ids, but the data are images",
            )),
            (true, Reads::Ids(_)) => Err(ConfigError::new(
                "model",
                "reads images, but the data are token ids",
            )),
        }
    }

    fn hashed(&self) -> Self {
        Self(self.0.hashed())
    }

    fn has_statistics(&self) -> bool {
        self.0.has_statistics()
    }

    fn constrain<B: Backend>(&self, model: Self::Model<B>) -> Self::Model<B> {
        match self.0.is_constrained() {
            true => unit::normalise(model),
            false => model,
        }
    }

    fn assemble<B: Backend>(&self, vocabulary: Vocabulary, device: &B::Device) -> Self::Model<B> {
        let frame = Frame::default().reading(vocabulary);
        let layer = |i| self.0.block(i, &frame, Plain::default, device);
        let layers = (0..self.shape().n_layer).map(layer).collect();
        let embeddings = self.0.embeddings(vocabulary, &frame, device);
        Decoder::new(embeddings, Stack::new(layers))
    }

    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost {
        self.0.cost(vocabulary)
    }
}

impl<A: Architecture> Transfer for PlainModel<A> {
    fn tuned(&self) -> Option<&'static str> {
        self.0.tuned()
    }

    fn rate(&self, name: &str) -> f64 {
        self.0.rate(name)
    }

    fn has_rates(&self) -> bool {
        self.0.has_rates()
    }

    fn grows_from(&self, smaller: &Self) -> Result<(), ConfigError> {
        self.0.grows_from(&smaller.0)
    }

    fn grow(
        &self,
        smaller: &Self,
        weights: Tensors,
        fresh: &Tensors,
    ) -> Result<Tensors, ConfigError> {
        self.0.grow(&smaller.0, weights, fresh)
    }

    fn merge(
        &self,
        weights: &Tensors,
        (other, of_other): (&Self, &Tensors),
        value_scale: f64,
    ) -> Result<(Self, Tensors), ConfigError> {
        let merged = self.0.merge(weights, (&other.0, of_other), value_scale);
        merged.map(|(config, weights)| (Self(config), weights))
    }
}
