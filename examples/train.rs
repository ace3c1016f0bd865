//! Trains the model that a RON file of `experiments/` describes.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Parser, ValueEnum};
use residual_zoo::RunConfig;
use residual_zoo::backend::BackendKind;
use residual_zoo::core::ModelConfig as _;
use residual_zoo::data::{Corpus, Examples};
use residual_zoo::lab::cli::{self, BackendArgs, DataArgs, DisplayArgs};
use residual_zoo::report::si;
use residual_zoo::train::dashboard::{Display, describe_loss, duration, print};
use residual_zoo::train::{FirstWeights, RunOptions, run_dir};

/// Train a model of the zoo.
///
/// The model, the data and the schedule come from a RON file; every field can be set on the
/// command line. Ctrl-C stops after the current step and saves; the same command again, or
/// --resume with the run's directory, goes on from the last checkpoint as if it had never stopped.
///
/// Examples:
///   train experiments/gpt2/smoke.ron
///   train experiments/gpt2/shakespeare-cpu.ron --data my-text.txt --set train.steps=500
///   train --resume runs/gpt2-smoke --set train.steps=2000
#[derive(Parser, Debug)]
#[command(verbatim_doc_comment)]
struct Options {
    /// The RON file
    #[arg(required_unless_present = "resume", conflicts_with = "resume")]
    config: Option<PathBuf>,
    /// Go on with the run in this directory, with the config that is there
    #[arg(long, value_name = "RUN", conflicts_with_all = ["run", "init_from"])]
    resume: Option<PathBuf>,
    /// Go on also where config, data or backend are not what the run began with; the change is
    /// noted in the run's history.jsonl
    #[arg(long)]
    allow_config_change: bool,
    /// Set a field: train.steps=100, model.n_layer=2, …
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// The run directory, where a run begins or goes on [default: runs/ and the name of the RON
    /// file]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Start from the weights of another run's newest checkpoint, which may be of a smaller
    /// TokenFormer
    #[arg(long, value_name = "RUN")]
    init_from: Option<PathBuf>,
    /// How the weights of --init-from become the first ones
    #[arg(long, value_enum, requires = "init_from", default_value_t = InitBy::Grow)]
    init_by: InitBy,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum InitBy {
    /// As they are, with the moments; what a larger TokenFormer has more begins at zero
    Grow,
    /// The same with fresh moments
    GrowFresh,
}

impl From<InitBy> for FirstWeights {
    fn from(by: InitBy) -> Self {
        match by {
            InitBy::Grow => Self::Grow,
            InitBy::GrowFresh => Self::GrowFresh,
        }
    }
}

fn main() -> ExitCode {
    cli::report(train(Options::parse()))
}

fn train(options: Options) -> anyhow::Result<()> {
    let (config, directory) = match (&options.config, &options.resume) {
        (Some(file), None) => {
            let directory = options
                .run
                .clone()
                .unwrap_or_else(|| default_directory(file));
            (RunConfig::read(file)?, directory)
        }
        (_, Some(run)) => (run_dir::read_config(run)?, run.clone()),
        (None, None) => bail!("give a RON file, or `--resume RUN`"),
    };
    let mut config = config.set(&options.set)?;
    options.data.apply(&mut config.data)?;
    let kind = options.backend.kind()?;
    let corpus = cli::open_corpus(&config.data)?;
    config.validate(corpus.tokenizer.vocab_size())?;
    let run_options = RunOptions {
        directory,
        display: options.display.display(),
        peak_tflops: options.display.peak_tflops,
        init_from: options.init_from,
        first_weights: options.init_by.into(),
        allow_config_change: options.allow_config_change,
        stop: cli::stop_on_signal()?,
    };
    let display = run_options.display;
    if display == Display::Log {
        print(&describe(&config, &corpus, kind));
    }
    let gpu = options.backend.gpu;
    let summary = residual_zoo::experiment::train(kind, gpu, config, &corpus, &run_options)?;

    let seconds = summary.rows.last().map_or(0.0, |row| row.seconds);
    let end = if summary.stopped {
        "stopped"
    } else {
        "trained"
    };
    print(&format!(
        "{end} in {}: validation loss {}{}",
        duration(std::time::Duration::from_secs_f64(seconds)),
        describe_loss(
            summary.valid_loss,
            Some(summary.valid_accuracy),
            corpus.bytes_per_token
        ),
        corpus.entropy.map_or(String::new(), |entropy| format!(
            ", {:.1} % above the entropy rate {:.4}",
            100.0 * (summary.valid_loss / entropy.rate - 1.0),
            entropy.rate
        )),
    ));
    print(&format!("checkpoint: {}", summary.checkpoint.display()));
    let directory = run_options.directory.display();
    if summary.stopped {
        print(&format!(
            "go on: the same command again, or `--resume '{directory}'`"
        ));
    }
    if display != Display::Quiet && corpus.valid.text().is_some() {
        print(&format!(
            "sample it: cargo run --release --example generate -- '{directory}'"
        ));
    }
    Ok(())
}

/// `experiments/gpt2/smoke.ron` to `runs/gpt2-smoke`.
fn default_directory(config: &std::path::Path) -> PathBuf {
    let stem = |path: Option<&std::ffi::OsStr>| path.map(|p| p.to_string_lossy().into_owned());
    let family = config.parent().and_then(|parent| stem(parent.file_name()));
    let name = [family, stem(config.file_stem())].into_iter().flatten();
    PathBuf::from("runs").join(name.collect::<Vec<_>>().join("-"))
}

fn describe(config: &RunConfig, corpus: &Corpus, kind: BackendKind) -> String {
    let vocab_size = corpus.tokenizer.vocab_size();
    let cost = config.model.cost(residual_zoo::train::vocabulary(corpus));
    let count = |examples: &Examples| {
        let tokens = examples.tokens();
        tokens.map_or("any number of".into(), |tokens| si(tokens as f64))
    };
    format!(
        "{} on {kind}: {} parameters, {} of them outside of embeddings; {vocab_size} token ids; \
         {} training and {} validation tokens",
        config.model.name(),
        si(cost.params.total() as f64),
        si(cost.params.other as f64),
        count(&corpus.train),
        count(&corpus.valid),
    )
}
