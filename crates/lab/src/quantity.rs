//! Quantities by name, and their formats.

use std::collections::BTreeMap;

use residual_zoo_core::Cost;
use residual_zoo_report::{si, sig};
use residual_zoo_runs::Row;
use serde::Serialize;

/// The horizontal axis of a curve: a total since the start of training. For a run that starts from the weights of
/// another run, the total includes that run.
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
    pub(crate) const ALL: [Self; 3] = [Self::Tokens, Self::Flops, Self::Seconds];

    /// Finds an axis by its name: `tokens`, `flops` or `seconds`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|axis| axis.name() == name)
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Flops => "flops",
            Self::Seconds => "seconds",
        }
    }

    /// Returns the value in a row.
    pub fn of(self, row: &Row) -> f64 {
        match self {
            Self::Tokens => row.tokens as f64,
            Self::Flops => row.flops,
            Self::Seconds => row.seconds,
        }
    }
}

/// Whether the quantity is measured during training, so that it has a curve.
pub(crate) fn is_curve(quantity: &str) -> bool {
    on_curve(quantity, &Row::default()).is_ok()
}

/// Returns the value of a curve at `row`, if it was measured there. Returns an error if the quantity has no curve.
pub(crate) fn on_curve(quantity: &str, row: &Row) -> Result<Option<f64>, ()> {
    match quantity {
        "train_loss" => Ok(row.train_loss),
        "valid_loss" => Ok(row.valid_loss),
        "perplexity" => Ok(row.valid_loss.map(f64::exp)),
        "valid_accuracy" => Ok(row.valid_accuracy),
        _ => Err(()),
    }
}

/// The format of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The unit; empty for none.
    pub unit: &'static str,
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Count,
    Loss,
    Percent,
    Seconds,
    Milliseconds,
    Bytes,
    Gibibytes,
    Plain,
}

/// The quantities of trained runs. A run can lack some of them, such as `level` without a curriculum.
pub(crate) const QUANTITIES: [&str; 19] = [
    "parameters",
    "non_embedding",
    "forward_flops_per_token",
    "training_flops_per_token",
    "tokens",
    "flops",
    "seconds",
    "train_loss",
    "valid_loss",
    "first_valid_loss",
    "lowest_valid_loss",
    BITS_PER_BYTE,
    "perplexity",
    "valid_accuracy",
    "highest_valid_accuracy",
    "level",
    "step_time",
    "step_time_spread",
    "peak_memory",
];

/// The quantities that are not measured while other runs train on the same cores.
pub(crate) const TIMES: [&str; 3] = ["seconds", "step_time", "step_time_spread"];

pub(crate) const LEARNED: &str = "learned ";

/// The name of the validation loss in bits per byte of text. This unit does not depend on the tokenizer.
pub const BITS_PER_BYTE: &str = "bits_per_byte";

/// On a ladder, the name of the number of non-embedding parameters of the baseline.
pub(crate) const SIZE: &str = "size";
/// On a ladder, the name of the difference from the baseline.
pub(crate) const GAIN: &str = "gain";

/// Returns the format of a quantity of runs; `None` if runs have no such quantity.
///
/// `learned NAME` is a mean over parameters with one element. If the last part of a parameter's name is NAME, its value
/// counts; if the last part is NAME_logit, its sigmoid counts.
pub fn describe(quantity: &str) -> Option<Observed> {
    let (unit, format) = match quantity {
        "parameters" | "non_embedding" | "tokens" => ("", Format::Count),
        "training_flops_per_token" | "forward_flops_per_token" | "flops" => ("FLOP", Format::Count),
        "seconds" => ("s", Format::Seconds),
        "train_loss" | "valid_loss" | "first_valid_loss" | "lowest_valid_loss" => {
            ("nats", Format::Loss)
        }
        BITS_PER_BYTE => ("bits/byte", Format::Loss),
        "perplexity" | "level" => ("", Format::Plain),
        "valid_accuracy" | "highest_valid_accuracy" => ("%", Format::Percent),
        "step_time" | "step_time_spread" => ("ms", Format::Milliseconds),
        "peak_memory" => ("MiB", Format::Bytes),
        _ if quantity.starts_with(LEARNED) => ("", Format::Plain),
        _ => return None,
    };
    Some(Observed { unit, format })
}

