//! `residual-zoo import`

use std::path::PathBuf;

use clap::Args;
use residual_zoo::cli;
use residual_zoo::core::ModelConfig as _;
use residual_zoo::data::unless_stopped;
use residual_zoo::drive::fetch_model;
use residual_zoo::exchange::{ImportOptions, import as read};
use residual_zoo::report::si;
use residual_zoo::runs::{Error as RunError, run_dir};
use residual_zoo_system::counted;

/// Make a run from a model of another project: GPT-2, Llama, Qwen, OLMo 2, Gemma 2, NanoChat, nanoGPT, TokenFormer
///
/// The run is untrained. `generate` reads it, and `train` starts from it.
#[derive(Args)]
#[command(after_long_help = "Examples:
  residual-zoo import gpt2/ --run runs/gpt2
  residual-zoo generate runs/gpt2 --prompt \"Hello, I am\"
  residual-zoo train runs/gpt2/config.ron \\
    --init-from runs/gpt2 --data my.txt --run runs/mine \\
    --set train.steps=200 --set train.warmup=10")]
pub struct ImportArgs {
    /// The directory of a model of Hugging Face, with its config.json, or its address on the hub
    /// (hf://OWNER/NAME); the ckpt.pt of nanoGPT; or the pytorch_model.bin of a TokenFormer
    path: PathBuf,
    /// The directory of the new run
    #[arg(long, value_name = "DIR")]
    run: PathBuf,
    /// The tokenizer, if there is none beside the weights: `bytes`, the path of a tokenizer.json, the address of a
    /// model on the hub (hf://OWNER/NAME), or nanoGPT's meta.pkl
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
    /// Number of attention heads of a TokenFormer; not needed for the published models
    #[arg(long, value_name = "N", value_parser = cli::parsed::<usize>("a whole number of at least 0"))]
    heads: Option<usize>,
    /// Set a field, such as model.activation=GeluTanh or train.learning_rate=1e-4; repeat it for several
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
}

pub fn import(options: ImportArgs) -> anyhow::Result<()> {
    let ImportArgs {
        path,
        run,
        tokenizer,
        heads,
        set,
    } = options;
    cli::refuse_doubled("--tokenizer", "data.tokenizer", &set)?;
    cli::refuse_doubled(
        "--heads",
        "model.n_head",
        if heads.is_some() { &set } else { &[] },
    )?;
    // Checks the run directory before anything is downloaded.
    if !run_dir::is_free(&run)? {
        return Err(RunError::run_exists(run).into());
    }
    let directory = fetch_model(&path, &cli::stop_on_signal()?)?;
    let options = ImportOptions {
        tokenizer,
        n_head: heads,
        set,
    };
    // Reading can take long, because the files can be several gigabytes large. A signal ends it.
    let imported = unless_stopped(move || read(&directory, &options))??;
    imported.write(&run)?;
    for note in &imported.notes {
        cli::print(&format!("note: {note}"))?;
    }
    cli::print(&format!(
        "{}: {}, {} parameters for {}\nrun: {}",
        imported.kind,
        imported.config.model.name(),
        si(imported.parameters() as f64),
        counted(imported.tokenizer.vocab_size(), "token id"),
        run.display()
    ))?;
    Ok(())
}
