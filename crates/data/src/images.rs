//! Labelled images, for models that read images.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder as _};
use serde::{Deserialize, Serialize};

use crate::augment::RandAugment;
use crate::folder::{self, FolderConfig, Opened};
use crate::progress::OnProgress;
use crate::seen_images::{Pictures, SeenImages};
use crate::shapes::{self, ShapesConfig};
use crate::{Cifar, DataError, cifar};

/// Images to classify. `set` is required. Other fields that the run file omits have their [`Default`] values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagesConfig {
    /// The images.
    pub set: ImageSet,
    /// Width, in pixels, of a black border that is added to training images; 0 for none. A region of the original size
    /// is then cropped at random. He et al., "Deep residual learning for image recognition" (2015), section 4.2, use 4.
    #[serde(default)]
    pub crop: usize,
    /// Whether each training image is mirrored, left to right, with probability ½.
    #[serde(default)]
    pub flip: bool,
    /// RandAugment operations on training images; `None` for none.
    #[serde(default)]
    pub rand_augment: Option<RandAugment>,
    /// Probability that a rectangle of 2 to 33 % of a training image is filled with the mean colour by which images are
    /// normalised (Zhong et al., "Random erasing data augmentation", 2017).
    #[serde(default)]
    pub erasing: f64,
    /// α of mixup (Zhang et al., 2017); 0 for none. Each training image and its label are mixed with another image of
    /// the batch and its label, with the weights λ and 1 − λ. λ is drawn from Beta(α, α) once per batch.
    #[serde(default)]
    pub mixup: f64,
    /// α of CutMix (Yun et al., 2019); 0 for none. Like mixup, but a rectangle of each training image is replaced by
    /// the same rectangle of another image. If `mixup` is set too, each batch uses one of the two methods, each with
    /// probability ½.
    #[serde(default)]
    pub cutmix: f64,
}

impl ImagesConfig {
    /// Returns the config for the images of `set` without augmentation.
    pub fn of(set: ImageSet) -> Self {
        Self {
            set,
            crop: 0,
            flip: false,
            rand_augment: None,
            erasing: 0.0,
            mixup: 0.0,
            cutmix: 0.0,
        }
    }
}

/// A source of images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum ImageSet {
    /// Generated images of shapes. They need no file.
    Shapes(ShapesConfig),
    /// The directory of CIFAR-10's binary batches. The test batch is used for validation.
    Cifar10(PathBuf),
    /// The directory of CIFAR-100's binary files, with its 100 fine classes. The test file is used for validation.
    Cifar100(PathBuf),
    /// A directory in ImageNet's layout.
    Folder(FolderConfig),
}

impl ImageSet {
    /// Returns the name of the set.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Shapes(_) => "drawn shapes",
            Self::Cifar10(_) => "CIFAR-10",
            Self::Cifar100(_) => "CIFAR-100",
            Self::Folder(_) => "a directory of images",
        }
    }

    /// Returns the directory; `None` if the set needs none.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Shapes(_) => None,
            Self::Cifar10(path) | Self::Cifar100(path) => Some(path),
            Self::Folder(folder) => Some(&folder.path),
        }
    }

    /// Returns the same set in another directory; `None` if it needs no directory.
    pub fn at(&self, directory: PathBuf) -> Option<Self> {
        match self {
            Self::Shapes(_) => None,
            Self::Cifar10(_) => Some(Self::Cifar10(directory)),
            Self::Cifar100(_) => Some(Self::Cifar100(directory)),
            Self::Folder(folder) => Some(Self::Folder(FolderConfig {
                path: directory,
                ..folder.clone()
            })),
        }
    }
}

/// Allowed values, other than 0, for the α of mixup and CutMix.
const ALPHAS: std::ops::RangeInclusive<f64> = 0.05..=4.0;
/// Maximum width of the border, in pixels.
const MOST_BORDER: usize = 1024;

impl ImagesConfig {
    /// Checks every field without reading any file.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::InvalidConfig`] for the first invalid field.
    pub fn validate(&self) -> Result<(), DataError> {
        let wrong = |field: &str, problem: String| {
            Err(DataError::InvalidConfig {
                field: format!("data.source.{field}"),
                problem,
            })
        };
        if self.crop > MOST_BORDER {
            return wrong(
                "crop",
                format!("is {}; it must be at most {MOST_BORDER}", self.crop),
            );
        }
        if let Some(rand_augment) = &self.rand_augment {
            rand_augment.validate()?;
        }
        if !(0.0..=1.0).contains(&self.erasing) {
            return wrong(
                "erasing",
                format!("is {}; it must be between 0 and 1", self.erasing),
            );
        }
        for (field, alpha) in [("mixup", self.mixup), ("cutmix", self.cutmix)] {
            if alpha != 0.0 && !ALPHAS.contains(&alpha) {
                let (least, most) = (ALPHAS.start(), ALPHAS.end());
                return wrong(
                    field,
                    format!("is {alpha}; it must be 0 or between {least} and {most}"),
                );
            }
        }
        match &self.set {
            ImageSet::Shapes(shapes) => shapes.validate(),
            ImageSet::Folder(folder) => folder.validate(),
            _ => Ok(()),
        }
    }

