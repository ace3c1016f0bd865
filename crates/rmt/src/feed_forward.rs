//! The feed-forward branch.

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Activation, Branch, Frame, Norm, project};

use crate::RmtConfig;
use crate::memory::{retrieve_normalised, store};

/// FF(LN(X)) = Σ_h w_FF^(h) ⊗ unvec(W_2 gelu(W_1 X_FF))_h with X_FF = Concat_h(r_FF^(h) ·₁ LN(X))
/// (eqs. 23-25).
#[derive(Module, Debug)]
pub struct FeedForward<B: Backend> {
    pub(crate) norm: Norm<B>,
    /// Keys that retrieve X_FF, `[R, D_k]`.
    pub(crate) r_ff: Param<Tensor<B, 2>>,
    /// W_1ᵀ, `[D_v · R, D_FF]`.
    pub(crate) w_1: Param<Tensor<B, 2>>,
    /// W_2ᵀ, `[D_FF, D_v · R]`.
    pub(crate) w_2: Param<Tensor<B, 2>>,
    /// Keys that store the result, `[R, D_k]`.
    pub(crate) w_ff: Param<Tensor<B, 2>>,
    dropout: Dropout,
    pub(crate) activation: Activation,
}

impl<B: Backend> FeedForward<B> {
    pub(crate) fn new(config: &RmtConfig, frame: &Frame, device: &B::Device) -> Self {
        let &RmtConfig { rank, d_k, .. } = config;
        let (d, d_ff) = (rank * config.d_v, config.d_ff());
        Self {
            norm: config.branch_norm(frame, device),
            r_ff: config.weight(1.0, [rank, d_k], [d_k, rank], device),
            w_1: config.weight(frame.inner, [d, d_ff], [d, d_ff], device),
            w_2: config.weight(1.0, [d_ff, d], [d_ff, d], device),
            w_ff: config.output_keys(frame, device),
            dropout: DropoutConfig::new(config.dropout).init(),
            activation: config.activation,
        }
    }
}

impl<B: Backend> Branch<B> for FeedForward<B> {
    type Cache = ();

    fn new_cache(&self) {}

    fn forward(&self, x: Tensor<B, 3>, _: Option<&mut ()>) -> Tensor<B, 3> {
        let x_ff = retrieve_normalised(self.r_ff.val(), &self.norm, x);
        let hidden = self.activation.apply(project(x_ff, self.w_1.val()));
        let ff = project(hidden, self.w_2.val());
        self.dropout.forward(store(self.w_ff.val(), ff))
    }
}
