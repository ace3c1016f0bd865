//! The config of the Residual Matrix Transformer.

use burn::module::{Initializer, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{
    Activation, Architecture, AttentionSize, ConfigError, Connection, Cost, Frame, Mup, Norm,
    NormParams, Params, Scaled, Shape, Transfer, Vocabulary, check, normal,
};
use serde::{Deserialize, Serialize};

use crate::memory::xavier;
use crate::{Attention, Block, FeedForward, RmtEmbeddings};

/// The kind of norm of a residual matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NormKind {
    /// LayerNorm, as in the paper.
    #[default]
    LayerNorm,
    /// RMSNorm, as in the authors' code.
    RmsNorm,
}

/// Position encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Positions {
    /// Learned positions, stored in the matrix under their own keys (eq. 19), as in the paper.
    #[default]
    Learned,
    /// ALiBi on the attention scores, as in the authors' code.
    Alibi,
}

/// The config of an RMT. Fields that the run file omits have the values of [`Default`]: the smallest model of Table 9,
/// in the paper's form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RmtConfig {
    /// Number of layers, L.
    pub n_layer: usize,
    /// Number of rows of the residual matrix, D_k: the length of a key.
    pub d_k: usize,
    /// Number of columns of the residual matrix, D_v: the length of a data vector and of an attention head.
    pub d_v: usize,
    /// R, the number of attention heads, and of data vectors stored or retrieved at a time.
    pub rank: usize,
    /// Width of the feed-forward network, D_FF; `None` means 4 · R · D_v.
    pub d_ff: Option<usize>,
    /// Maximum number of positions, N.
    pub context: usize,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// The kind of norm.
    pub norm: NormKind,
    /// Position encoding.
    pub positions: Positions,
    /// Whether the attention scores of layer l, counted from 0, are divided by l + 1 (Appendix C.1).
    pub inverse_layer_scale: bool,
    /// Dropout on X^(0), the attention weights and the output of each sublayer. The paper has none.
    pub dropout: f64,
    /// ε of norms, added to the variance (Appendix C.1), or to the mean square with `RmsNorm`.
    pub norm_eps: f64,
    /// Standard deviation of the initial tables W_E and W_PE. All other weights use Xavier initialisation.
    pub init_std: f64,
    /// Whether the initial w_O and w_FF are multiplied by 1/√(2L), as in Appendix C.1 and the authors' code. Table 2
    /// does not multiply them.
    pub scaled_outputs: bool,
    /// μP (Appendix C.2.1), which replaces `init_std` and Xavier initialisation.
    pub mup: Option<Mup<RmtBase>>,
}

/// Sizes of the μP base model. The paper's base model has D_k 32, D_v 32, R 8 and D_FF 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmtBase {
    /// Length of a key, D_k.
    pub d_k: usize,
    /// Length of a data vector, D_v.
    pub d_v: usize,
    /// Number of data vectors, R.
    pub rank: usize,
    /// Width of the feed-forward network, D_FF; `None` means 4 · R · D_v.
    #[serde(default)]
    pub d_ff: Option<usize>,
}

impl RmtBase {
    fn d_ff(&self) -> usize {
        self.d_ff.unwrap_or(4 * self.vectors())
    }

    fn vectors(&self) -> usize {
        self.rank * self.d_v
    }
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
            mup: None,
        }
    }
}

/// Models of Table 9, with 50,257 token ids and 512 positions:
///
/// | constructor | L | D_k | D_v | R | D_FF | D_k · D_v | reported | parameters without norm scales | with norm scales | [`code_form`](Self::code_form) |
/// |---|---|---|---|---|---|---|---|---|---|---|
/// | [`m46`](Self::m46) | 6 | 32 | 32 | 12 | 1536 | 1024 | 46M | 45,886,848 | 45,900,160 | 45,703,168 |
/// | [`m134`](Self::m134) | 12 | 32 | 64 | 12 | 3072 | 2048 | 134M | 134,239,872 | 134,291,072 | 133,897,472 |
/// | [`m206`](Self::m206) | 18 | 48 | 64 | 14 | 3584 | 3072 | 206M | 206,199,392 | 206,313,056 | 205,853,632 |
/// | [`m305`](Self::m305) | 24 | 64 | 64 | 16 | 4096 | 4096 | 305M | 304,927,744 | 305,128,448 | 304,603,136 |
///
/// The paper's sizes omit the norm scales, (2L + 1) D_k D_v.
/// [`params_counted`](crate::formulas::RmtShape::params_counted) is the formula without them;
/// `config.cost(50_257).params.total()` includes them. The last column counts the form of the authors' code, which has
/// no position table; this count includes norm scales.
impl RmtConfig {
    /// Returns the config of the 46M model (Table 9, row 1).
    pub fn m46() -> Self {
        Self::default()
    }

    /// Returns the config of the 134M model (Table 9, row 2).
    pub fn m134() -> Self {
        Self {
            n_layer: 12,
            d_v: 64,
            ..Self::default()
        }
    }

