//! TokenFormer (Wang et al., "TokenFormer: rethinking transformer scaling with tokenized model
//! parameters", 2025): <https://arxiv.org/abs/2410.23168>.
//!
//! Every projection, and the whole feed-forward network, is attention from the tokens X to n learned parameter tokens,
//! keys K_P and values V_P:
//!
//! ```text
//! Pattention(X, K_P, V_P) = Θ(X K_Pᵀ) V_P                               (4)
//! Θ(A)_ij = gelu(A_ij · τ / ‖A_i‖₂),  τ = √n                            (5)
//!
//! X_inter = X_in    + Pattention_O(MHA(Pattention_{Q,K,V}(LN(X_in))))   (6, 8-10)
//! X_out   = X_inter + Pattention_ffn(LN(X_inter))                       (7, 11)
//! ```
//!
//! Appending parameter tokens grows a trained model (eqs. 12, 13). With zero keys and the old τ, which each Pattention
//! stores, the larger model computes the same function, unless Θ is a softmax. [`grow`] grows a model;
//! `Transfer::grow` grows weights by name. [`merge()`] merges two models. In a model with `added` pairs, only these
//! pairs are trained.

#![forbid(unsafe_code)]

mod attention;
mod config;
mod feed_forward;
pub mod formulas;
mod growth;
mod merge;
mod pattention;
mod pretrained;
mod sizes;

pub use attention::Attention;
pub use config::{
    Added, Normalization, PairInit, Position, Tau, TokenFormerBase, TokenFormerConfig,
};
pub use feed_forward::FeedForward;
pub use growth::{GrowError, grow};
pub use merge::{MergeError, added, merge};
pub use pattention::{Pairs, Pattention};
pub use pretrained::{PretrainedError, from_transformer};

use residual_zoo_core::{Decoder, Layer, Plain, Stack, TokenEmbeddings};

/// One layer with connections of type `C`.
pub type Block<B, C = Plain> = Layer<B, Attention<B>, FeedForward<B>, C>;

/// TokenFormer as published, with plain connections.
pub type TokenFormer<B> = Decoder<B, TokenEmbeddings<B>, Stack<B, Block<B>>>;

/// The branches and the embeddings in PyTorch, for export to Hugging Face.
pub const MODELING: &str = include_str!("../modeling.py");

#[cfg(test)]
mod tests;
