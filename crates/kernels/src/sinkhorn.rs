//! The alternating normalisations of columns and rows by Sinkhorn and Knopp. Only the input is kept; the backward pass
//! computes the intermediate matrices again.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// Divisions by sums plus ε, alternately of columns and of rows.
#[derive(Clone, Copy, Debug)]
pub struct Sinkhorn {
    /// Number of divisions.
    pub steps: usize,
    /// ε, added to each sum.
    pub eps: f64,
}

/// Normalises the positive matrices `m` `[batch, time, n, n]`.
///
/// # Errors
///
/// Returns `m` if there is no kernel for it.
pub fn sinkhorn<B: Backend>(
    sinkhorn: Sinkhorn,
    m: Tensor<B, 4>,
) -> Result<Tensor<B, 4>, Tensor<B, 4>> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let result = apply::<B, _, 1>(&sinkhorn, [m.into_primitive().tensor()]);
    result.map(of).map_err(|[m]| of(m))
}

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn::tensor::TensorMetadata as _;
    use burn_flex::FlexTensor;

    use super::Sinkhorn;
    use crate::flex::{
        Real, contiguous, each, real, rows_per_task, slice, tensor_like, width, with_real,
    };
    use crate::op::Op;

    impl Sinkhorn {
        /// Returns the index of entry `k` of line `line` in step `step`, for matrices of side `n`. A line is a column
        /// in even steps and a row in odd steps.
        #[inline(always)]
        fn at(step: usize, n: usize, line: usize, k: usize) -> usize {
            match step.is_multiple_of(2) {
                true => k * n + line,
                false => line * n + k,
            }
        }

        /// Multiplies each line by 1 / (sum + ε), and writes this factor to `inverse`.
        #[inline(always)]
        fn step<E: Real>(&self, step: usize, n: usize, m: &mut [E], inverse: &mut [E]) {
            for (line, inverse) in inverse.iter_mut().enumerate() {
                let sum = (0..n).fold(E::zero(), |sum, k| sum + m[Self::at(step, n, line, k)]);
                *inverse = (sum + E::of(self.eps)).recip();
                for k in 0..n {
                    let m = &mut m[Self::at(step, n, line, k)];
                    *m = *m * *inverse;
                }
            }
        }

        fn forward_of<E: Real>(&self, m: &FlexTensor) -> FlexTensor {
            let n = width(m);
            let mut out = slice::<E>(m).to_vec();
            let elements = out.len();
            let tasks = out.chunks_mut(rows_per_task(n * n) * n * n).collect();
            each(tasks, elements * self.steps, |out: &mut [E]| {
                let mut inverse = vec![E::zero(); n];
                for m in out.chunks_exact_mut(n * n) {
                    for step in 0..self.steps {
                        self.step(step, n, m, &mut inverse);
                    }
                }
            });
            tensor_like(out, m)
        }

        fn backward_of<E: Real>(&self, m: &FlexTensor, grad: &FlexTensor) -> FlexTensor {
            let n = width(m);
            let size = rows_per_task(n * n) * n * n;
            let mut out = slice::<E>(grad).to_vec();
            let elements = out.len();
            let tasks = out.chunks_mut(size).zip(slice::<E>(m).chunks(size));
            each(
                tasks.collect(),
                elements * self.steps,
                |(out, m): (&mut [E], &[E])| {
                    // The matrix after each step, and the factor of each line.
                    let mut after = vec![E::zero(); self.steps * n * n];
                    let mut inverse = vec![E::zero(); self.steps * n];
                    for (d, m) in out.chunks_exact_mut(n * n).zip(m.chunks_exact(n * n)) {
                        let mut now = m.to_vec();
                        let steps = after
                            .chunks_exact_mut(n * n)
                            .zip(inverse.chunks_exact_mut(n));
                        for (step, (after, inverse)) in steps.enumerate() {
                            self.step(step, n, &mut now, inverse);
                            after.copy_from_slice(&now);
                        }
                        for step in (0..self.steps).rev() {
                            let after = &after[step * n * n..][..n * n];
                            for line in 0..n {
                                let at = |k| Self::at(step, n, line, k);
                                let along =
                                    (0..n).fold(E::zero(), |sum, k| sum + d[at(k)] * after[at(k)]);
                                for k in 0..n {
                                    d[at(k)] = (d[at(k)] - along) * inverse[step * n + line];
                                }
                            }
                        }
                    }
                },
            );
            tensor_like(out, m)
        }
    }

    impl Op<Flex, 1> for Sinkhorn {
        type Kept = FlexTensor;

        fn takes(&self, inputs: &[FlexTensor; 1]) -> bool {
            real(inputs) && !inputs[0].shape().dims::<4>().contains(&0)
        }

        fn forward(&self, [m]: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
            let m = contiguous(m);
            (with_real!(&m, forward_with(self, &m)), m)
        }

        fn backward(&self, m: FlexTensor, grad: FlexTensor) -> [FlexTensor; 1] {
            [with_real!(&m, backward_with(self, &m, &contiguous(grad)))]
        }
    }

    fn forward_with<E: Real>(op: &Sinkhorn, m: &FlexTensor) -> FlexTensor {
        op.forward_of::<E>(m)
    }

    fn backward_with<E: Real>(op: &Sinkhorn, m: &FlexTensor, grad: &FlexTensor) -> FlexTensor {
        op.backward_of::<E>(m, grad)
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::{Kind, Tensor};

    use super::Sinkhorn;
    use crate::cuda::{Arg, Grid, launch};
    use crate::libtorch::{contiguous, is_cuda};
    use crate::op::Op;

    /// The largest side of a matrix, and the largest number of steps, that the kernels take.
    const SIDE: i64 = 4;
    const STEPS: usize = 64;

    impl Sinkhorn {
        /// Launches a kernel that reads `inputs`, the matrices first, and writes to `out`.
        fn launch(&self, name: &std::ffi::CStr, inputs: &[&Tensor], out: &Tensor) {
            let n = out.size().last().map_or(1, |n| *n as usize);
            let count = out.numel() / (n * n).max(1);
            let tensors = inputs.iter().copied().chain([out]).map(Arg::Of);
            let numbers = [
                Arg::Long(count),
                Arg::Int(n),
                Arg::Int(self.steps),
                Arg::Float(self.eps),
            ];
            let arguments: Vec<_> = tensors.chain(numbers).collect();
            launch(name, out, Grid::threads(count), &arguments);
        }
    }

    impl Op<LibTorch, 1> for Sinkhorn {
        type Kept = TchTensor;

        fn takes(&self, [m]: &[TchTensor; 1]) -> bool {
            let x = &m.tensor;
            let is_small = x.size().last().is_some_and(|n| *n <= SIDE) && self.steps <= STEPS;
            is_cuda(x) && x.kind() == Kind::Float && is_small
        }

        fn forward(&self, [m]: [TchTensor; 1]) -> (TchTensor, TchTensor) {
            let m = contiguous(m);
            let out = m.tensor.empty_like();
            self.launch(c"sinkhorn", &[&m.tensor], &out);
            (TchTensor::new(out), m)
        }

        fn backward(&self, m: TchTensor, grad: TchTensor) -> [TchTensor; 1] {
            let (m, grad) = (m.tensor, contiguous(grad).tensor);
            let out = m.empty_like();
            self.launch(c"sinkhorn_gradient", &[&m, &grad], &out);
            [TchTensor::new(out)]
        }
    }
}
