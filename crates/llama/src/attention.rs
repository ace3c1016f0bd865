//! The attention branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::{DotAttention, KvCache, merge_heads, split_heads};
use residual_zoo_core::{
    Branch, Change, Frame, Heads, Linear, Norm, Norms, Past, QkvInput, Rotary, widen,
};

use crate::init::Matrix;
use crate::{Biases, Canon, Gate, LlamaConfig, QkNorm};

/// f(x) = attention(norm(x)), or with norms in other places. Each of K key-value heads serves H / K query heads.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    norms: Norms<B>,
    canon_a: Option<Canon<B>>,
    /// `[width, H · d]`.
    q: Linear<B>,
    /// `[width, K · d]`.
    k: Linear<B>,
    /// `[width, K · d]`; `None` if a connection gives the values.
    v: Option<Linear<B>>,
    q_norm: Norm<B>,
    k_norm: Norm<B>,
    canon_b: Option<Canon<B>>,
    /// `[width, H]`, or `[width, H · d]`.
    gate: Option<Linear<B>>,
    /// `[H · d, width]`.
    proj: Linear<B>,
    rotary: Rotary,
    heads: DotAttention,
    dropout: Dropout,
    n_head: usize,
    n_kv_head: usize,
    /// Whether the norms of q and k are over all heads together.
    norm_of_all: bool,
    norm_late: bool,
    /// The multiplier of q and k.
    qk_scale: f64,
}

impl<B: Backend> Attention<B> {
    pub(crate) fn new(
        config: &LlamaConfig,
        layer: usize,
        frame: &Frame,
        device: &B::Device,
    ) -> Self {
        let &LlamaConfig { width, n_head, .. } = config;
        let (n_kv_head, d) = (config.n_kv_head(), config.head_dim());
        let (of_q, of_kv) = (n_head * d, n_kv_head * d);
        let read =
            |d_out, bias, scale| config.linear(Matrix::Read, [width, d_out], bias, scale, device);
        let norm = |features| match config.qk_norm_over(features) {
            Some(features) => config.qk_norm_design().build(features, device),
            None => Norm::identity(),
        };
        let unit = match config.qk_norm {
            // x / |x| is the RMS norm divided by √d.
            Some(QkNorm::Unit) => (d as f64).powf(-0.5),
            _ => 1.0,
        };
        let parts = if frame.own_values { 2 } else { 1 };
        let scale = config.attention_scale.unwrap_or((d as f64).powf(-0.5));
        Self {
            norms: config.norms(frame, device),
            canon_a: config.canon_at('A', width, device),
            q: read(of_q, config.bias != Biases::None, 1.0),
            k: read(of_kv, config.bias != Biases::None, 1.0),
            v: frame
                .own_values
                .then(|| read(of_kv, config.bias == Biases::Qkv, frame.inner)),
            q_norm: norm(of_q),
            k_norm: norm(of_kv),
            canon_b: config.canon_at('B', of_q + parts * of_kv, device),
            gate: config.gate.map(|gate| match gate {
                Gate::PerHead => read(n_head, config.bias == Biases::Qkv, 1.0),
                Gate::PerCoordinate => read(of_q, config.bias == Biases::Qkv, 1.0),
            }),
            proj: config.linear(
                Matrix::Proj,
                [of_q, width],
                config.proj_bias,
                frame.output * config.depth_scale(frame),
                device,
            ),
            rotary: config.rotary,
            heads: DotAttention {
                causal: frame.causal(),
                cap: config.attention_cap,
                window: config.window(layer),
                dropout: config.dropout,
                ..DotAttention::new(scale, config.context)
            },
            dropout: DropoutConfig::new(config.dropout).init(),
            n_head,
            n_kv_head,
            norm_of_all: config.qk_norm == Some(QkNorm::All),
            norm_late: config.qk_norm_late,
            qk_scale: config.qk_scale * unit,
        }
    }

    /// Computes u = norm(x), followed by Canon A if the attention has it.
    fn u(&self, x: QkvInput<B>, past: Option<&mut Past<B>>) -> QkvInput<B> {
        let u = x.map(|x| self.norms.before(x));
        let Some(canon) = &self.canon_a else { return u };
        match u {
            QkvInput::Same(u) => canon.forward(u, past).into(),
            QkvInput::Each(each) => {
                let width = each[0].dims()[2];
                let all = canon.forward(Tensor::cat(each.into(), 2), past);
                [0, 1, 2]
                    .map(|i| all.clone().narrow(2, i * width, width))
                    .into()
            }
        }
    }

