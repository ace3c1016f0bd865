//! The residual stream and how branches join it: x_{i+1} = connect(x_i, x_{i-1}, …; f).

use std::marker::PhantomData;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Int, Tensor, backend::Backend};

use crate::ops::precision::{Precision, widen};
use crate::{Cache, Change, Heads, Past, QkvInput, depth};

/// The residual stream between two blocks.
#[derive(Clone, Debug)]
pub struct Stream<B: Backend> {
    /// x_i, `[batch, time, width]`. A connection that keeps n streams puts them side by side,
    /// `[batch, time, n · width]`.
    pub x: Tensor<B, 3>,
    /// Tensors that connections carry through depth besides x_i, such as earlier streams. Each has three axes.
    pub carried: Vec<Tensor<B, 3>>,
    /// The token ids of the positions of x_i, `[batch, time]`. `None` if the positions are not tokens, as in images and
    /// in the windows of a recurrence. Also `None` inside a layer that is the branch of a connection.
    pub ids: Option<Tensor<B, 2, Int>>,
}

impl<B: Backend> Stream<B> {
    /// Makes the stream of x_0 `[batch, time, width]`, which carries no other tensors and has no ids.
    pub fn new(x: Tensor<B, 3>) -> Self {
        Self {
            // An embedding can be a product, whose result can be bf16.
            x: widen(x),
            carried: Vec::new(),
            ids: None,
        }
    }

    /// Sets the token ids of the positions, `[batch, time]`.
    pub fn with_ids(self, ids: Option<Tensor<B, 2, Int>>) -> Self {
        Self { ids, ..self }
    }

    /// Makes the stream of x_i, the first tensor. The stream carries the other tensors, and has no ids.
    ///
    /// # Panics
    ///
    /// Panics if there are no tensors.
    pub(crate) fn of_all(mut all: Vec<Tensor<B, 3>>) -> Self {
        let x = all.remove(0);
        Self {
            carried: all,
            ..Self::new(x)
        }
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

    /// Computes f(x) for x `[batch, time, width]`. In a model of tokens, f is causal in time. Returns the same shape,
    /// unless f changes the shape of the stream, as in a ResNet. With a cache, x holds the positions after the cached
    /// ones; without one, x is the whole sequence.
    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3>;

    /// Computes x + f(x).
    fn residual(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        // Nothing else holds f(x), so the sum can overwrite f(x) in memory.
        widen(self.forward(x.clone(), cache)) + x
    }

    /// Computes f(x), where attention reads the inputs x and uses `change(heads)` in place of its queries, keys and
    /// values. The change follows the projections, their biases, any norm over all heads together, and any sum over
    /// positions, such as a Canon layer. It precedes per-head norms, rotary positions and the cache. A branch without
    /// attention has no heads, and reads the input of v.
    ///
    /// # Panics
    ///
    /// Panics if the inputs differ and [`AttentionSize::three_inputs`](crate::AttentionSize::three_inputs) is false.
    fn attend(
        &self,
        x: QkvInput<B>,
        change: Change<'_, B>,
        cache: Option<&mut Self::Cache>,
    ) -> Tensor<B, 3> {
        let _ = change;
        self.forward(x.of_values().clone(), cache)
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
    earlier: Earlier<'a, B>,
}

/// The earlier positions that a connection reads in an incremental pass. Each sum over positions takes a
/// [`past`](Self::past) of its own, in the same order in every pass.
pub struct Earlier<'a, B: Backend> {
    /// `None` if the pass is over the whole sequence.
    pasts: Option<&'a mut Vec<Past<B>>>,
    taken: usize,
}

impl<B: Backend> Default for Earlier<'_, B> {
    fn default() -> Self {
        Self {
            pasts: None,
            taken: 0,
        }
    }
}

impl<B: Backend> Earlier<'_, B> {
    /// Returns the past of the next sum over positions; `None` if the pass is over the whole sequence.
    pub fn past(&mut self) -> Option<&mut Past<B>> {
        let pasts = self.pasts.as_deref_mut()?;
        let at = self.taken;
        self.taken += 1;
        if at == pasts.len() {
            pasts.push(Past::default());
        }
        pasts.get_mut(at)
    }
}

