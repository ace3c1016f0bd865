//! Errors of a run.

use std::path::{Path, PathBuf};

use residual_zoo_core::{ConfigError, params::ImportError};
use residual_zoo_data::{DataError, one_line};
use residual_zoo_system::is_wrong_place;

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
        /// The problem.
        problem: String,
    },
    /// An override does not fit the config.
    #[error("--set {}: {}", one_line(assignment), one_line(problem))]
    Override {
        /// The override as given.
        assignment: String,
        /// The problem.
        problem: String,
    },
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A process of a team has other data than the leader.
    #[error(
        "the process of rank {rank} has other data than that of rank 0; give all machines the same files"
    )]
    OtherData {
        /// The rank of the process.
        rank: usize,
    },
    /// A process of a team has other weights than the leader.
    #[error(
        "the process of rank {rank} has other weights than that of rank 0, so nothing was saved; continue from the \
         last checkpoint with the same hardware and libraries on all machines"
    )]
    OtherWeights {
        /// The rank of the process.
        rank: usize,
    },
    /// A process of a team could not write its part of a checkpoint.
    #[error("the process of rank {rank}: {problem}")]
    OfRank {
        /// The rank of the process.
        rank: usize,
        /// The error of the process.
        problem: String,
    },
    /// The directory for a new run already holds something else.
    #[error(
        "{0} already exists and holds something else; {ANOTHER_DIRECTORY}, or delete it if you no longer need it"
    )]
    RunExists(PathBuf),
    /// A run would continue with other settings.
    #[error(
        "{path} holds a run that differs from this one: {}; {ANOTHER_RUN}, or pass `--allow-config-change` to continue it \
         with these changes{}",
        differences.iter().map(|it| short(it)).collect::<Vec<_>>().join("; "),
        if differences.iter().any(|change| change.starts_with("model")) {
            " (the sizes of the weights cannot change)"
        } else {
            ""
        }
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
    /// The directory of a run vanished during training.
    #[error(
        "{0} has vanished or was replaced during training; if it was moved, continue the run in \
         its new place with `train --resume`"
    )]
    Vanished(PathBuf),
    /// The lock of a run was deleted during training.
    #[error(
        "{0}: its file `lock` is gone, without which another process could train it too; continue the run from its last \
         checkpoint, and delete no file of a run that trains"
    )]
    Unlocked(PathBuf),
    /// A directory is not a run, or the run lacks something.
    #[error("{path}: {}", one_line(problem))]
    NoRun {
        /// The directory.
        path: PathBuf,
        /// The missing part.
        problem: String,
    },
    /// The config of a run names a path that may not belong to the run.
    #[error(
        "{}: `{field}` is {}{why}; if you trust the run, allow its paths with \
         `--allow-paths`",
        run.display(),
        one_line(path.display())
    )]
    Outside {
        /// The run.
        run: PathBuf,
        /// The field.
        field: &'static str,
        /// The named path.
        path: PathBuf,
        /// The problem.
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
    #[error("{path}: {}", one_line(problem))]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The weights of another run cannot be the initial ones.
    #[error(
        "{source}{}",
        match changes.as_slice() {
            [] => String::new(),
            changes => {
                let changes: Vec<String> = changes.iter().map(|change| short(change)).collect();
                let (run, changes) = (run.display(), changes.join("; "));
                format!(" ({})", one_line(format!("since {run}, the model changes: {changes}")))
            }
        }
    )]
    FirstWeights {
        /// The reason.
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
        /// The difference.
        source: ImportError,
    },
    /// An I/O operation failed.
    #[error("could not {action} {path}: {source}{remedy}", remedy = remedy(.action, .path, .source))]
    Io {
        /// The attempted operation, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
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
        /// The place where the state before these steps was saved, or why it was not.
        saved: String,
    },
}

/// Shortens a long change by the content of its outermost brackets: `model was Gpt2(…), now TokenFormer(…)`.
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

/// Describes a loss or gradient that was not finite, with the names of the first parameters.
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

impl Error {
    /// Whether the input is at fault, as opposed to the machine, another process or diverging training.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Data(error) => error.is_bad_input(),
            Self::FirstWeights { source, .. } => source.is_bad_input(),
            Self::Io { source, .. } => is_wrong_place(source),
            Self::NotFinite { .. }
            | Self::Vanished(_)
            | Self::Unlocked(_)
            | Self::Locked { .. }
            | Self::OtherData { .. }
            | Self::OtherWeights { .. }
            | Self::OfRank { .. } => false,
            _ => true,
        }
    }

    /// Whether the user stopped the work.
    pub fn is_stop(&self) -> bool {
        match self {
            Self::Data(error) => error.is_stop(),
            Self::FirstWeights { source, .. } => source.is_stop(),
            _ => false,
        }
    }

    /// An I/O error of `action` on `path`, for `map_err`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

