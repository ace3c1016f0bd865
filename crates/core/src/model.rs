//! Language models: embeddings at both ends of the stream and a block between them.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Int, Tensor, backend::Backend};

use crate::ops::precision::widen;
use crate::{Cache, ResidualBlock, Seen, Stream, recompute};

/// A model that maps token ids to next-token logits.
///
/// # Panics
///
/// The methods can panic if an id is outside the vocabulary or a sequence is longer than the context.
/// [`token_ids`](crate::token_ids) checks both, once, where ids enter a program.
pub trait LanguageModel<B: Backend>: Module<B> + ModuleDisplay {
    /// The state of an incremental pass.
    type Cache: Cache;

    /// Logits of the token after each position: `[batch, time]` to `[batch, time, vocab]`.
    fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 3>;

    /// Class logits of a sequence, which are the logits of its last position: `[batch, time]` to
    /// `[batch, outputs]`.
    fn classify(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 2>;

    /// The cache before the first position.
    fn new_cache(&self) -> Self::Cache;

    /// Logits of `ids`, which follow the positions in `cache`: `[batch, new]` to `[batch, new, vocab]`.
    /// They are the last `new` logits of [`forward`](Self::forward) over all positions so far.
    fn decode(&self, ids: Tensor<B, 2, Int>, cache: &mut Self::Cache) -> Tensor<B, 3>;

    /// The last logits of [`decode`](Self::decode), of the token that follows `ids`: `[batch, new]` to
    /// `[batch, vocab]`. No other logits are computed.
    fn predict(&self, ids: Tensor<B, 2, Int>, cache: &mut Self::Cache) -> Tensor<B, 2>;
}

/// Both ends of the stream: ids to x_0, and x_L to logits.
pub trait Embeddings<B: Backend>: Module<B> + ModuleDisplay + 'static {
    /// x_0 `[batch, time, width]` of `ids` `[batch, time]`, which follow the positions `seen`.
    fn embed(&self, ids: Tensor<B, 2, Int>, seen: &Seen) -> Tensor<B, 3>;

    /// Logits `[batch, time, vocab]` of x_L `[batch, time, width]`. Includes the final norm.
    fn unembed(&self, x: Tensor<B, 3>) -> Tensor<B, 3>;
}

/// A decoder: embed, update the stream, unembed.
#[derive(Module, Debug)]
pub struct Decoder<B: Backend, E, R> {
    embeddings: E,
    block: R,
    _backend: std::marker::PhantomData<B>,
}

impl<B: Backend, E: Embeddings<B>, R: ResidualBlock<B>> Decoder<B, E, R> {
    /// Puts `block` between the `embeddings`.
    pub fn new(embeddings: E, block: R) -> Self {
        let _backend = std::marker::PhantomData;
        Self {
            embeddings,
            block,
            _backend,
        }
    }

    /// x_L `[batch, time, width]`.
    fn last_stream(
        &self,
        ids: Tensor<B, 2, Int>,
        cache: Option<&mut DecoderCache<R::Cache>>,
    ) -> Tensor<B, 3> {
        let [rows, new] = ids.dims();
        let (seen, cache) = match cache {
            Some(DecoderCache { seen, block }) => {
                let before = seen.clone();
                seen.advance(rows, new);
                (before, Some(block))
            }
            None => (Seen::default(), None),
        };
        let mut x = recompute::run(&self.embeddings, vec![], move |embeddings, _| {
            recompute::seed_dropout::<B>(&ids.device());
            // In here, so that x_0 is the result of the part in bf16 too.
            vec![widen(embeddings.embed(ids.clone(), &seen))]
        });
        let stream = Stream::new(x.remove(0));
        self.block.forward(stream, cache).x
    }

    /// The logits `[batch, vocab]` of the last position.
    fn last_logits(
        &self,
        ids: Tensor<B, 2, Int>,
        cache: Option<&mut DecoderCache<R::Cache>>,
    ) -> Tensor<B, 2> {
        let last = ids.dims()[1] - 1;
        let x = self.last_stream(ids, cache).narrow(1, last, 1);
        self.embeddings.unembed(x).squeeze_dim(1)
    }
}

/// The cache of a [`Decoder`].
#[derive(Clone, Debug)]
pub struct DecoderCache<C> {
    seen: Seen,
    block: C,
}

impl<C: Cache> Cache for DecoderCache<C> {
    fn joins(&self) -> bool {
        self.block.joins()
    }

    fn join(&mut self, other: Self) {
        self.seen.join(other.seen);
        self.block.join(other.block);
    }

    fn keep(&mut self, keep: &[bool]) {
        self.seen.keep(keep);
        self.block.keep(keep);
    }
}

impl<B: Backend, E: Embeddings<B>, R: ResidualBlock<B>> LanguageModel<B> for Decoder<B, E, R> {
    type Cache = DecoderCache<R::Cache>;

    fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        self.embeddings.unembed(self.last_stream(ids, None))
    }

    fn classify(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 2> {
        self.last_logits(ids, None)
    }

    fn new_cache(&self) -> Self::Cache {
        DecoderCache {
            seen: Seen::default(),
            block: self.block.new_cache(),
        }
    }

    fn decode(&self, ids: Tensor<B, 2, Int>, cache: &mut Self::Cache) -> Tensor<B, 3> {
        self.embeddings.unembed(self.last_stream(ids, Some(cache)))
    }

    fn predict(&self, ids: Tensor<B, 2, Int>, cache: &mut Self::Cache) -> Tensor<B, 2> {
        self.last_logits(ids, Some(cache))
    }
}
