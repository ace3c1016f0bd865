//! What the experiments share: from a suite at a scale to its report.
#![allow(dead_code)]

mod memory;
mod origin;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::{Parser, ValueEnum};
use residual_zoo::backend::{BackendError, BackendKind};
use residual_zoo::core::ConfigError;
use residual_zoo::data::{Corpus, DataConfig, Source};
use residual_zoo::experiment::{self, Planned, Suite};
use residual_zoo::train::compare::to_text;
use residual_zoo::train::dashboard::{Display, print};
use residual_zoo::train::suite::{Observation, Origin, Outcome, SuiteOptions, Verdict};

use memory::{Peak, try_models};

use crate::common::{self, BackendArgs, DataArgs, DisplayArgs};

/// An experiment of a paper at its three scales.
pub struct Experiment {
    /// Its name, that of the example.
    pub name: &'static str,
    /// The RON files of the scales smoke, cpu and paper.
    pub suites: [&'static str; 3],
    /// What it measures beside what every run has.
    pub measure: Option<Measure>,
}

/// What an experiment measures itself.
#[derive(Clone, Copy)]
pub struct Measure {
    /// The names of the quantities.
    pub names: &'static [&'static str],
    /// Whether it draws at random: then it is measured for every seed.
    pub is_random: bool,
    /// Whether it reads the data of the suite, which [`Source`] and `--data` name.
    pub reads_data: bool,
    /// Measures a run.
    pub of: fn(&Planned, &Setting) -> anyhow::Result<Quantities>,
}

/// What all runs of a measurement have in common.
pub struct Setting<'a> {
    /// Token ids.
    pub vocab_size: usize,
    /// Seed, where it draws at random.
    pub seed: u64,
    /// The data of the suite.
    pub data: &'a DataConfig,
    /// On what to compute.
    pub kind: BackendKind,
    /// The index of the GPU, where one was named.
    pub gpu: Option<usize>,
}

/// A number that the suite gives to a run.
///
/// # Errors
///
/// When it does not.
pub fn value(run: &Planned, name: &str) -> anyhow::Result<f64> {
    let found = run.values.get(name).copied();
    found.with_context(|| format!("`{}` has no value `{name}`", run.name))
}

/// Quantities by their names.
pub fn quantities<const N: usize>(named: [(&str, f64); N]) -> Quantities {
    named.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Quantities by name.
pub type Quantities = BTreeMap<String, f64>;

/// The experiment `experiments/$paper/$name`.
macro_rules! experiment {
    ($paper:literal, $name:literal) => {
        experiment!($paper, $name, None)
    };
    ($paper:literal, $name:literal, $measure:expr) => {
        $crate::experiment::run($crate::experiment::Experiment {
            name: $name,
            suites: [
                experiment!(@file $paper, $name, "smoke"),
                experiment!(@file $paper, $name, "cpu"),
                experiment!(@file $paper, $name, "paper"),
            ],
            measure: $measure,
        })
    };
    (@file $paper:literal, $name:literal, $scale:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"), "/experiments/", $paper, "/", $name, "/", $scale, ".ron"
        ))
    };
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// Seconds: whether everything works
    Smoke,
    /// Minutes on two cores, several seeds
    Cpu,
    /// As published, for GPUs
    Paper,
}

