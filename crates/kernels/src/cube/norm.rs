//! Layer norm and RMS norm, with a cube for each row.

use burn::tensor::{Shape, TensorMetadata as _};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;

use super::{RowCubes, cube_sum, empty, fits, grid, rows, sums};
use crate::Norm;
use crate::op::Op;

/// y = (x − mean) / √(variance + ε) · γ + β. `rows` gets the mean and 1 / √(variance + ε) of each row.
#[cube(launch)]
fn forward(
    x: &Tensor<f32>,
    gamma: &Tensor<f32>,
    beta: &Tensor<f32>,
    y: &mut Tensor<f32>,
    rows: &mut Tensor<f32>,
    eps: f32,
    #[comptime] centred: bool,
    #[comptime] scaled: bool,
    #[comptime] shifted: bool,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let mut shared = SharedMemory::<f32>::new(units);
    let row = CUBE_POS;
    let width = x.shape(1);
    if row < x.shape(0) {
        let from = row * x.stride(0);
        let to = row * y.stride(0);
        let n = f32::cast_from(width as u32);
        let step = CUBE_DIM as usize;

        let mut mean = 0.0f32;
        if centred {
            let mut sum = 0.0f32;
            let mut i = UNIT_POS as usize;
            while i < width {
                sum += x[from + i];
                i += step;
            }
            mean = cube_sum(sum, &mut shared, planes) / n;
        }
        let mut sum = 0.0f32;
        let mut i = UNIT_POS as usize;
        while i < width {
            let d = x[from + i] - mean;
            sum += d * d;
            i += step;
        }
        let variance = cube_sum(sum, &mut shared, planes) / n;
        let factor = 1.0f32 / (variance + eps).sqrt();

        let mut i = UNIT_POS as usize;
        while i < width {
            let mut value = (x[from + i] - mean) * factor;
            if scaled {
                value *= gamma[i];
            }
            if shifted {
                value += beta[i];
            }
            y[to + i] = value;
            i += step;
        }
        if UNIT_POS == 0 {
            rows[row * 2] = mean;
            rows[row * 2 + 1] = factor;
        }
    }
}

/// dx = factor · (g − mean(g) − x̂ · mean(g · x̂)), with factor = 1 / √(variance + ε), x̂ = (x − mean) · factor and
/// g = dy · γ. RMS norm has no mean(g).
#[cube(launch)]
fn gradient(
    x: &Tensor<f32>,
    gamma: &Tensor<f32>,
    rows: &Tensor<f32>,
    dy: &Tensor<f32>,
    dx: &mut Tensor<f32>,
    #[comptime] centred: bool,
    #[comptime] scaled: bool,
    #[comptime] units: usize,
    #[comptime] planes: bool,
) {
    let mut shared = SharedMemory::<f32>::new(units);
    let row = CUBE_POS;
    let width = x.shape(1);
    if row < x.shape(0) {
        let n = f32::cast_from(width as u32);
        let (of_x, of_dy, of_dx) = (row * x.stride(0), row * dy.stride(0), row * dx.stride(0));
        let mean = rows[row * 2];
        let factor = rows[row * 2 + 1];
        let step = CUBE_DIM as usize;

        let mut sum = 0.0f32;
        let mut dot = 0.0f32;
        let mut i = UNIT_POS as usize;
        while i < width {
            let mut g = dy[of_dy + i];
            if scaled {
                g *= gamma[i];
            }
            sum += g;
            dot += g * (x[of_x + i] - mean) * factor;
            i += step;
        }
        let mut of_mean = 0.0f32;
        if centred {
            of_mean = cube_sum(sum, &mut shared, planes) / n;
        }
        let of_scale = cube_sum(dot, &mut shared, planes) / n;
        let mut i = UNIT_POS as usize;
        while i < width {
            let mut g = dy[of_dy + i];
            if scaled {
                g *= gamma[i];
            }
            let normal = (x[of_x + i] - mean) * factor;
            dx[of_dx + i] = factor * (g - of_mean - normal * of_scale);
            i += step;
        }
    }
}

