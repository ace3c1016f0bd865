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
    use pulp::{Simd, WithSimd};

    use super::Sinkhorn;
    use crate::flex::{
        Real, contiguous, each, real, rows_per_task, simd, slice, tensor_like, width, with_real,
    };
    use crate::op::Op;

    /// Number of matrices that are normalised at a time. It is a multiple of every SIMD width.
    const LANES: usize = 16;

    /// One entry of each of these matrices.
    type Lanes<E> = [E; LANES];

    /// Number of elements per task, for matrices of side `n`.
    fn per_task(n: usize) -> usize {
        rows_per_task(n * n).next_multiple_of(LANES) * n * n
    }

    /// Returns the matrices of `from`, at most [`LANES`], entry by entry. Missing matrices are ones.
    #[inline(always)]
    fn gather<E: Real>(from: &[E], to: &mut [Lanes<E>]) {
        let size = to.len();
        for (at, entry) in to.iter_mut().enumerate() {
            for (lane, x) in entry.iter_mut().enumerate() {
                *x = from.get(lane * size + at).copied().unwrap_or(E::one());
            }
        }
    }

    /// Undoes [`gather`].
    #[inline(always)]
    fn scatter<E: Real>(from: &[Lanes<E>], to: &mut [E]) {
        for (lane, to) in to.chunks_exact_mut(from.len()).enumerate() {
            for (to, entry) in to.iter_mut().zip(from) {
                *to = entry[lane];
            }
        }
    }

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
        fn step<E: Real>(&self, step: usize, m: &mut [Lanes<E>], inverse: &mut [Lanes<E>]) {
            let n = inverse.len();
            for (line, inverse) in inverse.iter_mut().enumerate() {
                let mut sum = [E::zero(); LANES];
                for k in 0..n {
                    let m = &m[Self::at(step, n, line, k)];
                    for lane in 0..LANES {
                        sum[lane] = sum[lane] + m[lane];
                    }
                }
                for lane in 0..LANES {
                    inverse[lane] = (sum[lane] + E::of(self.eps)).recip();
                }
                for k in 0..n {
                    let m = &mut m[Self::at(step, n, line, k)];
                    for lane in 0..LANES {
                        m[lane] = m[lane] * inverse[lane];
                    }
                }
            }
        }
    }

    /// Normalises the matrices `m` of side `n`.
    struct Forward<'a, E> {
        op: Sinkhorn,
        n: usize,
        m: &'a mut [E],
    }

    impl<E: Real> WithSimd for Forward<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let size = self.n * self.n;
            let mut now = vec![[E::zero(); LANES]; size];
            let mut inverse = vec![[E::zero(); LANES]; self.n];
            for m in self.m.chunks_mut(LANES * size) {
                gather(m, &mut now);
                for step in 0..self.op.steps {
                    self.op.step(step, &mut now, &mut inverse);
                }
                scatter(&now, m);
            }
        }
    }

    /// Turns the gradients `d` of the results into the gradients of the matrices `m` of side `n`.
    struct Backward<'a, E> {
        op: Sinkhorn,
        n: usize,
        m: &'a [E],
        d: &'a mut [E],
    }

    impl<E: Real> WithSimd for Backward<'_, E> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let (n, steps) = (self.n, self.op.steps);
            let size = n * n;
            let nothing = [E::zero(); LANES];
            let (mut now, mut grad) = (vec![nothing; size], vec![nothing; size]);
            // The matrices after each step, and the factor of each line.
            let mut after = vec![nothing; steps * size];
            let mut inverse = vec![nothing; steps * n];
            let parts = self.d.chunks_mut(LANES * size);
            for (d, m) in parts.zip(self.m.chunks(LANES * size)) {
                gather(m, &mut now);
                gather(d, &mut grad);
                for step in 0..steps {
                    let inverse = &mut inverse[step * n..][..n];
                    self.op.step(step, &mut now, inverse);
                    after[step * size..][..size].copy_from_slice(&now);
                }
                for step in (0..steps).rev() {
                    let after = &after[step * size..][..size];
                    for line in 0..n {
                        let mut along = nothing;
                        for k in 0..n {
                            let at = Sinkhorn::at(step, n, line, k);
                            for lane in 0..LANES {
                                along[lane] = along[lane] + grad[at][lane] * after[at][lane];
                            }
                        }
                        let inverse = &inverse[step * n + line];
                        for k in 0..n {
                            let d = &mut grad[Sinkhorn::at(step, n, line, k)];
                            for lane in 0..LANES {
                                d[lane] = (d[lane] - along[lane]) * inverse[lane];
                            }
                        }
                    }
                }
                scatter(&grad, d);
            }
        }
    }

    fn forward<E: Real>(op: Sinkhorn, m: &FlexTensor) -> FlexTensor {
        let n = width(m);
        let mut out = slice::<E>(m).to_vec();
        let elements = out.len();
        let tasks = out.chunks_mut(per_task(n)).collect();
        each(tasks, elements * op.steps, |m| simd(Forward { op, n, m }));
        tensor_like(out, m)
    }

    fn backward<E: Real>(op: Sinkhorn, m: &FlexTensor, grad: &FlexTensor) -> FlexTensor {
        let n = width(m);
        let size = per_task(n);
        let mut out = slice::<E>(grad).to_vec();
        let elements = out.len();
        let tasks = out.chunks_mut(size).zip(slice::<E>(m).chunks(size));
        each(tasks.collect(), elements * op.steps, |(d, m)| {
            simd(Backward { op, n, m, d });
        });
        tensor_like(out, m)
    }

    impl Op<Flex, 1> for Sinkhorn {
        type Kept = FlexTensor;

        fn takes(&self, inputs: &[FlexTensor; 1]) -> bool {
            real(inputs) && !inputs[0].shape().dims::<4>().contains(&0)
        }

        fn forward(&self, [m]: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
            let m = contiguous(m);
            (with_real!(&m, forward(*self, &m)), m)
        }

        fn backward(&self, m: FlexTensor, grad: FlexTensor) -> [FlexTensor; 1] {
            [with_real!(&m, backward(*self, &m, &contiguous(grad)))]
        }
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
