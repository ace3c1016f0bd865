//! GPT-2 in the formats of Hugging Face (`GPT2LMHeadModel`) and nanoGPT.

use std::path::Path;

use burn::tensor::TensorData;
use residual_zoo_core::{Activation, ConfigError, Tensors};
use residual_zoo_models::gpt2::Gpt2Config;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::json::{Fields, from_fields};
use crate::pickle::{Id, Pickle, Value};
use crate::weights::{Format, Name, drop_tied, linear, rename, same, transpose};

/// Names in the zoo and in `GPT2LMHeadModel`, without the prefix `transformer.`. nanoGPT took its names from
/// `GPT2LMHeadModel`.
const NAMES: &[Name] = &[
    same("embeddings.tokens.weight", "wte.weight"),
    same("embeddings.positions.weight", "wpe.weight"),
    same("embeddings.norm.gamma", "ln_f.weight"),
    same("embeddings.norm.beta", "ln_f.bias"),
    same(
        "block.layers.{}.attention.branch.norm.gamma",
        "h.{}.ln_1.weight",
    ),
    same(
        "block.layers.{}.attention.branch.norm.beta",
        "h.{}.ln_1.bias",
    ),
    linear(
        "block.layers.{}.attention.branch.qkv.weight",
        "h.{}.attn.c_attn.weight",
    ),
    same(
        "block.layers.{}.attention.branch.qkv.bias",
        "h.{}.attn.c_attn.bias",
    ),
    linear(
        "block.layers.{}.attention.branch.proj.weight",
        "h.{}.attn.c_proj.weight",
    ),
    same(
        "block.layers.{}.attention.branch.proj.bias",
        "h.{}.attn.c_proj.bias",
    ),
    same(
        "block.layers.{}.feed_forward.branch.norm.gamma",
        "h.{}.ln_2.weight",
    ),
    same(
        "block.layers.{}.feed_forward.branch.norm.beta",
        "h.{}.ln_2.bias",
    ),
    linear(
        "block.layers.{}.feed_forward.branch.fc.weight",
        "h.{}.mlp.c_fc.weight",
    ),
    same(
        "block.layers.{}.feed_forward.branch.fc.bias",
        "h.{}.mlp.c_fc.bias",
    ),
    linear(
        "block.layers.{}.feed_forward.branch.proj.weight",
        "h.{}.mlp.c_proj.weight",
    ),
    same(
        "block.layers.{}.feed_forward.branch.proj.bias",
        "h.{}.mlp.c_proj.bias",
    ),
    // Hugging Face and nanoGPT both store this weight as [vocabulary, width], so it is transposed separately.
    same(UNEMBEDDING, HEAD),
];

/// The name of the unembedding in the zoo.
pub const UNEMBEDDING: &str = "embeddings.unembedding.weight";
const TOKENS: &str = "wte.weight";
/// The name of the unembedding in the file of a whole model.
pub const HEAD: &str = "lm_head.weight";

/// Hugging Face's format, in which `Conv1D` stores its weight as `[in, out]`.
pub const HUGGING_FACE: Format = Format {
    names: &[NAMES],
    first_layer: 0,
    transposed: false,
};

/// nanoGPT's format, in which `nn.Linear` stores its weight as `[out, in]`.
pub const NANO_GPT: Format = Format {
    names: &[NAMES],
    first_layer: 0,
    transposed: true,
};

/// Whether a tensor is a mask. Old files have masks, which are not weights.
pub fn is_buffer(name: &str) -> bool {
    name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
}

/// Prefix of all tensor names but the unembedding's, in the file of a whole model.
pub const PREFIX: &str = "transformer.";

/// Converts the names and the unembedding of a file to one form. Names then have no prefix. An unembedding that is not
/// `tied` to the token table becomes `[width, vocabulary]`. A tied unembedding is left out.
///
/// # Errors
///
/// Returns an error if two tensors have the same name, or if the unembedding differs from the token table although it
/// is tied.
pub fn normalise(path: &Path, tensors: Tensors, tied: bool) -> Result<Tensors, Error> {
    // torch.compile and training on several GPUs add prefixes of their own.
    let mut tensors = rename(path, tensors, |name| {
        let name = name.strip_prefix("_orig_mod.").unwrap_or(name);
        let name = name.strip_prefix("module.").unwrap_or(name);
        name.strip_prefix(PREFIX).unwrap_or(name).to_owned()
    })?;
    if tied {
        return drop_tied(path, tensors, HEAD, TOKENS);
    }
    if let Some(head) = tensors.remove(HEAD).and_then(transpose) {
        tensors.insert(HEAD.into(), head);
    }
    Ok(tensors)
}

