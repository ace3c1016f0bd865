//! Cases of the connections of `residual_zoo_models::streams`.

use burn::tensor::TensorData;
use residual_zoo_models::core::{Design, Frame, NormParams};
use residual_zoo_models::gpt2::Gpt2Config;
use residual_zoo_models::streams::{
    AttentionResidualConfig, DeepNormConfig, DenseConfig, DepthLstmCellConfig, DepthLstmConfig,
    DepthLstmForm, FirstCell, GateNorm, HighwayConfig, HyperConfig, InitialMixConfig,
    IterativeConfig, LayerScaleConfig, LimeConfig, MhcConfig, MhcForm, NormPlace, Psi,
    ReZeroConfig, SelfDependencyConfig, SkipInitConfig, TableGate, TreeConfig,
    ValueEmbeddingConfig, ValueGate, ValueGatedConfig, ValueResidualConfig, ValueResidualForm,
    ValueSharedConfig, ValueTables,
};
use residual_zoo_models::streams::{
    Backout, FracConfig, FractionNorm, MhcResidual, SkipWeight, SkipsConfig,
};
use residual_zoo_models::{ConnectionConfig, ModelConfig as Zoo};

use serde_json::Value;

use super::{Keys, Translate, gpt2, gpt2_name, inside_layer, sublayer};

mod hybrid;
mod mudd;
mod norms;

/// Pairs of a tensor's name in the reference and its name in the zoo.
type Fields = &'static [(&'static str, &'static str)];

const CELL: Fields = &[
    ("gates_norm.weight", "gates.norm.gamma"),
    ("gates_norm.bias", "gates.norm.beta"),
    ("gates.", "gates.map."),
    ("fc_norm.weight", "norm_hidden.gamma"),
    ("fc_norm.bias", "norm_hidden.beta"),
];
const NODE: Fields = &[
    ("norm.weight", "node.norm.gamma"),
    ("norm.bias", "node.norm.beta"),
    ("fc.", "node.fc."),
    ("proj.", "node.proj."),
];
const HYPER: Fields = &[
    ("norm.weight", "dynamic.norm.gamma"),
    ("norm.bias", "dynamic.norm.beta"),
    ("alpha_fn", "dynamic.w_alpha"),
    ("beta_fn", "dynamic.w_beta"),
    ("alpha_scale", "dynamic.s_alpha"),
    ("beta_scale", "dynamic.s_beta"),
    ("alpha", "mixing"),
];
const MHC: Fields = &[
    ("norm.weight", "read.norm.gamma"),
    ("phi", "read.phi"),
    ("base", "read.base"),
];
const READ: Fields = &[("norm.weight", "read.norm.gamma"), ("query", "read.query")];

/// Returns the name in the zoo of the reference's connection `i`, or `None` if the zoo has no such parameters.
type Place = fn(i: usize, n_layer: usize) -> Option<String>;

fn at_sublayer(i: usize, _: usize) -> Option<String> {
    Some(format!("{}.connection", sublayer(i)))
}

fn at_attention(layer: usize, _: usize) -> Option<String> {
    Some(format!("block.layers.{layer}.attention.connection"))
}

fn at_layer(layer: usize, _: usize) -> Option<String> {
    Some(format!("block.layers.{layer}.connection"))
}

/// Returns the place of read `i`. The first read has one source, so it has no parameters in the zoo. The last read is
/// at the end of the stream.
fn at_read(i: usize, n_layer: usize) -> Option<String> {
    match i {
        0 => None,
        i if i == 2 * n_layer => Some("block.ends".into()),
        i => at_sublayer(i, n_layer),
    }
}

/// A design, the place of its connections, and their fields.
struct Case {
    config: ConnectionConfig,
    per_layer: bool,
    place: Place,
    fields: Fields,
    /// Whether the connection owns `ln1` and `ln2`.
    owns_norms: bool,
    /// Translates names and layouts that the other fields do not describe.
    own: Option<Own>,
}

