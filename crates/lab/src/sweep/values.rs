//! The values of a field.

use std::fmt;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use residual_zoo_core::ConfigError;
use residual_zoo_system::counted;
use serde::{Deserialize, Serialize};

use super::{DRAWS, MOST_POINTS};

/// A field and the values that are tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swept {
    /// The path, as in `set`; commas separate several paths that take the same value.
    pub field: String,
    /// The values.
    pub values: Values,
}

/// The values of a field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Values {
    /// A list of values: numbers, or other RON values as text, such as `"Softmax"`.
    Grid(Vec<Value>),
    /// `count` values at equal distances, from one end to the other. The ends are exact.
    Linear(Range),
    /// `count` values at equal ratios, from one end to the other. The ends are exact; values between them are rounded
    /// to three digits, or to more digits if needed to keep them apart.
    Log(Range),
    /// `count` values drawn at random, uniformly in their logarithm. The values are rounded to three digits, or to more
    /// digits if needed to keep them apart and between the ends.
    LogUniform(Range),
}

/// A range of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The first value.
    pub from: f64,
    /// The last value.
    pub to: f64,
    /// The number of values.
    pub count: usize,
}

/// A value of a field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A number, such as `0.1`.
    Number(f64),
    /// Another RON value, as text, such as `"Softmax"`.
    Ron(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Ron(text) => text.fmt(f),
        }
    }
}

/// Whether a number may stand for a whole number that a float cannot represent. Floats skip whole numbers from 2⁵³ on,
/// and integer fields end at 2⁶⁴.
pub(super) fn is_inexact(number: f64) -> bool {
    ((1_u64 << 53) as f64..=u64::MAX as f64).contains(&number.abs())
}

impl Swept {
    /// Returns the name of the field in tables and charts: its path within `train` or `model`, such as `learning rate`
    /// or `optimizer learning rate`.
    pub(crate) fn name(&self) -> String {
        let first = self.field.split(',').next().unwrap_or_default().trim();
        let within = first.split_once('.').map_or(first, |(_, path)| path);
        within.replace(['_', '.'], " ")
    }

    /// Describes the tried values, such as `5 values at equal ratios from 0.001 to 0.1`.
    pub(crate) fn describe(&self) -> String {
        let range = |range: &Range, how: &str| {
            let Range { from, to, count } = range;
            format!(
                "{}: {} {how} from {from} to {to}",
                self.name(),
                counted(count, "value")
            )
        };
        match &self.values {
            Values::Grid(values) => {
                let values: Vec<String> = values.iter().map(Value::to_string).collect();
                format!("{}: {}", self.name(), values.join(", "))
            }
            Values::Linear(of) => range(of, "at equal distances"),
            Values::Log(of) => range(of, "at equal ratios"),
            Values::LogUniform(of) => range(of, "drawn log-uniformly"),
        }
    }

    /// Names the end of the range, `lower` or `upper`, at which `value` lies, if the values `tried` were tried. For
    /// random draws, an end is the first or last tenth of the range.
    pub(crate) fn edge<'a>(
        &self,
        tried: impl IntoIterator<Item = &'a Value>,
        value: f64,
    ) -> Option<&'static str> {
        let (low, high) = match &self.values {
            Values::LogUniform(range) => (range.log(0.1), range.log(0.9)),
            Values::Grid(_) | Values::Linear(_) | Values::Log(_) => {
                let numbers = tried.into_iter().filter_map(|value| match value {
                    Value::Number(number) => Some(*number),
                    Value::Ron(_) => None,
                });
                let ends = |(low, high): (f64, f64), x: f64| (low.min(x), high.max(x));
                numbers.fold((f64::INFINITY, f64::NEG_INFINITY), ends)
            }
        };
        match (value <= low, value >= high) {
            _ if low >= high => None,
            (true, _) => Some("lower"),
            (_, true) => Some("upper"),
            _ => None,
        }
    }

    /// Returns the range of a field whose values have equal ratios.
    pub(super) fn log_range(&self) -> Option<&Range> {
        match &self.values {
            Values::Log(range) => Some(range),
            Values::Grid(_) | Values::Linear(_) | Values::LogUniform(_) => None,
        }
    }

    /// Whether charts show the field on a logarithmic axis.
    pub(crate) fn is_log(&self) -> bool {
        matches!(self.values, Values::Log(_) | Values::LogUniform(_))
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let error = |problem: String| Err(ConfigError::new(&self.field, problem));
        if self.field.trim().is_empty() {
            return Err(ConfigError::new("field", "is empty; name a field of a run"));
        }
        for path in self.field.split(',').map(str::trim) {
            if path.is_empty() {
                return error("has an empty path between its commas; leave the comma out".into());
            }
            if path == "train.seed" {
                return error("cannot be swept; give seeds (`seeds`, or `--seeds N`)".into());
            }
            if path.starts_with("data") || path.starts_with("train.validate_") {
                let problem = "cannot be swept, because the losses of the points would be on different \
                               validation data";
                return error(problem.into());
            }
        }
        let range = match &self.values {
            Values::Grid(values) if values.is_empty() => return error("has no values".into()),
            Values::Grid(values) => {
                let is_large =
                    |value: &&Value| matches!(value, Value::Number(it) if is_inexact(*it));
                if let Some(value) = values.iter().find(is_large) {
                    return error(format!(
                        "has {value}, and such large whole numbers are not exact; write it in quotes: \"{value}\""
                    ));
                }
                let is_empty = |value: &Value| value.to_string().trim().is_empty();
                return match values.iter().position(is_empty) {
                    None => Ok(()),
                    Some(at) => error(format!(
                        "has an empty value at position {} of {}; give a value there, or leave the comma out",
                        at + 1,
                        values.len()
                    )),
                };
            }
            Values::Linear(range) => range,
            Values::Log(range) | Values::LogUniform(range) => {
                if range.from <= 0.0 {
                    let from = range.from;
                    return error(format!(
                        "starts at {from}; a logarithmic range must start above 0"
                    ));
                }
                range
            }
        };
        let Range { from, to, count } = *range;
        if !(from.is_finite() && to.is_finite() && from < to) {
            return error(format!("goes from {from} to {to}; it must rise"));
        }
        match count {
            0 | 1 => error(format!(
                "has a count of {count}; a range needs at least 2 values"
            )),
            2..=MOST_POINTS if self.values.are_apart() => Ok(()),
            2..=MOST_POINTS => error(format!(
                "goes from {from} to {to}, a range too narrow for {count} different numbers"
            )),
            _ => error(format!(
                "has {count} values; at most {MOST_POINTS} are possible"
            )),
        }
    }
}

