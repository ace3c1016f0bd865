//! Matrix products in bf16, with sums in f32.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
struct Bf16Product;

/// a · b in bf16: `[…, n, k]` by `[…, k, m]` to `[…, n, m]`, with equal leading axes. a, b, the result and its gradient
/// are rounded to bf16. The gradients of a and b have the float types of a and b.
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

#[cfg(feature = "cube")]
crate::op::no_kernel!(Bf16Product, 2, cube);

#[cfg(feature = "flex")]
crate::op::no_kernel!(Bf16Product, 2, burn::backend::Flex, burn_flex::FlexTensor);

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::Kind;

    use super::Bf16Product;
    use crate::op::Op;
    use crate::product::libtorch::{Factors, to_kind};

    /// The inputs of the backward pass: a and b in bf16, and their original float types.
    #[derive(Clone, Debug)]
    pub struct Kept {
        factors: Pair,
        kinds: [Kind; 2],
    }

    /// Two matrices, or two stacks of matrices.
    #[derive(Clone, Debug)]
    enum Pair {
        One(Factors),
        Many([TchTensor; 2]),
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
            let (result, factors) = match inputs[0].tensor.dim() {
                2 => {
                    let factors = Factors::new(inputs, Kind::BFloat16);
                    (factors.product(), Pair::One(factors))
                }
                _ => {
                    let inputs = inputs.map(|x| to_kind(x, Kind::BFloat16));
                    let [a, b] = inputs.each_ref().map(|x| &x.tensor);
                    (TchTensor::new(a.matmul(b)), Pair::Many(inputs))
                }
            };
            (result, Kept { factors, kinds })
        }

        fn backward(&self, kept: Kept, grad: TchTensor) -> [TchTensor; 2] {
            let [of_a, of_b] = kept.kinds;
            let [a, b] = match kept.factors {
                Pair::One(factors) => factors.gradients(grad),
                Pair::Many(inputs) => {
                    let grad = to_kind(grad, Kind::BFloat16).tensor;
                    let [a, b] = inputs.map(|x| x.tensor.transpose(-2, -1));
                    [grad.matmul(&b), a.matmul(&grad)]
                }
            };
            [
                to_kind(TchTensor::new(a), of_a),
                to_kind(TchTensor::new(b), of_b),
            ]
        }
    }
}