/// Returns the name of a tensor in the zoo, and changes the tensor's layout to the zoo's. Returns `None` for all other
/// tensors.
type Own = Box<dyn Fn(&str, &mut TensorData) -> Option<String>>;

fn case(config: impl Into<ConnectionConfig>, place: Place, fields: Fields) -> Case {
    Case {
        config: config.into(),
        per_layer: false,
        place,
        fields,
        owns_norms: false,
        own: None,
    }
}

fn around_layers(config: impl Into<ConnectionConfig>, place: Place, fields: Fields) -> Case {
    Case {
        per_layer: true,
        ..case(config, place, fields)
    }
}

pub fn model(keys: &mut Keys) -> Result<(Zoo, Translate), String> {
    let body = gpt2(keys)?;
    let post = keys.text("norm")? == "post";
    let case = connection(keys, &body, post)?;
    let n_layer = body.n_layer;
    let frame = case.config.frame(n_layer * 2);
    // ReZero and the paper's depth-wise LSTM have no norms. The other connections without a pre-norm have norms in
    // other places.
    let norm = keys.choose("norm", &[("pre", true), ("post", false), ("none", false)])?;
    let cell_norm =
        matches!(&case.config, ConnectionConfig::DepthLstm(c) if c.form == DepthLstmForm::Code);
    let has_norm = frame.pre_norm || cell_norm || case.own.is_some();
    check(norm == has_norm, "norm", &frame)?;
    check(
        keys.take_switch("final_norm")? == frame.final_norm,
        "final_norm",
        &frame,
    )?;
    let zoo = match case.per_layer {
        true => Zoo::of(body).per_layer(case.config.clone()),
        false => Zoo::of(body).per_sublayer(case.config.clone()),
    };
    Ok((
        zoo,
        Box::new(move |name, data| translate(&case, n_layer, name, data)),
    ))
}

fn check(good: bool, key: &str, frame: &Frame) -> Result<(), String> {
    match good {
        true => Ok(()),
        false => Err(format!("{key} does not fit {frame:?}")),
    }
}

