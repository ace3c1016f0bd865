//! Cases of tuning with new parameter tokens. A parameter token is a pair of a key and a value.

use burn::tensor::TensorData;
use residual_zoo_models::tokenformer::{Added, TokenFormerConfig};
use residual_zoo_models::{ModelConfig as Zoo, Zoo as Architectures};
use serde_json::Value;

use super::Translate;

/// Returns the numbers of new pairs.
pub fn added(tuned: &Value) -> Result<Added, String> {
    let size = |key: &str| {
        tuned[key]
            .as_u64()
            .ok_or(format!("tuned.{key} is not a size"))
    };
    Ok(Added {
        attn: size("extra_attn")? as usize,
        ffn: size("extra_ffn")? as usize,
    })
}

/// Turns the last pairs of the model into new pairs. Only the new pairs are trained.
pub fn tuned(all: Zoo, added: Added, translate: Translate) -> Result<(Zoo, Translate), String> {
    let Some(Architectures::TokenFormer(all)) = all.plain() else {
        return Err("only a TokenFormer has pairs".into());
    };
    let config = TokenFormerConfig {
        n_attn: Some(all.n_attn() - added.attn),
        n_ffn: Some(all.n_ffn() - added.ffn),
        added: Some(added),
        ..all.clone()
    };
    let tensor = move |name: &str, data: TensorData| {
        let is_new = name.starts_with("new.");
        let name = name.strip_prefix("new.").unwrap_or(name);
        let is_pair = name.ends_with(".keys") || name.ends_with(".values");
        let new = if name.contains(".ffn.") {
            added.ffn
        } else {
            added.attn
        };
        let renamed = translate(name, data);
        let split = move |(name, data): (String, TensorData)| {
            let (path, field) = name.rsplit_once('.').unwrap();
            let to = format!("{path}.added.{field}");
            match (is_new, is_pair) {
                (true, _) => vec![(to, data)],
                (false, true) => {
                    let [before, after] = split_rows(&data, data.shape[0] - new);
                    vec![(name, before), (to, after)]
                }
                (false, false) => vec![(name, data)],
            }
        };
        renamed.into_iter().flat_map(split).collect()
    };
    Ok((Zoo::of(config), Box::new(tensor)))
}

/// Splits `data` after the first `first` rows.
pub fn split_rows(data: &TensorData, first: usize) -> [TensorData; 2] {
    let (rows, width) = (data.shape[0], data.shape[1]);
    let values: Vec<f32> = data.iter().collect();
    let (before, after) = values.split_at(first * width);
    [
        TensorData::new(before.to_vec(), [first, width]),
        TensorData::new(after.to_vec(), [rows - first, width]),
    ]
}
