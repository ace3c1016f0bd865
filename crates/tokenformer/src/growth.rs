//! Growth of a trained model (section 3.3).

use burn::tensor::backend::Backend;
use residual_zoo_core::params::{self, ImportError};
use residual_zoo_core::{Architecture, ConfigError, Transfer as _, Vocabulary};

use crate::{TokenFormer, TokenFormerConfig};

/// An error in growing a model.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// The larger config is invalid, or has fewer pairs.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights of the model do not fit the larger config.
    #[error("the model does not belong to this config: {0}")]
    Model(#[from] ImportError),
}

/// Appends key-value pairs to every Pattention of `model`, which was built from `config`, up to `n_attn` and `n_ffn`
/// pairs (eqs. 12, 13). Returns the grown model and its config. The new keys are zero and τ does not change, so the
/// logits stay the same.
///
/// With the softmax normalization, the logits change, because a score of zero has weight e⁰.
///
/// # Errors
///
/// Returns an error if a number of pairs would decrease, if the larger config is invalid, or if the weights of the
/// model do not fit it.
pub fn grow<B: Backend>(
    model: &TokenFormer<B>,
    config: &TokenFormerConfig,
    n_attn: usize,
    n_ffn: usize,
    device: &B::Device,
) -> Result<(TokenFormer<B>, TokenFormerConfig), GrowError> {
    let grown = config.grown(n_attn, n_ffn)?;
    let weights = params::export(model);
    let tokens = "embeddings.tokens.weight";
    let table = weights.get(tokens);
    let table = table.ok_or_else(|| ImportError::Missing(tokens.into()))?;
    let unembedding = weights.get("embeddings.unembedding.weight");
    let ids = table.shape[0];
    let outputs = unembedding.map_or(ids, |weight| weight.shape[1]);
    let vocabulary = Vocabulary::new(ids, outputs);
    let larger = grown.build(vocabulary, device)?;
    let weights = grown.grow(config, weights, &params::export(&larger))?;
    Ok((params::import(larger, weights)?, grown))
}
