//! The ends of the stream: the stem and the head.

use burn::module::{Initializer, Module};
use burn::tensor::module::max_pool2d;
use burn::tensor::{Int, Tensor, backend::Backend};
use residual_zoo_core::ops::activation::relu;
use residual_zoo_core::{Embeddings, Linear, Seen};

use crate::block::stream;
use crate::{Conv, ResNetConfig, Stem};

/// Maps images to x_0, and x_L to class logits.
#[derive(Module, Debug)]
pub struct ResNetEnds<B: Backend> {
    /// The first convolution.
    pub stem: Conv<B>,
    /// W and c, `[width, classes]`.
    pub unembedding: Linear<B>,
    pool: bool,
}

impl<B: Backend> ResNetEnds<B> {
    /// Draws W and c from U(−1/√width, 1/√width), as PyTorch does.
    pub(crate) fn new(
        config: &ResNetConfig,
        channels: usize,
        classes: usize,
        device: &B::Device,
    ) -> Self {
        let width = config.width();
        let bound = (width as f64).powf(-0.5);
        let uniform = Initializer::Uniform {
            min: -bound,
            max: bound,
        };
        Self {
            stem: Conv::new(config, config.stem(channels), device),
            unembedding: Linear {
                weight: uniform.init([width, classes], device),
                bias: Some(uniform.init([classes], device)),
            },
            pool: config.stem == Stem::ImageNet,
        }
    }
}

impl<B: Backend> Embeddings<B> for ResNetEnds<B> {
    fn embed(&self, ids: Tensor<B, 2, Int>, _: &Seen) -> Tensor<B, 3> {
        panic!("an image model got token ids {:?}", ids.dims());
    }

    fn embed_images(&self, images: Tensor<B, 4>) -> Tensor<B, 3> {
        // From here on, the channels of a pixel are side by side.
        let x = relu(self.stem.forward(images.permute([0, 2, 3, 1])));
        stream(match self.pool {
            true => {
                let x = x.permute([0, 3, 1, 2]);
                let x = max_pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1], false);
                x.permute([0, 2, 3, 1])
            }
            false => x,
        })
    }

    fn unembed(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        self.unembedding.forward(x.mean_dim(1))
    }

    fn final_norm(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        x
    }
}
