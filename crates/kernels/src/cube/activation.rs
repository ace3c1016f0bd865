//! Activations of f32 or bf16 numbers, computed in f32, with a unit for each number or vector of numbers.

use burn::tensor::TensorMetadata as _;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::LinearView;

use super::{empty_of, fits_float, to_dtype, units, vector};
use crate::Activation;
use crate::op::Op;

/// 2 √(2/π).
const TWICE: f32 = 1.595_769_2;
/// 1 / √2.
const ROOT_HALF: f32 = std::f32::consts::FRAC_1_SQRT_2;
/// 1 / √(2π).
const DENSITY: f32 = 0.398_942_3;

/// Computes f(x).
#[cube]
pub(super) fn value<N: Size>(
    x: Vector<f32, N>,
    #[comptime] activation: Activation,
) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    match activation {
        Activation::GeluTanh => {
            // x σ(u) = ½ x (1 + tanh(u / 2)), u = 2 √(2/π) (x + 0.044715 x³).
            let u = x * Vector::new(TWICE) * (one + x * x * Vector::new(0.044715f32));
            x / (one + Vector::exp(-u))
        }
        Activation::GeluErf => {
            let half = Vector::<f32, N>::new(0.5f32);
            x * (half + half * Vector::erf(x * Vector::new(ROOT_HALF)))
        }
        // NaN stays NaN.
        Activation::Relu => {
            let zero = Vector::<f32, N>::new(0.0f32);
            select_many(x.less_than(zero), zero, x)
        }
        Activation::SquaredRelu => {
            let zero = Vector::<f32, N>::new(0.0f32);
            select_many(x.less_than(zero), zero, x * x)
        }
        Activation::Silu => x / (one + Vector::exp(-x)),
        Activation::Tanh => Vector::tanh(x),
    }
}

/// Computes f'(x).
#[cube]
pub(super) fn slope<N: Size>(
    x: Vector<f32, N>,
    #[comptime] activation: Activation,
) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    match activation {
        Activation::GeluTanh => {
            // Beyond ±30, the slope is constant and x³ could be infinite.
            let far = Vector::<f32, N>::new(30.0f32);
            let x = max(min(x, far), -far);
            let cube = x * x * Vector::new(0.044715f32);
            let u = x * Vector::new(TWICE) * (one + cube);
            let d = Vector::new(TWICE) * (one + cube * Vector::new(3.0f32));
            let gate = one / (one + Vector::exp(-u));
            gate + x * gate * (one - gate) * d
        }
        Activation::GeluErf => {
            let half = Vector::<f32, N>::new(0.5f32);
            let gate = half + half * Vector::erf(x * Vector::new(ROOT_HALF));
            gate + x * Vector::new(DENSITY) * Vector::exp(-half * x * x)
        }
        Activation::Relu => {
            let zero = Vector::<f32, N>::new(0.0f32);
            select_many(x.greater_than(zero), one, zero)
        }
        Activation::SquaredRelu => {
            let zero = Vector::<f32, N>::new(0.0f32);
            select_many(x.greater_than(zero), x + x, zero)
        }
        Activation::Silu => {
            let gate = one / (one + Vector::exp(-x));
            gate + x * gate * (one - gate)
        }
        Activation::Tanh => {
            let y = Vector::tanh(x);
            one - y * y
        }
    }
}

/// y = f(x).
#[cube(launch)]
fn forward<F: Float, N: Size>(
    x: &LinearView<Vector<F, N>>,
    y: &mut LinearView<Vector<F, N>, ReadWrite>,
    #[comptime] activation: Activation,
    #[define(F)] _float: StorageType,
) {
    if y.is_in_bounds(ABSOLUTE_POS) {
        let x = Vector::<f32, N>::cast_from(x[ABSOLUTE_POS]);
        y[ABSOLUTE_POS] = Vector::cast_from(value::<N>(x, activation));
    }
}

/// dx = f'(x) dy.
#[cube(launch)]
fn gradient<F: Float, N: Size>(
    x: &LinearView<Vector<F, N>>,
    dy: &LinearView<Vector<F, N>>,
    dx: &mut LinearView<Vector<F, N>, ReadWrite>,
    #[comptime] activation: Activation,
    #[define(F)] _float: StorageType,
) {
    if dx.is_in_bounds(ABSOLUTE_POS) {
        let x = Vector::<f32, N>::cast_from(x[ABSOLUTE_POS]);
        let dy = Vector::<f32, N>::cast_from(dy[ABSOLUTE_POS]);
        dx[ABSOLUTE_POS] = Vector::cast_from(slope::<N>(x, activation) * dy);
    }
}

impl<R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 1> for Activation
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = CubeTensor<R>;

    fn takes(&self, inputs: &[CubeTensor<R>; 1]) -> bool {
        fits_float(inputs)
    }

    fn forward(&self, [x]: [CubeTensor<R>; 1]) -> (CubeTensor<R>, CubeTensor<R>) {
        let x = into_contiguous(x);
        let y = empty_of(&x, x.shape(), x.dtype);
        let vector = vector(&x);
        let (cubes, dim) = units(x.meta.num_elements() / vector);
        forward::launch::<R>(
            &x.client,
            cubes,
            dim,
            vector,
            x.clone().into_linear_view(),
            y.clone().into_linear_view(),
            *self,
            x.dtype.into(),
        );
        (y, x)
    }

    fn backward(&self, x: CubeTensor<R>, grad: CubeTensor<R>) -> [CubeTensor<R>; 1] {
        let dy = into_contiguous(to_dtype(grad, x.dtype));
        let dx = empty_of(&x, x.shape(), x.dtype);
        let vector = vector(&x).min(vector(&dy));
        let (cubes, dim) = units(x.meta.num_elements() / vector);
        let (client, float) = (x.client.clone(), x.dtype);
        gradient::launch::<R>(
            &client,
            cubes,
            dim,
            vector,
            x.into_linear_view(),
            dy.into_linear_view(),
            dx.clone().into_linear_view(),
            *self,
            float.into(),
        );
        [dx]
    }
}
