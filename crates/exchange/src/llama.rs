//! Llama, Qwen 2, Qwen 3, OLMo 2, Gemma 2 and NanoChat of `transformers`.

use std::path::Path;

use residual_zoo_core::{
    Activation, ConfigError, NormPlaces, RmsScale, Rotary, RotaryScaling, Tensors,
};
use residual_zoo_models::llama::{Biases, LlamaConfig, QkNorm};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::Error;
use crate::json::{Fields, from_fields};
use crate::weights::{Format, Name, drop_tied};

mod names;

use names::{BEFORE, BEHIND, BOTH, GATED, HEAD, PLAIN, SHARED, TOKENS};

/// A class of `transformers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
    Qwen2,
    Qwen3,
    Olmo2,
    Gemma2,
    NanoChat,
}

impl Family {
    pub const ALL: [Self; 6] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Olmo2,
        Self::Gemma2,
        Self::NanoChat,
    ];

    /// Returns the family whose `model_type` is `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|family| family.model_type() == name)
    }

    /// Returns the `model_type` in the `config.json` of this class.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Olmo2 => "olmo2",
            Self::Gemma2 => "gemma2",
            Self::NanoChat => "nanochat",
        }
    }

    /// Returns the name of the class.
    pub fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Olmo2 => "Olmo2ForCausalLM",
            Self::Gemma2 => "Gemma2ForCausalLM",
            Self::NanoChat => "NanoChatForCausalLM",
        }
    }

    /// Returns the kind of the files, for messages to the user.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Llama => "Llama of Hugging Face",
            Self::Qwen2 => "Qwen 2 of Hugging Face",
            Self::Qwen3 => "Qwen 3 of Hugging Face",
            Self::Olmo2 => "OLMo 2 of Hugging Face",
            Self::Gemma2 => "Gemma 2 of Hugging Face",
            Self::NanoChat => "NanoChat of Hugging Face",
        }
    }

    /// Returns the names and the layout of the tensors in this class.
    pub fn format(self) -> Format {
        let names: &'static [&'static [Name]] = match self {
            Self::Llama | Self::Qwen2 | Self::Qwen3 => &[SHARED, GATED, BEFORE],
            Self::Olmo2 => &[SHARED, GATED, BEHIND],
            Self::Gemma2 => &[SHARED, GATED, BOTH, BEHIND],
            Self::NanoChat => &[SHARED, PLAIN],
        };
        Format {
            names,
            first_layer: 0,
            transposed: true,
        }
    }

    /// Whether layers may have attention windows.
    fn slides(self) -> bool {
        matches!(self, Self::Qwen2 | Self::Qwen3 | Self::Gemma2)
    }

    /// Returns the family that can represent the model of `config`, with its `config.json`; `None` if no family can.
    pub fn of(config: &LlamaConfig, vocab_size: usize) -> Option<(Self, HfLlama)> {
        let config = canonical(config.clone());
        // These classes refuse a width that the number of heads does not divide.
        let refuses = |family| matches!(family, Self::Llama | Self::Gemma2);
        let fits = |family| config.width.is_multiple_of(config.n_head) || !refuses(family);
        let pairs = Self::ALL.map(|family| (family, HfLlama::write(family, &config, vocab_size)));
        let mut pairs = pairs.into_iter();
        pairs
            .find(|(family, hf)| fits(*family) && hf.read(*family).is_ok_and(|read| read == config))
    }

    /// Returns the values of fields that a `config.json` may omit. In these fields, `null` has a meaning of its own.
    fn defaults(self) -> &'static [(&'static str, f64)] {
        match self {
            Self::Llama | Self::Qwen2 => &[],
            Self::Qwen3 => &[("head_dim", 128.0)],
            Self::Olmo2 => &[("rms_norm_eps", 1e-5)],
            Self::Gemma2 => &[
                ("head_dim", 256.0),
                ("attn_logit_softcapping", 50.0),
                ("final_logit_softcapping", 30.0),
                ("query_pre_attn_scalar", 256.0),
                ("sliding_window", 4096.0),
            ],
            Self::NanoChat => &[("final_logit_softcapping", 15.0)],
        }
    }

    /// Reads the fields of a `config.json`. `all` also has the fields that are `null`.
    ///
    /// # Errors
    ///
    /// Returns the problem if a field has the wrong type, or if each type of layer has its own rotary settings.
    pub fn config(self, mut fields: Fields, all: &Fields) -> Result<HfLlama, String> {
        for (name, value) in self.defaults() {
            if !all.contains_key(*name) {
                let value = match value.fract() == 0.0 {
                    true => Value::from(*value as u64),
                    false => Value::from(*value),
                };
                fields.insert((*name).into(), value);
            }
        }
        for name in ["rope_parameters", "rope_scaling"] {
            let nested = match fields.get(name) {
                None => continue,
                Some(Value::Object(rope)) => rope.values().any(Value::is_object),
                Some(_) => return Err(format!("`{name}` is not an object")),
            };
            if nested {
                let problem = "has settings for each type of layer, which is not supported";
                return Err(format!("`{name}` {problem}"));
            }
        }
        from_fields(fields)
    }
}

