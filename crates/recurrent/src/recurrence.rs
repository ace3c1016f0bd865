//! The recurrence over a whole sequence.

use std::marker::PhantomData;

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Ends, Plain, ResidualBlock, Stream, autodiff, close, open, recompute};

use crate::streaming::RecurrentCache;
use crate::{Alpha, Form, RecurrentConfig};

/// The recurrence of eqs. 8-10 around each of its layers in turn. The paper's model has one layer.
///
/// The sequence is cut into blocks x_1, …, x_t of k tokens; the last may be shorter. A layer τ passes over two blocks
/// at a time:
///
/// ```text
/// h_1            = τ(x_1)                                                   (8)
/// (y_i, h_{i+1}) = τ(α h_{i-1} + h_i, α h_{i-1} + x_{i+1}),  α ∈ [0, 1]     (9)
/// y_t            = τ(h_t)                                                   (10)
/// ```
///
/// The comma concatenates two blocks in time, and attention is causal over both. τ sees every token twice, in windows
/// of at most 2k tokens. Learned positions are added before the recurrence and count over the whole sequence. Rotary
/// positions and ALiBi act inside τ and count within a window. [`Alpha`] chooses how α is trained, and [`Form`] the
/// state that α multiplies. Each call of τ starts a new stream, so a connection inside τ reads no stream from outside.
///
/// # Prefixes
///
/// Eq. 10 closes the last block without the carry α h_{i-1}. If another block follows, eq. 9, with the carry, computes
/// the outputs of this block instead. For α > 0, appending a block therefore changes the outputs of the block before
/// it. In [`Form::Paper`], the first block is an exception, because h_0 is zero. At a fixed length, no output depends
/// on a later token. A prefix has the outputs of the longer sequence if both have the same number of blocks, or if
/// α = 0.
///
/// # Reading in pieces
///
/// With a [cache](RecurrentCache), `forward` returns the outputs that a full pass over everything read so far would
/// have at the positions of this piece. It does not revise outputs of earlier pieces. A [`ResidualBlock`] after a
/// recurrence would cache outputs that change later, so no block with a cache may follow a `Recurrent`. A `Recurrent`
/// therefore surrounds the whole model.
#[derive(Module, Debug)]
pub struct Recurrent<B: Backend, R, E = Plain> {
    pub(crate) layers: Vec<R>,
    /// The ends of the stream of each layer.
    pub(crate) ends: Vec<E>,
    /// α before clamping, `[1]`.
    pub(crate) alpha: Option<Param<Tensor<B, 1>>>,
    /// The input of the sigmoid for α, `[1]`.
    pub(crate) alpha_logit: Option<Param<Tensor<B, 1>>>,
    straight_through: bool,
    pub(crate) block: usize,
    pub(crate) form: Form,
    _backend: PhantomData<B>,
}

impl<B: Backend, R: ResidualBlock<B>, E: Ends<B>> Recurrent<B, R, E> {
    pub(crate) fn new(config: &RecurrentConfig, layers: Vec<(R, E)>, device: &B::Device) -> Self {
        let (layers, ends) = layers.into_iter().unzip();
        let param = |alpha: f64| Param::from_data([alpha], device);
        let (alpha, alpha_logit) = match config.alpha {
            Alpha::Trainable(alpha) | Alpha::StraightThrough(alpha) => (Some(param(alpha)), None),
            Alpha::Fixed(alpha) => (Some(param(alpha).set_require_grad(false)), None),
            Alpha::Sigmoid(alpha) => (None, Some(param((alpha / (1.0 - alpha)).ln()))),
        };
        Self {
            layers,
            ends,
            alpha,
            alpha_logit,
            straight_through: matches!(config.alpha, Alpha::StraightThrough(_)),
            block: config.block,
            form: config.form,
            _backend: PhantomData,
        }
    }

    /// Returns α in [0, 1], `[1, 1, 1]`.
    pub(crate) fn alpha(&self) -> Tensor<B, 3> {
        let alpha = match (&self.alpha, &self.alpha_logit) {
            (Some(alpha), _) => {
                let alpha = alpha.val();
                let clamped = alpha.clone().clamp(0.0, 1.0);
                match self.straight_through {
                    true => alpha.clone() + (clamped - alpha).detach(),
                    false => clamped,
                }
            }
            (None, Some(logit)) => sigmoid(logit.val()),
            (None, None) => unreachable!("one of them is always made"),
        };
        alpha.unsqueeze()
    }

