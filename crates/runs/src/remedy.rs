//! Remedies that depend on the running command.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use residual_zoo_system::files::is_link_loop;

/// The remedy for a run that `train` cannot begin or continue. Other commands replace it with their own remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Start another run.
    AnotherRun,
    /// Start another run, or continue this one with other settings.
    AnotherRunOrChanges {
        /// Whether the model has changed.
        of_model: bool,
    },
    /// Choose another directory.
    AnotherDirectory,
    /// Choose another directory, or delete this one.
    AnotherOrNoDirectory,
    /// Start another run from the weights of this one.
    FromWeightsOf(PathBuf),
    /// Train the model of this run in another run, if this run was merged.
    IfMerged(PathBuf),
    /// The remedy of another command.
    OfCommand(&'static str),
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ANOTHER_RUN: &str = "start another run with `--run DIR`";
        const ANOTHER_DIRECTORY: &str = "choose another directory with `--run DIR`";
        match self {
            Self::AnotherRun => f.write_str(ANOTHER_RUN),
            Self::AnotherRunOrChanges { of_model } => {
                let sizes = match of_model {
                    true => " (the sizes of the weights cannot change)",
                    false => "",
                };
                write!(
                    f,
                    "{ANOTHER_RUN}, or pass `--allow-config-change` to continue it with these changes{sizes}"
                )
            }
            Self::AnotherDirectory => f.write_str(ANOTHER_DIRECTORY),
            Self::AnotherOrNoDirectory => write!(
                f,
                "{ANOTHER_DIRECTORY}, or delete it if you no longer need it"
            ),
            Self::FromWeightsOf(run) => {
                let run = run.display();
                write!(f, "start another run from its weights: `--init-from {run}`")
            }
            Self::IfMerged(run) => {
                let run = run.display();
                write!(
                    f,
                    "if it was merged and has not trained, train its model with `train {run}/config.ron --init-from \
                     {run} --run NEW`, otherwise restore the file"
                )
            }
            Self::OfCommand(remedy) => f.write_str(remedy),
        }
    }
}

/// The way to choose another place for a file that cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherPlace {
    /// Another place can be chosen.
    #[default]
    Free,
    /// Another place can be chosen with this option.
    By(&'static str),
    /// The place is fixed, as for a run that continues.
    Fixed,
}

impl OtherPlace {
    /// Returns the remedy for a failed `action` on `path`, with `; ` before it; empty if there is none.
    pub(crate) fn remedy(self, action: &str, path: &Path, error: &io::Error) -> String {
        use ErrorKind::{
            FileTooLarge, InvalidData, IsADirectory, NotADirectory, NotFound, QuotaExceeded,
            StorageFull,
        };
        // Commands without an option for the output file write to standard output.
        let is_stream = path == Path::new("standard output");
        let (here, elsewhere) = match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge if is_stream => {
                return "; free some space".into();
            }
            _ if is_stream => return String::new(),
            NotFound if action == "write" && path.parent().is_some_and(Path::is_dir) => {
                return "; another program has moved or deleted it meanwhile; repeat the command"
                    .into();
            }
            NotFound if action == "write" => ("create its folder first", "choose another one"),
            StorageFull | QuotaExceeded | FileTooLarge => {
                ("free some space", "write to another disk")
            }
            _ if action != "read" => match self {
                Self::Fixed => ("make it writable", ""),
                _ => ("", "choose a place where files can be written"),
            },
            NotFound | NotADirectory => return "; check the path".into(),
            _ if is_link_loop(error) => return "; make the link again".into(),
            IsADirectory => return "; give a file".into(),
            InvalidData => return "; the file must be UTF-8 text".into(),
            _ => return String::new(),
        };
        let or = if here.is_empty() { "" } else { ", or " };
        match self {
            Self::Fixed => format!("; {here}"),
            Self::Free => format!("; {here}{or}{elsewhere}"),
            Self::By(option) => format!("; {here}{or}{elsewhere}, with {option}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn remedies_of_train_are_replaced_for_other_commands() {
        let run = || PathBuf::from("pool/a");
        let damaged = || Error::NoRun {
            path: run(),
            problem: "is damaged".into(),
        };
        let differs = Error::Differs {
            path: run(),
            differences: vec!["model.width was 8, now 16".into()],
        };
        for mut error in [
            differs.then("; ", Remedy::AnotherRunOrChanges { of_model: true }),
            Error::run_exists(run()),
            damaged().then("; restore it, or ", Remedy::AnotherRun),
            damaged().then("; restore it, or ", Remedy::AnotherDirectory),
            damaged().then(", or ", Remedy::FromWeightsOf(run())),
            damaged().then("; ", Remedy::IfMerged(run())),
        ] {
            let of_train = error.to_string();
            assert!(
                of_train.contains("--run ") || of_train.contains("--init-from pool/a"),
                "{of_train}"
            );
            *error.remedies().0.unwrap() = Remedy::OfCommand("repeat it");
            let message = error.to_string();
            assert!(
                message.starts_with("pool/a") && message.ends_with(" repeat it"),
                "{message}"
            );
            for other in ["--run ", "--allow", "--init-from"] {
                assert!(!message.contains(other), "{message}");
            }
        }
        assert_eq!(damaged().remedies(), (None, None));
    }

    #[test]
    fn a_place_has_the_remedies_of_the_command() {
        let written = |kind: ErrorKind, place| {
            let mut error = Error::io("write", "run/lock".as_ref())(kind.into());
            *error.remedies().1.unwrap() = place;
            error.to_string()
        };
        let (free, by, fixed) = (
            OtherPlace::Free,
            OtherPlace::By("`--run DIR`"),
            OtherPlace::Fixed,
        );
        for (kind, place, remedy) in [
            (
                ErrorKind::PermissionDenied,
                free,
                "denied; choose a place where files can be written",
            ),
            (
                ErrorKind::PermissionDenied,
                by,
                "denied; choose a place where files can be written, with `--run DIR`",
            ),
            (
                ErrorKind::PermissionDenied,
                fixed,
                "denied; make it writable",
            ),
            (
                ErrorKind::StorageFull,
                by,
                "; free some space, or write to another disk, with `--run DIR`",
            ),
            (ErrorKind::StorageFull, fixed, "; free some space"),
            (
                ErrorKind::NotFound,
                free,
                "; create its folder first, or choose another one",
            ),
            (ErrorKind::NotFound, fixed, "; create its folder first"),
        ] {
            let message = written(kind, place);
            assert!(message.ends_with(remedy), "{message}");
        }
        let mut read = Error::io("read", "a.ron".as_ref())(ErrorKind::NotFound.into());
        *read.remedies().1.unwrap() = by;
        assert!(read.to_string().ends_with("; check the path"), "{read}");
    }
}
