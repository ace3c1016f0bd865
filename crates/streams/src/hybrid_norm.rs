//! HybridNorm (Zhuo et al., "HybridNorm: towards stable and efficient transformer training via hybrid normalization",
//! 2025, <https://arxiv.org/abs/2503.04598>). N is a norm; MHA and MLP are the branches without their norms:
//!
//! ```text
//! y = x + MHA(x),  each head of which reads RMS_q(q), RMS_k(k), RMS_v(v)
//! u = N(y)
//! x' = u + MLP(u)
//! ```
//!
//! HybridNorm* begins with a pre-norm layer: y = x + MHA(N(x)) and x' = y + MLP(N(y)). In this layer too, the heads
//! have their norms. The final norm stays.

use burn::module::Module;
use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Frame, Heads, Norm, NormDesign, Plain,
    QkvInput, RmsScale, Sites, Stream, check, widen,
};
use serde::{Deserialize, Serialize};

use crate::qkv_norms::QkvNorms;

/// A residual with the norms of HybridNorm.
#[derive(Module, Debug)]
pub struct HybridNorm<B: Backend> {
    /// N; the identity before attention, except in a pre-norm layer.
    norm: Norm<B>,
    /// RMS_q, RMS_k and RMS_v, if the branch is attention.
    heads: Option<QkvNorms<B>>,
    /// Whether f(u) is added to u, rather than to the stream before N.
    from_norm: bool,
}

impl<B: Backend> Connection<B> for HybridNorm<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x = stream.x;
        stream.x = match &self.heads {
            Some(norms) => {
                let before = |x: QkvInput<B>| x.map(|x| self.norm.forward(x));
                let normed = |heads: Heads<B>| {
                    let u = heads.u.clone();
                    let [q, k, v] = norms.forward(heads.qkv().map(widen));
                    Heads { u, q, k, v }
                };
                f.attend_normed(x.clone(), before, normed) + x
            }
            None if self.from_norm => f.plus(self.norm.forward(x)),
            None => f.of_normed(x.clone(), |x| self.norm.forward(x)) + x,
        };
        stream
    }
}

/// The config of [`HybridNorm`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HybridNormConfig {
    /// Whether the first layer of the stream has pre-norms: HybridNorm*.
    pub first_pre: bool,
    /// The kind of N. The norms of the authors' code have a scale and no shift. The default is GPT-2's norm; for an
    /// architecture with RMS norms, write `Rms(scale: Scale, eps: 1e-5)`.
    pub norm: NormDesign,
    /// ε of the query, key and value norms, added to the mean square.
    pub norm_eps: f64,
}

impl Default for HybridNormConfig {
    fn default() -> Self {
        Self {
            first_pre: false,
            norm: NormDesign::default(),
            norm_eps: 1e-5,
        }
    }
}

impl HybridNormConfig {
    /// Whether connection `i` is in a pre-norm layer.
    fn is_pre(&self, on: &Sites, i: usize) -> bool {
        self.first_pre && on.layer(i) == 0
    }

    /// Returns the kind of the query, key and value norms.
    fn of_heads(&self) -> NormDesign {
        NormDesign::Rms {
            scale: RmsScale::Scale,
            eps: self.norm_eps,
        }
    }
}

impl Design for HybridNormConfig {
    type Connection<B: Backend> = HybridNorm<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        match self.first_pre {
            true => "HybridNorm*",
            false => "HybridNorm",
        }
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        on.need_sublayers("HybridNorm", "it takes the norms out of sublayers")?;
        on.need_attention("HybridNorm", "it normalises queries, keys and values")?;
        if on.mixed {
            return Err(ConfigError::new(
                "HybridNorm",
                "needs one entry in `layers`; heads of several entries need not have the same width",
            ));
        }
        if self.first_pre {
            on.need_depth("first_pre", "only the first layer has pre-norms")?;
        }
        self.norm.validate()?;
        check::positive("norm_eps", self.norm_eps)
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            pre_norm: false,
            ..Frame::default()
        }
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> HybridNorm<B> {
        let attention = on.attention.filter(|_| on.is_attention(i));
        let is_pre = self.is_pre(on, i);
        HybridNorm {
            norm: match is_pre || attention.is_none() {
                true => self.norm.build(on.width, device),
                false => Norm::identity(),
            },
            heads: attention.map(|size| QkvNorms::new(self.of_heads(), size.d, device)),
            from_norm: !is_pre,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        let d = on.attention.map_or(0, |attention| attention.d);
        let (layers, norm) = (on.layers(), self.norm.cost(on.width));
        let first = match self.first_pre {
            true => norm,
            false => Cost::default(),
        };
        self.of_heads().cost(d) * 3 * layers + norm * (on.count - layers) + first
    }
}
