//! The config of Llama (the modern decoder).

use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Activation, Architecture, AttentionSize, ConfigError, Connection, Cost, Frame, Init, Linear,
    NormDesign, NormPlaces, Norms, RmsScale, Rotary, Shape, TokenEmbeddings,
    TokenEmbeddingsOptions, Transfer, Vocabulary, check,
};
use serde::{Deserialize, Serialize};

use crate::init::Matrix;
use crate::{Attention, Block, Canon, LlamaInit, Mlp};

/// The biases of the query, key and value projections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Biases {
    /// No biases.
    #[default]
    None,
    /// Queries and keys (Huginn).
    Qk,
    /// Queries, keys and values (Qwen 2). A [`Gate`] then has biases too.
    Qkv,
}

/// The norm of queries and keys. With `Heads` and `All`, it has the same kind of factor as the norms of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QkNorm {
    /// RMS norm of each head (Qwen 3). All heads share the factor `[d]`, if there is one.
    Heads,
    /// RMS norm over all heads together (OLMo 2).
    All,
    /// x / |x| of each head, without a factor.
    Unit,
}

/// The gate σ(u · W), where u is the normalised input. It multiplies the output of the heads before the projection to
/// the stream (Qiu et al., "Gated attention for large language models", 2025, G1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gate {
    /// One number for each head.
    PerHead,
    /// One number for each coordinate of each head.
    PerCoordinate,
}

/// Canon layers (Allen-Zhu, "Physics of language models: part 4.1", 2025): z_t + Σ_j w_j ⊙ z_{t−K+1+j}.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CanonConfig {
    /// The places, as letters of `ABCD`: A after the norm before attention, B on queries, keys and values, C after the
    /// norm before the MLP, D on the MLP's hidden features before the activation.
    pub places: String,
    /// Number of positions in the sum, K, at least 2.
    pub kernel: usize,
    /// Whether z_t is added.
    pub residual: bool,
}

impl Default for CanonConfig {
    fn default() -> Self {
        Self {
            places: "ABCD".into(),
            kernel: 4,
            residual: true,
        }
    }
}

/// The config of Llama (the modern decoder). Fields that the run file omits have the values of [`Default`]: Llama 2 at
/// the size of GPT-2 small.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LlamaConfig {
    /// Number of layers, L.
    pub n_layer: usize,
    /// Number of query heads, H.
    pub n_head: usize,
    /// Number of key-value heads, K. Must divide `n_head`. `None` means `n_head`.
    pub n_kv_head: Option<usize>,
    /// Width of a head, d. `None` means width / `n_head`.
    pub head_dim: Option<usize>,
    /// Width of the stream, D.
    pub width: usize,
    /// Width of the feed-forward network. `None` means 4 · width without a gate, and 8/3 · width with one, rounded up
    /// to a multiple of 8.
    pub d_ff: Option<usize>,
    /// Maximum number of positions.
    pub context: usize,
    /// The factor of the RMS norms. The norms of `qk_norm: Unit` and `normed_embedding` have none.
    pub norm: RmsScale,
    /// The places of the norms around each branch.
    pub norm_places: NormPlaces,
    /// ε of norms, added to the mean square. The norm of `qk_norm: Unit` has none.
    pub norm_eps: f64,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// Whether the feed-forward network has a gate with the `activation`, as in SwiGLU and GeGLU.
    pub gated: bool,
    /// Rotary positions.
    pub rotary: Rotary,
    /// The norm of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Whether the norm of queries and keys follows the rotary positions (nanochat). Otherwise, the norm precedes the
    /// rotary positions.
    pub qk_norm_late: bool,
    /// The multiplier of queries and keys, after their norm and rotary positions.
    pub qk_scale: f64,
    /// The multiplier of attention scores. `None` means 1/√d.
    pub attention_scale: Option<f64>,
    /// The cap c: an attention score s becomes c tanh(s / c) (Gemma 2).
    pub attention_cap: Option<f64>,
    /// The cap c: logits z become c tanh(z / c) (Gemma 2, nanochat).
    pub logit_cap: Option<f64>,
    /// Number of positions that a position attends to, including itself, by layer; `None` means all positions. The list
    /// repeats over the layers, and an empty list means all positions. Models of images ignore the list.
    pub windows: Vec<Option<usize>>,
    /// The biases of the query, key and value projections.
    pub bias: Biases,
    /// Whether attention's output projection has a bias.
    pub proj_bias: bool,
    /// Whether the linear layers of the feed-forward network have biases.
    pub mlp_bias: bool,
    /// Whether x_0 is multiplied by √D (Gemma).
    pub scaled_embedding: bool,
    /// Whether x_0 is normalised, without a factor (nanochat).
    pub normed_embedding: bool,
    /// Whether the unembedding is the token table. Models of images have no such table.
    pub tied: bool,
    /// Gated attention.
    pub gate: Option<Gate>,
    /// Canon layers.
    pub canon: Option<CanonConfig>,
    /// Dropout on x_0, on the attention weights and on the output of each sublayer.
    pub dropout: f64,
    /// The initial weights. `None` means `Depth` below width 768; otherwise, `Fixed(0.02)`.
    pub init: Option<LlamaInit>,
}