/// The first stage of dγ = Σ dy · x̂ and dβ = Σ dy: parts `[2, count, width]`.
#[cube(launch)]
fn gradient_of_parameters(
    x: &Tensor<f32>,
    rows: &Tensor<f32>,
    dy: &Tensor<f32>,
    parts: &mut Tensor<f32>,
    per_part: usize,
) {
    let (count, width) = (x.shape(0), x.shape(1));
    let column = ABSOLUTE_POS_X as usize;
    let part = CUBE_POS_Y as usize;
    if column < width {
        let mut d_gamma = 0.0f32;
        let mut d_beta = 0.0f32;
        let mut row = part * per_part;
        let mut end = row + per_part;
        if end > count {
            end = count;
        }
        while row < end {
            let normal = (x[row * x.stride(0) + column] - rows[row * 2]) * rows[row * 2 + 1];
            let g = dy[row * dy.stride(0) + column];
            d_gamma += g * normal;
            d_beta += g;
            row += 1;
        }
        parts[part * parts.stride(1) + column] = d_gamma;
        parts[parts.stride(0) + part * parts.stride(1) + column] = d_beta;
    }
}

/// The inputs of the backward pass.
#[derive(Clone, Debug)]
pub struct Kept<R: CubeRuntime> {
    /// x `[rows, width]`.
    x: CubeTensor<R>,
    gamma: Option<CubeTensor<R>>,
    /// The mean and 1 / √(variance + ε) of each row, `[2 · rows]`.
    rows: CubeTensor<R>,
    /// The shape of the input.
    shape: Shape,
}

impl<R, F, I, BT, const N: usize> Op<CubeBackend<R, F, I, BT>, N> for Norm
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = Kept<R>;

    fn takes(&self, inputs: &[CubeTensor<R>; N]) -> bool {
        fits(inputs)
    }

    fn forward(&self, inputs: [CubeTensor<R>; N]) -> (CubeTensor<R>, Kept<R>) {
        let shape = inputs[0].shape();
        let params = inputs[1..].iter().cloned().map(into_contiguous);
        let params: Vec<_> = params.collect();
        let x = rows(inputs[0].clone());
        drop(inputs);
        let [count, width]: [usize; 2] = x.meta.shape().dims();
        let y = empty(&x, [count, width]);
        let of_rows = empty(&x, [2 * count]);
        let cubes = RowCubes::of(&x);
        // A kernel without γ or β does not read these arguments.
        let param = |i: usize| params.get(i).unwrap_or(&x).clone().into_tensor_arg();
        forward::launch::<R>(
            &x.client,
            grid(count),
            cubes.dim(),
            x.clone().into_tensor_arg(),
            param(0),
            param(1),
            y.clone().into_tensor_arg(),
            of_rows.clone().into_tensor_arg(),
            self.eps as f32,
            self.centred,
            !params.is_empty(),
            params.len() > 1,
            cubes.units,
            cubes.planes,
        );
        let gamma = params.into_iter().next();
        let y = burn_cubecl::ops::reshape(y, shape.clone());
        let kept = Kept {
            x,
            gamma,
            rows: of_rows,
            shape,
        };
        (y, kept)
    }

    fn backward(&self, kept: Kept<R>, grad: CubeTensor<R>) -> [CubeTensor<R>; N] {
        let Kept {
            x,
            gamma,
            rows: of_rows,
            shape,
        } = kept;
        let dy = rows(grad);
        let client = x.client.clone();
        let [count, width]: [usize; 2] = x.meta.shape().dims();
        let dx = empty(&x, [count, width]);
        let cubes = RowCubes::of(&x);
        gradient::launch::<R>(
            &client,
            grid(count),
            cubes.dim(),
            x.clone().into_tensor_arg(),
            gamma.as_ref().unwrap_or(&x).clone().into_tensor_arg(),
            of_rows.clone().into_tensor_arg(),
            dy.clone().into_tensor_arg(),
            dx.clone().into_tensor_arg(),
            self.centred,
            gamma.is_some(),
            cubes.units,
            cubes.planes,
        );
        let mut all = vec![burn_cubecl::ops::reshape(dx, shape)];
        if N > 1 {
            let parts = sums::Parts::of(count, width);
            let (grid, dim) = parts.grid();
            let of_parts = empty(&x, [2, parts.count, width]);
            gradient_of_parameters::launch::<R>(
                &client,
                grid,
                dim,
                x.into_tensor_arg(),
                of_rows.into_tensor_arg(),
                dy.into_tensor_arg(),
                of_parts.clone().into_tensor_arg(),
                parts.rows,
            );
            all.extend(sums::total(&of_parts));
        }
        let mut all = all.into_iter();
        [(); N].map(|()| {
            all.next()
                .unwrap_or_else(|| unreachable!("at most 3 inputs"))
        })
    }
}
