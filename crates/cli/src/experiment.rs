//! The program of an experiment, from its options to its report.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser};
use residual_zoo_backend::BackendKind;
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{DataError, Source as Data, read_utf8};
use residual_zoo_report::{Column, Table, si};
use residual_zoo_train::Interrupter;

use residual_zoo_lab::{
    Basis, Error, Experiment, ExperimentFile, ExperimentText, INDEX, Missing, Options, Origin,
    PlannedRun, REPORT, Results, TaskSpec, Verdict, basis_notes, check_pages, only, origin,
    unequal_budgets, write_index,
};

use residual_zoo_system::harmless;

use crate::sweep::{explain_spread, note, refuse_swept, show};
use crate::trial::try_models;
use crate::{
    BackendArgs, DataArgs, DisplayArgs, JobsArgs, command, example, fitted, print, refuse_doubled,
    report, stop_on_signal, verdict, wrapped, write,
};

/// An experiment and where its text comes from.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name, which the directory of its report begins with.
    pub name: String,
    /// The text of its file.
    pub text: Cow<'static, str>,
    /// The path of the file.
    pub path: PathBuf,
    /// Whether the file is one of the user's own.
    pub is_own: bool,
}

impl Source {
    /// The experiment in the file `path`.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let name = path.file_stem().unwrap_or_default();
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            text: read_utf8(path)?.into(),
            path: path.into(),
            is_own: true,
        })
    }

    /// The file with its scales.
    ///
    /// # Errors
    ///
    /// As [`ExperimentFile::new`].
    pub fn file(&self) -> Result<ExperimentFile<'_>, Error> {
        ExperimentFile::new(&self.text, &self.path)
    }
}

/// The scale of `file` that is asked for, or else `usual` or, if the file lacks it, its first one. `None` if it has no scales.
///
/// # Errors
///
/// A scale that the file lacks.
pub fn chosen_scale<'a>(
    file: &ExperimentFile<'a>,
    asked: Option<&str>,
    usual: &str,
) -> Result<Option<&'a str>, ConfigError> {
    match asked {
        Some(asked) => file.scale(asked).map(Some),
        None => Ok(file.scale(usual).ok().or(file.scales().first().copied())),
    }
}

/// The page of an experiment that is published to a directory.
fn page(publish: &Path, source: &Source) -> PathBuf {
    publish.join(format!("{}.md", source.name))
}

/// Repeat an experiment of a paper and compare the measured figures with the reported ones.
///
/// Writes report.html, results.json, results.csv and results.md. Runs are shared with other
/// experiments and not repeated. Ctrl-C stops and saves; the same command (without --force)
/// continues.
#[derive(Parser, Debug)]
struct Program {
    #[command(flatten)]
    options: ExperimentArgs,
}

