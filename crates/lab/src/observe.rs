//! Measured values of a run.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::fmt;
use std::path::PathBuf;

use residual_zoo_core::ModelConfig;
use residual_zoo_runs::Row;
use residual_zoo_train::Summary;
use serde::Serialize;

use crate::quantity::{BITS_PER_BYTE, LEARNED, cost_quantities, on_curve};
use crate::{Axis, DataFacts, FinishedRuns, PlannedRun, Tuning};

/// The measured values of one run with one seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Observation {
    /// The name in the experiment.
    pub run: String,
    /// The name of the line of runs to which the run belongs.
    pub line: String,
    /// The seed; `None` if nothing is random.
    pub seed: Option<u64>,
    /// The values of the quantities, by name.
    pub quantities: BTreeMap<String, f64>,
    /// The directory of the run in the pool.
    #[serde(skip)]
    pub directory: Option<PathBuf>,
    /// Values that the paper reports for the run, by quantity.
    #[serde(skip)]
    pub published: BTreeMap<String, f64>,
    /// The logged rows. Their tokens, FLOPs and seconds include the runs from whose weights the run started.
    #[serde(skip)]
    pub rows: Vec<Row>,
}

/// A run without observations.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The name in the experiment.
    pub run: String,
    /// The seed; `None` for all seeds.
    pub seed: Option<u64>,
    /// The reason why the run has no observations.
    pub why: String,
    /// Whether the training diverged, as opposed to another failure.
    pub diverged: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, seed, why, .. } = self;
        match seed {
            Some(seed) => write!(f, "{run}, seed {seed}: {why}"),
            None => write!(f, "{run}: {why}"),
        }
    }
}

/// The observations of an experiment, and the runs without any.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The observations, seed by seed and run by run.
    pub observations: Vec<Observation>,
    /// The runs without observations, each with its reason.
    pub missing: Vec<Missing>,
    /// The finished runs, including the runs of the sweep.
    pub finished: FinishedRuns,
    /// The results of the sweep, if there was one.
    pub tuning: Option<Tuning>,
    /// Whether the experiment was stopped before its end.
    pub stopped: bool,
    /// Seconds of training by run directory, including runs that were trained before. A run that is used twice counts
    /// once.
    pub seconds: BTreeMap<PathBuf, f64>,
    /// The data of the runs.
    pub data: Vec<DataFacts>,
    /// The name of each run, and all its settings as RON.
    pub configs: Vec<(String, String)>,
    /// Sentences on settings that may not be intended.
    pub notes: Vec<String>,
}

impl Outcome {
    /// Adds every run of `all` that is not in `asked` to the missing runs.
    pub(crate) fn leave_out<C>(&mut self, all: &[PlannedRun<C>], asked: &[PlannedRun<C>]) {
        let is_left_out = |run: &&PlannedRun<C>| asked.iter().all(|kept| kept.name != run.name);
        let left_out = all.iter().filter(is_left_out);
        self.missing.extend(left_out.map(|run| Missing {
            run: run.name.clone(),
            seed: None,
            why: "left out".into(),
            diverged: false,
        }));
    }
}

impl Observation {
    /// Observes the cost of a run's model with `vocab_size` token ids, and the values that the experiment file gives
    /// for the run.
    pub fn counted<C: ModelConfig>(run: &PlannedRun<C>, vocab_size: usize) -> Self {
        let config = run.config.as_ref();
        let cost = config.map(|config| config.model.cost(config.vocabulary(vocab_size)));
        let mut quantities = cost.map(cost_quantities).unwrap_or_default();
        quantities.extend(run.values.clone());
        Self {
            run: run.name.clone(),
            line: run.line.clone(),
            quantities,
            published: run.published.clone(),
            ..Self::default()
        }
    }

    /// Returns the value of a quantity, if the run has one.
    pub fn get(&self, quantity: &str) -> Option<f64> {
        self.quantities.get(quantity).copied()
    }

    /// Returns the curve of `quantity` over `axis`.
    pub fn curve(&self, axis: Axis, quantity: &str) -> Vec<(f64, f64)> {
        let rows = self.rows.iter();
        let point = |row: &Row| Some((axis.of(row), on_curve(quantity, row).ok()??));
        rows.filter_map(point).collect()
    }

    /// Returns the first point on `axis` at which the validation loss reaches `loss`, by linear interpolation between
    /// rows. Returns `None` if the loss is never reached.
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

/// Returns the points (x, y) of every run, one for each seed. `x` and `y` are names of quantities.
pub(crate) fn points_by_run<'a>(
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

/// Observes the quantities and rows of a trained run. `before` is the run from whose weights it started.
pub(crate) fn of_summary(
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
    for axis in Axis::ALL {
        add(axis.name(), rows.last().map(|row| axis.of(row)));
    }
    let level = rows.last().and_then(|row| row.level);
    add("level", level.map(|level| level as f64));
    add("step_time", median);
    add("step_time_spread", spread);
    (quantities, rows)
}

/// Adds the validation loss in bits per byte of text, if the number of bytes per token is known.
pub(crate) fn add_bits_per_byte(
    quantities: &mut BTreeMap<String, f64>,
    bytes_per_token: Option<f64>,
) {
    let loss = quantities.get("valid_loss").copied();
    if let Some((loss, bytes)) = loss.zip(bytes_per_token) {
        quantities.insert(BITS_PER_BYTE.into(), loss / LN_2 / bytes);
    }
}

/// Returns the median of the seconds per step between neighbouring rows, and half of the interquartile range.
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

/// Groups a checkpoint's one-element tensors by the last part of their names, and returns the mean of each group. A
/// tensor whose name ends in `_logit` counts with its sigmoid, under the name without that suffix.
pub(crate) fn learned(scalars: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, value) in scalars {
        let end = name.rsplit('.').next().unwrap_or(name);
        let (end, value) = match end.strip_suffix("_logit") {
            Some(end) => (end, 1.0 / (1.0 + (-value).exp())),
            None => (end, *value),
        };
        let group = groups.entry(format!("{LEARNED}{end}")).or_default();
        group.push(value);
    }
    let mean = |values: &Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let groups = groups.into_iter();
    groups.map(|(name, values)| (name, mean(&values))).collect()
}
