//! The config of a ResNet.

use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Architecture, ConfigError, Connection, Cost, Frame, ImageSize, Params, Shape, StreamSize,
    Transfer, Vocabulary, check,
};
use serde::{Deserialize, Serialize};

use crate::{Block, ResNetEnds, batch_norm};

/// The convolutions of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum BlockKind {
    /// Two 3 × 3 convolutions. The first has the stride.
    Basic,
    /// A 3 × 3 convolution between two 1 × 1 convolutions. The 3 × 3 convolution has the stride, as in torchvision
    /// ("v1.5"). In the paper, the first 1 × 1 convolution has the stride.
    Bottleneck {
        /// Number of output channels, as a multiple of the 3 × 3 convolution's channels.
        expansion: usize,
    },
}

/// The first convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stem {
    /// 7 × 7 with stride 2, then a 3 × 3 max pool with stride 2.
    ImageNet,
    /// 3 × 3.
    Cifar,
}

/// s, the shortcut of a block that changes the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename = "Shortcut")]
pub enum ShortcutKind {
    /// A 1 × 1 convolution with a norm, option B of the paper.
    Projection,
    /// Every stride-th row and column, with channels of zeros appended: option A of the paper.
    Pad,
}

/// The config of a ResNet. Fields that the run file omits have the values of [`Default`], ResNet-50.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResNetConfig {
    /// The convolutions of a block.
    pub block: BlockKind,
    /// Number of channels of the 3 × 3 convolutions in each stage.
    pub widths: Vec<usize>,
    /// Number of blocks in each stage. The first block of each stage has stride 2, except in the first stage.
    pub depths: Vec<usize>,
    /// The first convolution.
    pub stem: Stem,
    /// Number of channels of the first convolution. `None` means as many as in the first stage, `widths[0]`.
    pub stem_width: Option<usize>,
    /// s, the shortcut of a block that changes the shape.
    pub shortcut: ShortcutKind,
    /// ε of the norms, added to the variance.
    pub norm_eps: f64,
    /// The weight of the newest batch in the running statistics of the norms.
    pub norm_momentum: f64,
    /// Whether the norms use their running statistics in training too, without updating them.
    pub frozen_norm: bool,
}

impl Default for ResNetConfig {
    fn default() -> Self {
        Self::resnet_50()
    }
}

/// The sizes of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convolution {
    pub input: usize,
    pub output: usize,
    pub kernel: usize,
    pub stride: usize,
}

impl Convolution {
    /// Returns the cost of the convolution and its norm for one image, if the result has `positions` positions.
    fn cost(&self, positions: usize) -> Cost {
        let values = self.input * self.kernel * self.kernel;
        Cost::linear(values, self.output, false).applied(positions) + batch_norm::cost(self.output)
    }
}

/// The place of a block in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of channels of x_i.
    pub input: usize,
    /// Number of channels of the 3 × 3 convolution.
    pub width: usize,
    /// Number of channels of x_{i+1}.
    pub output: usize,
    pub stride: usize,
    pub stage: usize,
}

impl Place {
    /// Whether x_i and x_{i+1} differ in shape.
    pub fn changes_shape(&self) -> bool {
        self.stride > 1 || self.input != self.output
    }

    /// Returns the number of positions of x_{i+1}, if x_i has this `size`.
    pub fn positions(&self, size: ImageSize) -> usize {
        size.height.div_ceil(self.stride) * size.width.div_ceil(self.stride)
    }

    /// Returns the convolutions of f.
    pub fn convolutions(&self, kind: BlockKind) -> impl Iterator<Item = Convolution> {
        let conv = |input, output, kernel, stride| Convolution {
            input,
            output,
            kernel,
            stride,
        };
        let &Self {
            input,
            width,
            output,
            stride,
            ..
        } = self;
        match kind {
            BlockKind::Basic => vec![conv(input, width, 3, stride), conv(width, output, 3, 1)],
            BlockKind::Bottleneck { .. } => vec![
                conv(input, width, 1, 1),
                conv(width, width, 3, stride),
                conv(width, output, 1, 1),
            ],
        }
        .into_iter()
    }

    /// Returns the projection in s, if s has one.
    pub fn projection(&self, shortcut: ShortcutKind) -> Option<Convolution> {
        (shortcut == ShortcutKind::Projection).then_some(Convolution {
            input: self.input,
            output: self.output,
            kernel: 1,
            stride: self.stride,
        })
    }
}

