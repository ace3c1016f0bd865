//! Sweeps: which values of some fields are tried, and in which order runs are given up.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use residual_zoo_core::{ConfigError, check};
use residual_zoo_runs::TrainConfig;
use serde::{Deserialize, Serialize};

/// A sweep: every run of an experiment is trained at every point, and the point with the lowest mean
/// validation loss over the seeds is its best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The fields that vary. Every combination of their values is a point. Fields whose values are drawn
    /// at random are drawn together and count as one.
    pub over: Vec<Swept>,
    /// Every point is trained for each seed.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// How the worst points are given up early. `None` trains every point to the end.
    #[serde(default)]
    pub halving: Option<Halving>,
    /// Whether each run is then trained at its best point, for the seeds of the experiment. Claims, charts
    /// and tables are about these runs. The seeds of the sweep must be others.
    #[serde(default)]
    pub tuned: bool,
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

/// A field and the values that are tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swept {
    /// Its path, as in `set`; several paths that take the same value are separated by commas.
    pub field: String,
    /// Its values.
    pub values: Values,
}

/// The values of a field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Values {
    /// These values: numbers, or other RON values as text, such as `"Softmax"`.
    Grid(Vec<Value>),
    /// `count` values at equal distances.
    Linear(Range),
    /// `count` values at equal ratios, rounded to three digits.
    Log(Range),
    /// `count` values drawn at random, uniformly in their logarithm, rounded to three digits.
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

/// Successive halving (Jamieson and Talwalkar, "Non-stochastic best arm identification and
/// hyperparameter optimization", 2016): the points are trained for a part of their steps, the better ones
/// go on, and so on until the last ones are trained to the end. A rung ends at a validation. Runs keep the
/// learning-rate schedule of their whole length, so that early rungs favour points whose loss falls early.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Halving {
    /// The number of rungs. The last one trains to the end.
    pub rungs: usize,
    /// The share of the points that goes on after a rung, and the share of the steps of the next rung that
    /// a rung trains.
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
    /// The shares of the steps that the rungs train. A rung that would end at the same validation as the one
    /// before it, in all of these runs, is left out.
    pub(crate) fn shares(self, runs: &[&TrainConfig]) -> Vec<f64> {
        let before_last = (0..self.rungs).rev();
        let mut shares: Vec<f64> = before_last.map(|i| self.keep.powi(i as i32)).collect();
        shares.dedup_by(|later, earlier| {
            let mut runs = runs.iter();
            let is_same = runs.all(|train| until(train, *later) == until(train, *earlier));
            // The later one is removed, but its share stays: the last one is 1.
            *earlier = if is_same { *later } else { *earlier };
            is_same
        });
        shares
    }

    /// How many of `count` points go on.
    pub(crate) fn survivors(self, count: usize) -> usize {
        ((self.keep * count as f64).ceil() as usize).clamp(1, count.max(1))
    }
}

/// The step at which the first `share` of a run ends: that of the next validation.
pub(crate) fn until(train: &TrainConfig, share: f64) -> usize {
    let steps = (share * train.steps as f64).ceil() as usize;
    let until = steps.div_ceil(train.validate_every) * train.validate_every;
    until.min(train.steps)
}

/// A point of a sweep: the value of each field, in their order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point(pub(crate) Vec<Value>);

/// The most rungs of successive halving.
const MOST_RUNGS: usize = 16;
/// The most points of a sweep.
const MOST_POINTS: usize = 10_000;
/// The seed of the draws, the same for every sweep.
const DRAWS: u64 = 1;

