//! The residual stream, and the parts that all architectures share.
//!
//! One line describes every model: **x_{i+1} = connect(x_i, x_{i-1}, …; f)**.
//!
//! | idea | item |
//! |---|---|
//! | the stream x_i, and the tensors that connections carry | [`Stream`] |
//! | f, with its own pre-norm | [`Branch`] |
//! | how f joins the stream | [`Connection`]; `x + f(x)` is [`Plain`] |
//! | what a connection changes inside attention | [`Heads`] |
//! | a connection's operations at both ends of a stream | [`Ends`] |
//! | the config of a connection | [`Design`] |
//! | one update of the stream | [`ResidualBlock`]: [`Update`], [`Layer`], [`Stack`] |
//! | ids to stream, stream to logits | [`Embeddings`], in most models [`TokenEmbeddings`] |
//! | `Embeddings` and a `ResidualBlock` | [`Decoder`], a [`LanguageModel`] |
//! | a config | [`Architecture`] builds the parts of a model, [`ModelConfig`] a whole model |
//! | growing and merging models; choosing the weights to train and their learning rates | [`Transfer`] |
//! | token ids or images | [`Input`] |
//! | the state of an incremental pass | [`Cache`] |
//! | the check of token ids | [`token_ids`] |
//!
//! [`autodiff`] sums the gradients of a model. [`mup`] has the initialisation and learning rates of μP. [`ops`] has the
//! operations that architectures share. [`recompute`] runs layers again in the backward pass instead of keeping their
//! activations. [`statistics`] updates running statistics, such as the means of a batch norm. [`params`] lists, exports
//! and imports parameters by name. [`mod@unit`] has matrices of unit vectors. [`Cost`] counts parameters and FLOPs.

#![forbid(unsafe_code)]

mod architecture;
pub mod autodiff;
mod block;
mod cache;
pub mod check;
mod config;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod cost;
mod depth;
mod design;
mod embeddings;
mod heads;
mod ids;
mod init;
mod input;
mod matrices;
mod model;
pub mod mup;
pub mod ops;
pub mod params;
pub mod recompute;
pub mod statistics;
mod stream;
mod transfer;
pub mod unit;

pub use architecture::{
    Architecture, DecoderOf, EmbeddingsOf, PlainModel, Shape, StreamSize, Vocabulary,
};
pub use block::{Increment, Layer, ResidualBlock, Stack, Update, close, open, through};
pub use cache::{Cache, Past, Seen};
pub use config::{ConfigError, ModelConfig, materialise, sentence};
pub use cost::{Cost, Params};
pub use depth::{DepthError, DepthFit, DepthMap};
pub use design::{ConnectionOf, Design, EndsOf, Frame, Sites};
pub use embeddings::{TokenEmbeddings, TokenEmbeddingsOptions, add_positions, positions, scaled};
pub use heads::{AttentionSize, Change, Heads, QkvInput};
pub use ids::{IdsError, token_ids};
pub use init::{Init, linear, normal, std_of_width};
pub use input::{ImageSize, Input, Reads};
pub use matrices::Matrices;
pub use model::{Decoder, DecoderCache, Embeddings, LanguageModel};
pub use mup::{Mup, Scaled};
pub use ops::activation::Activation;
pub use ops::causal::causal_sum;
pub use ops::linear::{Linear, product, product_of_parts, project};
pub use ops::muon::{Muon, MuonForm};
pub use ops::norm::{Norm, NormDesign, NormParams, NormPlaces, Norms, RmsScale};
pub use ops::precision::{Precision, matmul, matmul_f32, narrow, product_roundoff, widen};
pub use ops::rotary::{Pairs, Rotary, RotaryScaling};
pub use recompute::Recompute;
pub use stream::{Branch, BranchFn, Connection, Earlier, Ends, Plain, Stream, WithEnds};
pub use transfer::{Tensors, Transfer, no_merge};

#[cfg(test)]
mod tests;
