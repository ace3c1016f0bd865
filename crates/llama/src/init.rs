//! The initial weights of published models.

use burn::module::Initializer;
use burn::tensor::backend::Backend;
use residual_zoo_core::{ConfigError, Init, Linear, check, std_of_width};
use serde::{Deserialize, Serialize};

/// The initial weights. Biases are initially 0, and the factors of norms leave their input unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum LlamaInit {
    /// All weights and tables from N(0, 2 / (5 D)) on a stream of width D, as [`Init::Width`].
    Width,
    /// As `Huginn`, with the number of layers of this model for l: 4 for a model of four layers, whether or not it is
    /// looped. Connections that set the size of branches themselves, such as ReZero, do not divide.
    Depth,
    /// All weights and tables from N(0, std²), with this std: 0.02 in OLMo 2 and `transformers`.
    Fixed(f64),
    /// nanochat in 2026. Projections to the stream are 0. W_q, W_k, W_v and gates of attention are uniform between
    /// ±√(3 / D), and maps into the feed-forward network between 0.4 of these bounds. The token table is from
    /// N(0, 0.8²), and the unembedding from N(0, 0.001²). Needs `tied: false`.
    Nanochat,
    /// nanochat in 2025. Projections to the stream and the unembedding are 0. Matrices `[d_in, d_out]` are from
    /// N(0, s²), s = min(1, √(d_out / d_in)) / √d_in, and the token table is from N(0, 1). Needs `tied: false`.
    Nanochat2025,
    /// Huginn (Geiping et al., 2025), without its cut at 3 standard deviations. All weights and tables are from
    /// N(0, 2 / (5 D)). The projections to the stream and W_fc, but not the gate, are then divided by √(2 l). The number
    /// l counts the layers that a token passes, loops included: 132 in the paper. The authors' code for inference
    /// divides W_fc, as here; their code for training does not.
    Huginn(f64),
}

impl From<Init> for LlamaInit {
    fn from(init: Init) -> Self {
        match init {
            Init::Width => Self::Width,
            Init::Fixed(std) => Self::Fixed(std),
        }
    }
}

/// A kind of matrix in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matrix {
    /// W_q, W_k, W_v, or a gate of attention.
    Read,
    /// The gate of the feed-forward network.
    Gate,
    /// W_fc.
    Fc,
    /// A projection to the stream.
    Proj,
}

impl LlamaInit {
    /// Checks the numbers.
    ///
    /// # Errors
    ///
    /// Returns an error about the field `init` if a number is not above 0, or not finite.
    pub fn validate(self) -> Result<(), ConfigError> {
        match self {
            Self::Width | Self::Depth | Self::Nanochat | Self::Nanochat2025 => Ok(()),
            Self::Fixed(number) | Self::Huginn(number) => check::positive("init", number),
        }
    }

    /// Returns the standard deviations of the token table and of an unembedding of its own.
    pub(crate) fn tables(self, width: usize) -> [f64; 2] {
        match self {
            Self::Width | Self::Depth | Self::Huginn(_) => [std_of_width(width); 2],
            Self::Fixed(std) => [std; 2],
            Self::Nanochat => [0.8, 0.001],
            Self::Nanochat2025 => [1.0, 0.0],
        }
    }

    /// Builds a linear layer `[d_in, d_out]` on a stream of `width` features. The initial weights are multiplied by
    /// `scale`.
    pub(crate) fn linear<B: Backend>(
        self,
        matrix: Matrix,
        [d_in, d_out]: [usize; 2],
        bias: bool,
        (width, scale): (usize, f64),
        device: &B::Device,
    ) -> Linear<B> {
        let normal = |std| Initializer::Normal {
            mean: 0.0,
            std: std * scale,
        };
        let uniform = |bound: f64| Initializer::Uniform {
            min: -bound * scale,
            max: bound * scale,
        };
        let bound = (3.0 / width as f64).sqrt();
        let fan = (d_out as f64 / d_in as f64).sqrt().min(1.0);
        let weight = match (self, matrix) {
            (Self::Fixed(std), _) => normal(std),
            (Self::Nanochat | Self::Nanochat2025, Matrix::Proj) => Initializer::Zeros,
            (Self::Nanochat, Matrix::Read) => uniform(bound),
            (Self::Nanochat, Matrix::Gate | Matrix::Fc) => uniform(0.4 * bound),
            (Self::Nanochat2025, _) => normal(fan / (d_in as f64).sqrt()),
            (Self::Huginn(layers), Matrix::Fc | Matrix::Proj) => {
                normal(std_of_width(width) / (2.0 * layers).sqrt())
            }
            (Self::Width | Self::Depth | Self::Huginn(_), _) => normal(std_of_width(width)),
        };
        Linear {
            weight: weight.init([d_in, d_out], device),
            bias: bias.then(|| Initializer::Zeros.init([d_out], device)),
        }
    }
}
