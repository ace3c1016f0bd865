//! Common parts of the kernels for Burn's GPU backends. A kernel is written once in CubeCL, for CUDA, Vulkan and WGPU.
//!
//! A *cube* is a group of *units* that share memory; CUDA calls them blocks and threads. Sums have a fixed order and no
//! atomic additions, so a result does not depend on timing. Devices without planes (CUDA's warps) add up in shared
//! memory.

mod activation;
mod attention;
mod embedding;
mod loss;
pub(crate) mod matmul;
mod mix;
mod norm;
pub(crate) mod optimizer;
mod product;
mod sinkhorn;
mod sums;
mod theta;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Shape, Tensor, TensorPrimitive};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::features::Plane;
use cubecl::prelude::*;
use cubecl::tensor_vector_size_parallel;

use crate::op::{cast, plain_only, same};

/// Burn's CUDA backend, without fusion.
#[cfg(feature = "cuda")]
pub(crate) type Cuda = burn_cubecl::CubeBackend<cubecl::cuda::CudaRuntime, f32, i32, u8>;
/// Burn's Vulkan backend, without fusion.
#[cfg(feature = "vulkan")]
pub(crate) type Vulkan = burn_cubecl::CubeBackend<cubecl::wgpu::WgpuRuntime, f32, i32, u8>;
/// Burn's WGPU backend, without fusion.
#[cfg(feature = "wgpu")]
pub(crate) type Wgpu = burn_cubecl::CubeBackend<cubecl::wgpu::WgpuRuntime, f32, i32, u32>;

/// Largest number of units of a cube.
const UNITS: usize = 256;

/// Largest number of cubes on an axis of WGPU's grid.
const AXIS: usize = 65_535;

/// Largest number of elements of an input, with its padding. Kernels index with 32 bits. The limit is a quarter of that
/// range, because a result can be up to three times as large as an input, or padded.
const ELEMENTS: u64 = u32::MAX as u64 / 4;

/// Whether x has elements, and at most [`ELEMENTS`].
fn fits_size<R: CubeRuntime>(x: &CubeTensor<R>) -> bool {
    let elements = x.handle.size() / x.dtype.size().max(1) as u64;
    x.meta.num_elements() > 0 && elements <= ELEMENTS
}

/// Whether all tensors are f32 and have elements, at most [`ELEMENTS`] each.
fn fits<R: CubeRuntime>(inputs: &[CubeTensor<R>]) -> bool {
    let fits = |x: &CubeTensor<R>| x.dtype == DType::F32 && fits_size(x);
    inputs.iter().all(fits)
}

/// Whether all tensors have one float type, f32 or bf16, and have elements, at most [`ELEMENTS`] each.
fn fits_float<R: CubeRuntime>(inputs: &[CubeTensor<R>]) -> bool {
    let dtype = inputs[0].dtype;
    let fits = |x: &CubeTensor<R>| x.dtype == dtype && fits_size(x);
    matches!(dtype, DType::F32 | DType::BF16) && inputs.iter().all(fits)
}

/// Reshapes x to rows of its last axis, `[rows, width]`. The elements of a row are side by side. There may be gaps
/// between rows, because CUDA pads rows.
fn rows<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    let width = x.meta.shape().last().copied().unwrap_or(1);
    let count = x.meta.num_elements() / width.max(1);
    let x = burn_cubecl::ops::reshape(x, Shape::new([count, width]));
    match x.meta.strides()[1] {
        1 => x,
        _ => burn_cubecl::kernel::into_contiguous(x),
    }
}

/// Allocates an f32 tensor on the device of `like`.
fn empty<R: CubeRuntime>(like: &CubeTensor<R>, shape: impl Into<Shape>) -> CubeTensor<R> {
    empty_of(like, shape, DType::F32)
}

/// Allocates a tensor of the type `dtype` on the device of `like`.
fn empty_of<R: CubeRuntime>(
    like: &CubeTensor<R>,
    shape: impl Into<Shape>,
    dtype: DType,
) -> CubeTensor<R> {
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_dtype(client, device, shape.into(), dtype)
}

/// Converts x to `dtype`, if it has another type.
fn to_dtype<R: CubeRuntime>(x: CubeTensor<R>, dtype: DType) -> CubeTensor<R> {
    match x.dtype == dtype {
        true => x,
        false => burn_cubecl::kernel::cast(x, dtype),
    }
}

/// Returns x, or a copy if something else holds x or if elements of x share memory.
fn owned<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    match x.can_mut() && x.is_nonoverlapping() {
        true => x,
        false => x.copy(),
    }
}

/// Makes a grid of at least `count` cubes. A kernel skips cubes beyond `count`.
fn grid(count: usize) -> CubeCount {
    let y = count.div_ceil(AXIS).max(1);
    CubeCount::Static(count.div_ceil(y).max(1) as u32, y as u32, 1)
}

/// Makes a grid with a unit for each of `count` elements. Returns the grid and the size of its cubes.
fn units(count: usize) -> (CubeCount, CubeDim) {
    (grid(count.div_ceil(UNITS)), CubeDim::new_1d(UNITS as u32))
}

