//! A block and its parts.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::activation::relu;
use residual_zoo_core::ops::convolution::{convolution, every};
use residual_zoo_core::{
    Branch, BranchFn, Connection, ImageSize, ResidualBlock, Stream, recompute,
};

use crate::BatchNorm;
use crate::config::{Convolution, Place, ResNetConfig};

/// A convolution without bias, followed by a norm.
#[derive(Module, Debug)]
pub struct Conv<B: Backend> {
    /// `[out, in, kernel, kernel]`.
    pub weight: Param<Tensor<B, 4>>,
    /// The norm.
    pub norm: BatchNorm<B>,
    stride: usize,
}

impl<B: Backend> Conv<B> {
    /// Draws the weight from N(0, 2 / (out · kernel²)) (He et al., "Delving deep into rectifiers", 2015, eq. 14).
    pub(crate) fn new(config: &ResNetConfig, conv: Convolution, device: &B::Device) -> Self {
        let Convolution {
            input,
            output,
            kernel,
            stride,
        } = conv;
        let std = (2.0 / (output * kernel * kernel) as f64).sqrt();
        let normal = Initializer::Normal { mean: 0.0, std };
        Self {
            weight: normal.init([output, input, kernel, kernel], device),
            norm: BatchNorm::new(
                output,
                config.norm_eps,
                config.norm_momentum,
                config.frozen_norm,
                device,
            ),
            stride,
        }
    }

    /// Computes norm(conv(x)), from `[batch, height, width, in]` to
    /// `[batch, ⌈height / stride⌉, ⌈width / stride⌉, out]`.
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let y = convolution(self.stride, x, self.weight.val());
        self.norm.forward(y)
    }
}

/// Views a stream `[batch, height · width, channels]` as images `[batch, height, width, channels]`.
pub(crate) fn images<B: Backend>(x: Tensor<B, 3>, height: usize) -> Tensor<B, 4> {
    let [batch, positions, channels] = x.dims();
    x.reshape([batch, height, positions / height, channels])
}

/// Views images `[batch, height, width, channels]` as a stream `[batch, height · width, channels]`.
pub(crate) fn stream<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 3> {
    let [batch, height, width, channels] = x.dims();
    x.reshape([batch, height * width, channels])
}

/// f: convolutions with a ReLU between them.
#[derive(Module, Debug)]
pub struct Residual<B: Backend> {
    /// The convolutions, each with its norm.
    pub convs: Vec<Conv<B>>,
    /// Number of rows of the images that f reads.
    height: usize,
}

impl<B: Backend> Branch<B> for Residual<B> {
    type Cache = ();

    fn new_cache(&self) {}

    /// Maps `[batch, height · width, in]` to `[batch, ⌈height / stride⌉ · ⌈width / stride⌉, out]`.
    fn forward(&self, x: Tensor<B, 3>, _: Option<&mut ()>) -> Tensor<B, 3> {
        let mut x = images(x, self.height);
        for (i, conv) in self.convs.iter().enumerate() {
            if i > 0 {
                x = relu(x);
            }
            x = conv.forward(x);
        }
        stream(x)
    }
}

/// s, the shortcut of a block that changes the shape.
#[derive(Module, Debug)]
pub struct Shortcut<B: Backend> {
    /// The projection, option B of the paper. Without a projection, s is option A, which keeps every stride-th row and
    /// column, and appends zero channels.
    pub projection: Option<Conv<B>>,
    /// Number of rows of the images that s reads.
    height: usize,
    stride: usize,
    added: usize,
}

impl<B: Backend> Shortcut<B> {
    /// Makes the shortcut of option A, which adds `added` channels.
    pub(crate) fn padded(height: usize, stride: usize, added: usize) -> Self {
        Self {
            projection: None,
            height,
            stride,
            added,
        }
    }

    /// Computes s(x), from `[batch, height · width, in]` to `[batch, ⌈height / stride⌉ · ⌈width / stride⌉, out]`.
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let x = images(x, self.height);
        if let Some(projection) = &self.projection {
            return stream(projection.forward(x));
        }
        let device = x.device();
        let x = stream(every(self.stride, x));
        let [batch, positions, _] = x.dims();
        let zeros = Tensor::zeros([batch, positions, self.added], &device);
        Tensor::cat(vec![x, zeros], 2)
    }
}

/// A block with its connection.
#[derive(Module, Debug)]
pub struct Block<B: Backend, C> {
    branch: Residual<B>,
    connection: C,
    shortcut: Option<Shortcut<B>>,
}

impl<B: Backend, C: Connection<B>> Block<B, C> {
    pub(crate) fn new(
        config: &ResNetConfig,
        place: &Place,
        image: ImageSize,
        connection: C,
        device: &B::Device,
    ) -> Self {
        let conv = |conv| Conv::new(config, conv, device);
        let height = image.height;
        let shortcut = place.changes_shape().then(|| Shortcut {
            projection: place.projection(config.shortcut).map(conv),
            ..Shortcut::padded(
                height,
                place.stride,
                place.output.saturating_sub(place.input),
            )
        });
        Self {
            branch: Residual {
                convs: place.convolutions(config.block).map(conv).collect(),
                height,
            },
            connection,
            shortcut,
        }
    }

    fn apply(&self, stream: Stream<B>) -> Stream<B> {
        let f = BranchFn::new(&self.branch, None);
        let Some(shortcut) = &self.shortcut else {
            let next = self.connection.update(stream, f);
            return Stream {
                x: relu(next.x),
                ..next
            };
        };
        let s = Stream::new(shortcut.forward(stream.x.clone()));
        Stream::new(relu(self.connection.update(s, f.reading(stream.x)).x))
    }
}

impl<B: Backend, C: Connection<B>> ResidualBlock<B> for Block<B, C> {
    type Cache = ();

    fn new_cache(&self) {}

    fn forward(&self, stream: Stream<B>, _: Option<&mut ()>) -> Stream<B> {
        recompute::update(self, stream, Self::apply)
    }
}
