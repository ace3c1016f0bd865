//! Labelled images, for models that read them as they are.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::draws::Draws;
use crate::shapes::{self, ShapesConfig};
use crate::{Batch, Cifar, DataError, cifar};

/// Images to classify. A field that a file leaves out has its [`Default`] value, except `set`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagesConfig {
    /// The images.
    pub set: ImageSet,
    /// Training images get a black border of so many pixels, and a place of the original size is cut from them at random;
    /// 0 for none. He et al., "Deep residual learning for image recognition" (2015), section 4.2, have 4.
    #[serde(default)]
    pub crop: usize,
    /// Whether half of the training images are mirrored, left to right.
    #[serde(default)]
    pub flip: bool,
}

/// Where images come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum ImageSet {
    /// Shapes that are drawn on the spot. Need no file.
    Shapes(ShapesConfig),
    /// The directory of CIFAR-10's binary batches. The test batch is used for validation.
    Cifar10(PathBuf),
    /// The directory of CIFAR-100's binary files, with its 100 fine classes. The test file is used for validation.
    Cifar100(PathBuf),
}

impl ImageSet {
    /// The name of the set.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Shapes(_) => "drawn shapes",
            Self::Cifar10(_) => "CIFAR-10",
            Self::Cifar100(_) => "CIFAR-100",
        }
    }

    /// The same set in another directory; `None` if it needs none.
    pub fn at(&self, directory: PathBuf) -> Option<Self> {
        match self {
            Self::Shapes(_) => None,
            Self::Cifar10(_) => Some(Self::Cifar10(directory)),
            Self::Cifar100(_) => Some(Self::Cifar100(directory)),
        }
    }
}

/// The most pixels of border that a crop can have.
const MOST_BORDER: usize = 1024;

impl ImagesConfig {
    /// Checks every field without reading any file.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidConfig`].
    pub fn validate(&self) -> Result<(), DataError> {
        if self.crop > MOST_BORDER {
            return Err(DataError::InvalidConfig {
                field: "data.source.crop".into(),
                problem: format!("is {}; it must be at most {MOST_BORDER}", self.crop),
            });
        }
        match &self.set {
            ImageSet::Shapes(shapes) => shapes.validate(),
            _ => Ok(()),
        }
    }

    /// Channels, height and width of the images.
    pub fn size(&self) -> [usize; 3] {
        match &self.set {
            ImageSet::Shapes(shapes) => [3, shapes.size, shapes.size],
            _ => cifar::SIZE,
        }
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        match &self.set {
            ImageSet::Shapes(_) => shapes::NAMES.len(),
            ImageSet::Cifar10(_) => cifar::CLASSES,
            ImageSet::Cifar100(_) => cifar::FINE_CLASSES,
        }
    }

