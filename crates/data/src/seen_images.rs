//! Augments and normalises images before a model reads them.

use std::borrow::Cow;
use std::sync::Arc;

use rayon::prelude::*;

use crate::augment::{self, Mixing};
use crate::folder::Folder;
use crate::images::Normal;
use crate::random::RandomNumbers;
use crate::{Batch, DataError, Images, ImagesConfig};

/// Images as a model reads them. Training images are augmented at random. All images are normalised by a mean and a
/// standard deviation per channel.
#[derive(Clone, Debug)]
pub struct SeenImages {
    pub(crate) pictures: Pictures,
    pub(crate) normal: Normal,
    /// The random changes to training images.
    pub(crate) changes: ImagesConfig,
}

/// The images, in memory or in files.
#[derive(Clone, Debug)]
pub(crate) enum Pictures {
    Memory(Arc<Images>),
    Files(Arc<Folder>),
}

/// The position of a view in the padded image, and whether the view is mirrored.
#[derive(Clone, Copy, Debug, PartialEq)]
struct View {
    row: usize,
    column: usize,
    mirrored: bool,
}

impl SeenImages {
    /// Returns the number of images.
    pub fn len(&self) -> usize {
        match &self.pictures {
            Pictures::Memory(images) => images.len(),
            Pictures::Files(folder) => folder.len(),
        }
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns channels, height and width.
    pub fn size(&self) -> [usize; 3] {
        match &self.pictures {
            Pictures::Memory(images) => images.size,
            Pictures::Files(folder) => [3, folder.size(), folder.size()],
        }
    }

    /// Returns the class of image `i`.
    ///
    /// # Panics
    ///
    /// Panics if `i` is out of bounds.
    pub fn label(&self, i: usize) -> usize {
        match &self.pictures {
            Pictures::Memory(images) => images.label(i),
            Pictures::Files(folder) => folder.label(i),
        }
    }

    /// Returns a BLAKE3 hash as 64 hexadecimal digits: of the images in memory, or of the names and lengths of the
    /// image files.
    pub fn blake3(&self) -> String {
        match &self.pictures {
            Pictures::Memory(images) => images.blake3(),
            Pictures::Files(folder) => folder.blake3(),
        }
    }

    /// Whether a batch should be read while the previous batch is in use. True if reading is slow, and Rayon's pool has
    /// a thread that can read while another thread waits.
    pub(crate) fn are_read_ahead(&self) -> bool {
        matches!(self.pictures, Pictures::Files(_)) && rayon::current_num_threads() > 1
    }

    /// Returns `batch` random images for micro-batch `at` (seed, step, micro-batch), each with a view of its own.
    ///
    /// # Errors
    ///
    /// Returns an error if a file was deleted or is damaged, and [`DataError::Stopped`] if the user stops the process.
    pub(crate) fn random_batch(
        &self,
        at: (u64, u64, u64),
        batch: usize,
    ) -> Result<Batch, DataError> {
        let (seed, step, micro) = at;
        let mut draws = RandomNumbers::new("residual-zoo-data views v1", seed, step, micro);
        let ImagesConfig {
            crop,
            flip,
            mixup,
            cutmix,
            ..
        } = self.changes;
        let border = 2 * crop + 1;
        let drawn = (0..batch as u64).map(|place| {
            let i = draws.below(self.len());
            let view = View {
                row: draws.below(border),
                column: draws.below(border),
                mirrored: draws.below(2) == 1 && flip,
            };
            // Changes that need a varying number of random numbers use one generator per image.
            (
                i,
                view,
                Some(RandomNumbers::of_example(
                    "residual-zoo-data augmentation v1",
                    at,
                    place,
                )),
            )
        });
        let mut batch = self.batch(drawn.collect())?;
        if (mixup > 0.0 || cutmix > 0.0)
            && let Some(images) = &mut batch.images
        {
            let [_, height, width] = images.size;
            let mut draws = RandomNumbers::new("residual-zoo-data mixing v1", seed, step, micro);
            let mixing = Mixing::draw(mixup, cutmix, [height, width], &mut draws);
            images.mixed = Some(Mixed {
                share: mixing.apply(&mut images.values, images.size),
                others: batch.targets.iter().rev().copied().collect(),
            });
        }
        Ok(batch)
    }

    /// Returns the images with the indices `places`, without augmentation.
    ///
    /// # Errors
    ///
    /// Returns an error if a file was deleted or is damaged, and [`DataError::Stopped`] if the user stops the process.
    pub(crate) fn plain_batch(
        &self,
        places: impl IntoIterator<Item = usize>,
    ) -> Result<Batch, DataError> {
        let view = View {
            row: self.changes.crop,
            column: self.changes.crop,
            mirrored: false,
        };
        self.batch(places.into_iter().map(|i| (i, view, None)).collect())
    }

    fn batch(&self, drawn: Vec<(usize, View, Option<RandomNumbers>)>) -> Result<Batch, DataError> {
        let targets: Vec<u32> = drawn.iter().map(|(i, ..)| self.label(*i) as u32).collect();
        let size = self.size();
        let each = size.iter().product();
        let mut values = vec![0.0; targets.len() * each];
        let images = values.par_chunks_exact_mut(each).zip(drawn);
        images.try_for_each(|(values, (i, view, draws))| self.write(i, view, draws, values))?;
        Ok(Batch {
            batch: targets.len(),
            inputs: Vec::new(),
            images: Some(ImageBatch {
                values,
                size,
                mixed: None,
            }),
            targets,
            time: 1,
            scored: 1,
        })
    }

    /// Returns the values of image `i`, one plane of rows per channel. With `draws`, an image from a file is cropped at
    /// random; without `draws`, it is cropped to its centre.
    pub(crate) fn pixels(
        &self,
        i: usize,
        draws: Option<&mut RandomNumbers>,
    ) -> Result<Cow<'_, [u8]>, DataError> {
        Ok(match &self.pictures {
            Pictures::Memory(images) => Cow::Borrowed(images.values(i)),
            Pictures::Files(folder) => Cow::Owned(folder.pixels(i, draws)?),
        })
    }

