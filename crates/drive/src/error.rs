//! Errors of a single run.

use std::path::Path;

use residual_zoo_backend::BackendError;
use residual_zoo_core::ConfigError;
use residual_zoo_data::{DataError, one_line};
use residual_zoo_runs::Error as RunError;
use residual_zoo_system::{Blame, Fault, stop};

/// The reason why a command on a single run failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of a config, the data or a run directory.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An error of the backend.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An error of an evaluation.
    #[error(transparent)]
    Evaluate(#[from] residual_zoo_evaluate::Error),
    /// An error of a server.
    #[error(transparent)]
    Serve(#[from] residual_zoo_serve::Error),
    /// The user stopped the command before it was done. The text says how to continue.
    #[error("stopped; {0}")]
    Stopped(String),
    /// Signals could not be caught.
    #[error("could not listen to Ctrl-C: {0}")]
    Signals(String),
}

impl Blame for Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Run(error) => error.fault(),
            Self::Backend(error) => error.fault(),
            Self::Evaluate(error) => error.fault(),
            Self::Serve(error) => error.fault(),
            Self::Stopped(_) => Fault::Stop,
            Self::Signals(_) => Fault::Machine,
        }
    }
}

impl Error {
    /// Adds the file to an error about a field or an assignment. Other errors stay as they are.
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

    /// Prefixes the path of the field with `outer` in an error about a field. Other errors stay as they are.
    pub fn within(self, outer: &str) -> Self {
        match self {
            Self::Run(RunError::Config(error)) => error.within(outer).into(),
            other => other,
        }
    }

    /// Returns the error of a run inside this error, if there is one.
    pub fn of_run(&mut self) -> Option<&mut RunError> {
        match self {
            Self::Run(error)
            | Self::Evaluate(residual_zoo_evaluate::Error::Run(error))
            | Self::Serve(residual_zoo_serve::Error::Run(error)) => Some(error),
            _ => None,
        }
    }

    /// Fails if the user has asked this process to end. Only memory estimates call this function, before anything is
    /// written.
    pub(crate) fn unless_stopped() -> Result<(), Self> {
        match stop::is_asked() {
            true => Err(Self::Stopped(
                "memory was still being estimated, and nothing was written".into(),
            )),
            false => Ok(()),
        }
    }

    /// Returns the error of a command that the user stopped. Repeating the command continues it.
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
