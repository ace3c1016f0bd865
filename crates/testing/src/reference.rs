//! Reference cases, with configs, names and layouts translated to the zoo's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{TensorData, backend::AutodiffBackend};
use residual_zoo_models::ModelConfig as Zoo;
use residual_zoo_models::core::{Activation, Vocabulary};
use residual_zoo_models::gpt2::Gpt2Config;
use residual_zoo_models::laurel::{Augmentation, LaurelConfig, Weights};
use residual_zoo_models::loops::starting_from;
use residual_zoo_models::recurrent::{Alpha, Form, RecurrentConfig};
use residual_zoo_models::rmt::{NormKind, Positions, RmtConfig};
use residual_zoo_models::tokenformer::{Normalization, Position, Tau, TokenFormerConfig};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};

use crate::pass::{Outcome, Values, run};
use crate::root;

mod loops;
mod modern;
mod ngpt;
pub mod reuse;
mod streams;
mod vision;

/// The content of a fixture file, with the zoo's names and layouts.
pub struct Case {
    /// The name of the case and of its file.
    pub name: String,
    /// The architecture's name in the reference.
    pub arch: String,
    /// The kind and size of the model's input, and the number of outputs.
    pub vocabulary: Vocabulary,
    /// The config of the model.
    pub config: Zoo,
    /// Token ids `[batch, time]`, or images `[batch, channels, height, width]`.
    pub inputs: TensorData,
    /// The next token after each position, `[batch, time]`, or the classes `[batch, 1]`.
    pub targets: TensorData,
    /// Logits `[batch, time, vocab]`, or `[batch, 1, classes]`.
    pub logits: TensorData,
    /// The state before the first loop `[batch, time, width]`, which replaces a random state.
    pub state: Option<TensorData>,
    /// Other results, such as the logits of the model before growing, by their names in the file.
    pub results: BTreeMap<String, TensorData>,
    /// Entries of the reference's config that do not describe the model, such as the model's growth.
    pub about: Map<String, Value>,
    /// Mean cross-entropy, in nats.
    pub loss: f64,
    /// The parameters, by their names in the zoo.
    pub weights: BTreeMap<String, TensorData>,
    /// Gradients of the loss, by the parameters' names in the zoo.
    pub gradients: BTreeMap<String, TensorData>,
    /// The running statistics after the pass, by their names in the zoo.
    pub statistics: BTreeMap<String, TensorData>,
    /// Parameters after an optimizer step that `about` describes, by their names in the zoo.
    pub stepped: BTreeMap<String, TensorData>,
}

/// Reads the fixtures of the repository, or the files in the directory that the environment variable `ZOO_FIXTURES`
/// names.
pub fn cases() -> Vec<Case> {
    let directory = std::env::var_os("ZOO_FIXTURES")
        .map_or_else(|| root().join("tests/fixtures"), PathBuf::from);
    read_directory(&directory).unwrap_or_else(|e| panic!("{e}"))
}

/// Reads the cases in `directory`, in the order of their names. Fails if the directory is empty or a case is
/// unreadable.
pub fn read_directory(directory: &Path) -> Result<Vec<Case>, String> {
    let entries = std::fs::read_dir(directory).map_err(|e| format!("{directory:?}: {e}"))?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "safetensors"));
    paths.sort();
    if paths.is_empty() {
        return Err(format!("{directory:?} has no fixtures"));
    }
    let case = |path: &PathBuf| Case::read(path).map_err(|e| format!("{path:?}: {e}"));
    paths.iter().map(case).collect()
}

/// Translates a tensor of the reference, and its name, to the zoo's. One tensor can become several, or none.
pub type Translate = Box<dyn Fn(&str, TensorData) -> Vec<(String, TensorData)>>;

impl Case {
    /// Runs the model of `config` with these weights on the batch of the case.
    pub fn pass<B: AutodiffBackend>(
        &self,
        config: &Zoo,
        weights: &BTreeMap<String, TensorData>,
        device: &B::Device,
    ) -> Outcome {
        let (inputs, targets) = (self.inputs.clone(), self.targets.clone());
        let pass = || {
            run::<B, Zoo>(
                config,
                self.vocabulary,
                weights.clone(),
                inputs,
                targets,
                device,
            )
        };
        match &self.state {
            Some(state) => starting_from(state.clone(), pass),
            None => pass(),
        }
    }

