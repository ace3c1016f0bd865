//! The attention branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::{DotAttention, KvCache, merge_heads, split_heads};
use residual_zoo_core::{Branch, Change, Frame, Heads, Norm, QkvInput, Rotary, Seen};

use crate::{Pattention, TokenFormerConfig};

/// MHA(LN(X)) (eqs. 8-10), with `n_head` heads of width `width / n_head`.
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
    fn qkv(&self, x: QkvInput<B>, change: Change<'_, B>, seen: &Seen) -> [Tensor<B, 4>; 3] {
        let u = x.map(|x| self.norm.forward(x));
        let [of_q, of_k, of_v] = u.clone().each();
        let heads = |pattention: &Pattention<B>, u| split_heads(pattention.forward(u), self.n_head);
        let qkv = [
            heads(&self.q, of_q),
            heads(&self.k, of_k),
            heads(&self.v, of_v),
        ];
        let [q, k, v] = change(Heads::new(u, qkv)).qkv();
        [self.rotary.turn(q, seen), self.rotary.turn(k, seen), v]
    }
}

impl<B: Backend> Branch<B> for Attention<B> {
    type Cache = KvCache<B>;

    fn new_cache(&self) -> KvCache<B> {
        self.heads.new_cache()
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut KvCache<B>>) -> Tensor<B, 3> {
        self.attend(x.into(), &mut |heads| heads, cache)
    }

    fn attend(
        &self,
        x: QkvInput<B>,
        change: Change<'_, B>,
        cache: Option<&mut KvCache<B>>,
    ) -> Tensor<B, 3> {
        let qkv = self.qkv(x, change, &KvCache::seen(&cache));
        // Token-token attention in each head (eq. 9), then the output (eq. 10).
        let x_att = self.heads.forward(qkv, cache);
        self.dropout.forward(self.o.forward(merge_heads(x_att)))
    }
}
