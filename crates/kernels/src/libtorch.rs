//! What the kernels for LibTorch share: operations whose gradient is PyTorch's own.

use burn_tch::TchTensor;
use tch::Tensor;

/// A result with the graph that PyTorch made of it.
#[derive(Clone, Debug)]
pub(crate) struct Graph<const N: usize> {
    /// The leaves have their data.
    inputs: [TchTensor; N],
    leaves: [TchTensor; N],
    y: TchTensor,
}

impl<const N: usize> Graph<N> {
    /// The result of `f`, and its graph.
    pub(crate) fn of(
        inputs: [TchTensor; N],
        f: impl FnOnce([&Tensor; N]) -> Tensor,
    ) -> (TchTensor, Self) {
        let leaf = |x: &TchTensor| TchTensor::new(x.tensor.detach().set_requires_grad(true));
        let leaves = inputs.each_ref().map(leaf);
        let y = f(leaves.each_ref().map(|leaf| &leaf.tensor));
        let graph = Self {
            inputs,
            leaves,
            y: TchTensor::new(y),
        };
        (TchTensor::new(graph.y.tensor.detach()), graph)
    }

    /// The gradients of the inputs, from the gradient of the result.
    pub(crate) fn gradients(self, grad: TchTensor) -> [TchTensor; N] {
        let Self { inputs, leaves, y } = self;
        // The gradient of this sum by y is `grad`.
        let sum = (y.tensor.reshape(-1)).dot(&grad.tensor.reshape(-1));
        let leaves = leaves.each_ref().map(|leaf| &leaf.tensor);
        let mut gradients = Tensor::run_backward(&[&sum], &leaves, false, false).into_iter();
        drop(inputs);
        [(); N].map(|()| match gradients.next() {
            Some(gradient) => TchTensor::new(gradient),
            None => unreachable!("each leaf has a gradient"),
        })
    }
}