    /// Computes q of H heads, and k and v of K heads, from u. Without a value projection, v is k until `change`
    /// replaces v.
    fn qkv(
        &self,
        u: QkvInput<B>,
        change: Change<'_, B>,
        kv: &Option<&mut KvCache<B>>,
        past: Option<&mut Past<B>>,
    ) -> [Tensor<B, 4>; 3] {
        let [of_q, of_k, of_v] = u.clone().each();
        let (mut q, mut k) = (self.q.forward(of_q), self.k.forward(of_k));
        let mut v = self.v.as_ref().map(|v| v.forward(of_v));
        if self.norm_of_all {
            (q, k) = (self.q_norm.forward(q), self.k_norm.forward(k));
        }
        if let Some(canon) = &self.canon_b {
            let [of_q, of_kv] = [q.dims()[2], k.dims()[2]];
            let parts = [Some(q), Some(k), v.take()].into_iter().flatten();
            let all = canon.forward(Tensor::cat(parts.map(widen).collect(), 2), past);
            let part = |from, count| all.clone().narrow(2, from, count);
            (q, k) = (part(0, of_q), part(of_q, of_kv));
            v = self.v.as_ref().map(|_| part(of_q + of_kv, of_kv));
        }
        let q = split_heads(q, self.n_head);
        let k = split_heads(k, self.n_kv_head);
        let v = v.map_or_else(|| k.clone(), |v| split_heads(v, self.n_kv_head));
        let [q, k, v] = change(Heads::new(u, [q, k, v])).qkv();
        let seen = KvCache::seen(kv);
        let turned = |x, norm: &Norm<B>| {
            let x = match self.norm_of_all {
                true => self.rotary.turn(x, &seen),
                false if self.norm_late => norm.forward(self.rotary.turn(x, &seen)),
                false => self.rotary.turn(norm.forward(x), &seen),
            };
            match self.qk_scale == 1.0 {
                true => x,
                false => x * self.qk_scale,
            }
        };
        [turned(q, &self.q_norm), turned(k, &self.k_norm), v]
    }

    /// Computes f(x), except for a norm of the sum. A gate reads the u of the queries.
    fn sum_of_heads(
        &self,
        x: QkvInput<B>,
        change: Change<'_, B>,
        cache: Option<&mut <Self as Branch<B>>::Cache>,
    ) -> Tensor<B, 3> {
        let (kv, past) = cache.map(|(kv, past)| (kv, past)).unzip();
        let (a, b) = past.map(|(a, b)| (a, b)).unzip();
        let u = self.u(x, a);
        let qkv = self.qkv(u.clone(), change, &kv, b);
        let mut y = self.heads.forward(qkv, kv);
        if let Some(gate) = &self.gate {
            let [u, ..] = u.each();
            let gate = sigmoid(widen(gate.forward(u)));
            // The gate has one number per head, or one per coordinate.
            y = widen(y) * split_heads(gate, self.n_head);
        }
        let y = self.norms.behind(self.proj.forward(merge_heads(y)));
        self.dropout.forward(y)
    }
}

impl<B: Backend> Branch<B> for Attention<B> {
    /// Keys and values, and the cached inputs of Canon A and B.
    type Cache = (KvCache<B>, (Past<B>, Past<B>));

    fn new_cache(&self) -> Self::Cache {
        (self.heads.new_cache(), Default::default())
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        self.attend(x.into(), &mut |heads| heads, cache)
    }

    fn residual(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        let y = self.sum_of_heads(x.clone().into(), &mut |heads| heads, cache);
        self.norms.sum(x, y)
    }

    fn attend(
        &self,
        x: QkvInput<B>,
        change: Change<'_, B>,
        cache: Option<&mut Self::Cache>,
    ) -> Tensor<B, 3> {
        match self.norms.of_sum() {
            true => {
                let x = x.same();
                let y = self.sum_of_heads(x.clone().into(), change, cache);
                self.norms.branch(x, y)
            }
            false => self.sum_of_heads(x, change, cache),
        }
    }
}
