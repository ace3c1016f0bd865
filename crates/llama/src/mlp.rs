//! The feed-forward branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Activation, Branch, Frame, Linear, Norms, Past};

use crate::init::Matrix;
use crate::{Canon, LlamaConfig};

/// f(x) = (act(u · W_gate) ⊙ (u · W_fc)) · W_proj with u = norm(x); without a gate, act(u · W_fc) · W_proj. The norms
/// can be in other places.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    norms: Norms<B>,
    canon_c: Option<Canon<B>>,
    gate: Option<Linear<B>>,
    fc: Linear<B>,
    canon_d: Option<Canon<B>>,
    proj: Linear<B>,
    dropout: Dropout,
    activation: Activation,
}

impl<B: Backend> Mlp<B> {
    pub(crate) fn new(config: &LlamaConfig, frame: &Frame, device: &B::Device) -> Self {
        let &LlamaConfig {
            width, mlp_bias, ..
        } = config;
        let d_ff = config.d_ff();
        let linear = |matrix, sizes, scale| config.linear(matrix, sizes, mlp_bias, scale, device);
        let by_depth = config.depth_scale(frame);
        Self {
            norms: config.norms(frame, device),
            canon_c: config.canon_at('C', width, device),
            gate: config
                .gated
                .then(|| linear(Matrix::Gate, [width, d_ff], 1.0)),
            fc: linear(Matrix::Fc, [width, d_ff], frame.inner * by_depth),
            canon_d: config.canon_at('D', config.hidden(), device),
            proj: linear(Matrix::Proj, [d_ff, width], frame.output * by_depth),
            dropout: DropoutConfig::new(config.dropout).init(),
            activation: config.activation,
        }
    }

    /// Computes f(x), except for a norm of the sum.
    fn map_features(
        &self,
        x: Tensor<B, 3>,
        cache: Option<&mut <Self as Branch<B>>::Cache>,
    ) -> Tensor<B, 3> {
        let (c, d) = cache.map(|(c, d)| (c, d)).unzip();
        let canon = |canon: &Option<Canon<B>>, z, past| match canon {
            Some(canon) => canon.forward(z, past),
            None => z,
        };
        let u = canon(&self.canon_c, self.norms.before(x), c);
        let fc = self.fc.forward(u.clone());
        let hidden = match (&self.gate, &self.canon_d) {
            (None, _) => self.activation.apply(canon(&self.canon_d, fc, d)),
            (Some(gate), None) => self.activation.apply(gate.forward(u)) * fc,
            (Some(gate), Some(canon)) => {
                let d_ff = fc.dims()[2];
                let both = Tensor::cat(vec![gate.forward(u), fc], 2);
                let both = canon.forward(both, d);
                let [gate, fc] = [0, d_ff].map(|from| both.clone().narrow(2, from, d_ff));
                self.activation.apply(gate) * fc
            }
        };
        let y = self.norms.behind(self.proj.forward(hidden));
        self.dropout.forward(y)
    }
}

impl<B: Backend> Branch<B> for Mlp<B> {
    /// The cached inputs of Canon C and D.
    type Cache = (Past<B>, Past<B>);

    fn new_cache(&self) -> Self::Cache {
        Default::default()
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        let y = self.map_features(x.clone(), cache);
        self.norms.branch(x, y)
    }

    fn residual(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        let y = self.map_features(x.clone(), cache);
        self.norms.sum(x, y)
    }
}
