//! Scaled dot-product attention, for whole sequences and with a cache.

use burn::module::Module;
use burn::nn::DropoutConfig;
use burn::tensor::{Bool, Distribution, Int, Tensor, TensorData, backend::Backend};
use residual_zoo_kernels as kernels;

use super::forms::plain;
use super::precision::{matmul, narrow, widen};
use crate::{Cache, Seen};

/// Keys and values of the positions seen so far. Each new position is written in place while there is room for it. A
/// full cache grows by at least half, up to the context.
#[derive(Clone, Debug)]
pub struct KvCache<B: Backend> {
    /// Groups of rows (sequences of the batch) that began together. A batch that was read in one call is one group.
    parts: Vec<Part<B>>,
    context: usize,
}

/// Rows at the same position.
#[derive(Clone, Debug)]
struct Part<B: Backend> {
    /// Keys and values, `[rows, heads, room, d]` each. `room`, the number of positions that fit, grows up to the
    /// context.
    kv: [Tensor<B, 4>; 2],
    seen: usize,
}

/// Minimum number of positions that fit into a cache, unless the context is smaller. With less room, the caches of
/// short sequences would grow often.
const LEAST_ROOM: usize = 64;

impl<B: Backend> KvCache<B> {
    /// Makes an empty cache for at most `context` positions. Its memory has room for the positions that it has seen,
    /// and for at most half as many more. A short cache has room for 64 positions, or for the whole context if the
    /// context is smaller.
    pub fn new(context: usize) -> Self {
        Self {
            parts: Vec::new(),
            context,
        }
    }

    /// Returns the number of positions that each row of `cache` has seen. The list is empty without a cache.
    pub fn seen(cache: &Option<&mut Self>) -> Seen {
        let mut seen = Seen::default();
        for part in cache.iter().flat_map(|cache| &cache.parts) {
            seen.push(part.rows(), part.seen);
        }
        seen
    }

    /// Writes the keys and values of new positions, `[batch, heads, new, d]` each. Then calls `attend` with the
    /// queries and all keys and values, once per group of rows that began together. Returns the results of all rows.
    ///
    /// # Panics
    ///
    /// Panics if the cached and new positions exceed the context.
    pub fn attend(
        &mut self,
        qkv: [Tensor<B, 4>; 3],
        attend: impl Fn([Tensor<B, 4>; 3]) -> Tensor<B, 4>,
    ) -> Tensor<B, 4> {
        if self.parts.is_empty() {
            self.parts.push(Part::empty(&qkv[1], &qkv[2], self.context));
        }
        let single = self.parts.len() == 1;
        let mut from = 0;
        let mut all = Vec::new();
        for part in std::mem::take(&mut self.parts) {
            let rows = from..from + part.rows();
            from = rows.end;
            let [q, k, v] = match single {
                true => qkv.clone(),
                false => qkv.clone().map(|x| x.slice_dim(0, rows.clone())),
            };
            let (part, [k, v]) = part.extend(k, v, self.context);
            self.parts.push(part);
            all.push(attend([q, k, v]));
        }
        match all.len() {
            1 => all.remove(0),
            _ => Tensor::cat(all, 0),
        }
    }
}

impl<B: Backend> Part<B> {
    /// Makes an empty part with room for keys like `k` and values like `v`.
    fn empty(k: &Tensor<B, 4>, v: &Tensor<B, 4>, context: usize) -> Self {
        let empty = |like: &Tensor<B, 4>| {
            let [rows, heads, new, d] = like.dims();
            let room = new.max(LEAST_ROOM).min(context);
            Tensor::zeros([rows, heads, room, d], (&like.device(), like.dtype()))
        };
        Self {
            kv: [empty(k), empty(v)],
            seen: 0,
        }
    }

    fn rows(&self) -> usize {
        self.kv[0].dims()[0]
    }

