//! Generates images of shapes, to try image models without a data set.

use serde::{Deserialize, Serialize};

use crate::random::RandomNumbers;
use crate::{Cifar, DataError, Images};

/// The names of the classes.
pub(crate) const NAMES: [&str; 4] = ["disc", "square", "triangle", "cross"];

/// Maximum number of values of all training images together.
const MOST_VALUES: usize = 1 << 26;
/// Minimum number of images: one for each class.
const LEAST_IMAGES: usize = NAMES.len();

/// Images with one bright shape on a dark background, at any position and in several sizes, with noise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShapesConfig {
    /// Number of training images. There are a quarter as many validation images.
    pub images: usize,
    /// Height and width of an image, in pixels.
    pub size: usize,
    /// Maximum noise that is added to or subtracted from a value between 0 and 255.
    pub noise: u8,
}

impl Default for ShapesConfig {
    fn default() -> Self {
        Self {
            images: 2000,
            size: 16,
            noise: 16,
        }
    }
}

impl ShapesConfig {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::InvalidConfig`] for the first invalid field.
    pub fn validate(&self) -> Result<(), DataError> {
        let wrong = |field: &str, problem: String| {
            Err(DataError::InvalidConfig {
                field: format!("data.source.set.{field}"),
                problem,
            })
        };
        if self.images < LEAST_IMAGES {
            let problem = format!("is {}; it must be at least {LEAST_IMAGES}", self.images);
            return wrong("images", problem);
        }
        let largest = (MOST_VALUES / (3 * LEAST_IMAGES)).isqrt();
        if !(8..=largest).contains(&self.size) {
            let problem = format!("is {}; it must be from 8 to {largest}", self.size);
            return wrong("size", problem);
        }
        let area = self.size.saturating_mul(self.size);
        if area.saturating_mul(self.images).saturating_mul(3) > MOST_VALUES {
            let problem = format!(
                "is {}, which makes more than {MOST_VALUES} values at this size; lower it, or the size",
                self.images
            );
            return wrong("images", problem);
        }
        Ok(())
    }

    /// Draws all images.
    pub(crate) fn draw(&self) -> Cifar {
        let draw = |purpose: &str, count: usize| {
            let mut images = Images::empty(1, [3, self.size, self.size]);
            images.records.reserve_exact(count * images.record_size());
            for i in 0..count {
                let draws = RandomNumbers::new(purpose, 0, i as u64, 0);
                self.append(i % NAMES.len(), draws, &mut images.records);
            }
            images
        };
        Cifar {
            train: draw("residual-zoo-data shapes, training v1", self.images),
            test: draw("residual-zoo-data shapes, validation v1", self.images / 4),
        }
    }

    fn append(&self, class: usize, mut draws: RandomNumbers, record: &mut Vec<u8>) {
        let size = self.size;
        let radius = size / 4 + draws.below(size / 8 + 1);
        let centre = [(); 2].map(|()| radius + draws.below(size - 2 * radius));
        // A bright colour on a dark one.
        let ground = [(); 3].map(|()| draws.below(96));
        let shape = [(); 3].map(|()| 160 + draws.below(96));
        record.push(class as u8);
        for channel in 0..3 {
            for y in 0..size {
                for x in 0..size {
                    let inside = is_inside(class, [y, x], centre, radius);
                    let colour = if inside {
                        shape[channel]
                    } else {
                        ground[channel]
                    };
                    let noise = usize::from(self.noise);
                    let moved = (colour + draws.below(2 * noise + 1)).saturating_sub(noise);
                    record.push(moved.min(255) as u8);
                }
            }
        }
    }
}

/// Whether a point is part of the shape of this class.
fn is_inside(class: usize, point: [usize; 2], centre: [usize; 2], radius: usize) -> bool {
    let radius = radius as i64;
    let [y, x] = [0, 1].map(|i| point[i] as i64 - centre[i] as i64);
    let in_box = y.abs() <= radius && x.abs() <= radius;
    match class {
        0 => y * y + x * x <= radius * radius,
        1 => in_box,
        2 => in_box && 2 * x.abs() <= y + radius,
        _ => in_box && (y.abs() <= radius / 3 || x.abs() <= radius / 3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_the_same_every_time_and_their_classes_alternate() {
        let config = ShapesConfig {
            images: 16,
            ..ShapesConfig::default()
        };
        let Cifar { train, test } = config.draw();
        assert_eq!((train.len(), test.len()), (16, 4));
        let labels: Vec<usize> = (0..8).map(|i| train.label(i)).collect();
        assert_eq!(labels, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(train.blake3(), config.draw().train.blake3());
        assert_ne!(train.values(0), test.values(0));
    }

    #[test]
    fn the_areas_of_the_shapes_are_those_of_their_names() {
        let area = |class| {
            let points = (0..41).flat_map(|y| (0..41).map(move |x| [y, x]));
            points
                .filter(|point| is_inside(class, *point, [20, 20], 15))
                .count()
        };
        assert_eq!(area(1), 31 * 31);
        assert!((area(0) as f64 / (15.0f64 * 15.0 * std::f64::consts::PI) - 1.0).abs() < 0.02);
        assert_eq!(area(2), (0..31).map(|row| row / 2 * 2 + 1).sum::<usize>());
        assert_eq!(area(3), 2 * 31 * 11 - 11 * 11);
    }

    #[test]
    fn sizes_that_make_no_images_are_refused() {
        for (config, field) in [
            (
                ShapesConfig {
                    images: 3,
                    ..ShapesConfig::default()
                },
                "images",
            ),
            (
                ShapesConfig {
                    size: 7,
                    ..ShapesConfig::default()
                },
                "size",
            ),
            (
                ShapesConfig {
                    size: usize::MAX,
                    ..ShapesConfig::default()
                },
                "size",
            ),
            (
                ShapesConfig {
                    size: 2364,
                    ..ShapesConfig::default()
                },
                "images",
            ),
        ] {
            let error = config.validate().unwrap_err().to_string();
            assert!(
                error.contains(&format!("data.source.set.{field}")),
                "{error}"
            );
        }
    }
}
