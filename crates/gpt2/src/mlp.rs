//! The feed-forward branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Activation, Branch, Frame, Linear, Norm, linear};

use crate::Gpt2Config;

/// f(x) = proj(activation(fc(norm(x)))).
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    norm: Norm<B>,
    fc: Linear<B>,
    proj: Linear<B>,
    dropout: Dropout,
    activation: Activation,
}

impl<B: Backend> Mlp<B> {
    pub(crate) fn new(config: &Gpt2Config, frame: &Frame, device: &B::Device) -> Self {
        let &Gpt2Config { width, bias, .. } = config;
        let d_ff = config.d_ff();
        Self {
            norm: config.norm(frame, device),
            fc: linear(
                width,
                d_ff,
                bias,
                config.weight_std(width) * frame.inner,
                device,
            ),
            proj: linear(
                d_ff,
                width,
                bias,
                config.projection_std(d_ff, frame),
                device,
            ),
            dropout: DropoutConfig::new(config.dropout).init(),
            activation: config.activation,
        }
    }
}

impl<B: Backend> Branch<B> for Mlp<B> {
    type Cache = ();

    fn new_cache(&self) {}

    fn forward(&self, x: Tensor<B, 3>, _: Option<&mut ()>) -> Tensor<B, 3> {
        let hidden = self.activation.apply(self.fc.forward(self.norm.forward(x)));
        self.dropout.forward(self.proj.forward(hidden))
    }
}
