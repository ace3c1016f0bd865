//! `residual-zoo tokenize`

use clap::Args;
use residual_zoo::cli::{self, DataArgs};
use residual_zoo::data::{DataConfig, Examples};
use residual_zoo::lab::open_corpus;
use residual_zoo::report::{si, sig};

/// Tokenize a text, into the cache that training reads, and print what is in it
///
/// The text may be larger than memory. If the command is stopped, the same command continues where it left off.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    data: DataArgs,
}

pub fn tokenize(options: Options) -> anyhow::Result<()> {
    let mut config = DataConfig::default();
    options.data.apply(&mut config)?;
    let corpus = open_corpus(&config, &cli::stop_on_signal()?)?;
    let count = |examples: &Examples| si(examples.tokens().unwrap_or(0) as f64);
    cli::print(&format!("{} token ids", corpus.tokenizer.vocab_size()))?;
    cli::print(&format!(
        "{} training and {} validation tokens",
        count(&corpus.train),
        count(&corpus.valid)
    ))?;
    if let Some(bytes) = corpus.bytes_per_token {
        cli::print(&format!("{} bytes per token", sig(bytes, 3)))?;
    }
    Ok(())
}
