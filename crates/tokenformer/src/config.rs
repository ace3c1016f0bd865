//! The config of TokenFormer.

use burn::module::Module;
use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Activation, Architecture, AttentionSize, ConfigError, Connection, Cost, Frame, Mup, Norm,
    NormDesign, NormParams, Params, Rotary, Scaled, Shape, Tensors, TokenEmbeddings,
    TokenEmbeddingsOptions, Transfer, Vocabulary, check, params, std_of_width,
};
use serde::{Deserialize, Serialize};

use crate::{Attention, Block, FeedForward, MergeError};

/// Θ, which turns a row A_i of scores into weights of the values: eq. 5, and other rows of Table 4. The authors' code
/// has all forms except `GeluL1Norm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Normalization {
    /// gelu(A_ij · τ / ‖A_i‖₂), eq. 5.
    #[default]
    L2NormGelu,
    /// gelu(A_ij) · τ / ‖gelu(A_i)‖₂.
    GeluL2Norm,
    /// gelu(A_ij) · τ / ‖gelu(A_i)‖₁.
    GeluL1Norm,
    /// τ · softmax(A_i)_j.
    Softmax,
}

/// τ of the Pattention layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tau {
    /// τ of the query, key, value and output projections.
    pub attn: f64,
    /// τ of the feed-forward network.
    pub ffn: f64,
}

/// Numbers of new pairs for tuning. All other pairs are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Added {
    /// Number of new pairs in each of Q, K, V and O.
    pub attn: usize,
    /// Number of new pairs in the feed-forward network.
    pub ffn: usize,
}

/// Position encoding. The paper does not specify it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Position {
    /// A learned table, as in GPT-2, the baseline of Appendix D.
    #[default]
    Learned,
    /// Rotary positions on the first part of each head, as in the authors' configs.
    Rotary {
        /// The fraction of each head that is rotated, 0.25 in the authors' configs.
        fraction: f64,
    },
}

/// Standard deviations of initial keys, values and tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum PairInit {
    /// √(2 / (5 d)) (Nguyen and Salazar, "Transformers without tears", 2019, section 2.2), 0.023 at d = 768. For values
    /// that write to the stream, this number is multiplied by 1/√(2L), as in GPT-2.
    #[default]
    Width,
    /// A given number instead of √(2 / (5 d)).
    Fixed(f64),
    /// 0.02 for keys and tables, and 2 / (L√d) for all values, as in the authors' code.
    Code,
}

/// The config of a TokenFormer. Fields that the run file omits have the values of [`Default`]: the 150M model of Table
/// 8, in the paper's form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenFormerConfig {
    /// Number of layers.
    pub n_layer: usize,
    /// Number of attention heads. Must divide the width.
    pub n_head: usize,
    /// Width of the stream, d.
    pub width: usize,
    /// Number of key-value pairs in each of Q, K, V and O; `None` means the width.
    pub n_attn: Option<usize>,
    /// Number of key-value pairs in the feed-forward network; `None` means 4 · width.
    pub n_ffn: Option<usize>,
    /// The normalization Θ of the scores.
    pub normalization: Normalization,
    /// τ. `None` means √n for n pairs, as in eq. 5 and the authors' code, or n with `Softmax` and `GeluL1Norm`. A grown
    /// model keeps the τ of the smaller model.
    pub tau: Option<Tau>,
    /// Numbers of pairs to add to `n_attn` and `n_ffn` for tuning (section 5). Only these pairs are trained; all other
    /// weights and τ are frozen. New keys are zero, so tuning starts from the function of the original model, except
    /// with `Softmax`. New values are drawn like other values. Parameter counts then omit the frozen parameters. The
    /// paper has no experiment with tuning.
    pub added: Option<Added>,
    /// Rank of LoRA (Hu et al., "LoRA: low-rank adaptation of large language models", 2021), for tuning instead of
    /// `added`. Keys and values get low-rank corrections, initially zero. Only these corrections are trained.
    pub lora: Option<usize>,
    /// ε, added to the norm in Θ: 0 in the paper, 1e-5 or 1e-8 in the authors' TPU code.
    pub pattention_eps: f64,
    /// The activation in Θ, gelu in eq. 5.
    pub activation: Activation,
    /// Position encoding.
    pub position: Position,
    /// The parameters of all norms; none in the paper (section 3.3, Table 5).
    pub norm_params: NormParams,
    /// Whether the final norm has a scale and a shift regardless of `norm_params`, as in the authors' configs.
    pub affine_final_norm: bool,
    /// Maximum number of positions.
    pub context: usize,
    /// Dropout on x_0, the token-token attention and the output of each sublayer. The paper has none.
    pub dropout: f64,
    /// ε of norms, added to the variance.
    pub norm_eps: f64,
    /// The standard deviations of initial keys, values and tables, which the paper does not give.
    pub init: PairInit,
    /// μP, which replaces `init`. The fan-in of keys is d, and the fan-in of values is n, the number of pairs.
    pub mup: Option<Mup<TokenFormerBase>>,
}

