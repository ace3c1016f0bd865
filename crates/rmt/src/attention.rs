//! The attention branch.

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::{DotAttention, KvCache, unpack};
use residual_zoo_core::{Branch, Change, Frame, Heads, Norm, QkvInput};

use crate::memory::{retrieve_normalised, store};
use crate::{Positions, RmtConfig};

/// MHA(LN(X)) = Σ_h w_O^(h) ⊗ SHA(Q^(h), K^(h), V^(h)) (eqs. 20-22).
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    pub(crate) norm: Norm<B>,
    /// Keys that retrieve the queries, `[R, D_k]`.
    pub(crate) r_q: Param<Tensor<B, 2>>,
    /// Keys that retrieve the attention keys, `[R, D_k]`.
    pub(crate) r_k: Param<Tensor<B, 2>>,
    /// Keys that retrieve the values, `[R, D_k]`.
    pub(crate) r_v: Param<Tensor<B, 2>>,
    /// Keys that store the outputs of the heads, `[R, D_k]`.
    pub(crate) w_o: Param<Tensor<B, 2>>,
    /// SHA of every head (eq. 21). Scores are multiplied by 1/√D_v, or as μP prescribes. With inverse layer scaling
    /// (Appendix C.1), the scores of layer l, counted from 0, are also divided by l + 1.
    pub(crate) heads: DotAttention,
    dropout: Dropout,
}

impl<B: Backend> Attention<B> {
    pub(crate) fn new(config: &RmtConfig, layer: usize, frame: &Frame, device: &B::Device) -> Self {
        let &RmtConfig { rank, d_k, .. } = config;
        let layer_scale = if config.inverse_layer_scale {
            (layer + 1) as f64
        } else {
            1.0
        };
        // Table 2 counts the three retrievals as one retrieval of 3R vectors.
        let retrieval = |gain| config.weight(gain, [rank, d_k], [d_k, 3 * rank], device);
        Self {
            norm: config.branch_norm(frame, device),
            r_q: retrieval(1.0),
            r_k: retrieval(1.0),
            r_v: retrieval(frame.inner),
            w_o: config.output_keys(frame, device),
            heads: DotAttention {
                causal: frame.causal(),
                alibi: config.positions == Positions::Alibi,
                dropout: config.dropout,
                ..DotAttention::new(config.attention_scale() / layer_scale, config.context)
            },
            dropout: DropoutConfig::new(config.dropout).init(),
        }
    }

    /// Computes Q, K, V (eq. 22) of all heads, `[batch, 3 · R, time, D_v]`.
    fn qkv(&self, x: Tensor<B, 3>) -> Tensor<B, 4> {
        let r = Tensor::cat(vec![self.r_q.val(), self.r_k.val(), self.r_v.val()], 0);
        self.retrieved(r, x)
    }

    /// Retrieves a vector for each head from LN(X) by the keys r `[heads, D_k]`. Returns `[batch, heads, time, D_v]`.
    fn retrieved(&self, r: Tensor<B, 2>, x: Tensor<B, 3>) -> Tensor<B, 4> {
        let [batch, time, width] = x.dims();
        let [heads, d_k] = r.dims();
        retrieve_normalised(r, &self.norm, x)
            .reshape([batch, time, width / d_k, heads])
            .permute([0, 3, 1, 2])
    }

    /// Stores the SHA of every head, `[batch, R, time, D_v]` (eq. 20).
    fn output(&self, heads: Tensor<B, 4>) -> Tensor<B, 3> {
        let heads = heads.permute([0, 2, 3, 1]).flatten(2, 3);
        self.dropout.forward(store(self.w_o.val(), heads))
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

    fn attend(
        &self,
        x: QkvInput<B>,
        change: Change<'_, B>,
        cache: Option<&mut KvCache<B>>,
    ) -> Tensor<B, 3> {
        let qkv = match x.clone() {
            QkvInput::Same(x) => unpack(self.qkv(x)),
            QkvInput::Each([of_q, of_k, of_v]) => [
                self.retrieved(self.r_q.val(), of_q),
                self.retrieved(self.r_k.val(), of_k),
                self.retrieved(self.r_v.val(), of_v),
            ],
        };
        // The retrievals above do not keep the normalised X, so this line computes the norm once more.
        let u = x.map(|x| self.norm.forward(x));
        let qkv = change(Heads::new(u, qkv)).qkv();
        self.output(self.heads.forward(qkv, cache))
    }
}
