//! The residual stream and its updates: x_{i+1} = connect(x_i, x_{i-1}, …; f(x_i)).

use std::marker::PhantomData;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Tensor, backend::Backend};

use crate::Cache;
use crate::ops::precision::{Precision, widen};
use crate::recompute;

/// The residual stream between two blocks: x_i, and the streams x_{i-1}, x_{i-2}, … before it that
/// connections read.
///
/// At most `reach` earlier streams are kept in memory, for a model of any depth.
#[derive(Clone, Debug)]
pub struct Stream<B: Backend> {
    /// x_i, `[batch, time, width]`.
    pub x: Tensor<B, 3>,
    earlier: Vec<Tensor<B, 3>>,
    reach: usize,
    /// How many of these streams are new since this was made.
    new: usize,
}

impl<B: Backend> Stream<B> {
    /// The stream x_0 `[batch, time, width]`. It keeps the last `reach` streams before the current one.
    pub fn new(x: Tensor<B, 3>, reach: usize) -> Self {
        let earlier = Vec::with_capacity(reach);
        Self {
            // Embeddings can be products as well.
            x: widen(x),
            earlier,
            reach,
            new: 0,
        }
    }

    /// x_{i-1}, …, x_{i-count}, newest first, each `[batch, time, width]`. Near the input there are
    /// fewer, because there are none before x_0.
    pub fn earlier(&self, count: usize) -> &[Tensor<B, 3>] {
        &self.earlier[..count.min(self.earlier.len())]
    }

    /// Makes `next` the current stream and x_i the newest earlier one.
    pub fn advance(mut self, next: Tensor<B, 3>) -> Self {
        if self.reach > 0 {
            self.earlier.truncate(self.reach - 1);
            self.earlier.insert(0, self.x);
        }
        self.x = next;
        self.new += 1;
        self
    }

    /// The stream whose tensors are `all`: x_i, x_{i-1}, …
    pub(crate) fn of_all(mut all: Vec<Tensor<B, 3>>, reach: usize) -> Self {
        let x = all.remove(0);
        Self {
            x,
            earlier: all,
            reach,
            new: 0,
        }
    }

    /// x_i, x_{i-1}, …, as many as are kept.
    pub(crate) fn into_all(self) -> Vec<Tensor<B, 3>> {
        let mut all = self.earlier;
        all.insert(0, self.x);
        all
    }

    /// Those of x_i, x_{i-1}, … that were not there when this was made.
    pub(crate) fn into_new(self) -> Vec<Tensor<B, 3>> {
        let new = self.new;
        let mut all = self.into_all();
        all.truncate(new);
        all
    }

    pub(crate) fn reach(&self) -> usize {
        self.reach
    }
}

/// f, the non-linear branch of an update. It includes the pre-norm but not the residual.
pub trait Branch<B: Backend>: Module<B> + ModuleDisplay + 'static {
    /// The state of an incremental pass over the positions so far.
    type Cache: Cache;

    /// The cache before the first position.
    fn new_cache(&self) -> Self::Cache;

    /// f(x), causal in time: `[batch, time, width]` to the same shape. With a cache, x has the positions
    /// that follow those in the cache. Without one, x is the whole sequence.
    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3>;
}

/// How f(x_i) joins the stream. A connection acts on each position separately, so a full and an
/// incremental pass give the same result.
pub trait Connection<B: Backend>: Module<B> + ModuleDisplay + 'static {
    /// How many streams before x_i the connection reads.
    fn reach(&self) -> usize {
        0
    }

    /// x_{i+1} from the stream and `fx` = f(x_i), `[batch, time, width]`.
    fn join(&self, stream: &Stream<B>, fx: Tensor<B, 3>) -> Tensor<B, 3>;
}

/// x_{i+1} = x_i + f(x_i), the connection of He et al., "Deep residual learning for image
/// recognition" (2015), eq. 1.
#[derive(Module, Clone, Debug, Default)]
pub struct Plain;

impl<B: Backend> Connection<B> for Plain {
    fn join(&self, stream: &Stream<B>, fx: Tensor<B, 3>) -> Tensor<B, 3> {
        // Nobody else has f(x), so the sum can take its place.
        fx + stream.x.clone()
    }
}

