//! The ends most models share: a token table, learned positions, a final norm.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Embedding, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Int, Tensor, backend::Backend};

use crate::{Ends, init};

/// x_0 = tokens\[ids\] + positions, logits = norm(x_L) · unembedding.
///
/// The unembedding is the transposed token table (Press and Wolf, "Using the output embedding
/// to improve language models", 2017) unless the model has one of its own.
#[derive(Module, Debug)]
pub struct TokenEnds<B: Backend> {
    tokens: Embedding<B>,
    positions: Embedding<B>,
    dropout: Dropout,
    norm: LayerNorm<B>,
    unembedding: Option<Linear<B>>,
}

/// The sizes of [`TokenEnds`].
#[derive(Clone, Debug)]
pub struct TokenEndsOptions {
    /// Number of token ids.
    pub vocab_size: usize,
    /// Number of positions.
    pub context: usize,
    /// Width of the stream.
    pub width: usize,
    /// Whether the unembedding is the token table.
    pub tied: bool,
    /// Whether the final norm has a shift.
    pub bias: bool,
    /// Dropout on x_0.
    pub dropout: f64,
    /// Added to the variance in the final norm.
    pub norm_eps: f64,
    /// Standard deviation of the initial tables.
    pub init_std: f64,
}

impl<B: Backend> TokenEnds<B> {
    /// Draws the tables from N(0, `init_std`²).
    pub fn new(options: &TokenEndsOptions, device: &B::Device) -> Self {
        let &TokenEndsOptions {
            vocab_size,
            context,
            width,
            init_std,
            ..
        } = options;
        let table = |rows| Embedding {
            weight: init::normal([rows, width], init_std, device),
        };
        Self {
            tokens: table(vocab_size),
            positions: table(context),
            dropout: DropoutConfig::new(options.dropout).init(),
            norm: LayerNormConfig::new(width)
                .with_epsilon(options.norm_eps)
                .with_bias(options.bias)
                .init(device),
            unembedding: (!options.tied)
                .then(|| init::linear(width, vocab_size, false, init_std, device)),
        }
    }
}

impl<B: Backend> Ends<B> for TokenEnds<B> {
    fn embed(&self, ids: Tensor<B, 2, Int>, start: usize) -> Tensor<B, 3> {
        let time = ids.dims()[1];
        let positions = self.positions.weight.val().narrow(0, start, time);
        self.dropout
            .forward(self.tokens.forward(ids) + positions.unsqueeze())
    }

    fn unembed(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let x = self.norm.forward(x);
        match &self.unembedding {
            Some(unembedding) => unembedding.forward(x),
            None => x.matmul(self.tokens.weight.val().transpose().unsqueeze()),
        }
    }
}
