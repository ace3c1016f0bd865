//! The options and the output of a sweep.

use std::path::PathBuf;

use clap::Args;
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_drive::Error as DriveError;
use residual_zoo_runs::Error as RunError;

use residual_zoo_lab::sweep::{Halving, OVER, Swept};
use residual_zoo_lab::{
    Error, Experiment, INDEX, Options, Origin, PlannedRun, REPORT, Results, Sweep, Tuning,
    check_pages, origin, write_index,
};

use crate::experiment::{check_is_here, keeps_report, stopped_command};
use crate::{
    BackendArgs, DataArgs, DisplayArgs, JobsArgs, arguments, command, fitted, print, quoted_path,
    refuse_doubled, stop_on_signal, wrapped,
};

/// Options of a sweep.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// A field and the values to try: a list, train.batch=8,16; a range and the number of its values,
    /// model.dropout=0..0.3:4; a logarithmic range, train.learning_rate=1e-4..1e-1:log:8; or random draws,
    /// train.weight_decay=1e-3..1:log-uniform:8. Repeat it for several fields: all combinations are tried [default: the
    /// sweep of the file]
    #[arg(long, value_name = "FIELD=VALUES")]
    over: Vec<Swept>,
    /// The number of seeds: the seeds of the file first, then others [default: the seeds of the file, or one]
    #[arg(long, value_name = "N", value_parser = crate::number(1, 10_000))]
    seeds: Option<u32>,
    /// Give up the worse half of the points after a part of their steps, N − 1 times; without a number, N is 3
    /// [default: every point is trained to the end]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "3",
          value_parser = crate::number(1, 16))]
    halving: Option<u32>,
    /// While the best value of a run is at an end of a logarithmic range, try the next value beyond this end, up to N
    /// times [default: as in the file, or never]
    #[arg(long, value_name = "N", value_parser = crate::number(0, 16))]
    widen: Option<u32>,
    /// Set a field of every run, such as train.steps=100; repeat it for several. `residual-zoo describe CONFIG` shows
    /// the fields of a run
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// The directory of runs and reports
    #[arg(long, value_name = "DIR", default_value = "runs/experiments")]
    runs: PathBuf,
    /// Train everything again [default: runs that were trained before are not repeated]
    #[arg(long)]
    force: bool,
    /// Show the dashboard of every run as it trains [default: a line for each run]
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

impl SweepArgs {
    /// Sweeps the runs of `experiment`, which is called `name`, prints a table and writes a report. `commit` is the
    /// commit of the program.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Experiment::run_sweep`], and an error if an option does not fit the experiment, if a run
    /// has no best point, or if the user stops the command.
    pub fn run<C: ModelConfig>(
        &self,
        mut experiment: Experiment<C>,
        name: &str,
        commit: &str,
    ) -> Result<(), Error> {
        if experiment.count.is_some() {
            let problem = "cannot be swept, because it trains nothing: it counts or measures its models as they are; run it \
                           with `residual-zoo experiment`";
            return Err(ConfigError::new(name, problem).into());
        }
        let sweep = self.sweep(experiment.sweep.take(), &experiment.seeds)?;
        refuse_doubled("--seeds", "train.seed", &self.set)?;
        self.data.apply(&mut experiment.data, &self.set)?;
        experiment.sweep = Some(sweep.clone());
        experiment.check().map_err(|error| self.as_given(error))?;
        refuse_swept(Some(&sweep), &self.set)?;
        let planned = experiment.plan(&self.set)?;
        let checked = sweep.check_points(&planned);
        checked.map_err(|error| self.as_given(error))?;
        let (kind, gpu) = self.backend.device()?;
        let origin = Origin {
            name: name.to_owned(),
            command: command("residual-zoo", arguments()),
            hash: origin::hash(&format!("{sweep:?}"), &experiment, &planned, kind),
            machine: origin::machine(),
            backend: kind.to_string(),
            commit: Some(commit.to_owned()),
            ..Origin::default()
        };
        let (title, report) = (format!("Sweep of {name}"), format!("{name}-sweep"));
        check_pages(&self.runs, &report, &title, &origin)?;
        experiment.tasks.clear();
        check_is_here(&experiment, &planned, false)?;
        self.jobs.check_watch(self.watch)?;
        let mut options = Options {
            name: format!("sweep of {name}"),
            gpu,
            force: self.force,
            display: match self.watch {
                true => self.display.display(),
                false => self.jobs.display(),
            },
            peak_tflops: self.display.peak_tflops,
            stop: stop_on_signal()?,
            ..Options::new(&self.runs.join("pool"), kind)
        };
        let forget = |options: &Options| experiment.forget(&planned, false, options);
        self.jobs.share(&planned, forget, &mut options)?;
        if !self.jobs.worker {
            note(&experiment, &planned)?;
        }
        let outcome = experiment.run_sweep(&sweep, &planned, &options);
        // A worker prints nothing more: the process that started the worker prints the rest.
        if self.jobs.worker && (outcome.is_ok() || options.stop.should_stop()) {
            return Ok(());
        }
        let outcome = outcome?;
        let stopped = outcome.stopped;
        if stopped && outcome.observations.is_empty() && keeps_report(&self.runs.join(&report))? {
            return Err(stopped_command(self.force));
        }
        let mut missing = Vec::new();
        experiment.title = title;
        experiment.charts.clear();
        let results = Results::new(&experiment, &[], outcome, Vec::new(), origin);
        let directory = self.runs.join(report);
        results.write(&directory)?;
        write_index(&self.runs)?;
        if let Some(tuning) = results.tuning().filter(|_| !stopped) {
            let table = fitted(&tuning.table());
            print(&format!("\n{table}"))?;
            explain_spread(&table, false)?;
            print("")?;
            show(tuning)?;
            let failed = tuning.runs.iter().filter(|run| run.best().is_none());
            missing.extend(failed.map(|run| format!("{}: {}", run.run, run.failure())));
        }
        print(&format!("\nreport: {}", directory.join(REPORT).display()))?;
        print(&format!("all reports: {}", self.runs.join(INDEX).display()))?;
        match (stopped, missing.len()) {
            (true, _) => Err(stopped_command(self.force)),
            (false, 0) => Ok(()),
            (false, _) => Err(Error::Missing { missing }),
        }
    }

