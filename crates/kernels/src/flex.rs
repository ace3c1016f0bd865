//! Common parts of the kernels for Flex: tensor slices, parallel rows, and arithmetic that vectorises.
//!
//! A kernel consists of plain loops and of sums. `pulp` compiles it for each level of SIMD instructions and picks the
//! widest that the processor has. The threads of rayon share the rows. Long sums are split into tasks of fixed size,
//! and the results of the tasks are added in order. Sums therefore do not depend on the number of threads.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Element, Tensor, TensorData, TensorMetadata, TensorPrimitive};
use burn_flex::FlexTensor;
use num_traits::Float;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::op::{cast, plain_only, same};

/// f32 or f64.
pub(crate) trait Real: Float + Element + bytemuck::Pod + Send + Sync {
    /// Computes eˣ.
    fn fast_exp(self) -> Self;
    /// Computes the error function.
    fn fast_erf(self) -> Self;
    /// Computes tanh x.
    fn fast_tanh(self) -> Self;
    /// Converts from f64, rounding to the nearest number.
    fn of(x: f64) -> Self;
    /// Converts to f64.
    fn wide(self) -> f64;
    /// Computes Σ a_i.
    fn total<S: Simd>(simd: S, a: &[Self]) -> Self;
    /// Computes Σ a_i b_i.
    fn dot<S: Simd>(simd: S, a: &[Self], b: &[Self]) -> Self;
    /// Returns the largest a_i, or −∞ if there is none.
    fn largest<S: Simd>(simd: S, a: &[Self]) -> Self;
}

/// Implements [`Real::total`], [`Real::dot`] and [`Real::largest`] with SIMD operations, because the compiler may not
/// reorder the terms of a sum. Four sums run side by side, because each addition waits for the previous addition.
macro_rules! reductions {
    ($as_simd:ident, $splat:ident, $add:ident, $mul_add:ident, $max:ident, $sum:ident, $most:ident) => {
        #[inline(always)]
        fn total<S: Simd>(simd: S, a: &[Self]) -> Self {
            let (vectors, rest) = S::$as_simd(a);
            let (fours, ones) = vectors.as_chunks::<4>();
            let mut sums = [simd.$splat(0.0); 4];
            for a in fours {
                for i in 0..4 {
                    sums[i] = simd.$add(sums[i], a[i]);
                }
            }
            for &a in ones {
                sums[0] = simd.$add(sums[0], a);
            }
            let [a, b, c, d] = sums;
            simd.$sum(simd.$add(simd.$add(a, b), simd.$add(c, d))) + rest.iter().sum::<Self>()
        }

        #[inline(always)]
        fn dot<S: Simd>(simd: S, a: &[Self], b: &[Self]) -> Self {
            let ((a, a_rest), (b, b_rest)) = (S::$as_simd(a), S::$as_simd(b));
            let ((fours_a, ones_a), (fours_b, ones_b)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
            let mut sums = [simd.$splat(0.0); 4];
            for (a, b) in fours_a.iter().zip(fours_b) {
                for i in 0..4 {
                    sums[i] = simd.$mul_add(a[i], b[i], sums[i]);
                }
            }
            for (&a, &b) in ones_a.iter().zip(ones_b) {
                sums[0] = simd.$mul_add(a, b, sums[0]);
            }
            let [a, b, c, d] = sums;
            let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b);
            simd.$sum(simd.$add(simd.$add(a, b), simd.$add(c, d))) + rest.sum::<Self>()
        }

        #[inline(always)]
        fn largest<S: Simd>(simd: S, a: &[Self]) -> Self {
            let (vectors, rest) = S::$as_simd(a);
            let least = simd.$splat(Self::NEG_INFINITY);
            let most = vectors.iter().fold(least, |most, &a| simd.$max(most, a));
            rest.iter()
                .fold(simd.$most(most), |most, &a| if a > most { a } else { most })
        }
    };
}

