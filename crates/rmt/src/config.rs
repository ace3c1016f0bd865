//! Sizes and switches of the Residual Matrix Transformer.

use burn::module::{Initializer, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{
    Activation, Architecture, ConfigError, Connection, Cost, NormParams, Params, check,
};
use serde::{Deserialize, Serialize};

use crate::{Attention, Block, FeedForward, RmtEnds};

/// How a residual matrix is normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NormKind {
    /// LayerNorm, as in the paper.
    #[default]
    LayerNorm,
    /// RMSNorm, as in the authors' code.
    RmsNorm,
}

/// How positions enter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Positions {
    /// Learned, stored in the matrix under keys of their own (eq. 19), as in the paper.
    #[default]
    Learned,
    /// ALiBi on the attention scores, as in the authors' code.
    Alibi,
}

/// The config of an RMT. Fields that a file leaves out have the values of [`Default`]: the
/// smallest model of Table 9, in the paper's form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RmtConfig {
    /// Number of layers, L.
    pub n_layer: usize,
    /// Rows of the residual matrix, D_k: the length of a key.
    pub d_k: usize,
    /// Columns of the residual matrix, D_v: the length of a data vector and of an attention head.
    pub d_v: usize,
    /// Number of data vectors stored or retrieved at a time, R, and of attention heads.
    pub rank: usize,
    /// Width of the feed-forward network, D_FF; `None` is 4 · R · D_v.
    pub d_ff: Option<usize>,
    /// Most positions, N.
    pub context: usize,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// The norm.
    pub norm: NormKind,
    /// Where positions enter.
    pub positions: Positions,
    /// Divide the attention scores of layer l, counted from 0, by l + 1 (Appendix C.1).
    pub inverse_layer_scale: bool,
    /// Dropout on X^(0), on the attention weights and on what each sublayer adds. The paper has
    /// none.
    pub dropout: f64,
    /// Added to the variance in norms (Appendix C.1).
    pub norm_eps: f64,
    /// Standard deviation of the initial tables W_E and W_PE. Everything else has Xavier's.
    pub init_std: f64,
    /// Start w_O and w_FF at 1/√(2L) of Xavier's, as Appendix C.1 and the authors' code do and
    /// Table 2 does not.
    pub scaled_outputs: bool,
}

impl Default for RmtConfig {
    fn default() -> Self {
        Self {
            n_layer: 6,
            d_k: 32,
            d_v: 32,
            rank: 12,
            d_ff: None,
            context: 512,
            activation: Activation::GeluTanh,
            norm: NormKind::LayerNorm,
            positions: Positions::Learned,
            inverse_layer_scale: false,
            dropout: 0.0,
            norm_eps: 1e-6,
            init_std: 0.02,
            scaled_outputs: false,
        }
    }
}

impl RmtConfig {
    /// Table 9, row 1: 46M parameters.
    pub fn m46() -> Self {
        Self::default()
    }

    /// Table 9, row 2: 134M parameters.
    pub fn m134() -> Self {
        Self {
            n_layer: 12,
            d_v: 64,
            ..Self::default()
        }
    }

    /// Table 9, row 3: 206M parameters. The table prints the transformer's width for D_k
    /// and 48, which is D_k, for D_v.
    pub fn m206() -> Self {
        Self {
            n_layer: 18,
            d_k: 48,
            d_v: 64,
            rank: 14,
            ..Self::default()
        }
    }

    /// Table 9, row 4: 305M parameters. The table prints the transformer's width for D_k.
    pub fn m305() -> Self {
        Self {
            n_layer: 24,
            d_k: 64,
            d_v: 64,
            rank: 16,
            ..Self::default()
        }
    }

    /// The same sizes as the authors' code computes them: RMSNorm, ALiBi, inverse layer scaling,
    /// and outputs scaled at the start. The code also starts W_U at zero, which this does not.
    pub fn code_form(self) -> Self {
        Self {
            norm: NormKind::RmsNorm,
            positions: Positions::Alibi,
            inverse_layer_scale: true,
            scaled_outputs: true,
            ..self
        }
    }

    /// Width of the feed-forward network.
    pub fn d_ff(&self) -> usize {
        self.d_ff.unwrap_or(self.vectors().saturating_mul(4))
    }

    /// w_O or w_FF at the start, `[R, D_k]`.
    pub(crate) fn output_keys<B: Backend>(&self, device: &B::Device) -> Param<Tensor<B, 2>> {
        let gain = if self.scaled_outputs {
            (2.0 * self.n_layer as f64).powf(-0.5)
        } else {
            1.0
        };
        let (r, d_k) = (self.rank, self.d_k);
        Initializer::XavierNormal { gain }.init_with([r, d_k], Some(r), Some(d_k), device)
    }