/// Returns the config in a canonical form, so that equal models have equal configs. A field becomes `None` if `None`
/// has the same meaning as the field's value, except for the width of the feed-forward network. Dropout and the
/// initialisation, which `transformers` does not have, are left out.
fn canonical(config: LlamaConfig) -> LlamaConfig {
    let windows: Vec<_> = (0..config.n_layer)
        .map(|layer| config.window(layer))
        .collect();
    let any = windows.iter().any(Option::is_some);
    let (heads, d, width) = (config.n_head, config.head_dim(), config.width);
    let default_scale = (d as f64).powf(-0.5);
    LlamaConfig {
        n_kv_head: config.n_kv_head.filter(|n| *n != heads),
        head_dim: (d * heads != width).then_some(d),
        d_ff: Some(config.d_ff()),
        windows: if any { windows } else { Vec::new() },
        attention_scale: config
            .attention_scale
            .filter(|scale| *scale != default_scale),
        dropout: 0.0,
        init: None,
        ..config
    }
}

fn scale_of(config: &LlamaConfig) -> f64 {
    let default = (config.head_dim() as f64).powf(-0.5);
    config.attention_scale.unwrap_or(default)
}

/// Whether a tensor is not a weight. Old files have the frequencies of rotary positions.
pub fn is_buffer(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq")
}

/// Converts the tensors of a file to one form, without an unembedding that is tied to the token table.
///
/// # Errors
///
/// Returns an error if the unembedding differs from the token table although it is tied.
pub fn normalise(path: &Path, tensors: Tensors, tied: bool) -> Result<Tensors, Error> {
    match tied {
        true => drop_tied(path, tensors, HEAD, TOKENS),
        false => Ok(tensors),
    }
}

/// The rotary position settings in a `config.json`: `rope_parameters` of `transformers` 5, `rope_scaling` of version 4.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rope {
    rope_type: Option<String>,
    /// The name of `rope_type` in old files.
    #[serde(rename = "type", skip_serializing)]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rope_theta: Option<f64>,
    #[serde(skip_serializing)]
    partial_rotary_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    low_freq_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high_freq_factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_max_position_embeddings: Option<usize>,
}

/// The `config.json` of one of these classes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HfLlama {
    #[serde(skip_deserializing)]
    model_type: String,
    #[serde(skip_deserializing)]
    architectures: Vec<String>,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rms_norm_eps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden_act: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hidden_activation: Option<String>,
    attention_bias: bool,
    mlp_bias: bool,
    attention_dropout: f64,
    tie_word_embeddings: Option<bool>,
    // Version 4 of `transformers` reads these two fields, and version 5 reads the next one.
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    rope_parameters: Option<Rope>,
    #[serde(skip_serializing)]
    partial_rotary_factor: Option<f64>,
    sliding_window: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    use_sliding_window: Option<bool>,
    #[serde(skip_serializing)]
    max_window_layers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer_types: Option<Vec<String>>,
    #[serde(skip_serializing)]
    use_bidirectional_attention: Option<bool>,
    /// The context before the positions were scaled, if it is outside the rotary position settings. The zoo refuses a
    /// file with this field.
    #[serde(skip_serializing)]
    original_max_position_embeddings: Option<usize>,
    // `null` means no cap. If the field is missing, the default of the class applies.
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "whole")]
    query_pre_attn_scalar: Option<f64>,
    /// Written but not read, because these fields may be lists.
    #[serde(skip_deserializing)]
    bos_token_id: Option<u32>,
    #[serde(skip_deserializing)]
    eos_token_id: Option<u32>,
}