impl Real for f32 {
    /// Computes 2ⁿ · eʳ with n = round(x / ln 2) and |r| ≤ ln 2 / 2, by the Taylor polynomial of eʳ of degree 7. The
    /// relative error is below 4e-7 on [−87.3, 88.3]. Outside, the result is the value at the nearer end.
    #[inline(always)]
    fn fast_exp(self) -> f32 {
        // The sum of x / ln 2 and 1.5 · 2²³ + 127 is rounded to a whole number. Its last bits are n + 127, the exponent
        // bits of 2ⁿ.
        const ROUND: f32 = 12_582_912.0 + 127.0;
        // ln 2 in two parts; n times the first is exact.
        const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
        // A comparison with NaN is false, so NaN stays NaN.
        let x = if self < -87.3 { -87.3 } else { self };
        let x = if x > 88.3 { 88.3 } else { x };
        let n = x.mul_add(std::f32::consts::LOG2_E, ROUND);
        let power = f32::from_bits(n.to_bits() << 23);
        let n = n - ROUND;
        let r = n.mul_add(-LN_2[1], n.mul_add(-LN_2[0], x));
        let mut y = 1.0 / 5040.0;
        for c in [
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
            1.0,
        ] {
            y = r.mul_add(y, c);
        }
        y * power
    }

    /// Uses a rational approximation with the coefficients of Eigen's `erf` on [−4, 4], and its values at ±4 outside.
    /// The absolute error is below 4e-7.
    #[inline(always)]
    fn fast_erf(self) -> f32 {
        const ABOVE: [f32; 7] = [
            -2.726_142_3e-10,
            2.770_681_4e-8,
            -2.101_024e-6,
            -5.692_506_4e-5,
            -7.349_906_3e-4,
            -2.954_6e-3,
            -1.609_603_3e-2,
        ];
        const BELOW: [f32; 5] = [
            -1.456_607_2e-5,
            -2.133_740_6e-4,
            -1.682_827e-3,
            -7.373_329_2e-3,
            -1.426_473_9e-2,
        ];
        let x = if self < -4.0 { -4.0 } else { self };
        let x = if x > 4.0 { 4.0 } else { x };
        let square = x * x;
        let polynomial = |c: &[f32]| c[1..].iter().fold(c[0], |y, &c| y.mul_add(square, c));
        x * polynomial(&ABOVE) / polynomial(&BELOW)
    }

    /// Uses 1 − 2 / (1 + e²ˣ), and near 0 the odd polynomial of degree 11 from the library Cephes. The relative error
    /// is below 4e-7.
    #[inline(always)]
    fn fast_tanh(self) -> f32 {
        const NEAR: [f32; 5] = [
            -5.704_988_7e-3,
            2.063_908_8e-2,
            -5.373_971_5e-2,
            1.333_144_2e-1,
            -3.333_328e-1,
        ];
        let square = self * self;
        let polynomial = NEAR[1..].iter().fold(NEAR[0], |y, &c| y.mul_add(square, c));
        let near = self + self * square * polynomial;
        let far = 1.0 - 2.0 / (1.0 + (2.0 * self).fast_exp());
        if self.abs() < 0.625 { near } else { far }
    }

    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self.into()
    }

    reductions!(
        as_simd_f32s,
        splat_f32s,
        add_f32s,
        mul_add_f32s,
        max_f32s,
        reduce_sum_f32s,
        reduce_max_f32s
    );
}

impl Real for f64 {
    #[inline(always)]
    fn fast_exp(self) -> f64 {
        self.exp()
    }

    #[inline(always)]
    fn fast_erf(self) -> f64 {
        libm::erf(self)
    }

    #[inline(always)]
    fn fast_tanh(self) -> f64 {
        self.tanh()
    }

    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    reductions!(
        as_simd_f64s,
        splat_f64s,
        add_f64s,
        mul_add_f64s,
        max_f64s,
        reduce_sum_f64s,
        reduce_max_f64s
    );
}

/// Runs `kernel` with the widest SIMD instructions of the processor.
pub(crate) fn simd<W: WithSimd>(kernel: W) -> W::Output {
    Arch::new().dispatch(kernel)
}

/// Number of elements below which a kernel stays on its thread. Handing work to another thread costs about as much as
/// reading this many elements.
const SERIAL: usize = 1 << 14;

/// Approximate number of elements per task.
pub(crate) const TASK: usize = 1 << 13;

/// Returns the number of rows of `width` elements per task.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (TASK / width.max(1)).max(1)
}

/// Runs `f` on every task and returns the results in order. Uses all threads if there are many `elements`.
pub(crate) fn each<T: Send, R: Send>(
    tasks: Vec<T>,
    elements: usize,
    f: impl Fn(T) -> R + Sync + Send,
) -> Vec<R> {
    match elements < SERIAL {
        true => tasks.into_iter().map(f).collect(),
        false => tasks.into_par_iter().map(f).collect(),
    }
}

