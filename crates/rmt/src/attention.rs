//! The attention branch.

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::Branch;
use residual_zoo_core::ops::attention::{KvCache, alibi, causal_attention};

use crate::memory::{retrieve, store, xavier};
use crate::{MatrixNorm, Positions, RmtConfig};

/// MHA(LN(X)) = Σ_h w_O^(h) ⊗ SHA(Q^(h), K^(h), V^(h)) (eqs. 20-22).
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    pub(crate) norm: MatrixNorm<B>,
    /// Keys that retrieve the queries, `[R, D_k]`.
    pub(crate) r_q: Param<Tensor<B, 2>>,
    /// Keys that retrieve the keys of the attention, `[R, D_k]`.
    pub(crate) r_k: Param<Tensor<B, 2>>,
    /// Keys that retrieve the values, `[R, D_k]`.
    pub(crate) r_v: Param<Tensor<B, 2>>,
    /// Keys that store the outputs of the heads, `[R, D_k]`.
    pub(crate) w_o: Param<Tensor<B, 2>>,
    attention_dropout: Dropout,
    dropout: Dropout,
    /// 1/√D_v, divided by l + 1 with inverse layer scaling (Appendix C.1).
    pub(crate) scale: f64,
    pub(crate) alibi: bool,
}

impl<B: Backend> Attention<B> {
    pub(crate) fn new(config: &RmtConfig, layer: usize, device: &B::Device) -> Self {
        let &RmtConfig { rank, d_k, d_v, .. } = config;
        let layer_scale = if config.inverse_layer_scale {
            (layer + 1) as f64
        } else {
            1.0
        };
        // Table 2 counts the three retrievals as one of 3R vectors.
        let retrieval = || xavier([rank, d_k], [d_k, 3 * rank], device);
        Self {
            norm: MatrixNorm::new(config, device),
            r_q: retrieval(),
            r_k: retrieval(),
            r_v: retrieval(),
            w_o: config.output_keys(device),
            attention_dropout: DropoutConfig::new(config.dropout).init(),
            dropout: DropoutConfig::new(config.dropout).init(),
            scale: (d_v as f64).powf(-0.5) / layer_scale,
            alibi: config.positions == Positions::Alibi,
        }
    }

    /// Q, K, V (eq. 22), `[batch, R, time, D_v]` each.
    fn qkv(&self, x: Tensor<B, 3>) -> [Tensor<B, 4>; 3] {
        let [batch, time, width] = x.dims();
        let [rank, d_k] = self.r_q.dims();
        let r = Tensor::cat(vec![self.r_q.val(), self.r_k.val(), self.r_v.val()], 0);
        let qkv = retrieve(r, self.norm.forward(x));
        let qkv = qkv.reshape([batch, time, width / d_k, 3 * rank]);
        let qkv = qkv.permute([0, 3, 1, 2]);
        [0, 1, 2].map(|i| qkv.clone().narrow(1, i * rank, rank))
    }
}

impl<B: Backend> Branch<B> for Attention<B> {
    type Cache = KvCache<B>;

    fn new_cache(&self) -> KvCache<B> {
        KvCache::default()
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut KvCache<B>>) -> Tensor<B, 3> {
        let [q, k, v] = self.qkv(x);
        let (seen, new) = (KvCache::seen(&cache), q.dims()[2]);
        let [k, v] = KvCache::extend(cache, k, v);
        let bias = self
            .alibi
            .then(|| alibi(q.dims()[1], new, seen, &q.device()));
        // SHA (eq. 21) for every head, then storage (eq. 20).
        let heads = causal_attention(q, k, v, self.scale, bias, &self.attention_dropout);
        let heads = heads.permute([0, 2, 3, 1]).flatten(2, 3);
        self.dropout.forward(store(self.w_o.val(), heads))
    }
}