/// What of an experiment is trained, where and how.
#[derive(Args, Debug)]
pub struct ExperimentArgs {
    /// The scale, of an experiment that has several. Those of the zoo have smoke (seconds), cpu (from minutes to two hours
    /// on two cores with `--jobs 2`, several seeds) and paper (as published, for GPUs)
    /// [default: smoke, or else the first one]
    #[arg(long, value_name = "SCALE")]
    scale: Option<String>,
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
    /// Only check the experiment and list its runs
    #[arg(long, conflicts_with_all = ["force", "publish", "only_try"])]
    check: bool,
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
    jobs: JobsArgs,
    #[command(flatten)]
    data: DataArgs,
    /// The second text, for experiments that continue training on new data: a text file, a
    /// directory of text files or a JSON Lines file
    #[arg(long, value_name = "PATH")]
    new_data: Option<PathBuf>,
    /// The file of a task on which the runs are evaluated, in place of that of the experiment; repeat it for several
    #[arg(long, value_name = "TASK=FILE")]
    task: Vec<String>,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

/// Runs an experiment as the options on the command line say. `commit` is that of the program.
pub fn experiment_main<C: ModelConfig>(source: &Source, commit: &str) -> ExitCode {
    crate::start();
    let options = match crate::options::<Program>() {
        Ok(program) => program.options,
        Err(code) => return code,
    };
    let kind = options.backend.kind();
    let done = kind.map_err(Into::into).and_then(|kind| {
        let program = example(&source.name, kind);
        options.run::<C>(source, &program, commit)
    });
    report(done.map_err(Into::into))
}

impl ExperimentArgs {
    /// Runs `source` as these options say. `program` is the beginning of the command that repeats it, and
    /// `commit` is that of the program.
    ///
    /// # Errors
    ///
    /// Those of [`run_experiment`](residual_zoo_lab::run_experiment), and options that do not fit the experiment.
    pub fn run<C: ModelConfig>(
        &self,
        source: &Source,
        program: &str,
        commit: &str,
    ) -> Result<(), Error> {
        let file = source.file()?;
        let scale = chosen_scale(&file, self.scale.as_deref(), "smoke")?;
        let text = file.at(scale)?;
        let experiment = self.open::<C>(&text, &source.path)?;
        let scale = scale.unwrap_or_default();
        refuse_swept(experiment.sweep.as_ref(), &self.set)?;
        let all = experiment.plan(&self.set)?;
        let planned = only(&self.only, &all)?;
        let has_configs = planned.iter().any(|run| run.config.is_some());
        if let (Some(set), false) = (self.set.first(), has_configs) {
            let problem = "has no effect, because this experiment trains nothing; leave it out";
            return Err(ConfigError::new(format!("--set {set}"), problem).into());
        }
        let (kind, gpu) = (self.backend.kind()?, self.backend.gpu);
        kind.check_compiled()?;
        if source.is_own && !self.jobs.worker {
            for note in unequal_budgets(&experiment, &planned) {
                print(&format!("note: {note}"))?;
            }
        }
        if self.check {
            check_configs(&planned)?;
            list_runs(&experiment, scale, &planned)?;
            return note(&experiment, &planned);
        }
        if self.only_try && experiment.count.is_some() {
            print("nothing is trained here: there is nothing to try")?;
            return Ok(());
        }
        if self.only_try {
            return try_models(&planned, kind, gpu);
        }
        let report = self.report_of(source, scale);
        self.check_places(source, &report)?;
        // Once, rather than in each process.
        experiment.check_tasks()?;
        self.jobs.check_watch(self.watch)?;
        let display = match self.watch {
            true => self.display.display(),
            false => self.jobs.display(),
        };
        let mut options = Options {
            name: source.name.clone(),
            gpu,
            force: self.force,
            display,
            peak_tflops: self.display.peak_tflops,
            stop: match experiment.count {
                None => stop_on_signal()?,
                Some(_) => Interrupter::new(),
            },
            ..Options::new(&self.runs.join("pool"), kind)
        };
        if experiment.count.is_none() {
            self.jobs.share(&planned, &mut options)?;
        }
        if !self.jobs.worker {
            note(&experiment, &planned)?;
        }
        let origin = Origin {
            name: source.name.clone(),
            scale: scale.to_owned(),
            command: self.command(scale, program, kind),
            hash: origin::hash(text.text(), &experiment, &planned, kind),
            machine: origin::machine(),
            backend: kind.to_string(),
            commit: Some(commit.to_owned()),
        };
        let outcome = experiment.run(&planned, &options);
        // The process that started a worker tells the rest.
        if self.jobs.worker && (outcome.is_ok() || options.stop.should_stop()) {
            return Ok(());
        }
        let mut outcome = outcome?;
        let missing: Vec<String> = outcome.missing.iter().map(Missing::to_string).collect();
        let stopped = outcome.stopped;
        outcome.leave_out(&all, &planned);
        let mut results = Results::new(&experiment, &all, outcome, origin);
        results.look(&self.runs.join(&report), self.force)?;
        self.write(source, &report, &results)?;
        if stopped {
            return Err(match self.force {
                true => Error::Stopped("to continue: repeat the command without --force".into()),
                false => Error::stopped(),
            });
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Error::Missing { missing }),
        }
    }

