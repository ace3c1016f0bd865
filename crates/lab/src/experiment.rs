//! An experiment file: runs, measurements, charts, and the claims of a paper.

use std::collections::BTreeMap;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::DataConfig;
use residual_zoo_runs::{RunConfig, TrainConfig};
use residual_zoo_train::FirstWeights;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Claim, Ladder, Sweep, TaskSpec};

/// An experiment: the content of a file `experiments/<paper>/<name>.ron`, at one of its scales. In the file, the
/// experiment and its runs, charts and claims can also have `scales`. The experiment can also have a `model` with the
/// fields that the models of all runs share. docs/experiments.md explains both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "C: Serialize + DeserializeOwned")]
pub struct Experiment<C> {
    /// The question, as a heading.
    pub title: String,
    /// The method and its relation to the paper; a blank line starts a new paragraph.
    #[serde(default)]
    pub about: String,
    /// The default data of every run.
    #[serde(default)]
    pub data: DataConfig,
    /// Other data, for runs with `on_new_data`.
    #[serde(default)]
    pub new_data: Option<DataConfig>,
    /// The training settings of every run, before its `set` is applied.
    #[serde(default)]
    pub train: TrainConfig,
    /// The seeds. Every run is repeated with each seed, or with its own seeds if it has any.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// The sweep: the fields to try at several values, and whether the runs then use the best values.
    #[serde(default)]
    pub sweep: Option<Sweep>,
    /// The sizes at which the comparison is repeated; `None` for one size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ladder: Option<Ladder>,
    /// A measurement without training, in addition to the counts of parameters and FLOPs.
    #[serde(default)]
    pub measure: Option<Measure>,
    /// The vocabulary size for which the cost of the models is counted, in an experiment without training.
    #[serde(default)]
    pub count: Option<usize>,
    /// The tasks on which the trained runs are evaluated.
    #[serde(default)]
    pub tasks: Vec<TaskSpec>,
    /// The runs to train, count or measure.
    pub runs: Vec<RunSpec<C>>,
    /// The columns of the table, as quantities.
    pub columns: Vec<String>,
    /// The charts.
    #[serde(default)]
    pub charts: Vec<ChartSpec>,
    /// The claims of the paper.
    #[serde(default)]
    pub claims: Vec<Claim>,
    /// Whether the claims are judged. Use `false` if the runs are too short for verdicts, such as at the smoke scale.
    /// The report then shows only the numbers. Claims about exact counts are judged at every scale.
    #[serde(default = "yes")]
    pub judge: bool,
    /// Whether the runs have the same tokens as the paper. Otherwise, such as with characters instead of subwords,
    /// differences between losses are not compared with published differences.
    #[serde(default)]
    pub same_tokens: bool,
}

fn yes() -> bool {
    true
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

/// A measurement without training, which belongs to one experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// Parameters and FLOPs of an RMT and a transformer (Mak & Flanigan, Table 7).
    RmtResources,
    /// The change in variance caused by storage and retrieval (Mak & Flanigan, Tables 1 and 2).
    RmtVariance,
    /// FLOPs of a TokenFormer and a transformer (Wang et al., Table 3).
    TokenFormerCost,
    /// Operations of the recurrent transformer (Kausik, section 5.1).
    RecurrentCost,
    /// Unique sequences of a corpus (Kausik, Lemma 1).
    ScalingLaw,
    /// Times to read a prompt and to generate a token (Menghani et al., section 3.2.2).
    Latency,
}

/// A run of an experiment, or a line of runs along which one field varies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "C: Serialize + DeserializeOwned")]
pub struct RunSpec<C> {
    /// The name.
    pub name: String,
    /// The name of the line of runs to which the run belongs; `None` for the name of the run.
    #[serde(default)]
    pub line: Option<String>,
    /// The model; `None` for a measurement without a model.
    #[serde(default = "Option::default")]
    pub model: Option<C>,
    /// Fields that differ from the experiment, as `PATH=VALUE` (see
    /// [`RunConfig::set`](residual_zoo_runs::RunConfig::set)).
    #[serde(default)]
    pub set: Vec<String>,
    /// Whether the run uses the new data.
    #[serde(default)]
    pub on_new_data: bool,
    /// The earlier run from whose weights the run starts.
    #[serde(default)]
    pub after: Option<After>,
    /// The field that varies, if this entry stands for several runs.
    #[serde(default)]
    pub vary: Option<Vary>,
    /// The seeds of the run; `None` for all seeds of the experiment.
    #[serde(default)]
    pub seeds: Option<Vec<u64>>,
    /// Numbers that charts and claims may use, such as a size.
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
    /// The values that the paper reports for the run, by quantity.
    #[serde(default)]
    pub published: BTreeMap<String, f64>,
}

