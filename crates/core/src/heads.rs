//! The inputs of an attention sublayer, and its queries, keys and values, which a connection can change.

use burn::tensor::{Tensor, backend::Backend};

/// The inputs of an attention sublayer: one x for q, k and v, or one for each. Each is `[batch, time, width]`.
#[derive(Clone, Debug)]
pub enum QkvInput<B: Backend> {
    /// q, k and v are projections of the same x.
    Same(Tensor<B, 3>),
    /// The inputs of q, k and v.
    Each([Tensor<B, 3>; 3]),
}

impl<B: Backend> From<Tensor<B, 3>> for QkvInput<B> {
    fn from(x: Tensor<B, 3>) -> Self {
        Self::Same(x)
    }
}

impl<B: Backend> From<[Tensor<B, 3>; 3]> for QkvInput<B> {
    fn from(each: [Tensor<B, 3>; 3]) -> Self {
        Self::Each(each)
    }
}

impl<B: Backend> QkvInput<B> {
    /// Maps each input by `f`; calls `f` only once if all inputs are the same.
    pub fn map(self, mut f: impl FnMut(Tensor<B, 3>) -> Tensor<B, 3>) -> Self {
        match self {
            Self::Same(x) => Self::Same(f(x)),
            Self::Each(each) => Self::Each(each.map(f)),
        }
    }

    /// Returns the inputs of q, k and v.
    pub fn each(self) -> [Tensor<B, 3>; 3] {
        match self {
            Self::Same(x) => [x.clone(), x.clone(), x],
            Self::Each(each) => each,
        }
    }

    /// Returns the input of v.
    pub fn of_values(&self) -> &Tensor<B, 3> {
        match self {
            Self::Same(x) | Self::Each([_, _, x]) => x,
        }
    }

    /// Returns x, for an attention sublayer whose output depends on x not only through q, k and v.
    ///
    /// # Panics
    ///
    /// Panics if the inputs differ. [`Sites::need_inputs`](crate::Sites::need_inputs) refuses such a model.
    pub fn same(self) -> Tensor<B, 3> {
        match self {
            Self::Same(x) => x,
            Self::Each(_) => panic!("this attention reads one input"),
        }
    }
}

/// Queries, keys and values of an attention sublayer, split into heads, before rotary positions and before the cache.
#[derive(Clone, Debug)]
pub struct Heads<B: Backend> {
    /// u, the inputs of the projections to q, k and v, `[batch, time, width]` each. If the branch has a norm, u is
    /// normalised. Changing u has no effect.
    pub u: [Tensor<B, 3>; 3],
    /// Queries, `[batch, heads, time, d]`, where d is the width of a head.
    pub q: Tensor<B, 4>,
    /// Keys, `[batch, kv_heads, time, d]`.
    pub k: Tensor<B, 4>,
    /// Values, `[batch, kv_heads, time, d]`. They equal k in a layer without a value projection.
    pub v: Tensor<B, 4>,
}

impl<B: Backend> Heads<B> {
    /// Makes the heads `qkv` of an attention sublayer whose projections read `u`.
    pub fn new(u: QkvInput<B>, [q, k, v]: [Tensor<B, 4>; 3]) -> Self {
        let u = u.each();
        Self { u, q, k, v }
    }

    /// Returns q, k and v.
    pub fn qkv(self) -> [Tensor<B, 4>; 3] {
        [self.q, self.k, self.v]
    }
}

/// A function with which a connection changes the heads.
pub type Change<'a, B> = &'a mut dyn FnMut(Heads<B>) -> Heads<B>;

/// The sizes of a layer's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSize {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key-value heads.
    pub kv_heads: usize,
    /// Width of a head, d.
    pub d: usize,
    /// Whether q, k and v can read different inputs.
    pub three_inputs: bool,
    /// Whether layers honour [`Frame::own_values`](crate::Frame::own_values).
    pub without_values: bool,
}

impl AttentionSize {
    /// Describes `heads` heads of width `d`, each with its own key and value. q, k and v can read different inputs, and
    /// v has a projection.
    pub fn of_heads(heads: usize, d: usize) -> Self {
        Self {
            heads,
            kv_heads: heads,
            d,
            three_inputs: true,
            without_values: false,
        }
    }
}
