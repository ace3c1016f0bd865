//! Random augmentations of training images, in addition to crops and mirroring.

use serde::{Deserialize, Serialize};

use crate::DataError;
use crate::random::RandomNumbers;

/// RandAugment (Cubuk et al., 2020): operations drawn from a fixed list, all of about the same strength.
///
/// The list and the strengths follow timm's "increasing" policy, which MAE's training recipe uses (He et al., 2022).
/// Each drawn operation is applied with probability ½.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandAugment {
    /// Number of operations drawn for an image.
    pub operations: usize,
    /// The mean strength of the operations, from 0 to 10.
    pub magnitude: f64,
    /// Standard deviation of the normal distribution from which the strength is drawn. Drawn strengths are clipped to
    /// the range from 0 to 10.
    pub deviation: f64,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self {
            operations: 2,
            magnitude: 9.0,
            deviation: 0.5,
        }
    }
}

/// Maximum number of operations per image.
const MOST_OPERATIONS: usize = 100;
/// Maximum strength.
const STRONGEST: f64 = 10.0;
/// The colour of pixels outside an image: ImageNet's mean colour.
const OUTSIDE: [u8; 3] = [124, 116, 104];

impl RandAugment {
    pub(crate) fn validate(&self) -> Result<(), DataError> {
        let wrong = |field: &str, problem: String| {
            Err(DataError::InvalidConfig {
                field: format!("data.source.rand_augment.{field}"),
                problem,
            })
        };
        let Self {
            operations,
            magnitude,
            deviation,
        } = *self;
        if operations == 0 || operations > MOST_OPERATIONS {
            let problem = format!("is {operations}; it must be between 1 and {MOST_OPERATIONS}");
            return wrong("operations", problem);
        }
        for (field, value) in [("magnitude", magnitude), ("deviation", deviation)] {
            if !(0.0..=STRONGEST).contains(&value) {
                return wrong(
                    field,
                    format!("is {value}; it must be between 0 and {STRONGEST}"),
                );
            }
        }
        Ok(())
    }

    /// Applies randomly drawn operations to an image, given as its red, green and blue `planes` of this `width`.
    pub(crate) fn apply(&self, planes: &mut Vec<u8>, width: usize, draws: &mut RandomNumbers) {
        for _ in 0..self.operations {
            let operation = ALL[draws.below(ALL.len())];
            let magnitude = self.magnitude + self.deviation * draws.normal();
            let strength = magnitude.clamp(0.0, STRONGEST) / STRONGEST;
            let sign = if draws.below(2) == 0 { 1.0 } else { -1.0 };
            if draws.below(2) == 0 {
                operation.apply(planes, width, strength, sign);
            }
        }
    }
}

/// An image operation, as in Pillow. `AutoContrast`, `Equalize` and `Invert` have no strength; all other operations use
/// a strength between 0 and 1. Operations with two directions also use a sign.
#[derive(Clone, Copy, Debug)]
enum Operation {
    AutoContrast,
    Equalize,
    Invert,
    Posterize,
    Solarize,
    SolarizeAdd,
    Color,
    Contrast,
    Brightness,
    Sharpness,
    Rotate,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
}

use Operation::*;

const ALL: [Operation; 15] = [
    AutoContrast,
    Equalize,
    Invert,
    Posterize,
    Solarize,
    SolarizeAdd,
    Color,
    Contrast,
    Brightness,
    Sharpness,
    Rotate,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
];

