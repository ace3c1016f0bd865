//! The curves of any runs in one chart.

use residual_zoo_core::ConfigError;
use residual_zoo_report::{Axis as ChartAxis, Chart, Series};
use residual_zoo_runs::Row;

use crate::quantity::{on_curve, title};
use crate::{Axis, Error, Observed};

/// The quantities that have a curve.
pub const CURVES: [&str; 4] = ["train_loss", "valid_loss", "perplexity", "valid_accuracy"];

/// A chart of the quantity `y` over `x`, with a line for each run, by name. `x` is `steps`, `tokens`,
/// `flops` or `seconds`, and `y` is one of [`CURVES`].
///
/// # Errors
///
/// Another axis, or a run in which `y` was never measured.
pub fn curves(runs: &[(String, Vec<Row>)], x: &str, y: &str) -> Result<Chart, Error> {
    let horizontal = |row: &Row| match (x, Axis::parse(x)) {
        ("steps", _) => Some(row.step as f64),
        (_, axis) => axis.map(|axis| axis.of(row)),
    };
    let scale = Observed::of(y).scale();
    let mut series = Vec::new();
    for (i, (name, rows)) in runs.iter().enumerate() {
        let point = |row: &Row| Some((horizontal(row)?, on_curve(y, row).ok()?? * scale));
        let points: Vec<_> = rows.iter().filter_map(point).collect();
        if points.is_empty() {
            let problem = format!("has no {} over {x}", title(y));
            return Err(ConfigError::new(name, problem).into());
        }
        series.push(Series::line(name, i, points));
    }
    let unit = if x == "steps" {
        ""
    } else {
        Observed::of(x).unit
    };
    Ok(Chart {
        heading: format!("{} over {x}", title(y)),
        x: ChartAxis::linear(x, unit),
        y: ChartAxis::linear(title(y), Observed::of(y).unit),
        series,
        ..Chart::default()
    })
}