    /// Returns the channels, height and width of the images.
    pub fn size(&self) -> [usize; 3] {
        match &self.set {
            ImageSet::Shapes(shapes) => [3, shapes.size, shapes.size],
            ImageSet::Folder(folder) => [3, folder.size, folder.size],
            _ => cifar::SIZE,
        }
    }

    /// Returns the number of classes.
    pub fn classes(&self) -> usize {
        match &self.set {
            ImageSet::Shapes(_) => shapes::NAMES.len(),
            ImageSet::Cifar10(_) => cifar::CLASSES,
            ImageSet::Cifar100(_) => cifar::FINE_CLASSES,
            ImageSet::Folder(folder) => folder.classes,
        }
    }

    /// Opens training and validation images.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Cifar::open`], [`Cifar::open_100`] and [`folder::open`].
    pub(crate) fn open(&self, progress: OnProgress) -> Result<OpenedImages, DataError> {
        let in_memory = |Cifar { train, test }, names: &[&str]| {
            let normal = Normal::of(&train);
            let pictures = [train, test].map(|images| Pictures::Memory(Arc::new(images)));
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            (normal, pictures, names, None)
        };
        let (normal, pictures, names, note) = match &self.set {
            ImageSet::Shapes(shapes) => in_memory(shapes.draw(), &shapes::NAMES),
            ImageSet::Cifar10(directory) => in_memory(Cifar::open(directory)?, &cifar::NAMES),
            ImageSet::Cifar100(directory) => {
                in_memory(Cifar::open_100(directory)?, &cifar::FINE_NAMES)
            }
            ImageSet::Folder(config) => {
                let Opened {
                    train,
                    valid,
                    names,
                    note,
                } = folder::open(config, progress)?;
                let pictures = [train, valid].map(|part| Pictures::Files(Arc::new(part)));
                (Normal::IMAGENET, pictures, names, note)
            }
        };
        let [train, valid] = pictures;
        let views = |pictures, changes| SeenImages {
            pictures,
            normal,
            changes,
        };
        Ok(OpenedImages {
            train: views(train, self.clone()),
            valid: views(valid, Self::of(self.set.clone())),
            names,
            note,
        })
    }
}

/// Opened images.
pub(crate) struct OpenedImages {
    pub train: SeenImages,
    pub valid: SeenImages,
    /// The names of the classes.
    pub names: Vec<String>,
    /// One line for the user about skipped files.
    pub note: Option<String>,
}

/// Labelled images of one size.
#[derive(Clone)]
pub struct Images {
    /// The records. Each record begins with a header of `header` bytes, and the last byte of the header is the class.
    /// The values of the image follow, as one plane of rows per channel.
    pub(crate) records: Vec<u8>,
    pub(crate) header: usize,
    /// Channels, height and width.
    pub(crate) size: [usize; 3],
}

impl Images {
    /// Makes an empty set of images.
    pub(crate) fn empty(header: usize, size: [usize; 3]) -> Self {
        Self {
            records: Vec::new(),
            header,
            size,
        }
    }

    /// Returns the number of bytes of an image with its header.
    pub(crate) fn record_size(&self) -> usize {
        self.header + self.size.iter().product::<usize>()
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.records.len() / self.record_size()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the class of image `i`.
    ///
    /// # Panics
    ///
    /// Panics if `i` is out of bounds.
    pub fn label(&self, i: usize) -> usize {
        self.record(i)[self.header - 1].into()
    }

    /// Returns the values of image `i`, one plane of rows per channel.
    ///
    /// # Panics
    ///
    /// Panics if `i` is out of bounds.
    pub fn values(&self, i: usize) -> &[u8] {
        &self.record(i)[self.header..]
    }

    /// Returns the BLAKE3 hash of the records, as 64 hexadecimal digits.
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

/// Returns an image of these planes as a PNG file. Three channels are red, green and blue; a single channel is grey.
pub(crate) fn png(planes: &[u8], [channels, height, width]: [usize; 3]) -> Vec<u8> {
    let plane = height * width;
    let values =
        (0..plane).flat_map(|at| (0..channels).map(move |channel| planes[channel * plane + at]));
    let values: Vec<u8> = values.collect();
    let color = match channels {
        1 => ExtendedColorType::L8,
        _ => ExtendedColorType::Rgb8,
    };
    let mut file = Vec::new();
    let written =
        PngEncoder::new(&mut file).write_image(&values, width as u32, height as u32, color);
    written.unwrap_or_else(|e| unreachable!("an image of its own size in memory: {e}"));
    file
}

/// Mean and standard deviation of each channel over the training images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Normal {
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
}

impl Normal {
    /// ImageNet's statistics, as in torchvision, times 255. They are used for [`ImageSet::Folder`], which can have too
    /// many images to read beforehand.
    const IMAGENET: Self = Self {
        mean: [123.675, 116.28, 103.53],
        deviation: [58.395, 57.12, 57.375],
    };

    fn of(images: &Images) -> Self {
        let [_, height, width] = images.size;
        // Sums of integers do not depend on the order.
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
            // A constant channel is normalised to 0.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_mean_0_and_variance_1_over_the_training_images() {
        let shapes = ImagesConfig::of(ImageSet::Shapes(ShapesConfig {
            images: 64,
            ..ShapesConfig::default()
        }));
        let train = shapes.open(&mut |_, _, _| true).unwrap().train;
        let all = train.plain_batch(0..64).unwrap().images.unwrap();
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
