//! Stream ends that several designs share.

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
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
        // In Burn 0.21, the gradient of `repeat_dim` is wrong if the axis is longer than 1.
        Stream::new(Tensor::cat(vec![x; self.n], 2))
    }

    fn close(&self, stream: Stream<B>) -> Tensor<B, 3> {
        let streams = streams(stream.x, self.n);
        let end = match self.mean {
            true => streams.mean_dim(2),
            false => streams.sum_dim(2),
        };
        end.squeeze_dim(2)
    }
}

/// Views n streams side by side, `[batch, time, n · D]`, as H `[batch, time, n, D]`.
pub(crate) fn streams<B: Backend>(x: Tensor<B, 3>, n: usize) -> Tensor<B, 4> {
    let [batch, time, width] = x.dims();
    x.reshape([batch, time, n, width / n])
}