/// Returns the name of a quantity in tables and charts.
pub(crate) fn title(quantity: &str) -> String {
    match quantity {
        "non_embedding" => "non-embedding".into(),
        _ => quantity.replace('_', " "),
    }
}

/// Whether a quantity depends only on the model.
pub fn is_cost(quantity: &str) -> bool {
    cost_quantities(Cost::default()).contains_key(quantity)
}

impl Observed {
    /// Returns the format of a quantity. A quantity that an experiment measures itself is a plain number.
    pub fn of(quantity: &str) -> Self {
        let (unit, format) = match quantity.rsplit_once(' ') {
            // A metric of a task.
            Some((_, "acc" | "acc_norm")) => ("%", Format::Percent),
            Some((_, "bits_per_byte")) => ("bits/byte", Format::Loss),
            Some((_, "bits_per_token")) => ("bits/token", Format::Loss),
            _ if quantity == GAIN => ("nats", Format::Loss),
            _ if quantity == SIZE => ("", Format::Count),
            _ => ("", Format::Plain),
        };
        describe(quantity).unwrap_or(Self { unit, format })
    }

    /// Returns the common format of several values of a quantity. Memory is in GiB if one value is at least 1 GiB.
    pub(crate) fn of_all(quantity: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let large = Self {
            unit: "GiB",
            format: Format::Gibibytes,
        };
        let is_large = |value: f64| value * large.scale() >= 1.0;
        match Self::of(quantity) {
            of if of.format == Format::Bytes && values.into_iter().any(is_large) => large,
            of => of,
        }
    }

    /// Shows `value` with a sensible number of digits, without its unit.
    pub fn show(self, value: f64) -> String {
        match self.format {
            // Whole numbers, such as sizes, are shown exactly.
            Format::Plain if value.fract() == 0.0 && value.abs() < 1e5 => format!("{value}"),
            _ => self.digits(value, 4),
        }
    }

    /// Shows a difference or a spread of values.
    pub fn show_difference(self, value: f64) -> String {
        self.digits(value, 2)
    }

    /// Shows a difference with its sign.
    pub fn show_signed(self, difference: f64) -> String {
        let sign = if difference > 0.0 { "+" } else { "" };
        format!("{sign}{}", self.show_difference(difference))
    }

    /// Shows a difference with its sign, and ± half the width of its interval if the width is finite.
    pub fn show_interval(self, difference: f64, half_width: f64) -> String {
        let mut shown = self.show_signed(difference);
        if half_width.is_finite() {
            shown += &format!(" ± {}", self.show_difference(half_width));
        }
        shown
    }

    fn digits(self, value: f64, significant: usize) -> String {
        match self.format {
            Format::Count => si(value),
            Format::Loss => format!("{value:.4}"),
            Format::Percent | Format::Bytes => format!("{:.1}", value * self.scale()),
            Format::Gibibytes => format!("{:.2}", value * self.scale()),
            Format::Milliseconds => sig(value * self.scale(), significant.min(3)),
            Format::Plain if value.abs() >= 1e5 => si(value),
            Format::Seconds | Format::Plain => sig(value, significant),
        }
    }

    /// Appends the unit to `text`.
    pub fn with_unit(self, text: String) -> String {
        match self.unit {
            "" => text,
            unit => format!("{text} {unit}"),
        }
    }

    /// Returns the factor that converts a value in seconds, bytes or shares to the numbers in tables and on axes.
    pub fn scale(self) -> f64 {
        match self.format {
            Format::Percent => 100.0,
            Format::Milliseconds => 1e3,
            Format::Bytes => 1.0 / f64::from(1 << 20),
            Format::Gibibytes => 1.0 / f64::from(1 << 30),
            _ => 1.0,
        }
    }
}

/// Returns the quantities that follow from the cost of a model.
pub(crate) fn cost_quantities(cost: Cost) -> BTreeMap<String, f64> {
    let quantities = [
        ("parameters", cost.params.total()),
        ("non_embedding", cost.params.other),
        ("forward_flops_per_token", cost.forward_flops),
        ("training_flops_per_token", cost.training_flops()),
    ];
    let named = |(name, count): (&str, usize)| (name.to_owned(), count as f64);
    quantities.into_iter().map(named).collect()
}
