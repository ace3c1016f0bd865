//! Errors of a run.

use std::path::{Path, PathBuf};

use residual_zoo_core::{ConfigError, params::ImportError, sentence};
use residual_zoo_data::{DataError, one_line};
use residual_zoo_system::{Blame, Fault};

use crate::remedy::{OtherPlace, Remedy};

/// An error in setting up, continuing or reading a run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A config file does not parse.
    #[error("{path}:{line}:{column}: {}", one_line(problem))]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line of the problem, counted from 1.
        line: usize,
        /// Column of the problem, counted from 1.
        column: usize,
        /// The reason why the file does not parse.
        problem: String,
    },
    /// An override does not fit the config.
    #[error("--set {}: {}", one_line(assignment), one_line(problem))]
    Override {
        /// The override as given.
        assignment: String,
        /// The reason why the override does not fit.
        problem: String,
    },
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// One of several training processes has different data from the process of rank 0.
    #[error(
        "the process of rank {rank} has different data from the process of rank 0; give all machines the same files"
    )]
    OtherData {
        /// Rank of the process with different data.
        rank: usize,
    },
    /// One of several training processes has different weights from the process of rank 0.
    #[error(
        "the process of rank {rank} has different weights from the process of rank 0, so nothing was saved; continue \
         from the last checkpoint with the same hardware and libraries on all machines"
    )]
    OtherWeights {
        /// Rank of the process with different weights.
        rank: usize,
    },
    /// One of several training processes does not see the run directory, or could not write its part of a checkpoint.
    #[error("the process of rank {rank}: {problem}")]
    OfRank {
        /// The rank of the process.
        rank: usize,
        /// The error of the process.
        problem: String,
    },
    /// The directory for a new run already exists and has other content.
    #[error("{0} already exists and has other content")]
    RunExists(PathBuf),
    /// A run would continue with other settings.
    #[error(
        "{path} holds a run that differs from this one: {}",
        differences.iter().map(|it| short(it)).collect::<Vec<_>>().join("; ")
    )]
    Differs {
        /// The run.
        path: PathBuf,
        /// The differences.
        differences: Vec<String>,
    },
    /// Another process trains the run.
    #[error("{path} is in use by {owner}; wait until that process ends, or stop it")]
    Locked {
        /// The run directory.
        path: PathBuf,
        /// The process that uses it.
        owner: String,
    },
    /// The directory of a run vanished or was replaced during training.
    #[error(
        "{0} has vanished or was replaced during training; if it was moved, continue the run in \
         its new place with `train --resume`"
    )]
    Vanished(PathBuf),
    /// The lock file of a run was deleted or replaced during training.
    #[error(
        "{0}: its file `lock` is gone or was replaced, so another process could train the run too; continue the run \
         from its last checkpoint, and do not change the files of a run that is training"
    )]
    Unlocked(PathBuf),
    /// A directory is not a run, or the run lacks something.
    #[error("{}", sentence(path.display(), one_line(problem)))]
    NoRun {
        /// The directory.
        path: PathBuf,
        /// The problem, such as a missing file.
        problem: String,
    },
    /// The config of a run names a path that the user has to allow. Such a path leads to a cache, or to a text or
    /// tokenizer that is outside the run and that the run was not trained with.
    #[error(
        "{}: `{field}` is {}{why}; if you trust the run, allow its paths with \
         `--allow-paths`",
        run.display(),
        one_line(path.display())
    )]
    Outside {
        /// The run directory.
        run: PathBuf,
        /// The config field with the path.
        field: &'static str,
        /// The named path.
        path: PathBuf,
        /// The reason why the path is not allowed.
        why: &'static str,
    },
    /// A prompt does not suit the model.
    #[error("the prompt {0}")]
    Prompt(String),
    /// A model gives logits that are not finite.
    #[error(
        "the model's logits are not finite, so no token can be drawn; its weights are too large"
    )]
    Logits,
    /// A file of a run or checkpoint cannot be used.
    #[error("{}", sentence(path.display(), one_line(problem)))]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// The reason why the file cannot be used.
        problem: String,
    },
    /// The weights of another run cannot be used as initial weights.
    #[error(
        "{source}{}",
        match changes.as_slice() {
            [] => String::new(),
            changes => {
                let changes: Vec<String> = changes.iter().map(|change| short(change)).collect();
                let (run, changes) = (run.display(), changes.join("; "));
                format!(" ({})", one_line(format!("the model differs from {run}: {changes}")))
            }
        }
    )]
    FirstWeights {
        /// The reason why the weights cannot be used.
        source: Box<Error>,
        /// The other run.
        run: PathBuf,
        /// The differences between the two models.
        changes: Vec<String>,
    },
    /// A checkpoint does not fit the model.
    #[error("{path}: {}", one_line(source))]
    Import {
        /// The file.
        path: PathBuf,
        /// The difference between the file and the model.
        source: ImportError,
    },
    /// An error with a remedy for `train`.
    #[error("{error}{link}{remedy}")]
    Remedied {
        /// The error.
        error: Box<Error>,
        /// The words between the error and its remedy.
        link: &'static str,
        /// The remedy.
        remedy: Remedy,
    },
    /// An I/O operation failed.
    #[error("could not {action} {path}: {source}{}", place.remedy(action, path, source))]
    Io {
        /// The attempted operation, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The way to choose another place.
        place: OtherPlace,
        /// The error that the operation returned.
        source: std::io::Error,
    },
    /// Too many consecutive steps had a loss or gradient that is not finite.
    #[error(
        "{}, because {}; the state before is {saved}; try a lower `train.learning_rate`, a longer `train.warmup` or a{} \
         `train.grad_clip`",
        match count {
            1 => format!("step {step} was skipped"),
            count => format!("{count} steps in a row, up to step {step}, were skipped"),
        },
        describe_not_finite(*loss, *grad_norm, parameters),
        if *clips { " smaller" } else { "" }
    )]
    NotFinite {
        /// Number of consecutive skipped steps.
        count: usize,
        /// The last skipped step.
        step: usize,
        /// The loss of the last step.
        loss: f64,
        /// The gradient norm of the last step.
        grad_norm: f64,
        /// The parameters whose gradient is not finite.
        parameters: Vec<String>,
        /// Whether the gradients are clipped.
        clips: bool,
        /// The place where the state before these steps was saved, or the reason why it was not saved.
        saved: String,
    },
}