    fn read(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| e.to_string())?;
        let metadata = header.metadata().as_ref().ok_or("no metadata")?;
        let config = metadata.get("config").ok_or("no config")?;
        let mut keys = Keys(serde_json::from_str(config).map_err(|e| e.to_string())?);
        let about = ["grown", "merged", "tuned", "net2net", "step"];
        let about = about
            .into_iter()
            .filter_map(|key| Some((key.into(), keys.0.remove(key)?)));
        let about: Map<String, Value> = about.collect();
        let tuned = about.get("tuned").map(reuse::added).transpose()?;
        let (arch, name) = (keys.text("arch")?, keys.text("case")?);
        let (config, vocabulary, translate) = model(keys)?;
        let (config, translate) = match tuned {
            Some(added) => reuse::tuned(config, added, translate)?,
            None => (config, translate),
        };

        let mut tensors = BTreeMap::new();
        let file = SafeTensors::deserialize(&bytes).map_err(|e| e.to_string())?;
        for (name, view) in file.iter() {
            let shape = view.shape().to_vec();
            let data = match view.dtype() {
                Dtype::F32 => TensorData::new(numbers(view.data(), f32::from_le_bytes), shape),
                Dtype::I64 => TensorData::new(numbers(view.data(), i64::from_le_bytes), shape),
                other => return Err(format!("{name} is {other:?}")),
            };
            tensors.insert(name.to_string(), data);
        }
        let mut take = |name: &str| tensors.remove(name).ok_or(format!("no {name}"));
        let inputs = take("input_ids").or_else(|_| take("images"))?;
        let (mut targets, mut logits) = (take("target_ids")?, take("logits")?);
        if let [batch, classes] = logits.shape[..] {
            logits.shape = vec![batch, 1, classes].into();
            targets.shape = vec![batch, 1].into();
        }
        let loss = Values::from(take("loss")?).data[0];
        let state = take("state").ok();
        let results = ["base_logits", "base_logits_b", "step_logits"];
        let results = results
            .into_iter()
            .filter_map(|name| Some((name.into(), take(name).ok()?)));
        let results = results.collect();
        let [mut weights, mut gradients, mut statistics, mut stepped] =
            [(); 4].map(|()| BTreeMap::new());
        for (name, data) in tensors {
            let (of, name) = match name.split_once('.') {
                Some(("grad", name)) => (&mut gradients, name),
                Some(("updated", name)) => (&mut statistics, name),
                Some(("step", name)) => (&mut stepped, name),
                _ => (&mut weights, name.as_str()),
            };
            of.extend(translate(name, data));
        }
        Ok(Self {
            name,
            arch,
            vocabulary,
            config,
            inputs,
            targets,
            logits,
            state,
            results,
            about,
            loss,
            weights,
            gradients,
            statistics,
            stepped,
        })
    }
}

/// Translates the reference's config to the zoo's. Fails on unknown keys.
pub fn model(mut keys: Keys) -> Result<(Zoo, Vocabulary, Translate), String> {
    let arch = keys.text("arch")?;
    for key in ["arch", "case", "batch"] {
        keys.take(key)?;
    }
    let vocabulary = match keys.0.contains_key("image") {
        true => vision::vocabulary(&mut keys)?,
        false => {
            keys.take("seq")?;
            keys.take_size("vocab")?.into()
        }
    };
    let same: fn(String) -> String = |name| name;
    let (zoo, translate): (Zoo, Translate) = match arch.as_str() {
        "gpt2" => (Zoo::of(gpt2(&mut keys)?), Box::new(rename(gpt2_name, same))),
        "laurel" => laurel(&mut keys)?,
        "loops" => loops::model(&mut keys)?,
        "modern" => modern::model(&mut keys)?,
        "ngpt" => ngpt::model(&mut keys)?,
        "recurrent" => {
            let zoo = Zoo::of(gpt2(&mut keys)?).recurrent(recurrence(&mut keys)?);
            (zoo, Box::new(rename(gpt2_name, same)))
        }
        "rmt" => {
            let config = rmt(&mut keys)?;
            let zoo = Zoo::of(config.clone());
            let translate = move |name: &str, data| vec![rmt_tensor(&config, name, data)];
            (zoo, Box::new(translate))
        }
        "tokenformer" => {
            let zoo = Zoo::of(tokenformer(&mut keys)?);
            (zoo, Box::new(rename(tokenformer_name, same)))
        }
        "streams" => streams::model(&mut keys)?,
        "vit" => vision::model(&mut keys)?,
        "resnet" => vision::resnet(&mut keys)?,
        other => return Err(format!("unknown arch {other}")),
    };
    match keys.0.keys().next() {
        Some(key) => Err(format!("unknown switch {key}")),
        None => Ok((zoo, vocabulary, translate)),
    }
}

/// The config of a case in the reference's form.
pub struct Keys(pub Map<String, Value>);

