//! The attention branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::{CausalAttention, KvCache, merge_heads, split_heads};
use residual_zoo_core::{Branch, Linear, Norm, linear};

use crate::Gpt2Config;

/// f(x) = attention(norm(x)), `n_head` heads of width `width / n_head`.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    norm: Norm<B>,
    /// `[width, 3 · width]`: queries, keys and values side by side.
    qkv: Linear<B>,
    proj: Linear<B>,
    heads: CausalAttention,
    dropout: Dropout,
    n_head: usize,
}

impl<B: Backend> Attention<B> {
    pub(crate) fn new(config: &Gpt2Config, layer: usize, device: &B::Device) -> Self {
        let &Gpt2Config {
            width,
            n_head,
            bias,
            ..
        } = config;
        let scale = config.attention_scale();
        let layer_scale = if config.inverse_layer_scale {
            (layer + 1) as f64
        } else {
            1.0
        };
        Self {
            norm: config.norm(device),
            qkv: linear(width, 3 * width, bias, config.weight_std(width), device),
            proj: linear(width, width, bias, config.projection_std(width), device),
            heads: CausalAttention {
                dropout: config.dropout,
                ..CausalAttention::new(scale / layer_scale, config.context)
            },
            dropout: DropoutConfig::new(config.dropout).init(),
            n_head,
        }
    }
}

impl<B: Backend> Branch<B> for Attention<B> {
    type Cache = KvCache<B>;

    fn new_cache(&self) -> KvCache<B> {
        self.heads.new_cache()
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut KvCache<B>>) -> Tensor<B, 3> {
        let qkv = self.qkv.forward(self.norm.forward(x));
        let y = self.heads.packed(split_heads(qkv, 3 * self.n_head), cache);
        self.dropout.forward(self.proj.forward(merge_heads(y)))
    }
}
