//! Attention without a `[time, time]` tensor (Dao et al., "FlashAttention", 2022), of f32 or bf16 numbers with sums in
//! f32. A unit computes a few queries, and the units of a cube share tiles of keys and values in shared memory. In the
//! gradient of keys and values, a unit computes a few keys, and the units of a cube share tiles of queries and dy.

use burn::tensor::TensorMetadata as _;
use burn_cubecl::kernel::slice;
use burn_cubecl::ops::permute;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;

use super::{empty, empty_of, fits_float, grid, to_dtype};
use crate::Attention;
use crate::op::Op;

/// Largest size of a head.
const LARGEST: usize = 128;

/// Number of f32 numbers in a tile of keys or queries in shared memory. Two tiles fit into the 16 KiB that every device
/// has.
const TILE: usize = 1920;

/// Number of keys whose largest score a unit finds before it adds up their weights.
const GROUP: usize = 4;

/// The score of a key that a query does not see.
const NONE: f32 = -3.0e38;

/// The division of queries or keys among the units of a cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Blocking {
    /// Size of a head.
    d: usize,
    /// Number of units of a cube.
    units: usize,
    /// Number of queries or keys of a unit. Each value that the unit reads from shared memory serves all of them.
    own: usize,
    /// Number of keys or queries of a tile.
    tile: usize,
}

impl Blocking {
    /// Chooses a division for units that keep `vectors` vectors of size `d` for each of their queries or keys.
    fn of(d: usize, vectors: usize) -> Self {
        // About 200 numbers fit into the registers of a unit.
        let own = [4, 2].into_iter().find(|own| own * vectors * d <= 200);
        let own = own.unwrap_or(1);
        Self {
            d,
            units: if own == 1 { 64 } else { 32 },
            own,
            tile: (TILE / d).clamp(GROUP, 64) / GROUP * GROUP,
        }
    }

    /// Returns the number of queries or keys of a cube.
    fn block(self) -> usize {
        self.units * self.own
    }

    /// Makes the grid for `count` queries or keys of each of `heads` heads.
    fn grid(self, heads: usize, count: usize) -> (CubeCount, CubeDim) {
        let cubes = grid(heads * count.div_ceil(self.block()));
        (cubes, CubeDim::new_1d(self.units as u32))
    }
}

/// Returns the slope of ALiBi for head `h`.
#[cube]
fn slope(h: usize, heads: usize) -> f32 {
    let share = f32::cast_from((h + 1) as u32) / f32::cast_from(heads as u32);
    (share * f32::new(-8.0 * std::f32::consts::LN_2)).exp()
}

/// Returns the position of a query minus the position of a key.
#[cube]
fn distance(position: usize, key: usize) -> f32 {
    f32::cast_from(position as u32) - f32::cast_from(key as u32)
}

/// Copies `tile` rows of x, from row `first` of the head that begins at element `from`, to shared memory. Repeats row
/// `end` − 1 in place of the rows beyond it.
#[cube]
fn load<F: Float>(
    x: &Tensor<F>,
    from: usize,
    first: usize,
    end: usize,
    shared: &mut SharedMemory<f32>,
    #[comptime] blocking: Blocking,
) {
    let d = comptime!(blocking.d);
    let mut e = UNIT_POS as usize;
    while e < comptime!(blocking.tile * blocking.d) {
        let row = min(first + e / d, end - 1);
        shared[e] = f32::cast_from(x[from + row * x.stride(2) + e % d * x.stride(3)]);
        e += comptime!(blocking.units);
    }
}

