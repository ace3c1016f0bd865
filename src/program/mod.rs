//! The commands of the program, one per file.

mod bench;
mod compare;
mod completions;
mod depth;
mod describe;
mod evaluate;
mod export;
mod generate;
mod import;
mod list;
mod merge;
mod plan;
mod plot;
mod serve;
mod sweep;
mod tokenize;
mod train;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use residual_zoo::RunConfig;
use residual_zoo::backend::BackendKind;
use residual_zoo::cli::{self, DataArgs, ExperimentArgs};
use residual_zoo::core::ConfigError;
use residual_zoo::data::{DataConfig, Source, Tokenizer, TokenizerConfig, is_on_hub, read_utf8};
use residual_zoo::drive::{Basis, Error as DriveError};
use residual_zoo::lab::{Error, ExperimentFile, long_warm_ups};
use residual_zoo::loops::MOST_LOOPS;
use residual_zoo::report::si;
use residual_zoo::runs::{Error as RunError, did_you_mean, run_dir};
use residual_zoo::{ConnectionConfig, PlacedConnection, Run, builtin, experiment};
use residual_zoo_system::team::started;

/// Reproduce, compare and compose language-model architectures that change the residual stream.
///
/// CONFIG is a RON file of a run, or the name of one that is part of the program, such as
/// gpt2/smoke. RUN is the directory of a run. `residual-zoo list` shows the names.
#[derive(Parser)]
#[command(name = "residual-zoo", bin_name = "residual-zoo", version = version(), arg_required_else_help = true, max_term_width = 100)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(train::TrainArgs),
    Generate(generate::GenerateArgs),
    Compare(compare::CompareArgs),
    Experiment(ExperimentOptions),
    Sweep(sweep::SweepArgs),
    Describe(describe::DescribeArgs),
    Plan(plan::PlanArgs),
    List(list::ListArgs),
    Plot(plot::PlotArgs),
    Depth(depth::DepthArgs),
    Bench(bench::BenchArgs),
    Tokenize(tokenize::TokenizeArgs),
    Evaluate(evaluate::EvaluateArgs),
    Serve(serve::ServeArgs),
    Import(import::ImportArgs),
    Merge(merge::MergeArgs),
    Export(export::ExportArgs),
    /// Print the script with which a shell completes commands, options and names
    ///
    /// Bash: add `source <(residual-zoo completions bash)` to ~/.bashrc. Zsh: save the script as _residual-zoo in a
    /// directory of $fpath. Fish: save it as ~/.config/fish/completions/residual-zoo.fish.
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// The number of loops of a trained model.
#[derive(clap::Args, Debug)]
struct LoopsArgs {
    /// The number of loops of a model with a depth loop, in place of the number in its config
    #[arg(long, value_name = "N", value_parser = cli::number(1, MOST_LOOPS as u32))]
    loops: Option<u32>,
}

impl LoopsArgs {
    /// Sets the number of loops in the model of `run`, if `--loops` is given.
    ///
    /// # Errors
    ///
    /// Returns an error if the model cannot have this number of loops.
    fn apply(&self, run: &mut Run) -> Result<(), ConfigError> {
        let Some(loops) = self.loops else {
            return Ok(());
        };
        let set = run.config.model.set_loops(loops as usize);
        set.map_err(|error| ConfigError::new(format!("--{}", error.field), error.problem))
    }
}

/// Run an experiment: train its models, judge its claims, and write a report.
#[derive(clap::Args)]
struct ExperimentOptions {
    /// The name of an experiment of the zoo, or a RON file
    #[arg(value_name = "NAME|FILE")]
    experiment: String,
    #[command(flatten)]
    options: ExperimentArgs,
}

/// Runs the command that the program's arguments name.
pub fn main() -> ExitCode {
    cli::start();
    let command = match cli::options::<Program>() {
        Ok(program) => program.command,
        Err(code) => return code,
    };
    let alone = !matches!(command, Command::Train(_));
    if alone && started() > 1 {
        let problem = format!(
            "{} processes were started, but only `train` can work with several; start one",
            started()
        );
        return cli::report(Err(anyhow!(problem)));
    }
    let done = match command {
        Command::Train(options) => train::train(options),
        Command::Generate(options) => generate::generate(options),
        Command::Compare(options) => compare::compare(options),
        Command::Experiment(ExperimentOptions {
            experiment,
            options,
        }) => experiment::run_named(&experiment, &options).map_err(Into::into),
        Command::Sweep(options) => sweep::sweep(options),
        Command::Describe(options) => describe::describe(options),
        Command::Plan(options) => plan::plan(options),
        Command::List(options) => list::list(options),
        Command::Plot(options) => plot::plot(options),
        Command::Depth(options) => depth::depth(options),
        Command::Bench(options) => bench::bench(options),
        Command::Tokenize(options) => tokenize::tokenize(options),
        Command::Evaluate(options) => evaluate::evaluate(options),
        Command::Serve(options) => serve::serve(options),
        Command::Import(options) => import::import(options),
        Command::Merge(options) => merge::merge(options),
        Command::Export(options) => export::export(options),
        Command::Completions { shell } => {
            cli::print(completions::completions(shell).trim_end()).map_err(Into::into)
        }
    };
    cli::report(done.map_err(of_run_file))
}

