//! Draws text from a trained model.

mod common;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use burn::tensor::backend::{AutodiffBackend, Backend};
use clap::Parser;
use common::BackendArgs;
use residual_zoo::RunConfig;
use residual_zoo::backend::OnBackend;
use residual_zoo::core::ModelConfig;
use residual_zoo::data::{StreamDecoder, Tokenizer};
use residual_zoo::train::generate::{Generator, Sampling};
use residual_zoo::train::{Error, checkpoint, run_dir};

/// Generate text from a run's newest checkpoint, as it is drawn.
#[derive(Parser, Debug)]
struct Options {
    /// The run directory, such as runs/gpt2-shakespeare-cpu
    run: PathBuf,
    /// Text to continue [default: the first token id of the vocabulary]
    #[arg(long)]
    prompt: Option<String>,
    /// Tokens to generate
    #[arg(long, default_value_t = 200)]
    tokens: usize,
    /// Divides the logits; 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Draw only from the K likeliest tokens
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Draw only from the fewest likeliest tokens that have probability P together
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Seed of the draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    backend: BackendArgs,
}

fn main() -> ExitCode {
    common::report(generate(Options::parse()))
}

fn generate(options: Options) -> anyhow::Result<()> {
    let config: RunConfig = run_dir::read_config(&options.run)?;
    if config.data.time().is_some() {
        bail!(
            "{} was trained on sequences that are no text",
            options.run.display()
        );
    }
    let tokenizer = run_dir::read_tokenizer(&options.run)?;
    let kind = options.backend.kind()?;
    let gpu = options.backend.gpu;
    Ok(kind.run(
        gpu,
        Generate {
            options,
            config,
            tokenizer,
        },
    )??)
}

struct Generate {
    options: Options,
    config: RunConfig,
    tokenizer: Tokenizer,
}

impl OnBackend for Generate {
    type Output = Result<(), Error>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let Self {
            options,
            config,
            tokenizer,
        } = self;
        let checkpoint = checkpoint::newest(&options.run)?;
        for (_, error) in &checkpoint.passed_over {
            eprintln!("passed over: {error}");
        }
        let vocab_size = tokenizer.vocab_size();
        B::InnerBackend::seed(&device, 0);
        let model = config.model.build::<B::InnerBackend>(vocab_size, &device)?;
        let model = checkpoint::load_model::<B::InnerBackend, _>(model, &checkpoint.path)?;

        let prompt = match &options.prompt {
            Some(text) => tokenizer.encode(text)?,
            None => vec![0],
        };
        let sampling = Sampling {
            temperature: options.temperature,
            top_k: options.top_k,
            top_p: options.top_p,
            seed: options.seed,
        };
        let sizes = (vocab_size, config.model.shape().context);
        let generator = Generator::new(&model, sizes, &prompt, sampling, &device)?;
        let mut decoder = StreamDecoder::new(tokenizer);
        let mut out = std::io::stdout().lock();
        for id in prompt.iter().copied().chain(generator.take(options.tokens)) {
            let text = decoder.push(id)?;
            // Whoever reads may stop reading: that ends the text, and is no failure.
            if write!(out, "{text}").and_then(|()| out.flush()).is_err() {
                return Ok(());
            }
        }
        writeln!(out, "{}", decoder.finish()?).ok();
        Ok(())
    }
}
