//! Affine maps, whose bias gradients are sums over rows, and products of many rows with a small matrix.

use burn::tensor::{Shape, TensorMetadata as _};
use burn_cubecl::kernel::{into_contiguous, slice};
use burn_cubecl::ops::numeric::add;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};

use super::matmul::{matmul, transposed};
use super::{fits, sums};
use crate::op::Op;
use crate::product::{Linear, Product, SMALL};

/// Number of parts of a sum over many rows.
const PARTS: usize = 256;

/// Computes xᵀ · y for `[rows, d_in]` and `[rows, d_out]`.
///
/// A single product would leave the sum over all rows to only a few cubes. Instead, each part of the rows has its own
/// product, and the products are added.
fn outer<R: CubeRuntime>(x: CubeTensor<R>, y: CubeTensor<R>) -> CubeTensor<R> {
    let [rows, d_in]: [usize; 2] = x.shape().dims();
    let d_out = y.shape()[1];
    let per_part = rows / PARTS;
    let whole = PARTS * per_part;
    let parts = |x: &CubeTensor<R>, d| {
        // When Burn 0.21 reshapes a non-contiguous column, the strides are wrong.
        let x = into_contiguous(slice(x.clone(), &[0..whole, 0..d]));
        reshape(x, Shape::new([PARTS, per_part, d]))
    };
    let of_parts = matmul(transposed(parts(&x, d_in)), parts(&y, d_out));
    let sum = sums::over_rows(reshape(of_parts, Shape::new([PARTS, d_in * d_out])));
    let sum = reshape(sum, Shape::new([d_in, d_out]));
    if whole == rows {
        return sum;
    }
    let rest = |x: CubeTensor<R>, d| slice(x, &[whole..rows, 0..d]);
    let rest = matmul(transposed(rest(x, d_in)), rest(y, d_out));
    add(sum, rest)
}

impl<R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 3> for Linear
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = [CubeTensor<R>; 2];

    fn takes(&self, inputs: &[CubeTensor<R>; 3]) -> bool {
        !self.bf16 && fits(inputs)
    }

    fn forward(&self, [x, w, b]: [CubeTensor<R>; 3]) -> (CubeTensor<R>, [CubeTensor<R>; 2]) {
        let d_out = b.shape()[0];
        let y = matmul(x.clone(), w.clone());
        let y = add(y, reshape(b, Shape::new([1, d_out])));
        (y, [x, w])
    }

    fn backward(&self, [x, w]: [CubeTensor<R>; 2], grad: CubeTensor<R>) -> [CubeTensor<R>; 3] {
        let dx = matmul(grad.clone(), transposed(w));
        let dw = matmul(transposed(x), grad.clone());
        [dx, dw, sums::over_rows(grad)]
    }
}

impl<R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 2> for Product
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = [CubeTensor<R>; 2];

    /// Takes many rows and a small matrix.
    fn takes(&self, inputs: &[CubeTensor<R>; 2]) -> bool {
        let [x, w] = inputs;
        let is_small = w.shape().iter().all(|side| *side <= SMALL);
        fits(inputs) && x.shape()[0] >= 16 * PARTS && is_small
    }

    fn forward(&self, [x, w]: [CubeTensor<R>; 2]) -> (CubeTensor<R>, [CubeTensor<R>; 2]) {
        let y = matmul(x.clone(), w.clone());
        (y, [x, w])
    }

    fn backward(&self, [x, w]: [CubeTensor<R>; 2], grad: CubeTensor<R>) -> [CubeTensor<R>; 2] {
        let dx = matmul(grad.clone(), transposed(w));
        [dx, outer(x, grad)]
    }
}
