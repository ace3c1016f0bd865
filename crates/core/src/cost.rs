//! Counts of parameters, FLOPs and memory.

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
    /// What training holds besides its parameters.
    pub memory: Memory,
}

/// What training holds in memory besides its parameters, their gradients and moments: counted as
/// Burn's autodiff holds the inputs of its operations, with an upper estimate for what it holds
/// for a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Numbers per token held from the forward to the backward pass.
    pub kept: usize,
    /// Numbers per token that the operation with the most of them holds while it runs.
    pub passing: usize,
    /// Numbers in the largest parameter.
    pub largest: usize,
}

impl Cost {
    /// Bytes that a training step takes with single precision and AdamW, on `batch` sequences of
    /// `time` tokens at once: an upper estimate, without what an allocator or a memory pool wastes.
    ///
    /// Weights and two moments are there all the time. The backward pass lets go of what the
    /// forward pass kept while it makes the gradients, so the larger of the two counts. The
    /// gradient of a weight is made for each sequence and then summed. Tensors of the size of the
    /// largest parameter come and go when it is updated.
    pub fn training_memory(&self, batch: usize, time: usize) -> u64 {
        let Memory {
            kept,
            passing,
            largest,
        } = self.memory;
        let (parameters, tokens) = (self.params.total(), batch.saturating_mul(time));
        let numbers = parameters
            .saturating_mul(3)
            .saturating_add(parameters.max(kept.saturating_mul(tokens)))
            .saturating_add(passing.saturating_mul(tokens))
            .saturating_add(largest.saturating_mul(batch.saturating_mul(2).saturating_add(4)));
        (numbers as u64).saturating_mul(4)
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
            memory: Memory {
                kept: d_in,
                passing: d_in.max(d_out).saturating_mul(4),
                largest: weight,
            },
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
            memory: Memory {
                largest: params.other,
                ..Memory::default()
            },
        }
    }

    /// The cost of q kᵀ and of the weighted sum of values: 2 · 2 · context · width per token.
    pub fn attention(context: usize, width: usize, n_head: usize, dropout: f64) -> Self {
        let scores = context.saturating_mul(n_head);
        // q before and after it is scaled, k, v and the sum; the scores as they enter and leave
        // the exponential; one byte of the mask for all heads.
        let kept = width
            .saturating_mul(5)
            .saturating_add(scores.saturating_mul(2))
            .saturating_add(context / 4);
        Self {
            forward_flops: context.saturating_mul(width).saturating_mul(4),
            memory: Memory {
                kept,
                passing: scores.saturating_mul(4),
                ..Memory::default()
            },
            ..Self::default()
        } + Self::dropout(scores, dropout)
    }

    /// The cost of dropout over `width` numbers of each token.
    pub fn dropout(width: usize, probability: f64) -> Self {
        Self::keeping(if probability > 0.0 { width } else { 0 })
    }

    /// What keeps so many numbers of each token and costs nothing else.
    pub fn keeping(numbers: usize) -> Self {
        let memory = Memory {
            kept: numbers,
            ..Memory::default()
        };
        Self {
            memory,
            ..Self::default()
        }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let memory = Memory {
            kept: self.memory.kept.saturating_add(other.memory.kept),
            passing: self.memory.passing.max(other.memory.passing),
            largest: self.memory.largest.max(other.memory.largest),
        };
        Self {
            params: Params {
                embedding: self.params.embedding.saturating_add(other.params.embedding),
                unembedding: self
                    .params
                    .unembedding
                    .saturating_add(other.params.unembedding),
                other: self.params.other.saturating_add(other.params.other),
            },
            forward_flops: self.forward_flops.saturating_add(other.forward_flops),
            memory,
        }
    }
}

impl Mul<usize> for Cost {
    type Output = Self;

    fn mul(self, times: usize) -> Self {
        if times == 0 {
            return Self::default();
        }
        Self {
            params: Params {
                embedding: self.params.embedding.saturating_mul(times),
                unembedding: self.params.unembedding.saturating_mul(times),
                other: self.params.other.saturating_mul(times),
            },
            forward_flops: self.forward_flops.saturating_mul(times),
            memory: Memory {
                kept: self.memory.kept.saturating_mul(times),
                ..self.memory
            },
        }
    }
}
