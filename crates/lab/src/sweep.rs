//! Sweeps: the values to try for some fields, and the rule by which bad points are given up early.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use residual_zoo_core::{ConfigError, check};
use residual_zoo_runs::{TrainConfig, names_of};
use residual_zoo_system::counted;
use serde::{Deserialize, Serialize};

use crate::check::not_empty;

/// A sweep trains every run of an experiment at every point. A point is a combination of field values. The best point
/// of a run has the lowest mean validation loss over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The fields that vary. Every combination of their values is a point. All fields with random values are drawn
    /// together and count as one field.
    pub over: Vec<Swept>,
    /// The seeds. Every point is trained with each seed.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// The rule by which the worst points are given up early. `None` trains every point to the end.
    #[serde(default)]
    pub halving: Option<Halving>,
    /// The number of values by which each end of a logarithmic range may move outwards. As long as the best value of a
    /// run is at an end, the run is also trained with the next value beyond this end, at the same ratio. Every run has
    /// the same rule, so a range that is too narrow for one run costs the other runs nothing. A value that a run does
    /// not accept, such as a share above 1, ends the range.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub widen: usize,
    /// Whether each run is then trained at its best point, for the seeds of the experiment. Claims, charts and tables
    /// are about these runs. The seeds of the sweep must differ from the experiment's seeds.
    #[serde(default)]
    pub tuned: bool,
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

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

/// Successive halving (Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter
/// optimization", 2016). Training is divided into rungs, each of which ends at a validation. In the first rung, all
/// points are trained for a part of their steps. After each rung, only the better points continue. The last rung trains
/// the remaining points to the end. Runs keep the learning-rate schedule of their full length, so early rungs favour
/// points whose loss falls early.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Halving {
    /// The number of rungs. The last one trains to the end.
    pub rungs: usize,
    /// The share of the points that continues after a rung. Each rung ends after about this share of the steps at which
    /// the next rung ends.
    pub keep: f64,
}

impl Default for Halving {
    fn default() -> Self {
        Self {
            rungs: 3,
            keep: 0.5,
        }
    }
}

impl Halving {
    /// Returns the share of the steps at which each rung ends. If two rungs would end at the same validation in all of
    /// these runs, omits the shorter rung.
    pub(crate) fn shares(self, runs: &[&TrainConfig]) -> Vec<f64> {
        let before_last = (0..self.rungs).rev();
        let mut shares: Vec<f64> = before_last.map(|i| self.keep.powi(i as i32)).collect();
        shares.dedup_by(|later, earlier| {
            let mut runs = runs.iter();
            let is_same = runs.all(|train| until(train, *later) == until(train, *earlier));
            // `dedup_by` removes the later rung, so the earlier rung takes its share. The last share thus stays 1.
            *earlier = if is_same { *later } else { *earlier };
            is_same
        });
        shares
    }

    /// Returns how many of `count` points continue.
    pub(crate) fn survivors(self, count: usize) -> usize {
        ((self.keep * count as f64).ceil() as usize).clamp(1, count.max(1))
    }
}

/// Returns the step of the first validation at or after the first `share` of a run.
pub(crate) fn until(train: &TrainConfig, share: f64) -> usize {
    let steps = (share * train.steps as f64).ceil() as usize;
    let until = steps.div_ceil(train.validate_every) * train.validate_every;
    until.min(train.steps)
}

/// A point of a sweep: a value for each field, in the order of the fields.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point(pub(crate) Vec<Value>);

/// The name that errors use for the list of swept fields. A program replaces this name with its own option.
pub const OVER: &str = "sweep.over";

/// Maximum number of rungs of successive halving.
const MOST_RUNGS: usize = 16;
/// Maximum number of values by which an end of a range moves.
const MOST_WIDER: usize = 16;
/// Maximum number of points of a sweep.
const MOST_POINTS: usize = 10_000;
/// The seed of the draws, the same for every sweep.
const DRAWS: u64 = 1;

