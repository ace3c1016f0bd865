//! Products of rows with a matrix.
//!
//! Multiplying many rows by a small matrix, as in storage and retrieval in the RMT, takes about the time of reading
//! the rows. A general product would first copy them into blocks.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
struct Product;

/// Maximum number of rows and columns of a small matrix.
const SMALL: usize = 64;

/// x · w for x `[rows, d_in]` and w `[d_in, d_out]`.
///
/// # Errors
///
/// Returns `x` and `w` if there is no kernel for them.
pub fn product<B: Backend>(
    x: Tensor<B, 2>,
    w: Tensor<B, 2>,
) -> Result<Tensor<B, 2>, [Tensor<B, 2>; 2]> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let inputs = [x, w].map(|x| x.into_primitive().tensor());
    let result = apply::<B, _, 2>(&Product, inputs);
    result.map(of).map_err(|inputs| inputs.map(of))
}

/// The operation of [`linear`].
#[derive(Clone, Copy, Debug)]
struct Linear {
    bf16: bool,
}

/// x · w + b for x `[rows, d_in]`, w `[d_in, d_out]` and b `[d_out]`, in one kernel. In bf16 if `bf16`: x, w, b and the
/// result are rounded to bf16, and the gradients of x, w and b have their float types.
///
/// # Errors
///
/// Returns x, w and b if there is no kernel for them.
pub fn linear<B: Backend>(
    x: Tensor<B, 2>,
    w: Tensor<B, 2>,
    b: Tensor<B, 1>,
    bf16: bool,
) -> Result<Tensor<B, 2>, (Tensor<B, 2>, Tensor<B, 2>, Tensor<B, 1>)> {
    let inputs = [
        x.into_primitive().tensor(),
        w.into_primitive().tensor(),
        b.into_primitive().tensor(),
    ];
    let result = apply::<B, _, 3>(&Linear { bf16 }, inputs);
    let of = |x| TensorPrimitive::Float(x);
    result
        .map(|y| Tensor::from_primitive(of(y)))
        .map_err(|[x, w, b]| {
            let [x, w] = [x, w].map(|x| Tensor::from_primitive(of(x)));
            (x, w, Tensor::from_primitive(of(b)))
        })
}

#[cfg(feature = "flex")]
pub(crate) mod flex {
    use burn::backend::Flex;
    use burn::tensor::ops::FloatTensorOps as _;
    use burn::tensor::{DType, TensorData, TensorMetadata as _};
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::{Product, SMALL};
    use crate::flex::{add_up, contiguous, each, simd, slice, zeros};
    use crate::gemm;
    use crate::op::Op;

    /// Number of rows whose sums are in registers.
    const TILE: usize = 8;

    /// A number that every SIMD width divides.
    const LANES: usize = 16;

    /// Number of rows of x per task.
    const TALL: usize = 1024;