/// One update of the stream. A sublayer, a layer and a stack of layers are all residual blocks.
pub trait ResidualBlock<B: Backend>: Module<B> + ModuleDisplay + 'static {
    /// The state of an incremental pass over the positions so far.
    type Cache: Cache;

    /// How many streams before x_i the connections inside read.
    fn reach(&self) -> usize;

    /// The cache before the first position.
    fn new_cache(&self) -> Self::Cache;

    /// Updates the stream, causally in time. With a cache, the stream has the positions that follow
    /// those in the cache. Without one, it has the whole sequence.
    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B>;
}

/// x_{i+1} = connection(x_i, x_{i-1}, …; branch(x_i)).
#[derive(Module, Debug)]
pub struct Update<B: Backend, F, C> {
    branch: F,
    connection: C,
    _backend: PhantomData<B>,
}

impl<B: Backend, F: Branch<B>, C: Connection<B>> Update<B, F, C> {
    /// Puts `connection` around `branch`.
    pub fn new(branch: F, connection: C) -> Self {
        let _backend = PhantomData;
        Self {
            branch,
            connection,
            _backend,
        }
    }
}

impl<B: Backend, F: Branch<B>, C: Connection<B>> ResidualBlock<B> for Update<B, F, C> {
    type Cache = F::Cache;

    fn reach(&self) -> usize {
        self.connection.reach()
    }

    fn new_cache(&self) -> Self::Cache {
        self.branch.new_cache()
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        recompute::seed_dropout::<B>(&stream.x.device());
        let fx = self.branch.forward(stream.x.clone(), cache);
        // The stream is f32, whatever the precision of the branch.
        let x = Precision::F32.during(|| self.connection.join(&stream, widen(fx)));
        stream.advance(x)
    }
}

/// A transformer layer: the update by attention, then the update by the feed-forward network.
#[derive(Module, Debug)]
pub struct Layer<B: Backend, A, F, C> {
    attention: Update<B, A, C>,
    feed_forward: Update<B, F, C>,
}

impl<B: Backend, A: Branch<B>, F: Branch<B>, C: Connection<B>> Layer<B, A, F, C> {
    /// The two sublayers, each with the connection that joins it to the stream.
    pub fn new(attention: (A, C), feed_forward: (F, C)) -> Self {
        Self {
            attention: Update::new(attention.0, attention.1),
            feed_forward: Update::new(feed_forward.0, feed_forward.1),
        }
    }
}

impl<B: Backend, A: Branch<B>, F: Branch<B>, C: Connection<B>> ResidualBlock<B>
    for Layer<B, A, F, C>
{
    type Cache = (A::Cache, F::Cache);

    fn reach(&self) -> usize {
        self.attention.reach().max(self.feed_forward.reach())
    }

    fn new_cache(&self) -> Self::Cache {
        (self.attention.new_cache(), self.feed_forward.new_cache())
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        let (attention, feed_forward) = cache.map(|(a, f)| (a, f)).unzip();
        let stream = self.attention.forward(stream, attention);
        self.feed_forward.forward(stream, feed_forward)
    }
}

/// Blocks in sequence.
#[derive(Module, Debug)]
pub struct Stack<B: Backend, R> {
    layers: Vec<R>,
    _backend: PhantomData<B>,
}

impl<B: Backend, R: ResidualBlock<B>> Stack<B, R> {
    /// Stacks `layers`, the first nearest to the input.
    pub fn new(layers: Vec<R>) -> Self {
        let _backend = PhantomData;
        Self { layers, _backend }
    }
}

impl<B: Backend, R: ResidualBlock<B>> ResidualBlock<B> for Stack<B, R> {
    type Cache = Vec<R::Cache>;

    fn reach(&self) -> usize {
        self.layers.iter().map(R::reach).max().unwrap_or(0)
    }

    fn new_cache(&self) -> Self::Cache {
        self.layers.iter().map(R::new_cache).collect()
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        let Some(caches) = cache else {
            return recompute::layers(&self.layers, stream);
        };
        let layers = self.layers.iter().zip(caches);
        layers.fold(stream, |stream, (layer, cache)| {
            layer.forward(stream, Some(cache))
        })
    }
}

/// A whole block as the branch of an update, f(x) = block(x) − x, so that a connection can go around
/// the block. Inside, the block starts a new stream.
#[derive(Module, Debug)]
pub struct Increment<B: Backend, R> {
    block: R,
    _backend: PhantomData<B>,
}

impl<B: Backend, R: ResidualBlock<B>> Increment<B, R> {
    /// Makes a branch of `block`.
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
        let stream = Stream::new(x.clone(), self.block.reach());
        self.block.forward(stream, cache).x - x
    }
}
