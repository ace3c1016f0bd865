//! The Residual Matrix Transformer (Mak and Flanigan, "Residual Matrix Transformers: scaling the
//! size of the residual stream", 2025): <https://arxiv.org/abs/2506.22696>.
//!
//! The stream of a token is an outer-product memory X ∈ R^{D_k × D_v}. R data vectors are stored under key vectors w,
//! and retrieved by key vectors r. S and N are the one-hot vectors of the token and of its position, and `r ·₁ X`
//! contracts over D_k:
//!
//! ```text
//! X^(0)     = Σ_h w_E^(h) ⊗ W_E^(h) S + Σ_h w_PE^(h) ⊗ W_PE^(h) N        (14, 18, 19)
//! X^(l)     = X^(l-1) + Σ_h w_O^(h) ⊗ SHA(r_Q^(h) ·₁ LN(X), r_K^(h) ·₁ LN(X), r_V^(h) ·₁ LN(X))
//!                                                                        (15, 20-22)
//! X^(l+1)   = X^(l) + Σ_h w_FF^(h) ⊗ unvec(W_2 gelu(W_1 X_FF))_h          (16, 23, 24)
//! X_FF      = Concat_h(r_FF^(h) ·₁ LN(X))                                (25)
//! logits    = Σ_h W_U^(h) (r_U^(h) ·₁ LN(X^(2L)))                         (17, 26, 27)
//! ```
//!
//! The width of the stream, D_k · D_v, grows with D_k. At the sizes of the paper, this growth adds few parameters and
//! FLOPs. [`memory`] implements storage and retrieval, and documents the layout of a matrix in the stream. [`naive`]
//! computes every part term by term, as a reference for tests. [`formulas`] implements the cost formulas of the paper.

#![forbid(unsafe_code)]

mod attention;
mod config;
mod embeddings;
mod feed_forward;
pub mod formulas;
pub mod memory;
pub mod naive;

pub use attention::Attention;
pub use config::{NormKind, Positions, RmtBase, RmtConfig};
pub use embeddings::RmtEmbeddings;
pub use feed_forward::FeedForward;

use residual_zoo_core::{Decoder, Layer, Plain, Stack};

/// One layer with connections of type `C`.
pub type Block<B, C = Plain> = Layer<B, Attention<B>, FeedForward<B>, C>;

/// The Residual Matrix Transformer as published, with plain connections.
pub type Rmt<B> = Decoder<B, RmtEmbeddings<B>, Stack<B, Block<B>>>;

/// The branches and the embeddings in PyTorch, for export to Hugging Face.
pub const MODELING: &str = include_str!("../modeling.py");

#[cfg(test)]
mod tests;
