//! Tasks for the evaluation of an experiment's runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_evaluate::{Error as EvaluateError, KINDS, Kind, Options as Evaluation, Task};
use residual_zoo_runs::Run;
use serde::{Deserialize, Serialize};

use residual_zoo_drive::{Error as DriveError, evaluate};
use residual_zoo_system::Blame as _;

use crate::{Error, Options};

/// A task on which trained runs are evaluated. Its metrics are quantities, such as `hellaswag acc_norm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// The name of the task. The names of its quantities begin with this name.
    pub name: String,
    /// The format of the documents: `lambada`, `hellaswag`, `piqa`, `arc`, `winogrande`, `wikitext` or `text`.
    pub kind: String,
    /// The file of the documents: a `.jsonl` file with a JSON object on each line or, for `wikitext` and `text`, a text
    /// file.
    pub file: PathBuf,
}

impl TaskSpec {
    fn kind(&self) -> Option<Kind> {
        let known = KINDS.iter().find(|(name, _)| *name == self.kind);
        known.map(|(_, kind)| *kind)
    }

    /// Returns the quantities of the task.
    pub fn quantities(&self) -> Vec<String> {
        let metrics = self.kind().map_or(&[][..], Kind::metrics);
        let quantity = |metric: &&str| format!("{} {metric}", self.name);
        metrics.iter().map(quantity).collect()
    }

    fn read(&self) -> Result<Task, Error> {
        let mut task = Task::read(&format!("{}={}", self.kind, self.file.display()), None)?;
        task.name.clone_from(&self.name);
        Ok(task)
    }
}

/// Checks the names and kinds of tasks.
pub(crate) fn check(tasks: &[TaskSpec]) -> Result<(), ConfigError> {
    let error = |problem: String| Err(ConfigError::new("tasks", problem));
    let mut names = BTreeSet::new();
    for task in tasks {
        if task.kind().is_none() {
            let known: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
            let problem = format!("`{}` has the kind `{}`", task.name, task.kind);
            return error(format!("{problem}; there are {}", known.join(", ")));
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if task.name.is_empty() || task.name.starts_with('.') || !task.name.bytes().all(is_name) {
            let problem = format!("has the name {:?}", task.name);
            return error(problem + "; use letters, digits, `_`, `-` and `.`");
        }
        if !names.insert(&task.name) {
            return error(format!("has two called `{}`", task.name));
        }
    }
    Ok(())
}

/// Reads the files of tasks.
pub(crate) fn read<'a>(tasks: impl Iterator<Item = &'a TaskSpec>) -> Result<Vec<Task>, Error> {
    tasks.map(TaskSpec::read).collect()
}

/// The reason why a run has no metrics.
pub(crate) enum Unevaluated {
    /// Another process evaluates the run.
    Busy,
    /// The user asked to stop.
    Stopped,
    /// The evaluation failed.
    Failed(Error),
}

/// Returns the metrics of the run in `directory` on `tasks`, by quantity. Earlier scores are reused.
pub(crate) fn metrics<C: ModelConfig>(
    directory: &Path,
    tasks: &[Task],
    options: &Options,
) -> Result<BTreeMap<String, f64>, Unevaluated> {
    let failed = |error: Error| Unevaluated::Failed(error);
    let run = Run::<C>::open(directory).map_err(|error| match error.is_stop() {
        true => Unevaluated::Stopped,
        false => failed(error.into()),
    })?;
    // Results are stored beside the pool, because a run directory holds only the files of training.
    let name = directory.file_name().unwrap_or_default();
    let evaluation = Evaluation {
        directory: options.directory.with_file_name("evaluations").join(name),
        batch: 16,
        stride: None,
    };
    let backend = (options.backend, options.gpu);
    let results = evaluate(&run, tasks, &evaluation, backend, &options.stop);
    let results = results.map_err(|error| match error {
        error if error.is_stop() => Unevaluated::Stopped,
        DriveError::Evaluate(EvaluateError::Run(residual_zoo_runs::Error::Locked { .. })) => {
            Unevaluated::Busy
        }
        error => failed(error.into()),
    })?;
    let mut found = BTreeMap::new();
    for task in results {
        for metric in task.metrics {
            found.insert(format!("{} {}", task.task, metric.name), metric.value);
        }
    }
    Ok(found)
}
