//! Attention without a `[time, time]` tensor (Dao et al., "FlashAttention", 2022), with sums in f32. A unit computes a
//! query, or in the gradient of keys and values a key. The units of a cube read tiles of the other side from shared
//! memory.

use burn::tensor::TensorMetadata as _;
use burn_cubecl::kernel::slice;
use burn_cubecl::ops::permute;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use cubecl::prelude::*;

use super::{empty, fits, grid};
use crate::Attention;
use crate::op::Op;

/// Queries or keys of a cube, one for each unit.
const BLOCK: usize = 64;

/// Largest size of a head. A unit keeps up to four vectors of this size.
const LARGEST: usize = 128;

/// f32 numbers of a tile of keys or queries in shared memory. Two tiles fit into the 16 KiB that every device has.
const TILE: usize = 1920;

/// Returns the slope of ALiBi for head `h`.
#[cube]
fn slope(h: usize, heads: usize) -> f32 {
    let share = f32::cast_from((h + 1) as u32) / f32::cast_from(heads as u32);
    (share * f32::new(-8.0 * std::f32::consts::LN_2)).exp()
}

/// y = softmax(q kᵀ · scale + bias) v and log Z of each row of scores. All tensors are `[batch, heads, time, d]`, and
/// k and v begin at the elements `at_k` and `at_v` of their tensors.
#[cube(launch)]
fn forward(
    q: &Tensor<f32>,
    k: &Tensor<f32>,
    v: &Tensor<f32>,
    y: &mut Tensor<f32>,
    log_z: &mut Array<f32>,
    at_k: usize,
    at_v: usize,
    all: usize,
    scale: f32,
    #[comptime] d: usize,
    #[comptime] tile: usize,
    #[comptime] causal: bool,
    #[comptime] alibi: bool,
) {
    let (heads, new) = (y.shape(1), y.shape(2));
    let blocks = new.div_ceil(BLOCK);
    let head = CUBE_POS as usize / blocks;
    let block = CUBE_POS as usize % blocks;
    let mut keys = SharedMemory::<f32>::new(tile * d);
    let mut values = SharedMemory::<f32>::new(tile * d);
    if head < y.shape(0) * heads {
        let (b, h) = (head / heads, head % heads);
        let unit = UNIT_POS as usize;
        let i = block * BLOCK + unit;
        // The position of query i.
        let position = all - new + i;
        let of_k = at_k + b * k.stride(0) + h * k.stride(1);
        let of_v = at_v + b * v.stride(0) + h * v.stride(1);
        let mut own = Array::<f32>::new(d);
        let mut sum = Array::<f32>::new(d);
        let of_q = b * q.stride(0) + h * q.stride(1) + i * q.stride(2);
        #[unroll]
        for c in 0..d {
            own[c] = 0.0f32;
            sum[c] = 0.0f32;
            if i < new {
                own[c] = q[of_q + c * q.stride(3)] * scale;
            }
        }
        let of_distance = if alibi { slope(h, heads) } else { 0.0f32.into() };
        let mut largest = f32::new(-3.0e38);
        let mut total = 0.0f32;
        // One more than the last key that a query of this cube sees.
        let mut end = all;
        if causal {
            end = min(all, all - new + (block + 1) * BLOCK);
        }
        let mut first = 0;
        while first < end {
            let mut e = unit;
            while e < tile * d {
                let (row, c) = (first + e / d, e % d);
                if row < end {
                    keys[e] = k[of_k + row * k.stride(2) + c * k.stride(3)];
                    values[e] = v[of_v + row * v.stride(2) + c * v.stride(3)];
                }
                e += BLOCK;
            }
            sync_cube();
            let mut seen = min(first + tile, end);
            if causal {
                seen = min(seen, position + 1);
            }
            let mut key = first;
            while key < seen {
                let at = (key - first) * d;
                let mut score = 0.0f32;
                #[unroll]
                for c in 0..d {
                    score += own[c] * keys[at + c];
                }
                if alibi {
                    score -= of_distance
                        * (f32::cast_from(position as u32) - f32::cast_from(key as u32));
                }
                if score > largest {
                    let factor = (largest - score).exp();
                    total *= factor;
                    #[unroll]
                    for c in 0..d {
                        sum[c] *= factor;
                    }
                    largest = score;
                }
                let weight = (score - largest).exp();
                total += weight;
                #[unroll]
                for c in 0..d {
                    sum[c] += weight * values[at + c];
                }
                key += 1;
            }
            sync_cube();
            first += tile;
        }
        if i < new {
            let to = b * y.stride(0) + h * y.stride(1) + i * y.stride(2);
            #[unroll]
            for c in 0..d {
                y[to + c * y.stride(3)] = sum[c] / total;
            }
            log_z[head * new + i] = largest + total.ln();
        }
    }
}

