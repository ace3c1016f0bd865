//! Patch embeddings.

use burn::module::{Initializer, Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Int, Tensor, backend::Backend};
use residual_zoo_core::ops::attention::capped;
use residual_zoo_core::{
    ConfigError, Cost, Embeddings, ImageSize, Linear, Norm, NormDesign, Params, Seen,
    TokenEmbeddingsOptions, check, linear, normal, widen,
};
use serde::{Deserialize, Serialize};

/// The input of the classifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pool {
    /// The class token after the final norm (Dosovitskiy et al. 2021, eq. 4).
    #[default]
    ClassToken,
    /// The mean of the patches, without the class token, followed by the final norm. This is the form in the
    /// fine-tuning code of He et al., "Masked autoencoders are scalable vision learners" (2022).
    Mean,
}

/// The config of [`PatchEmbeddings`]. Fields that the run file omits have the values of [`Default`], as in ViT-B/16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Patches {
    /// Height and width of a patch in pixels; must divide the height and the width of the images.
    pub size: usize,
    /// Whether a learned class token precedes the patches.
    pub class_token: bool,
    /// The input of the classifier.
    pub pool: Pool,
}

impl Default for Patches {
    fn default() -> Self {
        Self {
            size: 16,
            class_token: true,
            pool: Pool::ClassToken,
        }
    }
}

impl Patches {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::at_least_one("size", self.size)?;
        match (self.pool, self.class_token) {
            (Pool::ClassToken, false) => Err(ConfigError::new(
                "pool",
                "is ClassToken, but there is no class token; use Mean or set class_token to true",
            )),
            _ => Ok(()),
        }
    }

    /// Checks that images of this size divide into patches.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first side of the images that the patch size does not divide.
    pub fn fit(&self, image: ImageSize) -> Result<(), ConfigError> {
        for (side, length) in [("height", image.height), ("width", image.width)] {
            if !length.is_multiple_of(self.size) {
                let problem = format!(
                    "is {}, which does not divide the {side} of the images, {length}",
                    self.size
                );
                return Err(ConfigError::new("size", problem));
            }
        }
        Ok(())
    }

    /// Returns the number of positions of an image.
    pub fn positions(&self, image: ImageSize) -> usize {
        let patches = (image.height / self.size) * (image.width / self.size);
        patches + usize::from(self.class_token)
    }

    /// Returns the number of values in a patch.
    fn values(&self, image: ImageSize) -> usize {
        image.channels * self.size * self.size
    }

    /// Returns the cost of the embeddings per image.
    pub fn cost(&self, image: ImageSize, options: &TokenEmbeddingsOptions) -> Cost {
        let TokenEmbeddingsOptions {
            width,
            vocabulary,
            norm,
            input_norm,
            ..
        } = *options;
        let patch = Cost::linear(self.values(image), width, true);
        let patches = self.positions(image) - usize::from(self.class_token);
        let rows = self.positions(image) + usize::from(self.class_token);
        let head = Cost::linear(width, vocabulary.outputs, true);
        let tables = Cost {
            params: Params {
                embedding: rows * width,
                unembedding: head.params.total(),
                other: patch.params.total(),
            },
            ..patch.applied(patches) + head
        };
        let norms = [norm, input_norm].into_iter().flatten();
        norms.fold(tables, |sum, norm| sum + norm.cost(width))
    }
}

/// Maps images to x_0, and x_L to class logits.
#[derive(Module, Debug)]
pub struct PatchEmbeddings<B: Backend> {
    /// E and b, `[channels · size · size, width]`. The values of a patch are ordered by channel, then by row.
    patch: Linear<B>,
    /// `[1, width]`.
    class_token: Option<Param<Tensor<B, 2>>>,
    /// `[positions, width]`.
    positions: Param<Tensor<B, 2>>,
    dropout: Dropout,
    norm: Norm<B>,
    /// W and c, `[width, classes]`.
    unembedding: Linear<B>,
    size: usize,
    by_class_token: bool,
    input_scale: f64,
    output_scale: f64,
    input_norm: Norm<B>,
    cap: Option<f64>,
}

impl<B: Backend> PatchEmbeddings<B> {
    /// Draws E from N(0, 1 / (channels · size · size)), so that pixels of variance 1 give embeddings of variance 1. The
    /// class token and the positions are drawn like the tables of a language model with these `options`. W is drawn
    /// like that model's unembedding. b and c are zero. There is no token table, so W is never tied.
    pub fn new(
        patches: &Patches,
        image: ImageSize,
        options: &TokenEmbeddingsOptions,
        device: &B::Device,
    ) -> Self {
        let TokenEmbeddingsOptions {
            width,
            init_std,
            vocabulary,
            ..
        } = *options;
        let values = patches.values(image);
        let table = |rows| normal([rows, width], init_std, device);
        let norm = |design: Option<NormDesign>| {
            design.map_or_else(Norm::identity, |design| design.build(width, device))
        };
        Self {
            patch: linear(values, width, true, (values as f64).powf(-0.5), device),
            class_token: patches.class_token.then(|| table(1)),
            positions: table(patches.positions(image)),
            dropout: DropoutConfig::new(options.dropout).init(),
            norm: norm(options.norm),
            unembedding: Linear {
                weight: normal([width, vocabulary.outputs], options.unembedding_std, device),
                bias: Some(Initializer::Zeros.init([vocabulary.outputs], device)),
            },
            size: patches.size,
            by_class_token: patches.pool == Pool::ClassToken,
            input_scale: options.input_scale,
            output_scale: options.output_scale,
            input_norm: norm(options.input_norm),
            cap: options.cap,
        }
    }

    /// Cuts images `[batch, channels, height, width]` into patches, in row order. Returns the values of the patches,
    /// `[batch, patches, channels · size · size]`.
    pub(crate) fn cut(&self, images: Tensor<B, 4>) -> Tensor<B, 3> {
        let [batch, channels, height, width] = images.dims();
        let size = self.size;
        let (rows, columns) = (height / size, width / size);
        let parts = images.reshape([batch, channels, rows, size, columns, size]);
        let patches = parts.permute([0, 2, 4, 1, 3, 5]);
        patches.reshape([batch, rows * columns, channels * size * size])
    }
}

impl<B: Backend> Embeddings<B> for PatchEmbeddings<B> {
    fn embed(&self, ids: Tensor<B, 2, Int>, _: &Seen) -> Tensor<B, 3> {
        panic!("an image model got token ids {:?}", ids.dims());
    }

    fn embed_images(&self, images: Tensor<B, 4>) -> Tensor<B, 3> {
        let patches = self.patch.forward(self.cut(images));
        let [batch, _, width] = patches.dims();
        let tokens = match &self.class_token {
            Some(token) => {
                let token = token.val().unsqueeze::<3>().expand([batch, 1, width]);
                Tensor::cat(vec![token, patches], 1)
            }
            None => patches,
        };
        let x = tokens + self.positions.val().unsqueeze();
        let x = self.input_norm.forward(x * self.input_scale);
        self.dropout.forward(x)
    }

    fn unembed(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let time = x.dims()[1];
        let pooled = match self.by_class_token {
            true => x.narrow(1, 0, 1),
            false => {
                let first = usize::from(self.class_token.is_some());
                x.narrow(1, first, time - first).mean_dim(1)
            }
        };
        let pooled = self.norm.forward(pooled) * self.output_scale;
        let logits = self.unembedding.forward(pooled);
        match self.cap {
            Some(cap) => capped(widen(logits), cap),
            None => logits,
        }
    }

    fn final_norm(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        self.norm.forward(x)
    }
}
