//! The config of nGPT.

use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Architecture, AttentionSize, ConfigError, Connection, Cost, Frame, Shape, Transfer, Vocabulary,
    check,
};
use serde::{Deserialize, Serialize};

use crate::{Attention, Block, Factor, Mlp, NgptPositions, UnitEmbeddings, embeddings};

/// The config of nGPT. Fields that the run file omits have the values of [`Default`]: the size of GPT-2 small.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NgptConfig {
    /// Number of layers, L.
    pub n_layer: usize,
    /// Number of heads, H. Must divide `width`, and width / `n_head` must be even.
    pub n_head: usize,
    /// Width of the stream, D.
    pub width: usize,
    /// Width of the feed-forward network. `None` means 4 · width, as in the paper, although the network has a gate.
    pub d_ff: Option<usize>,
    /// Maximum number of positions.
    pub context: usize,
    /// The way queries and keys encode their positions.
    pub positions: NgptPositions,
    /// Base of the position angles.
    pub rotary_base: f64,
    /// Dropout on h_0, on the attention weights and on the output of each sublayer before it is normalised.
    pub dropout: f64,
}

impl Default for NgptConfig {
    fn default() -> Self {
        Self {
            n_layer: 12,
            n_head: 12,
            width: 768,
            d_ff: None,
            context: 1024,
            positions: NgptPositions::Rotary,
            rotary_base: 10_000.0,
            dropout: 0.0,
        }
    }
}

impl NgptConfig {
    /// Returns the width of a head, d.
    pub fn head_dim(&self) -> usize {
        self.width / self.n_head
    }

    /// Returns the width of the feed-forward network.
    pub fn d_ff(&self) -> usize {
        self.d_ff.unwrap_or(4 * self.width)
    }

    /// Returns 1/√D: the standard deviation of the initial weights that do not project to the stream, and the initial
    /// stored value of most factors.
    pub(crate) fn std(&self) -> f64 {
        (self.width as f64).powf(-0.5)
    }

    /// Returns the standard deviation of the initial projections to the stream, 1/√(2 L D).
    pub(crate) fn std_of_output(&self) -> f64 {
        self.std() * (2.0 * self.n_layer as f64).powf(-0.5)
    }

    /// Builds α of a sublayer, initially 0.05.
    pub(crate) fn alpha<B: Backend>(&self, device: &B::Device) -> Factor<B> {
        Factor::new(self.width, 0.05, self.std(), device)
    }
}

impl Architecture for NgptConfig {
    type Block<B: Backend, C: Connection<B>> = Block<B, C>;
    type Embeddings<B: Backend> = UnitEmbeddings<B>;

    fn name(&self) -> &'static str {
        "nGPT"
    }

    fn shape(&self) -> Shape {
        Shape {
            context: self.context,
            width: self.width,
            n_layer: self.n_layer,
            n_sublayer: 2,
            dropout: self.dropout,
        }
    }

    fn attention(&self) -> Option<AttentionSize> {
        Some(AttentionSize {
            three_inputs: false,
            ..AttentionSize::of_heads(self.n_head, self.head_dim())
        })
    }

    fn is_constrained(&self) -> bool {
        true
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.shape().validate()?;
        check::at_least_one("n_head", self.n_head)?;
        check::divides(("n_head", self.n_head), ("width", self.width))?;
        let d = self.head_dim();
        if !d.is_multiple_of(2) {
            let problem = format!(
                "is {}, so each head has {d} of the {} coordinates of `width`, but positions need pairs; choose \
                 `n_head` and `width` so that width / n_head is even",
                self.n_head, self.width
            );
            return Err(ConfigError::new("n_head", problem));
        }
        check::at_least_one("d_ff", self.d_ff())?;
        check::positive("rotary_base", self.rotary_base)
    }

    fn embeddings<B: Backend>(
        &self,
        vocabulary: Vocabulary,
        _: &Frame,
        device: &B::Device,
    ) -> UnitEmbeddings<B> {
        UnitEmbeddings::new(self, vocabulary, device)
    }

    fn block<B: Backend, C: Connection<B>>(
        &self,
        _: usize,
        frame: &Frame,
        mut connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Block<B, C> {
        let attention = (Attention::new(self, frame, device), connection());
        let mlp = || (Mlp::new(self, device), connection());
        Block::new(attention, frame.feed_forward.then(mlp))
    }

    fn embeddings_cost(&self, vocabulary: Vocabulary, _: &Frame) -> Cost {
        embeddings::cost(self.width, vocabulary)
    }

    fn block_cost(&self, _: usize, time: usize, frame: &Frame) -> Cost {
        let (width, d_ff) = (self.width, self.d_ff());
        // The vectors are α and s_qk.
        let attention = Cost::linear(width, width, false) * 4
            + Cost::attention(time, width)
            + Cost::vector(width) * 2;
        // The vectors are α, s_u and s_v.
        let mlp = Cost::linear(width, d_ff, false) * 2
            + Cost::linear(d_ff, width, false)
            + Cost::vector(width)
            + Cost::vector(d_ff) * 2;
        match frame.feed_forward {
            true => attention + mlp,
            false => attention,
        }
    }
}

impl Transfer for NgptConfig {}