    /// Replaces the field in an error about the sweep with the option that sets this field.
    fn as_given(&self, error: Error) -> Error {
        let Error::Drive(DriveError::Run(RunError::Config(mut error))) = error else {
            return error;
        };
        for (field, option, is_given) in [
            (OVER, "--over", !self.over.is_empty()),
            ("sweep.seeds", "--seeds", self.seeds.is_some()),
            ("sweep.halving", "--halving", self.halving.is_some()),
            ("sweep.widen", "--widen", self.widen.is_some()),
        ] {
            if is_given {
                error.field = error.field.replacen(field, option, 1);
            }
        }
        error.into()
    }

    /// Returns the sweep of the file, changed by these options. `claimed` holds the seeds that the claims use.
    fn sweep(&self, of_file: Option<Sweep>, claimed: &[u64]) -> Result<Sweep, Error> {
        // Without a sweep in the file, the seeds start at 1.
        let claimed = if of_file.is_some() { claimed } else { &[] };
        let mut sweep = of_file.unwrap_or(Sweep {
            over: Vec::new(),
            seeds: vec![1],
            halving: None,
            widen: 0,
            tuned: false,
            rule: None,
        });
        if sweep.over.is_empty() && self.over.is_empty() {
            let problem = "is missing; give FIELD=VALUES, such as train.learning_rate=1e-4..1e-1:log:8, or a \
                           file with a sweep";
            return Err(ConfigError::new("--over", problem).into());
        }
        // The file's rule says which sizes of a ladder are swept. It fits only the field of the file.
        sweep.rule = sweep.rule.filter(|_| self.over.is_empty());
        sweep.tuned = sweep.rule.is_some();
        if !self.over.is_empty() {
            sweep.over = self.over.clone();
        }
        if let Some(seeds) = self.seeds {
            // The seeds of the file come first, then others that no claim uses.
            let more = (1..).filter(|seed| !claimed.contains(seed) && !sweep.seeds.contains(seed));
            let more: Vec<u64> = more.take(seeds as usize).collect();
            sweep.seeds.extend(more);
            sweep.seeds.truncate(seeds as usize);
        }
        if let Some(rungs) = self.halving {
            sweep.halving = Some(Halving {
                rungs: rungs as usize,
                ..Halving::default()
            });
        }
        // Other fields or halving may not go with the ranges of the file.
        if !self.over.is_empty() || self.halving.is_some() {
            sweep.widen = 0;
        }
        if let Some(values) = self.widen {
            sweep.widen = values as usize;
        }
        Ok(sweep)
    }
}

/// Refuses to set a field that a sweep varies.
///
/// # Errors
///
/// Returns an error with the assignment.
pub fn refuse_swept(sweep: Option<&Sweep>, set: &[String]) -> Result<(), ConfigError> {
    let is_swept = |set: &&String| sweep.is_some_and(|sweep| sweep.varies(set));
    match set.iter().find(is_swept) {
        None => Ok(()),
        Some(set) => {
            let problem = "sets what the sweep varies; leave it out, or change the sweep";
            Err(ConfigError::new(format!("--set {set}"), problem))
        }
    }
}

/// Prints notes on probable mistakes.
pub(crate) fn note<C: ModelConfig>(
    experiment: &Experiment<C>,
    planned: &[PlannedRun<C>],
) -> Result<(), Error> {
    for note in experiment.notes(planned)? {
        print(&wrapped(&format!("note: {note}"), "  "))?;
    }
    Ok(())
}

/// Explains ± if a table has it.
pub(crate) fn explain_spread(table: &str, has_claims: bool) -> Result<(), Error> {
    let meaning = match has_claims {
        true => {
            "± in the table is the standard deviation over the seeds; in a claim, half the width of the 95 % interval."
        }
        false => "± is the standard deviation over the seeds.",
    };
    match table.contains(" ± ") {
        true => print(&wrapped(meaning, "")),
        false => Ok(()),
    }
}

/// Prints the best point of every run, and warnings.
pub(crate) fn show(tuning: &Tuning) -> Result<(), Error> {
    for run in &tuning.runs {
        let best = match run.best() {
            Some(best) => {
                let set = best.set.iter();
                let set = set.flat_map(|set| ["--set".to_owned(), set.clone()]);
                command("", set).trim_start().to_owned()
            }
            None => run.failure(),
        };
        print(&format!("best of {}: {best}", run.run))?;
        let places = run
            .best()
            .into_iter()
            .flat_map(|best| best.directories.iter().flatten());
        for place in places {
            print(&format!("  in {}", quoted_path(place)))?;
        }
    }
    for edge in tuning.edges() {
        print(&wrapped(&format!("note: {edge}"), "  "))?;
    }
    Ok(())
}