/// Reads `own` rows of x, `units` rows apart, from row `first` of the head that begins at element `from`. Repeats row
/// `end` − 1 in place of the rows beyond it. Returns the rows, multiplied by `factor`.
#[cube]
fn read<F: Float>(
    x: &Tensor<F>,
    from: usize,
    first: usize,
    end: usize,
    factor: f32,
    #[comptime] blocking: Blocking,
) -> Array<f32> {
    let d = comptime!(blocking.d);
    let mut rows = Array::<f32>::new(comptime!(blocking.own * blocking.d));
    #[unroll]
    for r in 0..comptime!(blocking.own) {
        let row = min(first + comptime!(r * blocking.units), end - 1);
        let from = from + row * x.stride(2);
        #[unroll]
        for c in 0..d {
            rows[comptime!(r * d + c)] = f32::cast_from(x[from + c * x.stride(3)]) * factor;
        }
    }
    rows
}

/// Writes rows, multiplied by `factor`, in the order in which [`read`] reads them, to the head that begins at element
/// `to`. Writes no row beyond `end` − 1.
#[cube]
fn write<F: Float>(
    x: &mut Tensor<F>,
    to: usize,
    first: usize,
    end: usize,
    rows: &Array<f32>,
    factor: f32,
    #[comptime] blocking: Blocking,
) {
    let d = comptime!(blocking.d);
    #[unroll]
    for r in 0..comptime!(blocking.own) {
        let row = first + comptime!(r * blocking.units);
        if row < end {
            let to = to + row * x.stride(2);
            #[unroll]
            for c in 0..d {
                x[to + c * x.stride(3)] = F::cast_from(rows[comptime!(r * d + c)] * factor);
            }
        }
    }
}

/// Computes y = softmax(q kᵀ · scale + bias) v, and log Z of each row of scores. All tensors are
/// `[batch, heads, time, d]`, and k and v begin at the elements `at_k` and `at_v` of their tensors.
#[cube(launch)]
fn forward<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    y: &mut Tensor<F>,
    log_z: &mut Array<f32>,
    at_k: usize,
    at_v: usize,
    all: usize,
    scale: f32,
    #[comptime] blocking: Blocking,
    #[comptime] causal: bool,
    #[comptime] alibi: bool,
    #[define(F)] _float: StorageType,
) {
    let d = comptime!(blocking.d);
    let own = comptime!(blocking.own);
    let size = comptime!(blocking.block());
    let (heads, new) = (y.shape(1), y.shape(2));
    let blocks = new.div_ceil(size);
    let head = CUBE_POS / blocks;
    let block = CUBE_POS % blocks;
    let mut keys = SharedMemory::<f32>::new(comptime!(blocking.tile * blocking.d));
    let mut values = SharedMemory::<f32>::new(comptime!(blocking.tile * blocking.d));
    if head < y.shape(0) * heads {
        let (b, h) = (head / heads, head % heads);
        // The first query of this unit, and its position.
        let first_i = block * size + UNIT_POS as usize;
        let position = all - new + first_i;
        let of_k = at_k + b * k.stride(0) + h * k.stride(1);
        let of_v = at_v + b * v.stride(0) + h * v.stride(1);
        let of_q = b * q.stride(0) + h * q.stride(1);
        let queries = read(q, of_q, first_i, new, scale, blocking);
        let mut sums = Array::<f32>::new(comptime!(own * d));
        let mut largest = Array::<f32>::new(own);
        let mut totals = Array::<f32>::new(own);
        #[unroll]
        for r in 0..own {
            largest[r] = NONE;
            totals[r] = 0.0f32;
            #[unroll]
            for c in 0..d {
                sums[comptime!(r * d + c)] = 0.0f32;
            }
        }
        let mut of_distance = 0.0f32;
        if alibi {
            of_distance = slope(h, heads);
        }
        // One more than the last key that a query of this cube sees.
        let mut end = all;
        if causal {
            end = min(all, all - new + (block + 1) * size);
        }
        let mut first = 0;
        while first < end {
            load(k, of_k, first, end, &mut keys, blocking);
            load(v, of_v, first, end, &mut values, blocking);
            sync_cube();
            let count = min(comptime!(blocking.tile), end - first);
            let mut group = 0;
            while group < count {
                let mut scores = Array::<f32>::new(comptime!(GROUP * own));
                #[unroll]
                for j in 0..GROUP {
                    let key = first + group + j;
                    let at = (group + j) * d;
                    #[unroll]
                    for r in 0..own {
                        scores[comptime!(j * own + r)] = 0.0f32;
                    }
                    #[unroll]
                    for c in 0..d {
                        let x = keys[at + c];
                        #[unroll]
                        for r in 0..own {
                            scores[comptime!(j * own + r)] += queries[comptime!(r * d + c)] * x;
                        }
                    }
                    #[unroll]
                    for r in 0..own {
                        let position = position + comptime!(r * blocking.units);
                        if alibi {
                            scores[comptime!(j * own + r)] -= of_distance * distance(position, key);
                        }
                        let mut seen = key < end;
                        if causal {
                            seen = key <= position && key < end;
                        }
                        scores[comptime!(j * own + r)] =
                            select(seen, scores[comptime!(j * own + r)], f32::new(NONE));
                    }
                }
                #[unroll]
                for r in 0..own {
                    let mut most = largest[r];
                    #[unroll]
                    for j in 0..GROUP {
                        most = max(most, scores[comptime!(j * own + r)]);
                    }
                    let factor = (largest[r] - most).exp();
                    largest[r] = most;
                    totals[r] *= factor;
                    #[unroll]
                    for c in 0..d {
                        sums[comptime!(r * d + c)] *= factor;
                    }
                    #[unroll]
                    for j in 0..GROUP {
                        let weight = (scores[comptime!(j * own + r)] - most).exp();
                        scores[comptime!(j * own + r)] = weight;
                        totals[r] += weight;
                    }
                }
                #[unroll]
                for j in 0..GROUP {
                    let at = (group + j) * d;
                    #[unroll]
                    for c in 0..d {
                        let x = values[at + c];
                        #[unroll]
                        for r in 0..own {
                            sums[comptime!(r * d + c)] += scores[comptime!(j * own + r)] * x;
                        }
                    }
                }
                group += GROUP;
            }
            sync_cube();
            first += comptime!(blocking.tile);
        }
        #[unroll]
        for r in 0..own {
            let i = first_i + comptime!(r * blocking.units);
            if i < new {
                log_z[head * new + i] = largest[r] + totals[r].ln();
            }
            let factor = 1.0f32 / totals[r];
            #[unroll]
            for c in 0..d {
                sums[comptime!(r * d + c)] *= factor;
            }
        }
        let to = b * y.stride(0) + h * y.stride(1);
        write(y, to, first_i, new, &sums, 1.0f32, blocking);
    }
}

