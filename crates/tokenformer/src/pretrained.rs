//! Weights from a pretrained transformer of equal sizes.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use residual_zoo_core::{Architecture, ConfigError};

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
/// A missing weight, or one of other sizes.
pub fn from_transformer(
    config: &TokenFormerConfig,
    transformer: &BTreeMap<String, TensorData>,
) -> Result<BTreeMap<String, TensorData>, PretrainedError> {
    config.validate()?;
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
    let matrix = |name: &str, rows: usize, columns: usize| {
        let tensor = take(name)?;
        if *tensor.shape != [rows, columns] {
            return Err(PretrainedError::Shape {
                name: name.into(),
                expected: vec![rows, columns],
                found: tensor.shape.to_vec(),
            });
        }
        let values = tensor.iter::<f32>().collect();
        Ok(Matrix { columns, values })
    };
    let scale = |name: &str| -> Result<Vec<f32>, PretrainedError> {
        let tensor = take(name)?;
        if *tensor.shape != [d] {
            return Err(PretrainedError::Shape {
                name: name.into(),
                expected: vec![d],
                found: tensor.shape.to_vec(),
            });
        }
        Ok(tensor.iter::<f32>().collect())
    };

    let tau = config.tau();
    let mut tensors = BTreeMap::new();
    let mut pattention = |name: String, keys: Matrix, values: Matrix, tau: f64| {
        tensors.insert(format!("{name}.keys"), keys.into());
        tensors.insert(format!("{name}.values"), values.into());
        let tau = TensorData::new(vec![tau as f32], [1]);
        tensors.insert(format!("{name}.tau"), tau);
    };
    for layer in 0..config.n_layer {
        let attention = format!("block.layers.{layer}.attention.branch");
        let gamma = scale(&format!("{attention}.norm.gamma"))?;
        let qkv = matrix(&format!("{attention}.qkv.weight"), d, 3 * d)?.scale_rows(&gamma);
        for (i, name) in ["q", "k", "v"].into_iter().enumerate() {
            let values = qkv.columns(i * d, d);
            pattention(
                format!("{attention}.{name}"),
                Matrix::identity(d),
                values,
                tau.attn,
            );
        }
        let proj = matrix(&format!("{attention}.proj.weight"), d, d)?;
        pattention(
            format!("{attention}.o"),
            Matrix::identity(d),
            proj,
            tau.attn,
        );

        let mlp = format!("block.layers.{layer}.feed_forward.branch");
        let gamma = scale(&format!("{mlp}.norm.gamma"))?;
        let w_1 = matrix(&format!("{mlp}.fc.weight"), d, n_ffn)?.scale_rows(&gamma);
        let w_2 = matrix(&format!("{mlp}.proj.weight"), n_ffn, d)?;
        pattention(format!("{mlp}.ffn"), w_1.transposed(), w_2, tau.ffn);
    }
    let mut copied = vec!["ends.tokens.weight"];
    if config.position == Position::Learned {
        copied.push("ends.positions.weight");
    }
    if config.affine_final_norm {
        copied.push("ends.norm.gamma");
        let shift = transformer.get("ends.norm.beta").cloned();
        let shift = shift.unwrap_or_else(|| TensorData::zeros::<f32, _>([d]));
        tensors.insert("ends.norm.beta".into(), shift);
    }
    for name in copied {
        tensors.insert(name.into(), take(name)?.clone());
    }
    Ok(tensors)
}

/// A row-major matrix on the host.
struct Matrix {
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn identity(n: usize) -> Self {
        let entry = |at: usize| if at / n == at % n { 1.0 } else { 0.0 };
        Self {
            columns: n,
            values: (0..n * n).map(entry).collect(),
        }
    }

    fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    fn columns(&self, from: usize, columns: usize) -> Self {
        let rows = self.values.chunks_exact(self.columns);
        let values = rows.flat_map(|row| &row[from..from + columns]).copied();
        Self {
            columns,
            values: values.collect(),
        }
    }

    fn scale_rows(mut self, scale: &[f32]) -> Self {
        for (row, scale) in self.values.chunks_exact_mut(self.columns).zip(scale) {
            row.iter_mut().for_each(|x| *x *= scale);
        }
        self
    }

    fn transposed(&self) -> Self {
        let (rows, columns) = (self.rows(), self.columns);
        let value = |at: usize| self.values[at % rows * columns + at / rows];
        Self {
            columns: rows,
            values: (0..rows * columns).map(value).collect(),
        }
    }
}

impl From<Matrix> for TensorData {
    fn from(matrix: Matrix) -> Self {
        let shape = [matrix.rows(), matrix.columns];
        TensorData::new(matrix.values, shape)
    }
}