/// The remedy for a run that `train` cannot continue. It comes last in a message.
pub const ANOTHER_RUN: &str = "start another run with `--run DIR`";
/// The remedy for a directory in which no run can begin.
pub const ANOTHER_DIRECTORY: &str = "choose another directory with `--run DIR`";
/// The remedy for a run that has lost its history.
pub(crate) const FROM_ITS_WEIGHTS: &str = "start another run from its weights";

/// The remedy for a run that lacks the identity of its data.
pub(crate) const IF_MERGED: &str = "if it was merged and has not trained";

/// Puts `remedy` in the place of the remedies of `train`, for commands that have other options.
pub fn with_remedy(message: &str, remedy: &str) -> String {
    let known = [ANOTHER_RUN, ANOTHER_DIRECTORY, FROM_ITS_WEIGHTS, IF_MERGED];
    let first = known.iter().filter_map(|known| message.find(known)).min();
    first.map_or_else(
        || message.to_owned(),
        |at| format!("{}{remedy}", &message[..at]),
    )
}

const NO_FOLDER: &str = "; create its folder first, or choose another one";
const NO_SPACE: &str = "; free some space, or write to another disk";
const NOT_WRITABLE: &str = "; choose a place where files can be written";

/// Whether a message asks for another place to write to. A program can then name its option for the place.
pub fn asks_for_a_place(message: &str) -> bool {
    let remedies = [NO_FOLDER, NO_SPACE, NOT_WRITABLE];
    remedies.iter().any(|remedy| message.ends_with(remedy))
}

/// Puts a remedy that suits a continued run, whose place is fixed, in the place of another place to write to.
pub fn at_its_place(message: &str) -> String {
    match (
        message.strip_suffix(NOT_WRITABLE),
        message.strip_suffix(NO_SPACE),
    ) {
        (Some(message), _) => format!("{message}; make it writable"),
        (_, Some(message)) => format!("{message}; free some space"),
        _ => message.to_owned(),
    }
}

fn remedy(action: &str, path: &Path, error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{
        FileTooLarge, InvalidData, IsADirectory, NotADirectory, NotFound, QuotaExceeded,
        StorageFull,
    };
    // A command without an option for the place writes here.
    let is_stream = path == Path::new("standard output");
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge if is_stream => "; free some space",
        _ if is_stream => "",
        NotFound if action == "write" => NO_FOLDER,
        StorageFull | QuotaExceeded | FileTooLarge => NO_SPACE,
        _ if action != "read" => NOT_WRITABLE,
        NotFound | NotADirectory => "; check the path",
        IsADirectory => "; give a file",
        InvalidData => "; the file must be UTF-8 text",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_of_train_are_replaced_for_other_commands() {
        let differs = Error::Differs {
            path: "pool/a".into(),
            differences: vec!["model.width was 8, now 16".into()],
        };
        let run = || PathBuf::from("pool/a");
        let damaged = |remedy: &str| Error::NoRun {
            path: run(),
            problem: format!("is damaged; restore it, or {remedy}"),
        };
        let from_weights = format!("{FROM_ITS_WEIGHTS}: `--init-from pool/a`");
        for error in [
            differs,
            Error::RunExists(run()),
            damaged(ANOTHER_RUN),
            damaged(ANOTHER_DIRECTORY),
            damaged(&from_weights),
            damaged(IF_MERGED),
        ] {
            let message = with_remedy(&error.to_string(), "repeat it");
            assert!(
                message.starts_with("pool/a") && message.ends_with("repeat it"),
                "{message}"
            );
            assert!(
                !message.contains("--run ") && !message.contains("--allow"),
                "{message}"
            );
            assert!(!message.contains("--init-from"), "{message}");
        }
        assert_eq!(
            with_remedy("a: is wrong; fix it", "no"),
            "a: is wrong; fix it"
        );
    }

    #[test]
    fn a_continued_run_has_its_place() {
        let denied = Error::io("write", "run/lock".as_ref());
        let denied = denied(std::io::ErrorKind::PermissionDenied.into()).to_string();
        assert!(asks_for_a_place(&denied), "{denied}");
        assert_eq!(
            at_its_place(&denied),
            "could not write run/lock: permission denied; make it writable"
        );
        assert!(!asks_for_a_place(&at_its_place(&denied)));
    }

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
