//! Trains every architecture on the same data and budget and compares them.

mod common;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use common::{BackendArgs, DataArgs, DisplayArgs};
use residual_zoo::RunConfig;
use residual_zoo::core::ConfigError;
use residual_zoo::data::Source;
use residual_zoo::train::compare::{Comparison, Entry, to_text};
use residual_zoo::train::dashboard::{Display, print};
use residual_zoo::train::{Error, RunOptions, resume, run_dir};

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
/// needed, less than five minutes on two CPU cores. Ctrl-C stops and saves; the same command again
/// goes on, and does not train again what is trained already.
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
    common::report(compare(Options::parse()))
}

fn compare(options: Options) -> anyhow::Result<()> {
    let configs: Vec<(&str, RunConfig)> = MODELS
        .iter()
        .map(|(name, text)| {
            let mut config = RunConfig::parse(text, Path::new(name))?.set(&options.set)?;
            options.data.apply(&mut config.data)?;
            Ok((*name, config))
        })
        .collect::<anyhow::Result<_>>()?;
    let kind = options.backend.kind()?;
    let (_, first) = configs.first().context("there is no model to compare")?;
    let data = first.data.clone();
    for (name, config) in &configs {
        let same = config.data == data && config.tokens_per_step() == first.tokens_per_step();
        ensure!(
            same && config.train.steps == first.train.steps,
            "{name} has other data or another budget"
        );
    }
    let corpus = common::open_corpus(&data)?;
    for (_, config) in &configs {
        config.validate(corpus.tokenizer.vocab_size())?;
    }
    let stop = common::stop_on_signal()?;
    prepare(&options.run, options.force)?;
    for (name, config) in &configs {
        let run = options.run.join(name);
        if !run.join("config.ron").exists() {
            continue;
        }
        let differences = resume::differences(&run_dir::read_config(&run)?, config);
        ensure!(
            differences.is_empty(),
            ConfigError::new(
                run.display().to_string(),
                format!(
                    "was compared with other settings: {}; take another directory by `--run`, or \
                     begin anew by `--force`",
                    differences.join("; ")
                )
            )
        );
    }

    let mut entries = Vec::new();
    let mut failure = None;
    for (name, config) in configs {
        let run_options = RunOptions {
            directory: options.run.join(name),
            display: options.display.display(),
            peak_tflops: options.display.peak_tflops,
            init_from: None,
            first_weights: Default::default(),
            allow_config_change: false,
            stop: stop.clone(),
        };
        if run_options.display == Display::Log {
            print(&format!("\n{name}"));
        }
        match kind.train(options.backend.gpu, config, &corpus, &run_options)? {
            Ok(summary) => {
                let stopped = summary.stopped;
                entries.push(Entry {
                    name: name.into(),
                    summary,
                });
                if stopped {
                    break;
                }
            }
            // The other models are still worth comparing.
            Err(error) => match failure {
                None => {
                    eprintln!("{name} failed; the error comes at the end");
                    failure = Some(error);
                }
                Some(_) => eprintln!("{name} failed: {error}"),
            },
        }
    }

    if entries.is_empty()
        && let Some(failure) = failure
    {
        return Err(failure.into());
    }
    let comparison = Comparison {
        entries,
        data: match &data.source {
            Source::Synthetic(_) => "a synthetic language".into(),
            Source::TinyShakespeare => "tiny shakespeare".into(),
            Source::Copying(_) => "the copy task".into(),
            Source::Cifar10(_) => "CIFAR-10".into(),
            Source::Path(path) => path.display().to_string(),
        },
        entropy: corpus.entropy,
        command: std::env::args().collect::<Vec<_>>().join(" "),
    };
    println!("\n{}", to_text(&comparison.table()));
    if let Some(entropy) = corpus.entropy {
        println!(
            "\nentropy rate {:.4} nats/token; a bigram model cannot be below {:.4}",
            entropy.rate, entropy.bigram
        );
    }
    let report = options.run.join(REPORT);
    comparison.write(&report)?;
    println!("report: {}", report.display());
    failure.map_or(Ok(()), |error| Err(error.into()))
}

const REPORT: &str = "report.html";
/// Tells a comparison from other directories. It is written first.
const MARK: &str = "comparison.txt";

/// Makes the directory of a comparison, with `force` in place of an earlier one there. A directory
/// that holds anything else stays as it is.
fn prepare(directory: &Path, force: bool) -> Result<(), Error> {
    if let Ok(entries) = fs::read_dir(directory) {
        let names: Vec<_> = entries
            .filter_map(Result::ok)
            .map(|e| e.file_name())
            .collect();
        let ours = |name: &OsString| {
            let models = MODELS.iter().map(|(model, _)| *model);
            models.chain([REPORT, MARK]).any(|known| name == known)
        };
        let comparison = names.iter().any(|name| name == MARK) && names.iter().all(ours);
        if !names.is_empty() && !comparison {
            return Err(Error::RunExists(directory.into()));
        }
        if force {
            run_dir::delete(&MODELS.map(|(model, _)| directory.join(model)).into())?;
        }
    }
    fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
    let mark = directory.join(MARK);
    fs::write(&mark, "A comparison; `--force` replaces it.\n").map_err(Error::io("write", &mark))
}