impl ResNetConfig {
    fn imagenet(block: BlockKind, depths: [usize; 4]) -> Self {
        Self {
            block,
            widths: vec![64, 128, 256, 512],
            depths: depths.into(),
            stem: Stem::ImageNet,
            stem_width: None,
            shortcut: ShortcutKind::Projection,
            norm_eps: 1e-5,
            norm_momentum: 0.1,
            frozen_norm: false,
        }
    }

    /// Returns the config of ResNet-18: 11.7M parameters with 1,000 classes.
    pub fn resnet_18() -> Self {
        Self::imagenet(BlockKind::Basic, [2, 2, 2, 2])
    }

    /// Returns the config of ResNet-50: 25.6M parameters with 1,000 classes.
    pub fn resnet_50() -> Self {
        Self::imagenet(BlockKind::Bottleneck { expansion: 4 }, [3, 4, 6, 3])
    }

    /// Returns the config of the ResNet with 6 n + 2 layers for CIFAR-10 (section 4.2): n is 3 for ResNet-20, 5 for
    /// ResNet-32 and 9 for ResNet-56.
    pub fn cifar(n: usize) -> Self {
        Self {
            block: BlockKind::Basic,
            widths: vec![16, 32, 64],
            depths: vec![n; 3],
            stem: Stem::Cifar,
            shortcut: ShortcutKind::Pad,
            ..Self::resnet_50()
        }
    }

    /// Returns the number of channels of the last stage.
    pub(crate) fn width(&self) -> usize {
        self.widths.last().map_or(0, |width| self.output(*width))
    }

    fn output(&self, width: usize) -> usize {
        match self.block {
            BlockKind::Basic => width,
            BlockKind::Bottleneck { expansion } => width * expansion,
        }
    }

    /// Returns the first convolution, for images with `channels` channels.
    pub(crate) fn stem(&self, channels: usize) -> Convolution {
        let first = self.widths.first().copied().unwrap_or(0);
        let (kernel, stride) = match self.stem {
            Stem::ImageNet => (7, 2),
            Stem::Cifar => (3, 1),
        };
        Convolution {
            input: channels,
            output: self.stem_width.unwrap_or(first),
            kernel,
            stride,
        }
    }

    /// Returns the blocks of each stage: the first block, which may change the shape; one of the other blocks, which
    /// are identical; and the number of these other blocks.
    fn stages(&self) -> Vec<(Place, Place, usize)> {
        let mut input = self.stem(0).output;
        let stages = self.widths.iter().zip(&self.depths).enumerate();
        let stages = stages.map(|(stage, (&width, &depth))| {
            let output = self.output(width);
            let first = Place {
                input,
                width,
                output,
                stride: if stage > 0 { 2 } else { 1 },
                stage,
            };
            let other = Place {
                input: output,
                stride: 1,
                ..first
            };
            input = output;
            (first, other, depth - 1)
        });
        stages.collect()
    }

    /// Returns the place of block `i`.
    fn place(&self, i: usize) -> Place {
        let mut before = 0;
        for (first, other, others) in self.stages() {
            if i == before {
                return first;
            }
            before += 1 + others;
            if i < before {
                return other;
            }
        }
        panic!("a ResNet of {before} blocks has no block {i}")
    }

    /// Returns the size of the images that the block at `place` reads.
    fn size(&self, image: ImageSize, place: &Place) -> ImageSize {
        let half = |image: ImageSize| ImageSize {
            channels: image.channels,
            height: image.height.div_ceil(2),
            width: image.width.div_ceil(2),
        };
        let stem = match self.stem {
            Stem::ImageNet => half(half(image)),
            Stem::Cifar => image,
        };
        let halved = place.stage - usize::from(place.stride > 1);
        (0..halved).fold(stem, |image, _| half(image))
    }
}

/// Returns the size of the images. All sizes are 0 if the data are token ids, which `reads` refuses.
fn image(frame: &Frame) -> ImageSize {
    frame.image.unwrap_or(ImageSize {
        channels: 0,
        height: 0,
        width: 0,
    })
}

impl Transfer for ResNetConfig {}

impl Architecture for ResNetConfig {
    type Block<B: Backend, C: Connection<B>> = Block<B, C>;
    type Embeddings<B: Backend> = ResNetEnds<B>;

