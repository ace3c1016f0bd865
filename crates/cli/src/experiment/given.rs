//! Applies the options to an experiment.

use std::path::Path;

use residual_zoo_backend::BackendKind;
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{Source as Data, TokenizerConfig, does_not_exist};
use residual_zoo_drive::Error as DriveError;
use residual_zoo_lab::{Error, Experiment, ExperimentText, Measure, PlannedRun, TaskSpec};
use residual_zoo_runs::{Error as RunError, names_of};

use super::ExperimentArgs;
use crate::args::exists;
use crate::{DataArgs, command, refuse_doubled};

/// Checks that the data, tokenizers and tasks of an experiment are on this machine or have an address on the hub. An
/// error names the option that sets the missing file, if there is one. For new data and a command without
/// `--new-data`, the error names the field of the experiment file instead.
pub(crate) fn check_is_here<C: ModelConfig>(
    experiment: &Experiment<C>,
    planned: &[PlannedRun<C>],
    has_new_data: bool,
) -> Result<(), ConfigError> {
    let missing = |field: &str, path: &Path, remedy: &str| {
        let problem = format!("{}; {remedy}", does_not_exist(path));
        Err(ConfigError::new(field, problem))
    };
    let reads = experiment.measure.is_some_and(Measure::reads_data);
    let own = reads.then_some(&experiment.data);
    let of_runs = planned.iter().filter(|_| experiment.count.is_none());
    let of_runs = of_runs.filter_map(|run| Some(&run.config.as_ref()?.data));
    for data in own.into_iter().chain(of_runs) {
        let is_new = experiment
            .new_data
            .as_ref()
            .is_some_and(|new| new.source == data.source);
        let (field, remedy) = match data.source == experiment.data.source {
            true => ("data.source", "give the data with `--data PATH`"),
            false if is_new && has_new_data => (
                "new_data.source",
                "give the new data with `--new-data PATH`",
            ),
            false if is_new => (
                "new_data.source",
                "put the new data there, or change `new_data` in the file",
            ),
            false => ("data.source", "check the path"),
        };
        if let Some(path) = data.source.places().into_iter().find(|path| !exists(path)) {
            return missing(field, path, remedy);
        }
        if let TokenizerConfig::File(path) = &data.tokenizer
            && !exists(path)
        {
            return missing(
                "data.tokenizer",
                path,
                "give a tokenizer with `--tokenizer NAME|PATH`",
            );
        }
    }
    match experiment.tasks.iter().find(|task| !exists(&task.file)) {
        None => Ok(()),
        Some(task) => missing(
            "tasks",
            &task.file,
            &format!("give the task with `--task {}=FILE`", task.name),
        ),
    }
}

/// Gives a valid experiment the seeds 1 to `seeds`.
///
/// # Errors
///
/// Returns an error if the number is zero or too large, or if the experiment is not valid with these seeds.
pub fn set_seeds<C: ModelConfig>(experiment: &mut Experiment<C>, seeds: u64) -> Result<(), Error> {
    experiment.set_seeds(seeds)?;
    experiment.check().map_err(|error| match error {
        // The file was valid before the options were applied.
        Error::Drive(DriveError::Run(RunError::Config(error))) => {
            let problem = format!("does not fit: {error}");
            ConfigError::new(format!("--seeds {seeds}"), problem).into()
        }
        error => error,
    })
}

impl ExperimentArgs {
    /// Parses the experiment in a RON text, and applies these options.
    pub(super) fn open<C: ModelConfig>(
        &self,
        text: &ExperimentText,
        path: &Path,
    ) -> Result<Experiment<C>, Error> {
        let mut experiment = text.parse::<C>()?;
        let check =
            |experiment: &Experiment<C>| experiment.check().map_err(|error| error.in_file(path));
        check(&experiment)?;
        if let Some(seeds) = self.seeds {
            set_seeds(&mut experiment, seeds)?;
        }
        self.apply(&mut experiment)?;
        Ok(experiment)
    }

    /// Puts `--data`, `--new-data`, `--tokenizer` and `--task` into an experiment.
    fn apply<C>(&self, experiment: &mut Experiment<C>) -> Result<(), ConfigError> {
        self.check_data(experiment)?;
        refuse_doubled("--seeds", "train.seed", &self.set)?;
        self.data.apply(&mut experiment.data, &self.set)?;
        self.apply_tasks(&mut experiment.tasks)?;
        let Some(data) = &mut experiment.new_data else {
            return self.new_data.as_ref().map_or(Ok(()), |path| {
                let path = path.display();
                let problem = format!("is {path}, but no run is on new data; leave it out");
                Err(ConfigError::new("--new-data", problem))
            });
        };
        // The new data have the same tokenizer, because weights learned with one tokenizer's ids are useless with
        // another.
        let tokenizer = DataArgs {
            data: None,
            tokenizer: self.data.tokenizer.clone(),
        };
        tokenizer.apply(data, &self.set)?;
        if let Some(path) = &self.new_data {
            refuse_doubled("--new-data", "data.source", &self.set)?;
            if !exists(path) {
                let problem = format!(
                    "`{}` does not exist; give a file, a directory or hf://datasets/OWNER/NAME/PATH",
                    path.display()
                );
                return Err(ConfigError::new("--new-data", problem));
            }
            data.source = Data::Path(path.clone());
        }
        Ok(())
    }

