//! Llama (the modern decoder), the second baseline of the zoo. The fields of [`LlamaConfig`] describe the Llama, Qwen,
//! OLMo 2, Gemma 2 and nanochat models ([`presets`]). Other fields add Canon layers and gated attention. With the
//! default fields:
//!
//! ```text
//! x_0     = wte[ids]
//! x_{i+1} = x_i + attention(norm(x_i))
//! x_{i+2} = x_{i+1} + mlp(norm(x_{i+1}))
//! logits  = norm(x_{2L}) · lm_head
//!
//! norm(x) = x / √(mean x² + ε) · γ
//! mlp(u)  = (act(u · W_gate) ⊙ (u · W_fc)) · W_proj
//! ```
//!
//! wte is the token table, lm_head the unembedding, L the number of layers, γ a learned factor for each feature, and
//! act the activation. Attention rotates queries and keys by their positions, and each key-value head serves a group of
//! query heads.
//!
//! Papers: Touvron et al., "LLaMA: open and efficient foundation language models", 2023; Shazeer, "GLU variants improve
//! transformer", 2020; Ainslie et al., "GQA", 2023.

#![forbid(unsafe_code)]

mod attention;
mod canon;
mod config;
mod init;
mod mlp;
pub mod presets;

pub use attention::Attention;
pub use canon::Canon;
pub use config::{Biases, CanonConfig, Gate, LlamaConfig, QkNorm};
pub use init::LlamaInit;
pub use mlp::Mlp;

use residual_zoo_core::{Decoder, Layer, Plain, Stack, TokenEmbeddings};

/// One layer with connections of type `C`.
pub type Block<B, C = Plain> = Layer<B, Attention<B>, Mlp<B>, C>;

/// The decoder with plain connections.
pub type Llama<B> = Decoder<B, TokenEmbeddings<B>, Stack<B, Block<B>>>;

/// The branches and the embeddings in PyTorch, for export to Hugging Face.
pub const MODELING: &str = include_str!("../modeling.py");

#[cfg(test)]
mod tests;
