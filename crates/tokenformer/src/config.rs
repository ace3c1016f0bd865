//! Sizes and switches of TokenFormer.

use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Activation, Architecture, ConfigError, Connection, Cost, NormParams, Shape, Tensors,
    TokenEmbeddings, TokenEmbeddingsOptions, Vocabulary, check, params,
};
use serde::{Deserialize, Serialize};

use crate::{Attention, Block, FeedForward};

/// Θ, which turns a row A_i of scores into weights of the values: eq. 5, and the rows of Table 4 that
/// have a code (its row with an L1 norm has none).
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

/// τ of the Pattentions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tau {
    /// Of queries, keys, values and the output.
    pub attn: f64,
    /// Of the feed-forward network.
    pub ffn: f64,
}

/// How positions enter. The paper does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Position {
    /// A learned table, as in GPT-2, which Appendix D compares with.
    #[default]
    Learned,
    /// Rotary positions on the first part of each head, as in the authors' configs.
    Rotary {
        /// The part of each head; theirs is 0.25.
        fraction: f64,
    },
}

/// The config of a TokenFormer. Fields that a file leaves out have the values of [`Default`]: the
/// 150M of Table 8, in the paper's form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenFormerConfig {
    /// Number of layers.
    pub n_layer: usize,
    /// Number of attention heads; divides the width.
    pub n_head: usize,
    /// Width of the stream, d.
    pub width: usize,
    /// Key-value pairs of each of the Pattentions Q, K, V and O; `None` is the width.
    pub n_attn: Option<usize>,
    /// Key-value pairs of the feed-forward network; `None` is 4 · width.
    pub n_ffn: Option<usize>,
    /// Θ.
    pub normalization: Normalization,
    /// τ; `None` is √n, and n for the softmax and the L1 norm. A grown model keeps that of the model it grew from.
    pub tau: Option<Tau>,
    /// Added to the norm in Θ: 0 in the paper, 1e-5 or 1e-8 in the authors' TPU code.
    pub pattention_eps: f64,
    /// The gelu of Θ.
    pub activation: Activation,
    /// Where positions enter.
    pub position: Position,
    /// The parameters of all norms, none in the paper (section 3.3, Table 5).
    pub norm_params: NormParams,
    /// Whether the final norm has a scale and a shift in any case, as in the authors' configs.
    pub affine_final_norm: bool,
    /// Most positions.
    pub context: usize,
    /// Dropout on x_0, on the token-token attention and on what each sublayer adds. The paper has
    /// none.
    pub dropout: f64,
    /// Added to the variance in norms.
    pub norm_eps: f64,
    /// Standard deviation of initial keys, values and tables; values that lead back to the stream
    /// have 1/√(2L) of it, as in GPT-2. `None` is √(2 / (5 d)) (Nguyen and Salazar, "Transformers
    /// without tears", 2019, section 2.2), 0.023 at d = 768.
    pub init_std: Option<f64>,
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
            pattention_eps: 0.0,
            activation: Activation::GeluErf,
            position: Position::Learned,
            norm_params: NormParams::None,
            affine_final_norm: false,
            context: 1024,
            dropout: 0.0,
            norm_eps: 1e-5,
            init_std: None,
        }
    }
}

/// Table 8. The models for vision are here for their sizes: the zoo has no image patches.
impl TokenFormerConfig {
    fn sized(n_layer: usize, width: usize, n_attn: usize, n_ffn: usize, n_head: usize) -> Self {
        Self {
            n_layer,
            n_head,
            width,
            n_attn: Some(n_attn),
            n_ffn: Some(n_ffn),
            ..Self::default()
        }
    }

    /// Language, 150M.
    pub fn m150() -> Self {
        Self::sized(12, 768, 768, 3072, 12)
    }

    /// Language, 450M.
    pub fn m450() -> Self {
        Self::sized(24, 1024, 1024, 4096, 16)
    }

    /// Language, 900M.
    pub fn m900() -> Self {
        Self::sized(32, 1280, 1280, 5120, 16)
    }

    /// Language, 1.5B.
    pub fn b1_5() -> Self {
        Self::sized(40, 1536, 1536, 6144, 16)
    }

    /// Parameter reuse, 124M: where the growth begins.
    pub fn m124() -> Self {
        Self::sized(12, 768, 576, 2304, 12)
    }

    /// Parameter reuse, 354M.
    pub fn m354() -> Self {
        Self::sized(12, 768, 2140, 8560, 12)
    }

    /// Parameter reuse, 757M.
    pub fn m757() -> Self {
        Self::sized(12, 768, 4850, 19_400, 12)
    }

    /// Parameter reuse, 1.4B; counted, it is 1.31B.
    pub fn b1_4() -> Self {
        Self::sized(12, 768, 8620, 34_480, 12)
    }

    /// Vision, Base, 86M.
    pub fn base_86m() -> Self {
        Self::m124()
    }

    /// Vision, Base, 109M.
    pub fn base_109m() -> Self {
        Self::m150()
    }