/// Changes the error about a missing run if the path names a run file of the zoo. The new error says that this run must
/// be trained first.
fn of_run_file(mut error: anyhow::Error) -> anyhow::Error {
    if let Some(RunError::NoRun { path, problem }) = cli::of_run(&mut error)
        && !path.exists()
        && builtin::run_file(path).is_some()
    {
        *problem = run_dir::not_trained(path);
    }
    error
}

/// Returns the version, the commit and the backends of this program.
fn version() -> String {
    let backends = BackendKind::compiled();
    let backends: Vec<&str> = backends.iter().map(|kind| kind.feature()).collect();
    format!(
        "{} (commit {}; backends: {})",
        env!("CARGO_PKG_VERSION"),
        experiment::COMMIT,
        backends.join(", ")
    )
}

/// Returns the experiment that `path` names or contains, at `scale`. Without a `scale`, the scale is `usual`. Also
/// returns the name of the scale, if the experiment has scales. Returns `None` if `path` is not an experiment.
fn experiment_of(
    path: &Path,
    scale: Option<&str>,
    usual: &str,
) -> anyhow::Result<Option<(experiment::Experiment, Option<String>)>> {
    let named = builtin::experiments().find(|source| Path::new(&source.name) == path);
    let own = || cli::Source::read(path).ok();
    let own = || own().filter(|source| ExperimentFile::is_experiment(&source.text));
    let Some(source) = named.or_else(own) else {
        if scale.is_some() {
            let problem = "is given, but only experiments have scales; leave it out";
            return Err(ConfigError::new("--scale", problem).into());
        }
        return Ok(None);
    };
    let file = source.file()?;
    let scale = cli::chosen_scale(&file, scale, usual)?;
    let experiment = file.at(scale)?.parse()?;
    Ok(Some((experiment, scale.map(str::to_owned))))
}

/// Prints a note if the config of a run has been edited since the run's last start. The weights were trained with the
/// earlier config.
fn note_edited(run: &Path) {
    let history = run_dir::read_history(run).unwrap_or_default();
    if run_dir::is_config_edited(run, &history).unwrap_or(false) {
        let file = run.join("config.ron");
        cli::warn(&format!(
            "note: {} has been edited since the run started; its weights were trained with the earlier config",
            file.display()
        ));
    }
}

/// Makes the error for an experiment where a run file is needed.
fn an_experiment(name: &str) -> ConfigError {
    let problem = format!(
        "is an experiment; `residual-zoo plan {name}` shows its runs, and `residual-zoo experiment {name}` trains them"
    );
    ConfigError::new(name, problem)
}

/// Reads the run file CONFIG, or the built-in run file of that name.
fn read_config(config: &Path) -> anyhow::Result<RunConfig> {
    if config.join("config.ron").exists() {
        let file = cli::quoted_path(&config.join("config.ron"));
        let problem = format!("is a run; give its config, {file}");
        return Err(ConfigError::new(config.display().to_string(), problem).into());
    }
    let ending = config.extension().unwrap_or_default().to_string_lossy();
    if cli::TEXTS.contains(&ending.as_ref()) && config.exists() {
        let problem = format!(
            "is a text, but a run file belongs here, or a name that `residual-zoo list runs` shows; give the text with \
             `--data {}`",
            cli::quoted_path(config)
        );
        return Err(ConfigError::new(config.display().to_string(), problem).into());
    }
    if !config.exists()
        && ending == "ron"
        && let Some(text) = builtin::run_file(config)
    {
        return Ok(RunConfig::parse(text, config)?);
    }
    let is_text = cli::TEXTS.contains(&ending.as_ref());
    if config.symlink_metadata().is_ok()
        || is_text
        || config.extension().is_some_and(|ending| ending == "ron")
    {
        let read = RunConfig::read(config).map_err(|error| not_a_run(config, error));
        return Ok(with_tokenizer_beside(read?, config)?);
    }
    let Some(text) = builtin::run_file(config) else {
        let name = config.display().to_string();
        if builtin::experiments().any(|source| source.name == name) {
            return Err(an_experiment(&name).into());
        }
        let runs = builtin::run_files().map(|(name, _)| name);
        let experiments = builtin::experiments().map(|source| source.name);
        let meant = did_you_mean(&name, runs.chain(experiments));
        let problem = format!(
            "is not a file, a run directory or a run file of the zoo{meant}; `residual-zoo list runs` shows the run files"
        );
        return Err(ConfigError::new(name, problem).into());
    };
    Ok(RunConfig::parse(text, config)?)
}

