//! Updates of the stream: a sublayer, a layer, a stack of layers.

use std::marker::PhantomData;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Int, Tensor, backend::Backend};

use crate::ops::precision::Precision;
use crate::{
    Branch, BranchFn, Cache, Connection, Embeddings, Ends, Past, Plain, Stream, depth, recompute,
};

/// One update of the stream. A sublayer, a layer and a stack of layers are all residual blocks.
pub trait ResidualBlock<B: Backend>: Module<B> + ModuleDisplay + 'static {
    /// The state of an incremental pass.
    type Cache: Cache;

    /// Returns the cache before the first position.
    fn new_cache(&self) -> Self::Cache;

    /// Updates the stream; for token ids, causally in time. With a cache, the stream holds the positions after the
    /// cached ones; without one, it holds the whole sequence.
    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B>;

    /// Updates the stream of a model with these `embeddings`; by default, like [`forward`](Self::forward). A block that
    /// uses the model's final norm implements this method.
    fn forward_in<E: Embeddings<B>>(
        &self,
        stream: Stream<B>,
        cache: Option<&mut Self::Cache>,
        embeddings: &E,
    ) -> Stream<B> {
        let _ = embeddings;
        self.forward(stream, cache)
    }
}

/// A branch and the connection that joins it to the stream.
#[derive(Module, Debug)]
pub struct Update<B: Backend, F, C> {
    branch: F,
    connection: C,
    _backend: PhantomData<B>,
}

impl<B: Backend, M: Branch<B>, C: Connection<B>> Update<B, M, C> {
    /// Puts `connection` around `branch`.
    pub fn new(branch: M, connection: C) -> Self {
        let _backend = PhantomData;
        Self {
            branch,
            connection,
            _backend,
        }
    }
}

impl<B: Backend, M: Branch<B>, C: Connection<B>> ResidualBlock<B> for Update<B, M, C> {
    /// The cache of the branch, and the earlier positions that the connection reads.
    type Cache = (M::Cache, Vec<Past<B>>);

    fn new_cache(&self) -> Self::Cache {
        (self.branch.new_cache(), Vec::new())
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        match cache {
            Some(_) => self.apply(stream, cache),
            None => recompute::update(self, stream, |update, stream| update.apply(stream, None)),
        }
    }
}

impl<B: Backend, M: Branch<B>, C: Connection<B>> Update<B, M, C> {
    fn apply(
        &self,
        stream: Stream<B>,
        cache: Option<&mut <Self as ResidualBlock<B>>::Cache>,
    ) -> Stream<B> {
        recompute::seed_device::<B>(&stream.x.device());
        let (cache, pasts) = cache.map(|(cache, pasts)| (cache, pasts)).unzip();
        let f = BranchFn::new(&self.branch, cache).keeping(pasts);
        // The stream is f32, whatever the precision of the branch.
        Precision::F32.during(|| self.connection.update(stream, f))
    }
}

/// A transformer layer: an update by attention, then an update by the feed-forward network, if there is one.
#[derive(Module, Debug)]
pub struct Layer<B: Backend, A, F, C> {
    attention: Update<B, A, C>,
    feed_forward: Option<Update<B, F, C>>,
}

impl<B: Backend, A: Branch<B>, M: Branch<B>, C: Connection<B>> Layer<B, A, M, C> {
    /// Builds a layer from its sublayers, each a branch and the connection around this branch.
    pub fn new(attention: (A, C), feed_forward: Option<(M, C)>) -> Self {
        Self {
            attention: Update::new(attention.0, attention.1),
            feed_forward: feed_forward.map(|(branch, connection)| Update::new(branch, connection)),
        }
    }
}

impl<B: Backend, A: Branch<B>, M: Branch<B>, C: Connection<B>> ResidualBlock<B>
    for Layer<B, A, M, C>
{
    type Cache = (
        <Update<B, A, C> as ResidualBlock<B>>::Cache,
        Option<<Update<B, M, C> as ResidualBlock<B>>::Cache>,
    );

    fn new_cache(&self) -> Self::Cache {
        let feed_forward = self.feed_forward.as_ref().map(ResidualBlock::new_cache);
        (self.attention.new_cache(), feed_forward)
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        let (attention, feed_forward) = cache.map(|(a, f)| (a, f)).unzip();
        let stream = self.attention.forward(stream, attention);
        match &self.feed_forward {
            Some(update) => update.forward(stream, feed_forward.and_then(Option::as_mut)),
            None => stream,
        }
    }
}

