//! The entry points of all programs. This crate compiles the code that is generic over the model config, so that it is
//! compiled once for all programs.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use residual_zoo_backend::BackendKind;
use residual_zoo_cli::{CompareArgs, ExperimentArgs, Source, SweepArgs};
use residual_zoo_core::{ConfigError, Vocabulary};
use residual_zoo_data::Corpus;
use residual_zoo_drive::{Bench, Classified, Depths, Error as DriveError, Place, Trial};
use residual_zoo_evaluate::{Options as EvaluateOptions, Results as Evaluated, Task};
use residual_zoo_lab::{Error, ExperimentFile, Options, Results};
use residual_zoo_runs::generate::Sampling;
use residual_zoo_runs::{Run, parse_ron};
use residual_zoo_serve::Options as ServeOptions;
use residual_zoo_train::{Interrupter, RunOptions, Summary};

use crate::{ConnectionConfig, ModelConfig, RunConfig, builtin};

/// An experiment on models of the zoo.
pub type Experiment = residual_zoo_lab::Experiment<ModelConfig>;
/// A run of an [`Experiment`].
pub type PlannedRun = residual_zoo_lab::PlannedRun<ModelConfig>;

/// Trains a model on the backend `kind`; see [`residual_zoo_train::run`].
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_train::run`], and an error if the backend cannot be used.
pub fn train(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig,
    corpus: &Corpus,
    options: &RunOptions,
) -> Result<Summary, DriveError> {
    residual_zoo_drive::train(kind, gpu, config, corpus, options)
}

/// Checks that a run can begin or continue, and writes nothing; see [`residual_zoo_drive::check_start`].
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_drive::check_start`].
pub fn check_start(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig,
    corpus: &Corpus,
    options: &RunOptions,
) -> Result<(), DriveError> {
    residual_zoo_drive::check_start(kind, gpu, config, corpus, options)
}

/// Times optimizer steps on the backend `kind` and measures their memory; see [`residual_zoo_drive::time`]. `steps` is
/// `(warmup, steps)`.
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_train::bench::time_steps`], and an error if the backend cannot be used.
pub fn time(
    kind: BackendKind,
    gpu: Option<usize>,
    config: RunConfig,
    corpus: &Corpus,
    steps: (usize, usize),
) -> Result<Bench, DriveError> {
    residual_zoo_drive::time(kind, gpu, config, corpus, steps)
}

/// Estimates the memory, in bytes, for training the model of `config` with this vocabulary. The estimate is
/// extrapolated from steps of smaller copies on the backend `kind`. Returns `None` if the backend does not count
/// memory.
///
/// # Errors
///
/// Returns the errors of [`Trial::new`] and [`Trial::peaks`].
pub fn estimate_memory(
    kind: BackendKind,
    gpu: Option<usize>,
    config: &RunConfig,
    vocabulary: Vocabulary,
) -> Result<Option<u64>, DriveError> {
    let trial = Trial::new(config, vocabulary)?;
    let peaks = trial.peaks(kind, gpu)?;
    Ok(peaks.map(|peaks| trial.whole(&peaks)))
}

/// Prints text from the model of a run; see [`residual_zoo_drive::generate`].
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_drive::generate`].
pub fn generate(
    run: Run<ModelConfig>,
    prompts: &[Option<&str>],
    tokens: usize,
    sampling: Sampling,
    place: impl Into<Place>,
) -> Result<(), DriveError> {
    residual_zoo_drive::generate(run, prompts, tokens, sampling, place)
}

/// Merges the models of two runs into a new run; see [`residual_zoo_drive::merge`].
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_drive::merge`].
pub fn merge(
    runs: (&Path, &Path),
    directory: &Path,
    value_scale: f64,
    backend: (BackendKind, Option<usize>),
) -> Result<(String, usize), DriveError> {
    residual_zoo_drive::merge::<ModelConfig>(runs, directory, value_scale, backend)
}

/// Evaluates a run; see [`residual_zoo_drive::evaluate`].
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_drive::evaluate`].
pub fn evaluate(
    run: &Run<ModelConfig>,
    tasks: &[Task],
    options: &EvaluateOptions,
    place: impl Into<Place>,
    stop: &Interrupter,
) -> Result<Vec<Evaluated>, DriveError> {
    residual_zoo_drive::evaluate(run, tasks, options, place, stop)
}

/// Classifies the validation images of a run; see [`residual_zoo_drive::classify`].
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_drive::classify`].
pub fn classify(
    run: &Run<ModelConfig>,
    corpus: &Corpus,
    directory: &Path,
    how: (usize, &Interrupter),
    place: impl Into<Place>,
) -> Result<Classified, DriveError> {
    residual_zoo_drive::classify(run, corpus, directory, how, place)
}

/// Returns the depth maps of a run; see [`residual_zoo_drive::depth`].
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_drive::depth`].
pub fn depth(
    run: &Run<ModelConfig>,
    corpus: &Corpus,
    sequences: Option<usize>,
    place: impl Into<Place>,
    stop: &Interrupter,
) -> Result<Depths, DriveError> {
    residual_zoo_drive::depth(run, corpus, sequences, place, stop)
}

