//! Rotary positions.

use std::f64::consts::TAU;

use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_kernels as kernels;
use serde::{Deserialize, Serialize};

use super::forms;
use crate::{ConfigError, Seen, check, widen};

/// Rotary positions (Su et al., "RoFormer", 2021). In each query and key, n coordinates turn in pairs. Pair c of n/2
/// turns by the angle position · base^(−2c/n).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rotary {
    /// Base of the angles.
    pub base: f64,
    /// The share of each head's coordinates that turn, starting with the first coordinate; 0 for no positions.
    pub share: f64,
    /// The coordinates that form a pair.
    pub pairs: Pairs,
    /// Slower turning for long contexts.
    pub scaling: Option<RotaryScaling>,
    /// Whether pairs turn by minus the angle (nanochat).
    pub backwards: bool,
}

/// The coordinates that form pair c of n/2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pairs {
    /// c and c + n/2 (GPT-NeoX, `transformers`).
    #[default]
    Halves,
    /// 2c and 2c + 1 (the paper; Meta's Llama code).
    Neighbours,
}

/// The frequencies of Llama 3.1. A wavelength is the number of positions in which a pair turns once. Wavelengths above
/// `original / low` become `factor` times as long. Wavelengths below `original / high` stay the same. In between, the
/// multiplier of the frequency is linear in original / wavelength.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotaryScaling {
    /// The multiplier of the longest wavelengths.
    pub factor: f64,
    /// Wavelengths that fit fewer times than this into the original context become `factor` times as long.
    pub low: f64,
    /// Wavelengths that fit more times than this into the original context stay the same.
    pub high: f64,
    /// The original number of positions.
    pub original: usize,
}

impl Default for Rotary {
    /// Returns the rotary positions of Llama 2.
    fn default() -> Self {
        Self {
            base: 10_000.0,
            share: 1.0,
            pairs: Pairs::Halves,
            scaling: None,
            backwards: false,
        }
    }
}

impl Rotary {
    /// Returns the number of coordinates that turn in a head of width `d`.
    pub fn rotated(&self, d: usize) -> usize {
        (d as f64 * self.share) as usize
    }

    /// Checks all fields for heads of width `d`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn validate(&self, d: usize) -> Result<(), ConfigError> {
        check::positive("base", self.base)?;
        if !(0.0..=1.0).contains(&self.share) {
            let problem = format!("is {}; it must be from 0 to 1", self.share);
            return Err(ConfigError::new("share", problem));
        }
        let rotated = self.rotated(d);
        if rotated == 0 && self.share > 0.0 {
            let problem = format!(
                "is {}, so none of the {d} coordinates of a head would turn; use at least {}, or 0 for no rotary \
                 positions",
                self.share,
                2.0 / d as f64
            );
            return Err(ConfigError::new("share", problem));
        }
        if !rotated.is_multiple_of(2) {
            let problem = format!(
                "is {}, so {rotated} of the {d} coordinates of a head would turn, but they turn in pairs; change the \
                 width of a head or the share",
                self.share
            );
            return Err(ConfigError::new("share", problem));
        }
        if let Some(scaling) = &self.scaling {
            scaling
                .validate()
                .map_err(|error| error.within("scaling"))?;
        }
        Ok(())
    }

    /// Returns the angle per position of each pair, `n / 2` numbers for n turning coordinates.
    pub fn frequencies(&self, n: usize) -> Vec<f64> {
        let frequency = |c: usize| self.base.powf(-2.0 * c as f64 / n as f64);
        let scaled = |f| self.scaling.map_or(f, |scaling| scaling.of(f));
        let sign = if self.backwards { -1.0 } else { 1.0 };
        (0..n / 2).map(|c| sign * scaled(frequency(c))).collect()
    }

    /// Turns the pairs of x `[batch, heads, time, d]`, at the positions after `seen`.
    pub fn turn<B: Backend>(&self, x: Tensor<B, 4>, seen: &Seen) -> Tensor<B, 4> {
        let [_, _, time, d] = x.dims();
        let n = self.rotated(d);
        if n == 0 {
            return x;
        }
        let (half, device) = (n / 2, x.device());
        let frequencies = TensorData::new(self.frequencies(n), [1, 1, 1, half]);
        let positions = seen.next::<B>(time, &device).float();
        let rows = positions.dims()[0];
        let positions = positions.reshape([rows, 1, time, 1]);
        let angle = positions * Tensor::from_data(frequencies, &device);
        let kernel = kernels::Rotary {
            neighbours: self.pairs == Pairs::Neighbours,
        };
        let (cos, sin) = (angle.clone().cos(), angle.sin());
        kernels::rotary(kernel, widen(x), cos, sin).unwrap_or_else(|inputs| {
            let [x, cos, sin] = forms::plain("rotary positions", inputs);
            plain(self.pairs, x, cos, sin)
        })
    }
}

/// The plain form of [`Rotary::turn`]. cos and sin are `[rows, 1, time, n / 2]`, with one row, or one per sequence.
pub fn plain<B: Backend>(
    pairs: Pairs,
    x: Tensor<B, 4>,
    cos: Tensor<B, 4>,
    sin: Tensor<B, 4>,
) -> Tensor<B, 4> {
    let ([batch, heads, time, d], half) = (x.dims(), cos.dims()[3]);
    let n = 2 * half;
    let turned = |a: Tensor<B, 4>, b: Tensor<B, 4>| {
        [
            a.clone() * cos.clone() - b.clone() * sin.clone(),
            b * cos.clone() + a * sin.clone(),
        ]
    };
    let part = |from, count| x.clone().narrow(3, from, count);
    let mut parts = match pairs {
        Pairs::Halves => turned(part(0, half), part(half, half)).to_vec(),
        Pairs::Neighbours => {
            let shape = [batch, heads, time * half, 2];
            let pairs = part(0, n).reshape(shape);
            let [a, b] = [0, 1].map(|i| pairs.clone().narrow(3, i, 1));
            let flat = [batch, heads, time, half];
            let turned = turned(a.reshape(flat), b.reshape(flat));
            let column = [batch, heads, time * half, 1];
            let turned = turned.map(|x| x.reshape(column)).to_vec();
            vec![Tensor::cat(turned, 3).reshape([batch, heads, time, n])]
        }
    };
    if d > n {
        parts.push(part(n, d - n));
    }
    match parts.len() {
        1 => parts.remove(0),
        _ => Tensor::cat(parts, 3),
    }
}

impl RotaryScaling {
    fn validate(&self) -> Result<(), ConfigError> {
        check::positive("factor", self.factor)?;
        check::positive("low", self.low)?;
        check::finite("high", self.high)?;
        if self.high <= self.low {
            let problem = format!("is {}; it must be above `low`, {}", self.high, self.low);
            return Err(ConfigError::new("high", problem));
        }
        check::size("original", self.original)
    }

    /// Returns the frequency that replaces `f`.
    fn of(&self, f: f64) -> f64 {
        let waves = self.original as f64 * f / TAU;
        let kept = ((waves - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        (1.0 - kept) * f / self.factor + kept * f
    }
}
