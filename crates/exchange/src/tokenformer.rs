//! TokenFormer in the format of its authors' code (a fork of GPT-NeoX).

use std::path::Path;

use residual_zoo_core::{ConfigError, Tensors};
use residual_zoo_models::tokenformer::{PairInit, Position, TokenFormerConfig};

use crate::Error;
use crate::weights::{Format, Name, rename, same};

/// Names in the zoo and in the authors' files. The authors' modules are a numbered list: the embedding, a module
/// without tensors, the layers, another module without tensors, and the final norm.
const NAMES: &[Name] = &[
    same(
        "embeddings.tokens.weight",
        "tied_modules.embed.word_embeddings.weight",
    ),
    same("embeddings.norm.gamma", "{end}.norm.weight"),
    same("embeddings.norm.beta", "{end}.norm.bias"),
    same(
        "block.layers.{}.attention.branch.q.keys",
        "{}.attention.query.key_param_tokens",
    ),
    same(
        "block.layers.{}.attention.branch.q.values",
        "{}.attention.query.value_param_tokens",
    ),
    same(
        "block.layers.{}.attention.branch.k.keys",
        "{}.attention.key.key_param_tokens",
    ),
    same(
        "block.layers.{}.attention.branch.k.values",
        "{}.attention.key.value_param_tokens",
    ),
    same(
        "block.layers.{}.attention.branch.v.keys",
        "{}.attention.value.key_param_tokens",
    ),
    same(
        "block.layers.{}.attention.branch.v.values",
        "{}.attention.value.value_param_tokens",
    ),
    same(
        "block.layers.{}.attention.branch.o.keys",
        "{}.attention.proj.key_param_tokens",
    ),
    same(
        "block.layers.{}.attention.branch.o.values",
        "{}.attention.proj.value_param_tokens",
    ),
    same(
        "block.layers.{}.feed_forward.branch.ffn.keys",
        "{}.mlp.key_param_tokens",
    ),
    same(
        "block.layers.{}.feed_forward.branch.ffn.values",
        "{}.mlp.value_param_tokens",
    ),
];

/// The authors' format.
pub const AUTHORS: Format = Format {
    names: &[NAMES],
    first_layer: 2,
    transposed: false,
};

/// The name of the token table if the modules are not run as a pipeline.
const FIRST_MODULE: &str = "0.word_embeddings.weight";
const TABLE: &str = "tied_modules.embed.word_embeddings.weight";

/// Whether a tensor is a buffer, which is not a weight.
pub fn is_buffer(name: &str) -> bool {
    name.contains(".rotary_emb.")
}

/// Whether these are the names of a TokenFormer's tensors.
pub fn is_one<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| name.ends_with(".mlp.key_param_tokens"))
}

/// Converts the names of the tensors in the file `path` to one form.
///
/// # Errors
///
/// Returns an error if two tensors have the same name.
pub fn normalise(path: &Path, tensors: Tensors) -> Result<Tensors, Error> {
    rename(path, tensors, |name| {
        let name = name.strip_prefix("module.").unwrap_or(name);
        match name.strip_prefix("sequential.").unwrap_or(name) {
            FIRST_MODULE => TABLE.to_owned(),
            name => name.to_owned(),
        }
    })
}

/// Returns the config that follows from the shapes of the tensors, and the number of token ids. The other fields are as
/// in the authors' configs: the L2 norm, GELU, and a context of 2048. Rotary positions apply to a quarter of each head,
/// and the final norm has scale and shift.
///
/// # Errors
///
/// Returns an error if a tensor is missing or is not a matrix. Without `n_head`, also returns an error if no model in
/// Table 8 of the paper has the same number of layers and the same width.
pub fn config(
    tensors: &Tensors,
    n_head: Option<usize>,
) -> Result<(TokenFormerConfig, usize), ConfigError> {
    let rows = |name: &str| match tensors.get(name)?.shape.as_slice() {
        &[rows, columns] => Some((rows, columns)),
        _ => None,
    };
    let lacks = |name: &str| ConfigError::new(name, "is missing or not a matrix");
    let (vocab_size, width) = rows(TABLE).ok_or_else(|| lacks(TABLE))?;
    let pairs = |name: &str| rows(name).map(|(n, _)| n).ok_or_else(|| lacks(name));
    let mut n_layer = 0;
    while tensors.contains_key(&format!("{}.mlp.key_param_tokens", n_layer + 2)) {
        n_layer += 1;
    }
    let config = TokenFormerConfig {
        n_layer,
        width,
        n_attn: Some(pairs("2.attention.query.key_param_tokens")?),
        n_ffn: Some(pairs("2.mlp.key_param_tokens")?),
        position: Position::Rotary { fraction: 0.25 },
        affine_final_norm: true,
        context: 2048,
        init: PairInit::Code,
        ..TokenFormerConfig::default()
    };
    let n_head = match n_head {
        Some(n_head) => n_head,
        None => published_heads(&config)?,
    };
    Ok((TokenFormerConfig { n_head, ..config }, vocab_size))
}

/// Returns the number of heads of the published model with the layers and the width of `config`.
fn published_heads(config: &TokenFormerConfig) -> Result<usize, ConfigError> {
    let published = [
        TokenFormerConfig::m150(),
        TokenFormerConfig::m450(),
        TokenFormerConfig::m900(),
        TokenFormerConfig::b1_5(),
    ];
    let mut published = published.into_iter();
    let is_same =
        |model: &TokenFormerConfig| (model.n_layer, model.width) == (config.n_layer, config.width);
    published.find(is_same).map(|model| model.n_head).ok_or_else(|| {
        let problem = format!(
            "is not in the file, and no published TokenFormer has {} layers of width {}; give the number of attention \
             heads with `--heads N`",
            config.n_layer, config.width
        );
        ConfigError::new("n_head", problem)
    })
}