/// Sizes of the μP base model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenFormerBase {
    /// Width of the stream.
    pub width: usize,
    /// Number of attention heads.
    pub n_head: usize,
    /// Number of key-value pairs in each of Q, K, V and O.
    pub n_attn: usize,
    /// Number of key-value pairs in the feed-forward network.
    pub n_ffn: usize,
}

impl Default for TokenFormerConfig {
    fn default() -> Self {
        Self {
            n_layer: 12,
            n_head: 12,
            width: 768,
            n_attn: None,
            n_ffn: None,
            normalization: Normalization::L2NormGelu,
            tau: None,
            added: None,
            lora: None,
            pattention_eps: 0.0,
            activation: Activation::GeluErf,
            position: Position::Learned,
            norm_params: NormParams::None,
            affine_final_norm: false,
            context: 1024,
            dropout: 0.0,
            norm_eps: 1e-5,
            init: PairInit::Width,
            mup: None,
        }
    }
}

impl TokenFormerConfig {
    /// Returns the number of key-value pairs in each of Q, K, V and O.
    pub fn n_attn(&self) -> usize {
        self.n_attn.unwrap_or(self.width)
    }

    /// Returns the number of key-value pairs in the feed-forward network.
    pub fn n_ffn(&self) -> usize {
        self.n_ffn.unwrap_or(4 * self.width)
    }

    /// Returns τ from the config, or the default: √n, as in eq. 5 and the authors' code, or n for
    /// [`Normalization::Softmax`] and [`Normalization::GeluL1Norm`].
    pub fn tau(&self) -> Tau {
        let default = |n: usize| match self.normalization {
            Normalization::Softmax | Normalization::GeluL1Norm => n as f64,
            Normalization::L2NormGelu | Normalization::GeluL2Norm => (n as f64).sqrt(),
        };
        self.tau.unwrap_or_else(|| Tau {
            attn: default(self.n_attn()),
            ffn: default(self.n_ffn()),
        })
    }

    /// Returns the config of the model grown to `n_attn` and `n_ffn` pairs, with the τ of this config.
    ///
    /// # Errors
    ///
    /// Returns an error if a number of pairs would decrease.
    pub fn grown(&self, n_attn: usize, n_ffn: usize) -> Result<Self, ConfigError> {
        let sizes = [
            ("n_attn", self.n_attn(), n_attn),
            ("n_ffn", self.n_ffn(), n_ffn),
        ];
        for (field, now, then) in sizes {
            if then < now {
                let problem = format!("cannot shrink from {now} to {then}; growth only adds pairs");
                return Err(ConfigError::new(field, problem));
            }
        }
        Ok(Self {
            n_attn: Some(n_attn),
            n_ffn: Some(n_ffn),
            tau: Some(self.tau()),
            ..self.clone()
        })
    }

