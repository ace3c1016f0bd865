//! Language models: the two ends of the stream and the block between them.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Int, Tensor, backend::Backend};

use crate::{ResidualBlock, Stream};

/// Token ids to next-token logits.
///
/// # Panics
///
/// Ids must be below the vocabulary size and sequences no longer than the context. Both are
/// checked once, where ids enter a program ([`token_ids`](crate::token_ids)), not in every step.
pub trait LanguageModel<B: Backend>: Module<B> + ModuleDisplay {
    /// What an incremental pass remembers.
    type Cache: Clone + Send;

    /// Logits of the token that follows each position: `[batch, time]` to
    /// `[batch, time, vocab]`.
    fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 3>;

    /// Logits of the last position, which is how a classifier reads a sequence: `[batch, time]`
    /// to `[batch, outputs]`.
    fn classify(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 2>;

    /// The cache before the first position.
    fn new_cache(&self) -> Self::Cache;

    /// As [`forward`](Self::forward) over the positions in `cache` and `ids`, of which it returns
    /// the logits of the latter: `[batch, new]` to `[batch, new, vocab]`.
    fn decode(&self, ids: Tensor<B, 2, Int>, cache: &mut Self::Cache) -> Tensor<B, 3>;
}

/// The ends of the stream: ids to x_0 and x_L to logits.
pub trait Ends<B: Backend>: Module<B> + ModuleDisplay {
    /// x_0 `[batch, time, width]` of `ids` `[batch, time]`, of which the first stands at
    /// position `start`.
    fn embed(&self, ids: Tensor<B, 2, Int>, start: usize) -> Tensor<B, 3>;

    /// Logits `[batch, time, vocab]` of x_L `[batch, time, width]`, the final norm included.
    fn unembed(&self, x: Tensor<B, 3>) -> Tensor<B, 3>;
}

/// A decoder: embed, update the stream, unembed.
#[derive(Module, Debug)]
pub struct Decoder<B: Backend, E, R> {
    ends: E,
    block: R,
    _backend: std::marker::PhantomData<B>,
}

impl<B: Backend, E: Ends<B>, R: ResidualBlock<B>> Decoder<B, E, R> {
    /// Puts `block` between the two `ends`.
    pub fn new(ends: E, block: R) -> Self {
        let _backend = std::marker::PhantomData;
        Self {
            ends,
            block,
            _backend,
        }
    }
}

/// The cache of a [`Decoder`].
#[derive(Clone, Debug)]
pub struct DecoderCache<C> {
    position: usize,
    block: C,
}

impl<B: Backend, E: Ends<B>, R: ResidualBlock<B>> LanguageModel<B> for Decoder<B, E, R> {
    type Cache = DecoderCache<R::Cache>;

    fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let stream = Stream::new(self.ends.embed(ids, 0), self.block.reach());
        self.ends.unembed(self.block.forward(stream).x)
    }

    fn classify(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 2> {
        let time = ids.dims()[1];
        let stream = Stream::new(self.ends.embed(ids, 0), self.block.reach());
        let last = self.block.forward(stream).x.narrow(1, time - 1, 1);
        self.ends.unembed(last).squeeze_dim(1)
    }

    fn new_cache(&self) -> Self::Cache {
        DecoderCache {
            position: 0,
            block: self.block.new_cache(),
        }
    }

    fn decode(&self, ids: Tensor<B, 2, Int>, cache: &mut Self::Cache) -> Tensor<B, 3> {
        let new = ids.dims()[1];
        let stream = Stream::new(self.ends.embed(ids, cache.position), self.block.reach());
        cache.position += new;
        self.ends
            .unembed(self.block.decode(stream, &mut cache.block).x)
    }
}
