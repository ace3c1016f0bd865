//! Operations whose gradients PyTorch's own graph computes, because the crate tch has no function for them.

use burn_tch::TchTensor;
use tch::Tensor;

/// The inputs of the backward pass: the inputs, as leaves of PyTorch's graph, and the result in that graph.
///
/// Burn writes into tensors that nothing else holds. Holding the inputs here prevents that.
#[derive(Debug)]
pub struct Graph<const N: usize> {
    inputs: [TchTensor; N],
    leaves: [Tensor; N],
    y: Tensor,
}

impl<const N: usize> Clone for Graph<N> {
    fn clone(&self) -> Self {
        Self {
            inputs: self.inputs.clone(),
            leaves: self.leaves.each_ref().map(Tensor::shallow_clone),
            y: self.y.shallow_clone(),
        }
    }
}

impl<const N: usize> Graph<N> {
    /// Returns the result of `forward`, and the inputs of the backward pass. The gradient must not need the result,
    /// because Burn may write into it.
    pub fn of(
        inputs: [TchTensor; N],
        forward: impl FnOnce(&[Tensor; N]) -> Tensor,
    ) -> (TchTensor, Self) {
        let leaf = |x: &TchTensor| x.tensor.detach().set_requires_grad(true);
        let leaves = inputs.each_ref().map(leaf);
        let y = forward(&leaves);
        let result = TchTensor::new(y.detach());
        (result, Self { inputs, leaves, y })
    }

    /// Returns the gradients of Σ y · grad by the inputs, where `grad` is the gradient of the result.
    pub fn backward(self, grad: &TchTensor) -> [TchTensor; N] {
        let flat = [&self.y, &grad.tensor].map(|x| x.reshape([-1]));
        let sum = flat[0].dot(&flat[1]);
        let grads = Tensor::run_backward(&[sum], &self.leaves, false, false);
        let mut grads = grads.into_iter().map(TchTensor::new);
        [(); N].map(|()| {
            grads
                .next()
                .unwrap_or_else(|| unreachable!("one for each input"))
        })
    }
}