impl Keys {
    fn take(&mut self, key: &str) -> Result<Value, String> {
        self.0.remove(key).ok_or(format!("no {key}"))
    }

    fn text(&self, key: &str) -> Result<String, String> {
        let text = self.0.get(key).and_then(Value::as_str);
        Ok(text.ok_or(format!("no {key}"))?.into())
    }

    fn size(&self, key: &str) -> Result<usize, String> {
        let size = self.0.get(key).and_then(Value::as_u64);
        Ok(size.ok_or(format!("{key} is not a size"))? as usize)
    }

    fn take_size(&mut self, key: &str) -> Result<usize, String> {
        let size = self.size(key)?;
        self.take(key)?;
        Ok(size)
    }

    fn take_sizes(&mut self, key: &str) -> Result<Vec<usize>, String> {
        let sizes = self.take(key)?;
        let sizes = sizes.as_array().into_iter().flatten();
        let sizes = sizes.map(|size| size.as_u64().map(|size| size as usize));
        let sizes: Option<Vec<usize>> = sizes.collect();
        sizes.ok_or(format!("{key} are not sizes"))
    }

    fn take_number(&mut self, key: &str) -> Result<f64, String> {
        let number = self.take(key)?.as_f64();
        number.ok_or(format!("{key} is not a number"))
    }

    fn take_switch(&mut self, key: &str) -> Result<bool, String> {
        let switch = self.take(key)?.as_bool();
        switch.ok_or(format!("{key} is not a boolean"))
    }

    /// Returns the value in `choices` for the text under `key`.
    fn choose<T: Copy>(&mut self, key: &str, choices: &[(&str, T)]) -> Result<T, String> {
        let found = self.text(key)?;
        self.take(key)?;
        let choice = choices.iter().find(|(name, _)| *name == found);
        choice
            .map(|(_, value)| *value)
            .ok_or(format!("unknown {key} {found}"))
    }

    fn activation(&mut self) -> Result<Activation, String> {
        let choices = [
            ("tanh", Activation::GeluTanh),
            ("exact", Activation::GeluErf),
            ("relu", Activation::Relu),
        ];
        self.choose("activation", &choices)
    }
}

fn gpt2(keys: &mut Keys) -> Result<Gpt2Config, String> {
    Ok(Gpt2Config {
        n_layer: keys.take_size("n_layer")?,
        n_head: keys.take_size("n_head")?,
        width: keys.take_size("d_model")?,
        d_ff: Some(keys.take_size("d_ff")?),
        context: keys.take_size("max_len")?,
        bias: keys.take_switch("bias")?,
        tied: true,
        activation: keys.activation()?,
        norm_eps: keys.take_number("ln_eps")?,
        ..Gpt2Config::default()
    })
}

fn laurel(keys: &mut Keys) -> Result<(Zoo, Translate), String> {
    let of = Zoo::of(gpt2(keys)?);
    let connection = connection(keys)?;
    Ok(
        if keys.choose("placement", &[("block", true), ("sublayer", false)])? {
            let place = |i: usize| format!("block.layers.{i}");
            let translate = laurel_tensor(rename(gpt2_name, inside_layer), place);
            (of.per_layer(connection), Box::new(translate))
        } else {
            let place = sublayer;
            let translate = laurel_tensor(rename(gpt2_name, |name| name), place);
            (of.per_sublayer(connection), Box::new(translate))
        },
    )
}

/// Translates the connection of a LAuReL case.
fn connection(keys: &mut Keys) -> Result<LaurelConfig, String> {
    let weights = [
        ("none", Weights::One),
        ("softmax", Weights::Softmax),
        ("sigmoid", Weights::Sigmoid),
        ("raw", Weights::Raw),
    ];
    let g = keys.text("g")?;
    keys.take("g")?;
    let augmentation = match g.as_str() {
        "identity" => Augmentation::Identity,
        "lr" => Augmentation::LowRank {
            rank: keys.take_size("r")?,
        },
        "pa" => Augmentation::PreviousActivations {
            k: keys.take_size("k")?,
        },
        "pa_lr" => Augmentation::PreviousLowRank {
            k: keys.take_size("k")?,
            rank: keys.take_size("r")?,
        },
        "lr_pa" => Augmentation::LowRankPerStream {
            k: keys.take_size("k")?,
            rank: keys.take_size("r")?,
        },
        other => return Err(format!("unknown g {other}")),
    };
    Ok(LaurelConfig {
        weights: keys.choose("rw", &weights)?,
        per_dimension: keys.0.contains_key("rw_vector") && keys.take_switch("rw_vector")?,
        augmentation,
        ..LaurelConfig::default()
    })
}