    /// Writes the normalised values of image `i`. `draws` determine the changes that `view` does not determine.
    fn write(
        &self,
        i: usize,
        view: View,
        mut draws: Option<RandomNumbers>,
        values: &mut [f32],
    ) -> Result<(), DataError> {
        let pixels = self.pixels(i, draws.as_mut())?;
        let [_, _, width] = self.size();
        let mut planes = self.view(&pixels, view);
        if let (Some(rand_augment), Some(draws)) = (&self.changes.rand_augment, &mut draws) {
            rand_augment.apply(&mut planes, width, draws);
        }
        let plane = planes.len() / 3;
        for (at, (value, to)) in planes.iter().zip(values.iter_mut()).enumerate() {
            let channel = at / plane;
            *to = (f32::from(*value) - self.normal.mean[channel]) / self.normal.deviation[channel];
        }
        if let Some(draws) = &mut draws
            && draws.unit() < self.changes.erasing
        {
            augment::erase(values, width, draws);
        }
        Ok(())
    }

    /// Returns the planes of a view of an image.
    fn view(&self, pixels: &[u8], view: View) -> Vec<u8> {
        let ([_, height, width], crop) = (self.size(), self.changes.crop);
        let mut seen = Vec::with_capacity(pixels.len());
        for plane in pixels.chunks_exact(height * width) {
            for y in 0..height {
                // Rows and columns of the border are black.
                let row = (y + view.row).checked_sub(crop).filter(|row| *row < height);
                seen.extend((0..width).map(|x| {
                    let x = if view.mirrored { width - 1 - x } else { x };
                    let column = (x + view.column).checked_sub(crop);
                    match (row, column.filter(|column| *column < width)) {
                        (Some(row), Some(column)) => plane[row * width + column],
                        _ => 0,
                    }
                }));
            }
        }
        seen
    }
}

/// The images of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageBatch {
    /// Normalised values, \[batch · channels · height · width\].
    pub values: Vec<f32>,
    /// Channels, height and width.
    pub size: [usize; 3],
    /// The targets and the share of the mix; `None` if the images were not mixed.
    pub mixed: Option<Mixed>,
}

