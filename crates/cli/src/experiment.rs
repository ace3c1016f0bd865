//! The program of an experiment, from its options to its report.

mod given;
mod listing;
mod source;

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser};
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{DataError, read_utf8};
use residual_zoo_drive::Error as DriveError;
use residual_zoo_system::{counted, harmless};
use residual_zoo_train::Interrupter;

use residual_zoo_lab::{
    ChartSpec, Error, Experiment, FinishedFile, INDEX, Missing, Observation, Options, Origin,
    REPORT, Results, Verdict, check_pages, origin, unequal_budgets, write_index,
};

use crate::sweep::{explain_spread, note, refuse_swept, show};
use crate::try_models::try_models;
use crate::{
    BackendArgs, DataArgs, DisplayArgs, JobsArgs, example, fitted, parsed, print, quoted,
    quoted_path, report, stop_on_signal, verdict, wrapped, write,
};
use listing::{check_configs, list_runs};

pub(crate) use given::check_is_here;

pub use given::set_seeds;
pub use source::{Source, chosen_scale};

/// Whether `directory` has an earlier report, which a command without a result must keep. Prints a note if so.
///
/// # Errors
///
/// Returns an error if the note cannot be printed.
pub(crate) fn keeps_report(directory: &Path) -> Result<bool, Error> {
    let report = directory.join(REPORT);
    let is_kept = report.exists();
    if is_kept {
        let line = format!(
            "there is nothing new to report; the earlier report stays: {}",
            report.display()
        );
        print(&line)?;
    }
    Ok(is_kept)
}

/// Returns the error of a command that the user stopped. With `--force`, a repetition would delete the finished runs.
pub(crate) fn stopped_command(force: bool) -> Error {
    match force {
        true => {
            DriveError::Stopped("to continue: repeat the command without --force".into()).into()
        }
        false => Error::stopped(),
    }
}

/// Returns the line that announces an experiment, such as `RMT against a transformer, scale cpu`.
fn begun<C>(experiment: &Experiment<C>, scale: &str) -> String {
    let mut text = experiment.title.clone();
    if !scale.is_empty() {
        text += &format!(", scale {scale}");
    }
    if !experiment.judge {
        text += ": too short for verdicts, only checks that everything works";
    }
    text
}

/// Returns the run with the lowest validation loss, and its directory. Returns `None` if the results of this run come
/// from a file, or if no run has a validation loss.
fn best(observations: &[Observation]) -> Option<(&Observation, &Path)> {
    let losses = observations.iter();
    let losses = losses.filter_map(|found| Some((found.get("valid_loss")?, found)));
    let (_, best) = losses.min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((best, best.directory.as_deref()?))
}

/// Returns the path of the page that an experiment publishes to a directory.
fn page(publish: &Path, source: &Source) -> PathBuf {
    publish.join(format!("{}.md", source.name))
}

