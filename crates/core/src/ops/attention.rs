//! Causal attention, for whole sequences and with a cache.

use burn::nn::Dropout;
use burn::tensor::{Bool, Int, Tensor, TensorData, backend::Backend};

/// The keys and values of the positions seen so far, `[batch, heads, time, head_width]`.
#[derive(Clone, Debug)]
pub struct KvCache<B: Backend>(Option<[Tensor<B, 4>; 2]>);

impl<B: Backend> Default for KvCache<B> {
    fn default() -> Self {
        Self(None)
    }
}

impl<B: Backend> KvCache<B> {
    /// Number of positions in `cache`; 0 without a cache.
    pub fn seen(cache: &Option<&mut Self>) -> usize {
        let keys = cache.as_ref().and_then(|cache| cache.0.as_ref());
        keys.map_or(0, |[k, _]| k.dims()[2])
    }

    /// Appends the keys `k` and values `v` of new positions to `cache`, and returns all keys and values.
    /// Without a cache, returns `k` and `v`.
    pub fn extend(cache: Option<&mut Self>, k: Tensor<B, 4>, v: Tensor<B, 4>) -> [Tensor<B, 4>; 2] {
        let Some(cache) = cache else {
            return [k, v];
        };
        let all = match cache.0.take() {
            Some([k0, v0]) => [Tensor::cat(vec![k0, k], 2), Tensor::cat(vec![v0, v], 2)],
            None => [k, v],
        };
        cache.0 = Some(all.clone());
        all
    }
}

/// Splits features into heads: `[batch, time, heads · d]` to `[batch, heads, time, d]`. Feature
/// `h · d + c` belongs to head `h`.
pub fn split_heads<B: Backend>(x: Tensor<B, 3>, heads: usize) -> Tensor<B, 4> {
    let [batch, time, width] = x.dims();
    x.reshape([batch, time, heads, width / heads])
        .swap_dims(1, 2)
}

/// The inverse of [`split_heads`].
pub fn merge_heads<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 3> {
    let [batch, heads, time, d] = x.dims();
    x.swap_dims(1, 2).reshape([batch, time, heads * d])
}

/// softmax(q kᵀ · scale + bias + causal mask) v (Vaswani et al., "Attention is all you need",
/// 2017, eq. 1), with dropout on the attention weights. `bias`, such as [`alibi`], broadcasts to
/// `[batch, heads, new, seen + new]`.
///
/// `q` is `[batch, heads, new, d]`; `k` and `v` are `[batch, heads, seen + new, d]`. Query `i` is at
/// position `seen + i` and attends to keys `0 ..= seen + i`.
///
/// Burn's fused attention is not used: under autodiff it falls back to the same matrix products, and
/// for `seen > 0` backends disagree on the alignment of its causal mask. The division by the sum of the
/// weights comes after the product with v, which has fewer elements.
pub fn causal_attention<B: Backend>(
    q: Tensor<B, 4>,
    k: Tensor<B, 4>,
    v: Tensor<B, 4>,
    scale: f64,
    bias: Option<Tensor<B, 4>>,
    dropout: &Dropout,
) -> Tensor<B, 4> {
    let scores = (q * scale).matmul(k.swap_dims(2, 3));
    let scores = mask_future(match bias {
        Some(bias) => scores + bias,
        None => scores,
    });
    let max = scores.clone().detach().max_dim(3);
    let weights = (scores - max).exp();
    let sum = weights.clone().sum_dim(3);
    dropout.forward(weights).matmul(v) / sum
}

/// The bias of ALiBi (Press et al., "Train short, test long", 2022): −slope_h · (distance of query and
/// key), `[1, heads, new, seen + new]`, with slopes 2^(−8 (h + 1) / heads), h from 0.
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

/// Sets the scores `[batch, heads, new, seen + new]` of keys later than the query to −∞.
pub fn mask_future<B: Backend>(scores: Tensor<B, 4>) -> Tensor<B, 4> {
    let [_, _, new, all] = scores.dims();
    if new == 1 {
        return scores;
    }
    let offset = (all - new) as i64;
    let future = Tensor::<B, 2, Bool>::tril_mask([new, all], offset, &scores.device());
    scores.mask_fill(future.unsqueeze(), f32::NEG_INFINITY)
}
