//! Norms of q, k and v, which several designs share.

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Norm, NormDesign};

/// A norm for each of q, k and v.
#[derive(Module, Debug)]
pub(crate) struct QkvNorms<B: Backend> {
    q: Norm<B>,
    k: Norm<B>,
    v: Norm<B>,
}

impl<B: Backend> QkvNorms<B> {
    /// Builds three norms of `width` features.
    pub(crate) fn new(norm: NormDesign, width: usize, device: &B::Device) -> Self {
        let [q, k, v] = [(); 3].map(|()| norm.build(width, device));
        Self { q, k, v }
    }

    /// Normalises the last axis of q, k and v, or of their inputs.
    pub(crate) fn forward<const D: usize>(
        &self,
        [q, k, v]: [Tensor<B, D>; 3],
    ) -> [Tensor<B, D>; 3] {
        [self.q.forward(q), self.k.forward(k), self.v.forward(v)]
    }
}
