//! The feed-forward branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Branch, norm::standardise};

use crate::{Pattention, TokenFormerConfig};

/// FFN(LN(X)): a single Pattention (eq. 11).
#[derive(Module, Debug)]
pub struct FeedForward<B: Backend> {
    ffn: Pattention<B>,
    dropout: Dropout,
    norm_eps: f64,
}

impl<B: Backend> FeedForward<B> {
    pub(crate) fn new(config: &TokenFormerConfig, device: &B::Device) -> Self {
        let (n, tau) = (config.n_ffn(), config.tau().ffn);
        Self {
            ffn: Pattention::new(config, n, tau, config.projection_std(), device),
            dropout: DropoutConfig::new(config.dropout).init(),
            norm_eps: config.norm_eps,
        }
    }
}

impl<B: Backend> Branch<B> for FeedForward<B> {
    type Cache = ();

    fn new_cache(&self) {}

    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let x = standardise(x, self.norm_eps);
        self.dropout.forward(self.ffn.forward(x))
    }

    fn decode(&self, x: Tensor<B, 3>, _: &mut ()) -> Tensor<B, 3> {
        self.forward(x)
    }
}
