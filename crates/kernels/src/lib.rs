//! Fast forms of operations that architectures share. `residual_zoo_core::ops` calls this crate first, and has the
//! plain form of each operation, which follows the equation.
//!
//! A fast form gives the same values and gradients as the plain form, up to rounding, and most fast forms keep less for
//! the backward pass. Every operation takes tensors of any backend, and returns its inputs if there is no kernel for
//! them. There is no kernel if the backend's feature is off, on GPU backends with Burn's fusion, on some backends for
//! some operations, and for some sizes and float types. With the environment variable `RESIDUAL_ZOO_OPS=plain`, every
//! operation returns its inputs.

// Without Flex and LibTorch, which have kernels for most operations, some common parts are unused.
#![cfg_attr(
    not(any(feature = "flex", feature = "tch")),
    allow(dead_code, unused_imports)
)]

mod activation;
mod attention;
mod batch_norm;
mod cache;
mod causal;
mod convolution;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "tch")]
mod cuda;
mod depth_attention;
mod embedding;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "flex")]
mod gemm;
#[cfg(feature = "tch")]
mod graph;
#[cfg(feature = "flex")]
mod joint;
#[cfg(feature = "tch")]
pub mod libtorch;
mod loss;
mod matmul;
mod mix;
mod mixtures;
mod norm;
mod norm_product;
mod op;
mod optimizer;
mod product;
mod rotary;
mod sinkhorn;
mod swap;
mod theta;

pub use activation::{Activation, activation};
pub use attention::{Attention, Dropped, attention, hash, packed_attention};
pub use batch_norm::{Normed, batch_norm};
pub use cache::write_positions;
pub use causal::causal_sum;
pub use convolution::convolution;
pub use depth_attention::{Sources, depth_attention};
pub use embedding::{Lookup, embedding};
pub use loss::log_z_and_target;
pub use matmul::{Candidate, Matmul, matmul, matmul_candidates};
pub use mix::{dots, mix, mix_both};
pub use mixtures::mixtures;
pub use norm::{Norm, norm};
pub use norm_product::norm_product;
pub use op::{allow_tf32, deterministic, plain_only, profile};
pub use optimizer::{AdamW, Due, State, adamw, sum_of_squares};
pub use product::{Affine, Linear, linear, product};
pub use rotary::{Rotary, rotary};
pub use sinkhorn::{Sinkhorn, sinkhorn};
pub use swap::swap_heads;
pub use theta::{Form, Theta, theta};