impl<'a, B: Backend, M: Branch<B>> BranchFn<'a, B, M> {
    /// Makes f from `branch`, at the current precision.
    pub fn new(branch: &'a M, cache: Option<&'a mut M::Cache>) -> Self {
        Self {
            branch,
            cache,
            precision: Precision::now(),
            input: None,
            earlier: Earlier::default(),
        }
    }

    /// Gives the connection the `pasts` of its sums over positions.
    pub(crate) fn keeping(self, pasts: Option<&'a mut Vec<Past<B>>>) -> Self {
        let earlier = Earlier { pasts, taken: 0 };
        Self { earlier, ..self }
    }

    /// Takes the earlier positions that the connection reads.
    pub fn earlier(&mut self) -> Earlier<'a, B> {
        std::mem::take(&mut self.earlier)
    }

    /// Makes f read `input`, whatever the connection passes: f(input) instead of f(x).
    pub fn reading(self, input: Tensor<B, 3>) -> Self {
        Self {
            input: Some(input),
            ..self
        }
    }

    /// Computes f(x).
    pub fn of(self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        self.of_normed(x, |x| x)
    }

    /// Computes f(norm(x)), for a connection that owns the norm before f. In [depth maps](crate::DepthMap), x is the
    /// input of f.
    pub fn of_normed(
        self,
        x: Tensor<B, 3>,
        norm: impl FnOnce(Tensor<B, 3>) -> Tensor<B, 3>,
    ) -> Tensor<B, 3> {
        let Self { branch, cache, .. } = self;
        let x = self.input.unwrap_or(x);
        depth::branch::<B, M>(x, |x| {
            let x = norm(x);
            widen(self.precision.during(|| branch.forward(x, cache)))
        })
    }

    /// Computes x + f(x).
    pub fn plus(self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        if self.input.is_some() || depth::is_recorded() {
            return self.of(x.clone()) + x;
        }
        let Self { branch, cache, .. } = self;
        self.precision.during(|| branch.residual(x, cache))
    }

    /// Computes f(x), where attention uses `change(heads)` in place of its queries, keys and values. x is one tensor,
    /// or three: the inputs of q, k and v. [`Branch::attend`] says which operations the change follows. The branch has
    /// no residual; if the inputs differ, the connection chooses what f(x) is added to. The change computes in f32, but
    /// q, k and v can be bf16. [`widen`] the tensors that the change computes with.
    ///
    /// # Panics
    ///
    /// Panics if the inputs differ and the attention reads only one. [`Sites::need_inputs`](crate::Sites::need_inputs)
    /// refuses such a model.
    pub fn attend(
        self,
        x: impl Into<QkvInput<B>>,
        change: impl FnMut(Heads<B>) -> Heads<B>,
    ) -> Tensor<B, 3> {
        self.attend_normed(x, |x| x, change)
    }

    /// Computes [`attend`](Self::attend) of norm(x), for a connection that owns the norms before attention. In [depth
    /// maps](crate::DepthMap), x is the input of f.
    ///
    /// # Panics
    ///
    /// Panics where [`attend`](Self::attend) panics.
    pub fn attend_normed(
        self,
        x: impl Into<QkvInput<B>>,
        norm: impl FnOnce(QkvInput<B>) -> QkvInput<B>,
        mut change: impl FnMut(Heads<B>) -> Heads<B>,
    ) -> Tensor<B, 3> {
        let Self { branch, cache, .. } = self;
        let x = self.input.map_or_else(|| x.into(), QkvInput::Same);
        let mut change = |heads| Precision::F32.during(|| change(heads));
        // A depth map shows the input of the values.
        depth::branch::<B, M>(x.of_values().clone(), |_| {
            let x = norm(x);
            let y = || branch.attend(x, &mut change, cache);
            widen(self.precision.during(y))
        })
    }
}

/// The way a branch joins the stream. Most connections act on each position separately, so a full and an incremental
/// pass give the same result. A connection that reads earlier positions keeps them in [`BranchFn::earlier`].
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

/// A connection with a stream of its own, which opens before the update and closes after it. It suits a branch that
/// changes the shape of the stream.
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
            ..stream
        }
    }
}

/// `None` acts as [`Plain`].
impl<B: Backend, C: Connection<B>> Connection<B> for Option<C> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        match self {
            Some(connection) => connection.update(stream, f),
            None => Plain.update(stream, f),
        }
    }
}

/// `None` acts as [`Plain`].
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
