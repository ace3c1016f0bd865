//! The directory of a comparison: the file that marks the directory, and the check of its existing runs.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{Corpus, read_utf8};
use residual_zoo_runs::run_dir::{self, DataIdentity};
use residual_zoo_runs::{Error as RunError, RunConfig, disk};
use residual_zoo_train::{data_difference, differences};

use crate::{Error, Options, REPORT};

/// The name of the file that marks the directory of a comparison. The file lists the names of the models.
pub(super) const MARK: &str = "comparison.txt";

/// The first line of this file.
const FIRST_LINE: &str = "A comparison; `--force` replaces it. Its models:";

/// Makes the directory of a comparison. With `force`, replaces an earlier comparison. Returns an error if the directory
/// holds anything else or, without `force`, a comparison of other models or settings.
pub(super) fn prepare<C: ModelConfig>(
    models: &[(String, RunConfig<C>)],
    corpus: &Corpus,
    options: &Options,
) -> Result<(), Error> {
    let directory = &options.directory;
    let runs = runs_in(directory)?;
    let is_compared = |name: &&String| models.iter().any(|(model, _)| model == *name);
    if options.force {
        run_dir::delete(&runs.iter().map(|name| directory.join(name)).collect())?;
    } else if let Some(other) = runs.iter().find(|name| !is_compared(name)) {
        let problem = format!(
            "compares other models, such as `{other}`; choose another directory with `--run`, or begin anew with `--force`"
        );
        return Err(ConfigError::new(directory.display().to_string(), problem).into());
    } else if !runs.is_empty() {
        let identity = DataIdentity::of(corpus);
        for (name, config) in models.iter().filter(|(name, _)| runs.contains(name)) {
            check_same(&directory.join(name), config, (corpus, &identity))?;
        }
    }
    fs::create_dir_all(directory).map_err(RunError::io("create", directory))?;
    let names: Vec<&str> = models.iter().map(|(name, _)| name.as_str()).collect();
    let text = format!("{FIRST_LINE}\n{}\n", names.join("\n"));
    Ok(disk::replace_shared(
        &directory.join(MARK),
        text.as_bytes(),
    )?)
}

/// Returns the names of the runs of the comparison in `directory`; none if there is no comparison.
///
/// # Errors
///
/// Returns [`RunError::RunExists`] if the directory holds anything that is not part of a comparison.
fn runs_in(directory: &Path) -> Result<Vec<String>, RunError> {
    let something_else = || RunError::run_exists(directory);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => match error.kind() {
            ErrorKind::NotFound => return Ok(Vec::new()),
            ErrorKind::NotADirectory => return Err(something_else()),
            _ => return Err(RunError::io("read", directory)(error)),
        },
    };
    let names = entries
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().into_string());
    let names: Vec<String> = names
        .collect::<Result<_, _>>()
        .map_err(|_| something_else())?;
    // Partial files, left by a full disk or a killed process, do not count, because they are written again.
    let is_file =
        |name: &str| fs::symlink_metadata(directory.join(name)).is_ok_and(|found| found.is_file());
    let is_partial = |name: &&String| {
        let begins = [REPORT, MARK].iter().any(|own| {
            let stem = own.split('.').next().unwrap_or_default();
            name.starts_with(&format!("{stem}."))
        });
        begins && name.ends_with(".partial") && is_file(name)
    };
    let mut names: Vec<&String> = names.iter().filter(|name| !is_partial(name)).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let read = |name: &str| match is_file(name) {
        true => read_utf8(&directory.join(name)).ok(),
        false => None,
    };
    let mark = read(MARK).filter(|text| text.starts_with(FIRST_LINE));
    let mark = mark.ok_or_else(something_else)?;
    names.retain(|name| *name != MARK);
    if let Some(at) = names.iter().position(|name| *name == REPORT) {
        let is_ours = read(REPORT).is_some_and(|text| text.contains(residual_zoo_report::MARK));
        if !is_ours {
            return Err(something_else());
        }
        names.remove(at);
    }
    match names
        .iter()
        .all(|name| mark.lines().skip(1).any(|model| model == *name))
    {
        true => Ok(names.into_iter().cloned().collect()),
        false => Err(something_else()),
    }
}

/// Checks that an earlier run in this directory had this config and these data.
fn check_same<C: ModelConfig>(
    run: &Path,
    config: &RunConfig<C>,
    data: (&Corpus, &DataIdentity),
) -> Result<(), Error> {
    disk::refuse_linked_directory(run)?;
    if !run.join(run_dir::CONFIG).exists() {
        return Ok(());
    }
    let before = run_dir::read_config::<C>(run)?;
    let mut changes = differences(&before, config);
    changes.extend(data_difference(run, data.0, data.1)?);
    // With more steps, a finished run would continue with the learning rates of another schedule.
    let (from, to) = (before.train.steps, config.train.steps);
    if to > from {
        changes.push(format!("train.steps was {from}, now {to}"));
    }
    if changes.is_empty() {
        return Ok(());
    }
    let problem = format!(
        "was compared with other settings: {}; choose another directory with `--run`, or begin anew with \
         `--force`",
        changes.join("; ")
    );
    Err(ConfigError::new(run.display().to_string(), problem).into())
}
