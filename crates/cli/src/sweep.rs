//! The options of a sweep, and what it prints.

use std::path::{Path, PathBuf};

use clap::Args;
use residual_zoo_core::ModelConfig;

use residual_zoo_lab::sweep::{Halving, Swept};
use residual_zoo_lab::{
    Error, Experiment, INDEX, Missing, Options, Origin, REPORT, Results, Sweep, Tuning, origin,
    write_index,
};

use crate::{BackendArgs, DataArgs, DisplayArgs, JobsArgs, command, print, stop_on_signal};

/// What is swept, where and how.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// A field and its values: a list train.batch=8,16, a range model.dropout=0..0.3:4, a logarithmic one
    /// train.learning_rate=1e-4..1e-1:log:8, or draws train.weight_decay=1e-3..1:log-uniform:8. Can be
    /// given several times: all combinations are tried [default: the sweep of the file]
    #[arg(long, value_name = "FIELD=VALUES")]
    over: Vec<Swept>,
    /// The number of seeds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// Give up the worse half of the points after a part of their steps, N − 1 times
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "3",
          value_parser = clap::value_parser!(u32).range(1..=16))]
    halving: Option<u32>,
    /// Set a field of every run: train.steps=100, …
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Where runs and reports go
    #[arg(long, value_name = "DIR", default_value = "runs/experiments")]
    runs: PathBuf,
    /// Train everything again
    #[arg(long)]
    force: bool,
    /// Show every run as it trains
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
    /// Sweeps the runs of `experiment`, which is called `name`, prints a table and writes a report. `root`
    /// is where the source of the program is, to name the commit.
    ///
    /// # Errors
    ///
    /// Options that do not fit the experiment, and those of [`Experiment::run_sweep`].
    pub fn run<C: ModelConfig>(
        &self,
        mut experiment: Experiment<C>,
        name: &str,
        root: &Path,
    ) -> Result<(), Error> {
        let sweep = self.sweep(experiment.sweep.take())?;
        self.data.apply(&mut experiment.data)?;
        experiment.sweep = Some(sweep.clone());
        experiment.check()?;
        let planned = experiment.plan(&self.set)?;
        let kind = self.backend.kind()?;
        let mut options = Options {
            name: format!("sweep of {name}"),
            gpu: self.backend.gpu,
            force: self.force,
            display: match self.watch {
                true => self.display.display(),
                false => self.jobs.display(),
            },
            peak_tflops: self.display.peak_tflops,
            stop: stop_on_signal()?,
            ..Options::new(&self.runs.join("pool"), kind)
        };
        self.jobs.share(&planned, &mut options)?;
        let origin = Origin {
            name: name.to_owned(),
            command: command("residual-zoo", std::env::args().skip(1)),
            hash: origin::hash(&format!("{sweep:?}"), &experiment, &planned, kind),
            machine: origin::machine(),
            backend: kind.to_string(),
            commit: origin::commit(root),
            ..Origin::default()
        };
        let outcome = experiment.run_sweep(&sweep, &planned, &options)?;
        if self.jobs.worker {
            return Ok(());
        }
        let stopped = outcome.stopped;
        let missing: Vec<String> = outcome.missing.iter().map(Missing::to_string).collect();
        experiment.title = format!("Sweep of {name}");
        experiment.claims.clear();
        experiment.charts.clear();
        let results = Results::new(&experiment, &[], outcome, origin);
        let directory = self.runs.join(format!("{name}-sweep"));
        results.write(&directory)?;
        write_index(&self.runs)?;
        if let Some(tuning) = results.tuning().filter(|_| !stopped) {
            show(tuning)?;
        }
        print(&format!("\nreport: {}", directory.join(REPORT).display()))?;
        print(&format!("all reports: {}", self.runs.join(INDEX).display()))?;
        match (stopped, missing.len()) {
            (true, _) => print("stopped; to continue: repeat the command"),
            (false, 0) => Ok(()),
            (false, count) => Err(Error::Missing { missing, count }),
        }
    }

    /// The sweep of the file, with the options put in.
    fn sweep(&self, of_file: Option<Sweep>) -> Result<Sweep, Error> {
        let mut sweep = of_file.unwrap_or(Sweep {
            over: Vec::new(),
            seeds: vec![1],
            halving: None,
            tuned: false,
        });
        sweep.tuned = false;
        if !self.over.is_empty() {
            sweep.over = self.over.clone();
        }
        if let Some(seeds) = self.seeds {
            sweep.seeds = (1..=seeds).collect();
        }
        if let Some(rungs) = self.halving {
            sweep.halving = Some(Halving {
                rungs: rungs as usize,
                ..Halving::default()
            });
        }
        Ok(sweep)
    }
}

/// Prints the points, the best of every run and warnings.
fn show(tuning: &Tuning) -> Result<(), Error> {
    print(&format!("\n{}\n", tuning.table().to_text()))?;
    for run in &tuning.runs {
        let best = match run.best() {
            Some(best) => {
                let set = best.set.iter();
                let set = set.flat_map(|set| ["--set".to_owned(), set.clone()]);
                command("", set).trim_start().to_owned()
            }
            None => "every point failed".into(),
        };
        print(&format!("best of {}: {best}", run.run))?;
    }
    for edge in tuning.edges() {
        print(&format!("note: {edge}"))?;
    }
    Ok(())
}
