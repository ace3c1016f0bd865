//! The recurrence over a whole sequence.

use std::marker::PhantomData;

use burn::module::{Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{ResidualBlock, Stream};

use crate::streaming::RecurrentCache;
use crate::{Alpha, Form, RecurrentConfig};

/// The recurrence of eqs. 8-10 around each of its layers, one after the other. A stack of one is
/// the paper's model.
///
/// Each call of τ starts a stream of its own, so no connection inside reads a stream from before it.
///
/// With a cache, the recurrence reads a sequence in pieces. For the positions of a piece it gives what
/// a full pass over the sequence up to the end of that piece gives. For α > 0 this is not a prefix of
/// the full pass over a longer sequence: eq. 10 closes the last block without a carry, and once another
/// block follows, eq. 9 gives the same positions with one. The cache holds the last two blocks, however
/// long the sequence is. A block behind this one would still hold the closing values, so no block with
/// a memory may follow a `Recurrent`.
#[derive(Module, Debug)]
pub struct Recurrent<B: Backend, R> {
    pub(crate) layers: Vec<R>,
    /// α, `[1]`.
    pub(crate) alpha: Param<Tensor<B, 1>>,
    pub(crate) block: usize,
    pub(crate) form: Form,
    _backend: PhantomData<B>,
}

impl<B: Backend, R: ResidualBlock<B>> Recurrent<B, R> {
    pub(crate) fn new(config: &RecurrentConfig, layers: Vec<R>, device: &B::Device) -> Self {
        let param = |alpha: f64| Param::from_data([alpha], device);
        Self {
            layers,
            alpha: match config.alpha {
                Alpha::Trainable(alpha) => param(alpha),
                Alpha::Fixed(alpha) => param(alpha).set_require_grad(false),
            },
            block: config.block,
            form: config.form,
            _backend: PhantomData,
        }
    }

    /// α in [0, 1], `[1, 1, 1]`.
    pub(crate) fn alpha(&self) -> Tensor<B, 3> {
        self.alpha.val().clamp(0.0, 1.0).unsqueeze()
    }

    /// Eqs. 8-10 for x `[batch, time, width]`.
    fn recur(&self, tau: &R, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let tau = |x: Tensor<B, 3>| tau.forward(Stream::new(x, tau.reach()), None).x;
        let blocks = x.split(self.block, 1);
        let ys = match self.form {
            Form::Paper => self.paper(tau, blocks),
            Form::Code => self.code(tau, blocks),
        };
        Tensor::cat(ys, 1)
    }

    /// y_1, …, y_t as printed. α carries h_{i-1}, and h_0 = 0.
    fn paper(
        &self,
        tau: impl Fn(Tensor<B, 3>) -> Tensor<B, 3>,
        x: Vec<Tensor<B, 3>>,
    ) -> Vec<Tensor<B, 3>> {
        let alpha = self.alpha();
        let mut h_before = None;
        let mut h = tau(x[0].clone());
        let mut ys = Vec::with_capacity(x.len());
        for x_next in x.into_iter().skip(1) {
            let carry = h_before.map(|h| alpha.clone() * h);
            let (y, h_next) = step(&tau, carry, h.clone(), x_next);
            h_before = Some(h);
            h = h_next;
            ys.push(y);
        }
        ys.push(tau(h));
        ys
    }

    /// y_1, …, y_t as the authors' code computes them. α carries y_{i-1}, and y_0 = x_1.
    fn code(
        &self,
        tau: impl Fn(Tensor<B, 3>) -> Tensor<B, 3>,
        x: Vec<Tensor<B, 3>>,
    ) -> Vec<Tensor<B, 3>> {
        let alpha = self.alpha();
        let mut y_before = x[0].clone();
        let mut h = tau(x[0].clone());
        let mut ys = Vec::with_capacity(x.len());
        for x_next in x.into_iter().skip(1) {
            let carry = alpha.clone() * y_before;
            let (y, h_next) = step(&tau, Some(carry), h, x_next);
            y_before = y.clone();
            h = h_next;
            ys.push(y);
        }
        ys.push(tau(h));
        ys
    }
}

/// (y_i, h_{i+1}) = τ(carry + h_i, carry + x_{i+1}) (eq. 9). The last block may be shorter than the
/// carry, of which it takes the first tokens.
fn step<B: Backend>(
    tau: impl Fn(Tensor<B, 3>) -> Tensor<B, 3>,
    carry: Option<Tensor<B, 3>>,
    h: Tensor<B, 3>,
    x: Tensor<B, 3>,
) -> (Tensor<B, 3>, Tensor<B, 3>) {
    let (k, m) = (h.dims()[1], x.dims()[1]);
    let (left, right) = match carry {
        Some(carry) => (carry.clone() + h, carry.narrow(1, 0, m) + x),
        None => (h, x),
    };
    let both = tau(Tensor::cat(vec![left, right], 1));
    (both.clone().narrow(1, 0, k), both.narrow(1, k, m))
}

impl<B: Backend, R: ResidualBlock<B>> ResidualBlock<B> for Recurrent<B, R> {
    type Cache = RecurrentCache<B, R::Cache>;

    fn reach(&self) -> usize {
        0
    }

    fn new_cache(&self) -> Self::Cache {
        self.start()
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        let x = stream.x.clone();
        let y = match cache {
            Some(cache) => self.read(x, cache),
            None => self.layers.iter().fold(x, |x, tau| self.recur(tau, x)),
        };
        stream.advance(y)
    }
}
