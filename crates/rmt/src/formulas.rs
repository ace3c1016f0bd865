//! Formulas of the RMT paper: the costs in Table 7 as printed, the sums of the items in Appendix A that the table
//! summarises, and the variance ratios of Table 2.
//!
//! FLOPs are for a forward pass, per token in a sequence of N tokens: Table 7 divided by N. Appendix A counts 3 FLOPs
//! per score for the softmax, and a table look-up as a product with a one-hot vector.
//! [`Cost`](residual_zoo_core::Cost) counts neither. All parameter counts omit norms.

use crate::RmtConfig;

/// Sizes that determine the cost of an RMT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmtShape {
    /// Number of layers, L.
    pub n_layer: usize,
    /// Length of a key, D_k.
    pub d_k: usize,
    /// Length of a data vector, D_v.
    pub d_v: usize,
    /// Number of data vectors, R.
    pub rank: usize,
    /// Width of the feed-forward network, D_FF.
    pub d_ff: usize,
    /// Number of token ids, V.
    pub vocab_size: usize,
    /// Number of tokens in a sequence, N.
    pub context: usize,
}

impl RmtShape {
    /// Returns the shape of `config` with `vocab_size` token ids.
    pub fn new(config: &RmtConfig, vocab_size: usize) -> Self {
        Self {
            n_layer: config.n_layer,
            d_k: config.d_k,
            d_v: config.d_v,
            rank: config.rank,
            d_ff: config.d_ff(),
            vocab_size,
            context: config.context,
        }
    }

    /// Returns the number of parameters as printed in Table 7, R(2 D_k (3L + 1) + D_v (2 L D_FF + V + N)). The formula
    /// lacks the unembedding, R V D_v, and its keys, R D_k.
    pub fn params_as_printed(&self) -> usize {
        let &Self { n_layer, d_ff, .. } = self;
        let keys = 2 * self.d_k * (3 * n_layer + 1);
        let vectors = self.d_v * (2 * n_layer * d_ff + self.vocab_size + self.context);
        self.rank * (keys + vectors)
    }

    /// Returns the sum of the parameter counts in Appendix A.1, R(D_k (6L + 3) + D_v (2 L D_FF + 2V + N)). The sizes in
    /// Table 9 are such sums.
    pub fn params_counted(&self) -> usize {
        let tables = self.rank * self.d_v * (2 * self.vocab_size + self.context);
        self.key_params() + self.core_params() + tables
    }

    /// Returns the number of bytes needed to generate N tokens in single precision (section 4.2): the weights, the keys
    /// and values of attention in all layers, 2 L N R D_v numbers, and one residual stream, N D_k D_v numbers.
    pub fn inference_bytes(&self) -> usize {
        let cache = 2 * self.n_layer * self.context * self.rank * self.d_v;
        4 * (self.params_counted() + cache + self.context * self.d_k * self.d_v)
    }

    /// Returns the number of parameters of all keys, R D_k (6L + 3): six sets of R keys per layer, and one set each for
    /// the tokens, the positions and the unembedding (Appendix A.1).
    pub fn key_params(&self) -> usize {
        self.rank * self.d_k * (6 * self.n_layer + 3)
    }

    /// Returns the number of parameters of W_1 and W_2 in all layers, 2 L R D_v D_FF (Appendix A.1). The models of
    /// Table 9 train on 20 tokens for each of these parameters, except for the last row, which uses the transformer's
    /// number of tokens.
    pub fn core_params(&self) -> usize {
        2 * self.n_layer * self.rank * self.d_v * self.d_ff
    }

    /// Returns the FLOPs as printed in Table 7, 6 R D_k D_v (1 + L) + R(4 V D_v + L(4 N D_v + 3N + 4 D_v D_FF)).
    pub fn flops_as_printed(&self) -> usize {
        self.flops(1 + self.n_layer, 4 * self.vocab_size * self.d_v)
    }

    /// Returns the FLOPs as printed in Table 7, but with 4V instead of 4 V D_v. The training totals that the paper
    /// reports for the 305M model follow from this form.
    pub fn flops_of_printed_totals(&self) -> usize {
        self.flops(1 + self.n_layer, 4 * self.vocab_size)
    }

    /// Returns the sum of the FLOPs in Appendix A.2, 6 R D_k D_v (1 + 2L) + R(6 V D_v + L(4 N D_v + 3N + 4 D_v D_FF)).
    /// The sum includes 2 V R D_v for the positions, although their table has N rows, not V.
    pub fn flops_of_items(&self) -> usize {
        self.flops(1 + 2 * self.n_layer, 6 * self.vocab_size * self.d_v)
    }

    /// Returns the sum of the FLOPs in Appendix A.2 for a position table of N rows: 4V + 2N instead of the 6V in
    /// [`flops_of_items`](Self::flops_of_items).
    pub fn flops_counted(&self) -> usize {
        let rows = 4 * self.vocab_size + 2 * self.context;
        self.flops(1 + 2 * self.n_layer, rows * self.d_v)
    }

