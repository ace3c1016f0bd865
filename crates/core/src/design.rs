//! The trait of a connection's config.

use std::fmt::Debug;

use burn::tensor::backend::Backend;
use serde::{Serialize, de::DeserializeOwned};

use crate::{ConfigError, Connection, Cost, Ends, ImageSize, Vocabulary};

/// The config of a connection. It builds the connection of each update and the ends of the stream.
pub trait Design:
    Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The connection of an update.
    type Connection<B: Backend>: Connection<B>;
    /// Both ends of the stream; [`Plain`](crate::Plain) if nothing happens there.
    type Ends<B: Backend>: Ends<B>;

    /// The name of the design, for tables and logs.
    fn name(&self) -> &'static str;

    /// Checks every field, and that the design makes sense on this stream.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    fn validate(&self, on: &Sites) -> Result<(), ConfigError>;

    /// Requirements on a surrounding model that updates the stream `updates` times; by default, the requirements of
    /// plain connections.
    fn frame(&self, updates: usize) -> Frame {
        let _ = updates;
        Frame::default()
    }

    /// Whether trained weights of the design `before` fit this one; by default, whether both are equal. Implementations
    /// should ignore fields that only set initial weights.
    fn continues(&self, before: &Self) -> bool {
        self == before
    }

    /// The number of streams that connections keep side by side; by default one.
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

    /// Cost of all connections on a stream, and of its ends.
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
    /// Whether the layers have attention.
    pub attention: bool,
    /// Whether a connection surrounds a whole layer, with plain connections inside.
    pub around_layers: bool,
    /// Whether a recurrence surrounds each layer, so that each layer has its own stream.
    pub recurrent: bool,
    /// Whether the layers come from several architectures.
    pub mixed: bool,
    /// Whether a norm follows the end of the stream, so that the scale of the stream does not matter.
    pub into_norm: bool,
}

impl Sites {
    /// Places a connection around each of the `n_sublayer` sublayers of `n_layer` layers.
    pub fn sublayers(width: usize, n_layer: usize, n_sublayer: usize) -> Self {
        Self {
            width,
            count: n_layer * n_sublayer,
            per_layer: n_sublayer,
            attention: true,
            around_layers: false,
            recurrent: false,
            mixed: false,
            into_norm: true,
        }
    }

    /// The layer of connection `i`.
    pub fn layer(&self, i: usize) -> usize {
        i / self.per_layer
    }

    /// Whether connection `i` surrounds attention.
    pub fn is_attention(&self, i: usize) -> bool {
        self.attention && !self.around_layers && i.is_multiple_of(self.per_layer)
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
            true => Ok(()),
            false => Err(ConfigError::new(
                name,
                format!("does not go with layers without attention, because {reason}"),
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
    /// Multiplier of the initial value weights and of the initial first matrices of feed-forward networks.
    pub inner: f64,
    /// Multiplier of the initial projections to the stream.
    pub output: f64,
    /// Whether initial projections to the stream shrink with depth, in architectures that shrink them for plain
    /// connections.
    pub by_depth: bool,
}

impl Default for Frame {
    /// The frame of a language model with plain connections.
    fn default() -> Self {
        Self {
            image: None,
            pre_norm: true,
            final_norm: true,
            feed_forward: true,
            inner: 1.0,
            output: 1.0,
            by_depth: true,
        }
    }
}

impl Frame {
    /// Sets the input that the model reads.
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