/// The targets of the images that were mixed into a batch, and the share of an image's own target.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// The targets of the other images, \[batch\].
    pub others: Vec<u32>,
    /// λ, the share of an image's own target. The target of the other image has the share 1 − λ.
    pub share: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ImageSet, RandAugment};

    /// Makes two images of 3 × 2 × 4 values. The value at (channel, row, column) of image i is
    /// 24 i + 8 channel + 4 row + column.
    fn pictures(crop: usize, flip: bool) -> SeenImages {
        let mut images = Images::empty(1, [3, 2, 4]);
        for i in 0..2u8 {
            images.records.push(5 + i);
            images.records.extend((0..24).map(|value| 24 * i + value));
        }
        SeenImages {
            pictures: Pictures::Memory(Arc::new(images)),
            normal: Normal {
                mean: [0.0; 3],
                deviation: [1.0; 3],
            },
            changes: ImagesConfig {
                crop,
                flip,
                ..ImagesConfig::of(ImageSet::Cifar10("".into()))
            },
        }
    }

    #[test]
    fn a_plain_batch_has_the_values_of_its_images() {
        let batch = pictures(3, true).plain_batch([1, 0]).unwrap();
        assert_eq!(batch.targets, [6, 5]);
        assert_eq!((batch.batch, batch.time, batch.scored), (2, 1, 1));
        let images = batch.images.unwrap();
        let expected: Vec<f32> = (24..48).chain(0..24).map(|value| value as f32).collect();
        assert_eq!((images.values, images.size), (expected, [3, 2, 4]));
    }

    #[test]
    fn a_view_is_a_part_of_the_image_with_a_black_border() {
        let pixels: Vec<u8> = (0..24).collect();
        let view = View {
            row: 0,
            column: 2,
            mirrored: false,
        };
        let shown = pictures(1, false);
        // The view is one row up and one column to the right of the original position.
        assert_eq!(shown.view(&pixels, view)[..8], [0, 0, 0, 0, 1, 2, 3, 0]);
        let mirrored = View {
            mirrored: true,
            ..view
        };
        assert_eq!(shown.view(&pixels, mirrored)[..8], [0, 0, 0, 0, 0, 3, 2, 1]);
    }

    #[test]
    fn mixed_images_have_the_targets_of_both_in_their_shares() {
        let plain = pictures(0, false);
        let mut mixed = plain.clone();
        mixed.changes.mixup = 0.8;
        for step in 0..20 {
            let [plain, mixed] =
                [&plain, &mixed].map(|views| views.random_batch((1, step, 0), 4).unwrap());
            assert_eq!(plain.targets, mixed.targets);
            let (own, images) = (plain.images.unwrap().values, mixed.images.unwrap());
            let Mixed { others, share } = images.mixed.unwrap();
            let reversed: Vec<u32> = plain.targets.iter().rev().copied().collect();
            assert_eq!(others, reversed);
            for (i, image) in images.values.chunks(24).enumerate() {
                let of = |i: usize| &own[24 * i..24 * (i + 1)];
                for ((found, a), b) in image.iter().zip(of(i)).zip(of(3 - i)) {
                    let expected = share * f64::from(*a) + (1.0 - share) * f64::from(*b);
                    assert!((f64::from(*found) - expected).abs() < 1e-4);
                }
            }
        }
    }

    #[test]
    fn every_change_is_a_function_of_the_seed_the_step_and_the_place() {
        let mut views = pictures(1, true);
        views.changes.erasing = 0.5;
        views.changes.rand_augment = Some(RandAugment::default());
        views.changes.cutmix = 1.0;
        let batch = |seed, step, micro| views.random_batch((seed, step, micro), 8).unwrap();
        assert_eq!(batch(1, 2, 3), batch(1, 2, 3));
        for other in [batch(2, 2, 3), batch(1, 3, 3), batch(1, 2, 4)] {
            assert_ne!(other.images, batch(1, 2, 3).images);
        }
        // Validation images stay as they are.
        assert_eq!(
            views.plain_batch([0, 1]).unwrap(),
            pictures(0, false).plain_batch([0, 1]).unwrap()
        );
    }

    #[test]
    fn random_batches_are_a_function_of_the_draws_and_show_every_view() {
        let pictures = pictures(1, true);
        let batch = |step| pictures.random_batch((1, step, 0), 4).unwrap();
        assert_eq!(batch(1), batch(1));
        assert_ne!(batch(1), batch(2));
        // A smaller batch is the beginning of a larger one.
        let larger = pictures.random_batch((1, 1, 0), 7).unwrap();
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
        // 2 images, 3 × 3 positions, mirrored or not.
        assert_eq!(views.len(), 36);
    }
}
