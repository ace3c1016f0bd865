//! Options for training the runs of an experiment or a comparison.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use residual_zoo_backend::BackendKind;
use residual_zoo_train::dashboard::{Display, Title};
use residual_zoo_train::{FirstWeights, Interrupter, RunOptions};

use crate::FinishedFile;

/// Options for training the runs of an experiment or a comparison.
#[derive(Clone)]
pub struct Options {
    /// The name of the experiment or comparison in the dashboard; may be empty.
    pub name: String,
    /// The directory of the runs: the [`Pool`](crate::Pool) of an experiment, or the directory of a
    /// comparison and its report.
    pub directory: PathBuf,
    /// The backend that trains.
    pub backend: BackendKind,
    /// The index of the GPU; `None` for the backend's choice.
    pub gpu: Option<usize>,
    /// Whether existing runs are deleted and trained again.
    pub force: bool,
    /// The finished runs that are not trained again.
    pub finished: Option<Arc<FinishedFile>>,
    /// Training FLOPs of the work after these runs, for the estimate of the remaining time.
    pub to_come: f64,
    /// Whether other processes train on the same cores, so that times are not meaningful.
    pub shares_cores: bool,
    /// Whether nothing is printed about runs that are already trained or that another process trains.
    pub brief: bool,
    /// Whether this command has opened the data before. If so, the command opens the data again even after a stop, so
    /// that trained runs are still reported.
    pub were_opened: bool,
    /// The display of every run.
    pub display: Display,
    /// Peak performance of the device in TFLOP/s, for the model FLOPs utilisation.
    pub peak_tflops: Option<f64>,
    /// The switch that stops training after the current step, with a checkpoint.
    pub stop: Interrupter,
}

impl Options {
    /// Makes options with this `backend` and `directory`, without a display.
    pub fn new(directory: &Path, backend: BackendKind) -> Self {
        Self {
            name: String::new(),
            directory: directory.into(),
            backend,
            gpu: None,
            force: false,
            finished: None,
            to_come: 0.0,
            shares_cores: false,
            brief: false,
            were_opened: false,
            display: Display::Quiet,
            peak_tflops: None,
            stop: Interrupter::new(),
        }
    }

    /// Returns the switch that stops the opening of data. If this command has opened the data before, nothing sets this
    /// switch.
    pub(crate) fn stop_of_opening(&self) -> Interrupter {
        match self.were_opened {
            true => Interrupter::new(),
            false => self.stop.clone(),
        }
    }

    /// Returns the options of a single run in `directory`. The title of the run includes the name in these options.
    pub(crate) fn of_run(
        &self,
        directory: PathBuf,
        title: Title,
        init_from: Option<(PathBuf, FirstWeights)>,
    ) -> RunOptions {
        let whole = Some(self.name.clone()).filter(|name| !name.is_empty());
        RunOptions {
            display: self.display,
            title: Title { whole, ..title },
            peak_tflops: self.peak_tflops,
            init_from,
            stop: self.stop.clone(),
            shares_cores: self.shares_cores,
            needs_all_rows: true,
            ..RunOptions::new(directory)
        }
    }
}
