//! The residual stream and how branches join it: x_{i+1} = connect(x_i, x_{i-1}, …; f).

use std::marker::PhantomData;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Tensor, backend::Backend};

use crate::ops::precision::{Precision, widen};
use crate::{Cache, depth};

/// The residual stream between two blocks.
#[derive(Clone, Debug)]
pub struct Stream<B: Backend> {
    /// x_i, `[batch, time, width]`. A connection that keeps n streams puts them side by side,
    /// `[batch, time, n · width]`.
    pub x: Tensor<B, 3>,
    /// Tensors that connections carry through depth besides x_i, such as earlier streams. Each has three axes.
    pub carried: Vec<Tensor<B, 3>>,
}

impl<B: Backend> Stream<B> {
    /// The stream of x_0 `[batch, time, width]`, which carries no other tensors.
    pub fn new(x: Tensor<B, 3>) -> Self {
        Self {
            // An embedding can be a product, whose result can be bf16.
            x: widen(x),
            carried: Vec::new(),
        }
    }

    /// Makes the stream of x_i, the first tensor. The stream carries the other tensors.
    ///
    /// # Panics
    ///
    /// Panics if there are no tensors.
    pub(crate) fn of_all(mut all: Vec<Tensor<B, 3>>) -> Self {
        let x = all.remove(0);
        Self { x, carried: all }
    }

    /// Returns x_i and the carried tensors.
    pub(crate) fn into_all(self) -> Vec<Tensor<B, 3>> {
        let mut all = self.carried;
        all.insert(0, self.x);
        all
    }
}

/// f, the non-linear branch of an update. It includes the pre-norm but not the residual.
pub trait Branch<B: Backend>: Module<B> + ModuleDisplay + 'static {
    /// The state of an incremental pass over the positions so far.
    type Cache: Cache;

    /// Returns the cache before the first position.
    fn new_cache(&self) -> Self::Cache;

    /// f(x), causal in time: `[batch, time, width]` to the same shape. With a cache, x holds the positions after the
    /// cached ones; without one, x is the whole sequence.
    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3>;

    /// x + f(x).
    fn residual(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        // Nothing else holds f(x), so the sum can take its place in memory.
        widen(self.forward(x.clone(), cache)) + x
    }

    /// f(x), where attention uses `change(v)` instead of its values v, `[batch, heads, time, d]`. A branch without
    /// attention has no values.
    fn with_values(
        &self,
        x: Tensor<B, 3>,
        change: &mut dyn FnMut(Tensor<B, 4>) -> Tensor<B, 4>,
        cache: Option<&mut Self::Cache>,
    ) -> Tensor<B, 3> {
        let _ = change;
        self.forward(x, cache)
    }
}

/// f of an update, as a connection calls it.
pub struct BranchFn<'a, B: Backend, M: Branch<B>> {
    branch: &'a M,
    cache: Option<&'a mut M::Cache>,
    /// Precision of the branch. Connections compute in f32.
    precision: Precision,
    /// The input of the branch, if it is not x.
    input: Option<Tensor<B, 3>>,
}

impl<'a, B: Backend, M: Branch<B>> BranchFn<'a, B, M> {
    /// f of `branch`, at the current precision.
    pub fn new(branch: &'a M, cache: Option<&'a mut M::Cache>) -> Self {
        Self {
            branch,
            cache,
            precision: Precision::now(),
            input: None,
        }
    }

    /// Makes f read `input`, whatever the connection passes: f(input) instead of f(x).
    pub fn reading(self, input: Tensor<B, 3>) -> Self {
        Self {
            input: Some(input),
            ..self
        }
    }

    /// f(x).
    pub fn of(self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let Self { branch, cache, .. } = self;
        let x = self.input.unwrap_or(x);
        depth::branch::<B, M>(x, |x| {
            widen(self.precision.during(|| branch.forward(x, cache)))
        })
    }

    /// x + f(x).
    pub fn plus(self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        if self.input.is_some() || depth::is_recorded() {
            return self.of(x.clone()) + x;
        }
        let Self { branch, cache, .. } = self;
        self.precision.during(|| branch.residual(x, cache))
    }

    /// f(x), where attention uses `change(v)` instead of its values v, `[batch, heads, time, d]`.
    pub fn with_values(
        self,
        x: Tensor<B, 3>,
        mut change: impl FnMut(Tensor<B, 4>) -> Tensor<B, 4>,
    ) -> Tensor<B, 3> {
        let Self { branch, cache, .. } = self;
        let x = self.input.unwrap_or(x);
        depth::branch::<B, M>(x, |x| {
            let y = || branch.with_values(x, &mut change, cache);
            widen(self.precision.during(y))
        })
    }
}

/// The way a branch joins the stream. A connection acts on each position separately, so a full and an incremental pass
/// give the same result.
pub trait Connection<B: Backend>: Module<B> + ModuleDisplay + 'static {
    /// Returns the stream after the branch `f`.
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B>;
}

/// The operations of a connection at both ends of a stream. Most connections have none.
pub trait Ends<B: Backend>: Module<B> + ModuleDisplay + 'static {
    /// Opens the stream of x_0 `[batch, time, width]`.
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        Stream::new(x)
    }

    /// Closes the stream: returns x_L `[batch, time, width]`.
    fn close(&self, stream: Stream<B>) -> Tensor<B, 3> {
        stream.x
    }
}

/// x_{i+1} = x_i + f(x_i), the connection of He et al., "Deep residual learning for image
/// recognition" (2015), eq. 1.
#[derive(Module, Clone, Debug, Default)]
pub struct Plain;

impl<B: Backend> Connection<B> for Plain {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        Stream {
            x: f.plus(stream.x),
            ..stream
        }
    }
}

impl<B: Backend> Ends<B> for Plain {}

/// A connection on a stream of one update, between the ends of that stream. It suits a branch that changes the shape.
#[derive(Module, Debug)]
pub struct WithEnds<B: Backend, C, E> {
    connection: C,
    ends: E,
    _backend: PhantomData<B>,
}

impl<B: Backend, C: Connection<B>, E: Ends<B>> WithEnds<B, C, E> {
    /// Puts `connection` between `ends`.
    pub fn new(connection: C, ends: E) -> Self {
        let _backend = PhantomData;
        Self {
            connection,
            ends,
            _backend,
        }
    }
}

impl<B: Backend, C: Connection<B>, E: Ends<B>> Connection<B> for WithEnds<B, C, E> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let updated = self.connection.update(self.ends.open(stream.x), f);
        Stream {
            x: self.ends.close(updated),
            carried: stream.carried,
        }
    }
}

/// Acts as [`Plain`] if it is `None`.
impl<B: Backend, C: Connection<B>> Connection<B> for Option<C> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        match self {
            Some(connection) => connection.update(stream, f),
            None => Plain.update(stream, f),
        }
    }
}

/// Acts as [`Plain`] if it is `None`.
impl<B: Backend, E: Ends<B>> Ends<B> for Option<E> {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        match self {
            Some(ends) => ends.open(x),
            None => Plain.open(x),
        }
    }

    fn close(&self, stream: Stream<B>) -> Tensor<B, 3> {
        match self {
            Some(ends) => ends.close(stream),
            None => Plain.close(stream),
        }
    }
}
