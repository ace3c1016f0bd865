//! Models: embeddings at both ends of the stream and a block between them.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Int, Tensor, backend::Backend};

use crate::ops::precision::widen;
use crate::{Cache, Input, ResidualBlock, Seen, Stream, recompute};

/// A model that maps token ids to next-token logits, or images to class logits.
///
/// # Panics
///
/// If an id is outside the vocabulary or a sequence is longer than the context, methods can panic. Check ids with
/// [`token_ids`](crate::token_ids) where they enter a program. A language model panics on images, and an image model on
/// ids.
pub trait LanguageModel<B: Backend>: Module<B> + ModuleDisplay + 'static {
    /// The state of an incremental pass.
    type Cache: Cache;

    /// Returns the logits of the token after each position: `[batch, time]` to `[batch, time, vocab]`. For images,
    /// `[batch, channels, height, width]` to `[batch, 1, classes]`.
    fn forward(&self, input: impl Into<Input<B>>) -> Tensor<B, 3>;

    /// Returns the class logits, `[batch, outputs]`. For a sequence, these are the logits of its last position.
    fn classify(&self, input: impl Into<Input<B>>) -> Tensor<B, 2>;

    /// Returns the cache before the first position.
    fn new_cache(&self) -> Self::Cache;

    /// Returns the logits of `ids`, which follow the positions in `cache`: `[batch, new]` to `[batch, new, vocab]`.
    /// They equal the last `new` logits of [`forward`](Self::forward) over all positions so far.
    fn decode(&self, ids: Tensor<B, 2, Int>, cache: &mut Self::Cache) -> Tensor<B, 3>;

    /// Returns the last logits of [`decode`](Self::decode), for the token after `ids`: `[batch, new]` to
    /// `[batch, vocab]`. No other logits are computed.
    fn predict(&self, ids: Tensor<B, 2, Int>, cache: &mut Self::Cache) -> Tensor<B, 2>;
}

/// Both ends of the stream: maps ids or images to x_0, and x_L, the stream after the last update, to logits.
///
/// # Panics
///
/// Embeddings of token ids panic on images, and embeddings of images on token ids.
pub trait Embeddings<B: Backend>: Module<B> + ModuleDisplay + 'static {
    /// Returns x_0 `[batch, time, width]` of `ids` `[batch, time]`, which follow the positions `seen`.
    fn embed(&self, ids: Tensor<B, 2, Int>, seen: &Seen) -> Tensor<B, 3>;

    /// Returns x_0 `[batch, time, width]` of images `[batch, channels, height, width]`.
    fn embed_images(&self, images: Tensor<B, 4>) -> Tensor<B, 3> {
        panic!("a text model got images {:?}", images.dims());
    }

    /// Applies the final norm to x_L `[batch, time, width]`, and returns the logits `[batch, time, vocab]`; for images,
    /// `[batch, 1, classes]`.
    fn unembed(&self, x: Tensor<B, 3>) -> Tensor<B, 3>;

    /// Applies the final norm, the first step of [`unembed`](Self::unembed), to x `[batch, time, width]`. Returns x
    /// unchanged if there is no such norm.
    fn final_norm(&self, x: Tensor<B, 3>) -> Tensor<B, 3>;
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

    /// Returns x_L `[batch, time, width]`.
    fn last_stream(
        &self,
        input: Input<B>,
        cache: Option<&mut DecoderCache<R::Cache>>,
    ) -> Tensor<B, 3> {
        let (seen, cache) = match (&input, cache) {
            (Input::Ids(ids), Some(DecoderCache { seen, block })) => {
                let [rows, new] = ids.dims();
                let before = seen.clone();
                seen.advance(rows, new);
                (before, Some(block))
            }
            _ => (Seen::default(), None),
        };
        let ids = match &input {
            Input::Ids(ids) => Some(ids.clone()),
            Input::Images(_) => None,
        };
        let mut x = recompute::run(&self.embeddings, vec![], move |embeddings, _| {
            recompute::seed_device::<B>(&input.device());
            // Widens x_0 here, so that this part of a recording returns f32 even in a bf16 pass.
            vec![widen(match input.clone() {
                Input::Ids(ids) => embeddings.embed(ids, &seen),
                Input::Images(images) => embeddings.embed_images(images),
            })]
        });
        let stream = Stream::new(x.remove(0)).with_ids(ids);
        self.block.forward_in(stream, cache, &self.embeddings).x
    }

    /// Returns the logits `[batch, vocab]` of the last position.
    fn last_logits(
        &self,
        ids: Tensor<B, 2, Int>,
        cache: Option<&mut DecoderCache<R::Cache>>,
    ) -> Tensor<B, 2> {
        let last = ids.dims()[1] - 1;
        let x = self.last_stream(ids.into(), cache).narrow(1, last, 1);
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

    fn forward(&self, input: impl Into<Input<B>>) -> Tensor<B, 3> {
        self.embeddings
            .unembed(self.last_stream(input.into(), None))
    }

    fn classify(&self, input: impl Into<Input<B>>) -> Tensor<B, 2> {
        match input.into() {
            Input::Ids(ids) => self.last_logits(ids, None),
            images => self.forward(images).squeeze_dim(1),
        }
    }

    fn new_cache(&self) -> Self::Cache {
        DecoderCache {
            seen: Seen::default(),
            block: self.block.new_cache(),
        }
    }

    fn decode(&self, ids: Tensor<B, 2, Int>, cache: &mut Self::Cache) -> Tensor<B, 3> {
        let x = self.last_stream(ids.into(), Some(cache));
        self.embeddings.unembed(x)
    }

    fn predict(&self, ids: Tensor<B, 2, Int>, cache: &mut Self::Cache) -> Tensor<B, 2> {
        self.last_logits(ids, Some(cache))
    }
}
