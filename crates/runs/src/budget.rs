//! Reads the number of steps from the text of a config, and checks that a token budget does not contradict it.

use std::path::Path;

use residual_zoo_core::ConfigError;
use serde::Deserialize;

use crate::{Error, parse_ron};

/// The part of a run file or an experiment that says how long a run is.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Text {
    train: Train,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Train {
    steps: Option<usize>,
}

/// Returns the number of steps in `text`, the text of a run file or an experiment; `None` if `text` omits the number. A
/// parsed config does not show whether the number was written or is the default.
pub fn written(text: &str) -> Option<usize> {
    let text: Text = parse_ron(text, Path::new("")).ok()?;
    text.train.steps
}

/// Refuses the text of the file `path` if it has both a number of steps and a token budget. `needed` is the number of
/// steps that reaches the budget, if this number is known. The text may have both fields if its number of steps is
/// `needed`.
///
/// # Errors
///
/// Returns an error that names both fields.
pub fn check(
    (steps, tokens): (usize, f64),
    needed: Option<usize>,
    path: &Path,
) -> Result<(), Error> {
    let takes = match needed {
        Some(needed) if needed == steps => return Ok(()),
        Some(needed) => format!("`train.tokens` = {tokens} takes {needed} steps"),
        None => format!("`train.tokens` = {tokens} sets them too"),
    };
    let problem = format!("is {steps}, but {takes}; leave one of them out");
    Err(ConfigError::new("train.steps", problem)
        .in_file(path)
        .into())
}
