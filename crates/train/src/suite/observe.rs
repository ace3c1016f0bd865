//! What is measured of a run.

use std::collections::BTreeMap;

use residual_zoo_core::Cost;
use serde::Serialize;

use crate::report::{si, sig};
use crate::{Row, Summary};

/// What curves are drawn over: totals since the start, of the runs before it as well where a run
/// starts from the weights of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Axis {
    /// Training tokens.
    Tokens,
    /// Training FLOPs.
    Flops,
    /// Seconds of training.
    Seconds,
}

impl Axis {
    /// By its name: `tokens`, `flops` or `seconds`.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "tokens" => Some(Self::Tokens),
            "flops" => Some(Self::Flops),
            "seconds" => Some(Self::Seconds),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Flops => "flops",
            Self::Seconds => "seconds",
        }
    }

    /// Its value in a row.
    pub fn of(self, row: &Row) -> f64 {
        match self {
            Self::Tokens => row.tokens as f64,
            Self::Flops => row.flops,
            Self::Seconds => row.seconds,
        }
    }
}

/// Whether a run has a curve of it.
pub(super) fn is_curve(quantity: &str) -> bool {
    on_curve(quantity, &Row::default()).is_ok()
}

/// The value of a curve at `row`, if it was measured there.
pub(super) fn on_curve(quantity: &str, row: &Row) -> Result<Option<f64>, ()> {
    match quantity {
        "train_loss" => Ok(row.train_loss),
        "valid_loss" => Ok(row.valid_loss),
        "perplexity" => Ok(row.valid_loss.map(f64::exp)),
        "valid_accuracy" => Ok(row.valid_accuracy),
        _ => Err(()),
    }
}

/// How a quantity is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Its unit; empty for none.
    pub unit: &'static str,
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Count,
    Loss,
    Percent,
    Seconds,
    Bytes,
    Plain,
}

const LEARNED: &str = "learned ";

/// How the quantity called so is shown; `None` if runs have none of that name.
///
/// `learned NAME` is the mean of the parameters with one element whose name ends in NAME.
pub fn describe(quantity: &str) -> Option<Observed> {
    let (unit, format) = match quantity {
        "parameters" | "non_embedding" => ("", Format::Count),
        "training_flops_per_token" | "forward_flops_per_token" => ("FLOP", Format::Count),
        "flops" => ("FLOP", Format::Count),
        "tokens" => ("", Format::Count),
        "seconds" => ("s", Format::Seconds),
        "train_loss" | "valid_loss" | "first_valid_loss" | "lowest_valid_loss" => {
            ("nats/token", Format::Loss)
        }
        "perplexity" | "level" => ("", Format::Plain),
        "valid_accuracy" | "highest_valid_accuracy" => ("%", Format::Percent),
        "step_time" | "step_time_spread" => ("s", Format::Seconds),
        "peak_memory" => ("MiB", Format::Bytes),
        _ if quantity.starts_with(LEARNED) => ("", Format::Plain),
        _ => return None,
    };
    Some(Observed { unit, format })
}

/// Whether the model alone decides the quantity called so, and no seed.
pub fn is_cost(quantity: &str) -> bool {
    cost_quantities(Cost::default()).contains_key(quantity)
}

impl Observed {
    /// A quantity that an experiment measures itself.
    pub const OWN: Self = Self {
        unit: "",
        format: Format::Plain,
    };

    /// `value` with the digits that it deserves, without its unit.
    pub fn show(self, value: f64) -> String {
        match self.format {
            Format::Count => si(value),
            Format::Loss => format!("{value:.4}"),
            Format::Percent => format!("{:.1}", 100.0 * value),
            Format::Bytes => format!("{:.1}", value / f64::from(1 << 20)),
            // Sizes are whole numbers.
            Format::Plain if value.fract() == 0.0 && value.abs() < 1e5 => format!("{value}"),
            Format::Plain if value.abs() >= 1e5 => si(value),
            Format::Seconds | Format::Plain => sig(value, 4),
        }
    }

    /// Factor from the value to what axes show.
    pub fn scale(self) -> f64 {
        match self.format {
            Format::Percent => 100.0,
            Format::Bytes => 1.0 / f64::from(1 << 20),
            _ => 1.0,
        }
    }

    /// A difference or a spread of values.
    pub fn show_difference(self, value: f64) -> String {
        match self.format {
            Format::Loss => format!("{value:.4}"),
            Format::Percent => format!("{:.1}", 100.0 * value),
            Format::Bytes => format!("{:.1}", value / f64::from(1 << 20)),
            Format::Count => si(value),
            Format::Seconds | Format::Plain => sig(value, 2),
        }
    }
}

/// What was measured of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Observation {
    /// Its name in the suite.
    pub run: String,
    /// The line that it is a point of.
    pub line: String,
    /// Its seed; `None` where nothing is drawn.
    pub seed: Option<u64>,
    /// The quantities.
    pub quantities: BTreeMap<String, f64>,
    /// Its rows, with totals that count the runs before it whose weights it started from.
    #[serde(skip)]
    pub rows: Vec<Row>,
}