/// The `config.json` of `GPT2LMHeadModel`. Missing fields have the defaults of `transformers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HfConfig {
    #[serde(skip_deserializing)]
    model_type: String,
    #[serde(skip_deserializing)]
    architectures: Vec<String>,
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_inner: Option<usize>,
    activation_function: String,
    resid_pdrop: f64,
    embd_pdrop: f64,
    attn_pdrop: f64,
    layer_norm_epsilon: f64,
    scale_attn_weights: bool,
    scale_attn_by_inverse_layer_idx: bool,
    tie_word_embeddings: bool,
    add_cross_attention: bool,
    /// Written but not read, because it may be a list.
    #[serde(skip_deserializing)]
    bos_token_id: Option<u32>,
    #[serde(skip_deserializing)]
    eos_token_id: Option<u32>,
    /// Whether linear layers and norms have biases. In Hugging Face's model, they always do, so a model of the zoo
    /// without biases gets zero biases on export.
    bias: bool,
}

impl Default for HfConfig {
    fn default() -> Self {
        Self {
            model_type: "gpt2".into(),
            architectures: vec!["GPT2LMHeadModel".into()],
            vocab_size: 50257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_inner: None,
            activation_function: "gelu_new".into(),
            resid_pdrop: 0.1,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            layer_norm_epsilon: 1e-5,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
            tie_word_embeddings: true,
            add_cross_attention: false,
            bos_token_id: None,
            eos_token_id: None,
            bias: true,
        }
    }
}

