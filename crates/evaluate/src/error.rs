//! Errors of evaluations.

use std::path::PathBuf;

use residual_zoo_data::DataError;
use residual_zoo_system::{Blame, Fault};

/// The reason why a task cannot be read or evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is not a task of its kind, or the path of a results file leads to something other than a regular file.
    #[error("`{}`{}: {problem}", path.display(), line.map_or(String::new(), |line| format!(", line {line}")))]
    Task {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: Option<usize>,
        /// The problem, and how to fix it.
        problem: String,
    },
    /// A document cannot be scored.
    #[error("document {document} of {task}: {problem}")]
    Document {
        /// The name of the task.
        task: String,
        /// The number of the document, counted from 0.
        document: usize,
        /// The reason why the document cannot be scored.
        problem: String,
    },
    /// The samples file vanished or was replaced during the evaluation.
    #[error(
        "{} has vanished or was replaced during the evaluation; if its directory was moved, give the new one with \
         `--out DIR` to continue there",
        .0.display()
    )]
    Vanished(PathBuf),
    /// The evaluation was stopped. Scores so far are kept.
    #[error("stopped; to continue: repeat the command")]
    Stopped,
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The run cannot be read, or the results cannot be written.
    #[error(transparent)]
    Run(#[from] residual_zoo_runs::Error),
}

impl Blame for Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Data(error) => error.fault(),
            Self::Run(error) => error.fault(),
            Self::Task { .. } | Self::Document { .. } => Fault::Input,
            Self::Vanished(_) => Fault::Machine,
            Self::Stopped => Fault::Stop,
        }
    }
}
