//! The trait of a connection's config.

use std::fmt::Debug;

use burn::tensor::backend::Backend;
use serde::{Serialize, de::DeserializeOwned};

use crate::{AttentionSize, ConfigError, Connection, Cost, Ends, ImageSize, Vocabulary};

/// The config of a connection. It builds the connection of each update and the ends of the stream.
pub trait Design:
    Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The connection of an update.
    type Connection<B: Backend>: Connection<B>;
    /// Both ends of the stream; [`Plain`](crate::Plain) if nothing happens there.
    type Ends<B: Backend>: Ends<B>;

    /// Returns the name of the design, for tables and logs.
    fn name(&self) -> &'static str;

    /// Checks every field, and that the design suits the stream `on`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field, or the design if it does not suit the stream.
    fn validate(&self, on: &Sites) -> Result<(), ConfigError>;

    /// Returns the requirements on a surrounding model that updates the stream `updates` times; by default, the
    /// requirements of plain connections.
    fn frame(&self, updates: usize) -> Frame {
        let _ = updates;
        Frame::default()
    }

    /// Whether trained weights of the design `before` fit this design; by default, whether the two designs are equal.
    /// Implementations should ignore fields that only set initial weights.
    fn continues(&self, before: &Self) -> bool {
        self == before
    }

    /// Returns the number of streams that connections keep side by side; by default one.
    fn copies(&self) -> usize {
        1
    }

    /// Builds connection `i`, counted from 0 along the stream.
    fn connection<B: Backend>(
        &self,
        on: &Sites,
        i: usize,
        device: &B::Device,
    ) -> Self::Connection<B>;

    /// Builds the ends of the stream.
    fn ends<B: Backend>(&self, on: &Sites, device: &B::Device) -> Self::Ends<B>;

    /// Returns the cost of all connections on a stream, and of its ends.
    fn cost(&self, on: &Sites) -> Cost;
}

/// The connection of design `D`.
pub type ConnectionOf<B, D> = <D as Design>::Connection<B>;

/// The ends of the stream of design `D`.
pub type EndsOf<B, D> = <D as Design>::Ends<B>;

/// The connections on one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sites {
    /// Width of the stream, D.
    pub width: usize,
    /// Number of connections on the stream.
    pub count: usize,
    /// Number of connections in a layer. If the layers have attention, the first connection surrounds it.
    pub per_layer: usize,
    /// The attention of the layers; `None` if they have none. If the layers come from several architectures, this is
    /// the attention of the first architecture, but `three_inputs` is true only if it is true for all architectures.
    pub attention: Option<AttentionSize>,
    /// Whether a connection surrounds a whole layer, with plain connections inside.
    pub around_layers: bool,
    /// Whether a recurrence surrounds each layer, so that each layer has its own stream.
    pub recurrent: bool,
    /// Whether the layers come from several architectures.
    pub mixed: bool,
    /// Number of token ids, if the stream has the [ids](crate::Stream::ids) of its positions. Validation does not know
    /// the vocabulary, so it sets this field to 1.
    pub ids: Option<usize>,
    /// Whether a norm follows the end of the stream, so that the scale of the stream does not matter.
    pub into_norm: bool,
}

impl Sites {
    /// Places a connection around each of the `n_sublayer` sublayers of `n_layer` layers, whose attention has one head.
    pub fn sublayers(width: usize, n_layer: usize, n_sublayer: usize) -> Self {
        Self {
            width,
            count: n_layer * n_sublayer,
            per_layer: n_sublayer,
            attention: Some(AttentionSize::of_heads(1, width)),
            around_layers: false,
            recurrent: false,
            mixed: false,
            ids: Some(1),
            into_norm: true,
        }
    }

    /// Returns the number of layers on the stream.
    pub fn layers(&self) -> usize {
        self.count / self.per_layer.max(1)
    }

    /// Returns the layer of connection `i`.
    pub fn layer(&self, i: usize) -> usize {
        i / self.per_layer
    }

    /// Whether connection `i` surrounds attention.
    pub fn is_attention(&self, i: usize) -> bool {
        self.attention.is_some() && !self.around_layers && i.is_multiple_of(self.per_layer)
    }