    /// Computes 6 R D_k D_v `keys` + R(`tables` + L(4 N D_v + 3N + 4 D_v D_FF)).
    fn flops(&self, keys: usize, tables: usize) -> usize {
        let &Self { d_v, context, .. } = self;
        let layer = 4 * context * d_v + 3 * context + 4 * d_v * self.d_ff;
        self.rank * (6 * self.d_k * d_v * keys + tables + self.n_layer * layer)
    }
}

/// Sizes that determine the cost of a transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerShape {
    /// Number of layers, L.
    pub n_layer: usize,
    /// Width of the stream, D.
    pub width: usize,
    /// Width of the feed-forward network, D_FF.
    pub d_ff: usize,
    /// Number of attention heads, H.
    pub n_head: usize,
    /// Width of a head, D_h.
    pub d_head: usize,
    /// Number of token ids, V.
    pub vocab_size: usize,
    /// Number of tokens in a sequence, N.
    pub context: usize,
}

impl TransformerShape {
    /// Returns the number of parameters as printed in Table 7, D(L(4 H D_h + 2 D_FF) + V): one token table and no
    /// positions.
    pub fn params_as_printed(&self) -> usize {
        self.layer_params() + self.width * self.vocab_size
    }

    /// Returns the number of parameters with learned positions and an untied unembedding, D(L(4 H D_h + 2 D_FF) + 2V +
    /// N). The sizes in Table 8 follow from this formula.
    pub fn params_counted(&self) -> usize {
        self.layer_params() + self.width * (2 * self.vocab_size + self.context)
    }

    /// Returns the number of bytes needed to generate N tokens in single precision (section 4.2): the weights, the keys
    /// and values of attention in all layers, 2 L N H D_h numbers, and one residual stream, N D numbers.
    pub fn inference_bytes(&self) -> usize {
        let cache = 2 * self.n_layer * self.context * self.n_head * self.d_head;
        4 * (self.params_counted() + cache + self.context * self.width)
    }

    /// Returns the number of parameters of all layers, L D(4 H D_h + 2 D_FF). The models of Table 8 train on 20 tokens
    /// for each of these parameters.
    pub fn layer_params(&self) -> usize {
        self.n_layer * self.width * (4 * self.n_head * self.d_head + 2 * self.d_ff)
    }

    /// Returns the FLOPs as printed in Table 7, 4(V + L D(2 D_h H + D_FF) + L(N D_h H + ¾ N H)). In this formula and in
    /// the totals that the paper reports, V lacks its factor D.
    pub fn flops_as_printed(&self) -> usize {
        self.flops(self.vocab_size)
    }

    /// Returns the FLOPs with V D instead of the V of Table 7, for the products with the token table and the
    /// unembedding.
    pub fn flops_counted(&self) -> usize {
        self.flops(self.vocab_size * self.width)
    }

    /// Computes 4(`tables` + L D(2 D_h H + D_FF) + L(N D_h H + ¾ N H)).
    fn flops(&self, tables: usize) -> usize {
        let heads = self.n_head * self.d_head;
        let projections = 4 * self.width * (2 * heads + self.d_ff);
        let scores = self.context * (4 * heads + 3 * self.n_head);
        4 * tables + self.n_layer * (projections + scores)
    }
}

/// Returns the FLOPs of training on `tokens` tokens with `forward` FLOPs per token. The backward pass counts as two
/// forward passes (Appendix A).
pub fn training_flops(forward: usize, tokens: f64) -> f64 {
    3.0 * forward as f64 * tokens
}

/// Ratios by which a linear operation changes variances. A ratio of 1 keeps the variance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VarianceRatios {
    /// The variance of the output over the variance of the input, σ²_{x_out} / σ²_{x_in}.
    pub forward: f64,
    /// The variance of the input's gradient over the variance of the output's gradient, σ²_{g_in} / σ²_{g_out}.
    pub backward: f64,
}

/// Returns the ratios of Table 2: the expressions of Table 1, fan_in · σ_w² forward and fan_out · σ_w² backward, for
/// means of zero and Xavier's σ_w² = 2 / (fan_in + fan_out).
///
/// For storage in an RMT, `fan_in` is R and `fan_out` is D_k. For the retrieval of n vectors, they are D_k and n.
/// Attention retrieves n = 3R vectors (for Q, K and V), and the feed-forward network n = R. For retrieval and storage
/// in the feed-forward network, the paper prints ratios of 1, which would require D_k = R.
pub fn variance_ratios(fan_in: usize, fan_out: usize) -> VarianceRatios {
    let variance = 2.0 / (fan_in + fan_out) as f64;
    VarianceRatios {
        forward: fan_in as f64 * variance,
        backward: fan_out as f64 * variance,
    }
}
