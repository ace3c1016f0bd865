//! The embeddings and the unembedding.

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Int, Tensor, backend::Backend};
use residual_zoo_core::ops::embedding::embedding;
use residual_zoo_core::{
    Embeddings, Frame, Norm, Seen, Vocabulary, add_positions, positions, project, scaled,
};

use crate::memory::{retrieve_normalised, store};
use crate::{Positions, RmtConfig};

/// A table of data vectors, and the keys under which they are stored.
#[derive(Module, Debug)]
pub struct Table<B: Backend> {
    /// Wᵀ, `[rows, D_v · R]`.
    pub(crate) weight: Param<Tensor<B, 2>>,
    /// w, `[R, D_k]`.
    pub(crate) key: Param<Tensor<B, 2>>,
}

impl<B: Backend> Table<B> {
    fn new(config: &RmtConfig, rows: usize, device: &B::Device) -> Self {
        let &RmtConfig { rank, d_k, .. } = config;
        Self {
            weight: config.table(rows, device),
            key: config.weight(1.0, [rank, d_k], [rank, d_k], device),
        }
    }
}

/// The keys of the last retrieval, and the map to logits.
#[derive(Module, Debug)]
pub struct Unembedding<B: Backend> {
    /// r_U, `[R, D_k]`.
    pub(crate) key: Param<Tensor<B, 2>>,
    /// W_Uᵀ, `[D_v · R, outputs]`.
    pub(crate) weight: Param<Tensor<B, 2>>,
}

/// E(S) + P(N) (eqs. 14, 18, 19) and U(LN(X)) (eqs. 17, 26, 27).
#[derive(Module, Debug)]
pub struct RmtEmbeddings<B: Backend> {
    pub(crate) tokens: Table<B>,
    pub(crate) positions: Option<Table<B>>,
    dropout: Dropout,
    pub(crate) norm: Norm<B>,
    pub(crate) unembedding: Unembedding<B>,
    /// The multipliers of X^(0) and of the logits.
    multipliers: [f64; 2],
}

impl<B: Backend> RmtEmbeddings<B> {
    pub(crate) fn new(
        config: &RmtConfig,
        vocabulary: Vocabulary,
        frame: &Frame,
        device: &B::Device,
    ) -> Self {
        let &RmtConfig { rank, d_k, .. } = config;
        let learned = config.positions == Positions::Learned;
        Self {
            tokens: Table::new(config, vocabulary.ids(), device),
            positions: learned.then(|| Table::new(config, config.context, device)),
            dropout: DropoutConfig::new(config.dropout).init(),
            norm: match frame.final_norm {
                true => config.norm(device),
                false => Norm::identity(),
            },
            unembedding: Unembedding {
                key: config.weight(1.0, [rank, d_k], [d_k, rank], device),
                weight: config.unembedding(vocabulary.outputs, device),
            },
            multipliers: config.multipliers(),
        }
    }
}

impl<B: Backend> Embeddings<B> for RmtEmbeddings<B> {
    fn embed(&self, ids: Tensor<B, 2, Int>, seen: &Seen) -> Tensor<B, 3> {
        let time = ids.dims()[1];
        let tokens = embedding(self.tokens.weight.val(), ids);
        let x = store(self.tokens.key.val(), tokens);
        let x = match &self.positions {
            Some(table) => {
                let positions = positions(table.weight.val(), seen, time);
                add_positions(x, store(table.key.val(), positions))
            }
            None => x,
        };
        self.dropout.forward(scaled(x, self.multipliers[0]))
    }

    fn unembed(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let x_u = retrieve_normalised(self.unembedding.key.val(), &self.norm, x);
        let x_u = scaled(x_u, self.multipliers[1]);
        project(x_u, self.unembedding.weight.val())
    }

    fn final_norm(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        self.norm.forward(x)
    }
}