    /// Replaces the files of the experiment's tasks with the files of `--task`.
    fn apply_tasks(&self, tasks: &mut [TaskSpec]) -> Result<(), ConfigError> {
        for given in &self.task {
            let names = || {
                tasks
                    .iter()
                    .map(|task| task.name.as_str())
                    .collect::<Vec<_>>()
            };
            let wrong = |problem: String| ConfigError::new(format!("--task {given}"), problem);
            let known = match names().as_slice() {
                [] => "this experiment has no tasks; leave it out".to_owned(),
                names => format!("give one of {} as TASK=FILE", names.join(", ")),
            };
            let (name, file) = given.split_once('=').ok_or_else(|| wrong(known.clone()))?;
            let task = tasks.iter_mut().find(|task| task.name == name);
            task.ok_or_else(|| wrong(known))?.file = file.into();
        }
        Ok(())
    }

    /// Refuses data and a tokenizer for an experiment that reads no data or draws its data itself.
    fn check_data<C>(&self, experiment: &Experiment<C>) -> Result<(), ConfigError> {
        let measures = experiment.measure.is_some_and(|m| m.reads_data());
        let reads = experiment.count.is_none() || measures;
        let draws = matches!(experiment.data.source, Data::Copying(_));
        for (option, given) in [
            ("--data", &self.data.data),
            ("--tokenizer", &self.data.tokenizer),
        ] {
            let problem = match given {
                Some(given) if !reads => {
                    format!("is {given}, but nothing here reads data; leave it out")
                }
                Some(_) if draws => {
                    "is given, but this experiment draws its data itself; leave it out".into()
                }
                _ => continue,
            };
            return Err(ConfigError::new(option, problem));
        }
        Ok(())
    }

    /// Refuses options that have no effect in an experiment without training.
    pub(super) fn check_effect<C: ModelConfig>(
        &self,
        experiment: &Experiment<C>,
        planned: &[PlannedRun<C>],
    ) -> Result<(), ConfigError> {
        if experiment.count.is_none() {
            return Ok(());
        }
        if self.results.is_some() {
            let problem = "has no effect, because this experiment trains nothing; leave it out";
            return Err(ConfigError::new("--results", problem));
        }
        let is_random = experiment.measure.is_some_and(Measure::is_random);
        if let (Some(seeds), false) = (self.seeds, is_random) {
            let problem =
                "has no effect, because nothing here is trained or drawn at random; leave it out";
            return Err(ConfigError::new(format!("--seeds {seeds}"), problem));
        }
        let configs = || planned.iter().filter_map(|run| run.config.as_ref());
        let reads = |part: &str| match part {
            "train" => false,
            // The size of images and the number of classes come from the data.
            "data" => configs().any(|config| config.data.image().is_some()),
            _ => configs().next().is_some(),
        };
        let is_idle = |set: &&String| !names_of(set).first().is_some_and(|part| reads(part));
        match self.set.iter().find(is_idle) {
            None => Ok(()),
            Some(set) => {
                let problem = "has no effect, because this experiment trains nothing; leave it out";
                Err(ConfigError::new(format!("--set {set}"), problem))
            }
        }
    }

    /// Returns the command that repeats the results; it begins with `program`.
    pub(super) fn command(&self, scale: &str, program: &str, kind: BackendKind) -> String {
        // Flex is the default backend, so the command need not name it.
        let other = (kind != BackendKind::Flex).then_some(kind);
        let new_data = self
            .new_data
            .as_ref()
            .map(|path| path.display().to_string());
        let mut options: Vec<(&str, String)> = Vec::new();
        options.extend((!scale.is_empty()).then(|| ("--scale", scale.to_owned())));
        options.extend(self.only.iter().map(|text| ("--only", text.clone())));
        options.extend(self.set.iter().map(|set| ("--set", set.clone())));
        options.extend(self.task.iter().map(|task| ("--task", task.clone())));
        let single = [
            ("--seeds", self.seeds.map(|seeds| seeds.to_string())),
            ("--jobs", self.jobs.several().map(|jobs| jobs.to_string())),
            ("--data", self.data.data.clone()),
            ("--new-data", new_data),
            ("--tokenizer", self.data.tokenizer.clone()),
            ("--backend", other.map(|kind| kind.to_string())),
        ];
        options.extend(
            single
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let arguments = options.into_iter();
        let arguments = arguments.flat_map(|(option, value)| [option.to_owned(), value]);
        let arguments = arguments.chain(self.backend.place());
        command(program, arguments)
    }
}
