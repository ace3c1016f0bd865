//! Operations whose gradients PyTorch's own graph computes, because the crate `tch` has no functions for these
//! gradients.

use burn_tch::TchTensor;
use tch::Tensor;

use crate::libtorch;

/// The inputs of the backward pass. They are the operation's inputs, as leaves of PyTorch's graph, and its result in
/// that graph.
///
/// Burn writes into tensors that nothing else holds. Holding the inputs prevents such writes.
#[derive(Debug)]
pub struct Graph<const N: usize> {
    inputs: [TchTensor; N],
    leaves: [Tensor; N],
    y: Tensor,
    /// The result as a tensor of Burn, if the gradient needs it.
    result: Option<TchTensor>,
}

impl<const N: usize> Clone for Graph<N> {
    fn clone(&self) -> Self {
        Self {
            inputs: self.inputs.clone(),
            leaves: self.leaves.each_ref().map(Tensor::shallow_clone),
            y: self.y.shallow_clone(),
            result: self.result.clone(),
        }
    }
}

impl<const N: usize> Graph<N> {
    /// Returns the result of `forward`, and the inputs of the backward pass. If the gradient needs the result,
    /// [`hold`](Self::hold) it.
    pub fn of(
        inputs: [TchTensor; N],
        forward: impl FnOnce(&[Tensor; N]) -> Tensor,
    ) -> (TchTensor, Self) {
        let leaf = |x: &TchTensor| x.tensor.detach().set_requires_grad(true);
        let leaves = inputs.each_ref().map(leaf);
        let y = forward(&leaves);
        let result = TchTensor::new(y.detach());
        let graph = Self {
            inputs,
            leaves,
            y,
            result: None,
        };
        (result, graph)
    }

    /// Keeps Burn from writing into the result.
    pub fn hold(self, result: &TchTensor) -> Self {
        Self {
            result: Some(result.clone()),
            ..self
        }
    }

    /// Returns the gradients of Σ y · grad with respect to the inputs, where `grad` is the gradient of the result.
    pub fn backward(self, grad: &TchTensor) -> [TchTensor; N] {
        // Burn's gradients are f32 even if the result is bf16.
        let grad = grad.tensor.to_kind(self.y.kind());
        libtorch::gradients(&self.y, &grad, self.leaves).map(TchTensor::new)
    }
}