fn connection(keys: &mut Keys, body: &Gpt2Config, post: bool) -> Result<Case, String> {
    let (bias, norm_eps) = (body.bias, body.norm_eps);
    let gate_norms = [("each", GateNorm::Each), ("joint", GateNorm::Joint)];
    let first_cells = [
        ("embedding", FirstCell::Embedding),
        ("zero", FirstCell::Zero),
    ];
    let design = keys.text("connection")?;
    keys.take("connection")?;
    let kind = |keys: &mut Keys, key: &str| {
        let text = keys.text(key)?;
        keys.take(key)?;
        Ok::<_, String>(text)
    };
    Ok(match design.as_str() {
        "scaled" => match kind(keys, "kind")?.as_str() {
            "scalar" => {
                let share = keys.choose("share", &[("layer", true), ("sublayer", false)])?;
                match keys.text("norm")?.as_str() {
                    "none" => {
                        let config = ReZeroConfig {
                            per_layer: share,
                            ..ReZeroConfig::default()
                        };
                        case(config, if share { at_attention } else { at_sublayer }, &[])
                    }
                    _ if share => return Err("SkipInit has no share".into()),
                    _ => case(SkipInitConfig::default(), at_sublayer, &[]),
                }
            }
            "vector" => {
                keys.choose("share", &[("sublayer", ())])?;
                case(LayerScaleConfig::default(), at_sublayer, &[])
            }
            "deepnorm" => Case {
                owns_norms: true,
                ..case(
                    DeepNormConfig {
                        norm: NormParams::ScaleAndShift,
                        norm_eps,
                        ..DeepNormConfig::default()
                    },
                    at_sublayer,
                    &[],
                )
            },
            "x0" => around_layers(InitialMixConfig::default(), at_layer, &[]),
            other => return Err(format!("unknown kind {other}")),
        },
        "highway" => match kind(keys, "kind")?.as_str() {
            "highway" => case(
                HighwayConfig::default(),
                at_sublayer,
                &[("weight", "gate.weight"), ("bias", "gate.bias")],
            ),
            "sdu" => {
                let config = SelfDependencyConfig {
                    psi: keys.choose("psi", &[("tanh", Psi::Tanh), ("sigmoid", Psi::Sigmoid)])?,
                    norm: if post {
                        NormPlace::Post
                    } else {
                        NormPlace::Pre
                    },
                    bias,
                    norm_eps,
                };
                Case {
                    owns_norms: post,
                    ..case(config, at_sublayer, &[])
                }
            }
            other => return Err(format!("unknown kind {other}")),
        },
        "depth_lstm" => {
            let form = kind(keys, "form")?;
            let gate_norm = keys.choose("gate_norm", &gate_norms)?;
            let first_cell = keys.choose("first_cell", &first_cells)?;
            let of = |form| DepthLstmConfig {
                form,
                gate_norm,
                first_cell,
                d_ff: body.d_ff,
                activation: body.activation,
                bias,
                norm_eps,
            };
            match form.as_str() {
                "paper" => case(of(DepthLstmForm::Paper), at_attention, CELL),
                "code" => Case {
                    owns_norms: true,
                    ..case(of(DepthLstmForm::Code), at_attention, CELL)
                },
                "cell" => {
                    let config = DepthLstmCellConfig {
                        gate_norm,
                        first_cell,
                        bias,
                        norm_eps,
                    };
                    case(config, at_sublayer, CELL)
                }
                other => return Err(format!("unknown form {other}")),
            }
        }
        "hierarchical" => {
            let d_ff = Some(keys.take_size("agg_ff")?);
            match kind(keys, "form")?.as_str() {
                "tree" => around_layers(
                    TreeConfig {
                        d_ff,
                        bias,
                        norm_eps,
                    },
                    |j, n| at_layer(2 * j + 1, n),
                    NODE,
                ),
                "iterative" => around_layers(
                    IterativeConfig {
                        d_ff,
                        bias,
                        norm_eps,
                    },
                    |j, n| at_layer(j + 1, n),
                    NODE,
                ),
                other => return Err(format!("unknown form {other}")),
            }
        }
        "dense" => {
            let config = DenseConfig {
                dilation: keys.take_size("dilation")?,
                period: keys.take_size("period")?,
            };
            around_layers(config, at_layer, &[])
        }
        "hyper" => {
            let config = HyperConfig {
                n: keys.take_size("n_streams")?,
                dynamic: keys.take_switch("dynamic")?,
                norm: NormParams::ScaleAndShift,
                norm_eps,
                ..HyperConfig::default()
            };
            case(config, at_sublayer, HYPER)
        }
        "mhc" => {
            let config = MhcConfig {
                form: keys.choose(
                    "form",
                    &[("paper", MhcForm::Paper), ("code", MhcForm::Code)],
                )?,
                n: keys.take_size("n_streams")?,
                sinkhorn: keys.take_size("sinkhorn_iters")?,
                norm_eps: keys.take_number("rms_eps")?,
                eps: keys.take_number("mhc_eps")?,
                ..MhcConfig::default()
            };
            case(config, at_sublayer, MHC)
        }
        "attention_residual" => {
            let config = AttentionResidualConfig {
                block: keys.take_size("block")?,
                norm_eps: keys.take_number("rms_eps")?,
            };
            case(config, at_read, READ)
        }
        "value_residual" => {
            let forms = [
                ("identity", ValueResidualForm::Identity),
                ("learnable", ValueResidualForm::Learnable),
            ];
            let config = ValueResidualConfig {
                form: keys.choose("form", &forms)?,
            };
            case(config, at_attention, &[("lam", "lambda")])
        }
        "mudd" => mudd::mudd(keys, body)?,
        "norms" if keys.text("placement")? == "hybrid" => hybrid::hybrid(keys, body)?,
        "mhc_variant" => {
            let config = MhcConfig {
                n: keys.take_size("n_streams")?,
                norm_eps: keys.take_number("rms_eps")?,
                residual: mhc_residual(keys)?,
                transposed: keys.take_switch("transposed")?,
                ..MhcConfig::default()
            };
            case(config, at_sublayer, MHC)
        }
        "frac" => {
            let norms = [
                ("none", None),
                ("rms", Some(FractionNorm::Rms)),
                ("layer", Some(FractionNorm::Layer)),
            ];
            let norm = keys.choose("fraction_norm", &norms)?;
            let rms_eps = keys.take_number("rms_eps")?;
            let config = FracConfig {
                m: keys.take_size("fractions")?,
                dynamic: keys.take_switch("dynamic")?,
                norm: norm.unwrap_or_default(),
                norm_eps: match norm {
                    Some(FractionNorm::Layer) => norm_eps,
                    _ => rms_eps,
                },
            };
            case(config, at_sublayer, HYPER)
        }
        "skips" => {
            let weights = [
                ("none", None),
                ("raw", Some(SkipWeight::Raw)),
                ("sigmoid", Some(SkipWeight::Sigmoid)),
            ];
            let unet = keys.choose("unet", &weights)?;
            let backout = keys.take("backout")?;
            let config = SkipsConfig {
                unet,
                backout: backout.as_u64().map(|b| Backout::Layer(b as usize)),
                ..SkipsConfig::default()
            };
            let fields: Fields = match unet {
                Some(SkipWeight::Sigmoid) => &[("unet", "w_logit"), ("backout", "lambda")],
                _ => &[("unet", "w"), ("backout", "lambda")],
            };
            around_layers(config, at_layer, fields)
        }
        "delta" => norms::delta(keys, body)?,
        "norms" => norms::placement(keys, body)?,
        "siamese" => norms::siamese(keys, body)?,
        "value_gated" => {
            let gates = [
                ("relu", ValueGate::Relu),
                ("identity", ValueGate::Identity),
                ("softmax_sigmoid", ValueGate::SoftmaxSigmoid),
            ];
            let config = ValueGatedConfig {
                gate: keys.choose("gate", &gates)?,
                bias: keys.take_switch("gate_bias")?,
                ..ValueGatedConfig::default()
            };
            case(config, at_attention, &[])
        }
        "value_embedding" => {
            let count = keys.take_size("gate_channels")?;
            let range = keys.take("gate_range")?.as_f64().unwrap_or_default();
            let gates = [
                ("channels", TableGate::Channels { count, range }),
                ("both", TableGate::Both { count, range }),
                ("lambda", TableGate::Lambda),
            ];
            let tables = keys.take("tables")?;
            let tables = serde_json::from_value(tables).map_err(|e| e.to_string())?;
            let config = ValueEmbeddingConfig {
                tables: ValueTables::Layers(tables),
                gate: keys.choose("gate", &gates)?,
            };
            case(config, at_attention, &[("lam", "lambda")])
        }
        "value_shared" => case(ValueSharedConfig::default(), at_attention, &[]),
        "lime" => case(LimeConfig::default(), at_attention, &[("router", "mixing")]),
        other => return Err(format!("unknown connection {other}")),
    })
}

