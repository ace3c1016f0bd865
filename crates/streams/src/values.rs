//! Functions shared by connections that act inside attention. The stream carries the layers' keys and values as
//! `[batch, time, heads · d]`.

use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::{merge_heads, split_heads};
use residual_zoo_core::{
    AttentionSize, Branch, BranchFn, ConfigError, Heads, Sites, Stream, widen,
};

/// Checks that the connection called `name` surrounds sublayers, and that the layers have attention, are of one kind
/// and share a stream. `acts` says what the connection does, such as "it changes the values of attention". Returns the
/// attention size.
pub(crate) fn need_equal_attention(
    on: &Sites,
    name: &str,
    acts: &str,
) -> Result<AttentionSize, ConfigError> {
    on.need_sublayers(name, &format!("{acts} sublayers"))?;
    on.need_attention(name, acts)?;
    on.need_depth(name, "it connects the attention of several layers")?;
    if on.mixed {
        return Err(ConfigError::new(
            name,
            "needs one entry in `layers`; the values of several entries need not have the same heads",
        ));
    }
    Ok(size(on))
}

/// Returns the attention size on a stream that [`need_equal_attention`] accepts.
pub(crate) fn size(on: &Sites) -> AttentionSize {
    on.attention.unwrap_or(AttentionSize::of_heads(1, on.width))
}

/// Computes x + f(x), where attention uses `change(heads, v_0)` `[batch, time, heads · d]` in place of its values. v_0
/// are the values of the first layer, which uses them unchanged and puts them on the stream.
pub(crate) fn with_first_values<B: Backend, M: Branch<B>>(
    mut stream: Stream<B>,
    f: BranchFn<'_, B, M>,
    mut change: impl FnMut(&Heads<B>, Tensor<B, 3>) -> Tensor<B, 3>,
) -> Stream<B> {
    let fx = f.attend(stream.x.clone(), |mut heads| {
        match stream.carried.first() {
            Some(first) => {
                let count = heads.v.dims()[1];
                heads.v = split_heads(change(&heads, first.clone()), count);
            }
            None => stream.carried.push(kept(&heads.v)),
        }
        heads
    });
    stream.x = fx + stream.x;
    stream
}

/// Merges heads `[batch, heads, time, d]` to `[batch, time, heads · d]`, in f32.
pub(crate) fn merged<B: Backend>(heads: &Tensor<B, 4>) -> Tensor<B, 3> {
    merge_heads(widen(heads.clone()))
}

/// Merges heads into a copy that later layers can read.
///
/// In Burn 0.21, `swap_dims` on LibTorch forgets that its result shares memory with its input. An in-place operation on
/// the result would change the input, which the backward pass of attention still reads. This function therefore returns
/// a copy.
pub(crate) fn kept<B: Backend>(heads: &Tensor<B, 4>) -> Tensor<B, 3> {
    let merged = merged(heads);
    // While `merged` lives, the product cannot be in place.
    let copy = merged.clone() * 1.0;
    drop(merged);
    copy
}

/// Computes g v, where g `[batch, time, heads]` has one factor for each head of v `[batch, time, heads · d]`.
pub(crate) fn per_head<B: Backend>(g: Tensor<B, 3>, v: Tensor<B, 3>) -> Tensor<B, 3> {
    let [batch, time, width] = v.dims();
    let heads = g.dims()[2];
    let v = v.reshape([batch, time, heads, width / heads]);
    (v * g.unsqueeze_dim(3)).reshape([batch, time, width])
}
