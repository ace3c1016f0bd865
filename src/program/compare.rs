//! `residual-zoo compare`

use std::path::PathBuf;

use clap::Args;
use residual_zoo::cli;
use residual_zoo::experiment;

use super::{name_of, read_set};

/// Train several models on the same data and budget; print a table, write a report.
///
/// Without CONFIG, compares seven models on a synthetic language whose entropy is known exactly. This needs no file and
/// no network, and takes about two and a half minutes on two CPU cores. Ctrl-C stops and saves. The same command
/// continues and skips finished models.
#[derive(Args)]
pub struct CompareArgs {
    /// The run files to compare; they must have the same data and budget [default: the files of compare/ in
    /// `residual-zoo list runs`]
    configs: Vec<PathBuf>,
    /// Compare connections instead: the GPT-2 of compare/ as it is (`None`) and with each of them, at one learning
    /// rate. `--set model.n_layer=4` changes all of them; the number must be even, because `Tree` takes layers in
    /// pairs. The runs go to runs/compare-connections
    #[arg(long, conflicts_with = "configs")]
    connections: bool,
    #[command(flatten)]
    options: cli::CompareArgs,
}

pub fn compare(mut options: CompareArgs) -> anyhow::Result<()> {
    let command = cli::command("residual-zoo", cli::arguments());
    if options.connections {
        let directory = || "runs/compare-connections".into();
        options.options.run.get_or_insert_with(directory);
    }
    let (configs, connections) = (options.configs, options.connections);
    let models = |set: &[String]| match configs.as_slice() {
        [] if connections => Ok(experiment::compared_connections(set)?),
        [] => Ok(experiment::compared(set)?),
        configs => {
            let named = configs
                .iter()
                .map(|path| Ok((name_of(path), read_set(path, set)?)));
            named.collect::<anyhow::Result<Vec<_>>>()
        }
    };
    experiment::compare_with(&options.options, models, command)
}
