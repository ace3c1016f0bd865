//! Token vectors of length 1, and logits that are scaled cosines.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Int, Tensor, backend::Backend};
use residual_zoo_core::ops::embedding::embedding;
use residual_zoo_core::unit::{UnitColumns, UnitRows};
use residual_zoo_core::{Cost, Embeddings, Params, Seen, Vocabulary, widen};

use crate::{Factor, NgptConfig};

/// h_0 = wte\[ids\] and logits = s_z (h · lm_head), without a final norm.
#[derive(Module, Debug)]
pub struct UnitEmbeddings<B: Backend> {
    /// wte, `[ids, width]`.
    tokens: UnitRows<B>,
    /// lm_head, `[width, outputs]`.
    unembedding: UnitColumns<B>,
    /// s_z, `[outputs]`.
    logit_scale: Factor<B>,
    dropout: Dropout,
}

impl<B: Backend> UnitEmbeddings<B> {
    pub(crate) fn new(config: &NgptConfig, vocabulary: Vocabulary, device: &B::Device) -> Self {
        let (width, outputs, std) = (config.width, vocabulary.outputs, config.std());
        Self {
            tokens: UnitRows::new(vocabulary.ids(), width, std, device),
            unembedding: UnitColumns::new(width, outputs, std, device),
            logit_scale: Factor::new(outputs, 1.0, std, device),
            dropout: DropoutConfig::new(config.dropout).init(),
        }
    }
}

/// Returns the cost of the embeddings. s_z counts as a part of the unembedding.
pub(crate) fn cost(width: usize, vocabulary: Vocabulary) -> Cost {
    let outputs = vocabulary.outputs;
    Cost {
        params: Params {
            embedding: vocabulary.ids() * width,
            unembedding: outputs * width + outputs,
            other: 0,
        },
        ..Cost::flops(2 * outputs * width)
    }
}

impl<B: Backend> Embeddings<B> for UnitEmbeddings<B> {
    fn embed(&self, ids: Tensor<B, 2, Int>, _: &Seen) -> Tensor<B, 3> {
        let h = embedding(self.tokens.weight.val(), ids);
        self.dropout.forward(h)
    }

    fn unembed(&self, h: Tensor<B, 3>) -> Tensor<B, 3> {
        let s_z = self.logit_scale.value().unsqueeze();
        widen(self.unembedding.forward(h)) * s_z
    }

    /// Returns h unchanged, because every state has length 1.
    fn final_norm(&self, h: Tensor<B, 3>) -> Tensor<B, 3> {
        h
    }
}
