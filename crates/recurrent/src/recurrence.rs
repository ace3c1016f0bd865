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
/// Streams before x_0 do not reach into the recurrence: every call of τ starts one of its own.
///
/// `decode` reads a sequence in pieces and gives, for the positions of a piece, what `forward`
/// gives for the sequence that ends with it. For α > 0 that is not a prefix of what `forward` gives
/// for a longer sequence: eq. 10 closes the last block without a carry, and once another block
/// follows, eq. 9 gives the same positions with one. What it remembers is constant in the length of
/// the sequence: the last two blocks. A block behind this one would still hold the closing values,
/// so nothing that remembers may follow a `Recurrent`.
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
        let tau = |x: Tensor<B, 3>| tau.forward(Stream::new(x, tau.reach())).x;
        let alpha = self.alpha();
        let blocks = x.split(self.block, 1);

        let mut h = tau(blocks[0].clone());
        let mut carry = match self.form {
            Form::Paper => None,
            Form::Code => Some(blocks[0].clone()),
        };
        let mut ys = Vec::with_capacity(blocks.len());
        for x in blocks.into_iter().skip(1) {
            let (left, right) = match carry {
                Some(c) => {
                    let c = alpha.clone() * c;
                    let short = c.clone().narrow(1, 0, x.dims()[1]);
                    (c + h.clone(), short + x)
                }
                None => (h.clone(), x),
            };
            let (k, m) = (left.dims()[1], right.dims()[1]);
            let both = tau(Tensor::cat(vec![left, right], 1));
            let y = both.clone().narrow(1, 0, k);
            carry = Some(match self.form {
                Form::Paper => h,
                Form::Code => y.clone(),
            });
            h = both.narrow(1, k, m);
            ys.push(y);
        }
        ys.push(tau(h));
        Tensor::cat(ys, 1)
    }
}

impl<B: Backend, R: ResidualBlock<B>> ResidualBlock<B> for Recurrent<B, R> {
    type Cache = RecurrentCache<B, R::Cache>;

    fn reach(&self) -> usize {
        0
    }

    fn new_cache(&self) -> Self::Cache {
        self.start()
    }

    fn forward(&self, stream: Stream<B>) -> Stream<B> {
        let layers = self.layers.iter();
        let y = layers.fold(stream.x.clone(), |x, tau| self.recur(tau, x));
        stream.advance(y)
    }

    fn decode(&self, stream: Stream<B>, cache: &mut Self::Cache) -> Stream<B> {
        let y = self.read(stream.x.clone(), cache);
        stream.advance(y)
    }
}
