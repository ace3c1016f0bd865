//! Storage and retrieval in an outer-product memory (section 2.2, eqs. 12 and 13).
//!
//! The stream holds a matrix X ∈ R^{D_k × D_v} column by column: coordinate (k, v) is at `v · D_k + k`. R data vectors
//! have the same order: coordinate v of vector h is at `v · R + h`. A contraction over D_k, or over the R vectors, is
//! then one matrix product over the last axis. It covers all tokens and all v together, without a transposition. The
//! products with W_1, W_2 and W_U have the same form. `docs/performance.md` compares this order with others.

use burn::module::{Initializer, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Norm, product_of_parts};

/// Returns Σ_h w^(h) ⊗ x^(h): stores data vectors `[batch, time, D_v · R]` under keys w `[R, D_k]`, in matrices
/// `[batch, time, D_v · D_k]`.
pub fn store<B: Backend>(w: Tensor<B, 2>, x: Tensor<B, 3>) -> Tensor<B, 3> {
    product_of_parts(x, w)
}

/// Returns r^(h) ·₁ X for every h: retrieves data vectors `[batch, time, D_v · R]` by keys r `[R, D_k]` from matrices
/// `[batch, time, D_v · D_k]`.
pub fn retrieve<B: Backend>(r: Tensor<B, 2>, x: Tensor<B, 3>) -> Tensor<B, 3> {
    product_of_parts(x, r.transpose())
}

/// Returns r^(h) ·₁ LN(X) for every h: [`retrieve`] after the norm.
pub fn retrieve_normalised<B: Backend>(
    r: Tensor<B, 2>,
    norm: &Norm<B>,
    x: Tensor<B, 3>,
) -> Tensor<B, 3> {
    norm.product(x, r.transpose())
}

/// Draws a weight with Xavier's variance 2 / (fan_in + fan_out), which Table 2 assumes, and multiplies it by `gain`.
/// For storage keys, the fans are R and D_k. For retrieval keys, the fans are D_k and the number of vectors retrieved
/// together.
pub fn xavier<B: Backend>(
    gain: f64,
    shape: [usize; 2],
    [fan_in, fan_out]: [usize; 2],
    device: &B::Device,
) -> Param<Tensor<B, 2>> {
    let xavier = Initializer::XavierNormal { gain };
    xavier.init_with(shape, Some(fan_in), Some(fan_out), device)
}