    /// Refuses the design called `name` around layers, for the given `reason`.
    ///
    /// # Errors
    ///
    /// Returns an error if connections surround layers.
    pub fn need_sublayers(&self, name: &str, reason: &str) -> Result<(), ConfigError> {
        match self.around_layers {
            true => Err(ConfigError::new(
                name,
                format!("does not go around layers, because {reason}; use PerSublayer"),
            )),
            false => Ok(()),
        }
    }

    /// Refuses the design called `name` on layers without attention, for the given `reason`.
    ///
    /// # Errors
    ///
    /// Returns an error if the layers have no attention.
    pub fn need_attention(&self, name: &str, reason: &str) -> Result<(), ConfigError> {
        match self.attention {
            Some(_) => Ok(()),
            None => Err(ConfigError::new(
                name,
                format!("does not go with layers without attention, because {reason}"),
            )),
        }
    }

    /// Refuses the design called `name` where q, k and v of the attention cannot read different inputs, for the given
    /// `reason`.
    ///
    /// # Errors
    ///
    /// Returns an error if the layers have no attention, or if their attention reads a single input.
    pub fn need_inputs(&self, name: &str, reason: &str) -> Result<(), ConfigError> {
        self.need_attention(name, reason)?;
        match self.attention {
            Some(attention) if !attention.three_inputs => Err(ConfigError::new(
                name,
                format!(
                    "does not go with an attention whose output depends on its input in other ways than through q, k \
                     and v, as in nGPT and with norms of the sum, because {reason}"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses the design called `name` on a stream without token ids, for the given `reason`.
    ///
    /// # Errors
    ///
    /// Returns an error if the model reads images, or if a recurrence surrounds each layer.
    pub fn need_ids(&self, name: &str, reason: &str) -> Result<(), ConfigError> {
        let without = match self.recurrent {
            true => "a recurrence",
            false => "images",
        };
        match self.ids {
            Some(_) => Ok(()),
            None => Err(ConfigError::new(
                name,
                format!("does not go with {without}, where positions have no token ids: {reason}"),
            )),
        }
    }

    /// Refuses the design called `name` in a recurrence, for the given `reason`.
    ///
    /// # Errors
    ///
    /// Returns an error if a recurrence surrounds each layer.
    pub fn need_depth(&self, name: &str, reason: &str) -> Result<(), ConfigError> {
        match self.recurrent {
            true => Err(ConfigError::new(
                name,
                format!(
                    "does not go with a recurrence, because {reason}, and in a recurrence each layer starts a new stream"
                ),
            )),
            false => Ok(()),
        }
    }
}

/// Properties of a model that its layers depend on: the requirements of its connections, and its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    /// The images that the model reads; `None` if it reads token ids.
    pub image: Option<ImageSize>,
    /// Whether each branch begins with a norm.
    pub pre_norm: bool,
    /// Whether a norm precedes the unembedding.
    pub final_norm: bool,
    /// Whether layers have a feed-forward network.
    pub feed_forward: bool,
    /// Whether the attention of every layer projects its own values. If not, only the first layer of each stream
    /// projects values, and the connections supply the values of the other layers. [`AttentionSize::without_values`]
    /// says whether layers can omit the value projection.
    pub own_values: bool,
    /// Multiplier of the initial weights of value projections and of the first matrix of each feed-forward network.
    pub inner: f64,
    /// Multiplier of the initial weights of projections to the stream.
    pub output: f64,
    /// Whether initial projections to the stream shrink with depth, in architectures that shrink them for plain
    /// connections.
    pub by_depth: bool,
}

impl Default for Frame {
    /// Returns the frame of a language model with plain connections.
    fn default() -> Self {
        Self {
            image: None,
            pre_norm: true,
            final_norm: true,
            feed_forward: true,
            own_values: true,
            inner: 1.0,
            output: 1.0,
            by_depth: true,
        }
    }
}

impl Frame {
    /// Sets the model's input to the input of this `vocabulary`.
    pub fn reading(self, vocabulary: Vocabulary) -> Self {
        Self {
            image: vocabulary.image(),
            ..self
        }
    }

    /// Whether a position attends only to itself and earlier positions. Positions of an image have no order.
    pub fn causal(&self) -> bool {
        self.image.is_none()
    }
}