/// Serves a run; see [`residual_zoo_drive::serve`].
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_drive::serve`].
pub fn serve(
    run: &Run<ModelConfig>,
    options: &ServeOptions,
    place: impl Into<Place>,
    stop: &Interrupter,
    ready: impl FnOnce(SocketAddr, &Path),
) -> Result<(), DriveError> {
    residual_zoo_drive::serve(run, options, place, stop, ready)
}

/// Returns the models of `experiments/compare`, by name, with the assignments in `set` applied, such as
/// `train.steps=100`.
///
/// # Errors
///
/// Returns an error if a run file does not parse, or if an assignment does not fit the config.
pub fn compared(set: &[String]) -> Result<Vec<(String, RunConfig)>, Error> {
    let names = [
        "gpt2",
        "rmt",
        "laurel",
        "tokenformer",
        "recurrent",
        "laurel-rmt",
        "llama",
    ];
    let parse = |name: &str| {
        let path = Path::new("compare").join(name);
        let text = builtin::run_file(&path).unwrap_or_default();
        let config = RunConfig::parse(text, &path)?.set(set);
        let config = config.map_err(|error| Error::from(error).in_file(&path))?;
        Ok((name.to_owned(), config))
    };
    names.into_iter().map(parse).collect()
}

/// Returns the GPT-2 of `experiments/compare` with each connection, all at one learning rate. The assignments in `set`,
/// such as `model.n_layer=4`, change every config.
///
/// # Errors
///
/// Returns an error if a config does not parse, or if an assignment does not fit the config.
pub fn compared_connections(set: &[String]) -> Result<Vec<(String, RunConfig)>, Error> {
    let path = Path::new("compare/gpt2");
    let plain = RunConfig::parse(builtin::run_file(path).unwrap_or_default(), path)?.set(set);
    with_connections(plain.map_err(|error| Error::from(error).in_file("None".as_ref()))?)
}

/// The name of the plain model in a comparison of connections.
pub const PLAIN: &str = "None";

/// Returns the run `plain` under the name [`PLAIN`], and for each connection the same run with this connection, under
/// the connection's name.
///
/// # Errors
///
/// Returns an error if `plain` has a connection already.
pub fn with_connections(plain: RunConfig) -> Result<Vec<(String, RunConfig)>, Error> {
    if plain.model.connection.is_some() {
        let problem = "is set, but it is what `--connections` compares; leave it out";
        return Err(ConfigError::new("model.connection", problem).into());
    }
    let width = residual_zoo_core::ModelConfig::shape(&plain.model)
        .width
        .to_string();
    let with = |(name, placed): (String, String)| {
        let connection = parse_ron(&placed.replace("WIDTH", &width), name.as_ref())?;
        let mut config = plain.clone();
        config.model.connection = Some(connection);
        Ok((name, config))
    };
    let compared = ConnectionConfig::NAMES.iter().flat_map(|(name, _)| {
        let own = CONNECTIONS
            .iter()
            .filter(|(label, _)| label.split(',').next() == Some(name));
        let own: Vec<_> = own
            .map(|(label, placed)| ((*label).into(), (*placed).into()))
            .collect();
        match own.is_empty() {
            true => vec![((*name).into(), format!("PerSublayer({name}())"))],
            false => own,
        }
    });
    let plain = Ok((PLAIN.to_owned(), plain.clone()));
    std::iter::once(plain).chain(compared.map(with)).collect()
}

/// Connections whose place or settings differ from `PerSublayer(Name())` in the comparison. Each is placed as in its
/// paper, with settings for a short run of a small model. Like the baseline, they have no biases. Their inner layers
/// are as wide as the stream: `WIDTH`.
const CONNECTIONS: &[(&str, &str)] = &[
    ("Laurel", "PerSublayer(Laurel(weights: DoubleSoftmax))"),
    ("DeepNorm", "PerSublayer(DeepNorm(norm: Scale))"),
    ("InitialMix", "PerLayer(InitialMix())"),
    (
        "SelfDependency",
        "PerSublayer(SelfDependency(norm: Pre, bias: false))",
    ),
    ("DepthLstm", "PerSublayer(DepthLstm(bias: false))"),
    ("DepthLstmCell", "PerSublayer(DepthLstmCell(bias: false))"),
    ("Tree", "PerLayer(Tree(d_ff: WIDTH, bias: false))"),
    ("Iterative", "PerLayer(Iterative(d_ff: WIDTH, bias: false))"),
    ("Dense", "PerLayer(Dense())"),
    (
        "Hyper, static",
        "PerSublayer(Hyper(n: 4, dynamic: false, norm: Scale))",
    ),
    ("Hyper", "PerSublayer(Hyper(n: 4, norm: Scale))"),
    ("Mhc", "PerSublayer(Mhc(n: 4))"),
    ("Skips", "PerLayer(Skips())"),
    (
        "Speedrun",
        "PerSublayer(Speedrun(smear: (channels: 12), backout: None))",
    ),
    (
        "Delta",
        "PerSublayer(Delta(channels: 4, norm: Layer(params: Scale, eps: 1e-5)))",
    ),
    (
        "NormPlacement",
        "PerSublayer(NormPlacement(norm: Layer(params: Scale, eps: 1e-5)))",
    ),
    (
        "Siamese",
        "PerSublayer(Siamese(norm: Layer(params: Scale, eps: 1e-5)))",
    ),
    (
        "Mudd",
        "PerSublayer(Mudd(norm: Layer(params: Scale, eps: 1e-5)))",
    ),
    (
        "HybridNorm",
        "PerSublayer(HybridNorm(norm: Layer(params: Scale, eps: 1e-5)))",
    ),
];

/// Trains and compares the named models, with the program's options. `models` returns the models for the assignments of
/// `--set`. `command` is the command that repeats the comparison.
///
/// # Errors
///
/// Returns the errors of [`CompareArgs::run`].
pub fn compare_with<E: From<Error>>(
    options: &CompareArgs,
    models: impl FnOnce(&[String]) -> Result<Vec<(String, RunConfig)>, E>,
    command: String,
) -> Result<(), E> {
    options.run(models, command)
}

/// Runs the program of the example `compare`.
pub fn compare_main() -> ExitCode {
    /// Train seven models on the same data and budget; print a table, write a report.
    ///
    /// The data are a synthetic language whose entropy is known exactly. The comparison needs no file and no network,
    /// and takes about two and a half minutes on two CPU cores. Ctrl-C stops and saves. The same command continues and
    /// skips finished models.
    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: CompareArgs,
    }
    residual_zoo_cli::start();
    let options = match residual_zoo_cli::options::<Program>() {
        Ok(program) => program.options,
        Err(code) => return code,
    };
    let command = residual_zoo_cli::command(
        "cargo run --release --example compare --",
        residual_zoo_cli::arguments(),
    );
    let done: Result<(), Error> = compare_with(&options, compared, command);
    residual_zoo_cli::report(done.map_err(Into::into))
}

/// Sweeps the runs of `experiment`, which is called `name`, with the program's options.
///
/// # Errors
///
/// Returns the errors of [`SweepArgs::run`].
pub fn sweep_with(options: &SweepArgs, experiment: Experiment, name: &str) -> Result<(), Error> {
    options.run(experiment, name, COMMIT)
}

/// Runs the experiment in a RON text; see [`residual_zoo_lab::run_experiment`].
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_lab::run_experiment`].
pub fn run_experiment(
    text: &str,
    path: &Path,
    seeds: Option<u64>,
    options: &Options,
) -> Result<Results, Error> {
    residual_zoo_lab::run_experiment::<ModelConfig>(text, path, seeds, options)
}

