//! The gradient of an embedding table. Positions with the same id form a list, and a cube adds up the gradients of the
//! list in order. Burn 0.21's own kernel has only one unit per table column, and this unit reads all positions.

use burn::tensor::backend::Backend;
use burn::tensor::ops::ModuleOps as _;
use burn::tensor::{DType, Shape, TensorMetadata as _};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::ops::reshape;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;

use super::{RowCubes, empty_of, fits, grid, rows, units};
use crate::embedding::Embedding;
use crate::op::{Op, same};

/// Largest number of positions. Finding the lists takes time in proportion to the square of this number.
const POSITIONS: usize = 65_535;

/// next[t] = the next position with the id of position t, or t if there is none. first[t] = 1 if no earlier position
/// has this id, and 0 otherwise.
#[cube(launch)]
fn links<I: Int>(
    ids: &Array<I>,
    next: &mut Array<u32>,
    first: &mut Array<u32>,
    #[define(I)] _int: StorageType,
) {
    let t = ABSOLUTE_POS;
    let count = ids.len();
    if t < count {
        let id = ids[t];
        let mut is_first = 1u32;
        let mut after = count;
        let mut s = 0;
        while s < count {
            if ids[s] == id {
                if s < t {
                    is_first = 0u32;
                }
                if s > t {
                    after = min(after, s);
                }
            }
            s += 1;
        }
        next[t] = u32::cast_from(select(after == count, t, after));
        first[t] = is_first;
    }
}

/// out[id] = Σ grad over the positions with this id, with a cube for each position that is the first with its id.
#[cube(launch)]
fn gradient<I: Int>(
    ids: &Array<I>,
    next: &Array<u32>,
    first: &Array<u32>,
    grad: &Tensor<f32>,
    out: &mut Tensor<f32>,
    #[define(I)] _int: StorageType,
) {
    let t = CUBE_POS;
    let mut is_first = 0u32;
    if t < ids.len() {
        is_first = first[t];
    }
    if is_first == 1u32 {
        let to = u32::cast_from(ids[t]) as usize * out.stride(0);
        let mut column = UNIT_POS as usize;
        while column < grad.shape(1) {
            let mut at = t;
            let mut sum = grad[at * grad.stride(0) + column];
            while next[at] as usize != at {
                at = next[at] as usize;
                sum += grad[at * grad.stride(0) + column];
            }
            out[to + column] = sum;
            column += CUBE_DIM as usize;
        }
    }
}

impl<B, R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 1> for Embedding<B>
where
    B: Backend,
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    /// The shape of the table.
    type Kept = Shape;

    fn takes(&self, inputs: &[CubeTensor<R>; 1]) -> bool {
        let ids: CubeTensor<R> = same(self.ids.clone());
        fits(inputs) && (1..=POSITIONS).contains(&ids.meta.num_elements())
    }

    fn forward(&self, [table]: [CubeTensor<R>; 1]) -> (CubeTensor<R>, Shape) {
        let shape = table.shape();
        let ids = same(self.ids.clone());
        (CubeBackend::<R, F, I, BT>::embedding(table, ids), shape)
    }

    fn backward(&self, shape: Shape, grad: CubeTensor<R>) -> [CubeTensor<R>; 1] {
        let ids: CubeTensor<R> = same(self.ids.clone());
        let count = ids.meta.num_elements();
        let ids = into_contiguous(reshape(ids, [count].into()));
        let grad = rows(grad);
        let (client, device) = (grad.client.clone(), grad.device.clone());
        let [next, first] = [(); 2].map(|()| empty_of(&grad, [count], DType::U32));
        let (cubes, dim) = units(count);
        links::launch::<R>(
            &client,
            cubes,
            dim,
            ids.clone().into_array_arg(),
            next.clone().into_array_arg(),
            first.clone().into_array_arg(),
            ids.dtype.into(),
        );
        let out = zeros_client(client.clone(), device, shape, DType::F32);
        gradient::launch::<R>(
            &client,
            grid(count),
            RowCubes::of(&grad).dim(),
            ids.clone().into_array_arg(),
            next.into_array_arg(),
            first.into_array_arg(),
            grad.into_tensor_arg(),
            out.clone().into_tensor_arg(),
            ids.dtype.into(),
        );
        [out]
    }
}