impl Sweep {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Names the first invalid field.
    pub fn check(&self) -> Result<(), ConfigError> {
        check::at_least_one("sweep.over", self.over.len())?;
        check::at_least_one("sweep.seeds", self.seeds.len())?;
        for swept in &self.over {
            swept.check().map_err(|error| error.within("sweep.over"))?;
        }
        let paths = self.over.iter().flat_map(|swept| swept.field.split(','));
        let mut known = BTreeSet::new();
        if let Some(twice) = paths.map(str::trim).find(|path| !known.insert(*path)) {
            let problem = format!("has `{twice}` twice");
            return Err(ConfigError::new("sweep.over", problem));
        }
        let mut drawn = self.over.iter().filter_map(|swept| match swept.values {
            Values::LogUniform(range) => Some(range.count),
            _ => None,
        });
        if let Some(first) = drawn.next()
            && drawn.any(|count| count != first)
        {
            let problem = "has fields that are drawn together with different counts";
            return Err(ConfigError::new("sweep.over", problem));
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
        let sizes = self.axes().into_iter().map(|axis| axis.len());
        let points = sizes.fold(1, usize::saturating_mul);
        if points > MOST_POINTS {
            let problem = format!("gives {points} points; at most {MOST_POINTS} are possible");
            return Err(ConfigError::new("sweep.over", problem));
        }
        let mut known = BTreeSet::new();
        let points = self.points();
        let twice = points.iter().map(|point| self.describe(point));
        match twice.into_iter().find(|name| !known.insert(name.clone())) {
            None => Ok(()),
            Some(name) => {
                let problem = format!("has the point {name} twice");
                Err(ConfigError::new("sweep.over", problem))
            }
        }
    }

    /// Whether the assignment `PATH=VALUE` sets a field that varies, or a part of it.
    pub fn varies(&self, assignment: &str) -> bool {
        let path = assignment.split('=').next().unwrap_or_default().trim();
        let paths = self.over.iter().flat_map(|swept| swept.field.split(','));
        let mut paths = paths.map(str::trim);
        let is_part = |a: &str, b: &str| a == b || a.starts_with(&format!("{b}."));
        paths.any(|swept| is_part(path, swept) || is_part(swept, path))
    }

    /// The values that vary independently: those of a field, or of all fields that are drawn. Each entry of
    /// an axis has the fields, by their number, and their values.
    fn axes(&self) -> Vec<Vec<Vec<(usize, Value)>>> {
        let mut rng = StdRng::seed_from_u64(DRAWS);
        let mut axes: Vec<Vec<Vec<(usize, Value)>>> = Vec::new();
        let mut drawn: Option<usize> = None;
        for (i, swept) in self.over.iter().enumerate() {
            let values = swept.values.list(&mut rng);
            let entries = values.into_iter().map(|value| (i, value));
            match (&swept.values, drawn) {
                (Values::LogUniform(_), Some(axis)) => {
                    for (entry, value) in axes[axis].iter_mut().zip(entries) {
                        entry.push(value);
                    }
                }
                (values, _) => {
                    if matches!(values, Values::LogUniform(_)) {
                        drawn = Some(axes.len());
                    }
                    axes.push(entries.map(|entry| vec![entry]).collect());
                }
            }
        }
        axes
    }

    /// All points. The first field varies slowest.
    pub(crate) fn points(&self) -> Vec<Point> {
        let mut points: Vec<Vec<(usize, Value)>> = vec![Vec::new()];
        for axis in self.axes() {
            let extended = |point: &Vec<(usize, Value)>| {
                let point = point.clone();
                let with = move |entry: &Vec<(usize, Value)>| [&point[..], &entry[..]].concat();
                axis.iter().map(with).collect::<Vec<_>>()
            };
            points = points.iter().flat_map(extended).collect();
        }
        let in_order = |mut point: Vec<(usize, Value)>| {
            point.sort_by_key(|(field, _)| *field);
            Point(point.into_iter().map(|(_, value)| value).collect())
        };
        points.into_iter().map(in_order).collect()
    }

    /// The assignments of a point, as [`RunConfig::set`](residual_zoo_runs::RunConfig::set) takes them.
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

    /// What is tried, with which seeds.
    pub fn summary(&self) -> String {
        let over: Vec<String> = self.over.iter().map(Swept::describe).collect();
        let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
        format!("{}; seeds {}", over.join("; "), seeds.join(", "))
    }

    /// A point as tables name it: `learning rate 0.003, batch 8`.
    pub(crate) fn describe(&self, point: &Point) -> String {
        let fields = self.over.iter().zip(&point.0);
        let named = fields.map(|(swept, value)| format!("{} {value}", swept.name()));
        named.collect::<Vec<_>>().join(", ")
    }
}

impl Swept {
    /// The name of the field in tables and charts: the end of its path.
    pub(crate) fn name(&self) -> String {
        let first = self.field.split(',').next().unwrap_or_default();
        let end = first.rsplit('.').next().unwrap_or_default();
        end.trim().replace('_', " ")
    }