/// Computes dq, and ⟨dy, y⟩ of each row. With the weights p = exp(score − log Z), d score = p (⟨dy, v⟩ − ⟨dy, y⟩).
#[cube(launch)]
fn gradient_of_queries<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    y: &Tensor<F>,
    dy: &Tensor<F>,
    log_z: &Array<f32>,
    dq: &mut Tensor<F>,
    dots: &mut Array<f32>,
    at_k: usize,
    at_v: usize,
    all: usize,
    scale: f32,
    #[comptime] blocking: Blocking,
    #[comptime] causal: bool,
    #[comptime] alibi: bool,
    #[define(F)] _float: StorageType,
) {
    let d = comptime!(blocking.d);
    let own = comptime!(blocking.own);
    let size = comptime!(blocking.block());
    let (heads, new) = (y.shape(1), y.shape(2));
    let blocks = new.div_ceil(size);
    let head = CUBE_POS / blocks;
    let block = CUBE_POS % blocks;
    let mut keys = SharedMemory::<f32>::new(comptime!(blocking.tile * blocking.d));
    let mut values = SharedMemory::<f32>::new(comptime!(blocking.tile * blocking.d));
    if head < y.shape(0) * heads {
        let (b, h) = (head / heads, head % heads);
        let first_i = block * size + UNIT_POS as usize;
        let position = all - new + first_i;
        let of_k = at_k + b * k.stride(0) + h * k.stride(1);
        let of_v = at_v + b * v.stride(0) + h * v.stride(1);
        let of_q = b * q.stride(0) + h * q.stride(1);
        let of_y = b * y.stride(0) + h * y.stride(1);
        let of_dy = b * dy.stride(0) + h * dy.stride(1);
        let queries = read(q, of_q, first_i, new, scale, blocking);
        let grads = read(dy, of_dy, first_i, new, 1.0f32, blocking);
        let mut sums = Array::<f32>::new(comptime!(own * d));
        let mut own_dots = Array::<f32>::new(own);
        let mut of_rows = Array::<f32>::new(own);
        #[unroll]
        for r in 0..own {
            own_dots[r] = 0.0f32;
            of_rows[r] = 0.0f32;
            #[unroll]
            for c in 0..d {
                sums[comptime!(r * d + c)] = 0.0f32;
            }
            let i = first_i + comptime!(r * blocking.units);
            if i < new {
                #[unroll]
                for c in 0..d {
                    let value = f32::cast_from(y[of_y + i * y.stride(2) + c * y.stride(3)]);
                    own_dots[r] += grads[comptime!(r * d + c)] * value;
                }
                of_rows[r] = log_z[head * new + i];
                dots[head * new + i] = own_dots[r];
            }
        }
        let mut of_distance = 0.0f32;
        if alibi {
            of_distance = slope(h, heads);
        }
        let mut end = all;
        if causal {
            end = min(all, all - new + (block + 1) * size);
        }
        let mut first = 0;
        while first < end {
            load(k, of_k, first, end, &mut keys, blocking);
            load(v, of_v, first, end, &mut values, blocking);
            sync_cube();
            let count = min(comptime!(blocking.tile), end - first);
            let mut j = 0;
            while j < count {
                let key = first + j;
                let at = j * d;
                let mut scores = Array::<f32>::new(own);
                let mut products = Array::<f32>::new(own);
                #[unroll]
                for r in 0..own {
                    scores[r] = 0.0f32;
                    products[r] = 0.0f32;
                }
                let mut of_key = Array::<f32>::new(d);
                #[unroll]
                for c in 0..d {
                    of_key[c] = keys[at + c];
                    let value = values[at + c];
                    #[unroll]
                    for r in 0..own {
                        scores[r] += queries[comptime!(r * d + c)] * of_key[c];
                        products[r] += grads[comptime!(r * d + c)] * value;
                    }
                }
                #[unroll]
                for r in 0..own {
                    let position = position + comptime!(r * blocking.units);
                    if alibi {
                        scores[r] -= of_distance * distance(position, key);
                    }
                    let weight = (scores[r] - of_rows[r]).exp();
                    let mut d_score = weight * (products[r] - own_dots[r]);
                    if causal {
                        d_score = select(key <= position, d_score, 0.0f32);
                    }
                    #[unroll]
                    for c in 0..d {
                        sums[comptime!(r * d + c)] += d_score * of_key[c];
                    }
                }
                j += 1;
            }
            sync_cube();
            first += comptime!(blocking.tile);
        }
        let to = b * dq.stride(0) + h * dq.stride(1);
        write(dq, to, first_i, new, &sums, scale, blocking);
    }
}

