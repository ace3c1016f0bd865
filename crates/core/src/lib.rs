//! The residual stream and what every architecture of the zoo is made of.
//!
//! One line describes every model: **x_{i+1} = connect(x_i, x_{i-1}, …; f(x_i))**.
//!
//! | idea | here |
//! |---|---|
//! | the stream x_i and the streams before it | [`Stream`] |
//! | f, with its own pre-norm | [`Branch`] |
//! | how f joins the stream | [`Connection`], plainly `x + f(x)` in [`Plain`] |
//! | one update of the stream | [`ResidualBlock`]: [`Update`], [`Layer`], [`Stack`] |
//! | ids from outside, checked once | [`token_ids`] |
//! | ids to stream, stream to logits | [`Ends`], for most models [`TokenEnds`] |
//! | `Ends` and a `ResidualBlock` | [`Decoder`], a [`LanguageModel`] |
//! | a config that builds all this | [`Architecture`], and from it [`ModelConfig`] |

#![forbid(unsafe_code)]

pub mod activation;
pub mod attention;
pub mod check;
mod config;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod cost;
mod ends;
mod ids;
mod init;
pub mod loss;
mod model;
pub mod norm;
pub mod params;
mod stream;

pub use activation::Activation;
pub use config::{
    Architecture, ConfigError, EndsOf, Growth, ModelConfig, Tensors, materialise, not_widened,
};
pub use cost::{Cost, Memory, Params};
pub use ends::{TokenEnds, TokenEndsOptions};
pub use ids::{IdsError, token_ids};
pub use init::{linear, normal};
pub use model::{Decoder, DecoderCache, Ends, LanguageModel};
pub use norm::NormParams;
pub use stream::{
    Branch, Connection, Increment, Layer, Plain, ResidualBlock, Stack, Stream, Update,
};

#[cfg(test)]
mod tests;
