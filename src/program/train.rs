//! `residual-zoo train`

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum};
use residual_zoo::backend::BackendKind;
use residual_zoo::cli::{self, BackendArgs, DataArgs, DisplayArgs};
use residual_zoo::core::{ConfigError, ModelConfig as _, Precision, Transfer as _, Vocabulary};
use residual_zoo::data::{Corpus, DataError, Examples, Source};
use residual_zoo::drive::{
    Basis, Error as DriveError, Place, Use, available_memory, check_memory, check_precision,
    check_size, open_corpus, usual_precision,
};
use residual_zoo::report::{duration, si};
use residual_zoo::runs::{Choice, checkpoint, run_dir, vocabulary};
use residual_zoo::train::dashboard::{Display, Title, Unit, at_step, describe_loss};
use residual_zoo::train::team::{self, Team};
use residual_zoo::train::{FirstWeights, Interrupter, RunOptions, Summary};
use residual_zoo::{ModelConfig, RunConfig, Zoo};
use residual_zoo_system::console::print;
use residual_zoo_system::counted;
use residual_zoo_system::signals::on_stop;
use residual_zoo_system::team::{Membership, join, local_rank};

use super::{
    Untrained, at_most, check_paths, default_directory, name_of, note_edited, notes, or_force,
    paths_of_no_run, read_config, tokens, with_tokenizer_beside,
};

