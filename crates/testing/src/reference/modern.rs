//! Cases of the modern decoder.

use burn::tensor::TensorData;
use residual_zoo_models::ModelConfig as Zoo;
use residual_zoo_models::core::{Activation, NormPlaces, Pairs, RmsScale, Rotary, RotaryScaling};
use residual_zoo_models::llama::{Biases, CanonConfig, Gate, LlamaConfig, QkNorm};
use residual_zoo_models::streams::{
    Backout, InitialMixConfig, InitialMixStart, SmearConfig, SpeedrunConfig, TableGate,
    ValueEmbeddingConfig, ValueTables,
};
use serde_json::Value;

use super::{Keys, Translate, inside_layer};
use crate::pass::Values;

/// Translates a case of the modern decoder.
pub(super) fn model(keys: &mut Keys) -> Result<(Zoo, Translate), String> {
    let smear = keys.take_switch("smear")?;
    let channels = keys.take_size("smear_channels")?;
    let backout = keys.take_switch("backout")?;
    let with_table = keys.take_sizes("value_embed")?;
    let gate_channels = keys.take_size("value_channels")?;
    let mix = keys.take_switch("x0_mix")?;
    let llama = config(keys)?;
    let numbers = 0..llama.n_layer;
    let zoo = Zoo::of(llama);
    let is_speedrun = smear || backout || !with_table.is_empty();
    let translate = |name: &str, data| vec![(self::name(name), data)];
    match (is_speedrun, mix) {
        (false, false) => return Ok((zoo, Box::new(translate))),
        (false, true) => {
            let zoo = zoo.per_layer(InitialMixConfig::default());
            return Ok((zoo, Box::new(mixed)));
        }
        _ => {}
    }
    let mut tables = 0..;
    let table = |layer| with_table.contains(&layer).then(|| tables.next()).flatten();
    let values = ValueEmbeddingConfig {
        tables: ValueTables::Layers(numbers.map(table).collect()),
        gate: TableGate::Channels {
            count: gate_channels,
            range: 3.0,
        },
    };
    let speedrun = SpeedrunConfig {
        smear: smear.then(|| SmearConfig {
            channels,
            ..SmearConfig::default()
        }),
        mix: mix.then_some(InitialMixStart::Plain),
        values: (!with_table.is_empty()).then_some(values),
        backout: backout.then_some(Backout::Middle),
        ..SpeedrunConfig::default()
    };
    Ok((zoo.per_sublayer(speedrun), Box::new(with_tricks)))
}

/// Translates a parameter of a model whose layers mix in x_0.
fn mixed(name: &str, data: TensorData) -> Vec<(String, TensorData)> {
    of_layers(name, &data, "connection")
        .unwrap_or_else(|| vec![(inside_layer(self::name(name)), data)])
}

/// Translates the factors with which the layers mix in x_0. In the zoo, each layer has its own factors under `place`.
fn of_layers(name: &str, data: &TensorData, place: &str) -> Option<Vec<(String, TensorData)>> {
    let factor = match name {
        "scale.resid" => "r",
        "scale.x0" => "m",
        _ => return None,
    };
    let numbers = Values::from(data.clone()).data.into_iter().enumerate();
    let of_layer = |(layer, number): (usize, f64)| {
        let name = format!("block.layers.{layer}.{place}.{factor}");
        (name, TensorData::from([number as f32]))
    };
    Some(numbers.map(of_layer).collect())
}

/// Translates a parameter of a model with nanochat's tricks.
fn with_tricks(name: &str, mut data: TensorData) -> Vec<(String, TensorData)> {
    if let Some(factors) = of_layers(name, &data, "attention.connection.mix") {
        return factors;
    }
    let of_layer = |layer: &str, part: &str| {
        format!("block.layers.{layer}.attention.connection.values.{part}")
    };
    let place = match name {
        "smear.gate.weight" => "block.layers.0.attention.connection.smear.w".to_owned(),
        "smear.scale" => "block.layers.0.attention.connection.smear.s".to_owned(),
        "backout" => "block.ends.backout.lambda".to_owned(),
        _ => {
            let gated = name.strip_suffix(".attn.value_gate.weight");
            let gated = gated.and_then(|layer| layer.strip_prefix("layers."));
            match (name.strip_prefix("value_embed."), gated) {
                (Some(layer), _) => of_layer(layer, "table"),
                (None, Some(layer)) => of_layer(layer, "gate"),
                (None, None) => self::name(name),
            }
        }
    };
    if place.ends_with("smear.w") {
        // The reference has a matrix with one column, and the zoo has a vector.
        data.shape = [data.num_elements()].into();
    }
    vec![(place, data)]
}

