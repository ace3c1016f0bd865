//! Errors of driving a run.

use std::path::Path;

use residual_zoo_backend::BackendError;
use residual_zoo_core::ConfigError;
use residual_zoo_data::{DataError, one_line};
use residual_zoo_runs::Error as RunError;

/// An error of a single run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A config, the data or a run directory.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The backend.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An evaluation.
    #[error(transparent)]
    Evaluate(#[from] residual_zoo_evaluate::Error),
    /// A server.
    #[error(transparent)]
    Serve(#[from] residual_zoo_serve::Error),
    /// The user stopped the command before it was done, with what to do to continue.
    #[error("stopped; {0}")]
    Stopped(String),
    /// Signals that cannot be caught.
    #[error("could not listen to Ctrl-C: {0}")]
    Signals(String),
}

impl Error {
    /// The error, if it is of a field or an assignment, with the file that has the field.
    pub fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Run(RunError::Config(error)) => error.in_file(path).into(),
            Self::Run(RunError::Override {
                assignment,
                problem,
            }) => {
                let field = format!("--set {}", one_line(assignment));
                ConfigError::new(field, one_line(problem))
                    .in_file(path)
                    .into()
            }
            other => other,
        }
    }

    /// The error, if it is of a field, with the path of its field prefixed by `outer`.
    pub fn within(self, outer: &str) -> Self {
        match self {
            Self::Run(RunError::Config(error)) => error.within(outer).into(),
            other => other,
        }
    }

    /// Whether the user asked for something that cannot be done, rather than the machine failing
    /// to do what can.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Run(error) => error.is_bad_input(),
            Self::Backend(error) => error.is_bad_input(),
            Self::Evaluate(error) => error.is_bad_input(),
            Self::Serve(error) => error.is_bad_input(),
            Self::Stopped(_) | Self::Signals(_) => false,
        }
    }

    /// Whether the user stopped the command before it was done.
    pub fn is_stop(&self) -> bool {
        match self {
            Self::Stopped(_) | Self::Evaluate(residual_zoo_evaluate::Error::Stopped) => true,
            Self::Run(error) => error.is_stop(),
            Self::Evaluate(residual_zoo_evaluate::Error::Data(error)) => error.is_stop(),
            Self::Evaluate(residual_zoo_evaluate::Error::Run(error)) => error.is_stop(),
            _ => false,
        }
    }

    /// The user stopped a command that continues when it is repeated.
    pub fn stopped() -> Self {
        Self::Stopped("to continue: repeat the command".into())
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Run(error.into())
    }
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Self {
        Self::Run(error.into())
    }
}