/// dq, and ⟨dy, y⟩ of each row. With the weights p = exp(score − log Z), d score = p (⟨dy, v⟩ − ⟨dy, y⟩).
#[cube(launch)]
fn gradient_of_queries(
    q: &Tensor<f32>,
    k: &Tensor<f32>,
    v: &Tensor<f32>,
    y: &Tensor<f32>,
    dy: &Tensor<f32>,
    log_z: &Array<f32>,
    dq: &mut Tensor<f32>,
    dots: &mut Array<f32>,
    at_k: usize,
    at_v: usize,
    all: usize,
    scale: f32,
    #[comptime] d: usize,
    #[comptime] tile: usize,
    #[comptime] causal: bool,
    #[comptime] alibi: bool,
) {
    let (heads, new) = (y.shape(1), y.shape(2));
    let blocks = new.div_ceil(BLOCK);
    let head = CUBE_POS as usize / blocks;
    let block = CUBE_POS as usize % blocks;
    let mut keys = SharedMemory::<f32>::new(tile * d);
    let mut values = SharedMemory::<f32>::new(tile * d);
    if head < y.shape(0) * heads {
        let (b, h) = (head / heads, head % heads);
        let unit = UNIT_POS as usize;
        let i = block * BLOCK + unit;
        let position = all - new + i;
        let of_k = at_k + b * k.stride(0) + h * k.stride(1);
        let of_v = at_v + b * v.stride(0) + h * v.stride(1);
        let of_q = b * q.stride(0) + h * q.stride(1) + i * q.stride(2);
        let of_y = b * y.stride(0) + h * y.stride(1) + i * y.stride(2);
        let of_dy = b * dy.stride(0) + h * dy.stride(1) + i * dy.stride(2);
        let mut own = Array::<f32>::new(d);
        let mut grad = Array::<f32>::new(d);
        let mut sum = Array::<f32>::new(d);
        let mut dot = 0.0f32;
        let mut of_row = 0.0f32;
        #[unroll]
        for c in 0..d {
            own[c] = 0.0f32;
            grad[c] = 0.0f32;
            sum[c] = 0.0f32;
            if i < new {
                own[c] = q[of_q + c * q.stride(3)] * scale;
                grad[c] = dy[of_dy + c * dy.stride(3)];
                dot += grad[c] * y[of_y + c * y.stride(3)];
            }
        }
        if i < new {
            of_row = log_z[head * new + i];
            dots[head * new + i] = dot;
        }
        let of_distance = if alibi { slope(h, heads) } else { 0.0f32.into() };
        let mut end = all;
        if causal {
            end = min(all, all - new + (block + 1) * BLOCK);
        }
        let mut first = 0;
        while first < end {
            let mut e = unit;
            while e < tile * d {
                let (row, c) = (first + e / d, e % d);
                if row < end {
                    keys[e] = k[of_k + row * k.stride(2) + c * k.stride(3)];
                    values[e] = v[of_v + row * v.stride(2) + c * v.stride(3)];
                }
                e += BLOCK;
            }
            sync_cube();
            let mut seen = min(first + tile, end);
            if causal {
                seen = min(seen, position + 1);
            }
            let mut key = first;
            while key < seen {
                let at = (key - first) * d;
                let mut score = 0.0f32;
                let mut product = 0.0f32;
                #[unroll]
                for c in 0..d {
                    score += own[c] * keys[at + c];
                    product += grad[c] * values[at + c];
                }
                if alibi {
                    score -= of_distance
                        * (f32::cast_from(position as u32) - f32::cast_from(key as u32));
                }
                let d_score = (score - of_row).exp() * (product - dot);
                #[unroll]
                for c in 0..d {
                    sum[c] += d_score * keys[at + c];
                }
                key += 1;
            }
            sync_cube();
            first += tile;
        }
        if i < new {
            let to = b * dq.stride(0) + h * dq.stride(1) + i * dq.stride(2);
            #[unroll]
            for c in 0..d {
                dq[to + c * dq.stride(3)] = sum[c] * scale;
            }
        }
    }
}

