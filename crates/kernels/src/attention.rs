//! Attention without a `[time, time]` tensor of weights. The backward pass computes the weights again, block by block,
//! from the inputs and one number per query (Dao et al., "FlashAttention", 2022). On LibTorch, the bias of ALiBi is a
//! `[time, time]` tensor for each head, and on CUDA, PyTorch chooses the algorithm.

#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "tch")]
mod libtorch;

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// Attention: softmax(q kᵀ · scale + bias) v.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Multiplier of the scores.
    pub scale: f64,
    /// The cap c: a score s becomes c tanh(s / c).
    pub cap: Option<f64>,
    /// With causal attention, the number of most recent positions that a query attends to, its own included; `None` for
    /// all.
    pub window: Option<usize>,
    /// Whether a position attends only to itself and earlier positions.
    pub causal: bool,
    /// Whether scores have the bias of ALiBi (Press et al. 2022): 2^(−8 (h + 1) / heads) · (position of the key −
    /// position of the query) for head h, counted from 0.
    pub alibi: bool,
    /// Dropout on the weights.
    pub dropout: Option<Dropped>,
}

/// The choice of dropped weights. It depends only on the seed and the position of a weight, so the backward pass makes
/// the same choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropped {
    /// Probability of dropping a weight.
    pub probability: f64,
    /// A new seed for each use.
    pub seed: u64,
}

impl Attention {
    /// Returns the range of keys that the query at `position` sees. `all` is the number of keys.
    #[cfg(feature = "flex")]
    fn keys(&self, position: usize, all: usize) -> std::ops::Range<usize> {
        let end = position + 1;
        match (self.causal, self.window) {
            (true, Some(window)) => end.saturating_sub(window)..end,
            (true, None) => 0..end,
            (false, _) => 0..all,
        }
    }

    /// Whether the scores have a cap, or a window smaller than the number of keys, `all`. Only the kernel for Flex
    /// computes these.
    #[cfg(any(feature = "tch", feature = "cube"))]
    pub(crate) fn is_limited(&self, all: usize) -> bool {
        self.cap.is_some() || (self.causal && self.window.is_some_and(|window| window < all))
    }

    /// Returns the slope of head `h` of `heads`; 0 without ALiBi.
    #[cfg(feature = "flex")]
    fn slope(&self, h: usize, heads: usize) -> f64 {
        match self.alibi {
            true => 2f64.powf(-8.0 * (h + 1) as f64 / heads as f64),
            false => 0.0,
        }
    }
}

impl Dropped {
    /// Mixes the position of a row of weights into the seed.
    pub fn row(&self, head: usize, row: usize) -> u32 {
        let position = ((head as u64) << 32) ^ row as u64;
        let mixed = (self.seed ^ position.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 31)) as u32
    }

    /// Returns the bound on [`hash`] below which a weight is dropped.
    pub fn threshold(&self) -> u32 {
        (self.probability * u32::MAX as f64) as u32
    }
}

/// Hashes the position of a weight to a number from 0 to 2³² − 1, with the finalizer of MurmurHash3.
#[inline(always)]
pub fn hash(row: u32, column: u32) -> u32 {
    let mut h = row.wrapping_add(column.wrapping_mul(0x9e37_79b9));
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

/// Computes the attention of queries `[batch, heads, new, d]` to keys and values `[batch, heads, seen + new, d]`. Query
/// i is at position seen + i. The kernel for Flex also takes keys and values with fewer heads, K, where K divides
/// `heads`: query head h reads head h // (heads / K).
///
/// # Errors
///
/// Returns q, k and v if there is no kernel for them.
pub fn attention<B: Backend>(
    attention: Attention,
    qkv: [Tensor<B, 4>; 3],
) -> Result<Tensor<B, 4>, [Tensor<B, 4>; 3]> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let result = apply::<B, _, 3>(&attention, qkv.map(|x| x.into_primitive().tensor()));
    result.map(of).map_err(|qkv| qkv.map(of))
}

/// Computes the [`attention`] of a sequence to itself. The heads of q, k and v are one tensor
/// `[batch, 3 · heads, time, d]`, and so is their gradient.
///
/// # Errors
///
/// Returns `qkv` if there is no kernel for it.
pub fn packed_attention<B: Backend>(
    attention: Attention,
    qkv: Tensor<B, 4>,
) -> Result<Tensor<B, 4>, Tensor<B, 4>> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let result = apply::<B, _, 1>(&attention, [qkv.into_primitive().tensor()]);
    result.map(of).map_err(|[qkv]| of(qkv))
}
