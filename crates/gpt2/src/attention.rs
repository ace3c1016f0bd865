//! The attention branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::{DotAttention, KvCache, merge_heads, split_heads, unpack};
use residual_zoo_core::{Branch, Frame, Linear, Norm, linear};

use crate::Gpt2Config;

/// f(x) = attention(norm(x)), with `n_head` heads of width `width / n_head`.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    norm: Norm<B>,
    /// `[width, 3 · width]`: queries, keys and values side by side.
    qkv: Linear<B>,
    proj: Linear<B>,
    heads: DotAttention,
    dropout: Dropout,
    n_head: usize,
}

impl<B: Backend> Attention<B> {
    pub(crate) fn new(
        config: &Gpt2Config,
        layer: usize,
        frame: &Frame,
        device: &B::Device,
    ) -> Self {
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
        let mut qkv = linear(width, 3 * width, bias, config.weight_std(width), device);
        if frame.inner != 1.0 {
            qkv.weight = qkv.weight.map(|qkv| {
                let [qk, v] = [(0, 2 * width), (2 * width, width)]
                    .map(|(from, count)| qkv.clone().narrow(1, from, count));
                // A parameter must be a leaf of the graph.
                Tensor::cat(vec![qk, v * frame.inner], 1)
                    .detach()
                    .require_grad()
            });
        }
        let projection_std = config.projection_std(width, frame);
        Self {
            norm: config.norm(frame, device),
            qkv,
            proj: linear(width, width, bias, projection_std, device),
            heads: DotAttention {
                causal: frame.causal(),
                dropout: config.dropout,
                ..DotAttention::new(scale / layer_scale, config.context)
            },
            dropout: DropoutConfig::new(config.dropout).init(),
            n_head,
        }
    }

    /// Computes queries, keys and values side by side, `[batch, 3 · heads, time, d]`.
    fn qkv(&self, x: Tensor<B, 3>) -> Tensor<B, 4> {
        split_heads(self.qkv.forward(self.norm.forward(x)), 3 * self.n_head)
    }

    /// Projects the output of the heads `[batch, heads, time, d]` to the stream.
    fn output(&self, heads: Tensor<B, 4>) -> Tensor<B, 3> {
        self.dropout.forward(self.proj.forward(merge_heads(heads)))
    }
}

impl<B: Backend> Branch<B> for Attention<B> {
    type Cache = KvCache<B>;

    fn new_cache(&self) -> KvCache<B> {
        self.heads.new_cache()
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut KvCache<B>>) -> Tensor<B, 3> {
        self.output(self.heads.packed(self.qkv(x), cache))
    }

    fn with_values(
        &self,
        x: Tensor<B, 3>,
        change: &mut dyn FnMut(Tensor<B, 4>) -> Tensor<B, 4>,
        cache: Option<&mut KvCache<B>>,
    ) -> Tensor<B, 3> {
        let [q, k, v] = unpack(self.qkv(x));
        self.output(self.heads.forward([q, k, change(v)], cache))
    }
}
