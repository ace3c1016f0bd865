//! `residual-zoo describe`

use std::path::{Path, PathBuf};

use clap::Args;
use residual_zoo::RunConfig;
use residual_zoo::cli::{self, BackendArgs, DataArgs};
use residual_zoo::core::{ModelConfig as _, Transfer as _};
use residual_zoo::data::{Corpus, DataConfig, DataError, Examples, TokenizerConfig, is_on_hub};
use residual_zoo::drive::{Basis, why_unopened};
use residual_zoo::experiment;
use residual_zoo::report::{bytes, si};
use residual_zoo::runs::{Error as RunError, run_dir};
use residual_zoo::train::dashboard::Unit;
use residual_zoo_system::console::warn;

use super::{
    Untrained, at_most, check_paths, memory_note, note_edited, notes, paths_of_no_run, read_config,
    with_tokenizer_beside,
};

/// Print a run's config with every default, its parameters, FLOPs and memory
#[derive(Args)]
pub struct DescribeArgs {
    /// A run file, or the directory of a run
    #[arg(value_name = "CONFIG|RUN")]
    path: PathBuf,
    /// Set a field, such as train.batch=4; repeat it for several
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

pub fn describe(options: DescribeArgs) -> anyhow::Result<()> {
    if options.allow_paths && !options.path.is_dir() {
        return Err(paths_of_no_run().into());
    }
    let config = match options.path.is_dir() {
        true => {
            let config = run_dir::read_config(&options.path)?;
            note_edited(&options.path);
            with_tokenizer_beside(config, &options.path.join("config.ron"))?
        }
        false => read_config(&options.path)?,
    };
    let mut config = config.set(&options.set)?;
    options.data.apply(&mut config.data, &options.set)?;
    let is_own = options.path.is_dir() && options.data.data.is_none();
    let origin = match is_own {
        true => Untrained::of(&options.path, &config),
        false => None,
    };
    let mut data = config.data.clone();
    if is_own && options.data.tokenizer.is_none() {
        data.tokenizer = at_hand(&data, &options.path)?;
    }
    if options.path.is_dir() && !options.allow_paths && origin.is_none() {
        match check_paths(&options.path, &data, &options.data) {
            // `describe` needs no text, so a text that is not downloaded yet is not an error.
            Err(RunError::Data(DataError::NotInHubCache { .. })) => {}
            checked => checked?,
        }
    }
    // Prints the config first, because reading the data for the rest can take a long time.
    cli::print(&format!("{}\n", config.to_ron()))?;
    if let Some(origin) = origin {
        return describe_untrained(&config, &options.path, &origin);
    }
    let (mut basis, corpus) = Basis::open(&data, &cli::stop_on_signal()?)?;
    if corpus.is_none() && is_own && options.data.tokenizer.is_none() {
        basis = of_run(&options.path, &config)?;
    }
    config.validate(basis.vocabulary)?;
    let cost = config.model.cost(basis.vocabulary);
    let unopened = match corpus {
        Some(_) => String::new(),
        None => format!("not known, because {}", why_unopened(&data)?),
    };
    let tokens = |of: fn(&Corpus) -> &Examples| {
        let Some(corpus) = &corpus else {
            return unopened.clone();
        };
        let tokens = of(corpus).tokens().map(|tokens| si(tokens as f64));
        tokens.unwrap_or_else(|| "any number".into())
    };
    let per_step = config.tokens_per_step() as f64;
    let all = per_step * config.train.steps as f64;
    let training = cost.training_flops() as f64;
    let parameters = cost.params.total() as f64;
    // `cost` does not count frozen weights.
    let (what, least) = match config.model.tuned().is_some() {
        true => ("parameters that are trained", "more than "),
        false => ("parameters", ""),
    };
    let average = config.train.ema.map_or(0.0, |_| parameters);
    let saved = parameters + average + config.train.optimizer.moments(cost.params) as f64;
    let unit = match basis.vocabulary.image() {
        Some(_) => Unit::Images,
        None => Unit::Tokens(None),
    };
    let (units, most) = (unit.name(), at_most(&config));
    let of_data = |part: &str| format!("{part} {units} in the data");
    let per_unit = |pass: &str| format!("FLOPs per {}, {pass}", units.trim_end_matches('s'));
    let lines: [(&str, String); 13] = [
        ("model", config.model.name()),
        ("data", config.data.source.to_string()),
        (what, si(parameters)),
        ("non-embedding", si(cost.params.other as f64)),
        ("vocabulary", basis.to_string()),
        (&of_data("training"), tokens(|corpus| &corpus.train)),
        (&of_data("validation"), tokens(|corpus| &corpus.valid)),
        (
            &format!("{units} per step"),
            format!("{most}{}", si(per_step)),
        ),
        (&format!("{units} of the run"), format!("{most}{}", si(all))),
        (&per_unit("forward"), si(cost.forward_flops as f64)),
        (&per_unit("training"), si(training)),
        ("FLOPs of the run", format!("{most}{}", si(training * all))),
        ("checkpoint", format!("{least}{}", bytes(4.0 * saved))),
    ];
    print(&lines)?;
    let assumed = basis.assumed.as_ref();
    let assumed = assumed.map(|why| format!("note: ~ marks an assumed vocabulary: {why}"));
    for note in notes(&config, &basis).into_iter().chain(assumed) {
        cli::print(&cli::wrapped(&note, ""))?;
    }
    if options.memory {
        let (kind, gpu) = options.backend.device()?;
        warn("estimating the memory from steps of smaller copies of the model …");
        let memory = experiment::estimate_memory(kind, gpu, &config, basis.vocabulary)?;
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

/// Returns the tokenizer of a run's data. If it would have to be downloaded, returns the tokenizer file in the run's
/// directory instead.
fn at_hand(data: &DataConfig, run: &Path) -> anyhow::Result<TokenizerConfig> {
    let own = run.join(run_dir::TOKENIZER);
    let is_missing = match &data.tokenizer {
        TokenizerConfig::File(file) => is_on_hub(file) && data.known_vocab_size()?.is_none(),
        _ => false,
    };
    if is_missing && own.exists() {
        run_dir::read_tokenizer(run)?;
        return Ok(TokenizerConfig::File(own));
    }
    Ok(data.tokenizer.clone())
}

/// Returns the vocabulary of a run's tokenizer.
fn of_run(run: &Path, config: &RunConfig) -> anyhow::Result<Basis> {
    let ids = run_dir::read_tokenizer(run)?.vocab_size();
    Ok(Basis::exact(config.vocabulary(ids)))
}

/// Describes a model that was not trained in its run directory, with the tokenizer of the run.
fn describe_untrained(config: &RunConfig, run: &Path, origin: &Untrained) -> anyhow::Result<()> {
    let basis = of_run(run, config)?;
    let data = match origin {
        Untrained::Imported => config.data.source.to_string(),
        Untrained::Merged(..) => format!("none, the model {origin}"),
    };
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