/// Returns the path of the results file, which holds the finished runs, beside the page.
fn finished(publish: &Path, source: &Source) -> PathBuf {
    publish.join(format!("{}.json", source.name))
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

/// Options of an experiment.
#[derive(Args, Debug)]
pub struct ExperimentArgs {
    /// The scale, if the experiment has several. The zoo's experiments have smoke (seconds), cpu (from minutes to four
    /// hours on two cores with `--jobs 2`, several seeds) and paper (as published, for GPUs); ladders also have gpu
    /// [default: smoke if the experiment has it, otherwise the first one]
    #[arg(long, value_name = "SCALE")]
    scale: Option<String>,
    /// The number of seeds, except for runs with seeds of their own [default: the number in the experiment's file]
    #[arg(long, value_name = "N", value_parser = parsed::<u64>("a whole number of at least 1"))]
    seeds: Option<u64>,
    /// Set a field of every run, such as train.steps=100; repeat it for several. `residual-zoo describe CONFIG` shows
    /// the fields of a run
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Train the run called TEXT, or all runs whose names contain TEXT, and the runs whose weights
    /// they start from. The report goes to NAME-SCALE-only. Can be given several times
    #[arg(long, value_name = "TEXT", conflicts_with = "publish")]
    only: Vec<String>,
    /// The directory of runs and reports
    #[arg(long, value_name = "DIR", default_value = "runs/experiments")]
    runs: PathBuf,
    /// Train everything again [default: runs that were trained before are not repeated]
    #[arg(long)]
    force: bool,
    /// Only check the experiment and list its runs
    #[arg(long, conflicts_with_all = ["force", "publish", "only_try"])]
    check: bool,
    /// Make only two steps with every model at its full shape, on one sequence at a time, and compare the memory used
    /// with an estimate
    #[arg(long = "try", conflicts_with_all = ["force", "publish"])]
    only_try: bool,
    /// Also write the tables and charts to this directory, as NAME.md and NAME-1.svg, …, and add the results of every
    /// run to NAME.json. A stopped command writes nothing but NAME.json
    #[arg(long, value_name = "DIR")]
    publish: Option<PathBuf>,
    /// Skip runs whose results --publish has written to this directory, perhaps on another machine or for another
    /// experiment; with --force, train them anyway
    #[arg(long, value_name = "DIR", conflicts_with_all = ["check", "only_try"])]
    results: Option<PathBuf>,
    /// Show the dashboard of every run as it trains [default: a line for each run]
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
    /// The file of a task on which the runs are evaluated, in place of the experiment's own; repeat it for several
    #[arg(long, value_name = "TASK=FILE")]
    task: Vec<String>,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

/// Runs an experiment with the options of the command line. `commit` is the commit of the program.
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
    /// Runs `source` with these options. `program` is the beginning of the command that repeats the experiment, and
    /// `commit` is the commit of the program.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`run_experiment`](residual_zoo_lab::run_experiment), and an error if an option does not
    /// fit the experiment, if runs are missing in the results, or if the user stops the command.
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
        let planned = experiment.only(&self.only, &all)?;
        self.check_effect(&experiment, &planned)?;
        let (kind, gpu) = self.backend.device()?;
        kind.check_compiled()?;
        if gpu.is_some() {
            kind.check_device(gpu)?;
        }
        if source.is_own && !self.jobs.worker {
            for note in unequal_budgets(&experiment, &planned) {
                print(&format!("note: {note}"))?;
            }
        }
        if self.only_try && experiment.count.is_some() {
            print("nothing is trained here: there is nothing to try")?;
            return Ok(());
        }
        if self.only_try {
            return try_models(&planned, kind, gpu);
        }
        let report = self.report_of(source, scale);
        let origin = Origin {
            name: source.name.clone(),
            scale: scale.to_owned(),
            file: origin::hash_of_file(&source.path),
            command: self.command(scale, program, kind),
            hash: origin::hash(text.text(), &experiment, &planned, kind),
            machine: origin::machine(),
            backend: kind.to_string(),
            commit: Some(commit.to_owned()),
        };
        self.check_places(source, &report, (scale, experiment.seeds.len()))?;
        check_pages(&self.runs, &report, &experiment.title, &origin)?;
        self.jobs.check_watch(self.watch)?;
        if self.check {
            check_configs(&planned)?;
            list_runs(&experiment, scale, &planned, (kind, gpu))?;
            let is_here = check_is_here(&experiment, &planned, true).map_err(Error::from);
            if let Err(error) = is_here.and_then(|()| experiment.check_tasks()) {
                print(&wrapped(&format!("note: {error}"), "  "))?;
            }
            return note(&experiment, &planned);
        }
        // Checks once here, rather than in each process.
        check_is_here(&experiment, &planned, true)?;
        experiment.check_tasks()?;
        let display = match self.watch {
            true => self.display.display(),
            false => self.jobs.display(),
        };
        let mut options = Options {
            name: source.name.clone(),
            gpu,
            force: self.force,
            finished: self.finished(&experiment, source, scale)?,
            display,
            peak_tflops: self.display.peak_tflops,
            stop: match experiment.count {
                None => stop_on_signal()?,
                Some(_) => Interrupter::new(),
            },
            ..Options::new(&self.runs.join("pool"), kind)
        };
        if !self.jobs.worker {
            print(&wrapped(&begun(&experiment, scale), ""))?;
        }
        if experiment.count.is_none() {
            let forget = |options: &Options| experiment.forget(&planned, true, options);
            self.jobs.share(&planned, forget, &mut options)?;
        }
        if !self.jobs.worker {
            note(&experiment, &planned)?;
        }
        let outcome = experiment.run(&planned, &options);
        // A worker prints nothing more: the process that started the worker prints the rest.
        if self.jobs.worker && (outcome.is_ok() || options.stop.should_stop()) {
            return Ok(());
        }
        let mut outcome = outcome?;
        let file = options.finished.filter(|_| !outcome.stopped);
        if let Some(note) = file.and_then(|file| file.unused(&outcome.finished)) {
            print(&wrapped(&format!("note: {note}"), "  "))?;
            outcome.notes.push(note);
        }
        let missing: Vec<String> = outcome.missing.iter().map(Missing::to_string).collect();
        let stopped = outcome.stopped;
        let is_empty = outcome.observations.is_empty();
        let mut results = experiment.results(&all, &planned, outcome, origin);
        if let Some(publish) = self.publish.as_ref().filter(|_| stopped) {
            let file = finished(publish, source);
            if results.add_finished(&file)? {
                print(&format!("finished runs: {}", file.display()))?;
            }
        }
        let has_rule = experiment
            .sweep
            .as_ref()
            .is_some_and(|sweep| sweep.rule.is_some());
        if stopped && is_empty && self.force && has_rule {
            // Which runs these are is known only after the sweep, so they were not deleted.
            let note = "note: runs of the claims that were trained before --force will not be trained again; to train \
                        them again too, repeat the command with --force";
            print(&wrapped(note, "  "))?;
        }
        if is_empty && keeps_report(&self.runs.join(&report))? {
            return Err(match stopped {
                true => stopped_command(self.force),
                false => Error::Missing { missing },
            });
        }
        results.look(&self.runs.join(&report), self.force)?;
        self.write(source, &report, &results, stopped)?;
        if stopped {
            return Err(stopped_command(self.force));
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Error::Missing { missing }),
        }
    }

    /// Reads the finished runs that are not trained again. Runs of other experiments count too, unless a chart draws
    /// training losses, which their files may lack.
    fn finished<C>(
        &self,
        experiment: &Experiment<C>,
        source: &Source,
        scale: &str,
    ) -> Result<Option<Arc<FinishedFile>>, Error> {
        let mut charts = experiment.charts.iter();
        let read = match charts.any(ChartSpec::draws_train_loss) {
            true => FinishedFile::read,
            false => FinishedFile::read_all,
        };
        let Some(directory) = self.results.as_ref().filter(|_| !self.force) else {
            return Ok(None);
        };
        let own = finished(directory, source);
        let found = read(&own, &source.name, scale)?;
        if !own.exists() && !self.jobs.worker {
            let own = own.display();
            let note = format!(
                "note: {own} does not exist; only runs that other experiments have published there are known"
            );
            print(&wrapped(&note, "  "))?;
        }
        Ok(Some(Arc::new(found)))
    }

    /// Checks the name of the report, and the place of the page, before anything is trained.
    fn check_places(
        &self,
        source: &Source,
        name: &str,
        (scale, seeds): (&str, usize),
    ) -> Result<(), Error> {
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
        FinishedFile::check_place(&finished(publish, source), &source.name, scale)?;
        let page = page(publish, source);
        let text = match read_utf8(&page) {
            Err(DataError::NotFound { .. }) => return Ok(()),
            Err(error) => {
                let page = page.display();
                let problem = format!(
                    "`{page}` cannot be read: {error}; move it, or publish to another directory"
                );
                return wrong(problem);
            }
            Ok(text) => text,
        };
        match self.differs(&text, source, (scale, seeds)) {
            None => Ok(()),
            Some(what) => wrong(format!(
                "would replace `{}`, which {what}; move it, or publish to another directory",
                page.display()
            )),
        }
    }

    /// Says why a page with this text must not be replaced; `None` if it may be.
    fn differs(
        &self,
        text: &str,
        source: &Source,
        (scale, seeds): (&str, usize),
    ) -> Option<String> {
        let name = format!("experiment {}", source.name);
        let lines: Vec<&str> = text.lines().collect();
        let is_name = |line: &&str| line.split(',').next() == Some(&name);
        let Some(at) = lines.iter().position(is_name) else {
            return Some("is not a page of this experiment".into());
        };
        // The line before the name is the command.
        let command = lines[..at].iter().rfind(|line| !line.is_empty());
        let command = command.copied().unwrap_or_default();
        let options = [("--set", &self.set), ("--task", &self.task)];
        let has_same = options.into_iter().all(|(option, values)| {
            let given = |value: &String| format!(" {option} {}", quoted(value));
            command.matches(&format!(" {option} ")).count() == values.len()
                && values.iter().all(|value| command.contains(&given(value)))
        });
        let of_scale = lines[at].split(", scale ").nth(1);
        let means = text.split("Means over ").nth(1);
        let of_seeds: Option<usize> =
            means.and_then(|means| means.split_whitespace().next()?.parse().ok());
        match (of_scale, of_seeds) {
            (Some(other), _) if other != scale => Some(format!("has the scale `{other}`")),
            (_, Some(more)) if more > seeds => {
                let more = counted(more, "seed");
                Some(format!("has {more}, more than this command trains"))
            }
            _ if !has_same => Some("was made with other `--set` or `--task` options".into()),
            _ => None,
        }
    }

    /// Returns the name of the report's directory.
    fn report_of(&self, source: &Source, scale: &str) -> String {
        let part = if self.only.is_empty() { "" } else { "only" };
        let parts = [source.name.as_str(), scale, part];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("-")
    }

    /// Writes the report and prints the table and the verdicts. With `--publish`, also publishes the page and the
    /// finished runs, unless the command was stopped.
    fn write(
        &self,
        source: &Source,
        report: &str,
        results: &Results,
        stopped: bool,
    ) -> Result<(), Error> {
        let directory = self.runs.join(report);
        results.write(&directory)?;
        write_index(&self.runs)?;
        let publish = self.publish.as_ref().filter(|_| !stopped);
        if let Some(publish) = publish {
            results.write_markdown(publish, &source.name)?;
            results.add_finished(&finished(publish, source))?;
        }
        for line in results.from_file() {
            print(&wrapped(line, "  "))?;
        }
        let table = fitted(&results.table());
        print(&format!("\n{table}"))?;
        explain_spread(&table, !results.claims().is_empty())?;
        let ladder = results.ladder();
        for table in &ladder {
            print(&format!("\n{}", fitted(table)))?;
        }
        if !ladder.is_empty() {
            let note = "± of gains and slopes is half the width of the 95 % confidence interval. A size is the number of \
                        parameters of the baseline, without embeddings. The report explains all columns.";
            print(&wrapped(note, "  "))?;
        }
        if let Some(tuning) = results.tuning().filter(|tuning| tuning.rule.is_empty()) {
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
        // On a ladder, the lowest loss is always that of the largest model on the most tokens.
        let best = best(results.observations()).filter(|_| ladder.is_empty());
        if let Some((best, place)) = best {
            let seed = best.seed.unwrap_or_default();
            let best = format!("\nbest run: {}, seed {seed}", best.run);
            print(&wrapped(&best, "  "))?;
            print(&format!("  in {}", quoted_path(place)))?;
        }
        print(&format!("\nreport: {}", directory.join(REPORT).display()))?;
        if let Some(publish) = publish {
            print(&format!("published: {}", page(publish, source).display()))?;
        }
        print(&format!("all reports: {}", self.runs.join(INDEX).display()))
    }
}
