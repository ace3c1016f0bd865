//! Errors in reading and writing models of other projects.

use std::path::PathBuf;

use residual_zoo_core::ConfigError;
use residual_zoo_data::{DataError, one_line};
use residual_zoo_system::{Blame, Fault};

/// The reason why a model cannot be imported or exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is damaged, or of an unsupported kind.
    #[error("`{}` {}", path.display(), one_line(problem))]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The problem, and how to fix it. The text may quote the file.
        problem: String,
    },
    /// The tensors of a file do not match its model.
    #[error("`{}` does not have the tensors of its model: {}", path.display(), Self::list(missing, unexpected, shapes))]
    Tensors {
        /// The file.
        path: PathBuf,
        /// The tensors that the file lacks.
        missing: Vec<String>,
        /// The tensors that the model does not have.
        unexpected: Vec<String>,
        /// The tensors with a wrong shape, each with both shapes.
        shapes: Vec<String>,
    },
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tokenizer, or a file on the Hugging Face hub, cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A run cannot be read or written.
    #[error(transparent)]
    Run(#[from] residual_zoo_runs::Error),
}

/// Maximum number of names of each kind that an error lists.
const LISTED: usize = 12;

impl Blame for Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Data(error) => error.fault(),
            Self::Run(error) => error.fault(),
            Self::File { .. } | Self::Tensors { .. } | Self::Config(_) => Fault::Input,
        }
    }
}

impl Error {
    /// Returns the error of a run inside this error, if there is one.
    pub fn of_run(&mut self) -> Option<&mut residual_zoo_runs::Error> {
        match self {
            Self::Run(error) => Some(error),
            _ => None,
        }
    }

    /// Makes an error about the file or directory `path`.
    pub(crate) fn file(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::File {
            path: path.into(),
            problem: problem.into(),
        }
    }

    fn list(missing: &[String], unexpected: &[String], shapes: &[String]) -> String {
        let kinds = [
            ("missing", missing),
            ("unexpected", unexpected),
            ("of wrong shape", shapes),
        ];
        let kinds = kinds.into_iter().filter(|(_, names)| !names.is_empty());
        let kinds = kinds.map(|(kind, names)| {
            let more = match names.len().saturating_sub(LISTED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            // The names come from an untrusted file.
            let listed: Vec<String> = names.iter().take(LISTED).map(one_line).collect();
            format!("{kind}: {}{more}", listed.join(", "))
        });
        kinds.collect::<Vec<_>>().join("; ")
    }
}
