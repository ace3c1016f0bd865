//! Sweeps: the values to try for some fields, and the rule by which bad points are given up early.

mod parse;
mod rule;
#[cfg(test)]
mod tests;
mod values;
mod widen;

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand::rngs::StdRng;
use residual_zoo_core::{ConfigError, check};
use residual_zoo_runs::{TrainConfig, names_of, overlaps};
use serde::{Deserialize, Serialize};

use crate::check::not_empty;

pub use rule::Rule;
pub use values::{Range, Swept, Value, Values};

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
    /// On a ladder, the rule that gives the field a value at every size. With a rule, only some sizes are swept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

fn is_zero(count: &usize) -> bool {
    *count == 0
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
    fn check(self) -> Result<(), ConfigError> {
        let Self { rungs, keep } = self;
        check::at_least_one("sweep.halving.rungs", rungs)?;
        if rungs > MOST_RUNGS {
            let problem = format!("is {rungs}; it must be at most {MOST_RUNGS}");
            return Err(ConfigError::new("sweep.halving.rungs", problem));
        }
        if !(keep > 0.0 && keep < 1.0) {
            let problem = format!("is {keep}; it must be above 0 and below 1");
            return Err(ConfigError::new("sweep.halving.keep", problem));
        }
        Ok(())
    }

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

/// Returns the path in `PATH=VALUE`. The budget in tokens becomes the number of steps, which follows from it.
fn of_length(assignment: &str) -> &str {
    let path = assignment.split('=').next().unwrap_or_default().trim();
    match path {
        "train.tokens" => "train.steps",
        path => path,
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

/// Rounds a fitted value to three significant digits, as values of a logarithmic range are rounded.
pub(crate) fn rounded(value: f64) -> f64 {
    values::round(value, 3)
}

/// The name that errors use for the list of swept fields. A program replaces this name with its own option.
pub const OVER: &str = "sweep.over";

/// Maximum number of rungs of successive halving.
const MOST_RUNGS: usize = 16;
/// Maximum number of points of a sweep.
const MOST_POINTS: usize = 10_000;
/// The seed of the draws, the same for every sweep.
const DRAWS: u64 = 1;

impl Sweep {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn check(&self) -> Result<(), ConfigError> {
        not_empty(OVER, self.over.len())?;
        not_empty("sweep.seeds", self.seeds.len())?;
        self.check_over()?;
        if let Some(halving) = self.halving {
            halving.check()?;
        }
        self.check_widen()?;
        let most = |field: &str, upto: &str, points: usize| match points {
            0..=MOST_POINTS => Ok(()),
            _ => {
                let problem =
                    format!("gives {upto}{points} points; at most {MOST_POINTS} are possible");
                Err(ConfigError::new(field, problem))
            }
        };
        most(OVER, "", self.count(0))?;
        most("sweep.widen", "up to ", self.count(2 * self.widen))?;
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

    fn check_over(&self) -> Result<(), ConfigError> {
        for swept in &self.over {
            swept.check().map_err(|error| error.within(OVER))?;
        }
        let paths = self.over.iter().flat_map(|swept| swept.field.split(','));
        let mut paths = paths.map(str::trim);
        let mut known = BTreeSet::new();
        if let Some(twice) = paths.find(|path| !known.insert(names_of(path))) {
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
        Ok(())
    }

    /// Whether the assignment `PATH=VALUE` sets a swept field, a part of it, or a field that contains it. The number of
    /// steps and the budget in tokens count as one field.
    pub fn varies(&self, assignment: &str) -> bool {
        let mut paths = self.over.iter().flat_map(|swept| swept.field.split(','));
        paths.any(|swept| overlaps(of_length(assignment), of_length(swept)))
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

    /// Names a point as in tables: `learning rate 0.003, batch 8`.
    pub(crate) fn describe(&self, point: &Point) -> String {
        let fields = self.over.iter().zip(&point.0);
        let named = fields.map(|(swept, value)| format!("{} {value}", swept.name()));
        named.collect::<Vec<_>>().join(", ")
    }
}