impl Operation {
    fn apply(self, planes: &mut Vec<u8>, width: usize, strength: f64, sign: f64) {
        let plane = planes.len() / 3;
        let height = plane / width;
        let each = |planes: &mut Vec<u8>, change: &dyn Fn(u8) -> u8| {
            planes.iter_mut().for_each(|x| *x = change(*x))
        };
        // A factor of 1 leaves the image unchanged.
        let factor = 1.0 + sign * 0.9 * strength;
        match self {
            AutoContrast => planes.chunks_exact_mut(plane).for_each(auto_contrast),
            Equalize => planes.chunks_exact_mut(plane).for_each(equalize),
            Invert => each(planes, &|x| 255 - x),
            Posterize => {
                let dropped = 4 + (4.0 * strength) as u32;
                each(planes, &|x| (u32::from(x) >> dropped << dropped) as u8);
            }
            Solarize => {
                let threshold = 256 - (256.0 * strength) as i32;
                each(planes, &|x| {
                    if i32::from(x) < threshold { x } else { 255 - x }
                });
            }
            SolarizeAdd => {
                let more = (110.0 * strength) as u8;
                each(planes, &|x| {
                    if x < 128 { x.saturating_add(more) } else { x }
                });
            }
            Color => {
                let grey = grey(planes);
                let blended = planes
                    .iter()
                    .enumerate()
                    .map(|(i, x)| blend(grey[i % plane], *x, factor));
                *planes = blended.collect();
            }
            Contrast => {
                let grey = grey(planes);
                let mean = grey.iter().map(|x| f64::from(*x)).sum::<f64>() / plane as f64;
                let mean = (mean + 0.5) as u8;
                each(planes, &|x| blend(mean, x, factor));
            }
            Brightness => each(planes, &|x| blend(0, x, factor)),
            Sharpness => {
                let smooth = smooth(planes, width);
                for (x, smooth) in planes.iter_mut().zip(smooth) {
                    *x = blend(smooth, *x, factor);
                }
            }
            Rotate => {
                let angle = sign * (30.0 * strength).to_radians();
                let (sin, cos) = angle.sin_cos();
                let (x, y) = (width as f64 / 2.0, height as f64 / 2.0);
                let matrix = [
                    cos,
                    sin,
                    x - cos * x - sin * y,
                    -sin,
                    cos,
                    y + sin * x - cos * y,
                ];
                *planes = affine(planes, width, matrix);
            }
            ShearX => {
                let slope = sign * 0.3 * strength;
                *planes = affine(planes, width, [1.0, slope, 0.0, 0.0, 1.0, 0.0]);
            }
            ShearY => {
                let slope = sign * 0.3 * strength;
                *planes = affine(planes, width, [1.0, 0.0, 0.0, slope, 1.0, 0.0]);
            }
            TranslateX => {
                let pixels = sign * 0.45 * strength * width as f64;
                *planes = affine(planes, width, [1.0, 0.0, pixels, 0.0, 1.0, 0.0]);
            }
            TranslateY => {
                let pixels = sign * 0.45 * strength * height as f64;
                *planes = affine(planes, width, [1.0, 0.0, 0.0, 0.0, 1.0, pixels]);
            }
        }
    }
}

/// Interpolates between `from` (factor 0) and `to` (factor 1). Factors outside this range extrapolate.
fn blend(from: u8, to: u8, factor: f64) -> u8 {
    let (from, to) = (f64::from(from), f64::from(to));
    (from + factor * (to - from)) as u8
}

/// Returns the luma of each pixel.
fn grey(planes: &[u8]) -> Vec<u8> {
    let (red, rest) = planes.split_at(planes.len() / 3);
    let (green, blue) = rest.split_at(red.len());
    let pixels = red.iter().zip(green).zip(blue);
    let luma = pixels.map(|((r, g), b)| {
        let [r, g, b] = [r, g, b].map(|x| u32::from(*x));
        ((19_595 * r + 38_470 * g + 7_471 * b + 0x8000) >> 16) as u8
    });
    luma.collect()
}

/// Stretches the values of a plane to the full range from 0 to 255. A plane with a single value stays unchanged.
fn auto_contrast(plane: &mut [u8]) {
    let least = plane.iter().copied().min().unwrap_or(0);
    let most = plane.iter().copied().max().unwrap_or(0);
    if least < most {
        let scale = 255.0 / (f64::from(most) - f64::from(least));
        let offset = -f64::from(least) * scale;
        plane
            .iter_mut()
            .for_each(|x| *x = (f64::from(*x) * scale + offset) as u8);
    }
}

