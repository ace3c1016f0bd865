//! The config of GPT-2.

use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Activation, Architecture, AttentionSize, ConfigError, Connection, Cost, Frame, Init, Mup, Norm,
    NormDesign, NormParams, Scaled, Shape, Tensors, TokenEmbeddings, TokenEmbeddingsOptions,
    Transfer, Vocabulary, check,
};
use serde::{Deserialize, Serialize};

use crate::{Attention, Block, Mlp, net2net};

/// The config of GPT-2. Fields that the run file omits have the values of [`Default`], GPT-2 small.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpt2Config {
    /// Number of layers, L.
    pub n_layer: usize,
    /// Number of attention heads. Must divide the width.
    pub n_head: usize,
    /// Width of the stream, D.
    pub width: usize,
    /// Width of the feed-forward network. `None` means 4 · width.
    pub d_ff: Option<usize>,
    /// Maximum number of positions.
    pub context: usize,
    /// Whether linear layers and norms have biases.
    pub bias: bool,
    /// Whether the unembedding is the token table. Models of images have no such table.
    pub tied: bool,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// Dropout on x_0, on the attention weights and on the output of each sublayer.
    pub dropout: f64,
    /// Whether the attention scores of layer l, counted from 0, are divided by l + 1.
    pub inverse_layer_scale: bool,
    /// ε of norms, added to the variance.
    pub norm_eps: f64,
    /// The initial weights and tables. `None` means `Width` below width 768; otherwise, `Fixed(0.02)` as published.
    /// For projections back to the stream, the standard deviation is divided by √(2L) (GPT-2, section 2.3), except with
    /// connections that replace this factor, such as ReZero.
    pub init: Option<Init>,
    /// μP, which replaces `init`.
    pub mup: Option<Mup<Gpt2Base>>,
}

/// Sizes of the μP base model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpt2Base {
    /// Width of the stream.
    pub width: usize,
    /// Number of attention heads.
    pub n_head: usize,
    /// Width of the feed-forward network. `None` means 4 · width.
    #[serde(default)]
    pub d_ff: Option<usize>,
}

impl Gpt2Base {
    fn d_ff(&self) -> usize {
        self.d_ff.unwrap_or(4 * self.width)
    }
}

impl Default for Gpt2Config {
    fn default() -> Self {
        Self {
            n_layer: 12,
            n_head: 12,
            width: 768,
            d_ff: None,
            context: 1024,
            bias: true,
            tied: true,
            activation: Activation::GeluTanh,
            dropout: 0.0,
            inverse_layer_scale: false,
            norm_eps: 1e-5,
            init: None,
            mup: None,
        }
    }
}

impl Gpt2Config {
    /// Returns the config of GPT-2 small: 124M parameters at 50,257 token ids.
    pub fn small() -> Self {
        Self::default()
    }

    /// Returns the config of GPT-2 medium: 355M parameters.
    pub fn medium() -> Self {
        Self {
            n_layer: 24,
            n_head: 16,
            width: 1024,
            ..Self::default()
        }
    }

    /// Returns the config of GPT-2 large: 774M parameters.
    pub fn large() -> Self {
        Self {
            n_layer: 36,
            n_head: 20,
            width: 1280,
            ..Self::default()
        }
    }

    /// Returns the config of GPT-2 XL: 1558M parameters.
    pub fn xl() -> Self {
        Self {
            n_layer: 48,
            n_head: 25,
            width: 1600,
            ..Self::default()
        }
    }

    /// Returns the width of the feed-forward network.
    pub fn d_ff(&self) -> usize {
        self.d_ff.unwrap_or(4 * self.width)
    }

    /// Returns `init`, or its default.
    pub fn init(&self) -> Init {
        self.init.unwrap_or(Init::of_width(self.width))
    }

    /// Returns the standard deviation of the initial weights and tables without μP.
    pub(crate) fn std(&self) -> f64 {
        self.init().std(self.width)
    }

    /// Returns the standard deviation of the initial weights that read `fan_in` features.
    pub(crate) fn weight_std(&self, fan_in: usize) -> f64 {
        match &self.mup {
            Some(mup) => mup.hidden_std(fan_in),
            None => self.std(),
        }
    }

    /// Returns the standard deviation of the initial weights that read `fan_in` features and write to the stream.
    pub(crate) fn projection_std(&self, fan_in: usize, frame: &Frame) -> f64 {
        let std = self.weight_std(fan_in) * frame.output;
        match frame.by_depth {
            true => std / (2.0 * self.n_layer as f64).sqrt(),
            false => std,
        }
    }

