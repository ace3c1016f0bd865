//! Net2Net: makes a wider GPT-2 from a trained one (Chen et al., "Net2Net: accelerating learning via knowledge
//! transfer", 2016, section 3: <https://arxiv.org/abs/1511.05641>). Net2Net is the baseline in section 4.3 of the
//! TokenFormer paper.
//!
//! Neuron j of the wider layer copies neuron j mod n of a layer with n neurons. If a neuron has c copies, the weights
//! that read them are divided by c. If the width grows by a whole factor, such as 2, all neurons of the stream have the
//! same number of copies. Layer norm over the copies then equals layer norm over the neurons, and exact copies keep the
//! logits. Otherwise, mean and variance count some neurons more often than others, and the logits change.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use residual_zoo_core::ConfigError;

use crate::Gpt2Config;

/// Makes the weights of a `wide` model from the weights `tensors` of a `narrow` model. Keys are parameter names.
/// Tensors of connections stay unchanged.
///
/// Exact copies with equal inputs and outputs would stay equal during training. Uniform noise of up to `noise` times
/// the tensor's root mean square makes them differ; 0 keeps exact copies.
///
/// # Errors
///
/// Returns an error if the configs differ in more than width, number of heads and feed-forward width, or in the width
/// of a head. Also returns an error if `wide` has a smaller width or feed-forward width than `narrow`, or if the
/// tensors do not belong to one GPT-2.
pub fn widen(
    wide: &Gpt2Config,
    narrow: &Gpt2Config,
    tensors: &BTreeMap<String, TensorData>,
    noise: f64,
) -> Result<BTreeMap<String, TensorData>, ConfigError> {
    check(wide, narrow)?;
    let width = Copies::new(narrow.width, wide.width);
    let hidden = Copies::new(narrow.d_ff(), wide.d_ff());
    let mut rng = StdRng::seed_from_u64(0x4e32_4e65_7432);
    let mut widened = BTreeMap::new();
    for (name, tensor) in tensors {
        if name.contains(".connection.") {
            // A model with connections keeps the width of its stream. Only `d_ff` can grow.
            widened.insert(name.clone(), tensor.clone());
            continue;
        }
        check_own(name, narrow.n_layer)?;
        let parts: Vec<&str> = name.rsplit('.').collect();
        let (kind, of, branch) = (parts[0], parts.get(1), parts.get(3));
        // The neurons that rows read, the neurons that columns write, and the number of times that the columns repeat.
        let (rows, columns, times) = match (of.copied(), branch.copied()) {
            (Some("qkv"), _) => {
                // Queries, keys and, if the layer has its own, values.
                let parts = tensor
                    .shape
                    .last()
                    .map_or(3, |columns| columns / narrow.width);
                (Some(&width), Some(&width), parts)
            }
            (Some("fc"), _) => (Some(&width), Some(&hidden), 1),
            (Some("proj"), Some("feed_forward")) => (Some(&hidden), Some(&width), 1),
            (Some("proj"), _) => (Some(&width), Some(&width), 1),
            (Some("unembedding"), _) => (Some(&width), None, 1),
            // Tables and norms.
            _ => (None, Some(&width), 1),
        };
        let rows = rows.filter(|_| kind == "weight");
        let mut found = copy(tensor, rows, columns, times, noise, &mut rng);
        // A tied token table is also the unembedding, which reads the copies. Instead of the table, the scale and the
        // shift of the final norm are divided by c.
        let is_final_norm = name.starts_with("embeddings.norm.");
        if wide.tied && is_final_norm {
            let shares = (0..wide.width).map(|j| 1.0 / width.of(j) as f32);
            let values = found.iter::<f32>().zip(shares).map(|(x, share)| x * share);
            found = TensorData::new(values.collect::<Vec<f32>>(), [wide.width]);
        }
        widened.insert(name.clone(), found);
    }
    Ok(widened)
}