/// Translates the form of res, mHC's doubly stochastic matrix.
fn mhc_residual(keys: &mut Keys) -> Result<MhcResidual, String> {
    let chosen = keys.take("permutations")?;
    let order = |order: &Value| {
        let order = order.as_array().into_iter().flatten();
        order
            .map(|s| s.as_u64().map(|s| s as usize))
            .collect::<Option<Vec<_>>>()
    };
    let kind = keys.text("residual")?;
    keys.take("residual")?;
    Ok(match (kind.as_str(), chosen.as_array()) {
        ("identity", None) => MhcResidual::Identity,
        ("permutations", None) => MhcResidual::Permutations,
        ("permutations", Some(orders)) => {
            let orders: Option<Vec<_>> = orders.iter().map(order).collect();
            MhcResidual::Chosen(orders.ok_or("permutations are not lists of streams")?)
        }
        ("kronecker", None) => MhcResidual::Kronecker(keys.take_sizes("factors")?),
        _ => return Err(format!("unknown residual {kind}")),
    })
}

/// Name prefixes of connection parameters.
const PREFIXES: &[&str] = &[
    "scale.", "gate.", "sdu.", "cell.", "agg.", "dense.", "hyper.", "mhc.", "attnres.", "value.",
    "frac.", "skip.", "lime.",
];