    /// Returns the config of the 206M model (Table 9, row 3). The paper prints the width of the transformer as D_k, and
    /// D_k as D_v.
    pub fn m206() -> Self {
        Self {
            n_layer: 18,
            d_k: 48,
            d_v: 64,
            rank: 14,
            ..Self::default()
        }
    }

    /// Returns the config of the 305M model (Table 9, row 4). The paper prints the width of the transformer as D_k.
    pub fn m305() -> Self {
        Self {
            n_layer: 24,
            d_k: 64,
            d_v: 64,
            rank: 16,
            ..Self::default()
        }
    }

    /// Returns the same sizes in the form of the authors' code: RMSNorm, ALiBi, inverse layer scaling and scaled
    /// initial outputs. In the code, W_U is initially zero; here, it is zero only with μP.
    pub fn code_form(self) -> Self {
        Self {
            norm: NormKind::RmsNorm,
            positions: Positions::Alibi,
            inverse_layer_scale: true,
            scaled_outputs: true,
            ..self
        }
    }
}

impl RmtConfig {
    /// Returns the width of the feed-forward network.
    pub fn d_ff(&self) -> usize {
        self.d_ff.unwrap_or(4 * self.vectors())
    }

    /// Builds the LN of eqs. 15-17, which normalises a token's whole matrix. It has a scale `[D_v · D_k]` and no shift.
    pub(crate) fn norm<B: Backend>(&self, device: &B::Device) -> Norm<B> {
        match self.norm {
            NormKind::LayerNorm => {
                Norm::layer(NormParams::Scale, self.width(), self.norm_eps, device)
            }
            NormKind::RmsNorm => Norm::rms(self.width(), self.norm_eps, device),
        }
    }

    /// Builds the norm at the beginning of a branch, or the identity if the frame has no norm there.
    pub(crate) fn branch_norm<B: Backend>(&self, frame: &Frame, device: &B::Device) -> Norm<B> {
        match frame.pre_norm {
            true => self.norm(device),
            false => Norm::identity(),
        }
    }

    /// Draws the initial w_O or w_FF, `[R, D_k]`.
    pub(crate) fn output_keys<B: Backend>(
        &self,
        frame: &Frame,
        device: &B::Device,
    ) -> Param<Tensor<B, 2>> {
        let by_depth = match self.scaled_outputs && frame.by_depth {
            true => (2.0 * self.n_layer as f64).powf(-0.5),
            false => 1.0,
        };
        self.weight(
            by_depth * frame.output,
            [self.rank, self.d_k],
            [self.rank, self.d_k],
            device,
        )
    }

    /// Draws an initial weight with [`xavier`] or as μP prescribes, and multiplies it by `gain`.
    pub(crate) fn weight<B: Backend>(
        &self,
        gain: f64,
        shape: [usize; 2],
        fans: [usize; 2],
        device: &B::Device,
    ) -> Param<Tensor<B, 2>> {
        match &self.mup {
            Some(mup) => normal(shape, gain * mup.hidden_std(fans[0]), device),
            None => xavier(gain, shape, fans, device),
        }
    }

    /// Draws an initial table `[rows, D_v · R]`.
    pub(crate) fn table<B: Backend>(&self, rows: usize, device: &B::Device) -> Param<Tensor<B, 2>> {
        let std = self.mup.as_ref().map_or(self.init_std, |mup| mup.init_std);
        normal([rows, self.vectors()], std, device)
    }

    /// Returns the initial W_Uᵀ, `[D_v · R, outputs]`.
    pub(crate) fn unembedding<B: Backend>(
        &self,
        outputs: usize,
        device: &B::Device,
    ) -> Param<Tensor<B, 2>> {
        let shape = [self.vectors(), outputs];
        match &self.mup {
            Some(_) => Initializer::Zeros.init(shape, device),
            None => self.weight(1.0, shape, shape, device),
        }
    }

    /// Returns the multipliers of X^(0) and of the logits.
    pub(crate) fn multipliers(&self) -> [f64; 2] {
        let now = self.vectors();
        self.mup.as_ref().map_or([1.0, 1.0], |mup| {
            let base = mup.base.vectors();
            [mup.input, mup.output_scale(Scaled { now, base })]
        })
    }

    /// Returns the multiplier of attention scores, without inverse layer scaling: 1/√D_v (eq. 21), or the multiplier of
    /// μP.
    pub(crate) fn attention_scale(&self) -> f64 {
        match &self.mup {
            Some(mup) => mup.attention_scale(Scaled {
                now: self.d_v,
                base: mup.base.d_v,
            }),
            None => (self.d_v as f64).powf(-0.5),
        }
    }

    /// Returns R · D_v, the total width of all data vectors.
    fn vectors(&self) -> usize {
        self.rank * self.d_v
    }

    /// Returns the cost of storing (eq. 12) or retrieving (eq. 13) `count` vectors per token.
    fn keys_cost(&self, count: usize) -> Cost {
        Cost::vector(count * self.d_k) + Cost::flops(2 * count * self.width())
    }

