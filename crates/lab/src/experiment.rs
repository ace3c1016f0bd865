//! The file of an experiment: its runs, what is measured of them, what is drawn, and the claims of
//! a paper.

use std::collections::BTreeMap;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::DataConfig;
use residual_zoo_runs::{RunConfig, TrainConfig};
use residual_zoo_train::FirstWeights;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Claim, Sweep, TaskSpec};

/// An experiment: the content of a file `experiments/<paper>/<name>.ron`, at one of its scales. In the file, the experiment and
/// its runs, charts and claims can also have `scales`, and the experiment a `model` with the fields that the models of all runs
/// share; docs/experiments.md explains both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "C: Serialize + DeserializeOwned")]
pub struct Experiment<C> {
    /// The question, as a heading.
    pub title: String,
    /// What is done and how it relates to the paper; a blank line starts a new paragraph.
    #[serde(default)]
    pub about: String,
    /// The data of every run that names none.
    #[serde(default)]
    pub data: DataConfig,
    /// Other data, for runs that ask for them.
    #[serde(default)]
    pub new_data: Option<DataConfig>,
    /// How every run trains, before its `set`.
    #[serde(default)]
    pub train: TrainConfig,
    /// Every run is repeated for each seed.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// Which fields of the runs are tried at several values, and whether the runs take their best.
    #[serde(default)]
    pub sweep: Option<Sweep>,
    /// What is measured besides parameters and FLOPs, where nothing is trained.
    #[serde(default)]
    pub measure: Option<Measure>,
    /// Nothing is trained: the cost of the models is counted with this number of token ids.
    #[serde(default)]
    pub count: Option<usize>,
    /// On what the trained runs are evaluated.
    #[serde(default)]
    pub tasks: Vec<TaskSpec>,
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
    /// Whether the claims are judged. Runs that are too short to tell, such as those of the smoke
    /// scale, only check that everything works: their numbers are shown without a verdict. What is
    /// counted or measured without training is exact at every scale.
    #[serde(default = "yes")]
    pub judge: bool,
    /// Whether a token of these runs is one of the paper. If it is not, such as a character instead of a part of a word,
    /// differences of losses are not compared with those that the paper reports.
    #[serde(default)]
    pub same_tokens: bool,
}

fn yes() -> bool {
    true
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

/// A measurement of a single experiment, without training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// Parameters and FLOPs of RMT and transformer (Mak & Flanigan, Table 7).
    RmtResources,
    /// How storage and retrieval change variance (Mak & Flanigan, Tables 1 and 2).
    RmtVariance,
    /// FLOPs of TokenFormer and transformer (Wang et al., Table 3).
    TokenFormerCost,
    /// Operations of the recurrent transformer (Kausik, section 5.1).
    RecurrentCost,
    /// Unique sequences of a corpus (Kausik, Lemma 1).
    ScalingLaw,
    /// The time to read a prompt, and to generate a token (Menghani et al., section 3.2.2).
    Latency,
}

/// A run of an experiment, or a line of runs along which one field varies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound = "C: Serialize + DeserializeOwned")]
pub struct RunSpec<C> {
    /// Its name.
    pub name: String,
    /// The line of points that it belongs to; `None` for one of its own name.
    #[serde(default)]
    pub line: Option<String>,
    /// The model; `None` where the experiment measures something else.
    #[serde(default = "Option::default")]
    pub model: Option<C>,
    /// Fields in which it differs from the experiment, as `PATH=VALUE` (see
    /// [`RunConfig::set`](residual_zoo_runs::RunConfig::set)).
    #[serde(default)]
    pub set: Vec<String>,
    /// Whether it uses the new data.
    #[serde(default)]
    pub on_new_data: bool,
    /// The run whose weights it starts from.
    #[serde(default)]
    pub after: Option<After>,
    /// What varies, where this stands for several runs.
    #[serde(default)]
    pub vary: Option<Vary>,
    /// The seeds for which it is run; `None` for all.
    #[serde(default)]
    pub seeds: Option<Vec<u64>>,
    /// Numbers that charts and claims may use, such as a size.
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
    /// What the paper reports for it, by quantity.
    #[serde(default)]
    pub published: BTreeMap<String, f64>,
}

/// Where a run takes its first weights from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    /// The name of an earlier run. The cost of the new run includes its cost.
    pub run: String,
    /// The name of another earlier run. The two are merged first; the cost of this one is not included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
    /// How its weights become the first ones.
    #[serde(default)]
    pub by: FirstWeights,
}

/// A field and the values that it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vary {
    /// Its path, as in `set`; several paths that take the same value are separated by commas. Empty
    /// where only a measurement reads the value.
    #[serde(default)]
    pub field: String,
    /// Its name in the names of runs, in charts and in claims.
    pub name: String,
    /// Its values.
    pub over: Vec<f64>,
    /// The number called `name` is the value of the field times this.
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
    /// The horizontal axis: for curves `tokens`, `flops` or `seconds`, else a quantity.
    pub x: String,
    /// The vertical axis: for curves `train_loss`, `valid_loss`, `valid_accuracy` or `perplexity`,
    /// else a quantity.
    pub y: String,
    /// Whether every run is a curve rather than a point.
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
    /// Which lines are drawn; empty for all.
    #[serde(default)]
    pub lines: Vec<String>,
    /// Whether what the paper reports for the runs is drawn, where it is of the same task and in
    /// the same units: a point where it reports x and y, a horizontal line where it reports y alone.
    #[serde(default)]
    pub printed: bool,
    /// Points that the paper reports: a name and their coordinates.
    #[serde(default)]
    pub published: Vec<(String, Vec<(f64, f64)>)>,
}

impl After {
    /// The names of the earlier runs.
    pub fn runs(&self) -> impl Iterator<Item = &String> {
        [&self.run].into_iter().chain(&self.with)
    }
}

impl<C: ModelConfig> Experiment<C> {
    /// An experiment whose only run is `config`, called `name`.
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

    /// Repeats every run for the seeds 1 to `count`.
    ///
    /// # Errors
    ///
    /// A count of zero.
    pub fn set_seeds(&mut self, count: u64) -> Result<(), ConfigError> {
        if count == 0 {
            let problem = "is 0; at least one seed is needed";
            return Err(ConfigError::new("--seeds", problem));
        }
        if count > MOST_SEEDS {
            let problem = format!("is {count}; it must be at most {MOST_SEEDS}");
            return Err(ConfigError::new("--seeds", problem));
        }
        self.seeds = (1..=count).collect();
        Ok(())
    }
}

/// The most seeds of an experiment.
const MOST_SEEDS: u64 = 10_000;
