//! What can go wrong in a run.

use std::path::{Path, PathBuf};

use residual_zoo_core::{ConfigError, params::ImportError};
use residual_zoo_data::{DataError, one_line};

/// Why a run could not be set up, go on or be read back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A config file that does not parse.
    #[error("{path}:{line}:{column}: {}", one_line(problem))]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line of the problem, from 1.
        line: usize,
        /// Column of the problem, from 1.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
    /// An override that does not fit the config.
    #[error("--set {}: {}", one_line(assignment), one_line(problem))]
    Override {
        /// The override as given.
        assignment: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A setting that no run can have.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A directory that holds something else than a run.
    #[error(
        "{0} exists already and is no run; choose another directory with `--run DIR`, or delete it \
         if it is no longer needed"
    )]
    RunExists(PathBuf),
    /// A run that is to go on otherwise than it began.
    #[error(
        "{path} is a run that differs: {}; begin another one in another directory, or go on with \
         what is new by `--allow-config-change`",
        differences.join("; ")
    )]
    Differs {
        /// The run.
        path: PathBuf,
        /// What differs.
        differences: Vec<String>,
    },
    /// A run that another process trains.
    #[error("{path} is in use by {owner}; wait for it to end, or stop it")]
    Locked {
        /// The run directory.
        path: PathBuf,
        /// Who has it.
        owner: String,
    },
    /// A run directory that is gone while its run trains.
    #[error(
        "{0} has vanished or was replaced while the run was training; if it was only moved, go on \
         from there with `--resume`"
    )]
    Vanished(PathBuf),
    /// A directory that is no run, or a run without what was asked for.
    #[error("{path}: {}", one_line(problem))]
    NoRun {
        /// The directory.
        path: PathBuf,
        /// What is missing.
        problem: String,
    },
    /// A prompt that the model cannot take.
    #[error("the prompt {0}")]
    Prompt(String),
    /// A checkpoint file that cannot be used.
    #[error("{path}: {}", one_line(problem))]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A checkpoint of another model.
    #[error("{path}: {}", one_line(source))]
    Import {
        /// The file.
        path: PathBuf,
        /// How it differs.
        source: ImportError,
    },
    /// A file that could not be read or written.
    #[error("could not {action} {path}: {source}{remedy}", remedy = remedy(.action, .source))]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Steps without a finite loss and gradient, one after the other.
    #[error(
        "{count} steps in a row up to step {step} were skipped because {}; the state before them is \
         {saved}; a lower `train.learning_rate`, a longer \
         `train.warmup` or a smaller `train.grad_clip` keeps training stable",
        describe_not_finite(*loss, *grad_norm, parameters)
    )]
    NotFinite {
        /// Skipped steps in a row.
        count: usize,
        /// The last of them.
        step: usize,
        /// Its loss.
        loss: f64,
        /// Its gradient norm.
        grad_norm: f64,
        /// The parameters whose gradient is not finite.
        parameters: Vec<String>,
        /// Where the state before these steps was saved, or why it was not.
        saved: String,
    },
}

/// What was not finite, with the first parameters by name.
pub(crate) fn describe_not_finite(loss: f64, grad_norm: f64, parameters: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = format!("the loss was {loss} and the gradient norm {grad_norm}");
    if !parameters.is_empty() {
        let shown = &parameters[..parameters.len().min(SHOWN)];
        text += &format!(", not finite in the gradient of {}", shown.join(", "));
        if parameters.len() > SHOWN {
            text += &format!(" and {} more", parameters.len() - SHOWN);
        }
    }
    text
}

impl Error {
    /// Whether the user asked for something that cannot be done, rather than the machine failing
    /// to do what can.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Data(error) => error.is_bad_input(),
            Self::Io { source, action, .. } => {
                use std::io::ErrorKind::{InvalidData, IsADirectory, NotADirectory, NotFound};
                let user = [NotFound, IsADirectory, NotADirectory, InvalidData];
                *action == "read" && user.contains(&source.kind())
            }
            Self::NotFinite { .. } | Self::Vanished(_) | Self::Locked { .. } => false,
            _ => true,
        }
    }

    /// For `map_err`: an I/O error that says what was tried on which path.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

fn remedy(action: &str, error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{
        FileTooLarge, InvalidData, IsADirectory, NotADirectory, NotFound, QuotaExceeded,
        StorageFull,
    };
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => {
            "; free some space or write elsewhere (a run: `--run DIR`)"
        }
        _ if action != "read" => "; write where you may (a run: `--run DIR`)",
        NotFound | NotADirectory => "; check the path",
        IsADirectory => "; give a file",
        InvalidData => "; it must be UTF-8 text",
        _ => "",
    }
}