    /// Checks where the report and the page will be, before anything is trained.
    fn check_places(&self, source: &Source, name: &str) -> Result<(), Error> {
        let is_taken = ["pool", INDEX].contains(&name);
        let mut parts = Path::new(name).components();
        let is_one = matches!(
            (parts.next(), parts.next()),
            (Some(Component::Normal(_)), None)
        );
        if is_taken || !is_one || name.contains(char::is_control) {
            let problem = format!(
                "{name:?} cannot be the name of a report; rename the file of the experiment"
            );
            return Err(ConfigError::new("the experiment", problem).into());
        }
        check_pages(&self.runs, name)?;
        let Some(publish) = &self.publish else {
            return Ok(());
        };
        let wrong = |problem: String| Err(ConfigError::new("--publish", problem).into());
        if publish.exists() && !publish.is_dir() {
            return wrong(format!(
                "`{}` is not a directory; give one",
                publish.display()
            ));
        }
        let page = page(publish, source);
        let own = [",", "\n"].map(|end| format!("\nexperiment {}{end}", source.name));
        match read_utf8(&page) {
            Err(DataError::NotFound { .. }) => Ok(()),
            Ok(text) if own.iter().any(|own| text.contains(own)) => Ok(()),
            _ => wrong(format!(
                "would replace `{}`, which is not a page of this experiment; move it, or publish to another directory",
                page.display()
            )),
        }
    }