    /// Writes the keys `k` and values `v` of new positions. Returns the part, and all its keys and values.
    fn extend(self, k: Tensor<B, 4>, v: Tensor<B, 4>, context: usize) -> (Self, [Tensor<B, 4>; 2]) {
        let Self {
            kv: [k0, v0],
            seen: start,
        } = self;
        let end = start + k.dims()[2];
        assert!(end <= context, "{end} positions in a context of {context}");
        let write = |all: Tensor<B, 4>, new: Tensor<B, 4>| {
            let all = grown(all, start, end, context);
            let [rows, heads, _, d] = all.dims();
            kernels::write_positions(all, new, start).unwrap_or_else(|[all, new]| {
                all.slice_assign([0..rows, 0..heads, start..end, 0..d], new)
            })
        };
        let kv = [write(k0, k), write(v0, v)];
        let seen = kv.clone().map(|all| all.narrow(2, 0, end));
        (Self { kv, seen: end }, seen)
    }
}

/// Returns the tensor `all`, `[rows, heads, room, d]`, with room for `end` positions. Keeps the first `seen` positions.
fn grown<B: Backend>(all: Tensor<B, 4>, seen: usize, end: usize, context: usize) -> Tensor<B, 4> {
    let [rows, heads, room, d] = all.dims();
    if end <= room {
        return all;
    }
    let more = (room + room / 2).min(context).max(end) - seen;
    let free = Tensor::zeros([rows, heads, more, d], (&all.device(), all.dtype()));
    Tensor::cat(vec![all.narrow(2, 0, seen), free], 2)
}

impl<B: Backend> Cache for KvCache<B> {
    fn joins(&self) -> bool {
        true
    }

    fn join(&mut self, other: Self) {
        self.parts.extend(other.parts);
    }

    fn keep(&mut self, keep: &[bool]) {
        let mut keep = keep.iter();
        self.parts.retain_mut(|part| {
            let rows = keep.by_ref().take(part.rows()).enumerate();
            let kept: Vec<i32> = rows
                .filter(|(_, keep)| **keep)
                .map(|(row, _)| row as i32)
                .collect();
            if kept.len() < part.rows() && !kept.is_empty() {
                let count = kept.len();
                let rows = Tensor::<B, 1, Int>::from_data(
                    TensorData::new(kept, [count]),
                    &part.kv[0].device(),
                );
                part.kv = part.kv.clone().map(|x| x.select(0, rows.clone()));
                return true;
            }
            !kept.is_empty()
        });
    }
}

/// Splits features into heads: `[batch, time, heads · d]` to `[batch, heads, time, d]`. Feature
/// `h · d + c` belongs to head `h`.
pub fn split_heads<B: Backend>(x: Tensor<B, 3>, heads: usize) -> Tensor<B, 4> {
    let [batch, time, width] = x.dims();
    swap(x.reshape([batch, time, heads, width / heads]))
}

/// Exchanges the head axis and the time axis.
fn swap<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 4> {
    kernels::swap_heads(x).unwrap_or_else(|x| x.swap_dims(1, 2))
}

/// Splits packed heads into q, k and v: `[batch, 3 · heads, time, d]` to `[batch, heads, time, d]` each.
pub fn unpack<B: Backend>(qkv: Tensor<B, 4>) -> [Tensor<B, 4>; 3] {
    // In memory, the heads of a token are side by side. Slices in this order need no copy of their gradients.
    let qkv = swap(qkv);
    let heads = qkv.dims()[2] / 3;
    [0, 1, 2].map(|i| swap(qkv.clone().narrow(2, i * heads, heads)))
}

/// The inverse of [`split_heads`].
pub fn merge_heads<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 3> {
    let [batch, heads, time, d] = x.dims();
    swap(x).reshape([batch, time, heads * d])
}

/// Scaled dot-product attention (Vaswani et al., "Attention is all you need", 2017, eq. 1):
/// softmax(q kᵀ · scale + bias + mask) v, with dropout on the attention weights.
#[derive(Module, Clone, Debug)]
pub struct DotAttention {
    /// Factor by which the scores are multiplied.
    pub scale: f64,
    /// Whether a position attends only to itself and earlier positions.
    pub causal: bool,
    /// Whether the bias of [`alibi`] is added to the scores.
    pub alibi: bool,
    /// The cap c: before the mask, a score s becomes c tanh(s / c) (Gemma 2).
    pub cap: Option<f64>,
    /// With causal attention, the number of most recent positions that a query attends to, its own included; `None` for
    /// all.
    pub window: Option<usize>,
    /// Probability of dropping an attention weight in training.
    pub dropout: f64,
    /// Maximum number of positions in a cache.
    pub context: usize,
}

