//! The attention branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::{DotAttention, KvCache, merge_heads, split_heads};
use residual_zoo_core::unit::{UnitColumns, UnitRows};
use residual_zoo_core::{Branch, Change, Frame, Heads, QkvInput};

use crate::{Factor, NgptConfig, NgptPositions, step_towards, unit};

/// The branch f, for which h + f(h) = N(N(h) + |α| (N(attention(h)) − N(h))).
///
/// attention(h) = y · W_proj, where y has the outputs of the heads side by side. The output of a head of width d is
/// softmax(√d q kᵀ + mask) v, with q = s_qk N(rotate(h · W_q)), k = s_qk N(rotate(h · W_k)) and v = h · W_v.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    /// α, `[width]`.
    pub(crate) alpha: Factor<B>,
    /// `[width, width]`.
    q: UnitColumns<B>,
    /// `[width, width]`.
    k: UnitColumns<B>,
    /// `[width, width]`.
    v: UnitColumns<B>,
    /// s_qk, `[width]`: one number for each coordinate of each head.
    qk_scale: Factor<B>,
    /// `[width, width]`.
    proj: UnitRows<B>,
    positions: NgptPositions,
    base: f64,
    heads: DotAttention,
    dropout: Dropout,
    n_head: usize,
}

impl<B: Backend> Attention<B> {
    pub(crate) fn new(config: &NgptConfig, frame: &Frame, device: &B::Device) -> Self {
        let &NgptConfig { width, n_head, .. } = config;
        let read = || UnitColumns::new(width, width, config.std(), device);
        let scale = (config.head_dim() as f64).sqrt();
        Self {
            alpha: config.alpha(device),
            q: read(),
            k: read(),
            v: read(),
            qk_scale: Factor::new(width, 1.0, config.std(), device),
            proj: UnitRows::new(width, width, config.std_of_output(), device),
            positions: config.positions,
            base: config.rotary_base,
            heads: DotAttention {
                causal: frame.causal(),
                dropout: config.dropout,
                ..DotAttention::new(scale, config.context)
            },
            dropout: DropoutConfig::new(config.dropout).init(),
            n_head,
        }
    }

    /// Returns attention(h) `[batch, time, width]`. `change` replaces q, k and v before q and k get their positions and
    /// norms.
    pub(crate) fn attention(
        &self,
        h: Tensor<B, 3>,
        change: Change<'_, B>,
        cache: Option<&mut KvCache<B>>,
    ) -> Tensor<B, 3> {
        let seen = KvCache::seen(&cache);
        let heads = |w: &UnitColumns<B>| split_heads(w.forward(h.clone()), self.n_head);
        let qkv = [&self.q, &self.k, &self.v].map(heads);
        let [q, k, v] = change(Heads::new(h.into(), qkv)).qkv();
        let [_, n_head, _, d] = q.dims();
        let s_qk = self.qk_scale.value().reshape([1, n_head, 1, d]);
        let [q, k] = [q, k].map(|x| {
            let x = self.positions.encode(self.base, x, &seen);
            unit(x) * s_qk.clone()
        });
        let y = self.heads.forward([q, k, v], cache);
        self.dropout.forward(self.proj.forward(merge_heads(y)))
    }
}

impl<B: Backend> Branch<B> for Attention<B> {
    type Cache = KvCache<B>;

    fn new_cache(&self) -> Self::Cache {
        self.heads.new_cache()
    }

    fn forward(&self, h: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        self.residual(h.clone(), cache) - h
    }

    fn residual(&self, h: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        let y = self.attention(h.clone(), &mut |heads| heads, cache);
        step_towards(h, &self.alpha, y)
    }

    fn attend(
        &self,
        h: QkvInput<B>,
        change: Change<'_, B>,
        cache: Option<&mut Self::Cache>,
    ) -> Tensor<B, 3> {
        // f(h) is a step from h towards attention(h), so q, k and v cannot have separate inputs.
        let h = h.same();
        let y = self.attention(h.clone(), change, cache);
        step_towards(h.clone(), &self.alpha, y) - h
    }
}
