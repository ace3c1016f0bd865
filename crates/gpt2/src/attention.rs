//! The attention branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, LayerNorm, Linear};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::{KvCache, causal_attention, merge_heads, split_heads};
use residual_zoo_core::{Branch, linear};

use crate::Gpt2Config;

/// f(x) = attention(norm(x)), `n_head` heads of width `width / n_head`.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    norm: LayerNorm<B>,
    /// `[width, 3 · width]`: queries, keys and values side by side.
    qkv: Linear<B>,
    proj: Linear<B>,
    attention_dropout: Dropout,
    dropout: Dropout,
    n_head: usize,
    scale: f64,
}

impl<B: Backend> Attention<B> {
    pub(crate) fn new(config: &Gpt2Config, layer: usize, device: &B::Device) -> Self {
        let &Gpt2Config {
            width,
            n_head,
            bias,
            init_std,
            ..
        } = config;
        let scale = ((width / n_head) as f64).powf(-0.5);
        let layer_scale = if config.inverse_layer_scale {
            (layer + 1) as f64
        } else {
            1.0
        };
        Self {
            norm: config.norm(device),
            qkv: linear(width, 3 * width, bias, init_std, device),
            proj: linear(width, width, bias, config.projection_std(), device),
            attention_dropout: DropoutConfig::new(config.dropout).init(),
            dropout: DropoutConfig::new(config.dropout).init(),
            n_head,
            scale: scale / layer_scale,
        }
    }
}

impl<B: Backend> Branch<B> for Attention<B> {
    type Cache = KvCache<B>;

    fn new_cache(&self) -> KvCache<B> {
        KvCache::default()
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut KvCache<B>>) -> Tensor<B, 3> {
        let width = x.dims()[2];
        let qkv = self.qkv.forward(self.norm.forward(x));
        let part = |i| split_heads(qkv.clone().narrow(2, i * width, width), self.n_head);
        let [q, k, v] = [0, 1, 2].map(part);
        let [k, v] = KvCache::extend(cache, k, v);
        let y = causal_attention(q, k, v, self.scale, None, &self.attention_dropout);
        self.dropout.forward(self.proj.forward(merge_heads(y)))
    }
}