/// Repeat an experiment of a paper and set what is measured beside what was printed.
///
/// Writes report.html, results.json, results.csv and results.md. Runs are shared with other
/// experiments and not repeated; Ctrl-C stops and saves, and the same command (without --force)
/// goes on.
#[derive(Parser, Debug)]
struct Options {
    /// How much is trained
    #[arg(long, value_enum, default_value_t = Scale::Smoke)]
    scale: Scale,
    /// The number of seeds, but for runs that have their own [default: what the scale says]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Set a field of every run: train.steps=100, …
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Only the run of this name, or those that have this in their names, and those whose weights
    /// they start from; the report goes to NAME-SCALE-only. Can be given several times
    #[arg(long, value_name = "TEXT", conflicts_with = "publish")]
    only: Vec<String>,
    /// Where runs and reports go
    #[arg(long, value_name = "DIR", default_value = "runs/experiments")]
    runs: PathBuf,
    /// Train everything again
    #[arg(long)]
    force: bool,
    /// Train nothing to its end: two steps of every model at its full shape, but for one sequence
    /// at a time and a small vocabulary, and the memory that it takes
    #[arg(long = "try", conflicts_with_all = ["force", "publish"])]
    only_try: bool,
    /// Write the tables and charts there as well, as NAME.md and NAME-1.svg, …
    #[arg(long, value_name = "DIR")]
    publish: Option<PathBuf>,
    /// Show every run as it trains
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    data: DataArgs,
    /// What to go on with where an experiment goes on with new data: a text file, a directory of
    /// text or JSON lines
    #[arg(long, value_name = "PATH")]
    new_data: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

/// Runs an experiment as its options say.
pub fn run(experiment: Experiment) -> ExitCode {
    common::report(experiment.run(Options::parse()))
}

impl Experiment {
    fn run(&self, options: Options) -> anyhow::Result<()> {
        let file = self.suites[options.scale as usize];
        let scale = options.scale.to_possible_value();
        let scale = scale.map_or(String::new(), |value| value.get_name().to_owned());
        let path = format!("experiments/…/{}/{scale}.ron", self.name);
        let names = self.measure.map_or(&[][..], |measure| measure.names);
        let reads_data = self.measure.is_some_and(|measure| measure.reads_data);
        let mut suite = experiment::open(file, Path::new(&path), names)?;
        if let Some(seeds) = options.seeds {
            ensure!(
                seeds > 0,
                ConfigError::new("--seeds", "is 0; one seed is the least")
            );
            suite.seeds = (1..=seeds).collect();
        }
        let trains = suite.count.is_none();
        if let (Some(path), false) = (&options.data.data, trains || reads_data) {
            let problem = format!("is {path}, but nothing here reads data; leave it out");
            return Err(ConfigError::new("--data", problem).into());
        }
        apply(&options, &mut suite)?;
        let all = experiment::plan(&suite, &options.set)?;
        let planned = only(&options.only, &all)?;
        if let (Some(set), true) = (
            options.set.first(),
            planned.iter().all(|run| run.config.is_none()),
        ) {
            let problem = format!("is {set}, but no run has a configuration; leave it out");
            return Err(ConfigError::new("--set", problem).into());
        }
        let kind = options.backend.kind()?;
        ensure!(kind.is_compiled(), BackendError::NotCompiled(kind));
        if options.only_try && suite.count.is_some() {
            println!("nothing is trained here: there is nothing to try");
            return Ok(());
        }
        if options.only_try {
            return try_models(&planned, kind, options.backend.gpu);
        }
        let origin = Origin {
            name: self.name.into(),
            scale: scale.clone(),
            command: origin::command(self.name, &scale, kind, &options),
            hash: origin::hash(file, &suite, &planned, kind),
            machine: origin::machine(),
            backend: kind.to_string(),
            commit: origin::commit(),
        };
        let mut outcome = match suite.count {
            Some(vocab_size) => {
                let setting = Setting {
                    vocab_size,
                    seed: 0,
                    data: &suite.data,
                    kind,
                    gpu: options.backend.gpu,
                };
                self.count(&suite, &planned, setting)?
            }
            None => train(&suite, &planned, kind, &options)?,
        };

        let failed = outcome.missing.clone();
        let is_left_out = |run: &&Planned| planned.iter().all(|kept| kept.name != run.name);
        for run in all.iter().filter(is_left_out) {
            outcome.missing.push(format!("{}: left out", run.name));
        }
        let results = experiment::results(&suite, &all, outcome.clone(), origin);
        let part = if options.only.is_empty() { "" } else { "-only" };
        let directory = format!("{}-{scale}{part}", self.name);
        let directory = options.runs.join(directory);
        results.write(&directory)?;
        if let Some(publish) = &options.publish {
            results.write_markdown(publish, self.name)?;
        }
        println!("\n{}", to_text(&results.table()));
        for found in results.claims() {
            println!("\n{} ({})", found.claim.says, found.claim.source);
            println!("  {}: {}", found.verdict.name(), found.because);
            if !found.claim.published.is_empty() && found.verdict != Verdict::NotTested {
                println!("  printed: {}", found.claim.published);
            }
        }
        println!("\nreport: {}", directory.join("report.html").display());
        if outcome.stopped && options.force {
            println!("stopped: the same command without --force goes on");
        } else if outcome.stopped {
            println!("stopped: the same command goes on");
        } else if !failed.is_empty() {
            bail!(
                "{} of {} runs are missing: {}",
                failed.len(),
                failed.len() + outcome.observations.len(),
                failed.join("; ")
            );
        }
        Ok(())
    }

