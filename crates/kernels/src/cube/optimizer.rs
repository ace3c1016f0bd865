//! AdamW, with one kernel launch for each parameter, and the sum of squares of all gradients.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorPrimitive};
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{UNITS, cube_sum, empty, fits, has_planes, owned, units};
use crate::AdamW;
use crate::op::{cast, plain_only, same};

/// The step, with a vector of elements for each unit.
#[cube(launch)]
fn step<N: Size>(
    x: &mut Array<Vector<f32, N>>,
    m: &mut Array<Vector<f32, N>>,
    v: &mut Array<Vector<f32, N>>,
    grad: &Array<Vector<f32, N>>,
    scale: f32,
    beta_1: f32,
    new_1: f32,
    beta_2: f32,
    new_2: f32,
    of_m: f32,
    of_v: f32,
    eps: f32,
    lr: f32,
    keep: f32,
) {
    let i = ABSOLUTE_POS;
    if i < grad.len() {
        let g = grad[i] * Vector::new(scale);
        let first = m[i] * Vector::new(beta_1) + g * Vector::new(new_1);
        let second = v[i] * Vector::new(beta_2) + g * g * Vector::new(new_2);
        let root = Vector::<f32, N>::sqrt(second * Vector::new(of_v)) + Vector::new(eps);
        let update = first * Vector::new(of_m) / root;
        x[i] = x[i] * Vector::new(keep) - update * Vector::new(lr);
        m[i] = first;
        v[i] = second;
    }
}

/// Takes a step in place. Copies tensors that something else holds.
pub(crate) fn adamw<R: CubeRuntime>(
    constants: AdamW,
    tensors: [CubeTensor<R>; 4],
) -> [CubeTensor<R>; 3] {
    let [x, m, v, grad] = tensors.map(into_contiguous);
    let [x, m, v] = [x, m, v].map(owned);
    let client = grad.client.clone();
    let count = grad.meta.num_elements();
    let vector = [4, 2, 1].into_iter().find(|n| count % n == 0).unwrap_or(1);
    let (cubes, dim) = units(count / vector);
    // Factors that correct the moments for their zero initialisation.
    let correction = |beta: f64| 1.0 / (1.0 - beta.powf(constants.time as f64));
    let AdamW {
        lr,
        beta_1,
        beta_2,
        eps,
        weight_decay,
        scale,
        ..
    } = constants;
    step::launch::<R>(
        &client,
        cubes,
        dim,
        vector,
        x.clone().into_array_arg(),
        m.clone().into_array_arg(),
        v.clone().into_array_arg(),
        grad.into_array_arg(),
        scale as f32,
        beta_1 as f32,
        (1.0 - beta_1) as f32,
        beta_2 as f32,
        (1.0 - beta_2) as f32,
        correction(beta_1) as f32,
        correction(beta_2) as f32,
        eps as f32,
        lr as f32,
        (1.0 - lr * weight_decay) as f32,
    );
    [x, m, v]
}

/// Largest number of cubes for one tensor. Each cube writes one part of the sum.
const CUBES: usize = 512;

/// parts[first + cube] = Σ x² over the elements of a cube; without `square`, Σ x.
#[cube(launch)]
fn squares(
    x: &Array<f32>,
    parts: &mut Array<f32>,
    first: usize,
    #[comptime] square: bool,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let mut shared = SharedMemory::<f32>::new(units);
    let mut sum = 0.0f32;
    let mut i = ABSOLUTE_POS;
    let step = CUBE_COUNT * CUBE_DIM as usize;
    while i < x.len() {
        let value = x[i];
        if square {
            sum += value * value;
        } else {
            sum += value;
        }
        i += step;
    }
    let sum = cube_sum(sum, &mut shared, planes);
    if UNIT_POS == 0 {
        parts[first + CUBE_POS] = sum;
    }
}

/// Computes Σ x_i² over all elements of all `parts`, as `[1]`.
///
/// # Errors
///
/// Returns `parts` if there are none, if there is no kernel for one of them on the runtime `R`, or with
/// `RESIDUAL_ZOO_OPS=plain`.
pub(crate) fn sum_of_squares<B: Backend, R: CubeRuntime>(
    parts: Vec<Tensor<B, 1>>,
) -> Result<Tensor<B, 1>, Vec<Tensor<B, 1>>> {
    if plain_only() || parts.is_empty() {
        return Err(parts);
    }
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    let parts = parts.into_iter().map(|x| x.into_primitive().tensor());
    let parts = match cast::<Vec<_>, Vec<CubeTensor<R>>>(parts.collect()) {
        Ok(parts) if fits(&parts) => parts,
        Ok(parts) => return Err(parts.into_iter().map(|x| of(same(x))).collect()),
        Err(parts) => return Err(parts.into_iter().map(of).collect()),
    };
    let cubes = |x: &CubeTensor<R>| x.meta.num_elements().div_ceil(4 * UNITS).clamp(1, CUBES);
    let count: usize = parts.iter().map(cubes).sum();
    let sums = empty(&parts[0], [count]);
    let planes = has_planes(&sums);
    let mut first = 0;
    for x in parts {
        let x = into_contiguous(x);
        let cubes = cubes(&x);
        squares::launch::<R>(
            &sums.client,
            CubeCount::Static(cubes as u32, 1, 1),
            CubeDim::new_1d(UNITS as u32),
            x.into_array_arg(),
            sums.clone().into_array_arg(),
            first,
            true,
            UNITS,
            planes,
        );
        first += cubes;
    }
    let total = empty(&sums, [1]);
    squares::launch::<R>(
        &sums.client,
        CubeCount::Static(1, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        sums.clone().into_array_arg(),
        total.clone().into_array_arg(),
        0,
        false,
        UNITS,
        planes,
    );
    Ok(of(same(total)))
}
