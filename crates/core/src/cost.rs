//! Parameter and FLOP counts.

use std::ops::{Add, Mul};

/// Exact parameter counts by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// Token and position tables.
    pub embedding: usize,
    /// An unembedding that is not the token table.
    pub unembedding: usize,
    /// Everything else: what Kaplan et al., "Scaling laws for neural language models" (2020),
    /// call N.
    pub other: usize,
}

impl Params {
    /// All parameters.
    pub fn total(&self) -> usize {
        self.embedding
            .saturating_add(self.unembedding)
            .saturating_add(self.other)
    }
}

/// What a model, or a part of it, costs.
///
/// FLOPs count 2 per multiply-add of every matrix product and leave element-wise work out. The
/// attention products are counted over the whole context, not the causal half: the convention
/// of Chowdhery et al., "PaLM" (2022), appendix B, and of most reports of model FLOPs
/// utilisation. A table look-up is free; the unembedding product is counted. Counts beyond
/// `usize` stay at its maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Parameters.
    pub params: Params,
    /// FLOPs of one forward pass per token, at full context.
    pub forward_flops: usize,
    /// Numbers that the backward pass needs of each token: no count but an upper estimate, since
    /// it depends on how a backend splits operations up.
    pub kept: usize,
}

impl Cost {
    /// Bytes that training takes with single precision and AdamW, on `tokens` tokens at once: an
    /// upper estimate. Weights, gradients and two moments, as much again while they are updated,
    /// and what is [`kept`](Self::kept).
    pub fn training_memory(&self, tokens: usize) -> u64 {
        let weights = self.params.total().saturating_mul(7);
        let numbers = weights.saturating_add(self.kept.saturating_mul(tokens));
        4 * numbers as u64
    }

    /// FLOPs of a forward and backward pass per token: 3 times the forward pass, as each
    /// product has two gradients of its own size (Kaplan et al. 2020, section 2.1).
    pub fn training_flops(&self) -> usize {
        self.forward_flops.saturating_mul(3)
    }

    /// The cost of y = x · W + b, W `[d_in, d_out]`, applied to every token.
    pub fn linear(d_in: usize, d_out: usize, bias: bool) -> Self {
        let weight = d_in.saturating_mul(d_out);
        let other = weight.saturating_add(if bias { d_out } else { 0 });
        Self {
            params: Params {
                other,
                ..Params::default()
            },
            forward_flops: weight.saturating_mul(2),
            // The input, and the output through an activation in several steps.
            kept: d_out.saturating_mul(6).saturating_add(d_in),
        }
    }

    /// The cost of parameters that take part in no matrix product, such as the scale of a norm.
    pub fn vector(params: usize) -> Self {
        let params = Params {
            other: params,
            ..Params::default()
        };
        Self {
            params,
            forward_flops: 0,
            kept: params.other.saturating_mul(6),
        }
    }

    /// The cost of q kᵀ and of the weighted sum of values: 2 · 2 · context · width per token.
    pub fn attention(context: usize, width: usize, n_head: usize) -> Self {
        Self {
            forward_flops: context.saturating_mul(width).saturating_mul(4),
            // The scores of every head, in seven steps.
            kept: context
                .saturating_mul(n_head)
                .saturating_mul(7)
                .saturating_add(width.saturating_mul(6)),
            ..Self::default()
        }
    }

    /// What keeps so many numbers of each token and costs nothing else.
    pub fn keeping(numbers: usize) -> Self {
        Self {
            kept: numbers,
            ..Self::default()
        }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.each(other, usize::saturating_add)
    }
}

impl Mul<usize> for Cost {
    type Output = Self;

    fn mul(self, times: usize) -> Self {
        self.each(self, |count, _| count.saturating_mul(times))
    }
}

impl Cost {
    fn each(self, other: Self, op: impl Fn(usize, usize) -> usize) -> Self {
        Self {
            params: Params {
                embedding: op(self.params.embedding, other.params.embedding),
                unembedding: op(self.params.unembedding, other.params.unembedding),
                other: op(self.params.other, other.params.other),
            },
            forward_flops: op(self.forward_flops, other.forward_flops),
            kept: op(self.kept, other.kept),
        }
    }
}