impl DotAttention {
    /// Makes causal attention over at most `context` positions with the factor `scale`, without bias or dropout.
    pub fn new(scale: f64, context: usize) -> Self {
        Self {
            scale,
            causal: true,
            alibi: false,
            cap: None,
            window: None,
            dropout: 0.0,
            context,
        }
    }

    /// Returns an empty cache.
    pub fn new_cache<B: Backend>(&self) -> KvCache<B> {
        KvCache::new(self.context)
    }

    /// Attends with the heads of q, k and v side by side: `[batch, 3 · heads, new, d]` to `[batch, heads, new, d]`.
    /// With a cache, the new positions follow the cached ones.
    pub fn packed<B: Backend>(
        &self,
        qkv: Tensor<B, 4>,
        cache: Option<&mut KvCache<B>>,
    ) -> Tensor<B, 4> {
        if cache.is_some() {
            return self.forward(unpack(qkv), cache);
        }
        let qkv = narrow(qkv);
        let fast = kernels::packed_attention(self.kernel(&qkv), qkv);
        fast.unwrap_or_else(|qkv| self.plain(unpack(plain("attention", qkv))))
    }

    /// Attends with q of the new positions, `[batch, heads, new, d]`; returns the same shape. k and v have K heads,
    /// where K divides the number of query heads, H. Query head h reads key-value head h // (H / K) (Ainslie et al.,
    /// "GQA", 2023). With a cache, the new positions follow the cached ones.
    pub fn forward<B: Backend>(
        &self,
        qkv: [Tensor<B, 4>; 3],
        cache: Option<&mut KvCache<B>>,
    ) -> Tensor<B, 4> {
        let attend = |qkv: [Tensor<B, 4>; 3]| {
            let qkv = qkv.map(narrow);
            let kernel = self.kernel(&qkv[0]);
            let with_own_heads = kernels::attention(kernel, qkv).or_else(|[q, k, v]| {
                let heads = q.dims()[1];
                match k.dims()[1] == heads {
                    true => Err([q, k, v]),
                    false => kernels::attention(kernel, [q, grouped(k, heads), grouped(v, heads)]),
                }
            });
            with_own_heads.unwrap_or_else(|qkv| self.plain(plain("attention", qkv)))
        };
        match cache {
            Some(cache) => cache.attend(qkv, attend),
            None => attend(qkv),
        }
    }

    /// The plain form of attention: queries `[batch, heads, new, d]` attend to keys and values
    /// `[batch, heads, seen + new, d]`, where `seen` is the number of positions before the queries. Query `i` is at
    /// position `seen + i`. If attention is causal, the query attends to keys `0 ..= seen + i`, or to the last `window`
    /// of them; otherwise, to all keys.
    ///
    /// The division by the sum of the weights follows the product with v, because the product has fewer elements than
    /// the weights.
    pub fn plain<B: Backend>(&self, [q, k, v]: [Tensor<B, 4>; 3]) -> Tensor<B, 4> {
        let ([_, heads, new, _], all) = (q.dims(), k.dims()[2]);
        let device = q.device();
        let scores = widen(matmul(q * self.scale, k.swap_dims(2, 3)));
        let scores = match self.cap {
            Some(cap) => capped(scores, cap),
            None => scores,
        };
        let scores = match self.alibi {
            true => scores + alibi(heads, new, all - new, &device),
            false => scores,
        };
        let scores = match self.causal {
            true => mask_past(mask_future(scores), self.window),
            false => scores,
        };
        let max = scores.clone().detach().max_dim(3);
        let weights = (scores - max).exp();
        let sum = weights.clone().sum_dim(3);
        let dropout = DropoutConfig::new(self.dropout).init();
        matmul(dropout.forward(weights), v) / sum
    }

