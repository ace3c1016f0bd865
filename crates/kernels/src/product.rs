//! Products of rows with a matrix.
//!
//! Multiplying many rows by a small matrix, as in storage and retrieval in the Residual Matrix Transformer (RMT), takes
//! about as long as reading the rows. A general product would first copy the rows into blocks.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};

use crate::op::apply;

/// The operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product;

/// Maximum number of rows and columns of a small matrix.
pub(crate) const SMALL: usize = 64;

/// Computes x · w for x `[rows, d_in]` and w `[d_in, d_out]`.
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

/// The float type of an affine map.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Whether x, w, b and the result are rounded to bf16. The gradients of x, w and b keep the float types of x, w and
    /// b.
    pub bf16: bool,
}

/// x, w and b of an affine map.
pub type Affine<B> = (Tensor<B, 2>, Tensor<B, 2>, Tensor<B, 1>);

/// Computes x · w + b for x `[rows, d_in]`, w `[d_in, d_out]` and b `[d_out]`.
///
/// # Errors
///
/// Returns x, w and b if there is no kernel for them.
pub fn linear<B: Backend>(
    linear: Linear,
    x: Tensor<B, 2>,
    w: Tensor<B, 2>,
    b: Tensor<B, 1>,
) -> Result<Tensor<B, 2>, Affine<B>> {
    let inputs = [
        x.into_primitive().tensor(),
        w.into_primitive().tensor(),
        b.into_primitive().tensor(),
    ];
    let result = apply::<B, _, 3>(&linear, inputs);
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

    /// Unit of padding: rows are padded to a multiple of this number of elements. The unit is a multiple of every SIMD
    /// width.
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
                // A vector can write beyond its row. Columns go from right to left and rows from top to bottom, so that
                // the rows below overwrite these elements.
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

    /// w = xᵀ · y. The rows of w are padded to whole [`LANES`].
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

        /// Computes y = x · w.
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

    /// Computes xᵀ · y for rows of `d_in` and `d_out` elements. The rows of the result are padded.
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

    /// Whether w has at least one row and one column, and at most [`SMALL`] of each.
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

#[cfg(feature = "flex")]
crate::op::no_kernel!(Linear, 3, burn::backend::Flex, burn_flex::FlexTensor);

#[cfg(feature = "tch")]
pub(crate) mod libtorch {
    use burn::backend::LibTorch;
    use burn_tch::TchTensor;
    use tch::{Kind, Tensor};

    use super::{Linear, Product};
    use crate::libtorch::{is_cuda, unit};
    use crate::op::Op;

    /// x `[rows, d_in]` and w `[d_in, d_out]`, converted and padded for the product.
    ///
    /// Tensor cores are about six times slower if the size of a row is not a multiple of 16 bytes, as with GPT-2's
    /// 50,257 token ids. On CUDA, the w of a large product is then padded with columns of zeros, and the product is a
    /// view without them.
    #[derive(Clone, Debug)]
    pub(crate) struct Factors {
        x: TchTensor,
        w: TchTensor,
        d_out: i64,
    }

    impl Factors {
        /// Whether w is padded with columns.
        pub(crate) fn pads(x: &Tensor, w: &Tensor, kind: Kind) -> bool {
            let d_out = w.size()[1];
            let is_large = d_out >= 1024 && x.size()[0] * w.size()[0] >= 1 << 16;
            let ragged = unit(kind).is_some_and(|unit| d_out % unit != 0);
            is_cuda(x) && is_large && ragged
        }

        /// Makes the factors in the float type `kind`.
        pub(crate) fn new([x, w]: [TchTensor; 2], kind: Kind) -> Self {
            let d_out = w.tensor.size()[1];
            let w = match Self::pads(&x.tensor, &w.tensor, kind) {
                // A transposed view stays transposed.
                true if w.tensor.stride()[0] == 1 => {
                    let rows = padded(&w.tensor.tr(), 0, kind);
                    TchTensor::new(rows.tr())
                }
                true => TchTensor::new(padded(&w.tensor, 1, kind)),
                false => to_kind(w, kind),
            };
            let x = to_kind(x, kind);
            Self { x, w, d_out }
        }

        /// Computes x · w.
        pub(crate) fn product(&self) -> TchTensor {
            let y = self.x.tensor.matmul(&self.w.tensor);
            TchTensor::new(y.narrow(1, 0, self.d_out))
        }

        /// Returns the gradients of x and of w, in the float type of the factors.
        pub(crate) fn gradients(self, grad: TchTensor) -> [Tensor; 2] {
            let (x, w) = (self.x.tensor, self.w.tensor);
            let grad = match w.size()[1] > self.d_out {
                true => in_place(&grad, w.size()[1], x.kind())
                    .unwrap_or_else(|| padded(&grad.tensor, 1, x.kind())),
                false => to_kind(grad, x.kind()).tensor,
            };
            let dx = grad.matmul(&w.tr());
            // In the memory order of w.
            let dw = match w.stride()[0] {
                1 => grad.tr().matmul(&x).tr(),
                _ => x.tr().matmul(&grad),
            };
            [dx, dw.narrow(1, 0, self.d_out)]
        }
    }

    /// Pads the rows of x to `width` elements with zeros in place. Returns `None` if x does not have the float type
    /// `kind`, if there is no room, or if something else may use the memory.
    fn in_place(x: &TchTensor, width: i64, kind: Kind) -> Option<Tensor> {
        let (sizes, strides) = (x.tensor.size(), x.tensor.stride());
        let has_room = x.can_mut() && x.tensor.kind() == kind && strides == [width, 1];
        // Fails if the memory of x ends earlier.
        let all = has_room.then(|| x.tensor.f_as_strided([sizes[0], width], [width, 1], None))?;
        let all = all.ok()?;
        let _ = all.narrow(1, sizes[1], width - sizes[1]).zero_();
        Some(all)
    }

    /// Converts x to the float type `kind`, and pads `axis` with zeros to a multiple of 64 elements.
    fn padded(x: &Tensor, axis: i64, kind: Kind) -> Tensor {
        let mut sizes = x.size();
        let count = sizes[axis as usize];
        sizes[axis as usize] = (count as u64).next_multiple_of(64) as i64;
        let all = Tensor::empty(&sizes, (kind, x.device()));
        all.narrow(axis, 0, count).copy_(x);
        let _ = all
            .narrow(axis, count, sizes[axis as usize] - count)
            .zero_();
        all
    }

    /// Converts `x` to `kind`. If `x` already has this type, returns `x` itself, so that Burn knows that the memory is
    /// shared.
    pub(crate) fn to_kind(x: TchTensor, kind: Kind) -> TchTensor {
        match x.tensor.kind() == kind {
            true => x,
            false => TchTensor::new(x.tensor.to_kind(kind)),
        }
    }

    impl Op<LibTorch, 2> for Product {
        type Kept = Factors;

        /// Takes products whose w is padded. For all others, Burn's own product is as fast.
        fn takes(&self, [x, w]: &[TchTensor; 2]) -> bool {
            Factors::pads(&x.tensor, &w.tensor, x.tensor.kind())
        }

        fn forward(&self, inputs: [TchTensor; 2]) -> (TchTensor, Factors) {
            let kind = inputs[0].tensor.kind();
            let factors = Factors::new(inputs, kind);
            (factors.product(), factors)
        }

        fn backward(&self, factors: Factors, grad: TchTensor) -> [TchTensor; 2] {
            factors.gradients(grad).map(TchTensor::new)
        }
    }

    /// The inputs of the backward pass: the factors of the product, and the float types of x, w and b.
    #[derive(Clone, Debug)]
    pub struct Kept {
        factors: Factors,
        kinds: [Kind; 3],
    }

    impl Op<LibTorch, 3> for Linear {
        type Kept = Kept;

        fn takes(&self, [x, w, _]: &[TchTensor; 3]) -> bool {
            let kind = if self.bf16 {
                Kind::BFloat16
            } else {
                x.tensor.kind()
            };
            !Factors::pads(&x.tensor, &w.tensor, kind)
        }

        fn forward(&self, [x, w, b]: [TchTensor; 3]) -> (TchTensor, Kept) {
            let kinds = [&x, &w, &b].map(|x| x.tensor.kind());
            let kind = if self.bf16 { Kind::BFloat16 } else { kinds[0] };
            let factors = Factors::new([x, w], kind);
            let b = b.tensor.to_kind(kind);
            let y = b.addmm(&factors.x.tensor, &factors.w.tensor);
            (TchTensor::new(y), Kept { factors, kinds })
        }

        fn backward(&self, kept: Kept, grad: TchTensor) -> [TchTensor; 3] {
            let Kept { factors, kinds } = kept;
            let grad = to_kind(grad, factors.x.tensor.kind());
            // The sum over all tokens is f32.
            let db = grad
                .tensor
                .sum_dim_intlist([0i64].as_slice(), false, kinds[2]);
            let [dx, dw] = factors.gradients(grad);
            let [dx, dw] =
                [(dx, kinds[0]), (dw, kinds[1])].map(|(d, kind)| to_kind(TchTensor::new(d), kind));
            [dx, dw, TchTensor::new(db)]
        }
    }
}