/// Translates a parameter name inside a layer that a connection surrounds.
fn inside_layer(name: String) -> String {
    match name.strip_prefix("block.layers.") {
        Some(rest) => {
            let (layer, rest) = rest.split_once('.').unwrap();
            format!("block.layers.{layer}.branch.block.{rest}")
        }
        None => name,
    }
}

/// Returns the name of sublayer `i`.
fn sublayer(i: usize) -> String {
    let sublayer = ["attention", "feed_forward"][i % 2];
    format!("block.layers.{}.{sublayer}", i / 2)
}

fn laurel_tensor(
    inside: impl Fn(&str, TensorData) -> Vec<(String, TensorData)>,
    place: impl Fn(usize) -> String,
) -> impl Fn(&str, TensorData) -> Vec<(String, TensorData)> {
    move |name, mut data| {
        let Some(rest) = name.strip_prefix("laurel.") else {
            return inside(name, data);
        };
        let (i, field) = rest.split_once('.').unwrap();
        let shape = data.shape.to_vec();
        let (field, shape) = match (field, shape.as_slice()) {
            ("logits", &[2]) => ("mixing", vec![2, 1]),
            ("logits", _) => ("mixing", shape),
            ("logit", &[each]) => ("mixing", vec![1, each]),
            ("a" | "b", &[rows, columns]) => (field, vec![1, rows, columns]),
            _ => (field, shape),
        };
        data.shape = shape.into();
        let place = place(i.parse().unwrap());
        vec![(format!("{place}.connection.{field}"), data)]
    }
}

fn recurrence(keys: &mut Keys) -> Result<RecurrentConfig, String> {
    Ok(RecurrentConfig {
        block: keys.take_size("block")?,
        alpha: Alpha::Trainable(keys.take_number("alpha")?),
        form: keys.choose("form", &[("paper", Form::Paper), ("code", Form::Code)])?,
    })
}

fn rmt(keys: &mut Keys) -> Result<RmtConfig, String> {
    let code = keys.choose("form", &[("paper", false), ("code", true)])?;
    let config = RmtConfig {
        n_layer: keys.take_size("n_layer")?,
        d_k: keys.take_size("d_k")?,
        d_v: keys.take_size("d_v")?,
        rank: keys.take_size("rank")?,
        d_ff: Some(keys.take_size("d_ff")?),
        context: keys.take_size("max_len")?,
        activation: keys.activation()?,
        norm_eps: keys.take_number("norm_eps")?,
        inverse_layer_scale: keys.take_switch("inverse_layer_scale")?,
        ..RmtConfig::default()
    };
    let form = if code {
        (NormKind::RmsNorm, Positions::Alibi)
    } else {
        (NormKind::LayerNorm, Positions::Learned)
    };
    let (norm, positions) = form;
    Ok(RmtConfig {
        norm,
        positions,
        ..config
    })
}

fn rmt_tensor(config: &RmtConfig, name: &str, data: TensorData) -> (String, TensorData) {
    let &RmtConfig { d_k, d_v, rank, .. } = config;
    let shape = data.shape.to_vec();
    // In the reference, h is the outer index of flattened vectors, and k of flattened matrices. In the zoo, v is the
    // outer index.
    let data = match name.rsplit('.').next().unwrap() {
        "w1" => swap(data, [1, rank, d_v, shape[1]], &[d_v * rank, shape[1]]),
        "w2" => swap(data, [shape[0], rank, d_v, 1], &[shape[0], d_v * rank]),
        "weight" if name.starts_with("unembed") => {
            swap(data, [1, rank, d_v, shape[1]], &[d_v * rank, shape[1]])
        }
        "weight" if name.contains("ln") => swap(data, [1, d_k, d_v, 1], &[d_v * d_k]),
        "weight" => swap(data, [shape[0], rank, d_v, 1], &[shape[0], d_v * rank]),
        _ => data,
    };
    let mut name = match name {
        "ln_f.weight" => "embeddings.norm.gamma".to_string(),
        other => other.to_string(),
    };
    for (from, to) in [
        ("unembed.", "embeddings.unembedding."),
        ("embed.", "embeddings.tokens."),
        ("pos.", "embeddings.positions."),
        ("layers.", "block.layers."),
    ] {
        if let Some(rest) = name.strip_prefix(from) {
            name = format!("{to}{rest}");
            break;
        }
    }
    for (from, to) in [
        (".ln1.weight", ".attention.branch.norm.gamma"),
        (".ln2.weight", ".feed_forward.branch.norm.gamma"),
        (".attn.key_o", ".attention.branch.w_o"),
        (".attn.key_", ".attention.branch.r_"),
        (".ff.key_in", ".feed_forward.branch.r_ff"),
        (".ff.key_out", ".feed_forward.branch.w_ff"),
        (".ff.w", ".feed_forward.branch.w_"),
    ] {
        name = name.replace(from, to);
    }
    (name, data)
}

