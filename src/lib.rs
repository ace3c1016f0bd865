//! A zoo of language-model architectures that change the residual stream, on
//! [Burn](https://burn.dev).
//!
//! Every architecture is a crate of its own that implements the same traits, so that they train
//! by the same trainer and compare in the same report. This crate re-exports them, gathers them
//! in one enum that a RON file can name ([`ModelConfig`]), and runs code on the backend that a
//! user chooses ([`backend`]).

#![forbid(unsafe_code)]

pub mod backend;
mod zoo;

pub use zoo::{Block, Ends, ModelConfig};

pub use residual_zoo_core as core;
pub use residual_zoo_data as data;
pub use residual_zoo_gpt2 as gpt2;
pub use residual_zoo_train as train;

/// A run of a model of the zoo: what a RON file under `experiments/` describes.
pub type RunConfig = residual_zoo_train::RunConfig<ModelConfig>;
