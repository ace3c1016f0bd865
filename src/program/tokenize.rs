//! `residual-zoo tokenize`

use std::path::{Path, PathBuf};

use clap::Args;
use residual_zoo::RunConfig;
use residual_zoo::cli::{self, DataArgs};
use residual_zoo::core::ConfigError;
use residual_zoo::data::{DataConfig, Examples, Source, TokenizerConfig};
use residual_zoo::lab::store_corpus;
use residual_zoo::report::{si, sig};

use super::read_config;

/// Tokenize a text, into the cache that training reads, and print what is in it
///
/// The text may be larger than memory. If the command is stopped, the same command
/// continues where it left off. The cache is in the user's cache directory, under
/// residual-zoo/tokens (data.cache).
#[derive(Args)]
#[command(after_long_help = "Examples:
  residual-zoo tokenize --data texts/ --tokenizer bpe:8192
  residual-zoo tokenize --data d.jsonl \\
    --tokenizer tokenizer.json --set data.text_field=body \\
    --set 'data.separator=\"<|endoftext|>\"'")]
pub struct Options {
    /// The RON file of a run whose data are tokenized, or the name of one in `residual-zoo list runs`
    config: Option<PathBuf>,
    /// Set a field of the data: data.text_field=body, data.valid_fraction=0.01, …
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    data: DataArgs,
}

pub fn tokenize(options: Options) -> anyhow::Result<()> {
    let config = match &options.config {
        Some(file) => read_config(file)?,
        // Only its data matter.
        None => RunConfig {
            data: DataConfig::default(),
            ..read_config(Path::new("gpt2/smoke"))?
        },
    };
    if let Some(set) = options
        .set
        .iter()
        .find(|set| !set.trim_start().starts_with("data"))
    {
        let problem = "has no effect, because only the data are tokenized; leave it out";
        return Err(ConfigError::new(format!("--set {set}"), problem).into());
    }
    let mut config = config.set(&options.set)?.data;
    options.data.apply(&mut config, &options.set)?;
    if config.source.paths().is_empty() && config.source != Source::TinyShakespeare {
        let problem = format!("is {}; give a text with `--data`", config.source);
        return Err(ConfigError::new("data.source", problem).into());
    }
    let corpus = store_corpus(&config, &cli::stop_on_signal()?)?;
    let count = |examples: &Examples| si(examples.tokens().unwrap_or(0) as f64);
    let ids = corpus.tokenizer.vocab_size();
    let fewer = match config.tokenizer {
        TokenizerConfig::Bpe { vocab_size } if ids < vocab_size => {
            format!(", because the text has no more pairs to merge for {vocab_size}")
        }
        _ => String::new(),
    };
    cli::print(&format!("{ids} token ids{fewer}"))?;
    cli::print(&format!(
        "{} training and {} validation tokens",
        count(&corpus.train),
        count(&corpus.valid)
    ))?;
    if let Some(bytes) = corpus.bytes_per_token {
        let bytes = sig(bytes, 3);
        cli::print(&format!("{bytes} bytes per token of the validation text"))?;
    }
    Ok(())
}
