//! Sums over rows in two stages: the first adds up the rows of each part, and the second adds up the sums of the parts.

use burn::tensor::Shape;
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{AXIS, empty, rows};

/// Number of units of a cube. Each unit adds up one column.
const COLUMNS: usize = 64;

/// Number of rows in a part, unless there would be more than [`AXIS`] parts.
const ROWS: usize = 64;

/// The first stage of a sum over `rows` rows of `width` columns.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// Number of parts.
    pub count: usize,
    /// Number of rows in a part.
    pub rows: usize,
    /// Number of cubes that a row takes.
    across: usize,
}

impl Parts {
    pub fn of(rows: usize, width: usize) -> Self {
        let per_part = ROWS.max(rows.div_ceil(AXIS));
        Self {
            count: rows.div_ceil(per_part).max(1),
            rows: per_part,
            across: width.div_ceil(COLUMNS),
        }
    }

    /// Makes the grid of the first stage. Cubes along x take columns, and cubes along y take parts.
    pub fn grid(self) -> (CubeCount, CubeDim) {
        let count = CubeCount::Static(self.across as u32, self.count as u32, 1);
        (count, CubeDim::new_1d(COLUMNS as u32))
    }
}

/// parts[p] = Σ x over the rows of part p.
#[cube(launch)]
fn parts_of_rows(x: &Tensor<f32>, parts: &mut Tensor<f32>, per_part: usize) {
    let (count, width) = (x.shape(0), x.shape(1));
    let column = ABSOLUTE_POS_X as usize;
    let part = CUBE_POS_Y as usize;
    if column < width {
        let mut sum = 0.0f32;
        let mut row = part * per_part;
        let mut end = row + per_part;
        if end > count {
            end = count;
        }
        while row < end {
            sum += x[row * x.stride(0) + column];
            row += 1;
        }
        parts[part * parts.stride(1) + column] = sum;
    }
}

/// The second stage: sums[k] = Σ parts[k, p] over p, for parts `[kinds, count, width]`. Each kind is a separate sum,
/// such as dγ or dβ.
#[cube(launch)]
fn add_parts(parts: &Tensor<f32>, sums: &mut Tensor<f32>) {
    let column = ABSOLUTE_POS_X as usize;
    let kind = CUBE_POS_Y as usize;
    if column < parts.shape(2) {
        let mut sum = 0.0f32;
        let mut part = 0;
        while part < parts.shape(1) {
            sum += parts[kind * parts.stride(0) + part * parts.stride(1) + column];
            part += 1;
        }
        sums[kind * sums.stride(0) + column] = sum;
    }
}

/// Adds up the parts `[kinds, count, width]`, and returns a sum `[width]` for each kind.
pub(super) fn total<R: CubeRuntime>(parts: &CubeTensor<R>) -> Vec<CubeTensor<R>> {
    let [kinds, _, width]: [usize; 3] = parts.meta.shape().dims();
    let sums = empty(parts, [kinds, width]);
    let across = width.div_ceil(COLUMNS) as u32;
    add_parts::launch::<R>(
        &parts.client,
        CubeCount::Static(across, kinds as u32, 1),
        CubeDim::new_1d(COLUMNS as u32),
        parts.clone().into_tensor_arg(),
        sums.clone().into_tensor_arg(),
    );
    let of = |kind| {
        let row = burn_cubecl::kernel::slice(sums.clone(), &[kind..kind + 1, 0..width]);
        burn_cubecl::ops::reshape(row, Shape::new([width]))
    };
    (0..kinds).map(of).collect()
}

/// Computes Σ x over all axes but the last: `[width]`.
pub(super) fn over_rows<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    let x = rows(x);
    let [count, width]: [usize; 2] = x.meta.shape().dims();
    let parts = Parts::of(count, width);
    let (cubes, dim) = parts.grid();
    let of_parts = empty(&x, [1, parts.count, width]);
    let client = x.client.clone();
    parts_of_rows::launch::<R>(
        &client,
        cubes,
        dim,
        x.into_tensor_arg(),
        of_parts.clone().into_tensor_arg(),
        parts.rows,
    );
    total(&of_parts).remove(0)
}