/// Splits each of `tensors` into parts of `len` elements, one for each task. Returns the parts of all tensors for each
/// task.
pub(crate) fn parts<E>(tensors: &mut [Vec<E>], len: usize) -> Vec<Vec<&mut [E]>> {
    let mut tasks: Vec<Vec<_>> = vec![];
    for tensor in tensors {
        for (task, part) in tensor.chunks_mut(len).enumerate() {
            match tasks.get_mut(task) {
                Some(parts) => parts.push(part),
                None => tasks.push(vec![part]),
            }
        }
    }
    tasks
}

/// Makes `len` zeros. Uses all threads if there are many, because one thread does not reach the memory's bandwidth.
pub(crate) fn zeros<E: Real>(len: usize) -> Vec<E> {
    const PART: usize = 64;
    if len < SERIAL {
        return vec![E::zero(); len];
    }
    let parts = rayon::iter::repeat_n([E::zero(); PART], len.div_ceil(PART));
    let mut zeros = parts.collect::<Vec<_>>().into_flattened();
    zeros.truncate(len);
    zeros
}

/// Sums vectors, in order.
pub(crate) fn add_up<E: Real>(vectors: impl IntoIterator<Item = Vec<E>>, len: usize) -> Vec<E> {
    let mut sum = vec![E::zero(); len];
    for vector in vectors {
        for (sum, x) in sum.iter_mut().zip(vector) {
            *sum = *sum + x;
        }
    }
    sum
}

/// Returns the elements of a contiguous tensor.
pub(crate) fn slice<E: Real>(x: &FlexTensor) -> &[E] {
    &x.storage()[..x.layout().num_elements()]
}

/// Makes `x` contiguous, in row-major order. If `x` is the only owner of its data, it remains the only owner, and its
/// data can be changed in place.
pub(crate) fn contiguous(x: FlexTensor) -> FlexTensor {
    let (layout, rank) = (x.layout(), x.layout().num_dims());
    // Burn copies matrices in blocks, but the elements of most other views one at a time.
    let has_short_rows = rank > 2 && (layout.strides()[rank - 1] == 1 || width(&x) <= 64);
    match has_short_rows && !layout.is_contiguous() && real(std::slice::from_ref(&x)) {
        true => with_real!(&x, copied(&x)),
        false => x.to_contiguous(),
    }
}

/// Copies `x` in row-major order.
fn copied<E: Real>(x: &FlexTensor) -> FlexTensor {
    let mut all = Vec::with_capacity(x.shape().num_elements());
    let layout = x.layout();
    let axes: Vec<_> = (layout.shape().iter().copied())
        .zip(layout.strides().iter().copied())
        .collect();
    copy(
        x.storage::<E>(),
        layout.start_offset() as isize,
        &axes,
        &mut all,
    );
    tensor_like(all, x)
}

/// Appends the elements of the view that begins at `at` and has the sizes and strides `axes`.
fn copy<E: Real>(from: &[E], at: isize, axes: &[(usize, isize)], to: &mut Vec<E>) {
    match *axes {
        [] => to.push(from[at as usize]),
        [(len, 1)] => to.extend_from_slice(&from[at as usize..][..len]),
        [(len, stride)] => {
            to.extend((0..len).map(|i| from[(at + i as isize * stride) as usize]));
        }
        // Without a call for each row, because the rows of transposed 4 × 4 matrices are short.
        [(rows, apart), (len, stride)] if stride != 1 => {
            for row in 0..rows as isize {
                let at = at + row * apart;
                to.extend((0..len as isize).map(|i| from[(at + i * stride) as usize]));
            }
        }
        [(len, stride), ref rest @ ..] => {
            for i in 0..len {
                copy(from, at + i as isize * stride, rest, to);
            }
        }
    }
}

/// Makes a tensor of `data` with the shape of `like`.
pub(crate) fn tensor_like<E: Real>(data: Vec<E>, like: &FlexTensor) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(data, like.shape()))
}

/// Makes a tensor `[len]`.
pub(crate) fn vector<E: Real>(data: Vec<E>) -> FlexTensor {
    let len = data.len();
    FlexTensor::from_data(TensorData::new(data, [len]))
}