/// Computes dk and dv, which begin at the elements `to_k` and `to_v` of `out`.
#[cube(launch)]
fn gradient_of_keys<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    dy: &Tensor<F>,
    log_z: &Array<f32>,
    dots: &Array<f32>,
    out: &mut Tensor<F>,
    at_k: usize,
    at_v: usize,
    to_k: usize,
    to_v: usize,
    all: usize,
    scale: f32,
    #[comptime] blocking: Blocking,
    #[comptime] causal: bool,
    #[comptime] alibi: bool,
    #[define(F)] _float: StorageType,
) {
    let d = comptime!(blocking.d);
    let own = comptime!(blocking.own);
    let tile = comptime!(blocking.tile);
    let size = comptime!(blocking.block());
    let (heads, new) = (dy.shape(1), dy.shape(2));
    let blocks = all.div_ceil(size);
    let head = CUBE_POS / blocks;
    let block = CUBE_POS % blocks;
    let mut queries = SharedMemory::<f32>::new(comptime!(blocking.tile * blocking.d));
    let mut grads = SharedMemory::<f32>::new(comptime!(blocking.tile * blocking.d));
    // log Z and ⟨dy, y⟩ of each query of the tile.
    let mut of_rows = SharedMemory::<f32>::new(comptime!(2 * blocking.tile));
    if head < dy.shape(0) * heads {
        let (b, h) = (head / heads, head % heads);
        let first_key = block * size + UNIT_POS as usize;
        // The position of the first query.
        let start = all - new;
        let of_q = b * q.stride(0) + h * q.stride(1);
        let of_dy = b * dy.stride(0) + h * dy.stride(1);
        let of_k = at_k + b * k.stride(0) + h * k.stride(1);
        let of_v = at_v + b * v.stride(0) + h * v.stride(1);
        let own_k = read(k, of_k, first_key, all, scale, blocking);
        let own_v = read(v, of_v, first_key, all, 1.0f32, blocking);
        let mut dk = Array::<f32>::new(comptime!(own * d));
        let mut dv = Array::<f32>::new(comptime!(own * d));
        #[unroll]
        for c in 0..comptime!(own * d) {
            dk[c] = 0.0f32;
            dv[c] = 0.0f32;
        }
        let mut of_distance = 0.0f32;
        if alibi {
            of_distance = slope(h, heads);
        }
        // The first query that sees a key of this cube.
        let mut first = 0;
        if causal {
            first = max(block * size, start) - start;
        }
        while first < new {
            load(q, of_q, first, new, &mut queries, blocking);
            load(dy, of_dy, first, new, &mut grads, blocking);
            let mut e = UNIT_POS as usize;
            while e < tile {
                if first + e < new {
                    of_rows[2 * e] = log_z[head * new + first + e];
                    of_rows[2 * e + 1] = dots[head * new + first + e];
                }
                e += comptime!(blocking.units);
            }
            sync_cube();
            let count = min(tile, new - first);
            let mut i = 0;
            while i < count {
                let at = i * d;
                let position = start + first + i;
                let mut scores = Array::<f32>::new(own);
                let mut products = Array::<f32>::new(own);
                #[unroll]
                for r in 0..own {
                    scores[r] = 0.0f32;
                    products[r] = 0.0f32;
                }
                let mut of_query = Array::<f32>::new(d);
                let mut of_grad = Array::<f32>::new(d);
                #[unroll]
                for c in 0..d {
                    of_query[c] = queries[at + c];
                    of_grad[c] = grads[at + c];
                    #[unroll]
                    for r in 0..own {
                        scores[r] += own_k[comptime!(r * d + c)] * of_query[c];
                        products[r] += own_v[comptime!(r * d + c)] * of_grad[c];
                    }
                }
                let (log_z, dot) = (of_rows[2 * i], of_rows[2 * i + 1]);
                #[unroll]
                for r in 0..own {
                    let key = first_key + comptime!(r * blocking.units);
                    if alibi {
                        scores[r] -= of_distance * distance(position, key);
                    }
                    let mut weight = (scores[r] - log_z).exp();
                    if causal {
                        weight = select(key <= position, weight, 0.0f32);
                    }
                    let d_score = weight * (products[r] - dot);
                    #[unroll]
                    for c in 0..d {
                        dv[comptime!(r * d + c)] += weight * of_grad[c];
                        dk[comptime!(r * d + c)] += d_score * of_query[c];
                    }
                }
                i += 1;
            }
            sync_cube();
            first += tile;
        }
        let to = b * out.stride(0) + h * out.stride(1);
        write(out, to_k + to, first_key, all, &dk, scale, blocking);
        write(out, to_v + to, first_key, all, &dv, 1.0f32, blocking);
    }
}