/// The source of a run's initial weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    /// The name of an earlier run. Its cost is included in the cost of the new run.
    pub run: String,
    /// The name of another earlier run, which is merged with the first. Its cost is not included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
    /// The way in which the weights of the earlier run become the initial weights.
    #[serde(default)]
    pub by: FirstWeights,
}

/// A field and the values that it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vary {
    /// The path, as in `set`; commas separate several paths that take the same value. Empty if only a measurement reads
    /// the value.
    #[serde(default)]
    pub field: String,
    /// The name of the value in run names, charts and claims.
    pub name: String,
    /// The values.
    pub over: Vec<f64>,
    /// The number called `name` is the value of the field times this factor.
    #[serde(default = "once")]
    pub times: f64,
}

fn once() -> f64 {
    1.0
}

/// A chart of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChartSpec {
    /// The heading.
    pub title: String,
    /// A note on what the chart shows.
    #[serde(default)]
    pub note: String,
    /// The horizontal axis: for curves `tokens`, `flops` or `seconds`, otherwise a quantity.
    pub x: String,
    /// The vertical axis: for curves `train_loss`, `valid_loss`, `valid_accuracy` or `perplexity`, otherwise a
    /// quantity.
    pub y: String,
    /// Whether every run is drawn as a curve rather than as a point.
    #[serde(default)]
    pub curves: bool,
    /// Whether x is logarithmic.
    #[serde(default)]
    pub log_x: bool,
    /// Whether y is logarithmic.
    #[serde(default)]
    pub log_y: bool,
    /// Whether a power law is fitted to the points of every line of runs.
    #[serde(default)]
    pub fit: bool,
    /// The lines of runs that are drawn; empty for all.
    #[serde(default)]
    pub lines: Vec<String>,
    /// Whether published values of the runs are drawn: as a point if the paper reports x and y, or as a horizontal line
    /// if it reports only y. The published values must be for the same task and in the same units.
    #[serde(default)]
    pub printed: bool,
    /// Series of points that the paper reports, each with its name and the coordinates of its points.
    #[serde(default)]
    pub published: Vec<(String, Vec<(f64, f64)>)>,
}

impl ChartSpec {
    /// Whether the chart has curves of the training loss.
    pub fn draws_train_loss(&self) -> bool {
        self.curves && self.y == "train_loss"
    }
}

impl After {
    /// Returns the names of the earlier runs.
    pub fn runs(&self) -> impl Iterator<Item = &String> {
        [&self.run].into_iter().chain(&self.with)
    }
}

impl<C: ModelConfig> Experiment<C> {
    /// Makes an experiment whose only run is `config`, called `name`.
    pub fn of_run(name: &str, config: RunConfig<C>) -> Self {
        let run = RunSpec {
            name: name.to_owned(),
            line: None,
            model: Some(config.model),
            set: Vec::new(),
            on_new_data: false,
            after: None,
            vary: None,
            seeds: None,
            values: BTreeMap::new(),
            published: BTreeMap::new(),
        };
        Self {
            title: name.to_owned(),
            about: String::new(),
            data: config.data,
            new_data: None,
            train: config.train,
            seeds: one_seed(),
            sweep: None,
            ladder: None,
            measure: None,
            count: None,
            tasks: Vec::new(),
            runs: vec![run],
            columns: Vec::new(),
            charts: Vec::new(),
            claims: Vec::new(),
            judge: true,
            same_tokens: false,
        }
    }

    /// Replaces the seeds of the experiment with 1 to `count`. Seeds of single runs stay.
    ///
    /// # Errors
    ///
    /// Returns an error if the count is zero or too large.
    pub fn set_seeds(&mut self, count: u64) -> Result<(), ConfigError> {
        if count == 0 {
            let problem = "is 0; at least one seed is needed";
            return Err(ConfigError::new("--seeds", problem));
        }
        if count > MOST_SEEDS as u64 {
            let problem = format!("is {count}; it must be at most {MOST_SEEDS}");
            return Err(ConfigError::new("--seeds", problem));
        }
        self.seeds = (1..=count).collect();
        Ok(())
    }
}

/// Maximum number of seeds of an experiment.
pub(crate) const MOST_SEEDS: usize = 1000;