    /// Whether the model is tuned, so that all weights except the weights for tuning are frozen.
    pub(crate) fn frozen(&self) -> bool {
        self.tuned().is_some()
    }

    /// Returns the rotary positions of queries and keys. With learned positions, no coordinates are rotated.
    pub(crate) fn rotary(&self) -> Rotary {
        let share = match self.position {
            Position::Learned => 0.0,
            Position::Rotary { fraction } => fraction,
        };
        Rotary {
            share,
            ..Rotary::default()
        }
    }

    /// Returns the number of coordinates of a head that rotary positions rotate.
    pub(crate) fn rotated(&self) -> usize {
        self.rotary().rotated(self.width / self.n_head)
    }

    /// Returns the standard deviation of initial keys.
    pub(crate) fn keys_std(&self) -> f64 {
        match &self.mup {
            Some(mup) => mup.hidden_std(self.width),
            None => self.tables_std(),
        }
    }

    /// Returns the standard deviation of initial tables and keys if μP is off.
    fn tables_std(&self) -> f64 {
        match self.init {
            PairInit::Width => std_of_width(self.width),
            PairInit::Fixed(std) => std,
            PairInit::Code => 0.02,
        }
    }

    /// Returns the standard deviation of initial values of `n` pairs.
    pub(crate) fn values_std(&self, n: usize) -> f64 {
        match (&self.mup, self.init) {
            (Some(mup), _) => mup.hidden_std(n),
            (None, PairInit::Code) => 2.0 / (self.n_layer as f64 * (self.width as f64).sqrt()),
            (None, _) => self.tables_std(),
        }
    }

    /// Returns the standard deviation of initial values of `n` pairs that write to the stream.
    pub(crate) fn output_values_std(&self, n: usize, frame: &Frame) -> f64 {
        let std = self.values_std(n) * frame.output;
        let is_code = self.mup.is_none() && self.init == PairInit::Code;
        match frame.by_depth && !is_code {
            true => std / (2.0 * self.n_layer as f64).sqrt(),
            false => std,
        }
    }

    /// Returns the cost of a part that tuning freezes: `cost`, without the parameters if the model is tuned.
    fn trained(&self, cost: Cost) -> Cost {
        match self.frozen() {
            true => Cost {
                params: Params::default(),
                ..cost
            },
            false => cost,
        }
    }

    /// Returns the multiplier of token-token attention scores.
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
            true => self.freeze(Norm::layer(
                self.norm_params,
                self.width,
                self.norm_eps,
                device,
            )),
            false => Norm::identity(),
        }
    }

    /// Freezes `module` if the model is tuned.
    fn freeze<B: Backend, M: Module<B>>(&self, module: M) -> M {
        match self.frozen() {
            true => module.no_grad(),
            false => module,
        }
    }

    fn options(&self, vocabulary: Vocabulary, frame: &Frame) -> TokenEmbeddingsOptions {
        let params = match self.affine_final_norm {
            true => NormParams::ScaleAndShift,
            false => self.norm_params,
        };
        let options = TokenEmbeddingsOptions {
            positions: (self.position == Position::Learned).then_some(self.context),
            norm: frame.final_norm.then_some(NormDesign::Layer {
                params,
                eps: self.norm_eps,
            }),
            dropout: self.dropout,
            init_std: self.tables_std(),
            unembedding_std: self.tables_std(),
            ..TokenEmbeddingsOptions::new(vocabulary, self.context, self.width)
        };
        match &self.mup {
            Some(mup) => options.mup(mup, mup.base.width),
            None => options,
        }
    }
}

impl Architecture for TokenFormerConfig {
    type Block<B: Backend, C: Connection<B>> = Block<B, C>;
    type Embeddings<B: Backend> = TokenEmbeddings<B>;