    /// Vision, Large, 307M. The table prints 768 pairs for the feed-forward network, which make
    /// 189M; 3072 fit.
    pub fn large_307m() -> Self {
        Self::sized(24, 1024, 768, 3072, 16)
    }

    /// Vision, Large, 407M.
    pub fn large_407m() -> Self {
        Self::m450()
    }
}

impl TokenFormerConfig {
    /// Key-value pairs of each Pattention of the attention.
    pub fn n_attn(&self) -> usize {
        self.n_attn.unwrap_or(self.width)
    }

    /// Key-value pairs of the feed-forward network.
    pub fn n_ffn(&self) -> usize {
        self.n_ffn.unwrap_or(self.width.saturating_mul(4))
    }

    /// τ, given or by default.
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

    /// The config of the model grown to `n_attn` and `n_ffn` pairs, with the τ of this one.
    ///
    /// # Errors
    ///
    /// When there would be fewer pairs than now.
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

    /// Coordinates of a head that rotary positions turn.
    pub(crate) fn rotated(&self) -> usize {
        match self.position {
            Position::Learned => 0,
            Position::Rotary { fraction } => {
                ((self.width / self.n_head) as f64 * fraction) as usize
            }
        }
    }

    /// Standard deviation of initial weights.
    pub fn init_std(&self) -> f64 {
        let default = (0.4 / self.width as f64).sqrt();
        self.init_std.unwrap_or(default)
    }

    pub(crate) fn projection_std(&self) -> f64 {
        self.init_std() / (2.0 * self.n_layer as f64).sqrt()
    }

    fn embeddings_options(&self, vocabulary: Vocabulary) -> TokenEmbeddingsOptions {
        TokenEmbeddingsOptions {
            positions: (self.position == Position::Learned).then_some(self.context),
            norm: if self.affine_final_norm {
                NormParams::ScaleAndShift
            } else {
                self.norm_params
            },
            dropout: self.dropout,
            norm_eps: self.norm_eps,
            init_std: self.init_std(),
            ..TokenEmbeddingsOptions::new(vocabulary, self.context, self.width)
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

    fn validate(&self) -> Result<(), ConfigError> {
        self.shape().validate()?;
        check::divides(("n_head", self.n_head), ("width", self.width))?;
        check::at_least_one("n_attn", self.n_attn())?;
        check::at_least_one("n_ffn", self.n_ffn())?;
        if let Some(tau) = self.tau {
            check::positive("tau.attn", tau.attn)?;
            check::positive("tau.ffn", tau.ffn)?;
        }
        check::not_negative("pattention_eps", self.pattention_eps)?;
        if let Position::Rotary { fraction } = self.position {
            let (d, rotated) = (self.width / self.n_head, self.rotated());
            let possible = fraction > 0.0 && fraction <= 1.0;
            if !possible || rotated == 0 || !rotated.is_multiple_of(2) {
                let problem = format!(
                    "is {fraction}, which turns {rotated} of the {d} coordinates of a head; it \
                     must make an even number, at least 2 and at most {d}"
                );
                return Err(ConfigError::new("position.fraction", problem));
            }
        }
        check::positive("norm_eps", self.norm_eps)?;
        check::positive("init_std", self.init_std())
    }

    fn embeddings<B: Backend>(
        &self,
        vocabulary: Vocabulary,
        device: &B::Device,
    ) -> TokenEmbeddings<B> {
        TokenEmbeddings::new(&self.embeddings_options(vocabulary), device)
    }

    fn block<B: Backend, C: Connection<B>>(
        &self,
        _layer: usize,
        mut connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Block<B, C> {
        Block::new(
            (Attention::new(self, device), connection()),
            (FeedForward::new(self, device), connection()),
        )
    }

    fn embeddings_cost(&self, vocabulary: Vocabulary) -> Cost {
        self.embeddings_options(vocabulary).cost()
    }

    fn block_cost(&self, time: usize) -> Cost {
        let pattention =
            |n| Cost::linear(self.width, n, false) + Cost::linear(n, self.width, false);
        pattention(self.n_attn()) * 4
            + Cost::attention(time, self.width)
            + pattention(self.n_ffn())
            + self.norm_params.cost(self.width) * 2
    }

    /// Appends key-value pairs (eqs. 12, 13). The new keys are zero. The new values keep their initial
    /// draw: if they were zero too, the new pairs would get no gradient.
    fn grow(
        &self,
        _smaller: &Self,
        mut weights: Tensors,
        fresh: &Tensors,
    ) -> Result<Tensors, ConfigError> {
        for (name, weight) in &mut weights {
            let Some(fresh) = fresh.get(name) else {
                continue;
            };
            match name.rsplit('.').next() {
                Some("keys") => params::pad_rows(weight, &fresh.shape, None),
                Some("values") => params::pad_rows(weight, &fresh.shape, Some(fresh.clone())),
                _ => {}
            }
        }
        Ok(weights)
    }
}
