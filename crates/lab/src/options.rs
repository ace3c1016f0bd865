//! How the runs of an experiment or a comparison are trained.

use std::path::{Path, PathBuf};

use residual_zoo_backend::BackendKind;
use residual_zoo_train::dashboard::{Display, Title};
use residual_zoo_train::{FirstWeights, Interrupter, RunOptions};

/// How the runs of an experiment or a comparison are trained.
#[derive(Clone)]
pub struct Options {
    /// What the dashboard calls the experiment or the comparison; may be empty.
    pub name: String,
    /// The directory of the runs: the [`Pool`](crate::Pool) of an experiment, or the directory of a
    /// comparison and its report.
    pub directory: PathBuf,
    /// The backend that trains.
    pub backend: BackendKind,
    /// The index of the GPU; `None` for the backend's choice.
    pub gpu: Option<usize>,
    /// Whether earlier runs there are deleted and trained again.
    pub force: bool,
    /// Training FLOPs of what comes after the runs, for the time that is left.
    pub to_come: f64,
    /// Whether other processes train on the same cores, so that times say nothing.
    pub shares_cores: bool,
    /// Whether nothing is printed of runs that are trained already or by another process.
    pub brief: bool,
    /// What is shown of every run.
    pub display: Display,
    /// Peak of the device in TFLOP/s, to show the share in use.
    pub peak_tflops: Option<f64>,
    /// Set it to stop after the current step, with a checkpoint.
    pub stop: Interrupter,
}

impl Options {
    /// Trains on `backend`, keeps runs in `directory`, and shows nothing of a run.
    pub fn new(directory: &Path, backend: BackendKind) -> Self {
        Self {
            name: String::new(),
            directory: directory.into(),
            backend,
            gpu: None,
            force: false,
            to_come: 0.0,
            shares_cores: false,
            brief: false,
            display: Display::Quiet,
            peak_tflops: None,
            stop: Interrupter::new(),
        }
    }

    /// The options of a single run in `directory`. Its title gets the name of these options.
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
