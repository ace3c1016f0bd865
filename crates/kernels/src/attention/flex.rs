//! Attention on Flex, a block of rows of one head at a time.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::Flex;
use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{Shape, TensorMetadata};
use burn_flex::{FlexTensor, Layout};
use pulp::{Simd, WithSimd};

use super::{Attention, hash};
use crate::flex::{self, Real, each, real, simd, with_real};
use crate::op::Op;

/// Number of rows whose weights a thread holds in memory at a time.
const ROWS: usize = 64;

/// The inputs of the backward pass: the heads of q, k and v, and log Σ exp of the scores of each row.
#[derive(Clone, Debug)]
pub struct Kept {
    qkv: [FlexTensor; 3],
    log_z: Arc<Vec<f64>>,
}

fn dims(x: &FlexTensor) -> [usize; 4] {
    x.shape().dims()
}

/// Views some rows of one head of x `[batch, heads, time, d]`, without a copy. `head` counts the heads of the whole
/// batch.
fn matrix(x: &FlexTensor, head: usize, rows: Range<usize>) -> FlexTensor {
    let [_, heads, _, d] = dims(x);
    let at = x
        .layout()
        .index(&[head / heads, head % heads, rows.start, 0]);
    let shape = Shape::from(vec![rows.len(), d]);
    let layout = Layout::new(shape, x.layout().strides()[2..].to_vec(), at);
    FlexTensor::from_arc(x.data_arc(), layout, x.dtype())
}

fn product(a: FlexTensor, b: FlexTensor) -> FlexTensor {
    Flex::float_matmul(a, b)
}

fn transposed(x: FlexTensor) -> FlexTensor {
    Flex::float_swap_dims(x, 0, 1)
}

/// Returns the rows from `start` to the next block.
fn block(start: usize, new: usize) -> Range<usize> {
    start..(start + ROWS).min(new)
}

/// Turns the products q kᵀ of a block into scores, and drops weights.
#[derive(Clone)]
struct Scores {
    attention: Attention,
    slope: f64,
    head: usize,
    /// Position of the first row.
    position: usize,
    /// The keys of the block.
    keys: Range<usize>,
}

impl Scores {
    /// Sets the entries of row `i` to 0 for the keys that the row's query does not see. Returns the position of the
    /// query, the first key that the query sees, and the entries of all keys that it sees.
    #[inline(always)]
    fn seen<'a, E: Real>(&self, i: usize, row: &'a mut [E]) -> (usize, usize, &'a mut [E]) {
        let position = self.position + i;
        let keys = self.attention.keys(position, self.keys.end);
        let (past, row) = row.split_at_mut(keys.start - self.keys.start);
        let (row, future) = row.split_at_mut(keys.len());
        past.fill(E::zero());
        future.fill(E::zero());
        (position, keys.start, row)
    }

    /// Turns products q kᵀ of the query at `position` into scores, one for each key from `first`.
    #[inline(always)]
    fn add_bias<E: Real>(&self, position: usize, first: usize, row: &mut [E]) {
        let scale = match self.attention.cap {
            None => E::of(self.attention.scale),
            Some(cap) => {
                let (inverse, cap) = (E::of(self.attention.scale / cap), E::of(cap));
                for z in row.iter_mut() {
                    *z = cap * (*z * inverse).fast_tanh();
                }
                E::one()
            }
        };
        if self.slope == 0.0 {
            for z in row.iter_mut() {
                *z = *z * scale;
            }
        } else {
            let slope = E::of(self.slope);
            for (key, z) in (first..).zip(row.iter_mut()) {
                *z = z.mul_add(scale, slope * E::of(key as f64 - position as f64));
            }
        }
    }

    /// Multiplies the gradients of the scores by the slopes of the cap, 1 − tanh². `row` has the products q kᵀ.
    #[inline(always)]
    fn multiply_by_slopes<E: Real>(&self, row: &[E], grad: &mut [E]) {
        if let Some(cap) = self.attention.cap {
            let inverse = E::of(self.attention.scale / cap);
            for (d, &z) in grad.iter_mut().zip(row) {
                let tanh = (z * inverse).fast_tanh();
                *d = *d * (E::one() - tanh * tanh);
            }
        }
    }

    /// Sets dropped weights of the query at `position`, or their gradients, to 0. The first key is `first`.
    #[inline(always)]
    fn drop_some<E: Real>(&self, position: usize, first: usize, row: &mut [E]) {
        let Some(dropped) = self.attention.dropout else {
            return;
        };
        let (seed, threshold) = (dropped.row(self.head, position), dropped.threshold());
        let keep = E::of(1.0 / (1.0 - dropped.probability));
        for (key, weight) in (first..).zip(row.iter_mut()) {
            let factor = match hash(seed, key as u32) < threshold {
                true => E::zero(),
                false => keep,
            };
            *weight = *weight * factor;
        }
    }
}

