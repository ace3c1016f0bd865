//! LAuReL (Menghani, Kumar and Kumar, "LAuReL: learned augmented residual layer", 2025):
//! <https://arxiv.org/abs/2411.07501>.
//!
//! [`Laurel`] is a residual connection with learned weights, a low-rank map and access to earlier streams. Its
//! documentation has the equations. It implements `Connection`, so it can surround any sublayer or layer:
//!
//! ```
//! use burn::tensor::backend::Backend;
//! use residual_zoo_core::{Architecture, Decoder, Design, Frame, Sites, Stack, Vocabulary};
//! use residual_zoo_laurel::LaurelConfig;
//!
//! # fn model<B: Backend, A: Architecture>(architecture: &A, device: &B::Device) {
//! let (laurel, shape, frame) = (LaurelConfig::rw_lr(4), architecture.shape(), Frame::default());
//! let sites = Sites::sublayers(shape.width, shape.n_layer, shape.n_sublayer);
//! let connection = || laurel.connection(&sites, 0, device);
//! let layers = (0..shape.n_layer).map(|i| architecture.block(i, &frame, connection, device));
//! let embeddings = architecture.embeddings::<B>(Vocabulary::from(50_257), &frame, device);
//! let model = Decoder::new(embeddings, Stack::new(layers.collect()));
//! # }
//! ```

#![forbid(unsafe_code)]

mod config;
mod connection;
pub mod formulas;

pub use config::{Augmentation, LaurelConfig, LowRankInit, Weights};
pub use connection::Laurel;

/// The connection in PyTorch, for export to Hugging Face.
pub const MODELING: &str = include_str!("../modeling.py");

#[cfg(test)]
mod tests;
