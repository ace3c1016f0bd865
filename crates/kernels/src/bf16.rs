//! Matrix products in bf16, with sums in f32.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
struct Bf16Product;

/// a · b in bf16: `[…, n, k]` by `[…, k, m]` to `[…, n, m]`, with equal leading axes. a, b, the result and its
/// gradient are rounded to bf16. The gradients of a and b have their float types.
///
/// # Errors
///
/// Returns `a` and `b` if there is no kernel for them.
pub fn bf16_product<B: Backend, const D: usize>(
    a: Tensor<B, D>,
    b: Tensor<B, D>,
) -> Result<Tensor<B, D>, [Tensor<B, D>; 2]> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let inputs = [a, b].map(|x| x.into_primitive().tensor());
    let result = apply::<B, _, 2>(&Bf16Product, inputs);
    result.map(of).map_err(|inputs| inputs.map(of))
}

#[cfg(feature = "flex")]
crate::op::no_kernel!(Bf16Product, 2, burn::backend::Flex, burn_flex::FlexTensor);

#[cfg(feature = "tch")]
pub(crate) use libtorch::to_kind;

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::Kind;

    use super::Bf16Product;
    use crate::op::Op;

    /// The inputs of the backward pass: a and b in bf16, and their original float types.
    #[derive(Clone, Debug)]
    pub struct Kept {
        inputs: [TchTensor; 2],
        kinds: [Kind; 2],
    }

    /// Converts `x` to `kind`. Without a conversion, PyTorch shares the memory, and so does the clone, which tells
    /// Burn.
    pub(crate) fn to_kind(x: TchTensor, kind: Kind) -> TchTensor {
        match x.tensor.kind() == kind {
            true => x,
            false => TchTensor::new(x.tensor.to_kind(kind)),
        }
    }

    impl Op<LibTorch, 2> for Bf16Product {
        type Kept = Kept;

        fn takes(&self, [a, b]: &[TchTensor; 2]) -> bool {
            let leading = |x: &TchTensor| {
                let mut sizes = x.tensor.size();
                sizes.truncate(sizes.len().saturating_sub(2));
                sizes
            };
            leading(a) == leading(b)
        }

        fn forward(&self, inputs: [TchTensor; 2]) -> (TchTensor, Kept) {
            let kinds = inputs.each_ref().map(|x| x.tensor.kind());
            let inputs = inputs.map(|x| to_kind(x, Kind::BFloat16));
            let [a, b] = inputs.each_ref().map(|x| &x.tensor);
            let result = TchTensor::new(a.matmul(b));
            (result, Kept { inputs, kinds })
        }

        fn backward(&self, kept: Kept, grad: TchTensor) -> [TchTensor; 2] {
            let grad = to_kind(grad, Kind::BFloat16).tensor;
            let [a, b] = kept.inputs.map(|x| x.tensor.transpose(-2, -1));
            let [of_a, of_b] = kept.kinds;
            [
                to_kind(TchTensor::new(grad.matmul(&b)), of_a),
                to_kind(TchTensor::new(a.matmul(&grad)), of_b),
            ]
        }
    }
}
