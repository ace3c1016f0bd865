//! `residual-zoo tokenize`

use std::path::{Path, PathBuf};

use clap::Args;
use residual_zoo::RunConfig;
use residual_zoo::cli::{self, DataArgs};
use residual_zoo::core::ConfigError;
use residual_zoo::data::{DataConfig, Examples, Source, TokenizerConfig};
use residual_zoo::drive::store_corpus;
use residual_zoo::report::{si, sig};
use residual_zoo_system::counted;

use super::read_config;

/// Tokenize a text into the cache that training reads, and print a summary
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
pub struct TokenizeArgs {
    /// The RON file of a run whose data are tokenized, or the name of one in `residual-zoo list runs`
    config: Option<PathBuf>,
    /// Set a field of the data, such as data.text_field=body or data.valid_fraction=0.01; repeat it for several
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    data: DataArgs,
}

pub fn tokenize(options: TokenizeArgs) -> anyhow::Result<()> {
    let config = match &options.config {
        Some(file) => read_config(file)?,
        // Only the data of this config are used.
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
        let remedy = match config.source {
            Source::Images(_) | Source::Cifar10(_) => {
                "images have no tokens; give the RON file of a run on text"
            }
            _ => "give a text with `--data`",
        };
        let problem = format!("is {}; {remedy}", config.source);
        return Err(ConfigError::new("data.source", problem).into());
    }
    let names_field = |set: &&String| {
        let path = set.split('=').next().unwrap_or_default();
        path.trim() == "data.text_field"
    };
    if let Some(set) = options.set.iter().find(names_field)
        && is_plain(&config.source)
    {
        let problem = "has no effect, because a plain text has no fields; leave it out";
        return Err(ConfigError::new(format!("--set {set}"), problem).into());
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
    cli::print(&format!(
        "{}, tokenized with {}",
        config.source,
        named(&config.tokenizer)
    ))?;
    if let Some(cache) = config.cache_directory() {
        cli::print(&format!("cache: {}", cache.display()))?;
    }
    cli::print(&format!("{}{fewer}", counted(ids, "token id")))?;
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

/// Whether the data are one file of plain text, rather than JSON Lines or Parquet with fields.
fn is_plain(source: &Source) -> bool {
    let has_fields = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(".jsonl") || name.ends_with(".parquet")
    };
    match source {
        Source::Path(path) => path.is_file() && !has_fields(path),
        Source::TinyShakespeare => true,
        _ => false,
    }
}

/// Formats a tokenizer as an argument of `--tokenizer`.
fn named(tokenizer: &TokenizerConfig) -> String {
    match tokenizer {
        TokenizerConfig::Bytes => "bytes".into(),
        TokenizerConfig::Chars => "chars".into(),
        TokenizerConfig::Bpe { vocab_size } => format!("bpe:{vocab_size}"),
        TokenizerConfig::File(path) => path.display().to_string(),
    }
}
