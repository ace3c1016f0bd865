//! Cases of depth loops over the layers of the modern decoder.

use residual_zoo_models::ModelConfig as Zoo;
use residual_zoo_models::loops::{Inject, LoopOrder, LoopStart, LoopsConfig, Times, Timestep};
use serde_json::Value;

use super::{Keys, Translate, modern};

/// Translates a case of depth loops.
pub(super) fn model(keys: &mut Keys) -> Result<(Zoo, Translate), String> {
    let [prelude, core, coda] = ["n_prelude", "n_core", "n_coda"].map(|key| keys.take_size(key));
    let (prelude, core, coda) = (prelude?, core?, coda?);
    let (trained, before) = (keys.take_size("loops")?, keys.take_size("loops_no_grad")?);
    let timestep = match keys.take("timestep")? {
        Value::Null => Timestep::None,
        Value::String(text) if text == "sinusoid" => Timestep::Sinusoid,
        Value::String(text) if text == "learned" => Timestep::Learned,
        other => return Err(format!("timestep is {other}")),
    };
    let injections = [
        ("none", Inject::None),
        ("add", Inject::Add),
        ("linear", Inject::Linear),
    ];
    let starts = [
        ("embed", LoopStart::Embedding),
        ("zero", LoopStart::Zero),
        // The state of the case replaces the random state.
        ("given", LoopStart::Random(1.0)),
    ];
    let orders = [("cycle", LoopOrder::Cycle), ("repeat", LoopOrder::Repeat)];
    let config = LoopsConfig {
        prelude,
        coda,
        times: Times::Fixed(before + trained),
        evaluated: None,
        backward: (before > 0).then_some(trained),
        order: keys.choose("order", &orders)?,
        inject: keys.choose("inject", &injections)?,
        start: keys.choose("start", &starts)?,
        timestep,
        norm: keys.take_switch("loop_norm")?,
    };
    keys.0
        .insert("n_layer".into(), (prelude + core + coda).into());
    let (model, inside) = modern::model(keys)?;
    let translate = move |name: &str, data| match name.split_once('.') {
        Some((part @ ("prelude" | "core" | "coda"), rest)) => {
            let first = match part {
                "prelude" => 0,
                "core" => prelude,
                _ => prelude + core,
            };
            let (layer, rest) = rest.split_once('.').unwrap();
            let layer = first + layer.parse::<usize>().unwrap();
            inside(&format!("layers.{layer}.{rest}"), data)
        }
        // `adapter` and `timestep` have the same names in the zoo.
        _ => inside(name, data),
    };
    Ok((model.looped(config), Box::new(translate)))
}
