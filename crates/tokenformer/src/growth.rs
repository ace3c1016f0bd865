//! Growth of a trained model (section 3.3).

use burn::tensor::backend::Backend;
use residual_zoo_core::params::{self, ImportError};
use residual_zoo_core::{Architecture, ConfigError, ModelConfig};

use crate::{TokenFormer, TokenFormerConfig};

/// Why a model cannot grow.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// The larger config is none.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model is not of the config.
    #[error("the model is not of this config: {0}")]
    Model(#[from] ImportError),
}

/// Appends key-value pairs to every Pattention of `model`, which is of `config`, up to `n_attn` and
/// `n_ffn` (eqs. 12, 13). The keys are zero and τ stays, so the grown model, of the config that is
/// returned, gives the same logits.
///
/// Normalised by a softmax it does not: a score of zero has weight e⁰.
///
/// # Errors
///
/// Fewer pairs than now, or a model of another config.
pub fn grow<B: Backend>(
    model: &TokenFormer<B>,
    config: &TokenFormerConfig,
    n_attn: usize,
    n_ffn: usize,
    device: &B::Device,
) -> Result<(TokenFormer<B>, TokenFormerConfig), GrowError> {
    let grown = config.grown(n_attn, n_ffn)?;
    let tensors = params::export(model);
    let rows = |name: &str| tensors.get(name).map(|tensor| tensor.shape[0]);
    let tokens = "ends.tokens.weight";
    let vocab_size = rows(tokens).ok_or_else(|| ImportError::Missing(tokens.into()))?;
    let head = tensors.get("ends.unembedding.weight");
    let n_output = head.map_or(vocab_size, |weight| weight.shape[1]);
    let larger = grown.build(vocab_size, n_output, device)?;
    let growth = |name: &str| Architecture::growth(&grown, name);
    let model = params::import_grown(larger, tensors, growth)?;
    Ok((model, grown))
}