impl Values {
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Grid(values) => values.len(),
            Self::Linear(range) | Self::Log(range) | Self::LogUniform(range) => range.count,
        }
    }

    pub(super) fn list(&self, rng: &mut StdRng) -> Vec<Value> {
        let numbers = match self {
            Self::Grid(values) => return values.clone(),
            Self::Linear(range) => range.spread(12, |share| range.linear(share)),
            Self::Log(range) => range.spread(3, |share| range.log(share)),
            Self::LogUniform(range) => {
                let draws = (0..range.count).map(|_| range.log(rng.random()));
                range.rounded_draws(draws.collect())
            }
        };
        numbers.into_iter().map(Value::Number).collect()
    }

    /// Whether all values of a range are different.
    fn are_apart(&self) -> bool {
        let values = self.list(&mut StdRng::seed_from_u64(DRAWS));
        let numbers = values.iter().filter_map(|value| match value {
            Value::Number(number) => Some(*number),
            Value::Ron(_) => None,
        });
        let mut numbers: Vec<f64> = numbers.collect();
        numbers.sort_by(f64::total_cmp);
        numbers.is_sorted_by(|a, b| a < b)
    }
}

/// Number of digits that distinguishes any two numbers.
pub(super) const ALL_DIGITS: usize = 17;

impl Range {
    /// Returns the value at a share of the range on a logarithmic scale.
    pub(super) fn log(&self, share: f64) -> f64 {
        let ratio = self.to / self.from;
        match ratio.is_finite() {
            true => self.from * ratio.powf(share),
            false => (self.from.ln() * (1.0 - share) + self.to.ln() * share).exp(),
        }
    }

    /// Returns the value at a share of the range on a linear scale.
    fn linear(&self, share: f64) -> f64 {
        let distance = self.to - self.from;
        match distance.is_finite() {
            true => self.from + share * distance,
            false => self.from * (1.0 - share) + self.to * share,
        }
    }

    /// Returns the ends, and values `at` equal shares between them. All values between the ends have the same number of
    /// digits, at least `digits`. This number is the smallest with which rounding moves no value by more than a
    /// twentieth of the distance to its nearest neighbour.
    fn spread(&self, digits: usize, at: impl Fn(f64) -> f64) -> Vec<f64> {
        let last = self.count - 1;
        let exact = |i: usize| match i {
            0 => self.from,
            i if i == last => self.to,
            i => at(i as f64 / last as f64),
        };
        let exact: Vec<f64> = (0..self.count).map(exact).collect();
        let rounded = |digits: usize| -> Vec<f64> {
            let mut values = exact.clone();
            for value in &mut values[1..last] {
                *value = round(*value, digits);
            }
            values
        };
        let is_near = |values: &Vec<f64>| {
            let gap = |i: usize| (exact[i] - exact[i - 1]).min(exact[i + 1] - exact[i]);
            (1..last).all(|i| 20.0 * (values[i] - exact[i]).abs() <= gap(i))
        };
        let near = (digits..ALL_DIGITS).map(rounded).find(is_near);
        near.unwrap_or_else(|| rounded(ALL_DIGITS))
    }

    /// Rounds each draw to the fewest digits, but at least three, that keep it between the ends and apart from earlier
    /// draws.
    fn rounded_draws(&self, draws: Vec<f64>) -> Vec<f64> {
        let mut values: Vec<f64> = Vec::new();
        for draw in draws {
            let mut tried = (3..ALL_DIGITS).map(|digits| round(draw, digits));
            let fits =
                |value: &f64| (self.from..=self.to).contains(value) && !values.contains(value);
            values.push(tried.find(fits).unwrap_or(draw.clamp(self.from, self.to)));
        }
        values
    }
}

/// Rounds `value` to this number of significant digits.
pub(super) fn round(value: f64, digits: usize) -> f64 {
    let text = format!("{value:.*e}", digits - 1);
    text.parse().unwrap_or(value)
}
