//! Suites: the runs of an experiment, what is measured of them, and what that says about the
//! claims of a paper.
//!
//! A [`Suite`] is a RON file: models, data, budget and seeds, what to draw, and each claim as a
//! [`Test`]. [`run_suite`] trains what is not trained yet and observes every run;
//! [`Results`] judges the claims and writes the report.

mod charts;
mod claims;
mod judge;
mod observe;
mod results;
mod run_suite;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use residual_zoo_core::{ConfigError, ModelConfig, check};
use residual_zoo_data::DataConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Error, FirstWeights, RunConfig, TrainConfig, config};

pub use claims::{Claim, Judgement, Test, Verdict};
pub use observe::{Axis, Observation, Observed, describe, is_cost};
pub use results::{Origin, Results};
pub use run_suite::{Meter, Outcome, Pool, SuiteOptions, count, run_suite};
pub use stats::{Estimate, Line};

/// An experiment: the content of a file `experiments/<paper>/<name>/<scale>.ron`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "C: Serialize + DeserializeOwned")]
pub struct Suite<C> {
    /// The question, as a heading.
    pub title: String,
    /// What is done and how it relates to the paper; a blank line starts a new paragraph.
    pub about: String,
    /// The data of every run that names none.
    #[serde(default)]
    pub data: DataConfig,
    /// Other data, of runs that say so.
    #[serde(default)]
    pub new_data: Option<DataConfig>,
    /// How every run trains, before its `set`.
    #[serde(default)]
    pub train: TrainConfig,
    /// One run of everything for each seed.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// Nothing is trained: models, if there are any, are counted with so many token ids, and the
    /// rest is measured by the experiment.
    #[serde(default)]
    pub count: Option<usize>,
    /// What is trained, counted or measured.
    pub runs: Vec<RunSpec<C>>,
    /// The columns of the table, as quantities.
    pub columns: Vec<String>,
    /// What is drawn.
    #[serde(default)]
    pub charts: Vec<ChartSpec>,
    /// What the paper claims.
    #[serde(default)]
    pub claims: Vec<Claim>,
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

/// A run of a suite, or a line of them along which one field varies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "C: Serialize + DeserializeOwned")]
pub struct RunSpec<C> {
    /// What it is called.
    pub name: String,
    /// The line of points that it belongs to; `None` for one of its own name.
    #[serde(default)]
    pub line: Option<String>,
    /// The model; `None` where the experiment measures something else.
    #[serde(default = "Option::default")]
    pub model: Option<C>,
    /// Fields in which it differs from the suite, as `PATH=VALUE` (see [`RunConfig::set`]).
    #[serde(default)]
    pub set: Vec<String>,
    /// Whether its data are the new data.
    #[serde(default)]
    pub on_new_data: bool,
    /// The run whose weights it starts from, a name.
    #[serde(default)]
    pub after: Option<After>,
    /// What varies, where this stands for several runs.
    #[serde(default)]
    pub vary: Option<Vary>,
    /// The seeds for which it is run; `None` for all.
    #[serde(default)]
    pub seeds: Option<Vec<u64>>,
    /// Numbers that charts and claims may use, such as the size that sets it apart.
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
    /// What the paper printed for it, by quantity.
    #[serde(default)]
    pub published: BTreeMap<String, f64>,
}

/// Where a run takes its first weights from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    /// The name of a run that stands before it.
    pub run: String,
    /// How they get there.
    #[serde(default)]
    pub by: FirstWeights,
}

/// A field and the values that it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vary {
    /// Its path, as in `set`; several that take the same value have a comma between. None where
    /// only the experiment reads the value.
    #[serde(default)]
    pub field: String,
    /// What it is called in names, charts and claims.
    pub name: String,
    /// Its values.
    pub over: Vec<f64>,
    /// The number called `name` is so many times the value of the field.
    #[serde(default = "once")]
    pub times: f64,
}

fn once() -> f64 {
    1.0
}

