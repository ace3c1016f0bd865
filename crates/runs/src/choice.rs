//! Chooses a checkpoint of a run, and either its weights or their average.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::checkpoint::{self, Needs, Newest};
use crate::{Error, Row, manifest, run_dir};

/// A choice among the checkpoints of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The newest good checkpoint.
    #[default]
    Newest,
    /// The checkpoint with the lowest validation loss.
    Best,
    /// The checkpoint after this many steps.
    Step(usize),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "newest" => Ok(Self::Newest),
            "best" => Ok(Self::Best),
            // Also accepts the name of the directory.
            step => match step.trim_start_matches("step-").parse() {
                Ok(step) => Ok(Self::Step(step)),
                Err(_) => Err("must be a number of steps, `best` or `newest`".into()),
            },
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest => f.write_str("newest"),
            Self::Best => f.write_str("best"),
            Self::Step(step) => write!(f, "{step}"),
        }
    }
}

impl Choice {
    /// Finds the chosen checkpoint of the run in the directory `run`, and checks the needed files against its manifest.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such checkpoint, or if it is damaged. Also returns I/O errors.
    pub fn of(self, run: &Path, needs: Needs) -> Result<Newest, Error> {
        let path = match self {
            Self::Newest => return checkpoint::newest_for(run, needs),
            Self::Best if has_not_trained(run) => {
                let problem =
                    "has not trained, so it has no validation loss; take the `newest` checkpoint";
                return Err(Error::NoRun {
                    path: run.into(),
                    problem: problem.into(),
                });
            }
            Self::Best => best(run, &run_dir::read_metrics(run)?),
            Self::Step(step) => Some(checkpoint::directory(run, step)).filter(|path| path.is_dir()),
        };
        let Some(path) = path else {
            let steps = checkpoint::steps(run)?;
            let steps: Vec<String> = steps.iter().map(usize::to_string).collect();
            let has = match steps.as_slice() {
                [] => "it has none yet".to_owned(),
                [step] => format!("its only checkpoint is of step {step}"),
                steps => format!("its checkpoints are of steps {}", steps.join(", ")),
            };
            let problem = match self {
                Self::Step(step) => format!("has no checkpoint of step {step}; {has}"),
                _ => format!("has no checkpoint that was validated; {has}"),
            };
            return Err(Error::NoRun {
                path: run.into(),
                problem,
            });
        };
        let damaged = checkpoint::verify(&path, needs)?;
        Ok(Newest {
            path,
            passed_over: Vec::new(),
            damaged,
        })
    }
}

/// The weights of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SavedWeights {
    /// The weights after the last step.
    #[default]
    Trained,
    /// The exponential moving average of the weights, which the run keeps with
    /// [`TrainConfig::ema`](crate::TrainConfig::ema).
    Ema,
}

impl FromStr for SavedWeights {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "trained" => Ok(Self::Trained),
            "ema" => Ok(Self::Ema),
            _ => Err("must be `trained` or `ema`"),
        }
    }
}

impl fmt::Display for SavedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trained => "trained",
            Self::Ema => "ema",
        })
    }
}

impl SavedWeights {
    /// Returns the BLAKE3 hash of these weights in `checkpoint`, according to its manifest.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`file`](Self::file), and an error if the manifest is damaged.
    pub fn blake3(self, checkpoint: &Path) -> Result<String, Error> {
        self.file(checkpoint)?;
        manifest::blake3_of(checkpoint, self.file_name())
    }

    /// Returns the name of the file with these weights in a checkpoint.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Trained => checkpoint::MODEL,
            Self::Ema => checkpoint::EMA,
        }
    }

    /// Returns the file with these weights in `checkpoint`.
    ///
    /// # Errors
    ///
    /// Returns an error if the checkpoint has no average.
    pub fn file(self, checkpoint: &Path) -> Result<PathBuf, Error> {
        let path = checkpoint.join(self.file_name());
        match self == Self::Trained || path.is_file() {
            true => Ok(path),
            false => Err(Error::Checkpoint {
                path: checkpoint.into(),
                problem: "has no average of the weights; leave out `--weights ema`, or train with `train.ema`".into(),
            }),
        }
    }
}

/// Whether the run in the directory `run` has not been trained since it was imported or merged. Such a run has no
/// metrics, and only the checkpoint of step 0.
fn has_not_trained(run: &Path) -> bool {
    let is_missing = std::fs::symlink_metadata(run.join(run_dir::METRICS)).is_err();
    is_missing && checkpoint::steps(run).is_ok_and(|steps| steps == [0])
}

/// Returns the checkpoint with the lowest validation loss among the existing checkpoints of the run in the directory
/// `run`, without the checkpoint before the first step. `rows` are the metrics of the run.
pub fn best(run: &Path, rows: &[Row]) -> Option<PathBuf> {
    let validated = rows.iter().filter(|row| row.step > 0);
    let losses = validated.filter_map(|row| Some((row.step, row.valid_loss?)));
    let saved = losses.map(|(step, loss)| (checkpoint::directory(run, step), loss));
    let best = saved
        .filter(|(path, _)| path.is_dir())
        .min_by(|(_, a), (_, b)| a.total_cmp(b));
    best.map(|(path, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_a_step_or_a_word() {
        assert_eq!("newest".parse(), Ok(Choice::Newest));
        assert_eq!("best".parse(), Ok(Choice::Best));
        assert_eq!("100".parse(), Ok(Choice::Step(100)));
        assert_eq!("step-00000100".parse(), Ok(Choice::Step(100)));
        for text in ["", "-1", "1.5", "last", "Best"] {
            assert!(text.parse::<Choice>().is_err(), "{text}");
        }
    }
}
