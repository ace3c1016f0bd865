//! Costs in Table 3 of the TokenFormer paper, as printed and as counted exactly.
//!
//! Parameter counts are for the layers, without embeddings. FLOPs are for all layers on a sequence of T tokens. The
//! table calls them training FLOPs, but 2 per parameter and token is the forward pass alone. The last item of the
//! table, 2 n_vocab d for the unembedding, is per token and not part of the total.

use crate::TokenFormerConfig;

/// Sizes that determine the cost of a TokenFormer's layers. Q, K, V and O have equal numbers of pairs, as in Table 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of layers, n_layer.
    pub n_layer: usize,
    /// Width of the stream, d_token.
    pub width: usize,
    /// Number of key-value pairs in each of Q, K, V and O: n_q, n_k, n_v and n_o.
    pub n_attn: usize,
    /// Number of key-value pairs in the feed-forward network, n_ff.
    pub n_ffn: usize,
}

impl From<&TokenFormerConfig> for Shape {
    fn from(config: &TokenFormerConfig) -> Self {
        Self {
            n_layer: config.n_layer,
            width: config.width,
            n_attn: config.n_attn(),
            n_ffn: config.n_ffn(),
        }
    }
}

impl Shape {
    /// Returns the number of parameters as printed in Table 3, n_layer d_token (n_q + n_k + n_v + n_o + 2 n_ff). A pair
    /// of Q, K, V or O counts as d_token, a pair of the feed-forward network as 2 d_token.
    pub fn params_as_printed(&self) -> usize {
        self.n_layer * self.width * (4 * self.n_attn + 2 * self.n_ffn)
    }

    /// Returns the number of parameters with 2 d_token for every pair, a key and a value:
    /// 2 n_layer d_token (n_q + n_k + n_v + n_o + n_ff). The sizes in Table 8 follow this count.
    pub fn params_counted(&self) -> usize {
        2 * self.n_layer * self.width * (4 * self.n_attn + self.n_ffn)
    }

    /// Returns the FLOPs on `time` tokens as printed in Table 3, 2 N T + 4 n_layer d_token T², with N =
    /// [`params_as_printed`](Self::params_as_printed). The items of the table have the same sum.
    pub fn flops_as_printed(&self, time: usize) -> usize {
        flops(self.params_as_printed(), self.n_layer, self.width, time)
    }

    /// Returns the FLOPs on `time` tokens, with N = [`params_counted`](Self::params_counted).
    pub fn flops_counted(&self, time: usize) -> usize {
        flops(self.params_counted(), self.n_layer, self.width, time)
    }
}

/// Returns the number of parameters of a transformer with a feed-forward network of width 4 d_model, N = 12 n_layer
/// d_model² (Table 3). The exact count is the same.
pub fn transformer_params(n_layer: usize, width: usize) -> usize {
    12 * n_layer * width * width
}

/// Returns the FLOPs of a transformer on `time` tokens, 2 N T + 4 n_layer d_model T² (Table 3). The exact count is the
/// same.
pub fn transformer_flops(n_layer: usize, width: usize, time: usize) -> usize {
    flops(transformer_params(n_layer, width), n_layer, width, time)
}

/// Returns the FLOPs between tokens and parameters, plus FLOPs between tokens.
fn flops(params: usize, n_layer: usize, width: usize, time: usize) -> usize {
    2 * params * time + 4 * n_layer * width * time * time
}
