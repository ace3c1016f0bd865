//! The options and the output of a comparison.

use std::path::{Path, PathBuf};

use clap::Args;
use residual_zoo_core::ModelConfig;
use residual_zoo_runs::RunConfig;

use residual_zoo_lab::{Comparison, Error, Options, REPORT, compare, long_warm_ups};

use crate::experiment::stopped_command;
use crate::{BackendArgs, DataArgs, DisplayArgs, fitted, print, stop_on_signal, wrapped};

/// Options of a comparison.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Set a field of every model's run, such as train.steps=200; repeat it for several. `residual-zoo describe CONFIG`
    /// shows the fields of a run
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// The directory of the runs and report.html [default: runs/compare]
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Delete an earlier comparison there and start again
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

impl CompareArgs {
    /// Trains the named models, prints a table and writes a report. `models` makes the models with the assignments of
    /// `--set`. `command` is the command that repeats the comparison.
    ///
    /// # Errors
    ///
    /// Returns the errors of `models` and of [`compare`], and an error if an option does not fit the models, if a run
    /// fails, or if the user stops the command.
    pub fn run<C: ModelConfig, E: From<Error>>(
        &self,
        models: impl FnOnce(&[String]) -> Result<Vec<(String, RunConfig<C>)>, E>,
        command: String,
    ) -> Result<(), E> {
        let models = models(&self.set)?;
        Ok(self.train(models, command)?)
    }

    fn train<C: ModelConfig>(
        &self,
        models: Vec<(String, RunConfig<C>)>,
        command: String,
    ) -> Result<(), Error> {
        let models = models.into_iter().map(|(name, mut config)| {
            self.data.apply(&mut config.data, &self.set)?;
            Ok((name, config))
        });
        let models = models.collect::<Result<Vec<_>, Error>>()?;
        let named = models.iter();
        for note in long_warm_ups(named.map(|(name, config)| (&**name, &config.train))) {
            print(&wrapped(&format!("note: {note}"), "  "))?;
        }
        let directory = self.run.clone().unwrap_or_else(|| "runs/compare".into());
        let display = self.display.display();
        let (kind, gpu) = self.backend.device()?;
        let options = Options {
            name: "compare".into(),
            force: self.force,
            gpu,
            display,
            peak_tflops: self.display.peak_tflops,
            stop: stop_on_signal()?,
            ..Options::new(&directory, kind)
        };
        let (comparison, failure) = compare(&models, command, &options)?;
        show(&comparison, &directory)?;
        match (comparison.stopped, failure) {
            (true, _) => Err(stopped_command(self.force)),
            (false, failure) => failure.map_or(Ok(()), Err),
        }
    }
}

/// Prints the table, the remarks and the path of the report.
fn show(comparison: &Comparison, directory: &Path) -> Result<(), Error> {
    if !comparison.entries.is_empty() {
        print(&format!("\n{}", fitted(&comparison.table())))?;
    }
    let remarks = comparison.remarks();
    if !remarks.is_empty() {
        print("")?;
    }
    for remark in remarks {
        print(&wrapped(&remark, ""))?;
    }
    if let Some(entropy) = comparison.entropy {
        let line = format!(
            "\nentropy rate {:.4} nats/token; a bigram model cannot be below {:.4}",
            entropy.rate, entropy.bigram
        );
        print(&wrapped(&line, ""))?;
    }
    print(&format!("report: {}", directory.join(REPORT).display()))?;
    let not_complete = comparison.not_complete();
    if !not_complete.is_empty() {
        print(&wrapped(not_complete.trim_end(), ""))?;
    }
    Ok(())
}
