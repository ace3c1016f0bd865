//! Weights from a pretrained transformer of equal sizes.

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::{Architecture, ConfigError, NormParams};

use crate::{Position, TokenFormerConfig};

/// Why a transformer's weights do not fit.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// The config is none.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A weight is missing.
    #[error("the transformer has no `{0}`")]
    Missing(String),
    /// A weight has another shape.
    #[error("`{name}` has shape {found:?}; equal sizes need {expected:?}")]
    Shape {
        /// The weight.
        name: String,
        /// The shape that fits the config.
        expected: Vec<usize>,
        /// Its shape.
        found: Vec<usize>,
    },
    /// The number of pairs in the attention does not match a transformer's.
    #[error("`n_attn` is {found}; a transformer of width {width} gives {width} pairs")]
    Pairs {
        /// `n_attn` of the config.
        found: usize,
        /// The width, which it would have to be.
        width: usize,
    },
}

/// The parameters of a TokenFormer of `config` made from those of a pre-norm transformer, named as
/// GPT-2's in the zoo (section 3.2, "Architecture Configurations": as many pairs as the hidden
/// dimension in the attention, as many as hidden units in the feed-forward network).
///
/// The feed-forward network becomes K_P = W_1ᵀ, V_P = W_2, so that Θ takes the place of gelu. A
/// projection W becomes K_P = I, V_P = W. For queries, keys and values ‖X‖₂ = √d = τ after the
/// norm, so eq. 5 divides by nothing and gelu alone stands between; the output's input is not
/// normalised, so there Θ also scales it to that norm. The scale of the norm before each sublayer is
/// multiplied into the rows of the weights that follow it. What has no place is left out: biases,
/// an unembedding that is not the token table, and the final norm's parameters without
/// `affine_final_norm`. The model is a start to train from, not the transformer.
///
/// # Errors
///
/// A config that is none, a missing weight, or one of other sizes.
pub fn from_transformer<B: Backend>(
    config: &TokenFormerConfig,
    transformer: &BTreeMap<String, TensorData>,
    device: &B::Device,
) -> Result<BTreeMap<String, TensorData>, PretrainedError> {
    config.validate()?;
    if config.norm_params != NormParams::None {
        let problem = "must be None: the scales of the transformer's norms go into the keys";
        return Err(ConfigError::new("norm_params", problem).into());
    }
    let (d, n_ffn) = (config.width, config.n_ffn());
    if config.n_attn() != d {
        return Err(PretrainedError::Pairs {
            found: config.n_attn(),
            width: d,
        });
    }
    let take = |name: &str| {
        let tensor = transformer.get(name);
        tensor.ok_or_else(|| PretrainedError::Missing(name.into()))
    };
    let shaped = |name: String, expected: &[usize]| {
        let tensor = take(&name)?;
        if *tensor.shape == *expected {
            return Ok(tensor.clone());
        }
        let found = tensor.shape.to_vec();
        let expected = expected.to_vec();
        Err(PretrainedError::Shape {
            name,
            expected,
            found,
        })
    };
    let matrix = |name: String, shape: [usize; 2]| {
        let data = shaped(name, &shape)?;
        Ok::<_, PretrainedError>(Tensor::<B, 2>::from_data(data, device))
    };
    // The weight after a norm, its rows multiplied by the norm's scale.
    let after_norm = |branch: &str, name: &str, columns: usize| {
        let gamma = shaped(format!("{branch}.norm.gamma"), &[d])?;
        let gamma = Tensor::<B, 1>::from_data(gamma, device).unsqueeze_dim(1);
        Ok::<_, PretrainedError>(matrix(format!("{branch}.{name}"), [d, columns])? * gamma)
    };

    let (tau, identity) = (config.tau(), Tensor::<B, 2>::eye(d, device));
    let mut tensors = BTreeMap::new();
    let mut pattention = |name: String, keys: Tensor<B, 2>, values: Tensor<B, 2>, tau: f64| {
        tensors.insert(format!("{name}.keys"), keys.into_data());
        tensors.insert(format!("{name}.values"), values.into_data());
        tensors.insert(format!("{name}.tau"), TensorData::from([tau]));
    };
    for layer in 0..config.n_layer {
        let attention = format!("block.layers.{layer}.attention.branch");
        let qkv = after_norm(&attention, "qkv.weight", 3 * d)?;
        for (w, name) in qkv.chunk(3, 1).into_iter().zip(["q", "k", "v"]) {
            pattention(format!("{attention}.{name}"), identity.clone(), w, tau.attn);
        }
        let w_o = matrix(format!("{attention}.proj.weight"), [d, d])?;
        pattention(format!("{attention}.o"), identity.clone(), w_o, tau.attn);

        let mlp = format!("block.layers.{layer}.feed_forward.branch");
        let w_1 = after_norm(&mlp, "fc.weight", n_ffn)?;
        let w_2 = matrix(format!("{mlp}.proj.weight"), [n_ffn, d])?;
        pattention(format!("{mlp}.ffn"), w_1.transpose(), w_2, tau.ffn);
    }
    let mut copied = vec!["embeddings.tokens.weight"];
    if config.position == Position::Learned {
        copied.push("embeddings.positions.weight");
    }
    if config.affine_final_norm {
        copied.push("embeddings.norm.gamma");
        let shift = transformer.get("embeddings.norm.beta").cloned();
        let shift = shift.unwrap_or_else(|| TensorData::zeros::<f32, _>([d]));
        tensors.insert("embeddings.norm.beta".into(), shift);
    }
    for name in copied {
        tensors.insert(name.into(), take(name)?.clone());
    }
    Ok(tensors)
}
