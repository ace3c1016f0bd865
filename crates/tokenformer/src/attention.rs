//! The attention branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, LayerNorm};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::Branch;
use residual_zoo_core::ops::attention::{KvCache, causal_attention, merge_heads, split_heads};
use residual_zoo_core::ops::norm::normalise;

use crate::rotary::rotate;
use crate::{Pattention, TokenFormerConfig};

/// MHA(LN(X)) (eqs. 8-10), `n_head` heads of width `width / n_head`.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    norm: Option<LayerNorm<B>>,
    q: Pattention<B>,
    k: Pattention<B>,
    v: Pattention<B>,
    o: Pattention<B>,
    attention_dropout: Dropout,
    dropout: Dropout,
    n_head: usize,
    /// Number of coordinates of a head that positions rotate.
    rotated: usize,
    norm_eps: f64,
}

impl<B: Backend> Attention<B> {
    pub(crate) fn new(config: &TokenFormerConfig, device: &B::Device) -> Self {
        let pattention = |std| {
            let (n, tau) = (config.n_attn(), config.tau().attn);
            Pattention::new(config, n, tau, std, device)
        };
        Self {
            norm: config
                .norm_params
                .layer_norm(config.width, config.norm_eps, device),
            q: pattention(config.init_std()),
            k: pattention(config.init_std()),
            v: pattention(config.init_std()),
            o: pattention(config.projection_std()),
            attention_dropout: DropoutConfig::new(config.dropout).init(),
            dropout: DropoutConfig::new(config.dropout).init(),
            n_head: config.n_head,
            rotated: config.rotated(),
            norm_eps: config.norm_eps,
        }
    }

    /// Q, K, V (eq. 8), `[batch, heads, time, d]` each, for tokens that follow `seen` earlier ones.
    fn qkv(&self, x: Tensor<B, 3>, seen: usize) -> [Tensor<B, 4>; 3] {
        let x = normalise(&self.norm, x, self.norm_eps);
        let [q, k, v] = [&self.q, &self.k, &self.v]
            .map(|pattention| split_heads(pattention.forward(x.clone()), self.n_head));
        if self.rotated == 0 {
            return [q, k, v];
        }
        [
            rotate(q, self.rotated, seen),
            rotate(k, self.rotated, seen),
            v,
        ]
    }
}

impl<B: Backend> Branch<B> for Attention<B> {
    type Cache = KvCache<B>;

    fn new_cache(&self) -> KvCache<B> {
        KvCache::default()
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut KvCache<B>>) -> Tensor<B, 3> {
        let [q, k, v] = self.qkv(x, KvCache::seen(&cache));
        let scale = (q.dims()[3] as f64).powf(-0.5);
        let [k, v] = KvCache::extend(cache, k, v);
        // Token-token attention in each head (eq. 9), then the output (eq. 10).
        let x_att = causal_attention(q, k, v, scale, None, &self.attention_dropout);
        self.dropout.forward(self.o.forward(merge_heads(x_att)))
    }
}