/// Checks that Net2Net can widen `narrow` to `wide`.
///
/// # Errors
///
/// Returns the errors of [`widen`].
pub(crate) fn check(wide: &Gpt2Config, narrow: &Gpt2Config) -> Result<(), ConfigError> {
    let alike = Gpt2Config {
        width: narrow.width,
        n_head: narrow.n_head,
        d_ff: narrow.d_ff,
        ..wide.clone()
    };
    if alike != *narrow {
        let problem = "differs from the model of the other run in more than width, n_head and d_ff; a GPT-2 can start \
                       from one of the same sizes, or from a narrower one, which Net2Net widens";
        return Err(ConfigError::new("model", problem));
    }
    let sizes = [
        ("model.width", narrow.width, wide.width),
        ("model.d_ff", narrow.d_ff(), wide.d_ff()),
    ];
    for (field, from, to) in sizes {
        if to < from {
            let problem = format!(
                "cannot shrink from {from} to {to}; a GPT-2 can start from a narrower one only"
            );
            return Err(ConfigError::new(field, problem));
        }
    }
    if wide.width / wide.n_head != narrow.width / narrow.n_head {
        let head = narrow.width / narrow.n_head;
        let problem = format!(
            "makes heads of width {}, but the narrow model has heads of width {head}; Net2Net copies whole heads, so set it \
             to width / {head}",
            wide.width / wide.n_head,
        );
        return Err(ConfigError::new("model.n_head", problem));
    }
    Ok(())
}

/// Checks that a tensor belongs to a GPT-2 of `n_layer` layers.
fn check_own(name: &str, n_layer: usize) -> Result<(), ConfigError> {
    let layer = name.strip_prefix("block.layers.");
    let layer = layer.and_then(|rest| rest.split('.').next()?.parse().ok());
    match name.starts_with("embeddings.") || layer.is_some_and(|layer: usize| layer < n_layer) {
        true => Ok(()),
        false => {
            let problem = format!(
                "is composed, and `{name}` is not a tensor of a GPT-2, so it cannot be widened; Net2Net needs one GPT-2 \
                 without a recurrence"
            );
            Err(ConfigError::new("model", problem))
        }
    }
}

/// A map from `to` neurons to the `from` neurons that they copy.
struct Copies {
    from: usize,
    to: usize,
}

impl Copies {
    fn new(from: usize, to: usize) -> Self {
        Self { from, to }
    }

    /// Returns the number of copies of the neuron that neuron `j` copies.
    fn of(&self, j: usize) -> usize {
        (self.to - j % self.from).div_ceil(self.from)
    }
}

/// Copies the rows of `tensor`, which read neurons, and its columns, which write neurons. `tensor` is a matrix, or a
/// vector with an entry per column. The columns are `times` lists of neurons side by side.
fn copy(
    tensor: &TensorData,
    rows: Option<&Copies>,
    columns: Option<&Copies>,
    times: usize,
    noise: f64,
    rng: &mut StdRng,
) -> TensorData {
    let values: Vec<f32> = tensor.iter().collect();
    let shape = tensor.shape.to_vec();
    let (height, breadth) = match shape[..] {
        [height, breadth] => (height, breadth),
        _ => (1, values.len()),
    };
    let squares: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
    let size = noise * (squares / values.len().max(1) as f64).sqrt();
    let new_height = rows.map_or(height, |rows| rows.to);
    let new_breadth = columns.map_or(breadth, |columns| times * columns.to);
    let mut copied = Vec::with_capacity(new_height * new_breadth);
    for i in 0..new_height {
        let (from_row, share) = match rows {
            Some(rows) => (i % rows.from, 1.0 / rows.of(i) as f32),
            None => (i, 1.0),
        };
        for j in 0..new_breadth {
            let (from_column, is_first) = match columns {
                Some(columns) => {
                    let (list, j) = (j / columns.to, j % columns.to);
                    (list * columns.from + j % columns.from, j < columns.from)
                }
                None => (j, true),
            };
            let is_copy = !is_first || rows.is_some_and(|rows| i >= rows.from);
            let shift = match is_copy && size > 0.0 {
                true => rng.random_range(-size..size) as f32,
                false => 0.0,
            };
            copied.push((values[from_row * breadth + from_column] + shift) * share);
        }
    }
    match shape.len() {
        2 => TensorData::new(copied, [new_height, new_breadth]),
        _ => TensorData::new(copied, [new_breadth]),
    }
}