impl HfConfig {
    /// Reads the fields of a `config.json`.
    ///
    /// # Errors
    ///
    /// Returns the problem if a field has the wrong type.
    pub fn of(mut fields: Fields) -> Result<Self, String> {
        // `transformers` has a second name for each of these sizes.
        for (name, other) in [
            ("n_positions", "max_position_embeddings"),
            ("n_embd", "hidden_size"),
            ("n_layer", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
        ] {
            if let Some(value) = fields.remove(other) {
                fields.insert(name.into(), value);
            }
        }
        from_fields(fields)
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
    pub fn read(&self) -> Result<Gpt2Config, ConfigError> {
        let unsupported = |field: &str, problem: String| Err(ConfigError::new(field, problem));
        let activation = match self.activation_function.as_str() {
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast"
            | "gelu_accurate" => Activation::GeluTanh,
            "gelu" | "gelu_python" => Activation::GeluErf,
            "relu" => Activation::Relu,
            "relu2" => Activation::SquaredRelu,
            "silu" | "swish" => Activation::Silu,
            other => {
                let problem =
                    format!("is {other}; gelu_new, gelu, relu, relu2 and silu are supported");
                return unsupported("activation_function", problem);
            }
        };
        if !self.scale_attn_weights {
            return unsupported(
                "scale_attn_weights",
                "is false, which is not supported".into(),
            );
        }
        if self.add_cross_attention {
            return unsupported(
                "add_cross_attention",
                "is true, which is not supported".into(),
            );
        }
        let dropout = self.resid_pdrop;
        if [self.embd_pdrop, self.attn_pdrop] != [dropout; 2] {
            let problem = format!(
                "is {dropout}, but embd_pdrop is {} and attn_pdrop {}; only equal values are supported. \
                 If you will not train the model, set all of them to 0",
                self.embd_pdrop, self.attn_pdrop
            );
            return unsupported("resid_pdrop", problem);
        }
        Ok(Gpt2Config {
            n_layer: self.n_layer,
            n_head: self.n_head,
            width: self.n_embd,
            d_ff: self.n_inner,
            context: self.n_positions,
            bias: self.bias,
            tied: self.tie_word_embeddings,
            activation,
            dropout,
            inverse_layer_scale: self.scale_attn_by_inverse_layer_idx,
            norm_eps: self.layer_norm_epsilon,
            init: None,
            mup: None,
        })
    }

    /// Returns the config for `transformers`, with `vocab_size` token ids and the ids that begin and end a text.
    /// Returns `None` if the model has multipliers of μP, which Hugging Face's GPT-2 lacks.
    pub fn write(
        config: &Gpt2Config,
        vocab_size: usize,
        [begin, end]: [Option<u32>; 2],
    ) -> Option<Self> {
        if config.mup.is_some() {
            return None;
        }
        let activation = match config.activation {
            Activation::GeluTanh => "gelu_new",
            Activation::GeluErf => "gelu",
            Activation::Relu => "relu",
            Activation::SquaredRelu => "relu2",
            Activation::Silu => "silu",
        };
        Some(Self {
            vocab_size,
            n_positions: config.context,
            n_embd: config.width,
            n_layer: config.n_layer,
            n_head: config.n_head,
            n_inner: config.d_ff,
            activation_function: activation.into(),
            resid_pdrop: config.dropout,
            embd_pdrop: config.dropout,
            attn_pdrop: config.dropout,
            layer_norm_epsilon: config.norm_eps,
            scale_attn_by_inverse_layer_idx: config.inverse_layer_scale,
            tie_word_embeddings: config.tied,
            bos_token_id: begin,
            eos_token_id: end,
            bias: config.bias,
            ..Self::default()
        })
    }
}

/// Adds zero biases to a model without biases.
pub fn add_zero_biases(theirs: &mut Tensors) {
    let biases = theirs.iter().filter_map(|(name, weight)| {
        // The token and position tables and the unembedding have no biases in `transformers` either.
        let of_layer = name.starts_with("transformer.h.") || name.contains("ln_f");
        let bias = name.strip_suffix(".weight").filter(|_| of_layer)?;
        let size = *weight.shape.last()?;
        Some((format!("{bias}.bias"), TensorData::zeros::<f32, _>([size])))
    });
    let biases: Tensors = biases.collect();
    theirs.extend(biases);
}

/// Removes the biases from the tensors of a file whose model has no biases in the zoo. They are zeros in
/// `GPT2LMHeadModel`.
///
/// # Errors
///
/// Returns an error if a bias is not zero.
pub fn without_biases(path: &Path, mut tensors: Tensors) -> Result<Tensors, Error> {
    let is_bias = |name: &str| name.ends_with(".bias");
    let odd = tensors
        .iter()
        .find(|(name, tensor)| is_bias(name) && tensor.iter::<f64>().any(|x| x != 0.0));
    if let Some((name, _)) = odd {
        let problem =
            format!("has {name}, which is not zero although `bias` is false in config.json");
        return Err(Error::file(path, problem));
    }
    tensors.retain(|name, _| !is_bias(name));
    Ok(tensors)
}

/// Reads the config `model_args` of a nanoGPT checkpoint. Returns the config and the number of token ids.
///
/// # Errors
///
/// Returns the name of a field that cannot be read, and its problem.
pub fn read_nano_gpt(pickle: &Pickle, arguments: Id) -> Result<(Gpt2Config, usize), ConfigError> {
    let field = |name: &str| pickle.field(arguments, name).map(|id| pickle.get(id));
    // Fields that are not set have the defaults of nanoGPT's `GPTConfig`.
    let size = |name: &str, default: usize| match field(name) {
        None | Some(Value::None) => Ok(default),
        Some(Value::Int(size)) if *size > 0 => Ok(*size as usize),
        Some(Value::Float(size)) if *size >= 1.0 && size.fract() == 0.0 => Ok(*size as usize),
        found => {
            let problem = format!("is {found:?}; it must be a positive integer");
            Err(ConfigError::new(format!("model_args.{name}"), problem))
        }
    };
    let config = Gpt2Config {
        n_layer: size("n_layer", 12)?,
        n_head: size("n_head", 12)?,
        width: size("n_embd", 768)?,
        context: size("block_size", 1024)?,
        // Checkpoints that are older than this option lack the field `bias`.
        bias: !matches!(field("bias"), Some(Value::Bool(false) | Value::Int(0))),
        dropout: match field("dropout") {
            Some(Value::Float(dropout)) => *dropout,
            Some(Value::Int(dropout)) => *dropout as f64,
            _ => 0.0,
        },
        // nanoGPT uses PyTorch's default GELU, with the error function.
        activation: Activation::GeluErf,
        ..Gpt2Config::default()
    };
    Ok((config, size("vocab_size", 50_304)?))
}