/// What is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChartSpec {
    /// The heading.
    pub title: String,
    /// What to see in it.
    #[serde(default)]
    pub note: String,
    /// The horizontal axis: for curves one of [`Axis`], else a quantity.
    pub x: String,
    /// The vertical axis: for curves `train_loss`, `valid_loss`, `valid_accuracy` or `perplexity`,
    /// else a quantity.
    pub y: String,
    /// Whether every run is a curve, rather than a point.
    #[serde(default)]
    pub curves: bool,
    /// Whether x is logarithmic.
    #[serde(default)]
    pub log_x: bool,
    /// Whether y is logarithmic.
    #[serde(default)]
    pub log_y: bool,
    /// Whether a power law is fitted to every line of points.
    #[serde(default)]
    pub fit: bool,
    /// Which lines are drawn; none for all.
    #[serde(default)]
    pub lines: Vec<String>,
    /// Whether what the paper printed for the runs is drawn, where it is of the same task and in
    /// the same units: a point where it printed x and y, a line across where it printed y alone.
    #[serde(default)]
    pub printed: bool,
    /// Points that the paper printed: a name, and where they are.
    #[serde(default)]
    pub published: Vec<(String, Vec<(f64, f64)>)>,
}

/// A run of a suite with everything that it takes from there.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned<C> {
    /// What it is called.
    pub name: String,
    /// What the line is called that it is a point of.
    pub line: String,
    /// Model, data and training, but for the seed; `None` without a model.
    pub config: Option<RunConfig<C>>,
    /// The run whose weights it starts from.
    pub after: Option<After>,
    /// The seeds for which it is run; `None` for all.
    pub seeds: Option<Vec<u64>>,
    /// Numbers that charts and claims may use.
    pub values: BTreeMap<String, f64>,
    /// What the paper printed for it, by quantity.
    pub published: BTreeMap<String, f64>,
}

impl<C> Planned<C> {
    /// Whether it is run for `seed`.
    pub fn is_for(&self, seed: u64) -> bool {
        self.seeds
            .as_ref()
            .is_none_or(|seeds| seeds.contains(&seed))
    }
}

