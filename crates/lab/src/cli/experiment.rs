//! The program of an experiment, from its options to its report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use residual_zoo_backend::BackendKind;
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::Source;
use residual_zoo_train::Interrupter;
use residual_zoo_train::dashboard::Display;

use super::trial::try_models;
use super::{BackendArgs, DataArgs, DisplayArgs, command, report, stop_on_signal};
use crate::{Error, Experiment, Origin, Results, Verdict, only, origin};

/// An experiment of a paper at its three scales.
#[derive(Clone, Copy, Debug)]
pub struct Scales<'a> {
    /// Its name, that of the program.
    pub name: &'a str,
    /// Where its source is, to name the commit.
    pub root: &'a str,
    /// The RON files of the scales smoke, cpu and paper.
    pub files: [&'a str; 3],
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// Seconds: whether everything works
    Smoke,
    /// Minutes on two cores, several seeds
    Cpu,
    /// As published, for GPUs
    Paper,
}

impl Scale {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }
}

/// Repeat an experiment of a paper and compare the measured figures with the reported ones.
///
/// Writes report.html, results.json, results.csv and results.md. Runs are shared with other
/// experiments and not repeated. Ctrl-C stops and saves; the same command (without --force)
/// continues.
#[derive(Parser, Debug)]
struct Options {
    /// How much is trained
    #[arg(long, value_enum, default_value_t = Scale::Smoke)]
    scale: Scale,
    /// The number of seeds, except for runs that have their own [default: what the scale says]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Set a field of every run: train.steps=100, …
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Train the run called TEXT, or all runs whose names contain TEXT, and the runs whose weights
    /// they start from. The report goes to NAME-SCALE-only. Can be given several times
    #[arg(long, value_name = "TEXT", conflicts_with = "publish")]
    only: Vec<String>,
    /// Where runs and reports go
    #[arg(long, value_name = "DIR", default_value = "runs/experiments")]
    runs: PathBuf,
    /// Train everything again
    #[arg(long)]
    force: bool,
    /// Train nothing to its end: make two steps with every model at its full shape, on one sequence
    /// at a time, and set the memory that it takes beside an estimate
    #[arg(long = "try", conflicts_with_all = ["force", "publish"])]
    only_try: bool,
    /// Write the tables and charts there as well, as NAME.md and NAME-1.svg, …
    #[arg(long, value_name = "DIR")]
    publish: Option<PathBuf>,
    /// Show every run as it trains
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    data: DataArgs,
    /// The second text, for experiments that continue training on new data: a text file, a
    /// directory of text files or a JSON Lines file
    #[arg(long, value_name = "PATH")]
    new_data: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

/// Runs an experiment as the options on the command line say.
pub fn experiment_main<C: ModelConfig>(scales: Scales) -> ExitCode {
    report(Options::parse().run::<C>(scales).map_err(Into::into))
}

impl Options {
    fn run<C: ModelConfig>(&self, scales: Scales) -> Result<(), Error> {
        let file = scales.files[self.scale as usize];
        let experiment = self.open::<C>(scales.name, file)?;
        let all = experiment.plan(&self.set)?;
        let planned = only(&self.only, &all)?;
        let has_configs = planned.iter().any(|run| run.config.is_some());
        if let (Some(set), false) = (self.set.first(), has_configs) {
            let problem = "has no effect, because this experiment trains nothing; leave it out";
            return Err(ConfigError::new(format!("--set {set}"), problem).into());
        }
        let (kind, gpu) = (self.backend.kind()?, self.backend.gpu);
        kind.check_compiled()?;
        if self.only_try && experiment.count.is_some() {
            println!("nothing is trained here: there is nothing to try");
            return Ok(());
        }
        if self.only_try {
            return try_models(&planned, kind, gpu);
        }
        let options = crate::Options {
            gpu,
            force: self.force,
            display: match self.watch {
                true => self.display.display(),
                false => Display::Quiet,
            },
            peak_tflops: self.display.peak_tflops,
            stop: match experiment.count {
                None => stop_on_signal()?,
                Some(_) => Interrupter::new(),
            },
            ..crate::Options::new(&self.runs.join("pool"), kind)
        };
        let origin = Origin {
            name: scales.name.into(),
            scale: self.scale.name(),
            command: self.command(scales.name, kind),
            hash: origin::hash(file, &experiment, &planned, kind),
            machine: origin::machine(),
            backend: kind.to_string(),
            commit: origin::commit(Path::new(scales.root)),
        };
        let mut outcome = experiment.run(&planned, &options)?;
        let (missing, stopped) = (outcome.missing.clone(), outcome.stopped);
        let count = missing.len() + outcome.observations.len();
        outcome.leave_out(&all, &planned);
        self.write(
            scales.name,
            &Results::new(&experiment, &all, outcome, origin),
        )?;
        if stopped {
            let without = if self.force { " without --force" } else { "" };
            println!("stopped; to continue: repeat the command{without}");
            return Ok(());
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Error::Missing { missing, count }),
        }
    }