    fn name(&self) -> &'static str {
        "TokenFormer"
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
        Some(AttentionSize::of_heads(
            self.n_head,
            self.width / self.n_head,
        ))
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.shape().validate()?;
        check::divides(("n_head", self.n_head), ("width", self.width))?;
        check::at_least_one("n_attn", self.n_attn())?;
        check::at_least_one("n_ffn", self.n_ffn())?;
        if let Some(tau) = self.tau {
            check::positive("tau.attn", tau.attn)?;
            check::positive("tau.ffn", tau.ffn)?;
        }
        if let Some(Added { attn, ffn }) = self.added {
            check::at_least_one("added.attn", attn)?;
            check::at_least_one("added.ffn", ffn)?;
        }
        if let Some(rank) = self.lora {
            check::at_least_one("lora", rank)?;
            if self.added.is_some() {
                let problem = "is set, and so is `added`; a model is tuned by one of them";
                return Err(ConfigError::new("lora", problem));
            }
        }
        check::not_negative("pattention_eps", self.pattention_eps)?;
        if let Position::Rotary { fraction } = self.position {
            let (d, rotated) = (self.width / self.n_head, self.rotated());
            let possible = fraction > 0.0 && fraction <= 1.0;
            if !possible || rotated == 0 || !rotated.is_multiple_of(2) {
                let problem = format!(
                    "is {fraction}, which rotates {rotated} of the {d} coordinates of a head; it \
                     must rotate an even number, at least 2 and at most {d}"
                );
                return Err(ConfigError::new("position.fraction", problem));
            }
        }
        check::positive("norm_eps", self.norm_eps)?;
        if let Some(mup) = &self.mup {
            if self.init != PairInit::Width {
                let problem = "is set, but `mup` sets the initial weights; leave one out";
                return Err(ConfigError::new("init", problem));
            }
            let TokenFormerBase {
                width,
                n_head,
                n_attn,
                n_ffn,
            } = mup.base;
            mup.validate(&[("width", width), ("n_attn", n_attn), ("n_ffn", n_ffn)])?;
            check::divides(("mup.base.n_head", n_head), ("mup.base.width", width))?;
        }
        check::positive("init", self.tables_std())
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
        self.freeze(TokenEmbeddings::new(
            &self.options(vocabulary, frame),
            device,
        ))
    }

    fn block<B: Backend, C: Connection<B>>(
        &self,
        _layer: usize,
        frame: &Frame,
        mut connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Block<B, C> {
        let attention = (Attention::new(self, frame, device), connection());
        let feed_forward = || (FeedForward::new(self, frame, device), connection());
        Block::new(attention, frame.feed_forward.then(feed_forward))
    }

    fn embeddings_cost(&self, vocabulary: Vocabulary, frame: &Frame) -> Cost {
        self.trained(self.options(vocabulary, frame).cost())
    }

    fn block_cost(&self, _layer: usize, time: usize, frame: &Frame) -> Cost {
        let pairs = |n| Cost::linear(self.width, n, false) + Cost::linear(n, self.width, false);
        // Each pass computes the product of the two LoRA factors once, not per token, so FLOPs per token omit this
        // product.
        let lora = |n| Cost::vector(2 * self.lora.unwrap_or(0) * (n + self.width));
        let pattention = |n, added| self.trained(pairs(n)) + pairs(added) + lora(n);
        let norm = match frame.pre_norm {
            true => self.trained(self.norm_params.cost(self.width)),
            false => Cost::default(),
        };
        let added = self.added.unwrap_or(Added { attn: 0, ffn: 0 });
        let attention =
            norm + pattention(self.n_attn(), added.attn) * 4 + Cost::attention(time, self.width);
        match frame.feed_forward {
            true => attention + norm + pattention(self.n_ffn(), added.ffn),
            false => attention,
        }
    }
}

