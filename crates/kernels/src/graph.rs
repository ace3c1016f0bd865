//! Operations whose gradient PyTorch computes by its own graph, because the tch crate has no function for it.

use burn_tch::TchTensor;
use tch::Tensor;

/// What the backward pass needs: the inputs, as leaves of PyTorch's graph, and the result in that graph.
///
/// The inputs are held so that Burn, which writes into a tensor that nothing else holds, leaves them as they are.
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
    /// The result of `forward`, and what its backward pass needs. The gradient must not need the result, into which Burn may
    /// write.
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

    /// The gradients of the inputs for the gradient `grad` of the result: those of Σ y · grad.
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
