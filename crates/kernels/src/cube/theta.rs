//! TokenFormer's Θ, with a cube for each row.

use burn::tensor::TensorMetadata as _;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;

use super::activation::{slope, value};
use super::{RowCubes, cube_sum, empty, fits, grid, rows, sums};
use crate::Activation;
use crate::op::Op;
use crate::theta::{Form, Theta};

/// Computes φ(x). `N` is 1.
#[cube]
fn phi<N: Size>(x: f32, #[comptime] activation: Activation) -> f32 {
    value::<N>(Vector::new(x), activation)[0]
}

/// Computes φ'(x). `N` is 1.
#[cube]
fn phi_slope<N: Size>(x: f32, #[comptime] activation: Activation) -> f32 {
    slope::<N>(Vector::new(x), activation)[0]
}

/// Returns the norm that the form of Θ takes: the norm of a row of scores, or of the activations of the scores.
#[cube]
fn norm<N: Size>(
    a: &Tensor<f32>,
    from: usize,
    shared: &mut SharedMemory<f32>,
    #[comptime] form: Form,
    #[comptime] activation: Activation,
    #[comptime] planes: bool,
) -> f32 {
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < a.shape(1) {
        let x = a[from + i];
        if comptime!(form == Form::NormThenActivation) {
            sum += x * x;
        } else {
            let h = phi::<N>(x, activation);
            if comptime!(form == Form::ActivationThenL1) {
                sum += h.abs();
            } else {
                sum += h * h;
            }
        }
        i += CUBE_DIM as usize;
    }
    let sum = cube_sum(sum, shared, planes);
    if comptime!(form == Form::ActivationThenL1) {
        sum
    } else {
        sum.sqrt()
    }
}

/// y = Θ(a). A row with norm 0 gives 0.
#[cube(launch)]
fn forward<N: Size>(
    a: &Tensor<f32>,
    tau: &Array<f32>,
    y: &mut Tensor<f32>,
    eps: f32,
    #[comptime] form: Form,
    #[comptime] activation: Activation,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let mut shared = SharedMemory::<f32>::new(units);
    let row = CUBE_POS;
    if row < a.shape(0) {
        let (from, to) = (row * a.stride(0), row * y.stride(0));
        let norm = norm::<N>(a, from, &mut shared, form, activation, planes);
        let factor = select(norm == 0.0f32, 0.0f32, tau[0] / (norm + eps));
        let mut i = UNIT_POS as usize;
        while i < a.shape(1) {
            let x = a[from + i];
            if comptime!(form == Form::NormThenActivation) {
                y[to + i] = phi::<N>(x * factor, activation);
            } else {
                y[to + i] = phi::<N>(x, activation) * factor;
            }
            i += CUBE_DIM as usize;
        }
    }
}

/// Computes da, and the contribution of each row to dτ. As in the kernel for Flex, both use 1 / (norm + ε) and its
/// derivative.
#[cube(launch)]
fn gradient<N: Size>(
    a: &Tensor<f32>,
    tau: &Array<f32>,
    dy: &Tensor<f32>,
    da: &mut Tensor<f32>,
    d_tau: &mut Array<f32>,
    eps: f32,
    #[comptime] form: Form,
    #[comptime] activation: Activation,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let mut shared = SharedMemory::<f32>::new(units);
    let row = CUBE_POS;
    let width = a.shape(1);
    if row < a.shape(0) {
        let (from, of_dy, to) = (row * a.stride(0), row * dy.stride(0), row * da.stride(0));
        let norm = norm::<N>(a, from, &mut shared, form, activation, planes);
        let is_zero = norm == 0.0f32;
        let inverse = select(is_zero, 0.0f32, 1.0f32 / (norm + eps));
        let factor = tau[0] * inverse;
        // The gradient of the factor.
        let mut d_factor = 0.0f32;
        let mut i = UNIT_POS as usize;
        while i < width {
            let (x, d) = (a[from + i], dy[of_dy + i]);
            if comptime!(form == Form::NormThenActivation) {
                d_factor += phi_slope::<N>(x * factor, activation) * d * x;
            } else {
                d_factor += d * phi::<N>(x, activation);
            }
            i += CUBE_DIM as usize;
        }
        let d_factor = cube_sum(d_factor, &mut shared, planes);
        let mut by_norm = -d_factor * tau[0] * inverse * inverse;
        if comptime!(form != Form::ActivationThenL1) {
            by_norm = select(is_zero, 0.0f32, by_norm / norm);
        }
        let mut i = UNIT_POS as usize;
        while i < width {
            let (x, d) = (a[from + i], dy[of_dy + i]);
            if comptime!(form == Form::NormThenActivation) {
                let d = phi_slope::<N>(x * factor, activation) * d;
                da[to + i] = d * factor + by_norm * x;
            } else {
                let h = phi::<N>(x, activation);
                let mut of_norm = h;
                if comptime!(form == Form::ActivationThenL1) {
                    let positive = select(h > 0.0f32, 1.0f32, 0.0f32);
                    of_norm = positive - select(h < 0.0f32, 1.0f32, 0.0f32);
                }
                da[to + i] = (d * factor + by_norm * of_norm) * phi_slope::<N>(x, activation);
            }
            i += CUBE_DIM as usize;
        }
        if UNIT_POS == 0 {
            d_tau[row] = d_factor * inverse;
        }
    }
}

impl<R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 2> for Theta
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = [CubeTensor<R>; 2];

    fn takes(&self, inputs: &[CubeTensor<R>; 2]) -> bool {
        fits(inputs) && self.form != Form::Softmax
    }

    fn forward(&self, [a, tau]: [CubeTensor<R>; 2]) -> (CubeTensor<R>, [CubeTensor<R>; 2]) {
        let x = rows(a.clone());
        let [count, width]: [usize; 2] = x.shape().dims();
        let y = empty(&x, [count, width]);
        let cubes = RowCubes::of(&x);
        let client = x.client.clone();
        forward::launch::<R>(
            &client,
            grid(count),
            cubes.dim(),
            1,
            x.into_tensor_arg(),
            into_contiguous(tau.clone()).into_array_arg(),
            y.clone().into_tensor_arg(),
            self.eps as f32,
            self.form,
            self.activation,
            cubes.units,
            cubes.planes,
        );
        (reshape(y, a.shape()), [a, tau])
    }

    fn backward(&self, [a, tau]: [CubeTensor<R>; 2], grad: CubeTensor<R>) -> [CubeTensor<R>; 2] {
        let shape = a.shape();
        let [a, dy] = [a, grad].map(rows);
        let [count, width]: [usize; 2] = a.shape().dims();
        let da = empty(&a, [count, width]);
        let d_tau = empty(&a, [count]);
        let cubes = RowCubes::of(&a);
        let client = a.client.clone();
        gradient::launch::<R>(
            &client,
            grid(count),
            cubes.dim(),
            1,
            a.into_tensor_arg(),
            into_contiguous(tau).into_array_arg(),
            dy.into_tensor_arg(),
            da.clone().into_tensor_arg(),
            d_tau.clone().into_array_arg(),
            self.eps as f32,
            self.form,
            self.activation,
            cubes.units,
            cubes.planes,
        );
        let d_tau = sums::over_rows(reshape(d_tau, [count, 1].into()));
        [reshape(da, shape), d_tau]
    }
}