/// Writes a number as an integer, because `transformers` refuses `256.0`.
fn whole<S: Serializer>(number: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    number.map(|number| number as u64).serialize(to)
}

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// The activations and their names in `transformers`. The first name of each is written.
const ACTIVATIONS: [(&str, Activation); 8] = [
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu", Activation::GeluErf),
    ("relu", Activation::Relu),
    ("relu2", Activation::SquaredRelu),
];

impl HfLlama {
    /// Sets the ids that begin and end a text.
    pub fn ending(self, [bos_token_id, eos_token_id]: [Option<u32>; 2]) -> Self {
        Self {
            bos_token_id,
            eos_token_id,
            ..self
        }
    }

    /// Returns the number of token ids.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns the zoo's config for the model.
    ///
    /// # Errors
    ///
    /// Returns an error about a setting that the zoo does not have.
    pub fn read(&self, family: Family) -> Result<LlamaConfig, ConfigError> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("max_position_embeddings", self.max_position_embeddings),
        ];
        for (field, size) in sizes {
            if size == 0 {
                let problem = "is missing or 0; it must be at least 1";
                return Err(ConfigError::new(field, problem));
            }
            residual_zoo_core::check::size(field, size)?;
        }
        for (field, size) in [
            ("head_dim", self.head_dim),
            ("num_key_value_heads", self.num_key_value_heads),
        ] {
            size.map_or(Ok(()), |size| residual_zoo_core::check::size(field, size))?;
        }
        if self.attention_dropout != 0.0 {
            let problem = format!(
                "is {}; dropout on attention alone is not supported. If you will not train the model, set it to 0",
                self.attention_dropout
            );
            return Err(ConfigError::new("attention_dropout", problem));
        }
        if self.use_bidirectional_attention == Some(true) {
            let problem = "is true, which is not supported";
            return Err(ConfigError::new("use_bidirectional_attention", problem));
        }
        let heads = self.num_attention_heads;
        let bias = self.attention_bias;
        let is = |other| family == other;
        let head_dim = self.head_dim.unwrap_or(self.hidden_size / heads);
        let attention_scale = match self.query_pre_attn_scalar.filter(|_| is(Family::Gemma2)) {
            Some(scalar) => scalar.powf(-0.5),
            None => (head_dim as f64).powf(-0.5),
        };
        let (norm, norm_places) = match family {
            Family::Llama | Family::Qwen2 | Family::Qwen3 => (RmsScale::Scale, NormPlaces::Before),
            Family::Olmo2 => (RmsScale::Scale, NormPlaces::Behind),
            Family::Gemma2 => (RmsScale::OnePlus, NormPlaces::Both),
            Family::NanoChat => (RmsScale::None, NormPlaces::Before),
        };
        let capped = is(Family::Gemma2) || is(Family::NanoChat);
        Ok(canonical(LlamaConfig {
            n_layer: self.num_hidden_layers,
            n_head: heads,
            n_kv_head: Some(self.num_key_value_heads.unwrap_or(heads)),
            head_dim: Some(head_dim),
            width: self.hidden_size,
            d_ff: Some(self.intermediate_size),
            context: self.max_position_embeddings,
            norm,
            norm_places,
            norm_eps: self.rms_norm_eps.unwrap_or(1e-6),
            activation: self.activation(family)?,
            gated: !is(Family::NanoChat),
            rotary: self.rotary(family)?,
            qk_norm: match family {
                Family::Qwen3 | Family::NanoChat => Some(QkNorm::Heads),
                Family::Olmo2 => Some(QkNorm::All),
                Family::Llama | Family::Qwen2 | Family::Gemma2 => None,
            },
            qk_norm_late: is(Family::NanoChat),
            qk_scale: 1.0,
            attention_scale: Some(attention_scale),
            attention_cap: self.attn_logit_softcapping.filter(|_| is(Family::Gemma2)),
            logit_cap: self.final_logit_softcapping.filter(|_| capped),
            windows: self.windows(family)?,
            bias: match bias || is(Family::Qwen2) {
                true => Biases::Qkv,
                false => Biases::None,
            },
            proj_bias: bias && !is(Family::Qwen2),
            mlp_bias: self.mlp_bias && is(Family::Llama),
            scaled_embedding: is(Family::Gemma2),
            normed_embedding: is(Family::NanoChat),
            tied: self.tie_word_embeddings.unwrap_or(is(Family::Gemma2)),
            gate: None,
            canon: None,
            dropout: 0.0,
            init: None,
        }))
    }

    fn activation(&self, family: Family) -> Result<Activation, ConfigError> {
        let (field, name) = match family {
            Family::Gemma2 => ("hidden_activation", &self.hidden_activation),
            _ => ("hidden_act", &self.hidden_act),
        };
        let Some(name) = name.as_deref() else {
            return Ok(default_activation(family));
        };
        let known = ACTIVATIONS.iter().find(|(known, _)| *known == name);
        known.map(|(_, activation)| *activation).ok_or_else(|| {
            let names: Vec<&str> = ACTIVATIONS.iter().map(|(name, _)| *name).collect();
            ConfigError::new(
                field,
                format!("is {name}; supported are {}", names.join(", ")),
            )
        })
    }

    fn rotary(&self, family: Family) -> Result<Rotary, ConfigError> {
        let (field, rope) = match (&self.rope_scaling, &self.rope_parameters) {
            (Some(rope), _) => ("rope_scaling", rope.clone()),
            (None, Some(rope)) => ("rope_parameters", rope.clone()),
            (None, None) => ("rope_parameters", Rope::default()),
        };
        if self.original_max_position_embeddings.is_some() {
            let problem = format!("is outside of `{field}`, which is not supported");
            return Err(ConfigError::new(
                "original_max_position_embeddings",
                problem,
            ));
        }
        let share = rope.partial_rotary_factor.or(self.partial_rotary_factor);
        if share.is_some_and(|share| share != 1.0) {
            let problem = "is not 1; the classes of `transformers` rotate whole heads";
            return Err(ConfigError::new("partial_rotary_factor", problem));
        }
        let number = |name: &str, value: Option<f64>| {
            let missing = || ConfigError::new(format!("{field}.{name}"), "is missing");
            value.ok_or_else(missing)
        };
        let scaling = match rope.rope_type.as_deref().or(rope.kind.as_deref()) {
            None | Some("default") => None,
            Some("llama3") => {
                let original = rope.original_max_position_embeddings;
                Some(RotaryScaling {
                    factor: number("factor", rope.factor)?,
                    low: number("low_freq_factor", rope.low_freq_factor)?,
                    high: number("high_freq_factor", rope.high_freq_factor)?,
                    original: original.unwrap_or(self.max_position_embeddings),
                })
            }
            Some(other) => {
                let problem = format!("is {other}; default and llama3 are supported");
                return Err(ConfigError::new(format!("{field}.rope_type"), problem));
            }
        };
        let other = self
            .rope_parameters
            .as_ref()
            .and_then(|rope| rope.rope_theta);
        let base = rope.rope_theta.or(self.rope_theta).or(other);
        Ok(Rotary {
            base: base.unwrap_or(10_000.0),
            scaling,
            backwards: family == Family::NanoChat,
            ..Rotary::default()
        })
    }

    /// Returns the window of each layer; an empty list if no layer has one.
    fn windows(&self, family: Family) -> Result<Vec<Option<usize>>, ConfigError> {
        let layers = self.num_hidden_layers;
        let types = self.layer_types.as_deref();
        if let Some(odd) = types
            .into_iter()
            .flatten()
            .find(|kind| ![SLIDING, FULL].contains(&kind.as_str()))
        {
            let problem = format!("has {odd}; {SLIDING} and {FULL} are supported");
            return Err(ConfigError::new("layer_types", problem));
        }
        if types.is_some_and(|types| types.len() != layers) {
            let problem = format!("does not have one entry for each of the {layers} layers");
            return Err(ConfigError::new("layer_types", problem));
        }
        // Gemma 2 has windows unless they are turned off, and Qwen only if they are turned on.
        let on = family.slides() && self.use_sliding_window.unwrap_or(family == Family::Gemma2);
        let Some(window) = self.sliding_window.filter(|_| on) else {
            return Ok(Vec::new());
        };
        let slides = |layer: usize| match (types, family) {
            (Some(types), _) => types[layer] == SLIDING,
            (None, Family::Gemma2) => layer.is_multiple_of(2),
            (None, _) => layer >= self.max_window_layers.unwrap_or(28),
        };
        let windows: Vec<_> = (0..layers)
            .map(|layer| slides(layer).then_some(window))
            .collect();
        let any = windows.iter().any(Option::is_some);
        Ok(if any { windows } else { Vec::new() })
    }

    /// Writes a complete config as a config of `family`. Settings that the family lacks are lost.
    fn write(family: Family, config: &LlamaConfig, vocab_size: usize) -> Self {
        let name = ACTIVATIONS
            .iter()
            .find(|(_, activation)| *activation == config.activation);
        let name = name.map(|(name, _)| (*name).to_owned());
        let rope = match config.rotary.scaling {
            None => Rope {
                rope_type: Some("default".into()),
                ..Rope::default()
            },
            Some(scaling) => Rope {
                rope_type: Some("llama3".into()),
                factor: Some(scaling.factor),
                low_freq_factor: Some(scaling.low),
                high_freq_factor: Some(scaling.high),
                original_max_position_embeddings: Some(scaling.original),
                ..Rope::default()
            },
        };
        let window = config.windows.iter().flatten().next().copied();
        let types = config.windows.iter().map(|window| match window {
            Some(_) => SLIDING.to_owned(),
            None => FULL.to_owned(),
        });
        let is_gemma = family == Family::Gemma2;
        // Without layer types, every other layer of Gemma 2 has a window.
        let types = match is_gemma && window.is_none() {
            true => Some(vec![FULL.to_owned(); config.n_layer]),
            false => (family.slides() && window.is_some()).then(|| types.collect()),
        };
        Self {
            model_type: family.model_type().into(),
            architectures: vec![family.class().into()],
            vocab_size,
            hidden_size: config.width,
            intermediate_size: config.d_ff(),
            num_hidden_layers: config.n_layer,
            num_attention_heads: config.n_head,
            num_key_value_heads: Some(config.n_kv_head()),
            head_dim: Some(config.head_dim()),
            max_position_embeddings: config.context,
            rms_norm_eps: Some(config.norm_eps),
            hidden_act: name.clone().filter(|_| !is_gemma),
            hidden_activation: name.filter(|_| is_gemma),
            attention_bias: config.proj_bias,
            mlp_bias: config.mlp_bias,
            tie_word_embeddings: Some(config.tied),
            rope_theta: Some(config.rotary.base),
            rope_scaling: config.rotary.scaling.map(|_| rope.clone()),
            rope_parameters: Some(Rope {
                rope_theta: Some(config.rotary.base),
                ..rope
            }),
            sliding_window: window.filter(|_| family.slides()),
            use_sliding_window: (family.slides() && !is_gemma).then_some(window.is_some()),
            layer_types: types,
            attn_logit_softcapping: config.attention_cap.filter(|_| is_gemma),
            final_logit_softcapping: config.logit_cap,
            query_pre_attn_scalar: is_gemma.then(|| scale_of(config).powi(-2).round()),
            ..Self::default()
        }
    }
}

fn default_activation(family: Family) -> Activation {
    match family {
        Family::Gemma2 => Activation::GeluTanh,
        Family::NanoChat => Activation::SquaredRelu,
        Family::Llama | Family::Qwen2 | Family::Qwen3 | Family::Olmo2 => Activation::Silu,
    }
}