/// Equalizes the histogram of a plane, so that all values are about equally frequent. The plane stays unchanged if
/// fewer than 255 pixels are below its largest value.
fn equalize(plane: &mut [u8]) {
    let mut counts = [0usize; 256];
    plane.iter().for_each(|x| counts[usize::from(*x)] += 1);
    let last = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
    let step = (plane.len() - counts[last]) / 255;
    if step == 0 {
        return;
    }
    let mut below = step / 2;
    let table = counts.map(|count| {
        let to = below / step;
        below += count;
        to.min(255) as u8
    });
    plane.iter_mut().for_each(|x| *x = table[usize::from(*x)]);
}

/// Replaces each value with a weighted mean over its 3 × 3 neighbourhood, in which the value itself has a weight of
/// 5/13. The border stays unchanged.
fn smooth(planes: &[u8], width: usize) -> Vec<u8> {
    let mut smooth = planes.to_vec();
    let plane = planes.len() / 3;
    let height = plane / width;
    for channel in 0..3 {
        for y in 1..height.saturating_sub(1) {
            for x in 1..width.saturating_sub(1) {
                let at = channel * plane + y * width + x;
                let rows = [at - width, at, at + width];
                let sum: u32 = rows
                    .iter()
                    .flat_map(|row| &planes[row - 1..=row + 1])
                    .map(|x| u32::from(*x))
                    .sum();
                smooth[at] = (f64::from(sum + 4 * u32::from(planes[at])) / 13.0 + 0.5) as u8;
            }
        }
    }
    smooth
}

/// Applies an affine transform: the value of the result at (x, y) is interpolated at (a x + b y + c, d x + e y + f) in
/// `planes`. The first pixel has its centre at (½, ½). Positions outside the image have the colour [`OUTSIDE`].
fn affine(planes: &[u8], width: usize, [a, b, c, d, e, f]: [f64; 6]) -> Vec<u8> {
    let plane = planes.len() / 3;
    let height = plane / width;
    let mut moved = Vec::with_capacity(planes.len());
    for (channel, plane) in planes.chunks_exact(plane).enumerate() {
        for y in 0..height {
            for x in 0..width {
                let (x, y) = (x as f64 + 0.5, y as f64 + 0.5);
                let (from_x, from_y) = (a * x + b * y + c, d * x + e * y + f);
                let inside =
                    (0.0..width as f64).contains(&from_x) && (0.0..height as f64).contains(&from_y);
                moved.push(match inside {
                    true => between(plane, (width, height), from_x - 0.5, from_y - 0.5),
                    false => OUTSIDE[channel],
                });
            }
        }
    }
    moved
}

/// Interpolates between the four pixels around (x, y). Outside the image, the values of the border repeat.
fn between(plane: &[u8], (width, height): (usize, usize), x: f64, y: f64) -> u8 {
    let (left, top) = (x.floor(), y.floor());
    let (right_share, bottom_share) = (x - left, y - top);
    let at = |x: f64, y: f64| {
        let column = (x.max(0.0) as usize).min(width - 1);
        let row = (y.max(0.0) as usize).min(height - 1);
        f64::from(plane[row * width + column])
    };
    let row = |y: f64| at(left, y) * (1.0 - right_share) + at(left + 1.0, y) * right_share;
    (row(top) * (1.0 - bottom_share) + row(top + 1.0) * bottom_share) as u8
}