/// Whether a number may stand for a whole number that a float cannot represent. Floats skip whole numbers from 2⁵³ on,
/// and integer fields end at 2⁶⁴.
fn is_inexact(number: f64) -> bool {
    ((1_u64 << 53) as f64..=u64::MAX as f64).contains(&number.abs())
}

impl Sweep {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn check(&self) -> Result<(), ConfigError> {
        not_empty(OVER, self.over.len())?;
        not_empty("sweep.seeds", self.seeds.len())?;
        for swept in &self.over {
            swept.check().map_err(|error| error.within(OVER))?;
        }
        let paths = self.over.iter().flat_map(|swept| swept.field.split(','));
        let mut known = BTreeSet::new();
        if let Some(twice) = paths
            .map(str::trim)
            .find(|path| !known.insert(names_of(path)))
        {
            let problem = format!("has `{twice}` twice");
            return Err(ConfigError::new(OVER, problem));
        }
        let mut drawn = self.over.iter().filter_map(|swept| match swept.values {
            Values::LogUniform(range) => Some(range.count),
            _ => None,
        });
        if let Some(first) = drawn.next()
            && drawn.any(|count| count != first)
        {
            let problem =
                "has randomly drawn fields with different counts; give them the same count";
            return Err(ConfigError::new(OVER, problem));
        }
        if let Some(Halving { rungs, keep }) = self.halving {
            check::at_least_one("sweep.halving.rungs", rungs)?;
            if rungs > MOST_RUNGS {
                let problem = format!("is {rungs}; it must be at most {MOST_RUNGS}");
                return Err(ConfigError::new("sweep.halving.rungs", problem));
            }
            if !(keep > 0.0 && keep < 1.0) {
                let problem = format!("is {keep}; it must be above 0 and below 1");
                return Err(ConfigError::new("sweep.halving.keep", problem));
            }
        }
        self.check_widen()?;
        let points = self.count(0);
        if points > MOST_POINTS {
            let problem = format!("gives {points} points; at most {MOST_POINTS} are possible");
            return Err(ConfigError::new(OVER, problem));
        }
        let points = self.count(2 * self.widen);
        if points > MOST_POINTS {
            let problem =
                format!("gives up to {points} points; at most {MOST_POINTS} are possible");
            return Err(ConfigError::new("sweep.widen", problem));
        }
        let mut known = BTreeSet::new();
        let points = self.points();
        let mut names = points.iter().map(|point| self.describe(point));
        match names.find(|name| !known.insert(name.clone())) {
            None => Ok(()),
            Some(name) => {
                let problem = format!("has the point {name} twice");
                Err(ConfigError::new(OVER, problem))
            }
        }
    }