    /// The experiment in a RON text, with the options put in.
    fn open<C: ModelConfig>(
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
            check(&experiment)?;
        }
        self.apply(&mut experiment)?;
        Ok(experiment)
    }

    /// The name of the directory of the report.
    fn report_of(&self, source: &Source, scale: &str) -> String {
        let part = if self.only.is_empty() { "" } else { "only" };
        let parts = [source.name.as_str(), scale, part];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("-")
    }

    /// Writes the report and prints the table and the verdicts.
    fn write(&self, source: &Source, report: &str, results: &Results) -> Result<(), Error> {
        let directory = self.runs.join(report);
        results.write(&directory)?;
        write_index(&self.runs)?;
        if let Some(publish) = &self.publish {
            results.write_markdown(publish, &source.name)?;
        }
        let table = fitted(&results.table());
        print(&format!("\n{table}"))?;
        explain_spread(&table, !results.claims().is_empty())?;
        if let Some(tuning) = results.tuning() {
            print("")?;
            show(tuning)?;
        }
        for found in results.claims() {
            let claim = format!("\n{} ({})", found.claim.says, found.claim.source);
            print(&wrapped(&claim, ""))?;
            let (name, because) = (found.verdict.signed(), harmless(&found.because));
            let line = wrapped(&format!("  {name}: {because}"), "    ");
            write(&(line.replacen(&name, &verdict(found.verdict), 1) + "\n"))?;
            if !found.claim.published.is_empty() && found.verdict != Verdict::NotTested {
                print(&wrapped(
                    &format!("  reported: {}", found.claim.published),
                    "    ",
                ))?;
            }
        }
        print(&format!("\nreport: {}", directory.join(REPORT).display()))?;
        if let Some(publish) = &self.publish {
            print(&format!("published: {}", page(publish, source).display()))?;
        }
        print(&format!("all reports: {}", self.runs.join(INDEX).display()))
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
        // What was learned of one tokenizer's ids is of no use to another's.
        let tokenizer = DataArgs {
            data: None,
            tokenizer: self.data.tokenizer.clone(),
        };
        tokenizer.apply(data, &self.set)?;
        if let Some(path) = &self.new_data {
            refuse_doubled("--new-data", "data.source", &self.set)?;
            data.source = Data::Path(path.clone());
        }
        Ok(())
    }

    /// Puts the files of `--task` in place of those of the experiment.
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
        if matches!(experiment.data.source, Data::Copying(_)) {
            let problem = "is given, but this experiment draws its data itself; leave it out";
            return Err(ConfigError::new("--data", problem));
        }
        Ok(())
    }

    /// The command that repeats the results; it begins with `program`.
    fn command(&self, scale: &str, program: &str, kind: BackendKind) -> String {
        // Flex comes first where no backend is named.
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

/// Checks what does not depend on the data.
fn check_configs<C: ModelConfig>(planned: &[PlannedRun<C>]) -> Result<(), ConfigError> {
    for run in planned {
        if let Some(config) = &run.config {
            config
                .validate(1)
                .map_err(|error| error.within(&run.name))?;
        }
    }
    Ok(())
}

/// The vocabulary of each run with a model, with which its config is valid.
fn bases<C: ModelConfig>(
    experiment: &Experiment<C>,
    planned: &[PlannedRun<C>],
) -> Result<Vec<Option<Basis>>, Error> {
    let configs = || planned.iter().filter_map(|run| run.config.as_ref());
    let bases = match experiment.count {
        Some(count) => configs()
            .map(|config| Basis::exact(config.vocabulary(count)))
            .collect(),
        None => {
            let data: Vec<_> = configs().map(|config| &config.data).collect();
            Basis::of_each(&data, &Interrupter::new())?
        }
    };
    let mut bases = bases.into_iter();
    let of_run = |run: &PlannedRun<C>| {
        let Some(config) = &run.config else {
            return Ok(None);
        };
        let basis = bases.next();
        let vocabulary = basis
            .as_ref()
            .map_or(config.vocabulary(1), |basis| basis.vocabulary);
        config
            .validate(vocabulary)
            .map_err(|error| error.within(&run.name))?;
        Ok(basis)
    };
    planned.iter().map(of_run).collect()
}

/// Prints the runs of an experiment of this scale that was found to be valid; the scale is empty where there are none.
fn list_runs<C: ModelConfig>(
    experiment: &Experiment<C>,
    scale: &str,
    planned: &[PlannedRun<C>],
) -> Result<(), Error> {
    let bases = bases(experiment, planned)?;
    let none = || "–".to_owned();
    let row = |(run, basis): (&PlannedRun<C>, &Option<Basis>)| {
        let mut cells = [
            run.name.clone(),
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
        ];
        if let Some((config, basis)) = run.config.as_ref().zip(basis.as_ref()) {
            cells[1] = basis.shown();
            cells[2] = si(config.model.cost(basis.vocabulary).params.total() as f64);
            if experiment.count.is_none() {
                let tokens = config.train.steps as f64 * config.tokens_per_step() as f64;
                // A run that starts from another one has seen some of the data.
                let passes = basis.passes(tokens).filter(|_| run.after.is_none());
                cells[3] = config.train.steps.to_string();
                cells[4] = si(tokens);
                cells[5] = passes.map_or_else(none, si);
                cells[6] = run
                    .seeds
                    .as_ref()
                    .unwrap_or(&experiment.seeds)
                    .len()
                    .to_string();
            }
        }
        cells.map(Into::into).into()
    };
    let numbers = [
        "vocabulary",
        "parameters",
        "steps",
        "tokens",
        "passes",
        "seeds",
    ];
    let numbers = numbers.map(|title| Column::number(title, ""));
    let table = Table {
        columns: [Column::text("run")].into_iter().chain(numbers).collect(),
        rows: planned.iter().zip(&bases).map(row).collect(),
        ..Table::default()
    };
    print(&experiment.title)?;
    if !scale.is_empty() {
        print(&format!("scale {scale}"))?;
    }
    print(&format!("\n{}", fitted(&table)))?;
    let named = planned.iter().zip(&bases);
    let named = named.filter_map(|(run, basis)| Some((run.name.as_str(), basis.as_ref()?)));
    for note in basis_notes(named) {
        print(&wrapped(&note, ""))?;
    }
    if let Some(sweep) = &experiment.sweep {
        let (points, seeds) = (sweep.check_points(planned)?, sweep.seeds.len());
        let count = points * seeds * planned.len();
        print(&format!(
            "\nsweep: {count} more runs, {points} points for each run and seed\n{}",
            sweep.summary()
        ))?;
    }
    let checked = format!(
        "\nclaims: {}; everything that they and the charts refer to exists; data that are large or not here were not opened",
        experiment.claims.len()
    );
    print(&wrapped(&checked, ""))?;
    Ok(())
}
