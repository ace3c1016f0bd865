//! Many rows by a small matrix, as in storage and retrieval in the RMT. The time is that of reading the rows.
//! A general matrix product first copies them into blocks.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
struct SmallMatrix;

/// Rows of w. With fewer, a general product is as fast.
const SMALL: std::ops::RangeInclusive<usize> = 8..=64;

/// x · w for x `[rows, d_in]` with many rows and a small w `[d_in, d_out]`.
///
/// # Errors
///
/// Returns `x` and `w` if there is no kernel for them.
pub fn small_matrix<B: Backend>(
    x: Tensor<B, 2>,
    w: Tensor<B, 2>,
) -> Result<Tensor<B, 2>, [Tensor<B, 2>; 2]> {
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let inputs = [x, w].map(|x| x.into_primitive().tensor());
    let result = apply::<B, _, 2>(&SmallMatrix, inputs);
    result.map(of).map_err(|inputs| inputs.map(of))
}

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::Flex;
    use burn::tensor::ops::FloatTensorOps as _;
    use burn::tensor::{DType, TensorData, TensorMetadata as _};
    use burn_flex::FlexTensor;
    use pulp::{Simd, WithSimd};

    use super::{SMALL, SmallMatrix};
    use crate::flex::{add_up, each, simd, slice};
    use crate::op::Op;

    /// Rows whose sums are in registers.
    const TILE: usize = 8;

    /// Every SIMD width divides it.
    const LANES: usize = 16;

    /// Rows of x that a task takes.
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
            let rows = x.chunks(TILE * d_in).zip(y.chunks_mut(TILE * d_out));
            for (x, y) in rows {
                // A missing row of the last tile is the first row again.
                let row = |r: usize| x.get(r * d_in..(r + 1) * d_in).unwrap_or(&x[..d_in]);
                let x: [&[f32]; TILE] = [0, 1, 2, 3, 4, 5, 6, 7].map(row);
                for column in 0..columns {
                    let mut sums = [simd.splat_f32s(0.0); TILE];
                    for (i, w) in w.chunks_exact(columns).enumerate() {
                        for r in 0..TILE {
                            let x = simd.splat_f32s(x[r][i]);
                            sums[r] = simd.mul_add_f32s(x, w[column], sums[r]);
                        }
                    }
                    let from = column * S::F32_LANES;
                    let to = d_out.min(from + S::F32_LANES);
                    if from < to {
                        for (y, &sums) in y.chunks_exact_mut(d_out).zip(&sums) {
                            simd.partial_store_f32s(&mut y[from..to], sums);
                        }
                    }
                }
            }
        }
    }

    /// w += xᵀ · y, a few rows at a time. The rows of w are padded to whole [`LANES`].
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
            let padded = d_out.next_multiple_of(LANES);
            for i in (0..d_in).step_by(TILE) {
                let height = TILE.min(d_in - i);
                for from in (0..d_out).step_by(S::F32_LANES) {
                    let to = d_out.min(from + S::F32_LANES);
                    let mut sums = [simd.splat_f32s(0.0); TILE];
                    for (x, y) in x.chunks_exact(d_in).zip(y.chunks_exact(d_out)) {
                        let y = simd.partial_load_f32s(&y[from..to]);
                        let mut xs = [0.0; TILE];
                        match x[i..].first_chunk() {
                            Some(x) => xs = *x,
                            None => xs[..height].copy_from_slice(&x[i..]),
                        }
                        for r in 0..TILE {
                            sums[r] = simd.mul_add_f32s(simd.splat_f32s(xs[r]), y, sums[r]);
                        }
                    }
                    for (r, &sums) in sums.iter().enumerate().take(height) {
                        simd.partial_store_f32s(&mut w[(i + r) * padded..][from..to], sums);
                    }
                }
            }
        }
    }

    /// The rows of w, padded with zeros to whole [`LANES`].
    fn padded(w: &FlexTensor) -> Vec<f32> {
        let [_, d_out] = w.shape().dims();
        let w = w.to_contiguous();
        let rows = slice::<f32>(&w).chunks_exact(d_out).flat_map(|row| {
            let zeros = d_out.next_multiple_of(LANES) - d_out;
            row.iter().copied().chain(std::iter::repeat_n(0.0, zeros))
        });
        rows.collect()
    }

    fn tall(x: &FlexTensor, w: &FlexTensor) -> FlexTensor {
        let ([rows, d_in], [_, d_out]) = (x.shape().dims(), w.shape().dims());
        let w = padded(w);
        let mut y = vec![0.0; rows * d_out];
        let tasks = slice::<f32>(x)
            .chunks(TALL * d_in)
            .zip(y.chunks_mut(TALL * d_out));
        each(tasks.collect(), rows * d_in, |(x, y)| {
            simd(Tall {
                x,
                w: &w,
                d_in,
                d_out,
                y,
            });
        });
        FlexTensor::from_data(TensorData::new(y, [rows, d_out]))
    }

    /// xᵀ · y.
    fn outer(x: &FlexTensor, y: &FlexTensor) -> FlexTensor {
        let ([rows, d_in], [_, d_out]) = (x.shape().dims(), y.shape().dims());
        let padded = d_out.next_multiple_of(LANES);
        let tasks = slice::<f32>(x)
            .chunks(TALL * d_in)
            .zip(slice::<f32>(y).chunks(TALL * d_out));
        let parts = each(tasks.collect(), rows * d_in, |(x, y)| {
            let mut w = vec![0.0; d_in * padded];
            simd(Outer {
                x,
                y,
                d_in,
                d_out,
                w: &mut w,
            });
            w
        });
        let w = add_up(parts, d_in * padded);
        let w: Vec<f32> = (w.chunks_exact(padded))
            .flat_map(|row| row[..d_out].iter().copied())
            .collect();
        FlexTensor::from_data(TensorData::new(w, [d_in, d_out]))
    }

    impl Op<Flex, 2> for SmallMatrix {
        type Kept = [FlexTensor; 2];

        fn takes(&self, inputs: &[FlexTensor; 2]) -> bool {
            let [x, w] = inputs;
            let ([rows, _], [d_in, d_out]) = (x.shape().dims(), w.shape().dims());
            let small = SMALL.contains(&d_in) && (1..=*SMALL.end()).contains(&d_out);
            x.dtype() == DType::F32 && rows >= 4 * TALL && small
        }

        fn forward(&self, [x, w]: [FlexTensor; 2]) -> (FlexTensor, [FlexTensor; 2]) {
            let x = x.to_contiguous();
            (tall(&x, &w), [x, w])
        }

        fn backward(&self, [x, w]: [FlexTensor; 2], grad: FlexTensor) -> [FlexTensor; 2] {
            let grad = grad.to_contiguous();
            let transposed = Flex::float_swap_dims(w, 0, 1);
            let dx = tall(&grad, &transposed);
            [dx, outer(&x, &grad)]
        }
    }
}

#[cfg(feature = "tch")]
mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;

    use super::SmallMatrix;
    use crate::op::Op;

    /// PyTorch has no kernel for this case.
    impl Op<LibTorch, 2> for SmallMatrix {
        type Kept = ();

        fn takes(&self, _: &[TchTensor; 2]) -> bool {
            false
        }

        fn forward(&self, _: [TchTensor; 2]) -> (TchTensor, ()) {
            unreachable!("it takes no inputs")
        }

        fn backward(&self, (): (), _: TchTensor) -> [TchTensor; 2] {
            unreachable!("it takes no inputs")
        }
    }
}