fn translate(
    case: &Case,
    n_layer: usize,
    name: &str,
    mut data: TensorData,
) -> Vec<(String, TensorData)> {
    if let Some(name) = case.own.as_ref().and_then(|own| own(name, &mut data)) {
        return vec![(name, data)];
    }
    if let Some(rest) = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        // In the reference, one tensor holds r, or m, of all layers.
        if let Some(field) = [("resid", "r"), ("x0", "m")]
            .iter()
            .find(|(from, _)| *from == rest)
        {
            let values = data.iter::<f32>().enumerate();
            let each = values.map(|(layer, value)| {
                let name = format!("block.layers.{layer}.connection.{}", field.1);
                (name, TensorData::new(vec![value], [1]))
            });
            return each.collect();
        }
        // In the reference, one tensor holds w of the second half of the layers.
        if let Some((_, field)) = case.fields.iter().find(|(from, _)| *from == rest) {
            let first = n_layer - data.shape[0];
            let values = data.iter::<f32>().enumerate();
            let each = values.map(|(k, value)| {
                let place = match *field {
                    "lambda" => "block.ends".to_owned(),
                    _ => format!("block.layers.{}.connection", first + k),
                };
                (
                    format!("{place}.{field}"),
                    TensorData::new(vec![value], [1]),
                )
            });
            return each.collect();
        }
        let (i, field) = rest.split_once('.').unwrap();
        if let (ConnectionConfig::ValueEmbedding(config), "table") = (&case.config, i) {
            // In the zoo, a table belongs to the first layer that reads it.
            let ValueTables::Layers(tables) = &config.tables else {
                return Vec::new();
            };
            let table = field.parse().ok();
            let layer = tables.iter().position(|found| *found == table).unwrap();
            let place = at_attention(layer, n_layer).unwrap();
            return vec![(format!("{place}.table"), data)];
        }
        let place = match i {
            "head" => Some("block.ends.head".into()),
            i => (case.place)(i.parse().unwrap(), n_layer),
        };
        let renamed = case.fields.iter().find(|(from, _)| field.starts_with(from));
        let field = match renamed {
            Some((from, to)) => format!("{to}{}", &field[from.len()..]),
            None => field.to_owned(),
        };
        let shape = data.shape.to_vec();
        let shape = match (field.as_str(), shape.as_slice()) {
            ("gates.norm.gamma" | "gates.norm.beta", &[n, d]) => vec![n * d],
            ("dynamic.w_beta", &[d]) => vec![d, 1],
            _ => shape,
        };
        data.shape = shape.into();
        return place
            .map(|place| (format!("{place}.{field}"), data))
            .into_iter()
            .collect();
    }
    // In the zoo, a layer without a value projection has a narrower matrix, under the name of the full matrix.
    let name = gpt2_name(&name.replace(".attn.qk.", ".attn.qkv."));
    let name = match case.owns_norms {
        true => name.replace(".branch.norm.", ".connection.norm."),
        false => name,
    };
    let name = match case.per_layer {
        true => inside_layer(name),
        false => name,
    };
    vec![(name, data)]
}
