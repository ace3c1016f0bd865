//! The recurrent transformer (Kausik, "Scaling efficient LLMs", section 5):
//! <https://arxiv.org/abs/2402.14746>.
//!
//! [`Recurrent`] cuts a sequence into blocks and passes over them with one transformer τ, two blocks at a time. The
//! documentation of [`Recurrent`] has the equations. τ is any `ResidualBlock`, such as a layer of GPT-2, RMT or
//! TokenFormer with any connection. A pass over a whole sequence takes time and memory linear in the length of the
//! sequence. Reading the sequence in pieces takes constant memory ([`RecurrentCache`]).

#![forbid(unsafe_code)]

mod config;
pub mod formulas;
mod recurrence;
mod streaming;

pub use config::{Alpha, Form, RecurrentConfig};
pub use recurrence::Recurrent;
pub use streaming::RecurrentCache;

/// The recurrence in PyTorch, for export to Hugging Face.
pub const MODELING: &str = include_str!("../modeling.py");

#[cfg(test)]
mod tests;
