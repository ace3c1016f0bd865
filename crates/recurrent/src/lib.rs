//! The recurrent transformer (Kausik, "Scaling efficient LLMs", section 5):
//! <https://arxiv.org/abs/2402.14746>.
//!
//! The sequence is cut into blocks x_1, …, x_t of k tokens; the last may be shorter. One
//! transformer τ passes over them, two at a time:
//!
//! ```text
//! h_1            = τ(x_1)                                             (8)
//! (y_i, h_{i+1}) = τ(α h_{i-1} + h_i, α h_{i-1} + x_{i+1})             (9)
//! y_t            = τ(h_t)                                             (10)
//! ```
//!
//! τ is any `ResidualBlock`, such as a layer of GPT-2, RMT or TokenFormer, whatever connections are
//! in it. Time and memory are linear in the length of the sequence, and reading it bit by bit takes
//! memory that does not depend on its length ([`Recurrent`]).

#![forbid(unsafe_code)]

mod config;
pub mod formulas;
mod recurrence;
mod streaming;

pub use config::{Alpha, Form, RecurrentConfig};
pub use recurrence::Recurrent;
pub use streaming::RecurrentCache;

#[cfg(test)]
mod tests;
