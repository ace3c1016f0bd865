//! Writes into a cache of keys or values. The operation has no gradient.

use burn::tensor::{Tensor, backend::Backend};

/// Writes `new` `[batch, heads, time, d]` over `cache` `[batch, heads, context, d]` from position `start`. Writes in
/// place if nothing else holds `cache`; Flex's own `slice_assign` always copies it.
///
/// # Errors
///
/// Returns `cache` and `new` if there is no kernel for them.
///
/// # Panics
///
/// Panics if the new positions extend beyond the context of the cache.
pub fn write_positions<B: Backend>(
    cache: Tensor<B, 4>,
    new: Tensor<B, 4>,
    start: usize,
) -> Result<Tensor<B, 4>, [Tensor<B, 4>; 2]> {
    let inputs = [cache, new];
    #[cfg(feature = "flex")]
    let inputs = match crate::flex::on_flex(inputs, |[cache, new]| [flex::write(cache, new, start)])
    {
        Ok([cache]) => return Ok(cache),
        Err(inputs) => inputs,
    };
    let _ = start;
    Err(inputs)
}

#[cfg(feature = "flex")]
mod flex {
    use burn::tensor::TensorMetadata as _;
    use burn_flex::FlexTensor;

    use crate::flex::{Real, slice, with_real};

    fn write_of<E: Real>(cache: &mut FlexTensor, new: &FlexTensor, start: usize) {
        let ([_, _, context, d], [_, _, time, _]) = (cache.shape().dims(), new.shape().dims());
        let heads = cache.storage_mut::<E>().chunks_exact_mut(context * d);
        for (to, from) in heads.zip(slice::<E>(new).chunks_exact(time * d)) {
            to[start * d..][..time * d].copy_from_slice(from);
        }
    }

    pub fn write(mut cache: FlexTensor, new: FlexTensor, start: usize) -> FlexTensor {
        with_real!(&new, write_of(&mut cache, &new, start));
        cache
    }
}
