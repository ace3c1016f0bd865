//! The ends most models share: a token table, learned positions, a final norm.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Embedding, LayerNorm, Linear};
use burn::tensor::{Int, Tensor, backend::Backend};

use crate::norm::{NormParams, normalise};
use crate::{Cost, Ends, Memory, Params, init};

/// x_0 = tokens\[ids\] + positions, logits = norm(x_L) · unembedding.
///
/// The unembedding is the transposed token table (Press and Wolf, "Using the output embedding
/// to improve language models", 2017) unless the model has one of its own.
#[derive(Module, Debug)]
pub struct TokenEnds<B: Backend> {
    tokens: Embedding<B>,
    positions: Option<Embedding<B>>,
    dropout: Dropout,
    norm: Option<LayerNorm<B>>,
    norm_eps: f64,
    unembedding: Option<Linear<B>>,
}

/// The sizes of [`TokenEnds`].
#[derive(Clone, Debug)]
pub struct TokenEndsOptions {
    /// Number of token ids.
    pub vocab_size: usize,
    /// Width of the logits: `vocab_size` in a language model, the number of classes in a
    /// classifier.
    pub n_output: usize,
    /// Number of learned positions, none if positions enter elsewhere.
    pub positions: Option<usize>,
    /// Width of the stream.
    pub width: usize,
    /// Whether the unembedding is the token table. It can only be if `n_output` is `vocab_size`;
    /// otherwise the model has an unembedding of its own.
    pub tied: bool,
    /// The parameters of the final norm.
    pub norm: NormParams,
    /// Dropout on x_0.
    pub dropout: f64,
    /// Added to the variance in the final norm.
    pub norm_eps: f64,
    /// Standard deviation of the initial tables.
    pub init_std: f64,
}

impl TokenEndsOptions {
    fn tied(&self) -> bool {
        self.tied && self.n_output == self.vocab_size
    }

    /// What the ends cost.
    pub fn cost(&self) -> Cost {
        let width = self.width;
        let positions = self.positions.unwrap_or(0);
        let rows = self.vocab_size.saturating_add(positions);
        let unembedding = self.n_output.saturating_mul(width);
        let largest = self.vocab_size.max(self.n_output).max(positions);
        let params = Params {
            embedding: rows.saturating_mul(width),
            unembedding: if self.tied() { 0 } else { unembedding },
            other: 0,
        };
        Cost {
            params,
            forward_flops: unembedding.saturating_mul(2),
            memory: Memory {
                // The input of the unembedding, and the logits in the loss.
                kept: width.saturating_add(self.n_output),
                passing: self.n_output.saturating_mul(4),
                largest: largest.saturating_mul(width),
            },
        } + self.norm.cost(width)
            + Cost::dropout(width, self.dropout)
    }
}

impl<B: Backend> TokenEnds<B> {
    /// Draws the tables from N(0, `init_std`²).
    pub fn new(options: &TokenEndsOptions, device: &B::Device) -> Self {
        let &TokenEndsOptions {
            vocab_size,
            n_output,
            width,
            init_std,
            ..
        } = options;
        let table = |rows| Embedding {
            weight: init::normal([rows, width], init_std, device),
        };
        Self {
            tokens: table(vocab_size),
            positions: options.positions.map(table),
            dropout: DropoutConfig::new(options.dropout).init(),
            norm: options.norm.layer_norm(width, options.norm_eps, device),
            norm_eps: options.norm_eps,
            unembedding: (!options.tied())
                .then(|| init::linear(width, n_output, false, init_std, device)),
        }
    }
}

impl<B: Backend> Ends<B> for TokenEnds<B> {
    fn embed(&self, ids: Tensor<B, 2, Int>, start: usize) -> Tensor<B, 3> {
        let time = ids.dims()[1];
        let tokens = self.tokens.forward(ids);
        let x = match &self.positions {
            Some(table) => tokens + table.weight.val().narrow(0, start, time).unsqueeze(),
            None => tokens,
        };
        self.dropout.forward(x)
    }

    fn unembed(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let x = normalise(&self.norm, x, self.norm_eps);
        match &self.unembedding {
            Some(unembedding) => unembedding.forward(x),
            // Transposed last: a transposed table cannot be given another axis without a copy.
            None => x.matmul(self.tokens.weight.val().unsqueeze::<3>().transpose()),
        }
    }
}
