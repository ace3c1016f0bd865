//! The options of a run that are not part of its config.

use std::path::PathBuf;

pub use burn_train::Interrupter;
use residual_zoo_runs::Choice;
use serde::{Deserialize, Serialize};

use crate::dashboard::{Display, Title};
use crate::team::Team;

/// The options of a run that are not part of its config.
#[derive(Clone)]
pub struct RunOptions {
    /// The directory of the run, new or existing.
    pub directory: PathBuf,
    /// The display of progress.
    pub display: Display,
    /// The title in the dashboard.
    pub title: Title,
    /// The peak performance of the device in TFLOP/s. The peak is needed for the MFU (model FLOPs utilisation), the
    /// fraction of the peak that training uses.
    pub peak_tflops: Option<f64>,
    /// Another run directory. If given, a new run starts from a checkpoint in it.
    pub init_from: Option<(PathBuf, FirstWeights)>,
    /// The checkpoint of `init_from` from which the run starts.
    pub init_checkpoint: Choice,
    /// A line that is printed when this process begins to train the run.
    pub line: Option<String>,
    /// Notes that are shown when the run begins.
    pub notes: Vec<String>,
    /// Whether an existing run may continue with another config, other data or another backend.
    pub allow_config_change: bool,
    /// Stops the run after the current step, or during a validation or sample, and saves a checkpoint.
    pub stop: Interrupter,
    /// Stops the run once it has made this many steps in all, and saves a checkpoint.
    pub until: Option<usize>,
    /// Whether other runs are trained on the same cores. The run's history records this.
    pub shares_cores: bool,
    /// The processes that train the run together, if there are several. This process leads them.
    pub team: Option<Team>,
    /// Whether to refuse a run that has lost metrics rows, because its rows will be compared. Otherwise, a note reports
    /// the lost rows.
    pub needs_all_rows: bool,
}

impl RunOptions {
    /// Makes options for training in `directory` to the end, without a display.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            display: Display::Quiet,
            title: Title::default(),
            peak_tflops: None,
            init_from: None,
            init_checkpoint: Choice::default(),
            line: None,
            notes: Vec::new(),
            allow_config_change: false,
            stop: Interrupter::new(),
            until: None,
            shares_cores: false,
            team: None,
            needs_all_rows: false,
        }
    }
}

/// The way in which a model starts from the checkpoint of another run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstWeights {
    /// The weights and the moments of the optimizer are taken over (`Transfer::grow`). A larger TokenFormer appends new
    /// weights.
    #[default]
    Grow,
    /// The weights are taken over as with `Grow`, or widened for a wider GPT-2. The moments of the optimizer are fresh.
    GrowFresh,
}
