//! The loops over the layers of a model.

use std::marker::PhantomData;
use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::{Distribution, Int, Tensor, backend::Backend};
use residual_zoo_core::{
    Embeddings, Ends, Plain, ResidualBlock, Seen, Stream, autodiff, normal, project, recompute,
    std_of_width, through, widen,
};

use crate::given::given;
use crate::{Inject, LoopOrder, LoopStart, LoopsCache, LoopsConfig, Timestep, signal};

/// The prelude, the core several times, and the coda:
///
/// ```text
/// e   = prelude(x)
/// s_0 = e, 0 or a random state
/// s_r = core(inject(s_{r-1} + timestep_r, e)),   r = 1 .. loops
/// y   = coda(s_loops),  or coda(norm(s_loops))
/// ```
///
/// [`LoopsConfig`] holds the settings. The prelude, the core and the coda are stacks of layers, each on its own stream.
/// Each pass over the core starts a new stream and ends it. With [`LoopOrder::Repeat`], each layer of the core is a
/// stack by itself, and runs all its loops before the next layer starts.
///
/// # Gradients
///
/// With truncated backpropagation, only the last `backward` loops have a graph. Parameters, states and e get no
/// gradient from the earlier loops. In the last loops, e keeps its gradient, so each injection in these loops trains
/// the prelude. A parameter's gradient is the sum over the loops that use it.
///
/// # Reading in pieces
///
/// The cache has keys and values for each layer in each loop. Outside training, the random state depends only on the
/// position. So passes with a cache give the same results as one pass over the whole sequence.
///
/// # The final norm
///
/// The norm after the loops belongs to the embeddings of the model. [`forward_in`](ResidualBlock::forward_in) receives
/// the embeddings and applies this norm. [`forward`](ResidualBlock::forward) omits it.
#[derive(Module, Debug)]
pub struct Loops<B: Backend, R, E = Plain> {
    /// The layers of the prelude, of the core and of the coda.
    pub(crate) layers: Vec<R>,
    /// The ends of each stream, in the order of the layers.
    ends: Vec<E>,
    /// W of the injection, `[2 · width, width]`, applied to \[s; e\].
    adapter: Option<Param<Tensor<B, 2>>>,
    /// The vector of each loop, `[loops, width]`.
    timestep: Option<Param<Tensor<B, 2>>>,
    pub(crate) config: LoopsConfig,
    _backend: PhantomData<B>,
}

/// The positions in a pass.
#[derive(Default)]
pub(crate) struct At<B: Backend> {
    /// Number of positions before this pass.
    seen: Seen,
    /// Token ids of the positions, `[batch, time]`.
    ids: Option<Tensor<B, 2, Int>>,
}

impl<B: Backend, R: ResidualBlock<B>, E: Ends<B>> Loops<B, R, E> {
    pub(crate) fn new(
        config: &LoopsConfig,
        layers: Vec<R>,
        ends: Vec<E>,
        width: usize,
        device: &B::Device,
    ) -> Self {
        let parts = config.parts(layers.len());
        let streams: usize = parts.iter().map(|part| part.streams).sum();
        assert_eq!(ends.len(), streams, "the ends of each stream");
        let table = |rows| normal([rows, width], std_of_width(width), device);
        Self {
            layers,
            ends,
            adapter: (config.inject == Inject::Linear).then(|| table(2 * width)),
            timestep: (config.timestep == Timestep::Learned).then(|| table(config.mean())),
            config: config.clone(),
            _backend: PhantomData,
        }
    }

    /// Returns the indices of the core's layers.
    fn core(&self) -> Range<usize> {
        self.config.prelude..self.layers.len() - self.config.coda
    }

    /// Returns the indices of the layers in each stack of the core, in order.
    fn stacks(&self) -> Vec<Range<usize>> {
        match self.config.order {
            LoopOrder::Cycle => vec![self.core()],
            LoopOrder::Repeat => self.core().map(|layer| layer..layer + 1).collect(),
        }
    }

