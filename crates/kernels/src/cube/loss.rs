//! log Z of the logits and the logit of the target, with a cube for each row. The backward pass turns the logits into
//! their gradient in place if nothing else holds them. Logits are f32 or bf16; sums are f32.

use burn::tensor::backend::Backend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;

use super::{RowCubes, cube_max, cube_sum, empty, fits_float, grid, owned, rows};
use crate::loss::LogZ;
use crate::op::{Op, same};

/// out[row] = log Σ exp(x) and the logit of the target, in one pass over the row.
#[cube(launch)]
fn forward<F: Float, I: Int>(
    logits: &Tensor<F>,
    targets: &Tensor<I>,
    out: &mut Tensor<f32>,
    #[comptime] units: usize,
    #[comptime] planes: bool,
    #[define(F, I)] _types: [StorageType; 2],
) {
    let mut shared = SharedMemory::<f32>::new(units);
    let row = CUBE_POS;
    let width = logits.shape(1);
    if row < logits.shape(0) {
        let from = row * logits.stride(0);
        let step = CUBE_DIM as usize;

        let mut largest = f32::new(-3.0e38);
        let mut sum = 0.0f32;
        let mut i = UNIT_POS as usize;
        while i < width {
            let x = f32::cast_from(logits[from + i]);
            if x > largest {
                sum = sum * (largest - x).exp() + 1.0f32;
                largest = x;
            } else {
                sum += (x - largest).exp();
            }
            i += step;
        }
        let all = cube_max(largest, &mut shared, planes);
        let sum = cube_sum(sum * (largest - all).exp(), &mut shared, planes);
        if UNIT_POS == 0 {
            out[row * out.stride(0)] = all + sum.ln();
            let target = u32::cast_from(targets[row]) as usize;
            out[row * out.stride(0) + 1] = f32::cast_from(logits[from + target]);
        }
    }
}

/// x ← exp(x − log Z) · d log Z, plus d target at the target.
#[cube(launch)]
fn gradient<F: Float, I: Int>(
    logits: &mut Tensor<F>,
    targets: &Tensor<I>,
    out: &Tensor<f32>,
    grad: &Tensor<f32>,
    #[define(F, I)] _types: [StorageType; 2],
) {
    let row = CUBE_POS;
    let width = logits.shape(1);
    if row < logits.shape(0) {
        let from = row * logits.stride(0);
        let log_z = out[row * out.stride(0)];
        let d_log_z = grad[row * grad.stride(0)];
        let d_target = grad[row * grad.stride(0) + grad.stride(1)];
        let target = u32::cast_from(targets[row]) as usize;
        let mut i = UNIT_POS as usize;
        while i < width {
            let mut d = (f32::cast_from(logits[from + i]) - log_z).exp() * d_log_z;
            if i == target {
                d += d_target;
            }
            logits[from + i] = F::cast_from(d);
            i += CUBE_DIM as usize;
        }
    }
}

/// The inputs of the backward pass.
#[derive(Clone, Debug)]
pub struct Kept<R: CubeRuntime> {
    logits: CubeTensor<R>,
    targets: CubeTensor<R>,
    out: CubeTensor<R>,
}

impl<B, R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 1> for LogZ<B>
where
    B: Backend,
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = Kept<R>;

    fn takes(&self, inputs: &[CubeTensor<R>; 1]) -> bool {
        fits_float(inputs)
    }

    fn forward(&self, [logits]: [CubeTensor<R>; 1]) -> (CubeTensor<R>, Kept<R>) {
        let targets: CubeTensor<R> = same(self.targets.clone());
        let targets = into_contiguous(targets);
        let logits = rows(logits);
        let count = logits.meta.shape()[0];
        let out = empty(&logits, [count, 2]);
        let cubes = RowCubes::of(&logits);
        forward::launch::<R>(
            &logits.client,
            grid(count),
            cubes.dim(),
            logits.clone().into_tensor_arg(),
            targets.clone().into_tensor_arg(),
            out.clone().into_tensor_arg(),
            cubes.units,
            cubes.planes,
            [logits.dtype.into(), targets.dtype.into()],
        );
        let kept = Kept {
            logits,
            targets,
            out: out.clone(),
        };
        (out, kept)
    }

    fn backward(&self, kept: Kept<R>, grad: CubeTensor<R>) -> [CubeTensor<R>; 1] {
        let Kept {
            logits,
            targets,
            out,
        } = kept;
        let d = rows(owned(logits));
        let types = [d.dtype.into(), targets.dtype.into()];
        gradient::launch::<R>(
            &d.client,
            grid(d.meta.shape()[0]),
            RowCubes::of(&d).dim(),
            d.clone().into_tensor_arg(),
            targets.into_tensor_arg(),
            out.into_tensor_arg(),
            grad.into_tensor_arg(),
            types,
        );
        [d]
    }
}
