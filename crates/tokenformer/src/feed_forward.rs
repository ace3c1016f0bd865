//! The feed-forward branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, LayerNorm};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Branch, ops::norm::normalise};

use crate::{Pattention, TokenFormerConfig};

/// FFN(LN(X)): a single Pattention (eq. 11).
#[derive(Module, Debug)]
pub struct FeedForward<B: Backend> {
    norm: Option<LayerNorm<B>>,
    ffn: Pattention<B>,
    dropout: Dropout,
    norm_eps: f64,
}

impl<B: Backend> FeedForward<B> {
    pub(crate) fn new(config: &TokenFormerConfig, device: &B::Device) -> Self {
        let (n, tau) = (config.n_ffn(), config.tau().ffn);
        Self {
            norm: config
                .norm_params
                .layer_norm(config.width, config.norm_eps, device),
            ffn: Pattention::new(config, n, tau, config.projection_std(), device),
            dropout: DropoutConfig::new(config.dropout).init(),
            norm_eps: config.norm_eps,
        }
    }
}

impl<B: Backend> Branch<B> for FeedForward<B> {
    type Cache = ();

    fn new_cache(&self) {}

    fn forward(&self, x: Tensor<B, 3>, _: Option<&mut ()>) -> Tensor<B, 3> {
        let x = normalise(&self.norm, x, self.norm_eps);
        self.dropout.forward(self.ffn.forward(x))
    }
}