/// Makes the error about the file `config`, which does not parse as a run. If the file is an experiment, the error says
/// so. If the file is an invalid experiment, reading it as an experiment gives a second error. Returns whichever of the
/// two errors is later in the file.
fn not_a_run(config: &Path, error: RunError) -> anyhow::Error {
    let RunError::Parse { .. } = error else {
        return error.into();
    };
    let text = read_utf8(config).unwrap_or_default();
    if !ExperimentFile::is_experiment(&text) {
        return error.into();
    }
    let place = |error: &RunError| match error {
        RunError::Parse { line, column, .. } => (*line, *column),
        _ => (0, 0),
    };
    match experiment::Experiment::parse(&text, config) {
        Ok(_) => an_experiment(&config.display().to_string()).into(),
        Err(Error::Drive(DriveError::Run(other))) if place(&other) > place(&error) => other.into(),
        Err(_) => error.into(),
    }
}

/// Reads a run file as [`read_config`] does, and applies the assignments of `--set`. If an assignment does not fit, the
/// error names the file, because there may be several files.
fn read_set(path: &Path, set: &[String]) -> anyhow::Result<RunConfig> {
    let set = read_config(path)?.set(set);
    Ok(set.map_err(|error| Error::from(error).in_file(path))?)
}

/// Returns the config in the file `path` of a run. If the run was moved and its tokenizer file is not found, takes the
/// tokenizer beside `path`.
///
/// # Errors
///
/// Returns an error if the tokenizer beside the file is needed and cannot be read.
fn with_tokenizer_beside(mut config: RunConfig, path: &Path) -> Result<RunConfig, RunError> {
    let beside = path.with_file_name("tokenizer.json");
    if let TokenizerConfig::File(file) = &mut config.data.tokenizer
        && path.ends_with("config.ron")
        && !is_on_hub(file)
        && !file.exists()
        && beside.exists()
    {
        let run = path.parent().unwrap_or(path);
        // The error says where the tokenizer can be found again.
        let read = Tokenizer::train(&TokenizerConfig::File(beside.clone()), &[]);
        read.map_err(|error| run_dir::tokenizer_error(run, error))?;
        *file = beside;
    }
    Ok(config)
}

/// The origin of a model that was not trained in its run directory.
enum Untrained {
    Imported,
    Merged(PathBuf, PathBuf),
}

impl Untrained {
    /// Returns the origin of the model in `run`, or `None` if the model was trained there.
    fn of(run: &Path, config: &RunConfig) -> Option<Self> {
        if config.data.source == Source::Imported {
            return Some(Self::Imported);
        }
        let history = run_dir::read_history(run).unwrap_or_default();
        let start = history.last()?;
        let pair = (start.init_from.clone()?, start.merged_with.clone()?);
        Some(Self::Merged(pair.0, pair.1))
    }

    /// Returns the command that trains the model in another run.
    fn command(&self, run: &Path) -> String {
        let (config, run) = (
            cli::quoted_path(&run.join("config.ron")),
            cli::quoted_path(run),
        );
        let data = match self {
            Self::Imported => " --data TEXT",
            Self::Merged(..) => "",
        };
        format!("residual-zoo train {config} --init-from {run}{data} --run NEW")
    }
}

/// Formats the origin as text, for example `was merged from runs/a and runs/b`.
impl fmt::Display for Untrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Imported => f.write_str("is an imported model"),
            Self::Merged(a, b) => {
                write!(f, "was merged from {} and {}", a.display(), b.display())
            }
        }
    }
}