impl Default for LlamaConfig {
    fn default() -> Self {
        Self {
            n_layer: 12,
            n_head: 12,
            n_kv_head: None,
            head_dim: None,
            width: 768,
            d_ff: None,
            context: 1024,
            norm: RmsScale::Scale,
            norm_places: NormPlaces::Before,
            norm_eps: 1e-5,
            activation: Activation::Silu,
            gated: true,
            rotary: Rotary::default(),
            qk_norm: None,
            qk_norm_late: false,
            qk_scale: 1.0,
            attention_scale: None,
            attention_cap: None,
            logit_cap: None,
            windows: Vec::new(),
            bias: Biases::None,
            proj_bias: false,
            mlp_bias: false,
            scaled_embedding: false,
            normed_embedding: false,
            tied: false,
            gate: None,
            canon: None,
            dropout: 0.0,
            init: None,
        }
    }
}

impl LlamaConfig {
    /// Returns the number of key-value heads.
    pub fn n_kv_head(&self) -> usize {
        self.n_kv_head.unwrap_or(self.n_head)
    }

    /// Returns the width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.width / self.n_head)
    }

    /// Returns the width of the feed-forward network.
    pub fn d_ff(&self) -> usize {
        self.d_ff.unwrap_or(match self.gated {
            true => (8 * self.width).div_ceil(3).next_multiple_of(8),
            false => 4 * self.width,
        })
    }

    /// Returns the number of hidden features of the feed-forward network, including the features of the gate.
    pub(crate) fn hidden(&self) -> usize {
        self.d_ff() * if self.gated { 2 } else { 1 }
    }

    /// Returns the number of positions that a position of `layer` attends to; `None` for all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        match self.windows.len() {
            0 => None,
            count => self.windows[layer % count],
        }
    }

    /// Returns `init`, or its default.
    pub fn init(&self) -> LlamaInit {
        self.init.unwrap_or(match Init::of_width(self.width) {
            Init::Width => LlamaInit::Depth,
            fixed => fixed.into(),
        })
    }

    /// Builds a linear layer `[d_in, d_out]` whose initial weights are multiplied by `scale`.
    pub(crate) fn linear<B: Backend>(
        &self,
        matrix: Matrix,
        sizes: [usize; 2],
        bias: bool,
        scale: f64,
        device: &B::Device,
    ) -> Linear<B> {
        let scale = (self.width, scale);
        self.init().linear(matrix, sizes, bias, scale, device)
    }

    /// Returns the multiplier of the initial projections to the stream and of the initial W_fc.
    pub(crate) fn depth_scale(&self, frame: &Frame) -> f64 {
        match self.init() {
            LlamaInit::Depth if frame.by_depth => (2.0 * self.n_layer as f64).sqrt().recip(),
            _ => 1.0,
        }
    }

    fn norm_design(&self) -> NormDesign {
        NormDesign::Rms {
            scale: self.norm,
            eps: self.norm_eps,
        }
    }

    pub(crate) fn norms<B: Backend>(&self, frame: &Frame, device: &B::Device) -> Norms<B> {
        let design = self.norm_design();
        self.norm_places
            .build(design, self.width, frame.pre_norm, device)
    }

    /// Returns the kind of the norm of queries or keys.
    pub(crate) fn qk_norm_design(&self) -> NormDesign {
        match self.qk_norm {
            Some(QkNorm::Unit) => NormDesign::Rms {
                scale: RmsScale::None,
                eps: 0.0,
            },
            _ => self.norm_design(),
        }
    }

    /// Returns the number of features that the norm of queries or keys covers, if the heads together have `all`
    /// features; `None` without such a norm.
    pub(crate) fn qk_norm_over(&self, all: usize) -> Option<usize> {
        self.qk_norm.map(|norm| match norm {
            QkNorm::All => all,
            QkNorm::Heads | QkNorm::Unit => self.head_dim(),
        })
    }

    fn canon_here(&self, place: char) -> Option<&CanonConfig> {
        self.canon
            .as_ref()
            .filter(|canon| canon.places.contains(place))
    }

    /// Builds the Canon layer at `place`, on `channels` channels; `None` if there is none.
    pub(crate) fn canon_at<B: Backend>(
        &self,
        place: char,
        channels: usize,
        device: &B::Device,
    ) -> Option<Canon<B>> {
        let canon = self.canon_here(place)?;
        Some(Canon::new(canon, channels, device))
    }

    fn canon_cost(&self, place: char, channels: usize) -> Cost {
        let taps = self
            .canon_here(place)
            .map_or(0, |canon| canon.kernel * channels);
        Cost::vector(taps) + Cost::flops(2 * taps)
    }

    fn options(&self, vocabulary: Vocabulary, frame: &Frame) -> TokenEmbeddingsOptions {
        let input_norm = NormDesign::Rms {
            scale: RmsScale::None,
            eps: self.norm_eps,
        };
        let [init_std, unembedding_std] = self.init().tables(self.width);
        TokenEmbeddingsOptions {
            positions: None,
            tied: self.tied,
            norm: frame.final_norm.then(|| self.norm_design()),
            dropout: self.dropout,
            init_std,
            unembedding_std,
            input_scale: match self.scaled_embedding {
                true => (self.width as f64).sqrt(),
                false => 1.0,
            },
            input_norm: self.normed_embedding.then_some(input_norm),
            cap: self.logit_cap,
            ..TokenEmbeddingsOptions::new(vocabulary, self.context, self.width)
        }
    }
}