/// Replaces the products q kᵀ of a block with exp(score − max), after dropout. Returns the sum before dropout and log Z
/// of each row.
struct Weights<'a, E> {
    scores: Scores,
    rows: &'a mut [E],
}

impl<E: Real> WithSimd for Weights<'_, E> {
    type Output = Vec<(E, f64)>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let scores = self.scores;
        let mut sums = Vec::with_capacity(ROWS);
        let rows = self.rows.chunks_exact_mut(scores.keys.len());
        for (i, row) in rows.enumerate() {
            let (position, first, row) = scores.seen(i, row);
            scores.add_bias(position, first, row);
            let max = E::largest(simd, row);
            for z in row.iter_mut() {
                *z = (*z - max).fast_exp();
            }
            let z = E::total(simd, row);
            scores.drop_some(position, first, row);
            sums.push((z, (max + z.ln()).wide()));
        }
        sums
    }
}

/// Replaces the products q kᵀ with the weights after dropout, and the gradients of these weights with the gradients of
/// q kᵀ: dS = P (dP − Σ P dP) · scale, where P are the weights before dropout and dP their gradients. With a cap, dS is
/// also multiplied by the slopes of the cap.
struct Gradients<'a, E> {
    scores: Scores,
    rows: &'a mut [E],
    grads: &'a mut [E],
    log_z: &'a [f64],
}

impl<E: Real> WithSimd for Gradients<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let scores = self.scores;
        let keys = scores.keys.len();
        let mut products = match scores.attention.cap {
            Some(_) => vec![E::zero(); keys],
            None => vec![],
        };
        let rows = self.rows.chunks_exact_mut(keys);
        let rows = rows.zip(self.grads.chunks_exact_mut(keys));
        for (i, ((row, grad), &log_z)) in rows.zip(self.log_z).enumerate() {
            let (position, first, row) = scores.seen(i, row);
            let (_, _, grad) = scores.seen(i, grad);
            if scores.attention.cap.is_some() {
                products[..row.len()].copy_from_slice(row);
            }
            scores.add_bias(position, first, row);
            let (log_z, scale) = (E::of(log_z), E::of(scores.attention.scale));
            for z in row.iter_mut() {
                *z = (*z - log_z).fast_exp();
            }
            scores.drop_some(position, first, grad);
            let mean = E::dot(simd, row, grad);
            for (d, &p) in grad.iter_mut().zip(row.iter()) {
                *d = p * (*d - mean) * scale;
            }
            scores.multiply_by_slopes(&products, grad);
            scores.drop_some(position, first, row);
        }
    }
}

/// y = rows / sums.
struct Divide<'a, E>(&'a mut [E], &'a [(E, f64)], usize);

impl<E: Real> WithSimd for Divide<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (row, &(sum, _)) in self.0.chunks_exact_mut(self.2).zip(self.1) {
            for y in row {
                *y = *y / sum;
            }
        }
    }
}

/// to += from.
struct Add<'a, E>(&'a mut [E], &'a [E]);

impl<E: Real> WithSimd for Add<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (to, &from) in self.0.iter_mut().zip(self.1) {
            *to = *to + from;
        }
    }
}

impl Attention {
    fn scores(&self, head: usize, heads: usize, position: usize, keys: Range<usize>) -> Scores {
        Scores {
            attention: *self,
            slope: self.slope(head % heads, heads),
            head,
            position,
            keys,
        }
    }

    /// Returns the keys that the queries of a block see, together. The first query is at `position`.
    fn keys_of(&self, position: usize, rows: usize, all: usize) -> Range<usize> {
        self.keys(position, all).start..self.keys(position + rows - 1, all).end
    }

