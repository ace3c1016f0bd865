//! Weights from a pretrained transformer of the same sizes.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use residual_zoo_core::{Architecture, ConfigError, NormParams};

use crate::{Position, TokenFormerConfig};

/// An error in [`from_transformer`].
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// The config is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A weight is missing.
    #[error("the transformer has no `{0}`")]
    Missing(String),
    /// A weight has the wrong shape.
    #[error("`{name}` has shape {found:?}; a transformer of equal sizes has {expected:?}")]
    Shape {
        /// The name of the weight.
        name: String,
        /// The shape that fits the config.
        expected: Vec<usize>,
        /// The shape of the weight.
        found: Vec<usize>,
    },
    /// The number of attention pairs is not the width.
    #[error("is {found}, but a transformer of width {width} gives {width} pairs; set it to that")]
    Pairs {
        /// `n_attn` of the config.
        found: usize,
        /// The width, which must equal `n_attn`.
        width: usize,
    },
}

impl From<PretrainedError> for ConfigError {
    fn from(error: PretrainedError) -> Self {
        match error {
            PretrainedError::Config(error) => error.within("model"),
            PretrainedError::Pairs { .. } => Self::new("model.n_attn", error.to_string()),
            _ => Self::new("model", error.to_string()),
        }
    }
}

/// Makes the parameters of a TokenFormer of `config` from the parameters of a pre-norm transformer with the parameter
/// names of the zoo's GPT-2. Attention has one pair per hidden dimension, and the feed-forward network one per hidden
/// unit (section 3.2, "Architecture Configurations").
///
/// The feed-forward network becomes K_P = W_1ᵀ, V_P = W_2, so Θ replaces gelu. A projection W becomes K_P = I, V_P = W.
/// For queries, keys and values, ‖X‖₂ = √d after the norm. With the default τ = √d, eq. 5 then multiplies by 1 and only
/// gelu remains. The input of the output projection is not normalised, so Θ also scales it to the norm √d. The scale of
/// the norm before each sublayer is multiplied into the rows of the weights that follow the norm.
///
/// Parameters without a counterpart are dropped: biases, the shifts of the sublayers' norms, and an untied unembedding.
/// Without `affine_final_norm`, the parameters of the final norm are dropped too. With rotary positions, the position
/// table is dropped. The result is a starting point for training, and does not compute the function of the transformer.
///
/// # Errors
///
/// Returns an error if the config is invalid, if its norms have parameters, or if its `n_attn` is not the width. Also
/// returns an error if a weight is missing, if a weight of a layer has the wrong shape, or if the transformer has more
/// layers than the config.
pub fn from_transformer(
    config: &TokenFormerConfig,
    transformer: &BTreeMap<String, TensorData>,
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
    let next = format!("block.layers.{}.", config.n_layer);
    if transformer.keys().any(|name| name.starts_with(&next)) {
        let problem = format!("is {}; the transformer has more layers", config.n_layer);
        return Err(ConfigError::new("n_layer", problem).into());
    }
    let take = |name: &str| {
        let tensor = transformer.get(name);
        tensor.ok_or_else(|| PretrainedError::Missing(name.into()))
    };
    let shaped = |name: String, expected: &[usize]| {
        let tensor = take(&name)?;
        if *tensor.shape == *expected {
            return Ok(tensor.iter::<f32>().collect::<Vec<_>>());
        }
        Err(PretrainedError::Shape {
            name,
            expected: expected.to_vec(),
            found: tensor.shape.to_vec(),
        })
    };
    let matrix = |name: String, [rows, columns]: [usize; 2]| {
        let values = shaped(name, &[rows, columns])?;
        Ok::<_, PretrainedError>(Matrix { columns, values })
    };
    // Returns the weight after a norm, with its rows multiplied by the scale of the norm.
    let after_norm = |branch: &str, name: &str, columns: usize| {
        let gamma = shaped(format!("{branch}.norm.gamma"), &[d])?;
        let mut weight = matrix(format!("{branch}.{name}"), [d, columns])?;
        for (row, scale) in weight.values.chunks_mut(columns).zip(gamma) {
            row.iter_mut().for_each(|x| *x *= scale);
        }
        Ok::<_, PretrainedError>(weight)
    };

    let (tau, identity) = (config.tau(), Matrix::identity(d));
    let mut tensors = BTreeMap::new();
    let mut pattention = |name: String, keys: Matrix, values: Matrix, tau: f64| {
        tensors.insert(format!("{name}.keys"), keys.into_data());
        tensors.insert(format!("{name}.values"), values.into_data());
        tensors.insert(format!("{name}.tau"), TensorData::from([tau as f32]));
    };
    for layer in 0..config.n_layer {
        let attention = format!("block.layers.{layer}.attention.branch");
        let qkv = after_norm(&attention, "qkv.weight", 3 * d)?;
        for (i, name) in ["q", "k", "v"].into_iter().enumerate() {
            let w = qkv.narrow(i * d, d);
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

/// A matrix, stored by rows.
#[derive(Clone)]
struct Matrix {
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn identity(n: usize) -> Self {
        let values = (0..n * n).map(|i| if i % (n + 1) == 0 { 1.0 } else { 0.0 });
        Self {
            columns: n,
            values: values.collect(),
        }
    }

    fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    fn transpose(&self) -> Self {
        let column = |j| self.values.iter().skip(j).step_by(self.columns);
        Self {
            columns: self.rows(),
            values: (0..self.columns).flat_map(column).copied().collect(),
        }
    }

    /// Returns `count` columns, beginning with column `first`.
    fn narrow(&self, first: usize, count: usize) -> Self {
        let rows = self.values.chunks(self.columns);
        let values = rows.flat_map(|row| &row[first..first + count]);
        Self {
            columns: count,
            values: values.copied().collect(),
        }
    }

    fn into_data(self) -> TensorData {
        let shape = [self.rows(), self.columns];
        TensorData::new(self.values, shape)
    }
}