/// dk and dv, which begin at the elements `to_k` and `to_v` of `out`.
#[cube(launch)]
fn gradient_of_keys(
    q: &Tensor<f32>,
    k: &Tensor<f32>,
    v: &Tensor<f32>,
    dy: &Tensor<f32>,
    log_z: &Array<f32>,
    dots: &Array<f32>,
    out: &mut Tensor<f32>,
    at_k: usize,
    at_v: usize,
    to_k: usize,
    to_v: usize,
    all: usize,
    scale: f32,
    #[comptime] d: usize,
    #[comptime] tile: usize,
    #[comptime] causal: bool,
    #[comptime] alibi: bool,
) {
    let (heads, new) = (dy.shape(1), dy.shape(2));
    let blocks = all.div_ceil(BLOCK);
    let head = CUBE_POS as usize / blocks;
    let block = CUBE_POS as usize % blocks;
    let mut queries = SharedMemory::<f32>::new(tile * d);
    let mut grads = SharedMemory::<f32>::new(tile * d);
    let mut of_rows = SharedMemory::<f32>::new(2 * tile);
    if head < dy.shape(0) * heads {
        let (b, h) = (head / heads, head % heads);
        let unit = UNIT_POS as usize;
        let key = block * BLOCK + unit;
        // The position of the first query.
        let start = all - new;
        let of_q = b * q.stride(0) + h * q.stride(1);
        let of_dy = b * dy.stride(0) + h * dy.stride(1);
        let of_k = at_k + b * k.stride(0) + h * k.stride(1) + key * k.stride(2);
        let of_v = at_v + b * v.stride(0) + h * v.stride(1) + key * v.stride(2);
        let mut own_k = Array::<f32>::new(d);
        let mut own_v = Array::<f32>::new(d);
        let mut dk = Array::<f32>::new(d);
        let mut dv = Array::<f32>::new(d);
        #[unroll]
        for c in 0..d {
            own_k[c] = 0.0f32;
            own_v[c] = 0.0f32;
            dk[c] = 0.0f32;
            dv[c] = 0.0f32;
            if key < all {
                own_k[c] = k[of_k + c * k.stride(3)] * scale;
                own_v[c] = v[of_v + c * v.stride(3)];
            }
        }
        let of_distance = if alibi { slope(h, heads) } else { 0.0f32.into() };
        // The first query that sees a key of this cube, and the first that sees this key.
        let mut first = 0;
        let mut from = 0;
        if causal {
            if block * BLOCK > start {
                first = block * BLOCK - start;
            }
            if key > start {
                from = key - start;
            }
        }
        while first < new {
            let mut e = unit;
            while e < tile * d {
                let (row, c) = (first + e / d, e % d);
                if row < new {
                    queries[e] = q[of_q + row * q.stride(2) + c * q.stride(3)];
                    grads[e] = dy[of_dy + row * dy.stride(2) + c * dy.stride(3)];
                }
                e += BLOCK;
            }
            let mut e = unit;
            while e < tile {
                if first + e < new {
                    of_rows[2 * e] = log_z[head * new + first + e];
                    of_rows[2 * e + 1] = dots[head * new + first + e];
                }
                e += BLOCK;
            }
            sync_cube();
            let end = min(first + tile, new);
            let mut i = max(first, from);
            while i < end {
                let at = (i - first) * d;
                let mut score = 0.0f32;
                let mut product = 0.0f32;
                #[unroll]
                for c in 0..d {
                    score += own_k[c] * queries[at + c];
                    product += own_v[c] * grads[at + c];
                }
                if alibi {
                    score -= of_distance
                        * (f32::cast_from((start + i) as u32) - f32::cast_from(key as u32));
                }
                let weight = (score - of_rows[2 * (i - first)]).exp();
                let d_score = weight * (product - of_rows[2 * (i - first) + 1]);
                #[unroll]
                for c in 0..d {
                    dv[c] += weight * grads[at + c];
                    dk[c] += d_score * queries[at + c];
                }
                i += 1;
            }
            sync_cube();
            first += tile;
        }
        if key < all {
            let to = b * out.stride(0) + h * out.stride(1) + key * out.stride(2);
            #[unroll]
            for c in 0..d {
                out[to_k + to + c * out.stride(3)] = dk[c] * scale;
                out[to_v + to + c * out.stride(3)] = dv[c];
            }
        }
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

    /// Number of rows of a tile.
    fn tile(&self) -> usize {
        (TILE / self.sizes[4]).clamp(1, BLOCK)
    }

    /// Allocates `[batch, heads, time, d]` in the memory order of `[batch, time, heads, d]`, which the layers before
    /// and after need.
    fn empty(&self, [batch, heads, time, d]: [usize; 4]) -> CubeTensor<R> {
        in_sequence(empty(&self.qkv[0], [batch, time, heads, d]))
    }
}

/// Swaps the axes of heads and time.
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
        fits(inputs) && self.dropout.is_none() && same && of_head(&inputs[0]) <= LARGEST
    }

    fn forward_on<R: CubeRuntime>(&self, inputs: Inputs<R>) -> (CubeTensor<R>, Kept<R>) {
        let [batch, heads, new, all, d] = inputs.sizes;
        let y = inputs.empty([batch, heads, new, d]);
        let log_z = empty(&y, [batch * heads * new]);
        let [q, k, v] = inputs.qkv.clone();
        let client = y.client.clone();
        forward::launch::<R>(
            &client,
            grid(batch * heads * new.div_ceil(BLOCK)),
            CubeDim::new_1d(BLOCK as u32),
            q.into_tensor_arg(),
            k.into_tensor_arg(),
            v.into_tensor_arg(),
            y.clone().into_tensor_arg(),
            log_z.clone().into_array_arg(),
            inputs.at[0],
            inputs.at[1],
            all,
            self.scale as f32,
            d,
            inputs.tile(),
            self.causal,
            self.alibi,
        );
        let kept = Kept {
            inputs,
            y: y.clone(),
            log_z,
        };
        (y, kept)
    }

    /// Writes the gradients of q to `dq`, and of k and v to `out`, from the elements `to`.
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
        let client = y.client.clone();
        let dim = CubeDim::new_1d(BLOCK as u32);
        gradient_of_queries::launch::<R>(
            &client,
            grid(batch * heads * new.div_ceil(BLOCK)),
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
            d,
            inputs.tile(),
            self.causal,
            self.alibi,
        );
        gradient_of_keys::launch::<R>(
            &client,
            grid(batch * heads * all.div_ceil(BLOCK)),
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
            d,
            inputs.tile(),
            self.causal,
            self.alibi,
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

    fn takes(&self, qkv: &[CubeTensor<R>; 3]) -> bool {
        self.fits_cube(qkv)
    }

    fn forward(&self, qkv: [CubeTensor<R>; 3]) -> (CubeTensor<R>, Kept<R>) {
        self.forward_on(Inputs::of(qkv))
    }

    fn backward(&self, kept: Kept<R>, grad: CubeTensor<R>) -> [CubeTensor<R>; 3] {
        let [batch, heads, new, all, d] = kept.inputs.sizes;
        let dq = kept.inputs.empty([batch, heads, new, d]);
        // The gradients of k, then of v, along the first axis.
        let both = empty(&dq, [2 * batch, all, heads, d]);
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