/// Shortens a long change to the text outside its outermost brackets: `model was Gpt2(…), now TokenFormer(…)`.
fn short(change: &str) -> String {
    const LONG: usize = 150;
    if change.len() <= LONG {
        return change.into();
    }
    let (mut short, mut depth) = (String::new(), 0_usize);
    for c in change.chars() {
        depth = depth.saturating_sub(usize::from(c == ')'));
        if depth == 0 {
            short.push(c);
        }
        if c == '(' {
            short.push_str(if depth == 0 { "…" } else { "" });
            depth += 1;
        }
    }
    short
}

/// Describes a loss or gradient that was not finite, with the names of the first affected parameters.
pub fn describe_not_finite(loss: f64, grad_norm: f64, parameters: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = format!("the loss was {loss} and the gradient norm {grad_norm}");
    if !parameters.is_empty() {
        let shown = &parameters[..parameters.len().min(SHOWN)];
        text += &format!(
            ", with values that are not finite in the gradient of {}",
            shown.join(", ")
        );
        if parameters.len() > SHOWN {
            text += &format!(" and {} more", parameters.len() - SHOWN);
        }
    }
    text
}

impl Blame for Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Data(error) => error.fault(),
            Self::FirstWeights { source, .. } => source.fault(),
            Self::Remedied { error, .. } => error.fault(),
            Self::Io { source, .. } => source.fault(),
            Self::NotFinite { .. }
            | Self::Vanished(_)
            | Self::Unlocked(_)
            | Self::Locked { .. }
            | Self::OtherData { .. }
            | Self::OtherWeights { .. }
            | Self::OfRank { .. } => Fault::Machine,
            _ => Fault::Input,
        }
    }
}

impl Error {
    /// Returns a function for `map_err` that makes the I/O error of `action` on `path`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            action,
            path,
            place: OtherPlace::default(),
            source,
        }
    }

    /// Returns the error for a new run whose directory `path` already has other content.
    pub fn run_exists(path: impl Into<PathBuf>) -> Self {
        Self::RunExists(path.into()).then("; ", Remedy::AnotherOrNoDirectory)
    }

    /// Adds a remedy for `train` after the words `link`, such as `; ` or `; restore it, or `.
    pub fn then(self, link: &'static str, remedy: Remedy) -> Self {
        let error = Box::new(self);
        Self::Remedied {
            error,
            link,
            remedy,
        }
    }

    /// Returns the error without its remedy.
    pub fn cause(&self) -> &Self {
        match self {
            Self::Remedied { error, .. } => error,
            error => error,
        }
    }

    /// Returns the remedies that depend on the running command: a remedy for `train`, and the way to choose another
    /// place.
    pub fn remedies(&mut self) -> (Option<&mut Remedy>, Option<&mut OtherPlace>) {
        match self {
            Self::Remedied { error, remedy, .. } => (Some(remedy), error.remedies().1),
            Self::FirstWeights { source, .. } => source.remedies(),
            Self::Io { place, .. } => (None, Some(place)),
            _ => (None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_skipped_steps_fits_the_run() {
        let error = |count, clips| {
            let error = Error::NotFinite {
                count,
                step: 7,
                loss: f64::NAN,
                grad_norm: 1.0,
                parameters: Vec::new(),
                clips,
                saved: "in step-7".into(),
            };
            error.to_string()
        };
        let several = error(3, true);
        assert!(several.starts_with("3 steps in a row, up to step 7, were skipped, because "));
        assert!(
            several.ends_with("or a smaller `train.grad_clip`"),
            "{several}"
        );
        let one = error(1, false);
        assert!(one.starts_with("step 7 was skipped, because "), "{one}");
        assert!(one.ends_with("or a `train.grad_clip`"), "{one}");
    }
}