fn config(keys: &mut Keys) -> Result<LlamaConfig, String> {
    let width = keys.take_size("d_model")?;
    let scale = match (
        keys.take_switch("norm_weight")?,
        keys.take_number("norm_offset")?,
    ) {
        (false, _) => RmsScale::None,
        (true, 0.0) => RmsScale::Scale,
        (true, 1.0) => RmsScale::OnePlus,
        (true, other) => return Err(format!("norm_offset is {other}")),
    };
    let places = [
        ("pre", NormPlaces::Before),
        ("post", NormPlaces::Behind),
        ("both", NormPlaces::Both),
        ("sandwich", NormPlaces::Sandwich),
        ("original", NormPlaces::Original),
    ];
    let activations = [
        ("silu", Activation::Silu),
        ("gelu_tanh", Activation::GeluTanh),
        ("gelu_exact", Activation::GeluErf),
        ("relu2", Activation::SquaredRelu),
    ];
    let qk_norms = [
        ("head", QkNorm::Heads),
        ("plain", QkNorm::Heads),
        ("full", QkNorm::All),
        ("l2", QkNorm::Unit),
    ];
    let gates = [("head", Gate::PerHead), ("element", Gate::PerCoordinate)];
    let bias = match keys.take("qkv_bias")? {
        Value::Bool(false) => Biases::None,
        Value::Bool(true) => Biases::Qkv,
        Value::String(text) if text == "qk" => Biases::Qk,
        other => return Err(format!("qkv_bias is {other}")),
    };
    let scaled_embedding = match number(keys, "embed_scale")? {
        None => false,
        Some(scale) if scale == (width as f64).sqrt() => true,
        Some(scale) => return Err(format!("embed_scale is {scale}")),
    };
    let places_of_canon = keys.text("canon")?;
    keys.take("canon")?;
    let canon = CanonConfig {
        places: places_of_canon,
        kernel: keys.take_size("canon_kernel")?,
        residual: keys.take_switch("canon_residual")?,
    };
    Ok(LlamaConfig {
        n_layer: keys.take_size("n_layer")?,
        n_head: keys.take_size("n_head")?,
        n_kv_head: Some(keys.take_size("n_kv_head")?),
        head_dim: Some(keys.take_size("head_dim")?),
        width,
        d_ff: Some(keys.take_size("d_ff")?),
        context: 64,
        norm: scale,
        norm_places: keys.choose("placement", &places)?,
        norm_eps: keys.take_number("norm_eps")?,
        activation: keys.choose("activation", &activations)?,
        gated: keys.take_switch("gated")?,
        rotary: rotary(keys)?,
        qk_norm: choice(keys, "qk_norm", &qk_norms)?,
        qk_norm_late: keys.take_switch("qk_norm_late")?,
        qk_scale: keys.take_number("qk_gain")?,
        attention_scale: number(keys, "attn_scale")?,
        attention_cap: number(keys, "attn_softcap")?,
        logit_cap: number(keys, "logit_softcap")?,
        windows: windows(keys)?,
        bias,
        proj_bias: keys.take_switch("proj_bias")?,
        mlp_bias: keys.take_switch("mlp_bias")?,
        scaled_embedding,
        normed_embedding: keys.take_switch("embed_norm")?,
        tied: keys.take_switch("tied")?,
        gate: choice(keys, "gate", &gates)?,
        canon: (!canon.places.is_empty()).then_some(canon),
        ..LlamaConfig::default()
    })
}

pub(super) fn rotary(keys: &mut Keys) -> Result<Rotary, String> {
    let Value::Object(rotary) = keys.take("rotary")? else {
        return Err("rotary has no fields".into());
    };
    let mut rotary = Keys(rotary);
    let scaling = match keys.take("rope_scaling")? {
        Value::Object(scaling) => {
            let mut scaling = Keys(scaling);
            Some(RotaryScaling {
                factor: scaling.take_number("factor")?,
                low: scaling.take_number("low")?,
                high: scaling.take_number("high")?,
                original: scaling.take_size("original")?,
            })
        }
        _ => None,
    };
    let pairs = [("half", Pairs::Halves), ("interleaved", Pairs::Neighbours)];
    Ok(Rotary {
        base: rotary.take_number("theta")?,
        share: rotary.take_number("fraction")?,
        pairs: rotary.choose("layout", &pairs)?,
        scaling,
        backwards: rotary.take_number("sign")? < 0.0,
    })
}

fn windows(keys: &mut Keys) -> Result<Vec<Option<usize>>, String> {
    if keys.0.get("windows").is_some_and(Value::is_null) {
        keys.take("windows")?;
        return Ok(Vec::new());
    }
    let windows = keys.take_sizes("windows")?.into_iter();
    Ok(windows.map(|w| (w > 0).then_some(w)).collect())
}

/// Returns the number under `key`, if it is not null.
fn number(keys: &mut Keys, key: &str) -> Result<Option<f64>, String> {
    Ok(keys.take(key)?.as_f64())
}

/// Returns the value in `choices` for the text under `key`, if it is not null.
fn choice<T: Copy>(keys: &mut Keys, key: &str, choices: &[(&str, T)]) -> Result<Option<T>, String> {
    if keys.0.get(key).is_some_and(Value::is_null) {
        keys.take(key)?;
        return Ok(None);
    }
    keys.choose(key, choices).map(Some)
}

fn name(name: &str) -> String {
    match name {
        "wte" => return "embeddings.tokens.weight".into(),
        "lm_head" => return "embeddings.unembedding.weight".into(),
        "ln_f.weight" => return "embeddings.norm.gamma".into(),
        _ => {}
    }
    let name = name
        .replace(".ln1.weight", ".attention.branch.norms.before.gamma")
        .replace(".ln1_post.weight", ".attention.branch.norms.behind.gamma")
        .replace(".ln2.weight", ".feed_forward.branch.norms.before.gamma")
        .replace(
            ".ln2_post.weight",
            ".feed_forward.branch.norms.behind.gamma",
        )
        .replace("_norm.weight", "_norm.gamma")
        .replace(".canon_a.weight", ".attention.branch.canon_a.taps")
        .replace(".canon_b.weight", ".attention.branch.canon_b.taps")
        .replace(".canon_c.weight", ".feed_forward.branch.canon_c.taps")
        .replace(".canon_d.weight", ".feed_forward.branch.canon_d.taps")
        .replace(".attn.", ".attention.branch.")
        .replace(".mlp.", ".feed_forward.branch.");
    format!("block.{name}")
}
