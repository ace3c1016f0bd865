//! `residual-zoo merge`

use std::path::PathBuf;

use clap::Args;
use residual_zoo::backend::BackendKind;
use residual_zoo::report::si;
use residual_zoo::runs::run_dir;
use residual_zoo::{cli, experiment};
use residual_zoo_system::counted;

/// Merge two TokenFormers into one, with the parameter tokens of both
///
/// The models may differ only in their numbers of parameter tokens; their embeddings and norms must be equal. The
/// attention to the parameters is scaled for the larger number of tokens, so that each Pattention gives the sum of
/// both. If `train --tune` tuned both models from the same one, only the new tokens are merged. The new run is
/// untrained; `generate` and `evaluate` read it, and `train` starts from it.
#[derive(Args)]
#[command(after_long_help = "Examples:
  residual-zoo merge runs/a runs/b --run runs/both
  residual-zoo train runs/both/config.ron \\
    --init-from runs/both --run runs/more")]
pub struct MergeArgs {
    /// The first run
    a: PathBuf,
    /// The second run
    b: PathBuf,
    /// The directory of the new run
    #[arg(long, value_name = "DIR")]
    run: PathBuf,
    /// Factor by which all values are multiplied: 1 gives the sum of both models in each Pattention, 0.5 their mean
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    value_scale: f64,
}

pub fn merge(options: MergeArgs) -> anyhow::Result<()> {
    let MergeArgs {
        a,
        b,
        run,
        value_scale,
    } = options;
    let (name, parameters) =
        experiment::merge((&a, &b), &run, value_scale, (BackendKind::first()?, None))?;
    let ids = run_dir::read_tokenizer(&run)?.vocab_size();
    cli::print(&format!(
        "{name}, {} parameters for {}\nrun: {}",
        si(parameters as f64),
        counted(ids, "token id"),
        run.display()
    ))?;
    Ok(())
}