    /// Observes what needs no training.
    fn count(
        &self,
        suite: &Suite,
        planned: &[Planned],
        setting: Setting,
    ) -> anyhow::Result<Outcome> {
        let counted = experiment::count(planned, setting.vocab_size);
        let Some(measure) = self.measure else {
            return Ok(Outcome {
                observations: counted,
                ..Outcome::default()
            });
        };
        let mut observations = Vec::new();
        let seeds = match measure.is_random {
            true => suite.seeds.as_slice(),
            false => &suite.seeds[..1],
        };
        for seed in seeds {
            for (run, counted) in planned.iter().zip(&counted) {
                let mut quantities = counted.quantities.clone();
                let seed = *seed;
                quantities.extend((measure.of)(run, &Setting { seed, ..setting })?);
                observations.push(Observation {
                    seed: measure.is_random.then_some(seed),
                    quantities,
                    ..counted.clone()
                });
            }
        }
        Ok(Outcome {
            observations,
            ..Outcome::default()
        })
    }
}

/// The runs that are asked for by their name or a part of it, and those before them.
fn only(asked: &[String], planned: &[Planned]) -> Result<Vec<Planned>, ConfigError> {
    let is_named = |text: &String| planned.iter().any(|run| run.name == *text);
    let is_meant = |run: &Planned, text: &String| match is_named(text) {
        true => run.name == *text,
        false => run.name.contains(text),
    };
    for text in asked {
        if !planned.iter().any(|run| is_meant(run, text)) {
            let names: Vec<&str> = planned.iter().map(|run| run.name.as_str()).collect();
            let names = names.join(", ");
            let problem = format!("is `{text}`, which is in no name of a run: {names}");
            return Err(ConfigError::new("--only", problem));
        }
    }
    let is_asked = |run: &Planned| asked.is_empty() || asked.iter().any(|text| is_meant(run, text));
    let mut kept: Vec<Planned> = Vec::new();
    // What a run starts from comes before it.
    for run in planned.iter().rev() {
        let is_before = |other: &Planned| {
            let after = other.after.as_ref();
            after.is_some_and(|after| after.run == run.name)
        };
        if is_asked(run) || kept.iter().any(is_before) {
            kept.push(run.clone());
        }
    }
    kept.reverse();
    Ok(kept)
}

/// Puts `--data`, `--new-data` and `--tokenizer` into a suite.
fn apply(options: &Options, suite: &mut Suite) -> Result<(), ConfigError> {
    let args = &options.data;
    if args.data.is_some() && matches!(suite.data.source, Source::Copying(_)) {
        let problem = "is given, but this experiment draws its data itself; leave it out";
        return Err(ConfigError::new("--data", problem));
    }
    args.apply(&mut suite.data)?;
    match (&options.new_data, &mut suite.new_data) {
        (Some(path), None) => {
            let path = path.display();
            let problem = format!("is {path}, but no run is on new data; leave it out");
            return Err(ConfigError::new("--new-data", problem));
        }
        (path, Some(data)) => {
            // What was learned of one tokenizer's ids is of no use to another's.
            let tokenizer = DataArgs {
                data: None,
                tokenizer: args.tokenizer.clone(),
            };
            tokenizer.apply(data)?;
            if let Some(path) = path {
                data.source = Source::Path(path.clone());
            }
        }
        (None, None) => {}
    }
    Ok(())
}

fn train(
    suite: &Suite,
    planned: &[Planned],
    kind: BackendKind,
    options: &Options,
) -> anyhow::Result<Outcome> {
    let mut opened: Vec<(DataConfig, Corpus)> = Vec::new();
    let configs: Vec<_> = planned
        .iter()
        .filter_map(|run| run.config.as_ref())
        .collect();
    for config in &configs {
        if !opened.iter().any(|(data, _)| *data == config.data) {
            opened.push((config.data.clone(), common::open_corpus(&config.data)?));
        }
    }
    let corpus = |data: &DataConfig| {
        let found = opened.iter().find(|(known, _)| known == data);
        found
            .map(|(_, corpus)| corpus)
            .context("the data were not opened")
    };
    let corpora = configs.iter().map(|config| corpus(&config.data));
    let corpora = corpora.collect::<anyhow::Result<Vec<&Corpus>>>()?;
    experiment::validate(planned, &corpora)?;
    let suite_options = SuiteOptions {
        pool: options.runs.join("pool"),
        display: match options.watch {
            true => options.display.display(),
            false => Display::Quiet,
        },
        peak_tflops: options.display.peak_tflops,
        backend: device(kind, options.backend.gpu),
        stop: common::stop_on_signal()?,
    };
    if options.force {
        experiment::forget(planned, &suite.seeds, &corpora, &suite_options)?;
    }
    print(&format!("{}\n", suite.title));
    let outcome = experiment::run(
        planned,
        &suite.seeds,
        &corpora,
        &suite_options,
        &Peak {
            kind,
            gpu: options.backend.gpu,
        },
        &mut |config, corpus, run_options| {
            let trained = kind.train(options.backend.gpu, config, corpus, run_options);
            trained.map_err(|error| ConfigError::new("--backend", error.to_string()))?
        },
    );
    Ok(outcome)
}

/// What runs are computed on, where results may differ: LibTorch has a CPU and GPUs.
fn device(kind: BackendKind, gpu: Option<usize>) -> String {
    match (kind, gpu) {
        (BackendKind::LibTorch, Some(_)) => format!("{kind}-gpu"),
        _ => kind.to_string(),
    }
}
