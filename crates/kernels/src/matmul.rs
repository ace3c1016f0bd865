//! Matrix products.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// A matrix product.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    /// Whether the factors are rounded to bf16. Sums are f32 in any case.
    pub bf16: bool,
}

/// Computes a · b: `[…, n, k]` by `[…, k, m]` to `[…, n, m]`, with equal leading axes. The gradients of a and b have
/// the float types of a and b. With [`Matmul::bf16`], the gradient of the result is rounded to bf16 too. The result is
/// then bf16 on LibTorch and f32 elsewhere.
///
/// # Errors
///
/// Returns `a` and `b` if there is no kernel for them.
pub fn matmul<B: Backend, const D: usize>(
    matmul: Matmul,
    a: Tensor<B, D>,
    b: Tensor<B, D>,
) -> Result<Tensor<B, D>, [Tensor<B, D>; 2]> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let inputs = [a, b].map(|x| x.into_primitive().tensor());
    let result = apply::<B, _, 2>(&matmul, inputs);
    result.map(of).map_err(|inputs| inputs.map(of))
}

/// A kernel for one product.
pub struct Candidate<B: Backend> {
    /// Name of the kernel in cubek.
    pub name: String,
    /// Runs the kernel. The error says why it cannot run.
    #[allow(clippy::type_complexity)]
    pub run: Box<dyn Fn() -> Result<Tensor<B, 2>, String>>,
}

/// Returns the kernels for a · b on Burn's GPU backends, for benchmarks. The first kernel keeps all bits of f32
/// factors.
pub fn matmul_candidates<B: Backend>(a: &Tensor<B, 2>, b: &Tensor<B, 2>) -> Vec<Candidate<B>> {
    let _ = (a, b);
    #[allow(unused_mut)]
    let mut all = Vec::new();
    #[cfg(feature = "cuda")]
    all.extend(crate::cube::matmul::candidates_on::<
        B,
        cubecl::cuda::CudaRuntime,
    >(a, b));
    #[cfg(any(feature = "vulkan", feature = "wgpu"))]
    all.extend(crate::cube::matmul::candidates_on::<
        B,
        cubecl::wgpu::WgpuRuntime,
    >(a, b));
    all
}

#[cfg(feature = "flex")]
crate::op::no_kernel!(Matmul, 2, burn::backend::Flex, burn_flex::FlexTensor);

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::Kind;

    use super::Matmul;
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

    impl Op<LibTorch, 2> for Matmul {
        type Kept = Kept;

        /// Takes products that round their factors to bf16. Burn calls PyTorch's product of f32 numbers itself.
        fn takes(&self, [a, b]: &[TchTensor; 2]) -> bool {
            let leading = |x: &TchTensor| {
                let mut sizes = x.tensor.size();
                sizes.truncate(sizes.len().saturating_sub(2));
                sizes
            };
            self.bf16 && leading(a) == leading(b)
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
