//! Cases of nGPT.

use residual_zoo_models::ModelConfig as Zoo;
use residual_zoo_models::core::{Pairs, Rotary};
use residual_zoo_models::ngpt::{NgptConfig, NgptPositions};

use super::{Keys, Translate, modern};

/// Translates a case of nGPT.
pub(super) fn model(keys: &mut Keys) -> Result<(Zoo, Translate), String> {
    let rotary = modern::rotary(keys)?;
    let base = rotary.base;
    let only = Rotary {
        base,
        pairs: Pairs::Neighbours,
        ..Rotary::default()
    };
    if rotary != only {
        return Err(format!("rotary is {rotary:?}"));
    }
    let positions = [
        ("rotary", NgptPositions::Rotary),
        ("code", NgptPositions::Code),
    ];
    let config = NgptConfig {
        n_layer: keys.take_size("n_layer")?,
        n_head: keys.take_size("n_head")?,
        width: keys.take_size("d_model")?,
        d_ff: Some(keys.take_size("d_ff")?),
        context: 64,
        positions: keys.choose("position", &positions)?,
        rotary_base: base,
        ..NgptConfig::default()
    };
    let heads = [keys.take_size("n_kv_head")?, keys.take_size("head_dim")?];
    if heads != [config.n_head, config.head_dim()] {
        return Err(format!("n_kv_head and head_dim are {heads:?}"));
    }
    let translate = |name: &str, data| vec![(self::name(name), data)];
    Ok((Zoo::of(config), Box::new(translate)))
}

fn name(name: &str) -> String {
    match name {
        "wte" => return "embeddings.tokens.weight".into(),
        "lm_head" => return "embeddings.unembedding.weight".into(),
        "logit_scale" => return "embeddings.logit_scale.stored".into(),
        _ => {}
    }
    let name = name
        .replace(".attn.", ".attention.branch.")
        .replace(".mlp.", ".feed_forward.branch.");
    match name.ends_with(".weight") {
        true => format!("block.{name}"),
        false => format!("block.{name}.stored"),
    }
}