    /// The names of the classes.
    pub fn names(&self) -> Vec<String> {
        let names: &[&str] = match &self.set {
            ImageSet::Shapes(_) => &shapes::NAMES,
            ImageSet::Cifar10(_) => &cifar::NAMES,
            ImageSet::Cifar100(_) => {
                return (0..cifar::FINE_CLASSES)
                    .map(|i| format!("class-{i}"))
                    .collect();
            }
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Training and validation images.
    ///
    /// # Errors
    ///
    /// Those of [`Cifar::open`] and [`Cifar::open_100`].
    pub(crate) fn open(&self) -> Result<[Views; 2], DataError> {
        let Cifar { train, test } = match &self.set {
            ImageSet::Shapes(shapes) => shapes.draw(),
            ImageSet::Cifar10(directory) => Cifar::open(directory)?,
            ImageSet::Cifar100(directory) => Cifar::open_100(directory)?,
        };
        let normal = Normal::of(&train);
        let (crop, flip) = (self.crop, self.flip);
        let views = |images, crop, flip| Views {
            images: Arc::new(images),
            normal,
            crop,
            flip,
        };
        Ok([views(train, crop, flip), views(test, 0, false)])
    }
}

/// Labelled images of one size.
#[derive(Clone)]
pub struct Images {
    /// For each image `header` bytes, of which the last is its class, and its values: a plane of rows for each channel.
    pub(crate) records: Vec<u8>,
    pub(crate) header: usize,
    /// Channels, height and width.
    pub(crate) size: [usize; 3],
}

impl Images {
    /// No images yet.
    pub(crate) fn empty(header: usize, size: [usize; 3]) -> Self {
        Self {
            records: Vec::new(),
            header,
            size,
        }
    }

    /// Bytes of an image and what is before it.
    pub(crate) fn record_size(&self) -> usize {
        self.header + self.size.iter().product::<usize>()
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.records.len() / self.record_size()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The class of image `i`.
    ///
    /// # Panics
    ///
    /// If `i` is out of bounds.
    pub fn label(&self, i: usize) -> usize {
        self.record(i)[self.header - 1].into()
    }

    /// The values of image `i`, a plane of rows for each channel.
    ///
    /// # Panics
    ///
    /// If `i` is out of bounds.
    pub fn values(&self, i: usize) -> &[u8] {
        &self.record(i)[self.header..]
    }

    /// BLAKE3 of the records, as 64 hexadecimal digits.
    pub fn blake3(&self) -> String {
        blake3::hash(&self.records).to_string()
    }

    fn record(&self, i: usize) -> &[u8] {
        let size = self.record_size();
        &self.records[i * size..(i + 1) * size]
    }
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Images({})", self.len())
    }
}

/// Mean and standard deviation of each channel over the training images.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Normal {
    mean: [f32; 3],
    deviation: [f32; 3],
}

impl Normal {
    fn of(images: &Images) -> Self {
        let [_, height, width] = images.size;
        // Sums of whole numbers are the same in any order.
        let (mut sums, mut squares) = ([0u64; 3], [0u64; 3]);
        for i in 0..images.len() {
            for (channel, plane) in images.values(i).chunks_exact(height * width).enumerate() {
                sums[channel] += plane.iter().map(|&value| u64::from(value)).sum::<u64>();
                let square = |&value: &u8| u64::from(value) * u64::from(value);
                squares[channel] += plane.iter().map(square).sum::<u64>();
            }
        }
        let count = (images.len() * height * width).max(1) as f64;
        let mean = sums.map(|sum| sum as f64 / count);
        let mut deviation = [1.0; 3];
        for channel in 0..3 {
            let variance = squares[channel] as f64 / count - mean[channel] * mean[channel];
            // A channel of one value stays at 0.
            deviation[channel] = match variance.sqrt() {
                positive if positive > 0.0 => positive as f32,
                _ => 1.0,
            };
        }
        Self {
            mean: mean.map(|mean| mean as f32),
            deviation,
        }
    }
}

/// Images with what is done to them before a model reads them: training images are cropped and mirrored at random, all are
/// normalised by the mean and the standard deviation of each channel over the training images.
#[derive(Clone, Debug)]
pub struct Views {
    images: Arc<Images>,
    normal: Normal,
    crop: usize,
    flip: bool,
}

/// Where an image is cut from its padded form, and whether it is mirrored.
#[derive(Clone, Copy, Debug, PartialEq)]
struct View {
    row: usize,
    column: usize,
    mirrored: bool,
}

impl Views {
    /// The images as they are stored.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// Channels, height and width.
    pub fn size(&self) -> [usize; 3] {
        self.images.size
    }

    /// `batch` images drawn at random, each with a view of its own.
    pub(crate) fn random_batch(&self, mut draws: Draws, batch: usize) -> Batch {
        let border = 2 * self.crop + 1;
        let drawn = (0..batch).map(|_| {
            let i = draws.below(self.images.len());
            let view = View {
                row: draws.below(border),
                column: draws.below(border),
                mirrored: draws.below(2) == 1 && self.flip,
            };
            (i, view)
        });
        self.batch(drawn)
    }

    /// These images, as they are.
    pub(crate) fn plain_batch(&self, places: impl IntoIterator<Item = usize>) -> Batch {
        let view = View {
            row: self.crop,
            column: self.crop,
            mirrored: false,
        };
        self.batch(places.into_iter().map(|i| (i, view)))
    }

    fn batch(&self, drawn: impl Iterator<Item = (usize, View)>) -> Batch {
        let (mut values, mut targets) = (Vec::new(), Vec::new());
        for (i, view) in drawn {
            self.append(i, view, &mut values);
            targets.push(self.images.label(i) as u32);
        }
        Batch {
            batch: targets.len(),
            inputs: Vec::new(),
            images: Some(ImageBatch {
                values,
                size: self.images.size,
            }),
            targets,
            time: 1,
            scored: 1,
        }
    }