    /// The experiment called `name` in the RON text `file`, with the options put in.
    fn open<C: ModelConfig>(&self, name: &str, file: &str) -> Result<Experiment<C>, Error> {
        let path = format!("experiments/…/{name}/{}.ron", self.scale.name());
        let mut experiment = Experiment::<C>::parse(file, Path::new(&path))?;
        experiment.check()?;
        if let Some(seeds) = self.seeds {
            experiment.set_seeds(seeds)?;
        }
        self.apply(&mut experiment)?;
        Ok(experiment)
    }

    /// Writes the report and prints the table and the verdicts.
    fn write(&self, name: &str, results: &Results) -> Result<(), Error> {
        let part = if self.only.is_empty() { "" } else { "-only" };
        let directory = format!("{name}-{}{part}", self.scale.name());
        let directory = self.runs.join(directory);
        results.write(&directory)?;
        if let Some(publish) = &self.publish {
            results.write_markdown(publish, name)?;
        }
        println!("\n{}", results.table().to_text());
        for found in results.claims() {
            println!("\n{} ({})", found.claim.says, found.claim.source);
            println!("  {}: {}", found.verdict.name(), found.because);
            if !found.claim.published.is_empty() && found.verdict != Verdict::NotTested {
                println!("  reported: {}", found.claim.published);
            }
        }
        println!("\nreport: {}", directory.join("report.html").display());
        Ok(())
    }

    /// Puts `--data`, `--new-data` and `--tokenizer` into an experiment.
    fn apply<C>(&self, experiment: &mut Experiment<C>) -> Result<(), ConfigError> {
        self.check_data(experiment)?;
        self.data.apply(&mut experiment.data)?;
        let Some(data) = &mut experiment.new_data else {
            return self.new_data.as_ref().map_or(Ok(()), |path| {
                let path = path.display();
                let problem = format!("is {path}, but no run is on new data; leave it out");
                Err(ConfigError::new("--new-data", problem))
            });
        };
        // What was learned of one tokenizer's ids is of no use to another's.
        let tokenizer = DataArgs {
            data: None,
            tokenizer: self.data.tokenizer.clone(),
        };
        tokenizer.apply(data)?;
        if let Some(path) = &self.new_data {
            data.source = Source::Path(path.clone());
        }
        Ok(())
    }

    /// Checks that an experiment reads data where some are given.
    fn check_data<C>(&self, experiment: &Experiment<C>) -> Result<(), ConfigError> {
        let Some(path) = &self.data.data else {
            return Ok(());
        };
        let measures = experiment.measure.is_some_and(|m| m.reads_data());
        if experiment.count.is_some() && !measures {
            let problem = format!("is {path}, but nothing here reads data; leave it out");
            return Err(ConfigError::new("--data", problem));
        }
        if matches!(experiment.data.source, Source::Copying(_)) {
            let problem = "is given, but this experiment draws its data itself; leave it out";
            return Err(ConfigError::new("--data", problem));
        }
        Ok(())
    }

    /// The command that repeats the results of the experiment `name`.
    fn command(&self, name: &str, kind: BackendKind) -> String {
        // Flex comes first where no backend is named.
        let other = (kind != BackendKind::Flex).then_some(kind);
        let new_data = self
            .new_data
            .as_ref()
            .map(|path| path.display().to_string());
        let mut options: Vec<(&str, String)> = vec![("--scale", self.scale.name())];
        options.extend(self.only.iter().map(|text| ("--only", text.clone())));
        options.extend(self.set.iter().map(|set| ("--set", set.clone())));
        let single = [
            ("--seeds", self.seeds.map(|seeds| seeds.to_string())),
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
        command(name, kind, arguments)
    }
}