    fn name(&self) -> &'static str {
        "ResNet"
    }

    fn positions(&self, layer: usize, _time: usize, frame: &Frame) -> usize {
        let place = self.place(layer);
        place.positions(self.size(image(frame), &place))
    }

    fn reads_images(&self) -> bool {
        true
    }

    fn has_statistics(&self) -> bool {
        !self.frozen_norm
    }

    fn shape(&self) -> Shape {
        Shape {
            context: 1,
            width: self.width(),
            n_layer: self.depths.iter().sum(),
            n_sublayer: 1,
            dropout: 0.0,
        }
    }

    /// A block that changes the shape ends the stream before it, and has its own stream.
    fn streams(&self) -> Vec<StreamSize> {
        let mut streams: Vec<StreamSize> = Vec::new();
        let mut add = |width, n_layer, alone: bool| match streams.last_mut() {
            Some(last) if !alone && !last.alone => last.n_layer += n_layer,
            _ => streams.push(StreamSize {
                width,
                n_layer,
                alone,
            }),
        };
        for (first, _, others) in self.stages() {
            add(first.output, 1, first.changes_shape());
            if others > 0 {
                add(first.output, others, false);
            }
        }
        streams
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let (widths, depths) = (self.widths.len(), self.depths.len());
        if widths == 0 || widths != depths {
            let problem = format!(
                "has length {depths}, but `widths` has length {widths}; give each stage a width and a depth"
            );
            return Err(ConfigError::new("depths", problem));
        }
        for (i, (width, depth)) in self.widths.iter().zip(&self.depths).enumerate() {
            check::at_least_one(&format!("widths.{i}"), *width)?;
            check::at_least_one(&format!("depths.{i}"), *depth)?;
            if let BlockKind::Bottleneck { expansion } = self.block {
                check::at_least_one("block.expansion", expansion)?;
                check::size(
                    &format!("widths.{i} · block.expansion"),
                    self.output(*width),
                )?;
            }
        }
        check::at_least_one("stem_width", self.stem(0).output)?;
        if self.shortcut == ShortcutKind::Pad
            && let Some((first, ..)) = self.stages().iter().find(|(p, ..)| p.output < p.input)
        {
            let problem = format!(
                "is Pad, which adds channels, but stage {} goes from {} channels to {}; use Projection",
                first.stage, first.input, first.output
            );
            return Err(ConfigError::new("shortcut", problem));
        }
        check::positive("norm_eps", self.norm_eps)?;
        match self.norm_momentum as f32 > 0.0 && self.norm_momentum <= 1.0 {
            true => Ok(()),
            false => Err(ConfigError::new(
                "norm_momentum",
                format!(
                    "is {}; it must be above 0 and at most 1",
                    self.norm_momentum
                ),
            )),
        }
    }

    fn embeddings<B: Backend>(
        &self,
        vocabulary: Vocabulary,
        frame: &Frame,
        device: &B::Device,
    ) -> ResNetEnds<B> {
        ResNetEnds::new(self, image(frame).channels, vocabulary.outputs, device)
    }

    fn block<B: Backend, C: Connection<B>>(
        &self,
        layer: usize,
        frame: &Frame,
        mut connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Block<B, C> {
        let place = self.place(layer);
        let image = self.size(image(frame), &place);
        Block::new(self, &place, image, connection(), device)
    }

    fn embeddings_cost(&self, vocabulary: Vocabulary, frame: &Frame) -> Cost {
        let image = image(frame);
        let stride = self.stem(0).stride;
        let positions = image.height.div_ceil(stride) * image.width.div_ceil(stride);
        let stem = self.stem(image.channels).cost(positions);
        let head = Cost::linear(self.width(), vocabulary.outputs, true);
        Cost {
            params: Params {
                unembedding: head.params.total(),
                other: stem.params.total(),
                ..Params::default()
            },
            ..stem + head
        }
    }

    /// Returns the cost per image.
    fn block_cost(&self, layer: usize, _time: usize, frame: &Frame) -> Cost {
        let place = self.place(layer);
        let size = self.size(image(frame), &place);
        let after = place.positions(size);
        let projection = place
            .changes_shape()
            .then(|| place.projection(self.shortcut));
        let projection = projection.flatten().map(|conv| conv.cost(after));
        let convs = place.convolutions(self.block).enumerate();
        let convs = convs.map(|(i, conv)| {
            // A 1 × 1 convolution before the convolution with the stride has the positions of x_i.
            let before = i == 0 && conv.stride < place.stride;
            conv.cost(if before {
                size.height * size.width
            } else {
                after
            })
        });
        convs.fold(projection.unwrap_or_default(), |sum, cost| sum + cost)
    }
}
