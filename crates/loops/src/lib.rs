//! Depth loops: a model runs its middle layers, the core, several times.
//!
//! ```text
//! e      = prelude(embed(ids))
//! s_0    = e, 0 or a random state
//! s_r    = core(inject(s_{r-1} + timestep_r, e)),   r = 1 .. loops
//! logits = unembed(coda(s_loops)),  or unembed(coda(norm(s_loops)))
//! ```
//!
//! [`LoopsConfig`] holds the settings and has constructors for three papers: [`universal`](LoopsConfig::universal)
//! (Dehghani et al., "Universal transformers", 2018, <https://arxiv.org/abs/1807.03819>),
//! [`looped`](LoopsConfig::looped) (Yang et al., "Looped transformers are better at learning learning algorithms",
//! 2023, <https://arxiv.org/abs/2311.12424>) and [`huginn`](LoopsConfig::huginn) (Geiping et al., "Scaling up test-time
//! compute with latent reasoning", 2025, <https://arxiv.org/abs/2502.05171>). [`Loops`] is the module. The layers can
//! be of any architecture for text, with any connection.

#![forbid(unsafe_code)]

mod cache;
mod config;
mod draw;
mod given;
mod loops;
mod signal;

pub use cache::LoopsCache;
pub use config::{Inject, LoopOrder, LoopStart, LoopsConfig, MOST_LOOPS, Part, Times, Timestep};
pub use given::starting_from;
pub use loops::Loops;

/// The loops in PyTorch, for export to Hugging Face.
pub const MODELING: &str = include_str!("../modeling.py");

#[cfg(test)]
mod tests;
