//! Applies the options to an experiment.

use std::path::Path;

use residual_zoo_backend::BackendKind;
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::Source as Data;
use residual_zoo_drive::Error as DriveError;
use residual_zoo_lab::{Error, Experiment, ExperimentText, TaskSpec};
use residual_zoo_runs::Error as RunError;

use super::ExperimentArgs;
use crate::args::exists;
use crate::{DataArgs, command, refuse_doubled};

impl ExperimentArgs {
    /// Opens the experiment of a RON text with these options.
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
            experiment.set_seeds(seeds)?;
            experiment.check().map_err(|error| match error {
                // The file was valid before the options.
                Error::Drive(DriveError::Run(RunError::Config(error))) => {
                    let problem = format!("does not fit: {error}");
                    ConfigError::new(format!("--seeds {seeds}"), problem).into()
                }
                error => error,
            })?;
        }
        self.apply(&mut experiment)?;
        Ok(experiment)
    }

    /// Puts `--data`, `--new-data` and `--tokenizer` into an experiment.
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
        // Weights learned with one tokenizer's ids are useless with another tokenizer.
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

    /// Replaces the files of the experiment's tasks by the files of `--task`.
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

    /// Checks that an experiment reads data if data or a tokenizer are given.
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

    /// Returns the command that repeats the results; it begins with `program`.
    pub(super) fn command(&self, scale: &str, program: &str, kind: BackendKind) -> String {
        // Without a named backend, Flex comes first.
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
            ("--gpu", self.backend.gpu.map(|gpu| gpu.to_string())),
        ];
        options.extend(
            single
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let arguments = options.into_iter();
        let arguments = arguments.flat_map(|(option, value)| [option.to_owned(), value]);
        command(program, arguments)
    }
}
