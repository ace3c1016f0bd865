//! `residual-zoo describe`

use std::path::{Path, PathBuf};

use clap::Args;
use residual_zoo::RunConfig;
use residual_zoo::cli::{self, BackendArgs, DataArgs};
use residual_zoo::core::{ModelConfig as _, Transfer as _};
use residual_zoo::data::{Examples, Source};
use residual_zoo::experiment;
use residual_zoo::lab::{Basis, open_corpus};
use residual_zoo::report::{bytes, si};
use residual_zoo::runs::run_dir;
use residual_zoo::train::dashboard::Unit;

use super::{
    at_most, check_paths, memory_note, notes, paths_of_no_run, read_config, with_tokenizer_beside,
};

/// Print a run's config with every default, its parameters, FLOPs and memory
#[derive(Args)]
pub struct Options {
    /// A run file, or the directory of a run
    #[arg(value_name = "CONFIG|RUN")]
    path: PathBuf,
    /// Set a field: train.batch=4, …
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Also estimate the memory of training, from steps of smaller copies of the model
    #[arg(long)]
    memory: bool,
    /// Follow the paths in the config of RUN, wherever they lead; only for runs that you trust
    #[arg(long)]
    allow_paths: bool,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    backend: BackendArgs,
}

pub fn describe(options: Options) -> anyhow::Result<()> {
    if options.allow_paths && !options.path.is_dir() {
        return Err(paths_of_no_run().into());
    }
    let config = match options.path.is_dir() {
        true => {
            let config = run_dir::read_config(&options.path)?;
            with_tokenizer_beside(config, &options.path.join("config.ron"))
        }
        false => read_config(&options.path)?,
    };
    let mut config = config.set(&options.set)?;
    options.data.apply(&mut config.data, &options.set)?;
    let origin = match options.path.is_dir() && options.data.data.is_none() {
        true => untrained(&options.path, &config)?,
        false => None,
    };
    if options.path.is_dir() && !options.allow_paths && origin.is_none() {
        check_paths(&options.path, &config.data, &options.data)?;
    }
    // The config comes first, because the data may have to be downloaded for the rest.
    cli::print(&format!("{}\n", config.to_ron()))?;
    if let Some(origin) = origin {
        return describe_untrained(&config, &options.path, origin);
    }
    let corpus = open_corpus(&config.data, &cli::stop_on_signal()?)?;
    let basis = Basis::of_corpus(&corpus);
    config.validate(basis.vocabulary)?;
    let cost = config.model.cost(basis.vocabulary);
    let tokens = |examples: &Examples| {
        let tokens = examples.tokens().map(|tokens| si(tokens as f64));
        tokens.unwrap_or_else(|| "any number".into())
    };
    let per_step = config.tokens_per_step() as f64;
    let all = per_step * config.train.steps as f64;
    let training = cost.training_flops() as f64;
    let parameters = cost.params.total() as f64;
    // Frozen weights are not counted.
    let (what, least) = match config.model.tuned().is_some() {
        true => ("parameters that are trained", "more than "),
        false => ("parameters", ""),
    };
    let of_each = 4.0 * (1 + config.train.optimizer.moments()) as f64;
    let (units, most) = (Unit::of(&corpus).name(), at_most(&config));
    let of_data = |part: &str| format!("{part} {units} in the data");
    let per_unit = |pass: &str| format!("FLOPs per {}, {pass}", units.trim_end_matches('s'));
    let lines: [(&str, String); 13] = [
        ("model", config.model.name()),
        ("data", config.data.source.to_string()),
        (what, si(parameters)),
        ("non-embedding", si(cost.params.other as f64)),
        ("vocabulary", basis.to_string()),
        (&of_data("training"), tokens(&corpus.train)),
        (&of_data("validation"), tokens(&corpus.valid)),
        (
            &format!("{units} per step"),
            format!("{most}{}", si(per_step)),
        ),
        (&format!("{units} of the run"), format!("{most}{}", si(all))),
        (&per_unit("forward"), si(cost.forward_flops as f64)),
        (&per_unit("training"), si(training)),
        ("FLOPs of the run", format!("{most}{}", si(training * all))),
        (
            "checkpoint",
            format!("{least}{}", bytes(of_each * parameters)),
        ),
    ];
    print(&lines)?;
    for note in notes(&config, &corpus) {
        cli::print(&cli::wrapped(&note, ""))?;
    }
    if options.memory {
        let kind = options.backend.kind()?;
        let memory =
            experiment::estimate_memory(kind, options.backend.gpu, &config, basis.vocabulary)?;
        let memory = memory.map_or("not counted on this backend".into(), |taken| {
            format!("about {}", bytes(taken as f64))
        });
        cli::print(&format!("{:<30}{memory}", "memory of training"))?;
        if let Some(note) = memory_note(&config) {
            cli::print(note)?;
        }
    }
    Ok(())
}

/// Where the model of `run` comes from, if it was imported or merged and has not been trained since.
fn untrained(run: &Path, config: &RunConfig) -> anyhow::Result<Option<String>> {
    if config.data.source == Source::Imported {
        return Ok(Some(config.data.source.to_string()));
    }
    let history = run_dir::read_history(run).unwrap_or_default();
    let merged = history.last().and_then(|start| {
        let pair = (start.init_from.as_ref()?, start.merged_with.as_ref()?);
        Some(format!(
            "none, the model was merged from {} and {}",
            pair.0.display(),
            pair.1.display()
        ))
    });
    Ok(merged)
}

/// Describes a model that has not been trained here, by the tokenizer of its run.
fn describe_untrained(config: &RunConfig, run: &Path, data: String) -> anyhow::Result<()> {
    let ids = run_dir::read_tokenizer(run)?.vocab_size();
    let basis = Basis::exact(config.vocabulary(ids));
    config.validate(basis.vocabulary)?;
    let cost = config.model.cost(basis.vocabulary);
    print(&[
        ("model", config.model.name()),
        ("data", data),
        ("parameters", si(cost.params.total() as f64)),
        ("non-embedding", si(cost.params.other as f64)),
        ("vocabulary", basis.to_string()),
        ("FLOPs per token, forward", si(cost.forward_flops as f64)),
        (
            "FLOPs per token, training",
            si(cost.training_flops() as f64),
        ),
    ])
}

fn print(lines: &[(&str, String)]) -> anyhow::Result<()> {
    for (name, value) in lines {
        cli::print(&format!("{name:<30}{value}"))?;
    }
    Ok(())
}
