//! Cases of connections that own norms and have their own names for them.

use burn::tensor::TensorData;
use residual_zoo_models::core::{NormDesign, NormParams};
use residual_zoo_models::gpt2::Gpt2Config;
use residual_zoo_models::streams::{
    Compress, DeltaConfig, DeltaForm, NormPlacementConfig, Placement, SiameseConfig, SiameseForm,
};

use super::super::{Keys, sublayer, swap};
use super::{Case, Own, at_sublayer, case};

/// Returns the norm of the reference's layers.
fn norm(body: &Gpt2Config) -> NormDesign {
    NormDesign::Layer {
        params: match body.bias {
            true => NormParams::ScaleAndShift,
            false => NormParams::Scale,
        },
        eps: body.norm_eps,
    }
}

/// Splits the name of a norm in a layer. Returns the place of the sublayer, the text after `ln1` or `ln2`, and γ or β.
fn of_sublayer(name: &str) -> Option<(String, &str, &str)> {
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    let (norm, field) = rest.split_once('.')?;
    let first = norm.strip_prefix("ln1").map(|kind| (0, kind));
    let (at, kind) = first.or_else(|| norm.strip_prefix("ln2").map(|kind| (1, kind)))?;
    let place = sublayer(2 * layer.parse::<usize>().ok()? + at);
    Some((format!("{place}.connection"), kind, greek(field)?))
}

fn greek(field: &str) -> Option<&'static str> {
    match field {
        "weight" => Some("gamma"),
        "bias" => Some("beta"),
        _ => None,
    }
}

fn with(case: Case, own: Own) -> Case {
    Case {
        own: Some(own),
        ..case
    }
}

pub fn placement(keys: &mut Keys, body: &Gpt2Config) -> Result<Case, String> {
    let placement = match keys.text("placement")?.as_str() {
        "mix" => Placement::Mix {
            post_layers: Some(keys.take_size("post_layers")?),
        },
        _ => Placement::default(),
    };
    let placement = keys.choose(
        "placement",
        &[
            ("peri", Placement::Peri),
            ("post_branch", Placement::PostBranch),
            ("lns", Placement::Lns),
            ("mix", placement),
        ],
    )?;
    let peri = placement == Placement::Peri;
    let config = NormPlacementConfig {
        placement,
        embedding_norm: peri && keys.take_switch("embed_norm")?,
        norm: norm(body),
    };
    let own = move |name: &str, _: &mut TensorData| {
        if let Some(field) = name.strip_prefix("ln_e.") {
            return Some(format!("block.ends.norm.{}", greek(field)?));
        }
        let (place, kind, field) = of_sublayer(name)?;
        let first_layers =
            |count| (0..count).any(|layer| name.starts_with(&format!("layers.{layer}.")));
        let behind = match placement {
            Placement::Peri => kind == "_post",
            Placement::PostBranch => true,
            Placement::Lns => false,
            Placement::Mix { post_layers } => first_layers(post_layers?),
        };
        let norm = if behind { "behind" } else { "before" };
        Some(format!("{place}.norms.{norm}.{field}"))
    };
    Ok(with(case(config, at_sublayer, &[]), Box::new(own)))
}

pub fn siamese(keys: &mut Keys, body: &Gpt2Config) -> Result<Case, String> {
    let forms = [("paper", SiameseForm::Paper), ("code", SiameseForm::Code)];
    let config = SiameseConfig {
        form: keys.choose("form", &forms)?,
        input_norm: keys.take_switch("input_norm")?,
        depth_scale: keys.take_switch("depth_scale")?,
        norm: norm(body),
    };
    let own = |name: &str, _: &mut TensorData| {
        if let Some((place, kind, field)) = of_sublayer(name) {
            return Some(format!("{place}.norm{kind}.{field}"));
        }
        let (kind, field) = name.strip_prefix("ln_")?.split_once('.')?;
        match kind {
            "x" | "y" => Some(format!("block.ends.norm_{kind}.{}", greek(field)?)),
            _ => None,
        }
    };
    Ok(with(case(config, at_sublayer, &[]), Box::new(own)))
}

pub fn delta(keys: &mut Keys, body: &Gpt2Config) -> Result<Case, String> {
    let forms = [("paper", DeltaForm::Paper), ("code", DeltaForm::Code)];
    let compressed = [
        ("none", Compress::Channel),
        ("channel", Compress::Channel),
        ("time", Compress::Time),
    ];
    let config = DeltaConfig {
        form: keys.choose("form", &forms)?,
        channels: keys.take_size("channels")?,
        compress: keys.choose("compress", &compressed)?,
        per_layer: true,
        embedding_conv: keys.take_switch("embed_conv")?,
        // Without a convolution, the reference's kernel size is 0.
        kernel: keys.take_size("kernel")?.max(1),
        k_eps: keys.take_number("k_eps")?,
        norm: norm(body),
    };
    let n_layer = body.n_layer;
    let own = move |name: &str, data: &mut TensorData| {
        if let Some((place, _, field)) = of_sublayer(name) {
            return Some(format!("{place}.norm.{field}"));
        }
        let (i, field) = name.strip_prefix("delta.")?.split_once('.')?;
        let shape = data.shape.to_vec();
        match (field, shape.as_slice()) {
            ("conv", &[d, m, k]) => *data = swap(data.clone(), [1, d, m, k], &[m * d, k]),
            ("beta.weight", &[d]) => data.shape = vec![d, 1].into(),
            _ => {}
        }
        // Compressors are numbered by layer, and the last one belongs to the last residual.
        let connection = |i| format!("{}.connection", sublayer(i));
        Some(match (i, field) {
            ("embed", _) => format!("{}.expand", connection(0)),
            (l, "conv" | "read") => match l.parse::<usize>().ok()? {
                l if l == n_layer => format!("{}.last.{field}", connection(2 * l - 1)),
                l => format!("{}.compress.{field}", connection(2 * l)),
            },
            (i, field) => format!("{}.{field}", connection(i.parse().ok()?)),
        })
    };
    Ok(with(case(config, at_sublayer, &[]), Box::new(own)))
}
