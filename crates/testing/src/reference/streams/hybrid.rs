//! Cases of HybridNorm.

use burn::tensor::TensorData;
use residual_zoo_models::core::{NormDesign, NormParams};
use residual_zoo_models::gpt2::Gpt2Config;
use residual_zoo_models::streams::HybridNormConfig;

use super::super::Keys;
use super::{Case, at_sublayer, case};

/// Returns the norm of the reference's layers.
pub(super) fn norm(body: &Gpt2Config) -> NormDesign {
    NormDesign::Layer {
        params: match body.bias {
            true => NormParams::ScaleAndShift,
            false => NormParams::Scale,
        },
        eps: body.norm_eps,
    }
}

/// Returns the zoo's name for the scale or shift of a norm.
pub(super) fn greek(field: &str) -> Option<&'static str> {
    match field {
        "weight" => Some("gamma"),
        "bias" => Some("beta"),
        _ => None,
    }
}

pub fn hybrid(keys: &mut Keys, body: &Gpt2Config) -> Result<Case, String> {
    keys.take("placement")?;
    let config = HybridNormConfig {
        first_pre: keys.take_switch("first_pre")?,
        norm: norm(body),
        norm_eps: keys.take_number("rms_eps")?,
    };
    let own = |name: &str, _: &mut TensorData| {
        let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
        let (place, field) = rest.rsplit_once('.')?;
        let (sublayer, norm) = match place {
            "ln1" => ("attention", "norm"),
            "ln2" => ("feed_forward", "norm"),
            "attn.q_norm" => ("attention", "heads.q"),
            "attn.k_norm" => ("attention", "heads.k"),
            "attn.v_norm" => ("attention", "heads.v"),
            _ => return None,
        };
        let connection = format!("block.layers.{layer}.{sublayer}.connection");
        Some(format!("{connection}.{norm}.{}", greek(field)?))
    };
    Ok(Case {
        own: Some(Box::new(own)),
        ..case(config, at_sublayer, &[])
    })
}