/// Blocks in sequence, between the [`Ends`] of their stream.
#[derive(Module, Debug)]
pub struct Stack<B: Backend, R, E = Plain> {
    layers: Vec<R>,
    ends: E,
    _backend: PhantomData<B>,
}

impl<B: Backend, R: ResidualBlock<B>> Stack<B, R> {
    /// Stacks `layers`, in order from the input.
    pub fn new(layers: Vec<R>) -> Self {
        Self::between(Plain, layers)
    }
}

impl<B: Backend, R: ResidualBlock<B>, E: Ends<B>> Stack<B, R, E> {
    /// Stacks `layers` on a stream that `ends` opens and closes.
    pub fn between(ends: E, layers: Vec<R>) -> Self {
        let _backend = PhantomData;
        Self {
            layers,
            ends,
            _backend,
        }
    }
}

impl<B: Backend, R: ResidualBlock<B>, E: Ends<B>> ResidualBlock<B> for Stack<B, R, E> {
    type Cache = Vec<R::Cache>;

    fn new_cache(&self) -> Self::Cache {
        self.layers.iter().map(R::new_cache).collect()
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        let (ids, caches) = (stream.ids.clone(), cache.map(Vec::as_mut_slice));
        Stream {
            x: through(&self.ends, &self.layers, stream.x, ids, caches),
            ..stream
        }
    }
}

/// Passes x `[batch, time, width]` of the tokens `ids` through `layers`, on a stream that `ends` opens and closes.
/// Returns the same shape, unless a layer changes the shape, as in a ResNet. With `caches`, one for each layer, x holds
/// the positions after the cached ones.
pub fn through<B: Backend, R: ResidualBlock<B>, E: Ends<B>>(
    ends: &E,
    layers: &[R],
    x: Tensor<B, 3>,
    ids: Option<Tensor<B, 2, Int>>,
    caches: Option<&mut [R::Cache]>,
) -> Tensor<B, 3> {
    let updated = match caches {
        None => recompute::layers(ends, layers, x, ids),
        Some(caches) => {
            let layers = layers.iter().zip(caches);
            layers.fold(open(ends, x, ids), |stream, (layer, cache)| {
                layer.forward(stream, Some(cache))
            })
        }
    };
    recompute::end(ends, updated)
}

/// Opens the stream of x `[batch, time, width]`, in f32, for the tokens `ids`.
pub fn open<B: Backend>(
    ends: &impl Ends<B>,
    x: Tensor<B, 3>,
    ids: Option<Tensor<B, 2, Int>>,
) -> Stream<B> {
    depth::opened(&x);
    Precision::F32.during(|| ends.open(x)).with_ids(ids)
}

/// Closes a stream: returns `[batch, time, width]` in f32.
pub fn close<B: Backend>(ends: &impl Ends<B>, stream: Stream<B>) -> Tensor<B, 3> {
    let x = Precision::F32.during(|| ends.close(stream));
    depth::read(&x);
    x
}

/// A whole block as the branch of an update, f(x) = block(x) − x, so that a connection can surround a block. The block
/// starts a new stream.
#[derive(Module, Debug)]
pub struct Increment<B: Backend, R> {
    block: R,
    _backend: PhantomData<B>,
}

impl<B: Backend, R: ResidualBlock<B>> Increment<B, R> {
    /// Makes a branch from `block`.
    pub fn new(block: R) -> Self {
        let _backend = PhantomData;
        Self { block, _backend }
    }
}

impl<B: Backend, R: ResidualBlock<B>> Branch<B> for Increment<B, R> {
    type Cache = R::Cache;

    fn new_cache(&self) -> Self::Cache {
        self.block.new_cache()
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        self.residual(x.clone(), cache) - x
    }

    fn residual(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        self.block.forward(Stream::new(x), cache).x
    }
}