/// Whether the device can add up in planes.
fn has_planes<R: CubeRuntime>(x: &CubeTensor<R>) -> bool {
    let features = &x.client.properties().features;
    features.plane.contains(Plane::Ops)
}

/// Returns the number of elements of x, side by side on the last axis, that a unit can read at once.
fn vector<R: CubeRuntime>(x: &CubeTensor<R>) -> usize {
    let sizes = x.client.io_optimized_vector_sizes(x.dtype.size());
    let last = x.meta.rank().saturating_sub(1);
    tensor_vector_size_parallel(sizes, x.meta.shape(), x.meta.strides(), last)
}

/// The division of a row among the units of a cube.
#[derive(Clone, Copy)]
struct RowCubes {
    /// Number of units of a cube, a power of two.
    units: usize,
    /// Whether units add up in planes.
    planes: bool,
}

impl RowCubes {
    /// Assigns a cube to each row of x `[rows, width]`.
    fn of<R: CubeRuntime>(x: &CubeTensor<R>) -> Self {
        let width = x.meta.shape()[1];
        let planes = has_planes(x);
        // With planes, a cube has whole planes. Without planes, each step of a sum waits for all units of the cube, so
        // a row has fewer units.
        let plane = x.client.properties().hardware.plane_size_max as usize;
        let units = match planes {
            true => width.next_power_of_two().min(UNITS).max(plane),
            false => width.div_ceil(8).next_power_of_two().clamp(8, UNITS),
        };
        Self { units, planes }
    }

    fn dim(self) -> CubeDim {
        CubeDim::new_1d(self.units as u32)
    }
}

/// Returns the sum of `value` over all units of a cube, to every unit.
#[cube]
fn cube_sum(value: f32, shared: &mut SharedMemory<f32>, #[comptime] planes: bool) -> f32 {
    if planes {
        let part = plane_sum(value);
        if UNIT_POS_PLANE == 0 {
            shared[PLANE_POS as usize] = part;
        }
        sync_cube();
        let mut total = 0.0f32;
        let mut i = 0u32;
        while i < CUBE_DIM / PLANE_DIM {
            total += shared[i as usize];
            i += 1;
        }
        // The next call writes the same memory.
        sync_cube();
        total
    } else {
        let unit = UNIT_POS;
        shared[unit as usize] = value;
        sync_cube();
        let mut half = CUBE_DIM / 2;
        while half > 0 {
            if unit < half {
                let other = shared[(unit + half) as usize];
                shared[unit as usize] += other;
            }
            sync_cube();
            half /= 2;
        }
        let total = shared[0];
        sync_cube();
        total
    }
}

/// Returns the largest `value` of all units of a cube, to every unit.
#[cube]
fn cube_max(value: f32, shared: &mut SharedMemory<f32>, #[comptime] planes: bool) -> f32 {
    if planes {
        let part = plane_max(value);
        if UNIT_POS_PLANE == 0 {
            shared[PLANE_POS as usize] = part;
        }
        sync_cube();
        let mut total = shared[0];
        let mut i = 1u32;
        while i < CUBE_DIM / PLANE_DIM {
            total = max(total, shared[i as usize]);
            i += 1;
        }
        sync_cube();
        total
    } else {
        let unit = UNIT_POS;
        shared[unit as usize] = value;
        sync_cube();
        let mut half = CUBE_DIM / 2;
        while half > 0 {
            if unit < half {
                let other = shared[(unit + half) as usize];
                shared[unit as usize] = max(shared[unit as usize], other);
            }
            sync_cube();
            half /= 2;
        }
        let total = shared[0];
        sync_cube();
        total
    }
}

/// Whether x is a tensor of the runtime `R` that [`on_cube`] takes.
pub(crate) fn fits_on<B: Backend, R: CubeRuntime>(x: &Tensor<B, 1>) -> bool {
    cast::<_, CubeTensor<R>>(x.clone().into_primitive().tensor()).is_ok_and(|x| fits(&[x]))
}

/// Calls `kernel`, which has no gradient, with the tensors of a GPU backend.
///
/// # Errors
///
/// Returns the inputs if the backend does not use the runtime `R`, if there is no kernel for them, or with
/// `RESIDUAL_ZOO_OPS=plain`.
pub(crate) fn on_cube<B, R, const D: usize, const N: usize, const M: usize>(
    inputs: [Tensor<B, D>; N],
    kernel: impl FnOnce([CubeTensor<R>; N]) -> [CubeTensor<R>; M],
) -> Result<[Tensor<B, D>; M], [Tensor<B, D>; N]>
where
    B: Backend,
    R: CubeRuntime,
{
    if plain_only() {
        return Err(inputs);
    }
    let of = |x| Tensor::from_primitive(TensorPrimitive::Float(x));
    match cast::<_, [CubeTensor<R>; N]>(inputs.map(|x| x.into_primitive().tensor())) {
        Ok(inputs) if fits(&inputs) => Ok(kernel(inputs).map(|x| of(same(x)))),
        Ok(inputs) => Err(inputs.map(|x| of(same(x)))),
        Err(inputs) => Err(inputs.map(of)),
    }
}
