//! A zoo of language-model architectures that change the residual stream, on
//! [Burn](https://burn.dev).
//!
//! Every architecture is a separate crate. All of them implement the same traits, so the same trainer
//! trains them and the same report compares them. [`residual_zoo_models`] lists them in one enum ([`Zoo`])
//! and composes them ([`ModelConfig`]). This crate re-exports everything, and has the entry points of all
//! programs ([`experiment`](mod@experiment)).

#![forbid(unsafe_code)]

pub mod builtin;
pub mod experiment;

pub use residual_zoo_backend as backend;
pub use residual_zoo_cli as cli;
pub use residual_zoo_evaluate as evaluate;
pub use residual_zoo_exchange as exchange;
pub use residual_zoo_lab as lab;
pub use residual_zoo_models::*;
pub use residual_zoo_report as report;
pub use residual_zoo_serve as serve;
pub use residual_zoo_train as train;