    fn run<E: Real>(&self, [q, k, v]: &[FlexTensor; 3]) -> (FlexTensor, Vec<f64>) {
        let ([batch, heads, new, d], [_, kv_heads, all, _]) = (dims(q), dims(k));
        let group = heads / kv_heads;
        let starts = (0..new).step_by(ROWS);
        let tasks = (0..batch * heads).flat_map(|head| starts.clone().map(move |at| (head, at)));
        let blocks = each(
            tasks.collect(),
            batch * heads * new * all,
            |(head, start)| {
                let rows = block(start, new);
                let position = all - new + start;
                let keys = self.keys_of(position, rows.len(), all);
                let [k, v] = [k, v].map(|x| matrix(x, head / group, keys.clone()));
                let mut weights = product(matrix(q, head, rows), transposed(k));
                let sums = simd(Weights::<E> {
                    scores: self.scores(head, heads, position, keys),
                    rows: weights.storage_mut(),
                });
                let mut y = product(weights, v);
                simd(Divide::<E>(y.storage_mut(), &sums, d));
                (y, sums)
            },
        );
        let log_z = blocks
            .iter()
            .flat_map(|(_, sums)| sums.iter().map(|&(_, log_z)| log_z));
        let log_z = log_z.collect();
        let blocks: Vec<_> = blocks.into_iter().map(|(y, _)| y).collect();
        let per_head = new.div_ceil(ROWS);
        let y = join(q, [batch, heads, new, d], |head| {
            let blocks = &blocks[head * per_head..][..per_head];
            blocks.iter().map(flex::slice::<E>).collect()
        });
        (y, log_z)
    }

    /// Computes the gradients of the heads of q, then of k, then of v. The gradients of a head of k or v are sums over
    /// the query heads that read it.
    fn run_back<E: Real>(&self, kept: &Kept, dy: &FlexTensor) -> [Vec<Vec<E>>; 3] {
        let [q, k, v] = &kept.qkv;
        let ([batch, heads, new, d], [_, kv_heads, all, _]) = (dims(q), dims(k));
        let group = heads / kv_heads;
        let tasks = (0..batch * heads).collect();
        let grads = each(tasks, batch * heads * new * all, |head| {
            let mut dq = Vec::with_capacity(new * d);
            let [mut dk, mut dv] = [(); 2].map(|()| vec![E::zero(); all * d]);
            for start in (0..new).step_by(ROWS) {
                let rows = block(start, new);
                let position = all - new + start;
                let keys = self.keys_of(position, rows.len(), all);
                let to = keys.start * d..keys.end * d;
                let [k, v] = [k, v].map(|x| matrix(x, head / group, keys.clone()));
                let q = matrix(q, head, rows.clone());
                let dy = matrix(dy, head, rows.clone());
                let mut weights = product(q.clone(), transposed(k.clone()));
                let mut d_scores = product(dy.clone(), transposed(v));
                simd(Gradients::<E> {
                    scores: self.scores(head, heads, position, keys),
                    rows: weights.storage_mut(),
                    grads: d_scores.storage_mut(),
                    log_z: &kept.log_z[head * new + start..],
                });
                let of_v = product(transposed(weights), dy);
                simd(Add(&mut dv[to.clone()], flex::slice::<E>(&of_v)));
                let of_k = product(transposed(d_scores.clone()), q);
                simd(Add(&mut dk[to], flex::slice::<E>(&of_k)));
                dq.extend_from_slice(flex::slice::<E>(&product(d_scores, k)));
            }
            [dq, dk, dv]
        });
        let [mut dq, mut dk, mut dv] = [(); 3].map(|()| Vec::with_capacity(batch * heads));
        for (head, [of_q, of_k, of_v]) in grads.into_iter().enumerate() {
            dq.push(of_q);
            for (sums, part) in [(&mut dk, of_k), (&mut dv, of_v)] {
                match sums.last_mut().filter(|_| !head.is_multiple_of(group)) {
                    Some(sum) => simd(Add(sum, &part)),
                    None => sums.push(part),
                }
            }
        }
        [dq, dk, dv]
    }
}

