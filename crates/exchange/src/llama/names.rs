//! Names of the tensors in the zoo and in the classes of `transformers`.

use crate::weights::{Name, linear, same};

/// The token table in `transformers`.
pub const TOKENS: &str = "model.embed_tokens.weight";
/// The unembedding in `transformers`.
pub const HEAD: &str = "lm_head.weight";

/// Names that all classes share.
pub const SHARED: &[Name] = &[
    same("embeddings.tokens.weight", TOKENS),
    linear("embeddings.unembedding.weight", HEAD),
    same("embeddings.norm.gamma", "model.norm.weight"),
    linear(
        "block.layers.{}.attention.branch.q.weight",
        "model.layers.{}.self_attn.q_proj.weight",
    ),
    linear(
        "block.layers.{}.attention.branch.k.weight",
        "model.layers.{}.self_attn.k_proj.weight",
    ),
    linear(
        "block.layers.{}.attention.branch.v.weight",
        "model.layers.{}.self_attn.v_proj.weight",
    ),
    linear(
        "block.layers.{}.attention.branch.proj.weight",
        "model.layers.{}.self_attn.o_proj.weight",
    ),
    same(
        "block.layers.{}.attention.branch.q.bias",
        "model.layers.{}.self_attn.q_proj.bias",
    ),
    same(
        "block.layers.{}.attention.branch.k.bias",
        "model.layers.{}.self_attn.k_proj.bias",
    ),
    same(
        "block.layers.{}.attention.branch.v.bias",
        "model.layers.{}.self_attn.v_proj.bias",
    ),
    same(
        "block.layers.{}.attention.branch.proj.bias",
        "model.layers.{}.self_attn.o_proj.bias",
    ),
    same(
        "block.layers.{}.attention.branch.q_norm.gamma",
        "model.layers.{}.self_attn.q_norm.weight",
    ),
    same(
        "block.layers.{}.attention.branch.k_norm.gamma",
        "model.layers.{}.self_attn.k_norm.weight",
    ),
];

/// Names of the gated feed-forward network.
pub const GATED: &[Name] = &[
    linear(
        "block.layers.{}.feed_forward.branch.gate.weight",
        "model.layers.{}.mlp.gate_proj.weight",
    ),
    linear(
        "block.layers.{}.feed_forward.branch.fc.weight",
        "model.layers.{}.mlp.up_proj.weight",
    ),
    linear(
        "block.layers.{}.feed_forward.branch.proj.weight",
        "model.layers.{}.mlp.down_proj.weight",
    ),
    same(
        "block.layers.{}.feed_forward.branch.gate.bias",
        "model.layers.{}.mlp.gate_proj.bias",
    ),
    same(
        "block.layers.{}.feed_forward.branch.fc.bias",
        "model.layers.{}.mlp.up_proj.bias",
    ),
    same(
        "block.layers.{}.feed_forward.branch.proj.bias",
        "model.layers.{}.mlp.down_proj.bias",
    ),
];

/// Names of NanoChat's feed-forward network.
pub const PLAIN: &[Name] = &[
    linear(
        "block.layers.{}.feed_forward.branch.fc.weight",
        "model.layers.{}.mlp.fc1.weight",
    ),
    linear(
        "block.layers.{}.feed_forward.branch.proj.weight",
        "model.layers.{}.mlp.fc2.weight",
    ),
];

const ATTENTION_BEFORE: &str = "block.layers.{}.attention.branch.norms.before.gamma";
const ATTENTION_BEHIND: &str = "block.layers.{}.attention.branch.norms.behind.gamma";
const MLP_BEFORE: &str = "block.layers.{}.feed_forward.branch.norms.before.gamma";
const MLP_BEHIND: &str = "block.layers.{}.feed_forward.branch.norms.behind.gamma";

/// Names of the norms in classes that have norms only before branches.
pub const BEFORE: &[Name] = &[
    same(ATTENTION_BEFORE, "model.layers.{}.input_layernorm.weight"),
    same(
        MLP_BEFORE,
        "model.layers.{}.post_attention_layernorm.weight",
    ),
];

/// Names of the norms after branches.
pub const BEHIND: &[Name] = &[
    same(
        ATTENTION_BEHIND,
        "model.layers.{}.post_attention_layernorm.weight",
    ),
    same(
        MLP_BEHIND,
        "model.layers.{}.post_feedforward_layernorm.weight",
    ),
];

/// Names of the norms before branches, in classes that also have norms after branches.
pub const BOTH: &[Name] = &[
    same(ATTENTION_BEFORE, "model.layers.{}.input_layernorm.weight"),
    same(
        MLP_BEFORE,
        "model.layers.{}.pre_feedforward_layernorm.weight",
    ),
];
