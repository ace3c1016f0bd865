//! GPT-2, the baseline of the zoo (Radford et al., "Language models are unsupervised multitask
//! learners", 2019): <https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf>.
//!
//! ```text
//! x_0     = wte[ids] + wpe
//! x_{i+1} = x_i + attention(norm(x_i))
//! x_{i+2} = x_{i+1} + mlp(norm(x_{i+1}))
//! logits  = norm(x_{2L}) · wteᵀ
//! ```
//!
//! wte is the token table, wpe has a row for each position, and L is the number of layers.

#![forbid(unsafe_code)]

mod attention;
mod config;
mod mlp;
pub mod net2net;

pub use attention::Attention;
pub use config::{Gpt2Base, Gpt2Config};
pub use mlp::Mlp;

pub use residual_zoo_core::Init;
use residual_zoo_core::{Decoder, Layer, Plain, Stack, TokenEmbeddings};

/// One layer of GPT-2 with connections of type `C`.
pub type Block<B, C = Plain> = Layer<B, Attention<B>, Mlp<B>, C>;

/// GPT-2 as published, with plain connections.
pub type Gpt2<B> = Decoder<B, TokenEmbeddings<B>, Stack<B, Block<B>>>;

/// The branches and the embeddings in PyTorch, for export to Hugging Face.
pub const MODELING: &str = include_str!("../modeling.py");

#[cfg(test)]
mod tests;
