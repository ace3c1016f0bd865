//! A zoo of language-model architectures that change the residual stream, on
//! [Burn](https://burn.dev).
//!
//! Every architecture is a separate crate. All of them implement the same traits, so the same trainer
//! trains them and the same report compares them. This crate re-exports them, lists them in one enum
//! ([`Zoo`]), composes them ([`ModelConfig`]), and has the entry points of all programs
//! ([`experiment`](mod@experiment)).

#![forbid(unsafe_code)]

pub mod body;
pub mod builtin;
pub mod compose;
pub mod experiment;
mod zoo;

pub use compose::{Composition, ConnectionConfig, PlacedConnection};
pub use zoo::{Block, Embeddings, Zoo};

pub use residual_zoo_backend as backend;
pub use residual_zoo_core as core;
pub use residual_zoo_data as data;
pub use residual_zoo_gpt2 as gpt2;
pub use residual_zoo_lab as lab;
pub use residual_zoo_laurel as laurel;
pub use residual_zoo_recurrent as recurrent;
pub use residual_zoo_report as report;
pub use residual_zoo_rmt as rmt;
pub use residual_zoo_tokenformer as tokenformer;
pub use residual_zoo_train as train;

/// The config of any model of the zoo, as the `model` field of a RON file gives it.
pub type ModelConfig = Composition<Zoo>;

/// The config of a run of a model of the zoo, as a RON file under `experiments/` gives it.
pub type RunConfig = residual_zoo_train::RunConfig<ModelConfig>;
