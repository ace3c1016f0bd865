//! The feed-forward branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::unit::{UnitColumns, UnitRows};
use residual_zoo_core::{Activation, Branch, widen};

use crate::{Factor, NgptConfig, step_towards};

/// The branch f, for which h + f(h) = N(N(h) + |α| (N(mlp(h)) − N(h))).
///
/// mlp(h) = (√D s_u (h · W_fc) ⊙ silu(√D s_v (h · W_gate))) · W_proj.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    /// α, `[width]`.
    pub(crate) alpha: Factor<B>,
    /// `[width, d_ff]`.
    fc: UnitColumns<B>,
    /// s_u, `[d_ff]`.
    fc_scale: Factor<B>,
    /// `[width, d_ff]`.
    gate: UnitColumns<B>,
    /// s_v, `[d_ff]`.
    gate_scale: Factor<B>,
    /// `[d_ff, width]`.
    proj: UnitRows<B>,
    dropout: Dropout,
}

impl<B: Backend> Mlp<B> {
    pub(crate) fn new(config: &NgptConfig, device: &B::Device) -> Self {
        let (width, d_ff) = (config.width, config.d_ff());
        let read = || UnitColumns::new(width, d_ff, config.std(), device);
        let scale = || Factor::new(d_ff, 1.0, 1.0, device);
        Self {
            alpha: config.alpha(device),
            fc: read(),
            fc_scale: scale(),
            gate: read(),
            gate_scale: scale(),
            proj: UnitRows::new(d_ff, width, config.std_of_output(), device),
            dropout: DropoutConfig::new(config.dropout).init(),
        }
    }

    /// Returns mlp(h) `[batch, time, width]`.
    pub(crate) fn mlp(&self, h: Tensor<B, 3>) -> Tensor<B, 3> {
        // A coordinate of h · W has a size of about 1/√D, where silu is almost linear. The factor √D raises this size
        // to about 1.
        let root = (h.dims()[2] as f64).sqrt();
        let scaled = |w: &UnitColumns<B>, s: &Factor<B>| {
            let s = (s.value() * root).unsqueeze();
            widen(w.forward(h.clone())) * s
        };
        let u = scaled(&self.fc, &self.fc_scale);
        let v = scaled(&self.gate, &self.gate_scale);
        let y = self.proj.forward(u * Activation::Silu.apply(v));
        self.dropout.forward(y)
    }
}

impl<B: Backend> Branch<B> for Mlp<B> {
    type Cache = ();

    fn new_cache(&self) {}

    fn forward(&self, h: Tensor<B, 3>, cache: Option<&mut ()>) -> Tensor<B, 3> {
        self.residual(h.clone(), cache) - h
    }

    fn residual(&self, h: Tensor<B, 3>, _: Option<&mut ()>) -> Tensor<B, 3> {
        let y = self.mlp(h.clone());
        step_towards(h, &self.alpha, y)
    }
}