    /// Appends the normalised values of a view of image `i`.
    fn append(&self, i: usize, view: View, values: &mut Vec<f32>) {
        let [_, height, width] = self.images.size;
        let planes = self.images.values(i).chunks_exact(height * width);
        for (channel, plane) in planes.enumerate() {
            let normal = |value: u8| {
                (f32::from(value) - self.normal.mean[channel]) / self.normal.deviation[channel]
            };
            for y in 0..height {
                // Rows and columns of the border are black.
                let row = (y + view.row)
                    .checked_sub(self.crop)
                    .filter(|row| *row < height);
                values.extend((0..width).map(|x| {
                    let x = if view.mirrored { width - 1 - x } else { x };
                    let column = (x + view.column).checked_sub(self.crop);
                    let column = column.filter(|column| *column < width);
                    match (row, column) {
                        (Some(row), Some(column)) => normal(plane[row * width + column]),
                        _ => normal(0),
                    }
                }));
            }
        }
    }
}

/// The images of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageBatch {
    /// Normalised values, \[batch · channels · height · width\].
    pub values: Vec<f32>,
    /// Channels, height and width.
    pub size: [usize; 3],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two images of 3 × 2 × 4 values; that at (channel, row, column) of image i is 24 i + 8 channel + 4 row + column.
    fn pictures(crop: usize, flip: bool) -> Views {
        let mut images = Images::empty(1, [3, 2, 4]);
        for i in 0..2u8 {
            images.records.push(5 + i);
            images.records.extend((0..24).map(|value| 24 * i + value));
        }
        Views {
            images: Arc::new(images),
            normal: Normal {
                mean: [0.0; 3],
                deviation: [1.0; 3],
            },
            crop,
            flip,
        }
    }

    fn draws(step: u64) -> Draws {
        Draws::new("a test", 1, step, 0)
    }

    #[test]
    fn a_plain_batch_has_the_values_of_its_images() {
        let batch = pictures(3, true).plain_batch([1, 0]);
        assert_eq!(batch.targets, [6, 5]);
        assert_eq!((batch.batch, batch.time, batch.scored), (2, 1, 1));
        let images = batch.images.unwrap();
        let expected: Vec<f32> = (24..48).chain(0..24).map(|value| value as f32).collect();
        assert_eq!((images.values, images.size), (expected, [3, 2, 4]));
    }

    #[test]
    fn a_view_is_a_part_of_the_image_with_a_black_border() {
        let mut values = Vec::new();
        let view = View {
            row: 0,
            column: 2,
            mirrored: false,
        };
        pictures(1, false).append(0, view, &mut values);
        // One row up and one column to the right of the original place.
        assert_eq!(values[..8], [0., 0., 0., 0., 1., 2., 3., 0.]);
        values.clear();
        let mirrored = View {
            mirrored: true,
            ..view
        };
        pictures(1, false).append(0, mirrored, &mut values);
        assert_eq!(values[..8], [0., 0., 0., 0., 0., 3., 2., 1.]);
    }

    #[test]
    fn random_batches_are_a_function_of_the_draws_and_show_every_view() {
        let pictures = pictures(1, true);
        let batch = |step| pictures.random_batch(draws(step), 4);
        assert_eq!(batch(1), batch(1));
        assert_ne!(batch(1), batch(2));
        // A smaller batch is the beginning of a larger one.
        let larger = pictures.random_batch(draws(1), 7);
        assert_eq!(larger.targets[..4], batch(1).targets);
        let mut views: Vec<Vec<u8>> = (0..400)
            .flat_map(|step| {
                let images = batch(step).images.unwrap();
                let images = images
                    .values
                    .chunks_exact(24)
                    .map(|values| values.iter().map(|value| *value as u8).collect());
                images.collect::<Vec<Vec<u8>>>()
            })
            .collect();
        views.sort();
        views.dedup();
        // 2 images, 3 × 3 places, mirrored or not.
        assert_eq!(views.len(), 36);
    }

    #[test]
    fn channels_have_mean_0_and_variance_1_over_the_training_images() {
        let shapes = ImagesConfig {
            set: ImageSet::Shapes(ShapesConfig {
                images: 64,
                ..ShapesConfig::default()
            }),
            crop: 0,
            flip: false,
        };
        let [train, _] = shapes.open().unwrap();
        let all = train.plain_batch(0..64).images.unwrap();
        let plane = all.size[1] * all.size[2];
        for channel in 0..3 {
            let planes = all.values.chunks_exact(plane).skip(channel).step_by(3);
            let values: Vec<f64> = planes.flatten().map(|value| f64::from(*value)).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let square = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
            assert!(
                mean.abs() < 1e-4 && (square - 1.0).abs() < 1e-3,
                "{mean} {square}"
            );
        }
    }

    #[test]
    fn images_of_one_colour_are_normalised_to_zero() {
        let mut images = Images::empty(1, [3, 1, 1]);
        images.records = vec![0, 7, 7, 7, 1, 7, 7, 7];
        let normal = Normal::of(&images);
        assert_eq!((normal.mean, normal.deviation), ([7.0; 3], [1.0; 3]));
    }
}