impl Architecture for LlamaConfig {
    type Block<B: Backend, C: Connection<B>> = Block<B, C>;
    type Embeddings<B: Backend> = TokenEmbeddings<B>;

    fn name(&self) -> &'static str {
        "Llama"
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
            kv_heads: self.n_kv_head(),
            three_inputs: !self.norm_places.of_sum(),
            without_values: true,
            ..AttentionSize::of_heads(self.n_head, self.head_dim())
        })
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.shape().validate()?;
        check::at_least_one("n_head", self.n_head)?;
        if self.head_dim.is_none() {
            check::divides(("n_head", self.n_head), ("width", self.width))?;
        }
        check::at_least_one("head_dim", self.head_dim())?;
        check::divides(("n_kv_head", self.n_kv_head()), ("n_head", self.n_head))?;
        check::at_least_one("d_ff", self.d_ff())?;
        check::positive("norm_eps", self.norm_eps)?;
        let rotary = self.rotary.validate(self.head_dim());
        rotary.map_err(|error| error.within("rotary"))?;
        check::positive("qk_scale", self.qk_scale)?;
        for (field, value) in [
            ("attention_scale", self.attention_scale),
            ("attention_cap", self.attention_cap),
            ("logit_cap", self.logit_cap),
        ] {
            value.map_or(Ok(()), |value| check::positive(field, value))?;
        }
        for (i, window) in self.windows.iter().enumerate() {
            let field = format!("windows.{i}");
            window.map_or(Ok(()), |window| check::at_least_one(&field, window))?;
        }
        if self.qk_norm_late && matches!(self.qk_norm, None | Some(QkNorm::All)) {
            let problem = "is true, which needs `qk_norm: Heads` or `qk_norm: Unit`";
            return Err(ConfigError::new("qk_norm_late", problem));
        }
        if let Some(canon) = &self.canon {
            let invalid = |c: char| !"ABCD".contains(c) || canon.places.matches(c).count() > 1;
            if canon.places.is_empty() || canon.places.contains(invalid) {
                let problem = format!(
                    "is {:?}; it must consist of the letters A, B, C and D, each at most once",
                    canon.places
                );
                return Err(ConfigError::new("canon.places", problem));
            }
            if canon.kernel < 2 {
                let problem = format!("is {}; it must be at least 2", canon.kernel);
                return Err(ConfigError::new("canon.kernel", problem));
            }
            check::size("canon.kernel", canon.kernel)?;
        }
        let large = matches!(self.init(), LlamaInit::Nanochat | LlamaInit::Nanochat2025);
        if self.tied && large {
            let problem =
                "has a token table that is too large for an unembedding; set `tied` to false";
            return Err(ConfigError::new("init", problem));
        }
        self.init().validate()
    }

    fn hashed(&self) -> Self {
        // At first, `None` meant `Width` below width 768.
        let init = match (self.init, Init::of_width(self.width)) {
            (None, Init::Width) => Some(LlamaInit::Depth),
            (Some(LlamaInit::Width), Init::Width) => None,
            (init, _) => init,
        };
        Self {
            init,
            ..self.clone()
        }
    }

    fn tables(&self, vocabulary: Vocabulary, frame: &Frame) -> Option<TokenEmbeddingsOptions> {
        Some(self.options(vocabulary, frame))
    }

    fn embeddings<B: Backend>(
        &self,
        vocabulary: Vocabulary,
        frame: &Frame,
        device: &B::Device,
    ) -> TokenEmbeddings<B> {
        TokenEmbeddings::new(&self.options(vocabulary, frame), device)
    }

    fn block<B: Backend, C: Connection<B>>(
        &self,
        layer: usize,
        frame: &Frame,
        mut connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Block<B, C> {
        let attention = (Attention::new(self, layer, frame, device), connection());
        let mlp = || (Mlp::new(self, frame, device), connection());
        Block::new(attention, frame.feed_forward.then(mlp))
    }

    fn embeddings_cost(&self, vocabulary: Vocabulary, frame: &Frame) -> Cost {
        self.options(vocabulary, frame).cost()
    }

    fn block_cost(&self, layer: usize, time: usize, frame: &Frame) -> Cost {
        let &Self { width, n_head, .. } = self;
        let (d_ff, d) = (self.d_ff(), self.head_dim());
        let (of_q, of_kv) = (n_head * d, self.n_kv_head() * d);
        let norms = self
            .norm_places
            .cost(self.norm_design(), width, frame.pre_norm);
        let qk_norm = |all| match self.qk_norm_over(all) {
            Some(features) => self.qk_norm_design().cost(features),
            None => Cost::default(),
        };
        let gate = |gate| match gate {
            Gate::PerHead => Cost::linear(width, n_head, self.bias == Biases::Qkv),
            Gate::PerCoordinate => Cost::linear(width, of_q, self.bias == Biases::Qkv),
        };
        let (values, parts) = match frame.own_values {
            true => (Cost::linear(width, of_kv, self.bias == Biases::Qkv), 2),
            false => (Cost::default(), 1),
        };
        let window = self.window(layer).filter(|_| frame.causal());
        let attention = norms
            + Cost::linear(width, of_q, self.bias != Biases::None)
            + Cost::linear(width, of_kv, self.bias != Biases::None)
            + values
            + qk_norm(of_q)
            + qk_norm(of_kv)
            + Cost::attention(window.map_or(time, |window| window.min(time)), of_q)
            + self.gate.map(gate).unwrap_or_default()
            + Cost::linear(of_q, width, self.proj_bias)
            + self.canon_cost('A', width)
            + self.canon_cost('B', of_q + parts * of_kv);
        let mlp = norms
            + Cost::linear(width, d_ff, self.mlp_bias) * if self.gated { 2 } else { 1 }
            + Cost::linear(d_ff, width, self.mlp_bias)
            + self.canon_cost('C', width)
            + self.canon_cost('D', self.hidden());
        match frame.feed_forward {
            true => attention + mlp,
            false => attention,
        }
    }
}

impl Transfer for LlamaConfig {
    /// Requires the same `norm`, because `Scale` and `OnePlus` store γ in different ways.
    fn grows_from(&self, smaller: &Self) -> Result<(), ConfigError> {
        let (to, from) = (self.norm, smaller.norm);
        if to == from {
            return Ok(());
        }
        let problem = format!(
            "is {to:?}, but the first weights were trained with {from:?}, which stores the factors γ of norms in \
             another way; set it to {from:?}"
        );
        Err(ConfigError::new("model.norm", problem))
    }
}