/// Returns an error if the data in the run's config have a path outside `run`. Paths in the user's own options are
/// trusted.
fn check_paths(run: &Path, data: &DataConfig, own: &DataArgs) -> Result<(), RunError> {
    let mut data = data.clone();
    if own.data.is_some() {
        data.source = Source::default();
    }
    if own.tokenizer.is_some() {
        data.tokenizer = TokenizerConfig::default();
    }
    run_dir::check_paths(run, &data)
}

/// Makes the error for `--allow-paths` without a run.
fn paths_of_no_run() -> ConfigError {
    let problem = "has no effect, because only the paths of a run are checked; leave it out";
    ConfigError::new("--allow-paths", problem)
}

/// Suggests `--force` in a config error, such as the error about a model that is too large. Other errors stay as they
/// are. Only commands with `--force` call this function.
fn or_force(error: impl Into<DriveError>) -> DriveError {
    match error.into() {
        DriveError::Run(RunError::Config(ConfigError { field, problem })) => {
            ConfigError::new(field, problem + ", or insist with `--force`").into()
        }
        other => other,
    }
}

/// Returns notes on probable mistakes in a config.
fn notes(config: &RunConfig, basis: &Basis) -> Vec<String> {
    let warm_up = long_warm_ups([("", &config.train)]).into_iter();
    let warm_up = warm_up.map(|note| format!("note: {note}"));
    let passes = passes_note(config, basis);
    warm_up.chain(passes).collect()
}

/// Returns a note if a run passes over its training tokens more than [`MOST_PASSES`] times.
fn passes_note(config: &RunConfig, basis: &Basis) -> Option<String> {
    let passes = basis.passes(tokens(config))?;
    (passes > MOST_PASSES).then(|| {
        format!(
            "note: the run passes {} times over its training tokens, {}; give more with `--data`",
            si(passes),
            config.data.source
        )
    })
}

/// Returns the [`passes_note`] of the run with the most passes. With several runs, the note names this run.
fn passes_note_of(runs: &[(String, RunConfig)], bases: &[Basis]) -> Option<String> {
    let passes = |((_, config), basis): &(&(String, RunConfig), &Basis)| {
        basis.passes(tokens(config)).unwrap_or(0.0)
    };
    let most = runs.iter().zip(bases);
    let most = most.max_by(|a, b| passes(a).total_cmp(&passes(b)));
    let ((name, config), basis) = most?;
    let note = passes_note(config, basis)?;
    Some(match runs.len() {
        1 => note,
        _ => note.replacen("the run", name, 1),
    })
}

/// Returns the number of tokens, or images, that a run trains on.
fn tokens(config: &RunConfig) -> f64 {
    config.train.steps as f64 * config.tokens_per_step() as f64
}

/// Returns the words before the token counts of a step and of a run: `at most ` if a curriculum begins with shorter
/// sequences.
fn at_most(config: &RunConfig) -> &'static str {
    match &config.data.source {
        Source::Copying(copying) if copying.last_level() > 0 => "at most ",
        _ => "",
    }
}

/// Returns a note if the memory estimate of a model is too low.
fn memory_note(config: &RunConfig) -> Option<&'static str> {
    let (PlacedConnection::PerSublayer(connection) | PlacedConnection::PerLayer(connection)) =
        config.model.connection.as_ref()?;
    matches!(connection, ConnectionConfig::AttentionResidual(_)).then_some(
        "note: each read of an attention residual copies all earlier outputs, so the memory of a deep model is estimated far \
         too low: a third of the peak at 24 layers",
    )
}

/// Maximum number of passes over the training tokens for which no note is printed.
const MOST_PASSES: f64 = 100.0;

/// Returns the name of the run in the directory `run`: the last part of its path.
fn name_of_run(run: &Path) -> anyhow::Result<String> {
    let path = std::path::absolute(run)?;
    let name = path.file_name().unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// Returns a name for the run file CONFIG: `gpt2-smoke` for `experiments/gpt2/smoke.ron`.
fn name_of(config: &Path) -> String {
    let stem = |path: Option<&std::ffi::OsStr>| path.map(|p| p.to_string_lossy().into_owned());
    let family = config.parent().and_then(|parent| stem(parent.file_name()));
    let config = builtin::without_ending(config);
    let name = [family, stem(config.file_name())].into_iter().flatten();
    name.collect::<Vec<_>>().join("-")
}

/// Returns the default run directory for CONFIG: `runs/gpt2-smoke` for `gpt2/smoke`.
fn default_directory(config: &Path) -> PathBuf {
    PathBuf::from("runs").join(name_of(config))
}