/// q, k and v: three tensors, or one with the heads side by side.
#[derive(Clone, Debug)]
struct Inputs<R: CubeRuntime> {
    qkv: [CubeTensor<R>; 3],
    /// The first elements of k and v.
    at: [usize; 2],
    /// Batch, heads, new positions, all positions, size of a head.
    sizes: [usize; 5],
}

impl<R: CubeRuntime> Inputs<R> {
    fn of(qkv: [CubeTensor<R>; 3]) -> Self {
        let [batch, heads, new, d]: [usize; 4] = qkv[0].shape().dims();
        let all = qkv[1].shape()[2];
        Self {
            qkv,
            at: [0, 0],
            sizes: [batch, heads, new, all, d],
        }
    }

    fn packed(qkv: CubeTensor<R>) -> Self {
        let [batch, heads, time, d]: [usize; 4] = qkv.shape().dims();
        let heads = heads / 3;
        let next = heads * qkv.meta.strides()[1];
        Self {
            qkv: [qkv.clone(), qkv.clone(), qkv],
            at: [next, 2 * next],
            sizes: [batch, heads, time, time, d],
        }
    }

    /// Allocates `[batch, heads, time, d]` in the memory order of `[batch, time, heads, d]`, which the layers before
    /// and after need.
    fn empty(&self, [batch, heads, time, d]: [usize; 4]) -> CubeTensor<R> {
        let like = &self.qkv[0];
        in_sequence(empty_of(like, [batch, time, heads, d], like.dtype))
    }
}

