//! The normalisations of Sinkhorn and Knopp, with a unit for each matrix.

use burn::tensor::TensorMetadata as _;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;

use super::{empty, fits, units};
use crate::op::Op;
use crate::sinkhorn::Sinkhorn;

/// Largest side of a matrix, and largest number of steps. A unit keeps the matrices of all steps.
const SIDE: usize = 4;
const STEPS: usize = 64;

/// Divides each line of `matrix` by its sum plus ε, and writes the factors from index `at` on. A line is a column in
/// even steps, and a row in odd steps.
#[cube]
fn divide(
    matrix: &mut Array<f32>,
    factors: &mut Array<f32>,
    at: usize,
    step: usize,
    eps: f32,
    #[comptime] n: usize,
) {
    let odd = step % 2;
    let next = select(odd == 0, n, 1);
    #[unroll]
    for line in 0..n {
        let first = select(odd == 0, line, line * n);
        let mut sum = 0.0f32;
        #[unroll]
        for k in 0..n {
            sum += matrix[first + k * next];
        }
        let factor = 1.0f32 / (sum + eps);
        factors[at + line] = factor;
        #[unroll]
        for k in 0..n {
            matrix[first + k * next] *= factor;
        }
    }
}

/// out = the matrix after all steps.
#[cube(launch)]
fn forward(
    matrices: &Array<f32>,
    out: &mut Array<f32>,
    eps: f32,
    #[comptime] n: usize,
    #[comptime] steps: usize,
) {
    let size = comptime!(n * n);
    let from = ABSOLUTE_POS * size;
    if from < out.len() {
        let mut matrix = Array::<f32>::new(size);
        let mut factors = Array::<f32>::new(n);
        #[unroll]
        for i in 0..size {
            matrix[i] = matrices[from + i];
        }
        let mut step = 0;
        while step < steps {
            divide(&mut matrix, &mut factors, 0, step, eps, n);
            step += 1;
        }
        #[unroll]
        for i in 0..size {
            out[from + i] = matrix[i];
        }
    }
}

/// dx = (dy − Σ dy · y) f along each line, from the last step to the first. y is the matrix after the step, and f is
/// the factor of the line.
#[cube(launch)]
fn gradient(
    matrices: &Array<f32>,
    grad: &Array<f32>,
    out: &mut Array<f32>,
    eps: f32,
    #[comptime] n: usize,
    #[comptime] steps: usize,
) {
    let size = comptime!(n * n);
    let from = ABSOLUTE_POS * size;
    if from < out.len() {
        let mut matrix = Array::<f32>::new(size);
        let mut d = Array::<f32>::new(size);
        let mut after = Array::<f32>::new(comptime!(n * n * steps));
        let mut factors = Array::<f32>::new(comptime!(n * steps));
        #[unroll]
        for i in 0..size {
            matrix[i] = matrices[from + i];
            d[i] = grad[from + i];
        }
        let mut step = 0;
        while step < steps {
            divide(&mut matrix, &mut factors, step * n, step, eps, n);
            #[unroll]
            for i in 0..size {
                after[step * size + i] = matrix[i];
            }
            step += 1;
        }
        while step > 0 {
            step -= 1;
            let odd = step % 2;
            let next = select(odd == 0, n, 1);
            #[unroll]
            for line in 0..n {
                let first = select(odd == 0, line, line * n);
                let mut along = 0.0f32;
                #[unroll]
                for k in 0..n {
                    let i = first + k * next;
                    along += d[i] * after[step * size + i];
                }
                #[unroll]
                for k in 0..n {
                    let i = first + k * next;
                    d[i] = (d[i] - along) * factors[step * n + line];
                }
            }
        }
        #[unroll]
        for i in 0..size {
            out[from + i] = d[i];
        }
    }
}

/// Flattens x to one axis.
fn flat<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    let count = x.meta.num_elements();
    into_contiguous(reshape(x, [count].into()))
}

impl<R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 1> for Sinkhorn
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = CubeTensor<R>;

    /// Takes small matrices and few steps.
    fn takes(&self, inputs: &[CubeTensor<R>; 1]) -> bool {
        let side = inputs[0].shape()[3];
        fits(inputs) && side <= SIDE && (1..=STEPS).contains(&self.steps)
    }

    fn forward(&self, [m]: [CubeTensor<R>; 1]) -> (CubeTensor<R>, CubeTensor<R>) {
        let shape = m.shape();
        let n = shape[3];
        let from = flat(m.clone());
        let out = empty(&from, from.shape());
        let (cubes, dim) = units(from.meta.num_elements() / (n * n));
        forward::launch::<R>(
            &out.client,
            cubes,
            dim,
            from.into_array_arg(),
            out.clone().into_array_arg(),
            self.eps as f32,
            n,
            self.steps,
        );
        (reshape(out, shape), m)
    }

    fn backward(&self, m: CubeTensor<R>, grad: CubeTensor<R>) -> [CubeTensor<R>; 1] {
        let shape = m.shape();
        let n = shape[3];
        let [m, grad] = [m, grad].map(flat);
        let out = empty(&m, m.shape());
        let (cubes, dim) = units(m.meta.num_elements() / (n * n));
        gradient::launch::<R>(
            &out.client,
            cubes,
            dim,
            m.into_array_arg(),
            grad.into_array_arg(),
            out.clone().into_array_arg(),
            self.eps as f32,
            n,
            self.steps,
        );
        [reshape(out, shape)]
    }
}