    /// What was tried, such as `5 values at equal ratios from 0.001 to 0.1`.
    pub(crate) fn describe(&self) -> String {
        let range = |range: &Range, how: &str| {
            let Range { from, to, count } = range;
            format!("{}: {count} values {how} from {from} to {to}", self.name())
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

    /// Whether `value` is at an end of the values: the smallest or the largest of them, or for draws in the
    /// first or last tenth of their range.
    pub(crate) fn edge(&self, value: f64) -> Option<&'static str> {
        let (low, high) = match &self.values {
            Values::Grid(values) => {
                let numbers = values.iter().filter_map(|value| match value {
                    Value::Number(number) => Some(*number),
                    Value::Ron(_) => None,
                });
                let ends = |(low, high): (f64, f64), x: f64| (low.min(x), high.max(x));
                numbers.fold((f64::INFINITY, f64::NEG_INFINITY), ends)
            }
            Values::Linear(range) | Values::Log(range) => (range.from, range.to),
            Values::LogUniform(range) => (range.log(0.1), range.log(0.9)),
        };
        match (value <= low, value >= high) {
            _ if low >= high => None,
            (true, _) => Some("lower"),
            (_, true) => Some("upper"),
            _ => None,
        }
    }

    /// Whether charts show it on a logarithmic axis.
    pub(crate) fn is_log(&self) -> bool {
        matches!(self.values, Values::Log(_) | Values::LogUniform(_))
    }

    fn check(&self) -> Result<(), ConfigError> {
        let error = |problem: String| Err(ConfigError::new(&self.field, problem));
        if self.field.trim().is_empty() {
            return Err(ConfigError::new("field", "is empty; name a field of a run"));
        }
        for path in self.field.split(',').map(str::trim) {
            if path == "train.seed" {
                return error("cannot be swept; give seeds (`seeds`, or `--seeds N`)".into());
            }
            if path.starts_with("data") || path.starts_with("train.validate_") {
                let problem = "cannot be swept, because the losses of the points would be of different \
                               validation data";
                return error(problem.into());
            }
        }
        let range = match &self.values {
            Values::Grid(values) if values.is_empty() => return error("has no values".into()),
            Values::Grid(_) => return Ok(()),
            Values::Linear(range) => range,
            Values::Log(range) | Values::LogUniform(range) => {
                if range.from <= 0.0 {
                    let from = range.from;
                    return error(format!(
                        "begins at {from}; a logarithmic range needs more than 0"
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
            0 | 1 => error(format!("has {count} values; a range needs at least 2")),
            2..=MOST_POINTS => Ok(()),
            _ => error(format!(
                "has {count} values; at most {MOST_POINTS} are possible"
            )),
        }
    }
}

impl Values {
    fn list(&self, rng: &mut StdRng) -> Vec<Value> {
        let along = |range: &Range, at: &dyn Fn(f64) -> f64| {
            let last = (range.count - 1) as f64;
            let shares = (0..range.count).map(move |i| i as f64 / last);
            shares.map(|share| Value::Number(at(share))).collect()
        };
        match self {
            Self::Grid(values) => values.clone(),
            Self::Linear(range) => {
                let at = |share: f64| range.from + share * (range.to - range.from);
                along(range, &|share| round(at(share), 12))
            }
            Self::Log(range) => along(range, &|share| round(range.log(share), 3)),
            Self::LogUniform(range) => {
                let draws = (0..range.count).map(|_| round(range.log(rng.random()), 3));
                draws.map(Value::Number).collect()
            }
        }
    }
}

impl Range {
    /// The value at a share of the way, by ratios.
    fn log(&self, share: f64) -> f64 {
        self.from * (self.to / self.from).powf(share)
    }
}

/// `value` with this number of significant digits.
fn round(value: f64, digits: usize) -> f64 {
    let text = format!("{value:.*e}", digits - 1);
    text.parse().unwrap_or(value)
}

/// Parses `FIELD=VALUES`, where the values are a list `8,16,32`, a range `0..0.3:4` with the number of its
/// values, a logarithmic range `1e-4..1e-1:log:8`, or draws `1e-4..1e-1:log-uniform:8`.
impl FromStr for Swept {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let error = |problem: String| ConfigError::new(format!("--over {text}"), problem);
        let example =
            "give FIELD=VALUES, such as train.learning_rate=1e-4..1e-1:log:8 or train.batch=8,16";
        let (field, values) = text
            .split_once('=')
            .ok_or_else(|| error(format!("has no `=`; {example}")))?;
        let swept = Self {
            field: field.trim().to_owned(),
            values: values
                .parse()
                .map_err(|problem: String| error(format!("{problem}; {example}")))?,
        };
        swept.check().map_err(|found| error(found.problem))?;
        Ok(swept)
    }
}

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.trim().replace('_', "").parse::<f64>();
            number.map_err(|_| format!("has `{text}`, which is not a number"))
        };
        let Some((from, rest)) = text.split_once("..") else {
            let values = list(text).into_iter().map(|value| match number(value) {
                Ok(value) => Value::Number(value),
                Err(_) => Value::Ron(value.to_owned()),
            });
            return Ok(Self::Grid(values.collect()));
        };
        let parts: Vec<&str> = rest.split(':').map(str::trim).collect();
        let (to, kind, count) = match parts[..] {
            [to, count] => (to, "linear", count),
            [to, kind, count] => (to, kind, count),
            _ => return Err("is a range without the number of its values".into()),
        };
        let range = Range {
            from: number(from)?,
            to: number(to)?,
            count: count
                .parse()
                .map_err(|_| format!("has `{count}` as the number of values"))?,
        };
        match kind {
            "linear" => Ok(Self::Linear(range)),
            "log" => Ok(Self::Log(range)),
            "log-uniform" => Ok(Self::LogUniform(range)),
            _ => Err(format!(
                "has `{kind}`; it can be log, log-uniform or nothing"
            )),
        }
    }
}

/// The parts of a list, split at the commas outside brackets.
fn list(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(over: &[&str]) -> Sweep {
        Sweep {
            over: over.iter().map(|text| text.parse().unwrap()).collect(),
            seeds: vec![1],
            halving: None,
            tuned: false,
        }
    }

    fn points(over: &[&str]) -> Vec<String> {
        let sweep = sweep(over);
        sweep.check().unwrap();
        let points = sweep.points();
        points
            .iter()
            .map(|point| sweep.set(point).join(" "))
            .collect()
    }

    #[test]
    fn lists_and_ranges_have_the_values_that_they_say() {
        assert_eq!(
            points(&["train.batch=8,16"]),
            ["train.batch=8", "train.batch=16"]
        );
        assert_eq!(points(&["a=0..0.3:4"]), ["a=0", "a=0.1", "a=0.2", "a=0.3"]);
        assert_eq!(
            points(&["a=1e-4..1e-1:log:4"]),
            ["a=0.0001", "a=0.001", "a=0.01", "a=0.1"]
        );
        assert_eq!(points(&["a=1..10:log:3"]), ["a=1", "a=3.16", "a=10"]);
        assert_eq!(
            points(&["model.connection=None,PerLayer(Laurel(weights: Raw, per_dimension: true))"]),
            [
                "model.connection=None",
                "model.connection=PerLayer(Laurel(weights: Raw, per_dimension: true))"
            ]
        );
    }

    #[test]
    fn points_are_all_combinations_and_draws_are_drawn_together() {
        assert_eq!(
            points(&["a=1,2", "b=3,4"]),
            ["a=1 b=3", "a=1 b=4", "a=2 b=3", "a=2 b=4"]
        );
        let drawn = points(&["a=1..100:log-uniform:5", "c=0,1", "b=1..100:log-uniform:5"]);
        assert_eq!(drawn.len(), 10);
        let value = |point: &str, name: &str| -> f64 {
            let of = |part: &str| {
                Some(
                    part.split_once('=')
                        .filter(|(n, _)| *n == name)?
                        .1
                        .to_owned(),
                )
            };
            point.split(' ').find_map(of).unwrap().parse().unwrap()
        };
        for point in &drawn {
            let (a, b) = (value(point, "a"), value(point, "b"));
            assert!(
                (1.0..=100.0).contains(&a) && (1.0..=100.0).contains(&b),
                "{point}"
            );
            assert_ne!(a, b);
        }
        // The same every time.
        assert_eq!(
            drawn,
            points(&["a=1..100:log-uniform:5", "c=0,1", "b=1..100:log-uniform:5"])
        );
    }

    #[test]
    fn one_value_can_go_to_several_fields() {
        assert_eq!(points(&["a,b=1,2"]), ["a=1 b=1", "a=2 b=2"]);
        assert_eq!(
            sweep(&["train.learning_rate=1,2"]).over[0].name(),
            "learning rate"
        );
    }

    #[test]
    fn what_cannot_be_swept_is_named() {
        for (text, says) in [
            ("train.batch", "has no `=`"),
            ("a=", "has no values"),
            ("a=1..2", "without the number of its values"),
            ("a=1..2:cubic:3", "`cubic`"),
            ("a=1..x:3", "`x`, which is not a number"),
            ("a=2..1:3", "must rise"),
            ("a=0..1:log:3", "more than 0"),
            ("a=1..2:1", "at least 2"),
            ("a=1..2:log:18446744073709551615", "at most 10000"),
            ("=1,2", "name a field"),
            ("train.seed=1,2", "--seeds"),
            ("data.tokenizer=Chars,Bytes", "different validation data"),
            ("train.validate_batches=1,2", "different validation data"),
        ] {
            let error = text.parse::<Swept>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        let many = sweep(&["a=1..2:200", "b=1..2:200"]).check().unwrap_err();
        assert!(many.problem.contains("40000 points"), "{many}");
        let field = sweep(&["a=1,2", "a=3,4"]).check().unwrap_err();
        assert!(field.problem.contains("`a` twice"), "{field}");
        let twice = sweep(&["a=0.01,3,1e-2"]).check().unwrap_err();
        assert!(twice.problem.contains("a 0.01 twice"), "{twice}");
        let apart = sweep(&["a=1..2:log-uniform:3", "b=1..2:log-uniform:4"]);
        assert!(
            apart
                .check()
                .unwrap_err()
                .problem
                .contains("different counts")
        );
    }

    #[test]
    fn a_best_value_at_an_end_of_its_range_is_an_edge() {
        let edge = |text: &str, value: f64| text.parse::<Swept>().unwrap().edge(value);
        assert_eq!(edge("a=1,2,4", 1.0), Some("lower"));
        assert_eq!(edge("a=1,2,4", 2.0), None);
        assert_eq!(edge("a=1..16:log:5", 16.0), Some("upper"));
        assert_eq!(edge("a=7", 7.0), None);
        // Draws hardly ever meet the ends.
        assert_eq!(edge("a=1..1024:log-uniform:5", 1.9), Some("lower"));
        assert_eq!(edge("a=1..1024:log-uniform:5", 2.1), None);
        assert_eq!(edge("a=1..1024:log-uniform:5", 600.0), Some("upper"));
    }

    #[test]
    fn an_assignment_to_a_swept_field_is_found() {
        let sweep = sweep(&["train.learning_rate=1,2", "model.connection=None"]);
        assert!(sweep.varies("train.learning_rate=3"));
        assert!(sweep.varies("model.connection.PerLayer=3"));
        assert!(sweep.varies("model=Gpt2()"));
        assert!(!sweep.varies("train.learning_rates=3"));
    }

    #[test]
    fn rungs_end_at_validations_and_are_merged_if_these_are_the_same() {
        let train = |validate_every| TrainConfig {
            steps: 60,
            validate_every,
            ..TrainConfig::default()
        };
        let steps = |validate_every| -> Vec<usize> {
            let train = train(validate_every);
            let shares = Halving::default().shares(&[&train]);
            shares.iter().map(|share| until(&train, *share)).collect()
        };
        assert_eq!(steps(5), [15, 30, 60]);
        assert_eq!(steps(20), [20, 40, 60]);
        assert_eq!(steps(30), [30, 60]);
        assert_eq!(steps(100), [60]);
    }

    #[test]
    fn rungs_grow_to_the_whole() {
        let halving = Halving::default();
        let train = TrainConfig {
            validate_every: 1,
            ..TrainConfig::default()
        };
        assert_eq!(halving.shares(&[&train]), [0.25, 0.5, 1.0]);
        assert_eq!([8, 5, 1].map(|count| halving.survivors(count)), [4, 3, 1]);
    }
}
