//! `residual-zoo export`

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use residual_zoo::Run;
use residual_zoo::cli::{self, CheckpointArgs};
use residual_zoo::exchange::{ExportOptions, export as write};
use residual_zoo_system::console::warn;

use super::{LoopsArgs, note_edited};

/// Write a run's model for another project
///
/// A GPT-2 becomes a GPT2LMHeadModel of Hugging Face's transformers, and a Llama becomes the class that has its
/// settings, such as LlamaForCausalLM. Other language models, with any connection, come with Python code for
/// trust_remote_code=True. With --loops, the exported model has that number of loops.
///
/// The model card in the directory, README.md, shows how to load it.
#[derive(Args)]
#[command(after_long_help = "Example:
  residual-zoo export runs/gpt2-smoke --to hf exported/")]
pub struct ExportArgs {
    /// The run directory, such as runs/gpt2-shakespeare-cpu
    run: PathBuf,
    /// The format
    #[arg(long, value_name = "FORMAT", value_enum)]
    to: Format,
    /// The new directory
    directory: PathBuf,
    /// The licence of the weights for the model card, such as mit or apache-2.0 [default: no licence in the card]
    #[arg(long, value_name = "NAME")]
    license: Option<String>,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    loops: LoopsArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Hugging Face's transformers
    Hf,
}

pub fn export(options: ExportArgs) -> anyhow::Result<()> {
    let ExportArgs {
        run,
        to: Format::Hf,
        directory,
        license,
        checkpoint,
        loops,
    } = options;
    let mut run: Run = checkpoint.open(&run)?;
    loops.apply(&mut run)?;
    note_edited(run.directory());
    let exported = write(&run, &directory, &ExportOptions { license })?;
    for note in &exported.notes {
        warn(note);
    }
    cli::print(&format!(
        "wrote {} ({}) from {}",
        directory.display(),
        exported.class,
        exported.checkpoint.display()
    ))?;
    Ok(())
}