/// Swaps the head axis and the time axis.
fn in_sequence<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    permute(x, &[0, 2, 1, 3])
}

/// The inputs of the backward pass.
#[derive(Clone, Debug)]
pub struct Kept<R: CubeRuntime> {
    inputs: Inputs<R>,
    y: CubeTensor<R>,
    /// log Z of each row.
    log_z: CubeTensor<R>,
}

impl Attention {
    fn fits_cube<R: CubeRuntime>(&self, inputs: &[CubeTensor<R>]) -> bool {
        let of_head = |x: &CubeTensor<R>| x.shape()[3];
        let same = inputs.iter().all(|x| of_head(x) == of_head(&inputs[0]));
        // The keys are the second of three inputs, or a part of the only input.
        let all = inputs[inputs.len() / 2].shape()[2];
        let plain = self.dropout.is_none() && !self.is_limited(all);
        fits_float(inputs) && plain && same && of_head(&inputs[0]) <= LARGEST
    }

    fn forward_on<R: CubeRuntime>(&self, inputs: Inputs<R>) -> (CubeTensor<R>, Kept<R>) {
        let [batch, heads, new, all, d] = inputs.sizes;
        let y = inputs.empty([batch, heads, new, d]);
        let log_z = empty(&y, [batch * heads * new]);
        let [q, k, v] = inputs.qkv.clone();
        let (client, float) = (y.client.clone(), y.dtype);
        // A unit keeps q and y.
        let blocking = Blocking::of(d, 2);
        let (cubes, dim) = blocking.grid(batch * heads, new);
        forward::launch::<R>(
            &client,
            cubes,
            dim,
            q.into_tensor_arg(),
            k.into_tensor_arg(),
            v.into_tensor_arg(),
            y.clone().into_tensor_arg(),
            log_z.clone().into_array_arg(),
            inputs.at[0],
            inputs.at[1],
            all,
            self.scale as f32,
            blocking,
            self.causal,
            self.alibi,
            float.into(),
        );
        let kept = Kept {
            inputs,
            y: y.clone(),
            log_z,
        };
        (y, kept)
    }

