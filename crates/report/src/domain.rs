//! The range of an axis and its ticks.

use crate::chart::Scale;
use crate::number::{decade_labels, tick_labels};

/// Magnitude beyond which differences and powers of ten of an axis would leave the range of `f64`.
const LARGEST: f64 = 1e200;

impl Scale {
    /// Whether `value` has a position on this scale.
    pub(crate) fn shows(self, value: f64) -> bool {
        value.abs() < LARGEST && (self == Scale::Linear || value > 1.0 / LARGEST)
    }

    /// Returns the position of `value`, up to the choice of origin and length.
    pub(crate) fn position(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.log10(),
        }
    }

    /// Returns the value at `position`.
    pub(crate) fn value(self, position: f64) -> f64 {
        match self {
            Scale::Linear => position,
            Scale::Log => 10f64.powf(position),
        }
    }
}

/// An axis range between the positions `lo < hi` of its scale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Domain {
    pub(crate) scale: Scale,
    pub(crate) lo: f64,
    pub(crate) hi: f64,
}

/// Axis ticks, as values.
#[derive(Debug, PartialEq)]
pub(crate) struct Ticks {
    pub(crate) major: Vec<f64>,
    pub(crate) labels: Vec<String>,
    pub(crate) minor: Vec<f64>,
}

impl Domain {
    /// Returns the range between two positions. A single point is widened to a range. Without points, the range is
    /// `0..=1`.
    pub(crate) fn new(scale: Scale, lo: f64, hi: f64) -> Self {
        let size = lo.abs().max(hi.abs());
        let pad = match scale {
            Scale::Log => 0.3,
            Scale::Linear if size == 0.0 => 1.0,
            Scale::Linear => size * 0.05,
        };
        let (lo, hi) = match hi - lo {
            span if span < 0.0 => (0.0, 1.0),
            span if span > size * 1e-9 => (lo, hi),
            _ => (lo - pad, hi + pad),
        };
        Self { scale, lo, hi }
    }

    /// Adds `share` of the length of the range at both ends.
    pub(crate) fn padded(self, share: f64) -> Self {
        let pad = (self.hi - self.lo) * share;
        let (lo, hi) = (self.lo - pad, self.hi + pad);
        Self { lo, hi, ..self }
    }

    /// Returns the relative position of `value`: 0 at the low end, 1 at the high end.
    pub(crate) fn unit(&self, value: f64) -> f64 {
        (self.scale.position(value) - self.lo) / (self.hi - self.lo)
    }

    /// Returns about `target` ticks.
    pub(crate) fn ticks(&self, target: usize) -> Ticks {
        if self.scale == Scale::Log && self.hi - self.lo >= 1.0 {
            return self.decades(target);
        }
        let (lo, hi) = (self.scale.value(self.lo), self.scale.value(self.hi));
        let (major, minor) = self.apart(even(lo, hi, target), 0.7 / target.max(1) as f64);
        Ticks {
            labels: tick_labels(&major),
            major,
            minor,
        }
    }

    /// Splits ticks into those with a label and the others, so that labels are at least `gap` apart. On a logarithmic
    /// axis, evenly spaced values come closer to each other from left to right.
    fn apart(&self, ticks: Vec<f64>, gap: f64) -> (Vec<f64>, Vec<f64>) {
        let mut last = f64::NEG_INFINITY;
        ticks.into_iter().partition(|tick| {
            let at = self.unit(*tick);
            let is_apart = at - last >= gap;
            last = if is_apart { at } else { last };
            is_apart
        })
    }

    fn decades(&self, target: usize) -> Ticks {
        let multiples = |digits: &[u32]| -> Vec<f64> {
            let exponents = self.lo.floor() as i32..=self.hi.floor() as i32;
            let decade = |e| digits.iter().map(move |&d| tenfold(d.into(), e));
            let mut ticks: Vec<f64> = exponents.flat_map(decade).collect();
            ticks.retain(|&t| (-1e-9..=1.0 + 1e-9).contains(&self.unit(t)));
            ticks
        };
        let mut major = multiples(&[1]);
        let stride = major.len().div_ceil(target.max(2) + 1) as i32;
        if major.len() < 2 || (self.hi - self.lo) * 3.0 <= target as f64 {
            major = multiples(&[1, 2, 5]);
        }
        major.retain(|t| stride == 1 || (t.log10().round() as i32) % stride == 0);
        let mut minor = match stride {
            1 => multiples(&[1, 2, 3, 4, 5, 6, 7, 8, 9]),
            _ => multiples(&[1]),
        };
        minor.retain(|t| !major.contains(t));
        Ticks {
            labels: decade_labels(&major),
            major,
            minor,
        }
    }
}

/// Returns multiples of 1, 2 or 5 times a power of ten in `lo..=hi`, as close to `target` in number as possible.
fn even(lo: f64, hi: f64, target: usize) -> Vec<f64> {
    let raw = (hi - lo) / target.max(1) as f64;
    let exponent = raw.log10().floor() as i32;
    let (digit, exponent) = match raw / tenfold(1.0, exponent) {
        r if r < 2f64.sqrt() => (1.0, exponent),
        r if r < 10f64.sqrt() => (2.0, exponent),
        r if r < 50f64.sqrt() => (5.0, exponent),
        _ => (1.0, exponent + 1),
    };
    let step = tenfold(digit, exponent);
    let first = (lo / step - 1e-9).ceil() as i64;
    let last = (hi / step + 1e-9).floor() as i64;
    let tick = |k| tenfold(k as f64 * digit, exponent);
    (first..=last).map(tick).collect()
}

/// Returns `digits` times a power of ten. For a negative exponent, divides by a power of ten, because powers of ten up
/// to 10²² are exact floats, but their reciprocals are not.
fn tenfold(digits: f64, exponent: i32) -> f64 {
    match 10f64.powi(exponent.abs()) {
        power if exponent < 0 => digits / power,
        power => digits * power,
    }
}