    /// Returns the kernel for queries `q`.
    fn kernel<B: Backend>(&self, q: &Tensor<B, 4>) -> kernels::Attention {
        let device = q.device();
        let drops = self.dropout > 0.0 && B::ad_enabled(&device);
        kernels::Attention {
            scale: self.scale,
            cap: self.cap,
            window: self.window,
            causal: self.causal,
            alibi: self.alibi,
            dropout: drops.then(|| kernels::Dropped {
                probability: self.dropout,
                seed: seed::<B>(&device),
            }),
        }
    }
}

/// Repeats each head of x `[batch, K, time, d]` for a group of query heads: `[batch, heads, time, d]`.
fn grouped<B: Backend>(x: Tensor<B, 4>, heads: usize) -> Tensor<B, 4> {
    let [batch, k, time, d] = x.dims();
    if k == heads {
        return x;
    }
    let group = heads / k;
    let groups: Tensor<B, 5> = x.unsqueeze_dim(2);
    groups
        .expand([batch, k, group, time, d])
        .reshape([batch, heads, time, d])
}

/// Computes c tanh(x / c) for the cap c.
pub fn capped<B: Backend, const D: usize>(x: Tensor<B, D>, cap: f64) -> Tensor<B, D> {
    // In Burn 0.21, the gradient of a division by a number has only f32 precision, even for f64 tensors.
    (x * cap.recip()).tanh() * cap
}

/// Draws a seed from the device's random generator, so that a resumed run draws the same seed.
fn seed<B: Backend>(device: &B::Device) -> u64 {
    let parts = Tensor::<B, 1>::random([2], Distribution::Uniform(0.0, 1.0), device);
    let parts = parts.into_data();
    let parts = parts
        .iter::<f64>()
        .map(|part| (part * (1u64 << 24) as f64) as u64);
    parts.fold(0, |seed, part| (seed << 24) ^ part)
}

/// Returns the bias of ALiBi (Press et al., "Train short, test long", 2022): slope_h · (position of the key − position
/// of the query), `[1, heads, new, seen + new]`, with the slope 2^(−8 (h + 1) / heads) for head h, counted from 0.
pub fn alibi<B: Backend>(
    heads: usize,
    new: usize,
    seen: usize,
    device: &B::Device,
) -> Tensor<B, 4> {
    let slope = |h: usize| 2f64.powf(-8.0 * (h + 1) as f64 / heads as f64);
    let slopes: Vec<f64> = (0..heads).map(slope).collect();
    let slopes = Tensor::from_data(TensorData::new(slopes, [1, heads, 1, 1]), device);
    let positions = |range: std::ops::Range<usize>| {
        Tensor::<B, 1, Int>::arange(range.start as i64..range.end as i64, device).float()
    };
    let query = positions(seen..seen + new).reshape([1, 1, new, 1]);
    let key = positions(0..seen + new).reshape([1, 1, 1, seen + new]);
    (key - query) * slopes
}

/// Sets the scores `[batch, heads, new, seen + new]` of keys after the query to −∞.
pub fn mask_future<B: Backend>(scores: Tensor<B, 4>) -> Tensor<B, 4> {
    let [_, _, new, all] = scores.dims();
    if new == 1 {
        return scores;
    }
    let offset = (all - new) as i64;
    let future = Tensor::<B, 2, Bool>::tril_mask([new, all], offset, &scores.device());
    scores.mask_fill(future.unsqueeze(), f32::NEG_INFINITY)
}

/// Sets the scores `[batch, heads, new, seen + new]` of keys before the window of the query to −∞. A window of w
/// positions ends with the query.
fn mask_past<B: Backend>(scores: Tensor<B, 4>, window: Option<usize>) -> Tensor<B, 4> {
    let [_, _, new, all] = scores.dims();
    match window {
        Some(window) if window < all => {
            let offset = (all - new + 1) as i64 - window as i64;
            let past = Tensor::<B, 2, Bool>::triu_mask([new, all], offset, &scores.device());
            scores.mask_fill(past.unsqueeze(), f32::NEG_INFINITY)
        }
        _ => scores,
    }
}