impl<C: ModelConfig> Suite<C> {
    /// Reads RON text; `path` is what errors call it.
    ///
    /// # Errors
    ///
    /// The line and column of what does not parse.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        config::parse_ron(text, path)
    }

    /// All runs, in order, each with `set` on top of what the suite says.
    ///
    /// # Errors
    ///
    /// A field that does not exist, or a value that it cannot have.
    pub fn plan(&self, set: &[String]) -> Result<Vec<Planned<C>>, Error> {
        let mut planned = Vec::new();
        for spec in &self.runs {
            let new_data = self.new_data.as_ref().filter(|_| spec.on_new_data);
            let config = spec.model.clone().map(|model| RunConfig {
                model,
                data: new_data.unwrap_or(&self.data).clone(),
                train: self.train.clone(),
            });
            let config = config.map(|config| config.set(&spec.set)).transpose()?;
            let one = |name: String, config: Option<RunConfig<C>>, values| {
                Ok::<_, Error>(Planned {
                    name,
                    line: spec.line.clone().unwrap_or_else(|| spec.name.clone()),
                    config: config.map(|config| config.set(set)).transpose()?,
                    after: spec.after.clone(),
                    seeds: spec.seeds.clone(),
                    values,
                    published: spec.published.clone(),
                })
            };
            let Some(vary) = &spec.vary else {
                planned.push(one(spec.name.clone(), config, spec.values.clone())?);
                continue;
            };
            for value in &vary.over {
                let fields = vary
                    .field
                    .split(',')
                    .map(str::trim)
                    .filter(|f| !f.is_empty());
                let set: Vec<String> = fields.map(|field| format!("{field}={value}")).collect();
                let config = config.clone().map(|config| config.set(&set)).transpose()?;
                let named = value * vary.times;
                let name = format!("{}, {} {named}", spec.name, vary.name);
                let mut values = spec.values.clone();
                values.insert(vary.name.clone(), named);
                planned.push(one(name, config, values)?);
            }
        }
        Ok(planned)
    }

    /// Checks that names are unique, and that what charts and claims speak of is there.
    /// `measured` are the quantities that the experiment measures itself.
    ///
    /// # Errors
    ///
    /// The first name that is wrong.
    pub fn check(&self, measured: &[&str]) -> Result<(), Error> {
        let planned = self.plan(&[])?;
        let names: Vec<&str> = planned.iter().map(|run| run.name.as_str()).collect();
        let lines: BTreeSet<&str> = planned.iter().map(|run| run.line.as_str()).collect();
        check::at_least_one("runs", planned.len())?;
        check::at_least_one("seeds", self.seeds.len())?;
        let known: BTreeSet<u64> = self.seeds.iter().copied().collect();
        let error = |field: &str, problem: String| Err(ConfigError::new(field, problem).into());
        if self.new_data.is_none() && self.runs.iter().any(|spec| spec.on_new_data) {
            return error("new_data", "is missing, and there are runs on it".into());
        }
        if known.len() < self.seeds.len() {
            return error("seeds", "has one of them twice".into());
        }
        for (i, run) in planned.iter().enumerate() {
            let own: Vec<u64> = run.seeds.clone().unwrap_or_default();
            if let Some(seed) = own.iter().find(|seed| !known.contains(seed)) {
                let problem = format!("`{}` has {seed}, which is none of the suite's", run.name);
                return error("seeds", problem);
            }
            if self.count.is_none() && run.config.is_none() {
                return error("runs", format!("`{}` has no model to train", run.name));
            }
            if names[..i].contains(&run.name.as_str()) {
                return error("runs", format!("has two called `{}`", run.name));
            }
            let before = |after: &After| names[..i].contains(&after.run.as_str());
            if let Some(after) = run.after.as_ref().filter(|after| !before(after)) {
                let problem = format!("there is no run `{}` before `{}`", after.run, run.name);
                return error("after", problem);
            }
        }
        // What was printed may well be something that is not measured here.
        let own = planned.iter();
        let own = own.flat_map(|run| run.values.keys().chain(run.published.keys()));
        let own: BTreeSet<&str> = own.map(String::as_str).collect();
        let known = |quantity: &str| {
            own.contains(quantity) || measured.contains(&quantity) || describe(quantity).is_some()
        };
        for quantity in &self.columns {
            if !known(quantity) {
                return error(
                    "columns",
                    format!("nothing called `{quantity}` is measured"),
                );
            }
        }
        for chart in &self.charts {
            for line in &chart.lines {
                if !lines.contains(line.as_str()) {
                    let problem = format!("`{}` draws `{line}`, which is no run", chart.title);
                    return error("charts", problem);
                }
            }
            let is_printed = |run: &&Planned<C>| {
                let is_drawn = chart.lines.is_empty() || chart.lines.contains(&run.line);
                is_drawn && run.published.contains_key(&chart.y)
            };
            if chart.printed && !planned.iter().any(|run| is_printed(&run)) {
                let problem = format!("`{}`: no run says what was printed", chart.title);
                return error("charts", problem);
            }
            let (x, y) = match chart.curves {
                true => (Axis::parse(&chart.x).is_some(), observe::is_curve(&chart.y)),
                false => (known(&chart.x), known(&chart.y)),
            };
            for (quantity, is_known) in [(&chart.x, x), (&chart.y, y)] {
                if !is_known {
                    let problem = format!("`{}` draws `{quantity}`, unknown there", chart.title);
                    return error("charts", problem);
                }
            }
        }
        for claim in &self.claims {
            let (runs, quantities) = claim.test.names();
            for name in runs {
                if !names.contains(&name) && !lines.contains(name) {
                    let problem = format!("`{}` speaks of `{name}`, which is no run", claim.says);
                    return error("claims", problem);
                }
            }
            for quantity in quantities {
                if !known(quantity) {
                    let problem = format!("`{}` speaks of `{quantity}`, unknown", claim.says);
                    return error("claims", problem);
                }
            }
        }
        Ok(())
    }
}
