//! LAuReL (Menghani, Kumar and Kumar, "LAuReL: learned augmented residual layer", 2025):
//! <https://arxiv.org/abs/2411.07501>.
//!
//! The residual connection itself, learned, around any sublayer or block f:
//!
//! ```text
//! x_{i+1} = α · f(x_i) + g(x_i, x_{i-1}, …, x_0)                               (2)
//!
//! RW         α f(x_i) + β x_i                                        section 2.1
//! LR             f(x_i) +    x_i + x_i A B                                     (3)
//! PA             f(x_i) +    x_i + Σ_j γ_j h(x_{i-j})                          (4)
//! RW+LR      α f(x_i) + β (x_i + x_i A B)                                      (5)
//! RW+PA      α f(x_i) + β (x_i + Σ_j γ_j h(x_{i-j}))                 section 2.4
//! RW+LR+PA   α f(x_i) + β (x_i + Σ_j γ_j x_{i-j} A_j B_j)                      (6)
//! ```
//!
//! j runs over 0, …, k − 1. x_{i-j} are the streams between connections. There are none before x_0, so
//! near the input their terms are left out. [`Laurel`] implements `Connection`, so it replaces any
//! other connection:
//!
//! ```
//! use burn::tensor::backend::Backend;
//! use residual_zoo_core::{Architecture, Decoder, Stack, Vocabulary};
//! use residual_zoo_laurel::LaurelConfig;
//!
//! # fn model<B: Backend, A: Architecture>(architecture: &A, device: &B::Device) {
//! let (laurel, shape) = (LaurelConfig::rw_lr(4), architecture.shape());
//! let connection = || laurel.init(shape.width, device);
//! let layers = (0..shape.n_layer).map(|i| architecture.block(i, connection, device));
//! let embeddings = architecture.embeddings::<B>(Vocabulary::from(50_257), device);
//! let model = Decoder::new(embeddings, Stack::new(layers.collect()));
//! # }
//! ```

#![forbid(unsafe_code)]

mod config;
mod connection;
pub mod formulas;

pub use config::{Augmentation, LaurelConfig, LowRankInit, Weights};
pub use connection::Laurel;

#[cfg(test)]
mod tests;
