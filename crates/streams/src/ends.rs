//! Stream ends that several designs share.

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::mix::mix;
use residual_zoo_core::{Ends, Sites, Stream};

/// The ends of a stream that carries x_0.
#[derive(Module, Clone, Debug)]
pub struct KeepFirst;

impl<B: Backend> Ends<B> for KeepFirst {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        Stream {
            carried: vec![x.clone()],
            ..Stream::new(x)
        }
    }
}

/// Opens n copies of x_0, side by side. At the end, sums the streams, or takes their mean if no norm follows.
#[derive(Module, Clone, Debug)]
pub struct Copies {
    pub(crate) n: usize,
    pub(crate) mean: bool,
}

impl Copies {
    pub(crate) fn new(n: usize, on: &Sites) -> Self {
        Self {
            n,
            mean: !on.into_norm,
        }
    }
}

impl<B: Backend> Ends<B> for Copies {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        let [batch, time, width] = x.dims();
        // In Burn 0.21, the gradient of `repeat_dim` is wrong if the axis is longer than 1.
        let each = Tensor::ones([1, 1, 1, self.n], &x.device());
        let h = mix(each, x.unsqueeze_dim(2));
        Stream::new(h.reshape([batch, time, self.n * width]))
    }

    fn close(&self, stream: Stream<B>) -> Tensor<B, 3> {
        let share = match self.mean {
            true => (self.n as f64).recip(),
            false => 1.0,
        };
        let each = Tensor::full([1, 1, self.n, 1], share, &stream.x.device());
        mix(each, streams(stream.x, self.n)).squeeze_dim(2)
    }
}

/// Views n streams side by side, `[batch, time, n · D]`, as H `[batch, time, n, D]`.
pub(crate) fn streams<B: Backend>(x: Tensor<B, 3>, n: usize) -> Tensor<B, 4> {
    let [batch, time, width] = x.dims();
    x.reshape([batch, time, n, width / n])
}