    /// Applies eqs. 8-10 with one layer to x_1, …, x_t, each `[batch, ≤ k, width]`.
    fn recur(&self, layer: usize, x: Vec<Tensor<B, 3>>) -> Vec<Tensor<B, 3>> {
        let layer = Self {
            layers: vec![self.layers[layer].clone()],
            ends: vec![self.ends[layer].clone()],
            ..self.clone()
        };
        let layer = match recompute::is_cut::<B>() {
            false => autodiff::with_identities(layer),
            // Recomputation cuts the pass into parts. A backward pass visits a graph once, so the parts may share only
            // leaves.
            true => layer,
        };
        match self.form {
            Form::Paper => layer.paper(x),
            Form::Code => layer.code(x),
        }
    }

    /// Returns y_1, …, y_t of the only layer, in the paper's form: the carry is α h_{i-1}, and h_0 = 0.
    fn paper(&self, x: Vec<Tensor<B, 3>>) -> Vec<Tensor<B, 3>> {
        let mut h_before = None;
        let mut h = self.tau(x[0].clone());
        let mut ys = Vec::with_capacity(x.len());
        for x_next in x.into_iter().skip(1) {
            let (y, h_next) = self.step(h_before, h.clone(), x_next);
            h_before = Some(h);
            h = h_next;
            ys.push(y);
        }
        ys.push(self.tau(h));
        ys
    }

    /// Returns y_1, …, y_t of the only layer, in the form of the authors' code: the carry is α y_{i-1}, and y_0 = x_1.
    fn code(&self, x: Vec<Tensor<B, 3>>) -> Vec<Tensor<B, 3>> {
        let mut y_before = x[0].clone();
        let mut h = self.tau(x[0].clone());
        let mut ys = Vec::with_capacity(x.len());
        for x_next in x.into_iter().skip(1) {
            let (y, h_next) = self.step(Some(y_before), h, x_next);
            y_before = y.clone();
            h = h_next;
            ys.push(y);
        }
        ys.push(self.tau(h));
        ys
    }

    /// Returns τ(x).
    fn tau(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        recompute::run(self, vec![x], |layer, x| {
            x.into_iter().map(|x| layer.apply(x)).collect()
        })
        .remove(0)
    }

    /// Returns (y_i, h_{i+1}) = τ(α c + h_i, α c + x_{i+1}) (eq. 9). A last block that is shorter than the carry α c
    /// uses the first positions of the carry.
    fn step(
        &self,
        c: Option<Tensor<B, 3>>,
        h: Tensor<B, 3>,
        x: Tensor<B, 3>,
    ) -> (Tensor<B, 3>, Tensor<B, 3>) {
        let (k, m) = (h.dims()[1], x.dims()[1]);
        let inputs = [h, x].into_iter().chain(c).collect();
        let mut both = recompute::run(self, inputs, move |layer, inputs| {
            let carry = inputs.get(2).map(|c| layer.alpha() * c.clone());
            let [h, x] = [0, 1].map(|i| inputs[i].clone());
            let (left, right) = match carry {
                Some(carry) => (carry.clone() + h, carry.narrow(1, 0, m) + x),
                None => (h, x),
            };
            let both = layer.apply(Tensor::cat(vec![left, right], 1));
            vec![both.clone().narrow(1, 0, k), both.narrow(1, k, m)]
        });
        let h_next = both.remove(1);
        (both.remove(0), h_next)
    }

    /// Applies the only layer to blocks x `[batch, ≤ 2 k, width]`.
    fn apply(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let (tau, ends) = (&self.layers[0], &self.ends[0]);
        close(ends, tau.forward(open(ends, x, None), None))
    }
}

/// Cuts x into x_1, …, x_t of k tokens each; the last may be shorter. The function cuts x into halves recursively,
/// because Burn pads the gradient of a part with zeros to the length of the tensor that was cut. If all t parts were
/// cut from the whole, the time would be quadratic in the length.
fn cut<B: Backend>(x: Tensor<B, 3>, k: usize) -> Vec<Tensor<B, 3>> {
    let time = x.dims()[1];
    let left = time.div_ceil(k) / 2 * k;
    if left == 0 {
        return vec![x];
    }
    let halves = [x.clone().narrow(1, 0, left), x.narrow(1, left, time - left)];
    halves.into_iter().flat_map(|half| cut(half, k)).collect()
}

impl<B: Backend, R: ResidualBlock<B>, E: Ends<B>> ResidualBlock<B> for Recurrent<B, R, E> {
    type Cache = RecurrentCache<B, R::Cache>;

    fn new_cache(&self) -> Self::Cache {
        self.start()
    }

    fn forward(&self, stream: Stream<B>, cache: Option<&mut Self::Cache>) -> Stream<B> {
        let x = stream.x.clone();
        let y = match cache {
            Some(cache) => self.read(x, cache),
            None => {
                let blocks =
                    recompute::run(self, vec![x], |this, mut x| cut(x.remove(0), this.block));
                let layers = 0..self.layers.len();
                let ys = layers.fold(blocks, |x, layer| self.recur(layer, x));
                Tensor::cat(ys, 1)
            }
        };
        Stream { x: y, ..stream }
    }
}