    fn check_widen(&self) -> Result<(), ConfigError> {
        let error = |problem: String| Err(ConfigError::new("sweep.widen", problem));
        let has_log = self.over.iter().any(|swept| swept.log_range().is_some());
        match self.widen {
            0 => Ok(()),
            widen if widen > MOST_WIDER => {
                error(format!("is {widen}; it must be at most {MOST_WIDER}"))
            }
            _ if self.halving.is_some() => error(
                "is given, and so is halving, which gives up points at the ends early; leave one out".into(),
            ),
            _ if !has_log => {
                error("is given, but no field has a logarithmic range; give one, or leave this out".into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the points to try next for a run that has tried the points `tried`: its grid with one more value for
    /// each field whose best value is at an end. Returns nothing if the best point `best` is at no end that may move.
    pub(crate) fn wider(&self, tried: &[&[Value]], best: &[Value]) -> Vec<Point> {
        let mut points: Vec<Vec<Value>> = tried.iter().map(|values| values.to_vec()).collect();
        for (field, swept) in self.over.iter().enumerate() {
            let Some(next) = swept.beyond(
                tried.iter().map(|values| &values[field]),
                &best[field],
                self.widen,
            ) else {
                continue;
            };
            let at_end = points.iter().filter(|values| values[field] == best[field]);
            let mut moved: Vec<Vec<Value>> = at_end.cloned().collect();
            for values in &mut moved {
                values[field] = Value::Number(next);
            }
            points.append(&mut moved);
        }
        points.into_iter().skip(tried.len()).map(Point).collect()
    }

    /// Returns the points that a sweep tries only if it widens a range, from all ends.
    pub(crate) fn possible(&self) -> Vec<Point> {
        let mut points: Vec<Vec<Value>> = self.points().into_iter().map(|point| point.0).collect();
        let count = points.len();
        for (field, swept) in self.over.iter().enumerate() {
            let Some(range) = swept.log_range().filter(|_| self.widen > 0) else {
                continue;
            };
            let first: Vec<Vec<Value>> = {
                let start = Value::Number(range.from);
                points
                    .iter()
                    .filter(|values| values[field] == start)
                    .cloned()
                    .collect()
            };
            for value in range.beyond(self.widen) {
                let mut moved = first.clone();
                for values in &mut moved {
                    values[field] = Value::Number(value);
                }
                points.append(&mut moved);
            }
        }
        points.into_iter().skip(count).map(Point).collect()
    }

    /// Whether the assignment `PATH=VALUE` sets a swept field, a part of it, or a field that contains it.
    pub fn varies(&self, assignment: &str) -> bool {
        let path = names_of(assignment);
        let paths = self.over.iter().flat_map(|swept| swept.field.split(','));
        let mut paths = paths.map(names_of);
        paths.any(|swept| path.starts_with(&swept) || swept.starts_with(&path))
    }

    /// Returns, for each field, the index of the field that it follows: a point takes the values of both at the same
    /// position. Drawn fields follow the first drawn field, because they are drawn together. Every other field follows
    /// itself.
    fn leaders(&self) -> Vec<usize> {
        let is_drawn = |swept: &Swept| matches!(swept.values, Values::LogUniform(_));
        let first = self.over.iter().position(is_drawn).unwrap_or(0);
        let leader = |(i, swept)| if is_drawn(swept) { first } else { i };
        self.over.iter().enumerate().map(leader).collect()
    }

    /// Returns the number of points if each logarithmic range has `more` further values.
    fn count(&self, more: usize) -> usize {
        let leaders = self.leaders();
        let leading = self
            .over
            .iter()
            .enumerate()
            .filter(|(i, _)| leaders[*i] == *i);
        let counts = leading.map(|(_, swept)| {
            let more = swept.log_range().map_or(0, |_| more);
            swept.values.count() + more
        });
        counts.fold(1, usize::saturating_mul)
    }

    /// Returns all points. The last field varies fastest.
    pub(crate) fn points(&self) -> Vec<Point> {
        let mut rng = StdRng::seed_from_u64(DRAWS);
        let lists = self.over.iter().map(|swept| swept.values.list(&mut rng));
        let lists: Vec<Vec<Value>> = lists.collect();
        let leaders = self.leaders();
        let point = |mut number: usize| {
            // The index of the point in mixed radix, with a digit for each leading field, the last digit first.
            let mut at = vec![0; lists.len()];
            for field in (0..lists.len())
                .rev()
                .filter(|field| leaders[*field] == *field)
            {
                at[field] = number % lists[field].len();
                number /= lists[field].len();
            }
            let values = lists.iter().zip(&leaders);
            Point(
                values
                    .map(|(list, leader)| list[at[*leader]].clone())
                    .collect(),
            )
        };
        (0..self.count(0)).map(point).collect()
    }

    /// Returns the assignments of a point, as [`RunConfig::set`](residual_zoo_runs::RunConfig::set) takes them.
    pub(crate) fn set(&self, point: &Point) -> Vec<String> {
        let fields = self.over.iter().zip(&point.0);
        let assign = |(swept, value): (&Swept, &Value)| {
            let paths = swept.field.split(',').map(str::trim);
            paths
                .map(|path| format!("{path}={value}"))
                .collect::<Vec<_>>()
        };
        fields.flat_map(assign).collect()
    }

    /// Describes the tried values and the seeds.
    pub fn summary(&self) -> String {
        let over: Vec<String> = self.over.iter().map(Swept::describe).collect();
        let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
        let widened = self
            .widened()
            .map_or(String::new(), |note| format!("; {note}"));
        format!("{}{widened}; seeds {}", over.join("; "), seeds.join(", "))
    }

    /// Describes how ranges are widened, if they are.
    pub(crate) fn widened(&self) -> Option<String> {
        let more = counted(self.widen, "more value");
        let are = if self.widen == 1 { "is" } else { "are" };
        (self.widen > 0).then(|| {
            format!(
                "while the best value of a run is at an end of its range, up to {more} beyond this end {are} tried"
            )
        })
    }

    /// Names a point as in tables: `learning rate 0.003, batch 8`.
    pub(crate) fn describe(&self, point: &Point) -> String {
        let fields = self.over.iter().zip(&point.0);
        let named = fields.map(|(swept, value)| format!("{} {value}", swept.name()));
        named.collect::<Vec<_>>().join(", ")
    }
}

impl Swept {
    /// Returns the name of the field in tables and charts: the end of its path.
    pub(crate) fn name(&self) -> String {
        let first = self.field.split(',').next().unwrap_or_default();
        let end = first.rsplit('.').next().unwrap_or_default();
        end.trim().replace('_', " ")
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

    fn log_range(&self) -> Option<&Range> {
        match &self.values {
            Values::Log(range) => Some(range),
            Values::Grid(_) | Values::Linear(_) | Values::LogUniform(_) => None,
        }
    }

    /// Returns the next value beyond the end of a logarithmic range at which `best` lies, if the values `tried` were
    /// tried and this end may move that far.
    fn beyond<'a>(
        &self,
        tried: impl Iterator<Item = &'a Value> + Clone,
        best: &Value,
        widen: usize,
    ) -> Option<f64> {
        let (Some(range), Value::Number(best)) = (self.log_range(), best) else {
            return None;
        };
        let more = range.beyond(widen).into_iter();
        match self.edge(tried, *best)? {
            "lower" => more.filter(|value| value < best).reduce(f64::max),
            _ => more.filter(|value| value > best).reduce(f64::min),
        }
    }

    /// Whether charts show the field on a logarithmic axis.
    pub(crate) fn is_log(&self) -> bool {
        matches!(self.values, Values::Log(_) | Values::LogUniform(_))
    }

    fn check(&self) -> Result<(), ConfigError> {
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
    fn count(&self) -> usize {
        match self {
            Self::Grid(values) => values.len(),
            Self::Linear(range) | Self::Log(range) | Self::LogUniform(range) => range.count,
        }
    }

    fn list(&self, rng: &mut StdRng) -> Vec<Value> {
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
const ALL_DIGITS: usize = 17;

impl Range {
    /// Returns the value at a share of the range on a logarithmic scale.
    fn log(&self, share: f64) -> f64 {
        let ratio = self.to / self.from;
        match ratio.is_finite() {
            true => self.from * ratio.powf(share),
            false => (self.from.ln() * (1.0 - share) + self.to.ln() * share).exp(),
        }
    }

    /// Returns `count` values below and `count` values above a logarithmic range, at the ratio of its values. The values
    /// are rounded to three digits, or to more if needed to keep them apart.
    fn beyond(&self, count: usize) -> Vec<f64> {
        let share = 1.0 / (self.count - 1) as f64;
        let below = (1..=count).map(|i| -(i as f64) * share);
        let above = (1..=count).map(|i| 1.0 + i as f64 * share);
        let shares: Vec<f64> = below.chain(above).collect();
        let gap = (self.to.ln() - self.from.ln()) * share;
        let rounded = |share: &f64| {
            let exact = self.log(*share);
            let is_near = |value: &f64| 20.0 * (value.ln() - exact.ln()).abs() <= gap;
            let mut values = (3..ALL_DIGITS).map(|digits| round(exact, digits));
            values.find(is_near).unwrap_or(exact)
        };
        let values = shares.iter().map(rounded);
        values
            .filter(|value| value.is_finite() && *value > 0.0)
            .collect()
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
fn round(value: f64, digits: usize) -> f64 {
    let text = format!("{value:.*e}", digits - 1);
    text.parse().unwrap_or(value)
}
