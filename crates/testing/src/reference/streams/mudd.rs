//! Cases of MUDD.

use burn::tensor::TensorData;
use residual_zoo_models::core::Activation;
use residual_zoo_models::gpt2::Gpt2Config;
use residual_zoo_models::streams::{MuddConfig, MuddWays, PrePost};

use super::super::Keys;
use super::hybrid::{greek, norm};
use super::{Case, at_sublayer, case};

pub fn mudd(keys: &mut Keys, body: &Gpt2Config) -> Result<Case, String> {
    let ways = match keys.text("ways")?.as_str() {
        "one" => MuddWays::One,
        letters => MuddWays::Each(letters.into()),
    };
    keys.take("ways")?;
    let gelus = [
        ("exact", Activation::GeluErf),
        ("tanh", Activation::GeluTanh),
    ];
    let multiple = keys.take_size("hidden_round")?;
    let config = MuddConfig {
        dynamic: keys.choose("form", &[("dynamic", true), ("static", false)])?,
        own_norms: keys.choose("norms", &[("own", true), ("shared", false)])?,
        norm: norm(body),
        pre_post: keys.take_switch("prepost")?.then_some(PrePost::Code),
        activation: keys.choose("generator_activation", &gelus)?,
        hidden_multiple: (multiple > 0).then_some(multiple),
        wide_last: keys.take_switch("expand_last")?,
        norm_eps: keys.take_number("rms_eps")?,
        ways,
    };
    let (own_norms, n_layer) = (config.own_norms, body.n_layer);
    // Each layer has norms after its mixtures. The reference has only the last of them, for r.
    let last = match &config.ways {
        MuddWays::Each(letters) => letters.len() - 1,
        MuddWays::One => 0,
    };
    let own = move |name: &str, _: &mut TensorData| {
        if let Some(rest) = name.strip_prefix("layers.") {
            let (layer, rest) = rest.split_once('.')?;
            let (norm, field) = rest.split_once('.')?;
            let place = match norm {
                "ln1" => "attention.connection.norm",
                "ln1_q" => "attention.connection.norms.q",
                "ln1_k" => "attention.connection.norms.k",
                "ln1_v" => "attention.connection.norms.v",
                "ln2" => "feed_forward.connection.norm",
                _ => return None,
            };
            let name = format!("block.layers.{layer}.{place}.{}", greek(field)?);
            return own_norms.then_some(name);
        }
        let (l, field) = name.strip_prefix("mudd.")?.split_once('.')?;
        let mixtures = |l| format!("block.layers.{l}.feed_forward.connection.mixtures");
        if l == "pre" {
            let j: usize = field.strip_suffix(".weight")?.parse().ok()?;
            return Some(match j.checked_sub(1) {
                None => "block.ends.norm.gamma".into(),
                Some(l) => format!("{}.norm_source.gamma", mixtures(l)),
            });
        }
        let l: usize = l.parse().ok()?;
        let way = if l + 1 == n_layer { 0 } else { last };
        let field = match field {
            "bias" => "mixing".into(),
            "norm.weight" => "generator.norm.gamma".into(),
            "post.weight" => format!("norms_behind.{way}.gamma"),
            field => format!("generator.{field}"),
        };
        Some(format!("{}.{field}", mixtures(l)))
    };
    Ok(Case {
        own: Some(Box::new(own)),
        ..case(config, at_sublayer, &[])
    })
}
