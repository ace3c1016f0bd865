//! Trains every architecture on the same data and budget and compares them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use residual_zoo::RunConfig;
use residual_zoo::lab::cli::{self, BackendArgs, DataArgs, DisplayArgs};
use residual_zoo::lab::{self, REPORT};

/// The models to compare, small enough for a CPU.
const MODELS: [(&str, &str); 6] = [
    ("gpt2", include_str!("../experiments/compare/gpt2.ron")),
    ("rmt", include_str!("../experiments/compare/rmt.ron")),
    ("laurel", include_str!("../experiments/compare/laurel.ron")),
    (
        "tokenformer",
        include_str!("../experiments/compare/tokenformer.ron"),
    ),
    (
        "recurrent",
        include_str!("../experiments/compare/recurrent.ron"),
    ),
    (
        "laurel-rmt",
        include_str!("../experiments/compare/laurel-rmt.ron"),
    ),
];

/// Train every architecture on the same data and budget; print a table, write a report.
///
/// Without options: a synthetic language whose entropy is known exactly, no file and no network
/// needed, less than five minutes on two CPU cores. Ctrl-C stops and saves. The same command
/// continues, and does not train again what is already trained.
#[derive(Parser, Debug)]
struct Options {
    /// Set a field of every model's run, under train or data: train.steps=200, …
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Where the runs and report.html go
    #[arg(long, value_name = "DIR", default_value = "runs/compare")]
    run: PathBuf,
    /// Delete an earlier comparison there and begin again
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

fn main() -> ExitCode {
    cli::report(compare(Options::parse()))
}

fn compare(options: Options) -> anyhow::Result<()> {
    let models = MODELS.iter().map(|(name, text)| {
        let mut config = RunConfig::parse(text, Path::new(name))?.set(&options.set)?;
        options.data.apply(&mut config.data)?;
        Ok(((*name).to_owned(), config))
    });
    let models = models.collect::<anyhow::Result<Vec<_>>>()?;
    let kind = options.backend.kind()?;
    let command = cli::command("compare", kind, std::env::args().skip(1));
    let compare_options = lab::Options {
        force: options.force,
        gpu: options.backend.gpu,
        display: options.display.display(),
        peak_tflops: options.display.peak_tflops,
        stop: cli::stop_on_signal()?,
        ..lab::Options::new(&options.run, kind)
    };
    let (comparison, failure) =
        residual_zoo::experiment::compare(&models, command, &compare_options)?;
    println!("\n{}", comparison.table().to_text());
    if let Some(entropy) = comparison.entropy {
        println!(
            "\nentropy rate {:.4} nats/token; a bigram model cannot be below {:.4}",
            entropy.rate, entropy.bigram
        );
    }
    println!("report: {}", options.run.join(REPORT).display());
    failure.map_or(Ok(()), |error| Err(error.into()))
}