/// Train a model
///
/// The model, the data and the schedule come from a RON file; every field can be set on the
/// command line. Ctrl-C stops after the current step and saves. The same command, or --resume with
/// the run's directory, continues from the last checkpoint.
#[derive(Args, Debug)]
#[command(
    after_long_help = "Examples:
  residual-zoo train gpt2/smoke
  residual-zoo train gpt2/shakespeare-cpu \\
    --data my-text.txt --run runs/my-text \\
    --set train.steps=500
  residual-zoo train --resume runs/gpt2-smoke \\
    --set train.steps=2000",
    override_usage = "residual-zoo train [OPTIONS] <CONFIG>\n       residual-zoo train [OPTIONS] --resume <RUN>"
)]
pub struct TrainArgs {
    /// The RON file, or the name of one in `residual-zoo list runs`
    #[arg(required_unless_present = "resume", conflicts_with = "resume")]
    config: Option<PathBuf>,
    /// Resume the run in this directory with its own config
    #[arg(long, value_name = "RUN", conflicts_with_all = ["run", "init_from"])]
    resume: Option<PathBuf>,
    /// Only check the config, the data, the first weights and an existing run, and print parameters, tokens and passes;
    /// nothing is trained, and nothing is written except the tokens in the cache
    #[arg(long)]
    check: bool,
    /// Continue even if config, data or backend have changed (noted in history.jsonl)
    #[arg(long)]
    allow_config_change: bool,
    /// Follow the paths in the config of RUN, wherever they lead; only for runs that you trust
    #[arg(long)]
    allow_paths: bool,
    /// Train even if this machine's memory cannot hold the model or a step
    #[arg(long)]
    force: bool,
    /// Set a field, such as train.steps=100 or model.n_layer=2; repeat it for several. `residual-zoo describe CONFIG`
    /// shows all fields
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// The run directory; an existing run continues [default: runs/ and the name of the RON file]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Start from the weights of another run, by default of its newest checkpoint. The other run may be of a smaller
    /// TokenFormer or, with --init-by grow-fresh, of a narrower GPT-2; a TokenFormer can start from a GPT-2 of the same
    /// sizes
    #[arg(long, value_name = "RUN")]
    init_from: Option<PathBuf>,
    /// The checkpoint of --init-from: a number of steps, `best` (the lowest validation loss) or `newest`
    #[arg(long, value_name = "STEP|best|newest", requires = "init_from", default_value_t = Choice::Newest)]
    init_checkpoint: Choice,
    /// The way in which the weights of --init-from become the first weights
    #[arg(long, value_name = "HOW", value_enum, requires = "init_from", default_value_t = InitBy::Grow)]
    init_by: InitBy,
    /// Train only new parameter tokens of a TokenFormer: N in each of Q, K, V and O, and M in the feed-forward network
    /// (N without M). All weights of --init-from stay as they are
    #[arg(long, value_name = "new_tokens=N[,M]", requires = "init_from")]
    tune: Option<String>,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

/// Returns the number of frozen parameters of a tuned model, or `None` for other models.
fn frozen(config: &RunConfig, vocabulary: Vocabulary) -> Option<usize> {
    let field = config.model.tuned()?;
    let plain = config.clone().set(&[format!("model.{field}=None")]).ok()?;
    Some(plain.model.cost(vocabulary).params.total())
}

/// Checks that `model` is a TokenFormer with plain connections. If the run `first` provides its weights, also checks
/// that the weights belong to such a TokenFormer, and that this TokenFormer has not been tuned.
fn check_tune(model: &ModelConfig, first: Option<&Path>) -> anyhow::Result<()> {
    let wrong = |problem: String| Err(ConfigError::new("--tune", problem).into());
    if !matches!(model.plain(), Some(Zoo::TokenFormer(_))) {
        let name = model.name();
        return wrong(format!(
            "needs a TokenFormer with plain connections, but the model is {name}"
        ));
    }
    let Some(run) = first else { return Ok(()) };
    let first = run_dir::read_config::<ModelConfig>(run)?.model;
    if first.tuned().is_some() {
        let run = cli::quoted_path(run);
        return wrong(format!(
            "adds new tokens, but {run} has been tuned already; to train it further, give `{run}/config.ron --init-from {run}` without --tune"
        ));
    }
    match first.plain() {
        Some(Zoo::TokenFormer(_)) => Ok(()),
        _ => wrong(format!(
            "needs the weights of a TokenFormer, but --init-from has the weights of {}",
            first.name()
        )),
    }
}

/// Returns the assignment for a value of `--tune`, such as `new_tokens=8,32`.
fn added_tokens(tune: &str) -> Result<String, ConfigError> {
    let wrong = || {
        let problem = format!(
            "is `{tune}`; give the number of new tokens, as in new_tokens=8 or new_tokens=8,32"
        );
        ConfigError::new("--tune", problem)
    };
    let sizes = tune.strip_prefix("new_tokens=").ok_or_else(wrong)?;
    let (attn, ffn) = sizes.split_once(',').unwrap_or((sizes, sizes));
    let size = |text: &str| match text.parse::<usize>() {
        Ok(size) if size > 0 => Ok(size),
        _ => Err(wrong()),
    };
    Ok(format!(
        "model.added=(attn: {}, ffn: {})",
        size(attn)?,
        size(ffn)?
    ))
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum InitBy {
    /// Keep the weights and the optimizer's moments; a larger TokenFormer appends new weights
    Grow,
    /// Keep the weights, start with fresh moments; for a wider GPT-2, Net2Net widens the weights
    GrowFresh,
}

impl From<InitBy> for FirstWeights {
    fn from(by: InitBy) -> Self {
        match by {
            InitBy::Grow => Self::Grow,
            InitBy::GrowFresh => Self::GrowFresh,
        }
    }
}

pub fn train(options: TrainArgs) -> anyhow::Result<()> {
    let membership = join()?;
    let team = membership.as_ref().map(Membership::team);
    match team.filter(|team| !team.leads()) {
        None => lead(options, team),
        Some(team) => {
            let followed = follow(&options, team);
            if let Err(error) = &followed {
                // The other processes wait for this one, so this error ends all of them.
                cli::report(Err(anyhow!(
                    "rank {} of {}: {error:#}",
                    team.rank(),
                    team.size()
                )));
                team.abort(1);
            }
            followed
        }
    }
}

/// Trains as one of the processes that follow the leader.
fn follow(options: &TrainArgs, team: Team) -> anyhow::Result<()> {
    // The leader gets the signal too, and ends this process after saving.
    on_stop(|_| {})?;
    let Some(start) = team::start::<ModelConfig>(team) else {
        return Ok(());
    };
    let corpus = open_corpus(&start.config.data, &Interrupter::new())?;
    let (kind, gpu) = device(options, Some(team))?;
    Ok(residual_zoo::drive::follow(
        kind,
        gpu,
        (team, start),
        &corpus,
    )?)
}

/// Returns the backend and the GPU. If several processes work on GPUs and no GPU is named, each takes the GPU whose
/// index is the process's index on its machine.
fn device(options: &TrainArgs, team: Option<Team>) -> anyhow::Result<(BackendKind, Option<usize>)> {
    let (kind, gpu) = options.backend.device()?;
    let is_gpu = gpu.is_some() || !kind.has_cpu();
    let own = team.and_then(|_| local_rank()).filter(|_| is_gpu);
    Ok((kind, options.backend.named_gpu().or(own).or(gpu)))
}

/// Trains as the only process, or as the leader of `team`.
fn lead(options: TrainArgs, team: Option<Team>) -> anyhow::Result<()> {
    if options.allow_paths && options.resume.is_none() {
        return Err(paths_of_no_run().into());
    }
    let (config, directory) = match (&options.config, &options.resume) {
        (Some(file), None) => {
            let directory = options
                .run
                .clone()
                .unwrap_or_else(|| default_directory(file));
            if file.join(run_dir::CONFIG).exists() {
                let run = cli::quoted_path(file);
                let problem = format!(
                    "is a run; continue it with `residual-zoo train --resume {run}`, or give its config.ron"
                );
                return Err(ConfigError::new(file.display().to_string(), problem).into());
            }
            (read_config(file)?, directory)
        }
        (_, Some(run)) => {
            let config = run_dir::read_config(run)?;
            (
                with_tokenizer_beside(config, &run.join("config.ron"))?,
                run.clone(),
            )
        }
        (None, None) => bail!("give a RON file, or `--resume RUN`"),
    };
    let mut config = config.set(&options.set)?;
    if let Some(tune) = &options.tune {
        cli::refuse_doubled("--tune", "model.added", &options.set)?;
        check_tune(&config.model, options.init_from.as_deref())?;
        config = config.set(&[added_tokens(tune)?])?;
    }
    let is_imported = config.data.source == Source::Imported;
    let resumed = options.resume.as_ref();
    if let Some((run, untrained)) =
        resumed.and_then(|run| Some((run, Untrained::of(run, &config)?)))
    {
        let problem = format!(
            "{untrained} and has not been trained since, so there is no training to continue; start another run from it: {}",
            untrained.command(run)
        );
        return Err(ConfigError::new(format!("--resume {}", run.display()), problem).into());
    }
    let is_new = options.resume.is_none() && !directory.join("config.ron").exists();
    if let (Some(field), None, true) = (config.model.tuned(), &options.init_from, is_new) {
        let problem = "is set, so all other weights are frozen and would stay random; give the model to tune with --init-from";
        return Err(ConfigError::new(format!("model.{field}"), problem).into());
    }
    options.data.apply(&mut config.data, &options.set)?;
    if is_imported && config.data.source != Source::Imported && options.init_from.is_none() {
        cli::warn("the weights are random; --init-from RUN loads the imported weights");
    }
    if let Some(run) = options.resume.as_ref().filter(|_| !options.allow_paths) {
        check_paths(run, &config.data, &options.data)?;
    }
    if let Some(run) = &options.init_from {
        note_edited(run);
    }
    let (kind, gpu) = device(&options, team)?;
    check_precision(kind, gpu, config.train.precision)?;
    let stop = cli::stop_on_signal()?;
    let corpus = open_corpus(&config.data, &stop).map_err(|error| match (error, resumed) {
        (DataError::NotFound { path }, Some(run)) if options.data.data.is_none() => {
            let problem = format!(
                "`{}`, the data of the run, does not exist here; continue it in the directory in which it began, or give \
                 `--data PATH`",
                path.display()
            );
            ConfigError::new(format!("--resume {}", run.display()), problem).into()
        }
        (error, _) => anyhow::Error::from(error),
    })?;
    config.validate(vocabulary(&corpus))?;
    if !options.force {
        let checked = check_size(&config, vocabulary(&corpus), (kind, gpu), Use::Train);
        checked.map_err(or_force)?;
        let available = available_memory();
        let checked = check_memory(&config, vocabulary(&corpus), (kind, gpu), available);
        checked.map_err(or_force)?;
    }
    let mut notes = notes(&config, &Basis::of_corpus(&corpus));
    notes.extend(precision_note(&config, kind));
    let display = options.display.display();
    let run_options = RunOptions {
        display,
        title: Title {
            run: options.config.as_deref().map(name_of),
            ..Title::default()
        },
        peak_tflops: options.display.peak_tflops,
        init_from: options.init_from.map(|run| (run, options.init_by.into())),
        init_checkpoint: options.init_checkpoint,
        notes,
        allow_config_change: options.allow_config_change,
        stop,
        team,
        ..RunOptions::new(directory)
    };
    let place = Place {
        kind,
        gpu,
        precision: config.train.precision,
    };
    if options.check {
        let described = describe(&config, &corpus, place);
        residual_zoo::experiment::check_start(kind, gpu, config, &corpus, &run_options)?;
        for line in described.lines() {
            cli::print(&cli::wrapped(line, "  "))?;
        }
        for note in &run_options.notes {
            cli::print(&cli::wrapped(note, ""))?;
        }
        return Ok(());
    }
    // The dashboard restores the screen, so these lines stay above later output.
    if display != Display::Quiet {
        for line in describe(&config, &corpus, place).lines() {
            print(&cli::wrapped(line, "  "));
        }
        if let Some(team) = team {
            print(&format!("{} processes", team.size()));
        }
        print(&format!(
            "run directory: {}",
            run_options.directory.display()
        ));
    }
    let summary = residual_zoo::experiment::train(kind, gpu, config, &corpus, &run_options)?;

    print(&cli::wrapped(&describe_end(&summary, &corpus), "  "));
    print(&format!("checkpoint: {}", summary.checkpoint.display()));
    let directory = cli::quoted_path(&run_options.directory);
    if display != Display::Quiet && corpus.valid.text().is_some() {
        print(&format!("sample it: residual-zoo generate {directory}"));
    }
    if summary.stopped {
        let problem = format!("repeat the command, or use `--resume {directory}`");
        return Err(DriveError::Stopped(problem).into());
    }
    // A row leaves out a loss that is not finite.
    let is_validated = summary.rows.iter().any(|row| row.valid_accuracy.is_some());
    if is_validated && !summary.valid_loss.is_finite() {
        bail!(
            "the last validation loss is not finite, so the weights are ruined; try a lower \
             `train.learning_rate` or a longer `train.warmup`"
        );
    }
    let starts = run_dir::read_history(&run_options.directory).unwrap_or_default();
    let is_fresh = starts
        .first()
        .is_some_and(|first| first.init_from.is_none());
    // A model that only overfits still has a low training loss, so the smaller of the two losses counts.
    let least = summary.train_loss.min(summary.valid_loss);
    if let Some(first) = first_loss(&summary).filter(|first| is_fresh && least > *first) {
        cli::warn(&format!(
            "note: the run diverged: the validation loss rose from {first:.2} to {:.2}; try a lower `train.learning_rate` \
             or a longer `train.warmup`",
            summary.valid_loss
        ));
    }
    Ok(())
}

/// Returns the validation loss before the first step.
fn first_loss(summary: &Summary) -> Option<f64> {
    let first = summary.rows.first().filter(|row| row.step == 0)?;
    first.valid_loss
}

/// Describes the end of the run, and the last validation.
fn describe_end(summary: &Summary, corpus: &Corpus) -> String {
    let seconds = summary.rows.last().map_or(0.0, |row| row.seconds);
    let time = duration(Duration::from_secs_f64(seconds));
    let step = checkpoint::step_of(&summary.checkpoint);
    let end = match (summary.stopped, step) {
        (true, Some(step)) => format!("stopped after {time} at step {step}"),
        (true, None) => format!("stopped after {time}"),
        (false, _) => format!("trained for {time}"),
    };
    let validated = summary
        .rows
        .iter()
        .rev()
        .find(|row| row.valid_accuracy.is_some());
    let Some(row) = validated else {
        return format!("{end}: not validated yet");
    };
    let loss = row.valid_loss.unwrap_or(f64::NAN);
    let shown = describe_loss(loss, row.valid_accuracy, Unit::of(corpus));
    let above = corpus.entropy.map(|entropy| {
        let above = 100.0 * (loss / entropy.rate - 1.0);
        format!(", {above:.1} % above the entropy rate {:.4}", entropy.rate)
    });
    let above = above.unwrap_or_default();
    // A run seldom stops at a validation step.
    let last = if step == Some(row.step) { "" } else { "last " };
    let shown = at_step(&shown, row.step);
    format!("{end}: {last}validation loss {shown}{above}")
}

/// Returns a note if a run sets no precision and the backend's default is not f32.
fn precision_note(config: &RunConfig, kind: BackendKind) -> Option<String> {
    let usual = usual_precision(kind);
    (config.train.precision.is_none() && usual != Precision::F32).then(|| {
        format!("note: products are in {usual}, the default of the backend {kind}; train.precision sets another")
    })
}

/// Returns the lines that are printed before a run trains.
fn describe(config: &RunConfig, corpus: &Corpus, place: Place) -> String {
    let basis = Basis::of_corpus(corpus);
    let cost = config.model.cost(basis.vocabulary);
    let parameters = si(cost.params.total() as f64);
    // `cost` does not count frozen weights.
    let parameters = match frozen(config, basis.vocabulary) {
        None => format!("{parameters} parameters"),
        Some(frozen) => {
            let all = si((frozen + cost.params.total()) as f64);
            format!("{parameters} parameters that are trained of {all}")
        }
    };
    let count = |examples: &Examples| Some(si(examples.tokens()? as f64));
    let unit = Unit::of(corpus);
    let units = unit.name();
    let one = units.trim_end_matches('s');
    let examples = match (count(&corpus.train), count(&corpus.valid)) {
        (Some(train), Some(valid)) => format!("{train} training and {valid} validation {units}"),
        _ => "newly drawn for every batch".into(),
    };
    let most = at_most(config);
    let passes = basis.passes(tokens(config));
    let passes = passes.map_or(String::new(), |passes| {
        let word = if passes == 1.0 { "pass" } else { "passes" };
        format!(", {} {word} over the training {units}", si(passes))
    });
    let train = &config.train;
    let lines = [
        format!(
            "{} on {}{place}: {parameters} for {basis}, {} of them non-embedding",
            config.model.name(),
            place.kind,
            si(cost.params.other as f64),
        ),
        format!("{}: {examples}", config.data.source),
        format!(
            "{} of {most}{}: {most}{}{passes}",
            counted(train.steps, "step"),
            counted(si(config.tokens_per_step() as f64), one),
            counted(si(tokens(config)), one),
        ),
    ];
    lines.join("\n")
}
