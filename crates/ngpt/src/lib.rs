//! nGPT (Loshchilov et al., "nGPT: normalized transformer with representation learning on the hypersphere", 2024).
//! Every state of the stream, and every weight vector as wide as the stream, has length 1.
//!
//! ```text
//! h_0    = wte[ids]
//! h     ← N(N(h) + |α_A| (N(attention(h)) − N(h)))
//! h     ← N(N(h) + |α_M| (N(mlp(h)) − N(h)))
//! logits = s_z (h · lm_head)
//!
//! N(x)   = x / |x|
//! q, k   = s_qk N(rotate(h · W_q)), s_qk N(rotate(h · W_k))        scale of the scores √d
//! mlp(h) = (√D s_u (h · W_fc) ⊙ silu(√D s_v (h · W_gate))) · W_proj
//! ```
//!
//! D is the width of the stream, and d the width of a head. α_A, α_M, s_qk, s_u, s_v and s_z are learned
//! [factors](Factor).
//!
//! There is no other norm, no bias and no weight decay. After every optimizer step, [`unit::normalise`] of `core`
//! scales the weight vectors to length 1. These vectors are the columns of W_q, W_k, W_v, W_fc, W_gate and lm_head, and
//! the rows of wte and of both projections to the stream.
//!
//! [`unit::normalise`]: residual_zoo_core::unit::normalise

#![forbid(unsafe_code)]

mod attention;
mod config;
mod embeddings;
mod mlp;
mod positions;
mod sphere;

pub use attention::Attention;
pub use config::NgptConfig;
pub use embeddings::UnitEmbeddings;
pub use mlp::Mlp;
pub use positions::NgptPositions;
pub use sphere::{Factor, step_towards, unit};

use residual_zoo_core::{Decoder, Layer, Plain, Stack};

/// One layer with connections of type `C`.
pub type Block<B, C = Plain> = Layer<B, Attention<B>, Mlp<B>, C>;

/// The decoder with plain connections.
pub type Ngpt<B> = Decoder<B, UnitEmbeddings<B>, Stack<B, Block<B>>>;

/// The branches and the embeddings in PyTorch, for export to Hugging Face.
pub const MODELING: &str = include_str!("../modeling.py");

#[cfg(test)]
mod tests;