    /// R · D_v, the width of all data vectors together.
    fn vectors(&self) -> usize {
        self.rank.saturating_mul(self.d_v)
    }

    /// The cost of storing (eq. 12) `count` vectors per token.
    fn storage(&self, count: usize) -> Cost {
        self.keys(count, count.saturating_mul(self.d_v))
    }

    /// The cost of retrieving (eq. 13) `count` vectors per token.
    fn retrieval(&self, count: usize) -> Cost {
        self.keys(count, self.width())
    }

    /// The cost of a product of `count` keys with `kept` numbers of each token.
    fn keys(&self, count: usize, kept: usize) -> Cost {
        let params = count.saturating_mul(self.d_k);
        let mut cost = Cost::vector(params);
        cost.forward_flops = params.saturating_mul(self.d_v).saturating_mul(2);
        cost.memory.kept = kept;
        cost.memory.passing = self.width().saturating_mul(4);
        cost
    }

    /// The cost of a norm with its scale.
    fn norm_cost(&self) -> Cost {
        NormParams::Scale.cost(self.width())
    }
}

impl Architecture for RmtConfig {
    type Block<B: Backend, C: Connection<B>> = Block<B, C>;
    type Ends<B: Backend> = RmtEnds<B>;

    fn name(&self) -> String {
        "RMT".into()
    }

    fn validate(&self) -> Result<(), ConfigError> {
        check::at_least_one("n_layer", self.n_layer)?;
        check::at_least_one("d_k", self.d_k)?;
        check::at_least_one("d_v", self.d_v)?;
        check::at_least_one("rank", self.rank)?;
        check::at_least_one("d_ff", self.d_ff())?;
        check::at_least_one("context", self.context)?;
        check::fraction("dropout", self.dropout)?;
        check::positive("norm_eps", self.norm_eps)?;
        check::positive("init_std", self.init_std)
    }

    fn context(&self) -> usize {
        self.context
    }

    fn width(&self) -> usize {
        self.d_k.saturating_mul(self.d_v)
    }

    fn n_layer(&self) -> usize {
        self.n_layer
    }

    fn n_sublayer(&self) -> usize {
        2
    }

    fn dropout(&self) -> f64 {
        self.dropout
    }

    fn ends<B: Backend>(
        &self,
        vocab_size: usize,
        n_output: usize,
        device: &B::Device,
    ) -> RmtEnds<B> {
        RmtEnds::new(self, vocab_size, n_output, device)
    }

    fn block<B: Backend, C: Connection<B>>(
        &self,
        layer: usize,
        mut connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Block<B, C> {
        Block::new(
            (Attention::new(self, layer, device), connection()),
            (FeedForward::new(self, device), connection()),
        )
    }

    fn ends_cost(&self, vocab_size: usize, n_output: usize) -> Cost {
        let keys = self.storage(self.rank);
        let table = |rows: usize| {
            let rows = rows.saturating_mul(self.vectors());
            rows.saturating_add(keys.params.other)
        };
        let (positions, storages) = match self.positions {
            Positions::Learned => (table(self.context), 2),
            Positions::Alibi => (0, 1),
        };
        let params = Params {
            embedding: table(vocab_size).saturating_add(positions),
            unembedding: table(n_output),
            other: self.width(),
        };
        let mut cost = keys * storages
            + Cost::dropout(self.width(), self.dropout)
            + self.norm_cost()
            + self.retrieval(self.rank)
            + Cost::linear(self.vectors(), n_output, false)
            // The logits in the loss.
            + Cost::keeping(n_output);
        cost.params = params;
        cost.memory.largest = table(vocab_size).max(positions).max(table(n_output));
        cost
    }

    fn block_cost(&self, time: usize) -> Cost {
        let (rank, d, d_ff) = (self.rank, self.vectors(), self.d_ff());
        let attention = self.norm_cost()
            + self.retrieval(rank.saturating_mul(3))
            + Cost::attention(time, d, rank, self.dropout)
            + self.storage(rank);
        let feed_forward = self.norm_cost()
            + self.retrieval(rank)
            + Cost::linear(d, d_ff, false)
            + self.activation.cost(d_ff)
            + Cost::linear(d_ff, d, false)
            + self.storage(rank);
        attention + feed_forward + Cost::dropout(self.width(), self.dropout) * 2
    }
}