    /// Returns the index in `ends` of the core's first stack.
    fn first_core(&self) -> usize {
        usize::from(self.config.prelude > 0)
    }

    /// Applies the prelude, the loops, `norm` and the coda to x `[batch, time, width]` of the tokens `ids`.
    fn pass(
        &self,
        x: Tensor<B, 3>,
        ids: Option<Tensor<B, 2, Int>>,
        mut cache: Option<&mut LoopsCache<R::Cache>>,
        norm: impl Fn(Tensor<B, 3>) -> Tensor<B, 3>,
    ) -> Tensor<B, 3> {
        let [rows, time, _] = x.dims();
        let mut at = At {
            seen: Seen::default(),
            ids,
        };
        if let Some(cache) = cache.as_deref_mut() {
            at.seen = cache.seen.clone();
            cache.seen.advance(rows, time);
        }
        let e = match self.config.prelude {
            0 => x,
            prelude => {
                let caches = cache.as_deref_mut().map(|cache| &mut cache.prelude[..]);
                let layers = &self.layers[..prelude];
                recompute::followed::<B, _>(|| {
                    through(&self.ends[0], layers, x, at.ids.clone(), caches)
                })
            }
        };
        let mut s = match cache.as_deref_mut() {
            Some(cache) => self.loops_with(&e, &at, cache),
            None => self.loops(&e, &at),
        };
        if self.config.norm {
            s = norm(s);
        }
        match (self.config.coda, self.ends.last()) {
            (0, _) | (_, None) => s,
            (_, Some(ends)) => {
                let caches = cache.map(|cache| &mut cache.coda[..]);
                through(ends, &self.layers[self.core().end..], s, at.ids, caches)
            }
        }
    }

    /// Returns the state after all loops over a whole sequence.
    pub(crate) fn loops(&self, e: &Tensor<B, 3>, at: &At<B>) -> Tensor<B, 3> {
        let loops = self.config.loops(recompute::step_seed::<B>());
        let trained = self.config.backward.map_or(loops, |most| most.min(loops));
        // If recomputation cuts the pass into parts, the parts may share only leaves of the graph.
        let many = B::ad_enabled(&e.device()) && !recompute::is_cut::<B>() && trained > 1;
        let shared = many.then(|| autodiff::with_identities(self.clone()));
        let core = shared.as_ref().unwrap_or(self);
        let mut s = self.start(e, &at.seen);
        for stack in 0..self.stacks().len() {
            if trained < loops {
                s = recompute::without_gradient(self, vec![s, e.clone()], |quiet, inputs| {
                    let [s, e] = [0, 1].map(|i| inputs[i].clone());
                    (0..loops - trained).fold(s, |s, r| quiet.step((stack, r), s, &e, at, None))
                });
            }
            s = (loops - trained..loops).fold(s, |s, r| core.step((stack, r), s, e, at, None));
        }
        s
    }

    /// Returns the state after all loops over the positions that follow `cache`.
    fn loops_with(
        &self,
        e: &Tensor<B, 3>,
        at: &At<B>,
        cache: &mut LoopsCache<R::Cache>,
    ) -> Tensor<B, 3> {
        let mut s = self.start(e, &at.seen);
        for stack in 0..self.stacks().len() {
            for (r, caches) in cache.core.iter_mut().enumerate() {
                s = self.step((stack, r), s, e, at, Some(caches));
            }
        }
        s
    }