impl Observation {
    /// A quantity.
    pub fn get(&self, quantity: &str) -> Option<f64> {
        self.quantities.get(quantity).copied()
    }

    /// The curve of `quantity` over `axis`.
    pub fn curve(&self, axis: Axis, quantity: &str) -> Vec<(f64, f64)> {
        let rows = self.rows.iter();
        let point = |row: &Row| Some((axis.of(row), on_curve(quantity, row).ok()??));
        rows.filter_map(point).collect()
    }

    /// Where on `axis` the validation loss first is `loss`, between two rows by a straight line.
    pub fn reaches(&self, axis: Axis, loss: f64) -> Option<f64> {
        let curve = self.curve(axis, "valid_loss");
        let at = curve.iter().position(|(_, y)| *y <= loss)?;
        let (x1, y1) = curve[at];
        let Some((x0, y0)) = at.checked_sub(1).map(|i| curve[i]) else {
            return Some(x1);
        };
        Some(x0 + (x1 - x0) * (y0 - loss) / (y0 - y1))
    }
}

/// The points of every run, one for each seed, by two quantities.
pub(super) fn points_by_run<'a>(
    observations: impl Iterator<Item = &'a Observation>,
    (x, y): (&str, &str),
) -> Vec<Vec<(f64, f64)>> {
    let mut runs: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for found in observations {
        if let (Some(x), Some(y)) = (found.get(x), found.get(y)) {
            runs.entry(&found.run).or_default().push((x, y));
        }
    }
    runs.into_values().collect()
}

/// What a config costs, trained or not.
pub(super) fn cost_quantities(cost: Cost) -> BTreeMap<String, f64> {
    let quantities = [
        ("parameters", cost.params.total()),
        ("non_embedding", cost.params.other),
        ("forward_flops_per_token", cost.forward_flops),
        ("training_flops_per_token", cost.training_flops()),
    ];
    let named = |(name, count): (&str, usize)| (name.to_owned(), count as f64);
    quantities.into_iter().map(named).collect()
}

/// The quantities and rows of a trained run. `before` is the run whose weights it started from.
pub(super) fn of_summary(
    summary: &Summary,
    before: Option<&Observation>,
) -> (BTreeMap<String, f64>, Vec<Row>) {
    let mut rows = summary.rows.clone();
    let mut quantities = cost_quantities(summary.cost);
    let (median, spread) = step_times(&rows);
    if let Some(last) = before.and_then(|before| before.rows.last()) {
        for row in &mut rows {
            row.tokens += last.tokens;
            row.flops += last.flops;
            row.seconds += last.seconds;
        }
    }
    let mut add = |name: &str, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            quantities.insert(name.into(), value);
        }
    };
    let losses = || rows.iter().filter_map(|row| row.valid_loss);
    let accuracies = rows.iter().filter_map(|row| row.valid_accuracy);
    add("train_loss", Some(summary.train_loss));
    add("valid_loss", Some(summary.valid_loss));
    add("first_valid_loss", losses().next());
    add("lowest_valid_loss", losses().reduce(f64::min));
    add("perplexity", Some(summary.valid_loss.exp()));
    add("valid_accuracy", Some(summary.valid_accuracy));
    add("highest_valid_accuracy", accuracies.reduce(f64::max));
    for axis in [Axis::Tokens, Axis::Flops, Axis::Seconds] {
        add(axis.name(), rows.last().map(|row| axis.of(row)));
    }
    let level = rows.last().and_then(|row| row.level);
    add("level", level.map(|level| level as f64));
    add("step_time", median);
    add("step_time_spread", spread);
    (quantities, rows)
}

/// Median of the seconds per step between rows, and the half of the range in which the middle half
/// of them lies.
fn step_times(rows: &[Row]) -> (Option<f64>, Option<f64>) {
    let pairs = rows.windows(2).filter(|pair| pair[1].step > pair[0].step);
    let time =
        |pair: &[Row]| (pair[1].seconds - pair[0].seconds) / (pair[1].step - pair[0].step) as f64;
    let mut times: Vec<f64> = pairs.map(time).collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let last = times.len().checked_sub(1)?;
        times.get((share * last as f64).round() as usize).copied()
    };
    let spread = at(0.75).zip(at(0.25)).map(|(high, low)| (high - low) / 2.0);
    (at(0.5), spread)
}

/// The mean of the one-element tensors of a checkpoint whose names end alike.
pub(super) fn learned(scalars: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, value) in scalars {
        let end = name.rsplit('.').next().unwrap_or(name);
        groups
            .entry(format!("{LEARNED}{end}"))
            .or_default()
            .push(*value);
    }
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    groups
        .into_iter()
        .map(|(name, values)| (name, mean(values)))
        .collect()
}