    /// y = x · w, a few rows at a time. The rows of w are padded with zeros to whole [`LANES`].
    struct Tall<'a> {
        x: &'a [f32],
        w: &'a [f32],
        d_in: usize,
        d_out: usize,
        y: &'a mut [f32],
    }

    impl WithSimd for Tall<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Self {
                x,
                w,
                d_in,
                d_out,
                y,
            } = self;
            let (w, _) = S::as_simd_f32s(w);
            let columns = w.len() / d_in;
            let used = d_out.div_ceil(S::F32_LANES);
            let count = y.len() / d_out;
            for start in (0..count).step_by(TILE) {
                let height = TILE.min(count - start);
                let mut rows: [&[f32]; TILE] = [&[]; TILE];
                for r in 0..TILE {
                    // A missing row of the last tile repeats the last row.
                    rows[r] = &x[(start + r.min(height - 1)) * d_in..][..d_in];
                }
                // From right to left and from top to bottom, so that the rows below overwrite what a vector writes
                // beyond its row.
                for column in (0..used).rev() {
                    let mut sums = [simd.splat_f32s(0.0); TILE];
                    for i in 0..d_in {
                        let w = w[i * columns + column];
                        for r in 0..TILE {
                            sums[r] = simd.mul_add_f32s(simd.splat_f32s(rows[r][i]), w, sums[r]);
                        }
                    }
                    for r in 0..height {
                        let y = &mut y[(start + r) * d_out + column * S::F32_LANES..];
                        match S::as_mut_simd_f32s(y).0.first_mut() {
                            Some(y) => *y = sums[r],
                            None => simd.partial_store_f32s(y, sums[r]),
                        }
                    }
                }
            }
        }
    }

    /// w += xᵀ · y. The rows of w are padded to whole [`LANES`].
    struct Outer<'a> {
        x: &'a [f32],
        y: &'a [f32],
        d_in: usize,
        d_out: usize,
        w: &'a mut [f32],
    }

    impl WithSimd for Outer<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Self {
                x,
                y,
                d_in,
                d_out,
                w,
            } = self;
            let (w, _) = S::as_mut_simd_f32s(w);
            let columns = w.len() / d_in;
            let used = d_out.div_ceil(S::F32_LANES);
            for i in (0..d_in).step_by(TILE) {
                let height = TILE.min(d_in - i);
                for column in 0..used {
                    let mut sums = [simd.splat_f32s(0.0); TILE];
                    for row in 0..y.len() / d_out {
                        let y = &y[row * d_out + column * S::F32_LANES..];
                        // Elements of the next row that a vector reads go into the padding of w.
                        let y = match S::as_simd_f32s(y).0.first() {
                            Some(&y) => y,
                            None => simd.partial_load_f32s(y),
                        };
                        let x = &x[row * d_in..][..d_in];
                        if let Some(x) = x[i..].first_chunk::<TILE>() {
                            for r in 0..TILE {
                                sums[r] = simd.mul_add_f32s(simd.splat_f32s(x[r]), y, sums[r]);
                            }
                        } else {
                            for (sum, &x) in sums.iter_mut().zip(&x[i..]) {
                                *sum = simd.mul_add_f32s(simd.splat_f32s(x), y, *sum);
                            }
                        }
                    }
                    for r in 0..height {
                        w[(i + r) * columns + column] = sums[r];
                    }
                }
            }
        }
    }

    /// A matrix w `[d_in, d_out]`.
    pub(crate) struct Matrix {
        /// The rows, padded with zeros to whole [`LANES`].
        rows: Vec<f32>,
        d_in: usize,
        d_out: usize,
    }

    impl Matrix {
        pub(crate) fn new(w: &FlexTensor) -> Self {
            let [d_in, d_out] = w.shape().dims();
            let w = w.to_contiguous();
            let rows = slice::<f32>(&w).chunks_exact(d_out).flat_map(|row| {
                let zeros = d_out.next_multiple_of(LANES) - d_out;
                row.iter().copied().chain(std::iter::repeat_n(0.0, zeros))
            });
            let rows = rows.collect();
            Self { rows, d_in, d_out }
        }

        pub(crate) fn transposed(w: &FlexTensor) -> Self {
            Self::new(&Flex::float_swap_dims(w.clone(), 0, 1))
        }

        /// y = x · w.
        pub(crate) fn times(&self, x: &[f32], y: &mut [f32]) {
            simd(Tall {
                x,
                w: &self.rows,
                d_in: self.d_in,
                d_out: self.d_out,
                y,
            });
        }
    }

    /// xᵀ · y for rows of `d_in` and `d_out` elements. The rows of the result are padded.
    pub(crate) fn outer(x: &[f32], y: &[f32], [d_in, d_out]: [usize; 2]) -> Vec<f32> {
        let mut w = vec![0.0; d_in * d_out.next_multiple_of(LANES)];
        simd(Outer {
            x,
            y,
            d_in,
            d_out,
            w: &mut w,
        });
        w
    }

    /// Sums several results of [`outer`] to `[d_in, d_out]`.
    pub(crate) fn sum_of_outer(parts: Vec<Vec<f32>>, [d_in, d_out]: [usize; 2]) -> FlexTensor {
        let padded = d_out.next_multiple_of(LANES);
        let w = add_up(parts, d_in * padded);
        let rows = w.chunks_exact(padded).map(|row| &row[..d_out]);
        let w: Vec<f32> = rows.flatten().copied().collect();
        FlexTensor::from_data(TensorData::new(w, [d_in, d_out]))
    }

    /// Whether x has many rows and w is small.
    fn has_small_matrix([x, w]: [&FlexTensor; 2]) -> bool {
        let [rows, _]: [usize; 2] = x.shape().dims();
        rows >= 4 * TALL && is_small(w)
    }

    /// Whether w has at least one row and one column, and at most [`SMALL`] of both.
    pub(crate) fn is_small(w: &FlexTensor) -> bool {
        let sides: [usize; 2] = w.shape().dims();
        sides.iter().all(|side| (1..=SMALL).contains(side))
    }

    /// Multiplies all rows of x by `w`.
    fn times(x: &FlexTensor, w: &Matrix) -> FlexTensor {
        let from = slice::<f32>(x);
        let rows = from.len() / w.d_in;
        let mut y = zeros(rows * w.d_out);
        let tasks = (from.chunks(TALL * w.d_in)).zip(y.chunks_mut(TALL * w.d_out));
        each(tasks.collect(), from.len(), |(x, y)| w.times(x, y));
        FlexTensor::from_data(TensorData::new(y, [rows, w.d_out]))
    }

    impl Op<Flex, 2> for Product {
        type Kept = [FlexTensor; 2];

        fn takes(&self, inputs: &[FlexTensor; 2]) -> bool {
            inputs.iter().all(|x| x.dtype() == DType::F32)
        }

        fn forward(&self, [x, w]: [FlexTensor; 2]) -> (FlexTensor, [FlexTensor; 2]) {
            if !has_small_matrix([&x, &w]) {
                return (gemm::product(&x, &w), [x, w]);
            }
            let x = contiguous(x);
            (times(&x, &Matrix::new(&w)), [x, w])
        }

        fn backward(&self, [x, w]: [FlexTensor; 2], grad: FlexTensor) -> [FlexTensor; 2] {
            if !has_small_matrix([&x, &w]) {
                let transposed = |x| Flex::float_swap_dims(x, 0, 1);
                let dx = gemm::product(&grad, &transposed(w));
                return [dx, gemm::product(&transposed(x), &grad)];
            }
            let grad = contiguous(grad);
            let dx = times(&grad, &Matrix::transposed(&w));
            let sides = w.shape().dims();
            let [d_in, d_out] = sides;
            let (x, dy) = (slice::<f32>(&x), slice::<f32>(&grad));
            let tasks = x.chunks(TALL * d_in).zip(dy.chunks(TALL * d_out));
            let parts = each(tasks.collect(), x.len(), |(x, dy)| outer(x, dy, sides));
            [dx, sum_of_outer(parts, sides)]
        }
    }
}

