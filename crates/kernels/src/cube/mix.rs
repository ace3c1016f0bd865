//! Weighted sums of the parallel streams at each position.

use burn::tensor::TensorMetadata as _;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;

use super::{empty, fits, sums, units};
use crate::mix::Mix;
use crate::op::Op;

/// out_t = Σ_s w[s, t] x_s for x `[positions, n, d]` and out `[positions, m, d]`, with a unit for each position and
/// column. The weights of position p begin at element p · `next`, and w[s, t] is `by_s` · s + `by_t` · t elements
/// further.
#[cube(launch)]
fn sum(
    w: &Array<f32>,
    x: &Tensor<f32>,
    out: &mut Tensor<f32>,
    next: usize,
    by_s: usize,
    by_t: usize,
) {
    let d = x.shape(2);
    let unit = ABSOLUTE_POS;
    if unit < x.shape(0) * d {
        let position = unit / d;
        let column = unit % d;
        let mut t = 0;
        while t < out.shape(1) {
            let mut sum = 0.0f32;
            let mut s = 0;
            while s < x.shape(1) {
                let weight = w[position * next + s * by_s + t * by_t];
                sum += weight * x[position * x.stride(0) + s * x.stride(1) + column];
                s += 1;
            }
            out[position * out.stride(0) + t * out.stride(1) + column] = sum;
            t += 1;
        }
    }
}

/// dw[s, t] = ⟨x_s, g_t⟩ for each position, with a unit for each weight.
#[cube(launch)]
fn products(x: &Tensor<f32>, grad: &Tensor<f32>, out: &mut Array<f32>) {
    let (n, m) = (x.shape(1), grad.shape(1));
    let unit = ABSOLUTE_POS;
    if unit < x.shape(0) * n * m {
        let position = unit / (n * m);
        let s = unit % (n * m) / m;
        let t = unit % m;
        let of_x = position * x.stride(0) + s * x.stride(1);
        let of_grad = position * grad.stride(0) + t * grad.stride(1);
        let mut sum = 0.0f32;
        let mut i = 0;
        while i < x.shape(2) {
            sum += x[of_x + i] * grad[of_grad + i];
            i += 1;
        }
        out[unit] = sum;
    }
}

/// Joins the batch and time axes: `[batch, time, n, d]` to `[positions, n, d]`.
fn positions<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    let [batch, time, n, d]: [usize; 4] = x.shape().dims();
    into_contiguous(reshape(x, [batch * time, n, d].into()))
}

/// Mixes the streams x `[batch, time, n, d]` with the weights a, or with `transposed` their transposes.
fn mixed<R: CubeRuntime>(a: &CubeTensor<R>, x: CubeTensor<R>, transposed: bool) -> CubeTensor<R> {
    let [rows, columns, height, width]: [usize; 4] = a.shape().dims();
    let [batch, time, _, d]: [usize; 4] = x.shape().dims();
    let (m, by_s, by_t) = match transposed {
        true => (height, 1, width),
        false => (width, width, 1),
    };
    let next = if rows * columns == 1 {
        0
    } else {
        height * width
    };
    let x = positions(x);
    let out = empty(&x, [batch * time, m, d]);
    let (cubes, dim) = units(batch * time * d);
    let client = x.client.clone();
    sum::launch::<R>(
        &client,
        cubes,
        dim,
        reshape(a.clone(), [a.meta.num_elements()].into()).into_array_arg(),
        x.into_tensor_arg(),
        out.clone().into_tensor_arg(),
        next,
        by_s,
        by_t,
    );
    reshape(out, [batch, time, m, d].into())
}

impl<R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 2> for Mix
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = [CubeTensor<R>; 2];

    fn takes(&self, inputs: &[CubeTensor<R>; 2]) -> bool {
        fits(inputs)
    }

    fn forward(&self, [a, h]: [CubeTensor<R>; 2]) -> (CubeTensor<R>, [CubeTensor<R>; 2]) {
        (mixed(&a, h.clone(), false), [a, h])
    }

    fn backward(&self, [a, h]: [CubeTensor<R>; 2], grad: CubeTensor<R>) -> [CubeTensor<R>; 2] {
        let dh = mixed(&a, grad.clone(), true);
        let [h, grad] = [h, grad].map(positions);
        let [count, n, _]: [usize; 3] = h.shape().dims();
        let m = grad.shape()[1];
        let da = empty(&h, [count * n * m]);
        let (cubes, dim) = units(count * n * m);
        let client = h.client.clone();
        products::launch::<R>(
            &client,
            cubes,
            dim,
            h.into_tensor_arg(),
            grad.into_tensor_arg(),
            da.clone().into_array_arg(),
        );
        let da = match a.meta.num_elements() == n * m {
            true => sums::over_rows(reshape(da, [count, n * m].into())),
            false => da,
        };
        [reshape(da, a.shape()), dh]
    }
}