    /// Returns the multiplier of attention scores, without inverse layer scaling.
    pub(crate) fn attention_scale(&self) -> f64 {
        let d = self.width / self.n_head;
        match &self.mup {
            Some(mup) => mup.attention_scale(Scaled {
                now: d,
                base: mup.base.width / mup.base.n_head,
            }),
            None => (d as f64).powf(-0.5),
        }
    }

    pub(crate) fn norm<B: Backend>(&self, frame: &Frame, device: &B::Device) -> Norm<B> {
        match frame.pre_norm {
            true => Norm::layer(self.norm_params(), self.width, self.norm_eps, device),
            false => Norm::identity(),
        }
    }

    fn norm_params(&self) -> NormParams {
        if self.bias {
            NormParams::ScaleAndShift
        } else {
            NormParams::Scale
        }
    }

    fn options(&self, vocabulary: Vocabulary, frame: &Frame) -> TokenEmbeddingsOptions {
        let options = TokenEmbeddingsOptions {
            tied: self.tied,
            norm: frame.final_norm.then(|| NormDesign::Layer {
                params: self.norm_params(),
                eps: self.norm_eps,
            }),
            dropout: self.dropout,
            init_std: self.std(),
            unembedding_std: self.std(),
            ..TokenEmbeddingsOptions::new(vocabulary, self.context, self.width)
        };
        match &self.mup {
            Some(mup) => options.mup(mup, mup.base.width),
            None => options,
        }
    }
}

impl Architecture for Gpt2Config {
    type Block<B: Backend, C: Connection<B>> = Block<B, C>;
    type Embeddings<B: Backend> = TokenEmbeddings<B>;

    fn name(&self) -> &'static str {
        "GPT-2"
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
            without_values: true,
            ..AttentionSize::of_heads(self.n_head, self.width / self.n_head)
        })
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.shape().validate()?;
        check::divides(("n_head", self.n_head), ("width", self.width))?;
        check::at_least_one("d_ff", self.d_ff())?;
        check::positive("norm_eps", self.norm_eps)?;
        if let Some(mup) = &self.mup {
            let Gpt2Base { width, n_head, .. } = mup.base;
            if self.init.is_some() {
                let problem = "is set, but `mup` sets the initial weights; leave one out";
                return Err(ConfigError::new("init", problem));
            }
            mup.validate(&[("width", width), ("d_ff", mup.base.d_ff())])?;
            check::divides(("mup.base.n_head", n_head), ("mup.base.width", width))?;
        }
        self.init().validate()
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

    fn block_cost(&self, _layer: usize, time: usize, frame: &Frame) -> Cost {
        let &Self { width, bias, .. } = self;
        let norm = match frame.pre_norm {
            true => self.norm_params().cost(width),
            false => Cost::default(),
        };
        let d_ff = self.d_ff();
        let parts = if frame.own_values { 3 } else { 2 };
        let attention = norm
            + Cost::linear(width, parts * width, bias)
            + Cost::attention(time, width)
            + Cost::linear(width, width, bias);
        let mlp = norm + Cost::linear(width, d_ff, bias) + Cost::linear(d_ff, width, bias);
        match frame.feed_forward {
            true => attention + mlp,
            false => attention,
        }
    }
}

impl Transfer for Gpt2Config {
    fn has_rates(&self) -> bool {
        self.mup.is_some()
    }

    fn rate(&self, name: &str) -> f64 {
        let Some(Mup { base, .. }) = &self.mup else {
            return 1.0;
        };
        let scaled = |now, base| Scaled { now, base };
        let width = scaled(self.width, base.width);
        let hidden = [
            ("attention.branch.qkv.weight", width),
            ("attention.branch.proj.weight", width),
            ("feed_forward.branch.fc.weight", width),
            (
                "feed_forward.branch.proj.weight",
                scaled(self.d_ff(), base.d_ff()),
            ),
        ];
        Scaled::rate_of(name, &hidden)
    }

    fn grows_from(&self, smaller: &Self) -> Result<(), ConfigError> {
        match (self.width, self.d_ff()) == (smaller.width, smaller.d_ff()) {
            true => Ok(()),
            false => net2net::check(self, smaller),
        }
    }

    /// Widens a narrower model with Net2Net. Noise of up to 1 % of the weights' root mean square makes copies differ.
    fn grow(
        &self,
        smaller: &Self,
        weights: Tensors,
        _fresh: &Tensors,
    ) -> Result<Tensors, ConfigError> {
        if (self.width, self.d_ff()) == (smaller.width, smaller.d_ff()) {
            return Ok(weights);
        }
        net2net::widen(self, smaller, &weights, 0.01)
    }
}
