//! Operations that architectures share, one file each.
//!
//! Each operation with a fast form also has a plain form, which follows the equation. Both give the same values and
//! gradients up to rounding. The fast forms are in `residual_zoo_kernels`; `RESIDUAL_ZOO_OPS=plain` turns them off.

pub mod activation;
pub mod attention;
pub mod batch_norm;
pub mod causal;
pub mod convolution;
pub mod embedding;
pub mod forms;
pub mod linear;
pub mod loss;
pub mod mix;
pub mod muon;
pub mod norm;
pub mod optimizer;
pub mod precision;
pub mod rotary;
pub mod sinkhorn;

pub use residual_zoo_kernels::{deterministic, profile};