    /// Returns the cost of a norm with its scale, or zero if the norm does not exist.
    fn norm_cost(&self, exists: bool) -> Cost {
        match exists {
            true => NormParams::Scale.cost(self.width()),
            false => Cost::default(),
        }
    }

    /// Returns D_k · D_v, the width of the stream.
    fn width(&self) -> usize {
        self.d_k * self.d_v
    }
}

impl Transfer for RmtConfig {
    fn has_rates(&self) -> bool {
        self.mup.is_some()
    }

    fn rate(&self, name: &str) -> f64 {
        let Some(Mup { base, .. }) = &self.mup else {
            return 1.0;
        };
        let scaled = |now, base| Scaled { now, base };
        let [d_k, rank] = [scaled(self.d_k, base.d_k), scaled(self.rank, base.rank)];
        let hidden = [
            ("branch.r_q", d_k),
            ("branch.r_k", d_k),
            ("branch.r_v", d_k),
            ("branch.w_o", rank),
            ("branch.r_ff", d_k),
            ("branch.w_1", scaled(self.vectors(), base.vectors())),
            ("branch.w_2", scaled(self.d_ff(), base.d_ff())),
            ("branch.w_ff", rank),
            ("tokens.key", rank),
            ("positions.key", rank),
            ("unembedding.key", d_k),
        ];
        Scaled::rate_of(name, &hidden)
    }
}

impl Architecture for RmtConfig {
    type Block<B: Backend, C: Connection<B>> = Block<B, C>;
    type Embeddings<B: Backend> = RmtEmbeddings<B>;

    fn name(&self) -> &'static str {
        "RMT"
    }

    fn shape(&self) -> Shape {
        Shape {
            context: self.context,
            width: self.width(),
            n_layer: self.n_layer,
            n_sublayer: 2,
            dropout: self.dropout,
        }
    }

    fn attention(&self) -> Option<AttentionSize> {
        Some(AttentionSize::of_heads(self.rank, self.d_v))
    }

    fn validate(&self) -> Result<(), ConfigError> {
        check::size("d_k", self.d_k)?;
        check::size("d_v", self.d_v)?;
        check::size("d_k · d_v", self.width())?;
        self.shape().validate()?;
        check::size("rank", self.rank)?;
        check::size("rank · d_v", self.vectors())?;
        check::at_least_one("d_ff", self.d_ff())?;
        check::positive("norm_eps", self.norm_eps)?;
        if let Some(mup) = &self.mup {
            let RmtBase { d_k, d_v, rank, .. } = mup.base;
            let sizes = [
                ("d_k", d_k),
                ("d_v", d_v),
                ("rank", rank),
                ("d_ff", mup.base.d_ff()),
            ];
            mup.validate(&sizes)?;
            if self.init_std != Self::default().init_std {
                let problem = "is set, but `mup` sets the initial weights; leave one out";
                return Err(ConfigError::new("init_std", problem));
            }
        }
        check::positive("init_std", self.init_std)
    }

    fn embeddings<B: Backend>(
        &self,
        vocabulary: Vocabulary,
        frame: &Frame,
        device: &B::Device,
    ) -> RmtEmbeddings<B> {
        RmtEmbeddings::new(self, vocabulary, frame, device)
    }

    fn block<B: Backend, C: Connection<B>>(
        &self,
        layer: usize,
        frame: &Frame,
        mut connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Block<B, C> {
        let attention = (Attention::new(self, layer, frame, device), connection());
        let feed_forward = || (FeedForward::new(self, frame, device), connection());
        Block::new(attention, frame.feed_forward.then(feed_forward))
    }

    fn embeddings_cost(&self, vocabulary: Vocabulary, frame: &Frame) -> Cost {
        let keys = self.keys_cost(self.rank);
        let table = |rows: usize| rows * self.vectors() + self.rank * self.d_k;
        let (positions, stored) = match self.positions {
            Positions::Learned => (table(self.context), 2),
            Positions::Alibi => (0, 1),
        };
        let logits = Cost::linear(self.vectors(), vocabulary.outputs, false);
        let products = keys * stored + keys + logits;
        Cost {
            params: Params {
                embedding: table(vocabulary.ids()) + positions,
                unembedding: table(vocabulary.outputs),
                other: self.norm_cost(frame.final_norm).params.other,
            },
            ..Cost::flops(products.forward_flops)
        }
    }

    fn block_cost(&self, _layer: usize, time: usize, frame: &Frame) -> Cost {
        let (rank, d, d_ff) = (self.rank, self.vectors(), self.d_ff());
        let norm = self.norm_cost(frame.pre_norm);
        let attention =
            norm + self.keys_cost(3 * rank) + Cost::attention(time, d) + self.keys_cost(rank);
        let feed_forward = norm
            + self.keys_cost(rank)
            + Cost::linear(d, d_ff, false)
            + Cost::linear(d_ff, d, false)
            + self.keys_cost(rank);
        match frame.feed_forward {
            true => attention + feed_forward,
            false => attention,
        }
    }
}
