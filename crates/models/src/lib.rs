//! The models of residual-zoo: the list of architectures ([`Zoo`]), their compositions ([`ModelConfig`]), and trained
//! runs ([`Run`]).
//!
//! Use this crate to embed the models in a project. It needs neither the trainer nor the dashboard:
//!
//! ```no_run
//! use burn::backend::Flex;
//! use residual_zoo_models::Run;
//! use residual_zoo_models::runs::generate::Sampling;
//!
//! let run = Run::open("runs/gpt2-smoke")?;
//! let model = run.model::<Flex>(&Default::default())?;
//! let text = run.generate(&model, Some("the"), 100, Sampling::default())?;
//! # Ok::<(), residual_zoo_models::runs::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod body;
pub mod compose;
pub mod connections;
mod transfer;
mod zoo;

pub use compose::{Composition, PlacedConnection};
pub use connections::ConnectionConfig;
pub use zoo::{Block, Embeddings, Zoo};

pub use residual_zoo_core as core;
pub use residual_zoo_data as data;
pub use residual_zoo_gpt2 as gpt2;
pub use residual_zoo_laurel as laurel;
pub use residual_zoo_llama as llama;
pub use residual_zoo_loops as loops;
pub use residual_zoo_ngpt as ngpt;
pub use residual_zoo_recurrent as recurrent;
pub use residual_zoo_resnet as resnet;
pub use residual_zoo_rmt as rmt;
pub use residual_zoo_runs as runs;
pub use residual_zoo_streams as streams;
pub use residual_zoo_tokenformer as tokenformer;
pub use residual_zoo_vit as vit;

/// The config of any model of the zoo: the `model` field of a RON file.
pub type ModelConfig = Composition<Zoo>;

/// The config of a run that trains a zoo model: a RON file under `experiments/`.
pub type RunConfig = residual_zoo_runs::RunConfig<ModelConfig>;

/// A run that trained a zoo model, read from its run directory.
pub type Run = residual_zoo_runs::Run<ModelConfig>;
