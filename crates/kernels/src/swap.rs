//! Exchanges two axes on LibTorch, by a view whose memory Burn knows to be shared.
//!
//! In Burn 0.21, `swap_dims` on LibTorch forgets that its result shares memory with its input. The next operation on
//! one of these tensors can then work in place and change the other tensor, even in a backward pass.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
struct Swap;

/// Exchanges the middle axes of `[batch, time, heads, d]` or `[batch, heads, time, d]`.
///
/// # Errors
///
/// Returns `x` if there is no kernel for it. Only LibTorch has a kernel; the other backends do not need one.
pub fn swap_heads<B: Backend>(x: Tensor<B, 4>) -> Result<Tensor<B, 4>, Tensor<B, 4>> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let swapped = apply::<B, _, 1>(&Swap, [x.into_primitive().tensor()]);
    swapped.map(of).map_err(|[x]| of(x))
}

#[cfg(feature = "flex")]
crate::op::no_kernel!(Swap, 1, burn::backend::Flex, burn_flex::FlexTensor);
#[cfg(feature = "cube")]
crate::op::no_kernel!(Swap, 1, cube);

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;

    use super::Swap;
    use crate::op::Op;

    fn swapped(x: TchTensor) -> TchTensor {
        TchTensor::from_existing(x.tensor.transpose(1, 2), x.storage)
    }

    impl Op<LibTorch, 1> for Swap {
        type Kept = ();

        fn takes(&self, _: &[TchTensor; 1]) -> bool {
            true
        }

        fn forward(&self, [x]: [TchTensor; 1]) -> (TchTensor, ()) {
            (swapped(x), ())
        }

        fn backward(&self, (): (), grad: TchTensor) -> [TchTensor; 1] {
            [swapped(grad)]
        }
    }
}
