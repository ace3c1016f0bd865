//! The input of a model.

use burn::tensor::{Int, Tensor, backend::Backend};

/// A batch that a model reads.
#[derive(Clone, Debug)]
pub enum Input<B: Backend> {
    /// Token ids, `[batch, time]`.
    Ids(Tensor<B, 2, Int>),
    /// Images, `[batch, channels, height, width]`.
    Images(Tensor<B, 4>),
}

impl<B: Backend> Input<B> {
    /// Returns the token ids.
    ///
    /// # Panics
    ///
    /// Panics if the batch holds images.
    pub fn into_ids(self) -> Tensor<B, 2, Int> {
        match self {
            Self::Ids(ids) => ids,
            Self::Images(images) => panic!("a text model got images {:?}", images.dims()),
        }
    }

    /// Returns the device of the tensor.
    pub fn device(&self) -> B::Device {
        match self {
            Self::Ids(ids) => ids.device(),
            Self::Images(images) => images.device(),
        }
    }
}

impl<B: Backend> From<Tensor<B, 2, Int>> for Input<B> {
    fn from(ids: Tensor<B, 2, Int>) -> Self {
        Self::Ids(ids)
    }
}

impl<B: Backend> From<Tensor<B, 4>> for Input<B> {
    fn from(images: Tensor<B, 4>) -> Self {
        Self::Images(images)
    }
}

/// The kind and the size of a model's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Token ids below this number.
    Ids(usize),
    /// Images of this size.
    Images(ImageSize),
}

/// The size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSize {
    /// Number of channels; 3 for colour.
    pub channels: usize,
    /// Number of rows.
    pub height: usize,
    /// Number of columns.
    pub width: usize,
}

impl From<[usize; 3]> for ImageSize {
    /// Converts `[channels, height, width]`.
    fn from([channels, height, width]: [usize; 3]) -> Self {
        Self {
            channels,
            height,
            width,
        }
    }
}

impl ImageSize {
    /// Returns the number of values in an image.
    pub fn values(&self) -> usize {
        self.channels * self.height * self.width
    }
}