    /// Writes the gradient of q to `dq`, and the gradients of k and v to `out`, where they begin at the elements `to`.
    fn backward_on<R: CubeRuntime>(
        &self,
        kept: Kept<R>,
        dy: CubeTensor<R>,
        [dq, out]: [&CubeTensor<R>; 2],
        to: [usize; 2],
    ) {
        let Kept { inputs, y, log_z } = kept;
        let [batch, heads, new, all, d] = inputs.sizes;
        let [q, k, v] = &inputs.qkv;
        let dots = empty(&y, [batch * heads * new]);
        let (client, float) = (y.client.clone(), y.dtype);
        let dy = to_dtype(dy, float);
        // A unit keeps q, dy and dq.
        let blocking = Blocking::of(d, 3);
        let (cubes, dim) = blocking.grid(batch * heads, new);
        gradient_of_queries::launch::<R>(
            &client,
            cubes,
            dim,
            q.clone().into_tensor_arg(),
            k.clone().into_tensor_arg(),
            v.clone().into_tensor_arg(),
            y.into_tensor_arg(),
            dy.clone().into_tensor_arg(),
            log_z.clone().into_array_arg(),
            dq.clone().into_tensor_arg(),
            dots.clone().into_array_arg(),
            inputs.at[0],
            inputs.at[1],
            all,
            self.scale as f32,
            blocking,
            self.causal,
            self.alibi,
            float.into(),
        );
        // A unit keeps k, v, dk and dv.
        let blocking = Blocking::of(d, 4);
        let (cubes, dim) = blocking.grid(batch * heads, all);
        gradient_of_keys::launch::<R>(
            &client,
            cubes,
            dim,
            q.clone().into_tensor_arg(),
            k.clone().into_tensor_arg(),
            v.clone().into_tensor_arg(),
            dy.into_tensor_arg(),
            log_z.into_array_arg(),
            dots.into_array_arg(),
            out.clone().into_tensor_arg(),
            inputs.at[0],
            inputs.at[1],
            to[0],
            to[1],
            all,
            self.scale as f32,
            blocking,
            self.causal,
            self.alibi,
            float.into(),
        );
    }
}

impl<R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 3> for Attention
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = Kept<R>;

    /// Takes 16 queries or more. With fewer, as in decoding, most units of a cube would have no query.
    fn takes(&self, qkv: &[CubeTensor<R>; 3]) -> bool {
        let [q, k, _] = qkv.each_ref().map(|x| x.shape()[1]);
        self.fits_cube(qkv) && q == k && qkv[0].shape()[2] >= 16
    }

    fn forward(&self, qkv: [CubeTensor<R>; 3]) -> (CubeTensor<R>, Kept<R>) {
        self.forward_on(Inputs::of(qkv))
    }

    fn backward(&self, kept: Kept<R>, grad: CubeTensor<R>) -> [CubeTensor<R>; 3] {
        let [batch, heads, new, all, d] = kept.inputs.sizes;
        let dq = kept.inputs.empty([batch, heads, new, d]);
        // The gradients of k, then of v, along the first axis.
        let both = empty_of(&dq, [2 * batch, all, heads, d], dq.dtype);
        let to = [0, batch * both.meta.strides()[0]];
        let out = in_sequence(both.clone());
        self.backward_on(kept, grad, [&dq, &out], to);
        drop(out);
        let [dk, dv] = [0, batch].map(|at| {
            let part = [at..at + batch, 0..all, 0..heads, 0..d];
            in_sequence(slice(both.clone(), &part))
        });
        [dq, dk, dv]
    }
}

impl<R, F, I, BT> Op<CubeBackend<R, F, I, BT>, 1> for Attention
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    type Kept = Kept<R>;

    fn takes(&self, qkv: &[CubeTensor<R>; 1]) -> bool {
        self.fits_cube(qkv)
    }

    fn forward(&self, [qkv]: [CubeTensor<R>; 1]) -> (CubeTensor<R>, Kept<R>) {
        self.forward_on(Inputs::packed(qkv))
    }

    fn backward(&self, kept: Kept<R>, grad: CubeTensor<R>) -> [CubeTensor<R>; 1] {
        let [batch, heads, time, _, d] = kept.inputs.sizes;
        let out = kept.inputs.empty([batch, 3 * heads, time, d]);
        let next = heads * out.meta.strides()[1];
        self.backward_on(kept, grad, [&out, &out], [next, 2 * next]);
        [out]
    }
}