/// Views `data` as `[outer, p, q, inner]`, swaps p and q, and gives the result shape `shape`.
fn swap(data: TensorData, [outer, p, q, inner]: [usize; 4], shape: &[usize]) -> TensorData {
    let values: Vec<f32> = data.iter().collect();
    assert_eq!(values.len(), outer * p * q * inner);
    let mut swapped = Vec::with_capacity(values.len());
    for o in 0..outer {
        for j in 0..q {
            for i in 0..p {
                let at = ((o * p + i) * q + j) * inner;
                swapped.extend_from_slice(&values[at..at + inner]);
            }
        }
    }
    TensorData::new(swapped, shape.to_vec())
}

fn normalization(keys: &mut Keys) -> Result<Normalization, String> {
    let normalizations = [
        ("l2_norm_gelu", Normalization::L2NormGelu),
        ("gelu_l2_norm", Normalization::GeluL2Norm),
        ("gelu_l1_norm", Normalization::GeluL1Norm),
        ("softmax", Normalization::Softmax),
    ];
    keys.choose("normalization", &normalizations)
}

fn tau(keys: &mut Keys) -> Result<Option<Tau>, String> {
    Ok(match keys.take("tau")? {
        Value::Null => None,
        tau => Some(Tau {
            attn: tau["attn"].as_f64().ok_or("tau.attn is not a number")?,
            ffn: tau["ffn"].as_f64().ok_or("tau.ffn is not a number")?,
        }),
    })
}

fn tokenformer(keys: &mut Keys) -> Result<TokenFormerConfig, String> {
    let rotary = keys.choose("position", &[("learned", false), ("rotary", true)])?;
    Ok(TokenFormerConfig {
        n_layer: keys.take_size("n_layer")?,
        n_head: keys.take_size("n_head")?,
        width: keys.take_size("d_model")?,
        n_attn: Some(keys.take_size("n_attn")?),
        n_ffn: Some(keys.take_size("n_ffn")?),
        normalization: normalization(keys)?,
        tau: tau(keys)?,
        pattention_eps: keys.take_number("pattention_eps")?,
        activation: keys.activation()?,
        position: if rotary {
            Position::Rotary {
                fraction: keys.take_number("rotary_pct")?,
            }
        } else {
            Position::Learned
        },
        affine_final_norm: keys
            .choose("final_norm", &[("nonparam", false), ("layernorm", true)])?,
        context: keys.take_size("max_len")?,
        norm_eps: keys.take_number("ln_eps")?,
        ..TokenFormerConfig::default()
    })
}

fn tokenformer_name(name: &str) -> String {
    let name = match name {
        "wte" => "embeddings.tokens.weight",
        "wpe" => "embeddings.positions.weight",
        "ln_f.weight" => "embeddings.norm.gamma",
        "ln_f.bias" => "embeddings.norm.beta",
        other => other,
    };
    let name = name
        .replace(".attn.", ".attention.branch.")
        .replace(".ffn.", ".feed_forward.branch.ffn.");
    if name.starts_with("layers.") {
        format!("block.{name}")
    } else {
        name
    }
}

fn gpt2_name(name: &str) -> String {
    let name = match name {
        "wte" => "embeddings.tokens.weight",
        "wpe" => "embeddings.positions.weight",
        "alpha" => "block.alpha",
        other => other,
    };
    let name = name
        .replace("ln_f.", "embeddings.norm.")
        .replace("ln1.", "attention.branch.norm.")
        .replace("ln2.", "feed_forward.branch.norm.")
        .replace(".attn.", ".attention.branch.")
        .replace(".mlp.", ".feed_forward.branch.");
    let name = if name.starts_with("layers.") {
        format!("block.{name}")
    } else {
        name
    };
    if name.contains("norm") {
        name.replace(".weight", ".gamma").replace(".bias", ".beta")
    } else {
        name
    }
}

fn rename(
    first: fn(&str) -> String,
    then: fn(String) -> String,
) -> impl Fn(&str, TensorData) -> Vec<(String, TensorData)> {
    move |name, data| vec![(then(first(name)), data)]
}

fn numbers<const N: usize, T>(bytes: &[u8], from: fn([u8; N]) -> T) -> Vec<T> {
    let chunks = bytes.chunks_exact(N);
    chunks
        .map(|chunk| from(chunk.try_into().unwrap()))
        .collect()
}
