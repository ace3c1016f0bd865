//! The attention branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::{DotAttention, KvCache, merge_heads, split_heads};
use residual_zoo_core::{Branch, Change, Frame, Heads, Linear, Norm, QkvInput, linear};

use crate::Gpt2Config;

/// f(x) = attention(norm(x)), with `n_head` heads of width `width / n_head`.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    norm: Norm<B>,
    /// `[width, 3 · width]`: queries, keys and values side by side. Without `own_values`, `[width, 2 · width]`.
    qkv: Linear<B>,
    own_values: bool,
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
        let parts = if frame.own_values { 3 } else { 2 };
        let mut qkv = linear(width, parts * width, bias, config.weight_std(width), device);
        if frame.inner != 1.0 && frame.own_values {
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
            own_values: frame.own_values,
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

    /// Computes q, k and v, `[batch, heads, time, d]` each, from u = norm(x). Without `own_values`, v is k.
    fn heads(&self, u: &QkvInput<B>) -> [Tensor<B, 4>; 3] {
        let own = |part: &dyn Fn(usize) -> Tensor<B, 4>| {
            let (q, k) = (part(0), part(1));
            let v = if self.own_values { part(2) } else { k.clone() };
            [q, k, v]
        };
        match u {
            QkvInput::Same(u) => {
                let (width, qkv) = (u.dims()[2], self.qkv.forward(u.clone()));
                own(&|i| split_heads(qkv.clone().narrow(2, i * width, width), self.n_head))
            }
            QkvInput::Each(each) => own(&|i| {
                let width = each[i].dims()[2];
                let columns = i * width..(i + 1) * width;
                let part = self.qkv.forward_columns(each[i].clone(), columns);
                split_heads(part, self.n_head)
            }),
        }
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
        if !self.own_values {
            return self.attend(x.into(), &mut |heads| heads, cache);
        }
        let qkv = split_heads(self.qkv.forward(self.norm.forward(x)), 3 * self.n_head);
        self.output(self.heads.packed(qkv, cache))
    }

    fn attend(
        &self,
        x: QkvInput<B>,
        change: Change<'_, B>,
        cache: Option<&mut KvCache<B>>,
    ) -> Tensor<B, 3> {
        let u = x.map(|x| self.norm.forward(x));
        let qkv = self.heads(&u);
        let qkv = change(Heads::new(u, qkv)).qkv();
        self.output(self.heads.forward(qkv, cache))
    }
}