#[cfg(feature = "tch")]
crate::op::no_kernel!(Product, 2, burn::backend::LibTorch, burn_tch::TchTensor);

#[cfg(feature = "flex")]
crate::op::no_kernel!(Linear, 3, burn::backend::Flex, burn_flex::FlexTensor);

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::Kind;

    use super::Linear;
    use crate::bf16::to_kind;
    use crate::op::Op;

    /// The inputs of the backward pass: x and w as they were multiplied, and the float types of x, w and b.
    #[derive(Clone, Debug)]
    pub struct Kept {
        inputs: [TchTensor; 2],
        kinds: [Kind; 3],
    }

    impl Op<LibTorch, 3> for Linear {
        type Kept = Kept;

        fn takes(&self, _: &[TchTensor; 3]) -> bool {
            true
        }

        fn forward(&self, inputs: [TchTensor; 3]) -> (TchTensor, Kept) {
            let kinds = inputs.each_ref().map(|x| x.tensor.kind());
            let [x, w, b] = match self.bf16 {
                true => inputs.map(|x| to_kind(x, Kind::BFloat16)),
                false => inputs,
            };
            let y = TchTensor::new(b.tensor.addmm(&x.tensor, &w.tensor));
            let kept = Kept {
                inputs: [x, w],
                kinds,
            };
            (y, kept)
        }

        fn backward(&self, kept: Kept, grad: TchTensor) -> [TchTensor; 3] {
            let Kept {
                inputs: [x, w],
                kinds: [of_x, of_w, of_b],
            } = kept;
            let grad = to_kind(grad, x.tensor.kind()).tensor;
            let dx = grad.matmul(&w.tensor.tr());
            let dw = x.tensor.tr().matmul(&grad);
            // The sum over all tokens is f32.
            let db = grad.sum_dim_intlist([0i64].as_slice(), false, of_b);
            [
                to_kind(TchTensor::new(dx), of_x),
                to_kind(TchTensor::new(dw), of_w),
                TchTensor::new(db),
            ]
        }
    }
}
