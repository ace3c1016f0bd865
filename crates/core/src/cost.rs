//! Exact counts of parameters and FLOPs.

use std::ops::{Add, Mul};

/// Exact parameter counts by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// Tables indexed by token ids or positions, and class tokens.
    pub embedding: usize,
    /// The unembedding, unless it is the token table.
    pub unembedding: usize,
    /// All other parameters: N of Kaplan et al., "Scaling laws for neural language models" (2020).
    pub other: usize,
}

impl Params {
    /// Returns the number of all parameters.
    pub fn total(&self) -> usize {
        self.embedding
            .saturating_add(self.unembedding)
            .saturating_add(self.other)
    }
}

/// The cost of a model or of a part of it.
///
/// FLOPs count 2 per multiply-add of every matrix product and ignore element-wise operations. Attention counts the
/// whole context, not the causal half. This is the convention of Chowdhery et al., "PaLM" (2022), appendix B, and of
/// most reports of model FLOPs utilisation. A table look-up is free; the unembedding product counts.
///
/// Sums and products of costs saturate at `usize::MAX`, so that memory checks can refuse even a model that fits on no
/// machine. Formulas for one part cannot overflow, because [`check::sizes`](crate::check::sizes) bounds every size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Parameter counts by purpose.
    pub params: Params,
    /// FLOPs of one forward pass per token, at full context.
    pub forward_flops: usize,
    /// The part of `forward_flops` without a backward pass, as in the first loops under truncated backpropagation.
    pub cut_flops: usize,
}

impl Cost {
    /// Returns the FLOPs of a forward and backward pass per token: 3 times the forward pass (Kaplan et al. 2020,
    /// section 2.1), except that `cut_flops` count once. Every other product of the forward pass has two products of
    /// the same size in the backward pass.
    pub fn training_flops(&self) -> usize {
        let with_backward = self.forward_flops.saturating_sub(self.cut_flops);
        with_backward
            .saturating_mul(2)
            .saturating_add(self.forward_flops)
    }

    /// Returns the cost of y = x · W + b with W `[d_in, d_out]`, applied to every token.
    pub fn linear(d_in: usize, d_out: usize, bias: bool) -> Self {
        let weight = (Self::vector(1) + Self::flops(2)) * d_in * d_out;
        weight + Self::vector(if bias { d_out } else { 0 })
    }

    /// Returns the cost of products with `flops` FLOPs per token, without parameters.
    pub fn flops(flops: usize) -> Self {
        Self {
            forward_flops: flops,
            ..Self::default()
        }
    }

    /// Returns the cost of `params` parameters outside matrix products, such as the scale of a norm.
    pub fn vector(params: usize) -> Self {
        Self {
            params: Params {
                other: params,
                ..Params::default()
            },
            ..Self::default()
        }
    }

    /// Returns the cost of q kᵀ and of the weighted sum of values: 2 · 2 · context · width per token.
    pub fn attention(context: usize, width: usize) -> Self {
        Self::flops(4) * context * width
    }

    /// Returns the cost of applying this part `times` times, as [`applied`](Self::applied) does, if only the last
    /// `trained` applications have a backward pass.
    pub fn applied_cut(self, times: usize, trained: usize) -> Self {
        Self {
            cut_flops: (self * times.saturating_sub(trained)).forward_flops,
            ..self.applied(times)
        }
    }

    /// Returns the cost of applying this part `times` times: FLOPs are multiplied, and parameters are shared. A cost
    /// multiplied by a number is the cost of that many separate parts.
    pub fn applied(self, times: usize) -> Self {
        Self {
            params: self.params,
            ..self * times
        }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (a, b) = (self.params, other.params);
        Self {
            params: Params {
                embedding: a.embedding.saturating_add(b.embedding),
                unembedding: a.unembedding.saturating_add(b.unembedding),
                other: a.other.saturating_add(b.other),
            },
            forward_flops: self.forward_flops.saturating_add(other.forward_flops),
            cut_flops: self.cut_flops.saturating_add(other.cut_flops),
        }
    }
}

impl Mul<usize> for Cost {
    type Output = Self;

    fn mul(self, times: usize) -> Self {
        let params = self.params;
        Self {
            params: Params {
                embedding: params.embedding.saturating_mul(times),
                unembedding: params.unembedding.saturating_mul(times),
                other: params.other.saturating_mul(times),
            },
            forward_flops: self.forward_flops.saturating_mul(times),
            cut_flops: self.cut_flops.saturating_mul(times),
        }
    }
}
