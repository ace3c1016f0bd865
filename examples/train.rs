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
/// command line. Ctrl-C stops after the current step and saves. The same command, or --resume with
/// the run's directory, continues from the last checkpoint.
///
/// Examples:
///   cargo run --release --example train -- experiments/gpt2/smoke.ron
///   cargo run --release --example train -- experiments/gpt2/shakespeare-cpu.ron \
///     --data my-text.txt --run runs/my-text --set train.steps=500
///   cargo run --release --example train -- --resume runs/gpt2-smoke --set train.steps=2000
#[derive(Parser, Debug)]
#[command(
    verbatim_doc_comment,
    override_usage = "train [OPTIONS] <CONFIG>\n       train [OPTIONS] --resume <RUN>"
)]
struct Options {
    /// The RON file
    #[arg(required_unless_present = "resume", conflicts_with = "resume")]
    config: Option<PathBuf>,
    /// Resume the run in this directory with its own config
    #[arg(long, value_name = "RUN", conflicts_with_all = ["run", "init_from"])]
    resume: Option<PathBuf>,
    /// Continue even if config, data or backend have changed (noted in history.jsonl)
    #[arg(long)]
    allow_config_change: bool,
    /// Set a field: train.steps=100, model.n_layer=2, …
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// The run directory; a run that is there already continues [default: runs/ and the name of
    /// the RON file]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Start from the weights of another run's newest checkpoint, which may be of a smaller
    /// TokenFormer or, with --init-by grow-fresh, of a narrower GPT-2
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
    /// Keep the weights and the optimizer's moments; a larger TokenFormer appends new weights
    Grow,
    /// Keep the weights, start with fresh moments; a wider GPT-2 is widened by Net2Net
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
        init_from: options.init_from.map(|run| (run, options.init_by.into())),
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
            "to continue: repeat the command, or use `--resume '{directory}'`"
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
    let count = |examples: &Examples| Some(si(examples.tokens()? as f64));
    let data = match (count(&corpus.train), count(&corpus.valid)) {
        (Some(train), Some(valid)) => format!("{train} training and {valid} validation tokens"),
        _ => "generated data".into(),
    };
    format!(
        "{} on {kind}: {} parameters, {} of them non-embedding; {vocab_size} token ids; {data}",
        config.model.name(),
        si(cost.params.total() as f64),
        si(cost.params.other as f64),
    )
}