/// Runs the experiment called `name`, or the experiment in the RON file `name`, with the program's options.
///
/// # Errors
///
/// Returns an error if `name` is neither an experiment nor the file of one, and the errors of [`ExperimentArgs::run`].
pub fn run_named(name: &str, options: &ExperimentArgs) -> Result<(), Error> {
    let path = Path::new(name);
    let source = match builtin::experiments().find(|source| source.name == name) {
        Some(source) => source,
        None if path.extension().is_some() || path.symlink_metadata().is_ok() => {
            let source = Source::read(path)?;
            if ExperimentFile::is_run(&source.text) {
                let problem = format!("is a run file; train it with `residual-zoo train {name}`");
                return Err(ConfigError::new(name, problem).into());
            }
            source
        }
        None if builtin::run_files().any(|(run, _)| run == name) => {
            let problem = format!("is a run; train it with `residual-zoo train {name}`");
            return Err(ConfigError::new(name, problem).into());
        }
        None => {
            let known = builtin::experiments().map(|source| source.name);
            let meant = residual_zoo_runs::did_you_mean(name, known);
            let problem = format!(
                "is neither a file nor an experiment of the zoo{meant}; `residual-zoo list experiments` shows them"
            );
            return Err(ConfigError::new(name, problem).into());
        }
    };
    let program =
        residual_zoo_cli::command("residual-zoo experiment", std::iter::once(name.to_owned()));
    options.run::<ModelConfig>(&source, &program, COMMIT)
}

/// Runs the program of the experiment `name`; see [`experiment!`](macro@crate::experiment).
pub fn experiment_main(name: &str) -> ExitCode {
    match builtin::experiments().find(|source| source.name == name) {
        Some(source) => residual_zoo_cli::experiment_main::<ModelConfig>(&source, COMMIT),
        None => unreachable!("there is no experiment {name}"),
    }
}

/// The commit from which the program was built.
pub const COMMIT: &str = env!("ZOO_COMMIT");

/// Defines the program of the experiment in `experiments/…/$name.ron`. Expands to `main` and the allocator that counts
/// memory.
#[macro_export]
macro_rules! experiment {
    ($name:literal) => {
        #[global_allocator]
        static MEMORY: $crate::backend::PeakAlloc = $crate::backend::PeakAlloc;

        fn main() -> std::process::ExitCode {
            $crate::experiment::experiment_main($name)
        }
    };
}
