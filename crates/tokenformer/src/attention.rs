//! The attention branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::{DotAttention, KvCache, merge_heads, split_heads};
use residual_zoo_core::{Branch, Frame, Norm, Rotary, Seen};

use crate::{Pattention, TokenFormerConfig};

/// MHA(LN(X)) (eqs. 8-10), `n_head` heads of width `width / n_head`.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    norm: Norm<B>,
    q: Pattention<B>,
    k: Pattention<B>,
    v: Pattention<B>,
    o: Pattention<B>,
    heads: DotAttention,
    dropout: Dropout,
    n_head: usize,
    rotary: Rotary,
}

impl<B: Backend> Attention<B> {
    pub(crate) fn new(config: &TokenFormerConfig, frame: &Frame, device: &B::Device) -> Self {
        let (n, tau) = (config.n_attn(), config.tau().attn);
        let added = config.added.map(|added| added.attn);
        let pattention = |std| Pattention::new(config, (n, added), tau, std, device);
        let std = config.values_std(n);
        Self {
            norm: config.norm(frame, device),
            q: pattention(std),
            k: pattention(std),
            v: pattention(std * frame.inner),
            o: pattention(config.output_values_std(n, frame)),
            heads: DotAttention {
                causal: frame.causal(),
                dropout: config.dropout,
                ..DotAttention::new(config.attention_scale(), config.context)
            },
            dropout: DropoutConfig::new(config.dropout).init(),
            n_head: config.n_head,
            rotary: config.rotary(),
        }
    }

    /// Computes Q, K, V (eq. 8), `[batch, heads, time, d]` each, for tokens that follow the positions `seen`.
    fn qkv(&self, x: Tensor<B, 3>, seen: &Seen) -> [Tensor<B, 4>; 3] {
        let x = self.norm.forward(x);
        let [q, k, v] = [&self.q, &self.k, &self.v]
            .map(|pattention| split_heads(pattention.forward(x.clone()), self.n_head));
        [self.rotary.turn(q, seen), self.rotary.turn(k, seen), v]
    }
}

impl<B: Backend> Branch<B> for Attention<B> {
    type Cache = KvCache<B>;

    fn new_cache(&self) -> KvCache<B> {
        self.heads.new_cache()
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut KvCache<B>>) -> Tensor<B, 3> {
        self.with_values(x, &mut |v| v, cache)
    }

    fn with_values(
        &self,
        x: Tensor<B, 3>,
        change: &mut dyn FnMut(Tensor<B, 4>) -> Tensor<B, 4>,
        cache: Option<&mut KvCache<B>>,
    ) -> Tensor<B, 3> {
        let [q, k, v] = self.qkv(x, &KvCache::seen(&cache));
        // Token-token attention in each head (eq. 9), then the output (eq. 10).
        let x_att = self.heads.forward([q, k, change(v)], cache);
        self.dropout.forward(self.o.forward(merge_heads(x_att)))
    }
}
