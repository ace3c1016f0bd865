//! `residual-zoo compare`

use std::path::PathBuf;

use clap::Args;
use residual_zoo::cli::{self, CompareArgs};
use residual_zoo::experiment;

use super::{name_of, read_config};

/// Train several models on the same data and budget; print a table, write a report.
///
/// Without CONFIG: every architecture on a synthetic language whose entropy is known exactly, no file
/// and no network needed, less than five minutes on two CPU cores. Ctrl-C stops and saves. The same
/// command continues, and does not train again what is already trained.
#[derive(Args)]
pub struct Options {
    /// The run files to compare; they must have the same data and budget [default: those of
    /// compare/ in `residual-zoo list`]
    configs: Vec<PathBuf>,
    /// Compare ways to join a branch to the stream instead: GPT-2 with each connection, at one learning rate
    #[arg(long, conflicts_with = "configs")]
    connections: bool,
    #[command(flatten)]
    options: CompareArgs,
}

pub fn compare(options: Options) -> anyhow::Result<()> {
    let command = cli::command("residual-zoo", std::env::args().skip(1));
    let models = match options.configs.as_slice() {
        [] if options.connections => experiment::compared_connections()?,
        [] => experiment::compared()?,
        configs => {
            let named = configs
                .iter()
                .map(|path| Ok((name_of(path), read_config(path)?)));
            named.collect::<anyhow::Result<Vec<_>>>()?
        }
    };
    Ok(experiment::compare_with(&options.options, models, command)?)
}