/// Applies random erasing (Zhong et al., 2017): replaces a rectangle with the mean of all images, which is 0 in
/// `planes`. The rectangle has 2 to 33 % of the area, and its ratio of height to width is between 0.3 and 3.3. If none
/// of ten drawn rectangles fits into the image, the image stays unchanged.
pub(crate) fn erase(planes: &mut [f32], width: usize, draws: &mut RandomNumbers) {
    const TRIES: usize = 10;
    let plane = planes.len() / 3;
    let height = plane / width;
    for _ in 0..TRIES {
        let area = plane as f64 * (0.02 + 0.31 * draws.unit());
        let (narrow, wide) = (0.3f64.ln(), 3.3f64.ln());
        let ratio = (narrow + (wide - narrow) * draws.unit()).exp();
        let (w, h) = (
            (area / ratio).sqrt().round() as usize,
            (area * ratio).sqrt().round() as usize,
        );
        if w < width && h < height {
            let (left, top) = (draws.below(width - w + 1), draws.below(height - h + 1));
            for plane in planes.chunks_exact_mut(plane) {
                for row in plane.chunks_exact_mut(width).skip(top).take(h) {
                    row[left..left + w].fill(0.0);
                }
            }
            return;
        }
    }
}

/// A way to mix the images of a batch with the same images in reverse order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mixing {
    /// mixup (Zhang et al., 2017): λ times each image plus 1 − λ times the other image.
    Whole(f64),
    /// CutMix (Yun et al., 2019): a rectangle of the other image, from `[top, left]` up to `[bottom, right]`.
    Rectangle([usize; 2], [usize; 2]),
}

impl Mixing {
    /// Draws a way to mix images of `height` × `width`, with λ from Beta(α, α). `mixup` and `cutmix` give α for each
    /// method; 0 turns the method off. At least one method must be on. If both are on, each has probability ½.
    pub fn draw(
        mixup: f64,
        cutmix: f64,
        [height, width]: [usize; 2],
        draws: &mut RandomNumbers,
    ) -> Self {
        let is_cut = match (mixup > 0.0, cutmix > 0.0) {
            (true, true) => draws.below(2) == 1,
            (_, cut) => cut,
        };
        if !is_cut {
            return Self::Whole(draws.beta(mixup));
        }
        let side = (1.0 - draws.beta(cutmix)).sqrt();
        let range = |length: usize, draws: &mut RandomNumbers| {
            let half = (side * length as f64) as usize / 2;
            let middle = draws.below(length);
            (middle.saturating_sub(half), (middle + half).min(length))
        };
        let (top, bottom) = range(height, draws);
        let (left, right) = range(width, draws);
        Self::Rectangle([top, left], [bottom, right])
    }

    /// Mixes the images of a batch, each of the size `[channels, height, width]`. Returns the share of an image's own
    /// class in its mixed label.
    pub fn apply(self, values: &mut [f32], size: [usize; 3]) -> f64 {
        let [channels, height, width] = size;
        let each = channels * height * width;
        let count = values.len() / each;
        for i in 0..count / 2 {
            let (front, back) = values.split_at_mut((count - 1 - i) * each);
            let (a, b) = (&mut front[i * each..(i + 1) * each], &mut back[..each]);
            match self {
                Self::Whole(share) => {
                    let share = share as f32;
                    for (a, b) in a.iter_mut().zip(b) {
                        let (own, other) = (*a, *b);
                        *a = share * own + (1.0 - share) * other;
                        *b = share * other + (1.0 - share) * own;
                    }
                }
                Self::Rectangle([top, left], [bottom, right]) => {
                    for row in
                        (0..channels).flat_map(|c| (top..bottom).map(move |y| c * height + y))
                    {
                        let part = row * width + left..row * width + right;
                        a[part.clone()].swap_with_slice(&mut b[part]);
                    }
                }
            }
        }
        match self {
            Self::Whole(share) => share,
            Self::Rectangle([top, left], [bottom, right]) => {
                1.0 - ((bottom - top) * (right - left)) as f64 / (height * width) as f64
            }
        }
    }
}

#[cfg(test)]
mod tests;