    /// Runs loop r over stack `stack` of the core. `caches` are the caches of all layers of the core in this loop.
    fn step(
        &self,
        (stack, r): (usize, usize),
        s: Tensor<B, 3>,
        e: &Tensor<B, 3>,
        at: &At<B>,
        caches: Option<&mut Vec<R::Cache>>,
    ) -> Tensor<B, 3> {
        let s = match (self.config.timestep, self.config.inject) {
            (Timestep::None, Inject::None) => s,
            _ => {
                let seen = at.seen.clone();
                let part = move |this: &Self, inputs: Vec<Tensor<B, 3>>| {
                    let [s, e] = [0, 1].map(|i| inputs[i].clone());
                    vec![this.injected(this.timed(s, r, &seen), e)]
                };
                recompute::run(self, vec![s, e.clone()], part).remove(0)
            }
        };
        let layers = self.stacks()[stack].clone();
        let first = self.config.prelude;
        let caches = caches.map(|caches| &mut caches[layers.start - first..layers.end - first]);
        let ends = &self.ends[self.first_core() + stack];
        // The next stack, the coda or the unembedding follows.
        let ids = at.ids.clone();
        recompute::followed::<B, _>(|| through(ends, &self.layers[layers], s, ids, caches))
    }

    /// Returns s_0 `[batch, time, width]`.
    fn start(&self, e: &Tensor<B, 3>, seen: &Seen) -> Tensor<B, 3> {
        let start = self.config.start;
        if start == LoopStart::Embedding {
            return e.clone();
        }
        let (seen, given) = (seen.clone(), given());
        let part = move |_: &Plain, e: Vec<Tensor<B, 3>>| {
            let (shape, device) = (e[0].dims(), e[0].device());
            let [_, time, width] = shape;
            let LoopStart::Random(std) = start else {
                return vec![e[0].zeros_like()];
            };
            if let Some(state) = &given {
                return vec![Tensor::from_data(state.clone(), &device)];
            }
            vec![match recompute::seed_device::<B>(&device) {
                true => Tensor::random(shape, Distribution::Normal(0.0, std), &device),
                false => signal::states(width, time, &seen, std, &device).expand(shape),
            }]
        };
        recompute::run(&Plain, vec![e.clone()], part).remove(0)
    }

    /// Adds the signal of loop r, counted from 0, to s.
    fn timed(&self, s: Tensor<B, 3>, r: usize, seen: &Seen) -> Tensor<B, 3> {
        match (self.config.timestep, &self.timestep) {
            (Timestep::Sinusoid, _) => {
                let [_, time, width] = s.dims();
                let signal = signal::sinusoids(width, time, seen, r + 1, &s.device());
                s + signal
            }
            (_, Some(table)) => s + table.val().narrow(0, r, 1).unsqueeze(),
            _ => s,
        }
    }

    /// Returns inject(s, e).
    fn injected(&self, s: Tensor<B, 3>, e: Tensor<B, 3>) -> Tensor<B, 3> {
        match (self.config.inject, &self.adapter) {
            (Inject::Add, _) => s + e,
            // A product can be bf16, but the stream is f32.
            (_, Some(w)) => widen(project(Tensor::cat(vec![s, e], 2), w.val())),
            _ => s,
        }
    }
}

impl<B: Backend, R: ResidualBlock<B>, E: Ends<B>> ResidualBlock<B> for Loops<B, R, E> {
    type Cache = LoopsCache<R::Cache>;

    fn new_cache(&self) -> Self::Cache {
        let caches = |layers: &[R]| layers.iter().map(R::new_cache).collect();
        let Range { start, end } = self.core();
        let loops = 0..self.config.evaluated();
        LoopsCache {
            seen: Seen::default(),
            prelude: caches(&self.layers[..start]),
            core: loops.map(|_| caches(&self.layers[start..end])).collect(),
            coda: caches(&self.layers[end..]),
        }
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        Stream {
            x: self.pass(stream.x, stream.ids.clone(), cache, |x| x),
            ..stream
        }
    }

    fn forward_in<T: Embeddings<B>>(
        &self,
        stream: Stream<B>,
        cache: Option<&mut Self::Cache>,
        embeddings: &T,
    ) -> Stream<B> {
        let norm = |x| {
            recompute::run(embeddings, vec![x], |embeddings, mut x| {
                vec![widen(embeddings.final_norm(x.remove(0)))]
            })
            .remove(0)
        };
        Stream {
            x: self.pass(stream.x, stream.ids.clone(), cache, norm),
            ..stream
        }
    }
}