/// Returns the length of the rows of `x`.
pub(crate) fn width(x: &FlexTensor) -> usize {
    let shape = x.shape();
    shape[shape.num_dims() - 1]
}

/// Whether all tensors are f32, or all f64.
pub(crate) fn real(tensors: &[FlexTensor]) -> bool {
    let dtype = tensors[0].dtype();
    matches!(dtype, DType::F32 | DType::F64) && tensors.iter().all(|x| x.dtype() == dtype)
}

/// If `inputs` are Flex tensors, all f32 or all f64, makes them contiguous and calls `kernel`, which has no gradient.
/// Otherwise, or with `RESIDUAL_ZOO_OPS=plain`, returns `inputs`.
pub(crate) fn on_flex<B: Backend, const D: usize, const N: usize, const M: usize>(
    inputs: [Tensor<B, D>; N],
    kernel: impl FnOnce([FlexTensor; N]) -> [FlexTensor; M],
) -> Result<[Tensor<B, D>; M], [Tensor<B, D>; N]> {
    if plain_only() {
        return Err(inputs);
    }
    let found = cast::<_, [FlexTensor; N]>(inputs.map(|x| x.into_primitive().tensor()));
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    match found {
        Ok(inputs) if real(&inputs) => {
            let outputs = kernel(inputs.map(contiguous));
            Ok(outputs.map(|x| of(same(x))))
        }
        Ok(inputs) => Err(inputs.map(|x| of(same(x)))),
        Err(inputs) => Err(inputs.map(of)),
    }
}

/// Calls a function that is generic over [`Real`], with the element type of a tensor.
macro_rules! with_real {
    ($x:expr, $f:ident($($argument:expr),* $(,)?)) => {
        match burn::tensor::TensorMetadata::dtype($x) {
            burn::tensor::DType::F64 => $f::<f64>($($argument),*),
            _ => $f::<f32>($($argument),*),
        }
    };
}
pub(crate) use with_real;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the largest `error(x)` over points in [`from`, `to`].
    fn largest(from: f64, to: f64, error: impl Fn(f32) -> f64) -> f64 {
        let points = (0..=200_000).map(|i| (from + (to - from) * f64::from(i) / 200_000.0) as f32);
        points.map(error).fold(0.0, f64::max)
    }

    #[test]
    fn exp_erf_and_tanh_are_as_exact_as_they_say() {
        let exp = |x: f32| (x.fast_exp().wide() / x.wide().exp() - 1.0).abs();
        let error = largest(-87.0, 88.0, exp);
        assert!(error < 4e-7, "{error}");
        let erf = |x: f32| (x.fast_erf().wide() - libm::erf(x.wide())).abs();
        let error = largest(-6.0, 6.0, erf);
        assert!(error < 4e-7, "{error}");
        let tanh = |x: f32| (x.fast_tanh().wide() - x.wide().tanh()).abs() / x.wide().tanh().abs();
        let error = largest(-50.0, -1e-6, tanh).max(largest(1e-6, 50.0, tanh));
        assert!(error < 4e-7, "{error}");
    }

    #[test]
    fn copies_of_views_have_the_elements_in_row_major_order() {
        let numbers: Vec<f32> = (0..2 * 3 * 4 * 5).map(|i| i as f32).collect();
        let x = FlexTensor::from_data(TensorData::new(numbers, [2, 3, 4, 5]));
        let layout = x.layout();
        let views = [
            layout.transpose(1, 2),
            layout.transpose(2, 3),
            layout.permute(&[3, 0, 2, 1]),
            layout.narrow(1, 1, 2),
            layout.narrow(3, 2, 3).transpose(2, 3),
            layout.flip(&[0, 2]).transpose(1, 3),
            layout.narrow(2, 1, 0),
        ];
        for view in views {
            let strides = view.strides().to_vec();
            let view = FlexTensor::from_arc(x.data_arc(), view, x.dtype());
            assert_eq!(
                slice::<f32>(&contiguous(view.clone())),
                slice::<f32>(&view.to_contiguous()),
                "strides {strides:?}"
            );
        }
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        assert!(f32::NAN.fast_exp().is_nan());
        assert!(f32::NAN.fast_erf().is_nan());
        assert!(f32::NAN.fast_tanh().is_nan());
        assert!(f32::NEG_INFINITY.fast_exp() < 2e-38);
        assert!((f32::INFINITY.fast_erf() - 1.0).abs() < 4e-7);
    }
}
