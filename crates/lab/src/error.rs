//! Errors of experiments and comparisons.

use std::path::{Path, PathBuf};

use residual_zoo_backend::BackendError;
use residual_zoo_core::ConfigError;
use residual_zoo_data::{DataError, one_line};
use residual_zoo_drive::Error as DriveError;
use residual_zoo_runs::Error as RunError;
use residual_zoo_system::{Blame, Fault};

/// The reason why an experiment or a comparison failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of a single run.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// The experiment file lacks a number that a measurement needs.
    #[error("run `{run}` has no value `{name}`")]
    NoValue {
        /// The name of the run.
        run: String,
        /// The name of the missing number.
        name: String,
    },
    /// A results file, which holds finished runs, cannot be used.
    #[error("{path}: {}", one_line(problem))]
    Finished {
        /// The results file.
        path: PathBuf,
        /// The reason why the file cannot be used.
        problem: String,
    },
    /// Some runs of an experiment failed; the results of the other runs are written.
    #[error("runs are missing: {}", missing.join("; "))]
    Missing {
        /// The missing runs, each with the reason.
        missing: Vec<String>,
    },
}

impl Blame for Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Drive(error) => error.fault(),
            Self::NoValue { .. } | Self::Finished { .. } => Fault::Input,
            Self::Missing { .. } => Fault::Machine,
        }
    }
}

impl Error {
    /// Returns the error of a single run inside this error, if there is one.
    pub fn of_run(&mut self) -> Option<&mut RunError> {
        match self {
            Self::Drive(error) => error.of_run(),
            _ => None,
        }
    }

    /// Adds the path of the file to an error about a field or an assignment. Other errors stay as they are.
    pub fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Drive(error) => error.in_file(path).into(),
            other => other,
        }
    }

    /// Prefixes the path of the field with `outer` in an error about a field. Other errors stay as they are.
    pub(crate) fn within(self, outer: &str) -> Self {
        match self {
            Self::Drive(error) => error.within(outer).into(),
            other => other,
        }
    }

    /// Returns the error of a command that the user stopped. Repeating the command continues it.
    pub fn stopped() -> Self {
        DriveError::stopped().into()
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Drive(error.into())
    }
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Self {
        Self::Drive(error.into())
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Self {
        Self::Drive(error.into())
    }
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Self {
        Self::Drive(error.into())
    }
}

impl From<residual_zoo_evaluate::Error> for Error {
    fn from(error: residual_zoo_evaluate::Error) -> Self {
        Self::Drive(error.into())
    }
}