impl Transfer for TokenFormerConfig {
    fn tuned(&self) -> Option<&'static str> {
        let added = self.added.map(|_| "added");
        added.or(self.lora.map(|_| "lora"))
    }

    fn has_rates(&self) -> bool {
        self.mup.is_some()
    }

    fn rate(&self, name: &str) -> f64 {
        let Some(Mup { base, .. }) = &self.mup else {
            return 1.0;
        };
        let scaled = |now, base| Scaled { now, base };
        let is_attention = name.contains("attention.branch.");
        let pairs = match is_attention {
            true => scaled(self.n_attn(), base.n_attn),
            false => scaled(self.n_ffn(), base.n_ffn),
        };
        let hidden = [
            (".keys", scaled(self.width, base.width)),
            (".values", pairs),
        ];
        Scaled::rate_of(name, &hidden)
    }

    fn grows_from(&self, smaller: &Self) -> Result<(), ConfigError> {
        let pairs = [
            ("n_attn", smaller.n_attn(), self.n_attn()),
            ("n_ffn", smaller.n_ffn(), self.n_ffn()),
        ];
        for (field, from, to) in pairs {
            if to < from {
                let problem = format!("cannot shrink from {from} to {to}; growing only adds pairs");
                return Err(ConfigError::new(format!("model.{field}"), problem));
            }
        }
        for (field, from, to) in [
            ("width", smaller.width, self.width),
            ("n_layer", smaller.n_layer, self.n_layer),
        ] {
            if to != from {
                let problem = format!("cannot change from {from} to {to}; growing only adds pairs");
                return Err(ConfigError::new(format!("model.{field}"), problem));
            }
        }
        if let Some(before) = smaller.added.filter(|before| self.added != Some(*before)) {
            let Added { attn, ffn } = before;
            let problem = match self.added {
                Some(_) => format!(
                    "differs from (attn: {attn}, ffn: {ffn}) of the first weights, which are tuned already; start from the \
                     model that was tuned"
                ),
                None => format!(
                    "is missing, but the first weights have (attn: {attn}, ffn: {ffn}); set it to that"
                ),
            };
            return Err(ConfigError::new("model.added", problem));
        }
        if let Some(rank) = smaller.lora.filter(|rank| self.lora != Some(*rank)) {
            let problem = format!(
                "is not {rank}, the rank of the first weights, which are tuned already; set it to that"
            );
            return Err(ConfigError::new("model.lora", problem));
        }
        Ok(())
    }

    /// See [`merge`](crate::merge()).
    fn merge(
        &self,
        weights: &Tensors,
        other: (&Self, &Tensors),
        value_scale: f64,
    ) -> Result<(Self, Tensors), ConfigError> {
        crate::merge((self, weights), other, value_scale).map_err(|error| match error {
            MergeError::Config(error) => error,
            error => ConfigError::new("weights", error.to_string()),
        })
    }

    /// Appends key-value pairs (eqs. 12, 13) with zero keys. New values are drawn: if they were zero too, new pairs
    /// would get no gradient.
    ///
    /// Keeps the added pairs and the LoRA corrections if the smaller model has them; otherwise uses fresh ones. If the
    /// smaller model has them, the number of added pairs and the LoRA rank cannot change.
    fn grow(
        &self,
        _smaller: &Self,
        mut weights: Tensors,
        fresh: &Tensors,
    ) -> Result<Tensors, ConfigError> {
        for (name, fresh) in fresh {
            let is_new = name.contains(".added.") || name.contains(".lora.");
            if is_new && !weights.contains_key(name) {
                weights.insert(name.clone(), fresh.clone());
            }
        }
        for (name, weight) in &mut weights {
            let Some(fresh) = fresh.get(name).filter(|_| !name.contains(".added.")) else {
                continue;
            };
            match name.rsplit('.').next() {
                Some("keys" | "keys_b" | "values_b") => {
                    params::pad_rows(weight, &fresh.shape, None)
                }
                Some("values") => params::pad_rows(weight, &fresh.shape, Some(fresh.clone())),
                _ => {}
            }
        }
        Ok(weights)
    }
}
