//! Widens logarithmic ranges whose best value is at an end.

use residual_zoo_core::ConfigError;
use residual_zoo_system::counted;

use super::values::{ALL_DIGITS, round};
use super::{Point, Range, Sweep, Swept, Value};

/// Maximum number of values by which an end of a range moves.
const MOST_WIDER: usize = 16;

impl Sweep {
    /// Checks `widen`.
    pub(super) fn check_widen(&self) -> Result<(), ConfigError> {
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
            points.append(&mut moved(&points, field, &best[field], next));
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
            let start = Value::Number(range.from);
            for value in range.beyond(self.widen) {
                points.append(&mut moved(&points, field, &start, value));
            }
        }
        points.into_iter().skip(count).map(Point).collect()
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
}

/// Returns the points whose value of a field is `from`, with the value `to` instead.
fn moved(points: &[Vec<Value>], field: usize, from: &Value, to: f64) -> Vec<Vec<Value>> {
    let at_end = points.iter().filter(|values| values[field] == *from);
    let mut moved: Vec<Vec<Value>> = at_end.cloned().collect();
    for values in &mut moved {
        values[field] = Value::Number(to);
    }
    moved
}

impl Swept {
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
}

impl Range {
    /// Returns `count` values below and `count` values above a logarithmic range, at the ratio of its values. The values
    /// are rounded to three digits, or to more if needed to keep them apart.
    pub(super) fn beyond(&self, count: usize) -> Vec<f64> {
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
}