/// Makes a tensor of shape `dims` `[batch, heads, time, d]`, in the memory order of `like`. `head` returns the pieces
/// of one head's rows; its argument counts the heads of the whole batch.
///
/// The tensors around attention hold the features of all heads of a token side by side. In this order, the reshape
/// after attention needs no copy.
fn join<'a, E: Real>(
    like: &FlexTensor,
    dims: [usize; 4],
    head: impl Fn(usize) -> Vec<&'a [E]> + Sync + Send,
) -> FlexTensor {
    let [batch, heads, time, d] = dims;
    let like = like.layout().strides();
    let mut order = [1, 2, 3];
    order.sort_by_key(|&axis| std::cmp::Reverse(like[axis]));
    let mut strides = [heads * time * d, 0, 0, 0];
    let mut stride = 1;
    for axis in order.into_iter().rev() {
        strides[axis] = stride;
        stride *= dims[axis];
    }
    let mut data = flex::zeros(batch * stride);
    if stride > 0 {
        let tasks = data.chunks_mut(stride).enumerate().collect();
        each(tasks, batch * stride, |(batch, to)| {
            for h in 0..heads {
                let pieces = head(batch * heads + h);
                let rows = pieces.iter().flat_map(|piece| piece.chunks_exact(d));
                for (t, row) in rows.enumerate() {
                    let at = h * strides[1] + t * strides[2];
                    match strides[3] {
                        1 => to[at..at + d].copy_from_slice(row),
                        apart => {
                            let to = to[at..].iter_mut().step_by(apart);
                            to.zip(row).for_each(|(to, &x)| *to = x);
                        }
                    }
                }
            }
        });
    }
    let x = flex::vector(data);
    let strides = strides.map(|s| s as isize).to_vec();
    x.with_layout(Layout::new(Shape::from(dims.to_vec()), strides, 0))
}

fn run<E: Real>(attention: &Attention, qkv: &[FlexTensor; 3]) -> (FlexTensor, Vec<f64>) {
    attention.run::<E>(qkv)
}

fn forward(attention: &Attention, qkv: [FlexTensor; 3]) -> (FlexTensor, Kept) {
    let (y, log_z) = with_real!(&qkv[0], run(attention, &qkv));
    let log_z = Arc::new(log_z);
    (y, Kept { qkv, log_z })
}

/// Returns the gradients of q, k and v.
fn backward<E: Real>(attention: &Attention, kept: &Kept, dy: &FlexTensor) -> [FlexTensor; 3] {
    let [dq, dk, dv] = attention.run_back::<E>(kept, dy);
    let [q, k, v] = &kept.qkv;
    [(q, dq), (k, dk), (v, dv)].map(|(x, d)| join::<E>(x, dims(x), |head| vec![&d[head]]))
}

/// Returns the gradient of q, k and v side by side.
fn packed_backward<E: Real>(attention: &Attention, kept: &Kept, dy: &FlexTensor) -> FlexTensor {
    let parts = attention.run_back::<E>(kept, dy);
    let q = &kept.qkv[0];
    let [batch, heads, time, d] = dims(q);
    join::<E>(q, [batch, 3 * heads, time, d], |head| {
        let (batch, h) = (head / (3 * heads), head % (3 * heads));
        vec![&parts[h / heads][batch * heads + h % heads]]
    })
}

impl Op<Flex, 3> for Attention {
    type Kept = Kept;

    fn takes(&self, inputs: &[FlexTensor; 3]) -> bool {
        let [[_, heads, new, d], k, v] = inputs.each_ref().map(dims);
        let [_, kv_heads, all, d_k] = k;
        real(inputs) && heads.is_multiple_of(kv_heads) && k == v && d == d_k && new <= all
    }

    fn forward(&self, qkv: [FlexTensor; 3]) -> (FlexTensor, Kept) {
        forward(self, qkv)
    }

    fn backward(&self, kept: Kept, grad: FlexTensor) -> [FlexTensor; 3] {
        with_real!(&grad, backward(self, &kept, &grad))
    }
}

impl Op<Flex, 1> for Attention {
    type Kept = Kept;

    fn takes(&self, inputs: &[FlexTensor; 1]) -> bool {
        real(inputs)
    }

    fn forward(&self, [qkv]: [FlexTensor; 1]) -> (FlexTensor, Kept) {
        let heads = dims(&qkv)[1] / 3;
        let part = |i: usize| qkv.layout().narrow(1, i * heads, heads);
        let part = |i| FlexTensor::from_arc(qkv.data_arc(), part(i), qkv.dtype());
        forward(self, [0, 1, 2].map(part))
    }

    fn backward(&self, kept: Kept, grad: FlexTensor) -> [FlexTensor; 1] {
        [with_real!(&grad, packed_backward(self, &kept, &grad))]
    }
}
