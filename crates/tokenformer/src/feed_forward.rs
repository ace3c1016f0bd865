//! The feed-forward branch.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Branch, Frame, Norm};

use crate::{Pattention, TokenFormerConfig};

/// FFN(LN(X)): a single Pattention (eq. 11).
#[derive(Module, Debug)]
pub struct FeedForward<B: Backend> {
    norm: Norm<B>,
    ffn: Pattention<B>,
    dropout: Dropout,
}

impl<B: Backend> FeedForward<B> {
    pub(crate) fn new(config: &TokenFormerConfig, frame: &Frame, device: &B::Device) -> Self {
        let (n, tau) = (config.n_ffn(), config.tau().ffn);
        let added = config.added.map(|added| added.ffn);
        let std = config.output_values_std(n, frame);
        Self {
            norm: config.norm(frame, device),
            ffn: Pattention::new(config, (n, added), tau, std, device),
            dropout: DropoutConfig::new(config.dropout).init(),
        }
    }
}

impl<B: Backend> Branch<B> for FeedForward<B> {
    type Cache = ();

    fn new_cache(&self) {}

    fn forward(&self, x: Tensor<B, 3>, _: Option<&mut ()>) -> Tensor<B, 3> {
        self.dropout.forward(self.ffn.forward(self.norm.forward(x)))
    }
}
