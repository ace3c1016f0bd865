//! `residual-zoo sweep`

use std::path::PathBuf;

use clap::Args;
use residual_zoo::cli;
use residual_zoo::experiment;

use super::{experiment_of, name_of, read_config};

/// Try values of some fields and find the best: grids, ranges, random draws, successive halving
///
/// Every combination of values is trained for every seed. The report draws the loss over each field, marks the best
/// point, and warns if this point is at the edge of a range. Runs are shared with experiments and not repeated. Ctrl-C
/// stops and saves; the same command (without --force) continues.
#[derive(Args)]
#[command(after_long_help = "Example:
  residual-zoo sweep gpt2/smoke --seeds 2 \\
    --over train.learning_rate=1e-4..1e-1:log:4")]
pub struct SweepArgs {
    /// A run file, or an experiment or its file. All its runs are swept
    #[arg(value_name = "CONFIG|EXPERIMENT")]
    file: PathBuf,
    /// The scale, if the experiment has several [default: smoke if the experiment has it, otherwise the first one]
    #[arg(long, value_name = "SCALE")]
    scale: Option<String>,
    #[command(flatten)]
    options: cli::SweepArgs,
}

pub fn sweep(options: SweepArgs) -> anyhow::Result<()> {
    let file = &options.file;
    let mut name = name_of(file);
    let experiment = match experiment_of(file, options.scale.as_deref(), "smoke")? {
        Some((experiment, scale)) => {
            if let Some(scale) = scale {
                name += &format!("-{scale}");
            }
            experiment
        }
        None => experiment::Experiment::of_run(&name, read_config(file)?),
    };
    Ok(experiment::sweep_with(&options.options, experiment, &name)?)
}
