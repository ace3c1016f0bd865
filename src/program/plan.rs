//! `residual-zoo plan`

use std::path::PathBuf;

use clap::Args;
use residual_zoo::backend::BackendKind;
use residual_zoo::cli::{self, BackendArgs, DataArgs, wrapped};
use residual_zoo::core::{ConfigError, ModelConfig as _, Precision, Recompute};
use residual_zoo::drive::Trial;
use residual_zoo::drive::{Basis, basis_notes, check_precision, measure_rates};
use residual_zoo::experiment::estimate_memory;
use residual_zoo::lab::{AtPoints, Error, PlannedRun, long_warm_ups};
use residual_zoo::report::{Cell, Column, Table, bytes, flops_per_second, si};
use residual_zoo::train::Interrupter;
use residual_zoo::{RunConfig, builtin};
use residual_zoo_system::console::warn;
use residual_zoo_system::counted;

use super::{at_most, experiment_of, memory_note, passes_note_of, read_config};

/// Estimate the cost of a run: parameters, FLOPs, memory, and time on one or several devices
///
/// Times follow from the FLOPs of the run and the FLOP/s that a device sustains, which is a share of its peak. Without
/// --tflops, the times assume the speed of matrix products on this machine, which no run reaches.
///
/// Parameters and FLOPs hold for the vocabulary in the table. It is the vocabulary of the data. If the data are large
/// or would have to be downloaded, a note states the assumed vocabulary.
#[derive(Args, Debug)]
#[command(after_long_help = "Examples:
  residual-zoo plan gpt2/shakespeare-cpu --memory
  residual-zoo plan gpt2/bench-124m --tflops 400 --gbit 100
  residual-zoo plan rmt_scaling --tflops 400 \\
    --tokenizer bpe:8192")]
pub struct PlanArgs {
    /// A run file, or an experiment or its file
    #[arg(value_name = "CONFIG|EXPERIMENT")]
    path: PathBuf,
    /// The scale, if the experiment has several [default: paper if the experiment has it, otherwise the first one]
    #[arg(long, value_name = "SCALE")]
    scale: Option<String>,
    /// Set a field of every run, such as train.steps=100; repeat it for several
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// The number of seeds of an experiment, except for runs with seeds of their own [default: the number in the file]
    #[arg(long, value_name = "N", value_parser = cli::parsed::<u64>("a whole number of at least 1"))]
    seeds: Option<u64>,
    /// Plan the run of an experiment called TEXT, or all runs whose names contain TEXT, and the runs that these need
    /// first. Can be given several times
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Numbers of devices
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,8,64"
    )]
    devices: Vec<usize>,
    /// TFLOP/s that a device sustains: its peak times the share in use (MFU) [default: measured on this machine]
    #[arg(long, value_name = "TFLOPS", conflicts_with = "tokens_per_second", value_parser = cli::parsed::<f64>("a number"))]
    tflops: Option<f64>,
    /// Tokens that a device trains per second, in place of --tflops
    #[arg(long, value_name = "TOKENS", value_parser = cli::parsed::<f64>("a number"))]
    tokens_per_second: Option<f64>,
    /// Bandwidth between devices, to add the time to sum gradients [default: left out]
    #[arg(long, value_name = "GBIT/S", value_parser = cli::parsed::<f64>("a number"))]
    gbit: Option<f64>,
    /// Also estimate the memory of a device, from steps of smaller copies of each model
    #[arg(long)]
    memory: bool,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    backend: BackendArgs,
}

/// The cost of a run.
struct Plan {
    parameters: f64,
    /// Number of values in the optimizer's moments.
    moments: f64,
    tokens: f64,
    flops: f64,
    steps: f64,
    /// Number of sequences in a step.
    sequences: usize,
}

impl Plan {
    fn of(config: &RunConfig, basis: &Basis) -> Result<Self, Error> {
        let cost = Trial::new(config, basis.vocabulary)?.cost();
        let steps = config.train.steps as f64;
        let tokens = steps * config.tokens_per_step() as f64;
        // Recomputed layers cost another forward pass.
        let again = match config.train.recompute {
            Some(_) => 4.0 / 3.0,
            None => 1.0,
        };
        Ok(Self {
            parameters: cost.params.total() as f64,
            moments: config.train.optimizer.moments(cost.params) as f64,
            tokens,
            flops: again * cost.training_flops() as f64 * tokens,
            steps,
            sequences: config.train.batch * config.train.accumulate,
        })
    }

    /// Returns the duration of the run on `devices` devices, in seconds; `None` if a step has fewer sequences than
    /// devices.
    fn seconds(&self, devices: usize, speed: Speed, gbit: Option<f64>) -> Option<f64> {
        let alone = match speed {
            Speed::Flops(rate) => self.flops / rate,
            Speed::Tokens(rate) => self.tokens / rate,
        };
        let n = devices as f64;
        // In a ring all-reduce, each device sends 2 (n − 1) / n times the gradients, with 4 bytes each.
        let moved = 2.0 * (n - 1.0) / n * 4.0 * self.parameters;
        let sum = gbit.map_or(0.0, |gbit| moved * 8.0 / (gbit * 1e9));
        (devices <= self.sequences).then_some(alone / n + self.steps * sum)
    }
}

/// The speed of a device.
#[derive(Clone, Copy)]
enum Speed {
    Flops(f64),
    Tokens(f64),
}

pub fn plan(options: PlanArgs) -> anyhow::Result<()> {
    for (option, value) in [
        ("--tflops", options.tflops),
        ("--tokens-per-second", options.tokens_per_second),
        ("--gbit", options.gbit),
    ] {
        residual_zoo::core::check::positive(option, value.unwrap_or(1.0))?;
    }
    if options.devices.contains(&0) {
        return Err(ConfigError::new("--devices", "has 0; give 1 or more").into());
    }
    let (kind, gpu) = options.backend.device()?;
    let Planned { runs, scale, all } = planned(&options)?;
    let bases = bases(&runs)?;
    // The runs of a file usually have the same precision, so the precision of the first run is used.
    let precision = runs
        .first()
        .and_then(|(_, config)| config.train.precision)
        .filter(|precision| check_precision(kind, gpu, Some(*precision)).is_ok());
    let (speed, source) = speed(&options, (kind, gpu), precision)?;
    let choices = memory_choices(&options, (kind, gpu));
    let mut columns = vec![
        Column::text("run"),
        Column::number("vocabulary", ""),
        Column::number("parameters", ""),
        Column::number("tokens", ""),
        Column::number("FLOPs", ""),
    ];
    for (precision, recompute) in &choices {
        let kept = match recompute {
            Some(_) => "recomputed",
            None => "all kept",
        };
        columns.push(Column::number("memory", format!("{precision}, {kept}")));
    }
    if options.memory {
        columns.push(Column::number("of which", "moments"));
    }
    for devices in &options.devices {
        let unit = if *devices == 1 { "device" } else { "devices" };
        columns.push(Column::number(format!("{devices} {unit}"), "time"));
    }
    columns.push(Column::number("device hours", "on one"));
    let (mut rows, mut is_counted) = (Vec::new(), true);
    let note = runs.iter().find_map(|(_, config)| memory_note(config));
    for ((name, config), basis) in runs.iter().zip(&bases) {
        let plan = Plan::of(config, basis)?;
        let mut row: Vec<Cell> = vec![
            name.clone().into(),
            basis.shown().into(),
            si(plan.parameters).into(),
            si(plan.tokens).into(),
            si(plan.flops).into(),
        ];
        if !choices.is_empty() {
            warn(&format!(
                "{name}: estimating the memory from steps of smaller copies of the model …"
            ));
        }
        for &(precision, recompute) in &choices {
            let mut config = config.clone();
            (config.train.precision, config.train.recompute) = (Some(precision), recompute);
            let memory = estimate_memory(kind, gpu, &config, basis.vocabulary)?;
            is_counted &= memory.is_some();
            let memory = memory.map(|memory| bytes(memory as f64));
            row.push(memory.unwrap_or_else(|| "–".into()).into());
        }
        if options.memory {
            // Each value has 4 bytes.
            row.push(bytes(4.0 * plan.moments).into());
        }
        for &devices in &options.devices {
            let seconds = plan.seconds(devices, speed, options.gbit);
            row.push(seconds.map_or("–".into(), time).into());
        }
        let hours = plan.seconds(1, speed, None).unwrap_or(f64::NAN) / 3600.0;
        row.push(si(hours).into());
        rows.push(row);
    }
    let table = Table {
        columns,
        rows,
        ..Table::default()
    };
    if let Some(scale) = scale {
        cli::print(&format!("scale {scale}\n"))?;
    }
    cli::print(cli::fitted(&table).trim_end())?;
    let print = |line: &str| cli::print(&wrapped(line, ""));
    let named = runs.iter().map(|(name, _)| name.as_str()).zip(&bases);
    for note in basis_notes(named) {
        print(&note)?;
    }
    if let Some(note) = passes_note_of(&runs, &bases) {
        print(&note)?;
    }
    if let Some(all) = all {
        for line in all.sums(&bases, speed)? {
            print(&line)?;
        }
    }
    let trained = runs
        .iter()
        .map(|(name, config)| (name.as_str(), &config.train));
    for sentence in long_warm_ups(trained) {
        print(&format!("note: {sentence}"))?;
    }
    if runs.iter().any(|(_, config)| !at_most(config).is_empty()) {
        print(
            "A curriculum begins with shorter sequences: tokens, FLOPs and times are at most these.",
        )?;
    }
    print(&source)?;
    match options.gbit {
        Some(gbit) => print(&format!(
            "They include the sums of gradients over {gbit} Gbit/s, but no validations."
        ))?,
        None => print("They leave out validations, and the sums of gradients, which --gbit adds.")?,
    }
    print(
        "A process trains a micro-batch at a time, so train.accumulate must be at least the number of devices.",
    )?;
    print("–: a step has fewer sequences than there are devices.")?;
    if !is_counted {
        print("Memory is not counted on this backend; the default backend and GPUs count it.")?;
    } else if options.memory {
        print(
            "Memory is for a device that trains one micro-batch at a time. With train.shard_optimizer, N devices \
             keep 1/N of the moments each.",
        )?;
        if let Some(note) = note {
            print(note)?;
        }
    }
    Ok(())
}

/// Returns the vocabulary of each run, and validates the run's config with it.
fn bases(runs: &[(String, RunConfig)]) -> anyhow::Result<Vec<Basis>> {
    let data: Vec<_> = runs.iter().map(|(_, config)| &config.data).collect();
    let bases = Basis::of_each(&data, &Interrupter::new())?.into_iter();
    let bases: Vec<Basis> = bases.map(|(basis, _)| basis).collect();
    for ((name, config), basis) in runs.iter().zip(&bases) {
        let valid = config.validate(basis.vocabulary);
        valid.map_err(|error| match runs.len() {
            1 => error,
            _ => error.within(name),
        })?;
    }
    Ok(bases)
}

/// A backend and its GPU.
type Device = (BackendKind, Option<usize>);

/// Returns the variants for which memory is estimated: each precision that the backend has, with and without
/// recomputation.
fn memory_choices(options: &PlanArgs, (kind, gpu): Device) -> Vec<(Precision, Option<Recompute>)> {
    let has = |it: &Precision| options.memory && check_precision(kind, gpu, Some(*it)).is_ok();
    let precisions = [Precision::F32, Precision::Tf32, Precision::Bf16]
        .into_iter()
        .filter(has);
    precisions
        .flat_map(|precision| [None, Some(Recompute::Layers)].map(|cut| (precision, cut)))
        .collect()
}

/// Returns the speed of a device for products in `precision`, and a line with the origin of this speed.
fn speed(
    options: &PlanArgs,
    (kind, gpu): Device,
    precision: Option<Precision>,
) -> anyhow::Result<(Speed, String)> {
    Ok(match (options.tflops, options.tokens_per_second) {
        (_, Some(tokens)) => {
            let line = format!(
                "Times are for {} tokens a second on each device.",
                si(tokens)
            );
            (Speed::Tokens(tokens), line)
        }
        (Some(tflops), None) => {
            let line = format!("Times are for {tflops} TFLOP/s on each device.");
            (Speed::Flops(1e12 * tflops), line)
        }
        (None, None) => {
            let rate = measure_rates(kind, gpu, precision)?.product;
            let line = format!(
                "Times are at the full rate of matrix products on this machine, {}, measured just now beside other \
                 work; a real run takes longer. --tflops sets another rate.",
                flops_per_second(rate)
            );
            (Speed::Flops(rate), line)
        }
    })
}

/// The runs in a file. For an experiment, these are the trained runs, each once.
struct Planned {
    /// The runs by name.
    runs: Vec<(String, RunConfig)>,
    /// The scale of an experiment, if it has one.
    scale: Option<String>,
    /// Everything that an experiment trains; `None` for a run file.
    all: Option<All>,
}

/// Everything that an experiment trains, with all seeds. Each entry has the index of a run in [`Planned::runs`], the
/// config of the run or of a point of its sweep, and the number of seeds.
struct All {
    /// The runs. A run that takes the best point of its sweep has the config of the dearest point.
    runs: Vec<(usize, RunConfig, usize)>,
    sweep: Vec<(usize, RunConfig, usize)>,
    /// How the number of runs of the sweep is meant, with a space after it: the sweep may try values beyond its ranges,
    /// or give up points.
    bound: &'static str,
}

impl All {
    /// Returns lines with the numbers of runs, their FLOPs and their time on one device.
    fn sums(&self, bases: &[Basis], speed: Speed) -> Result<Vec<String>, Error> {
        let sum = |runs: &[(usize, RunConfig, usize)]| -> Result<String, Error> {
            let (mut count, mut flops, mut seconds) = (0, 0.0, 0.0);
            for (run, config, seeds) in runs {
                let plan = Plan::of(config, &bases[*run])?;
                count += seeds;
                flops += *seeds as f64 * plan.flops;
                seconds += *seeds as f64 * plan.seconds(1, speed, None).unwrap_or(f64::NAN);
            }
            let (count, flops) = (counted(count, "run"), si(flops));
            Ok(format!(
                "{count}, {flops} FLOP, {} on one device",
                time(seconds)
            ))
        };
        let mut lines = vec![format!(
            "A row is for one run. With all seeds: {}.",
            sum(&self.runs)?
        )];
        if !self.sweep.is_empty() {
            let bound = self.bound;
            lines.push(format!(
                "In addition, the sweep takes {bound}{}.",
                sum(&self.sweep)?
            ));
        }
        lines.push(
            "A run that the pool already has, perhaps from another experiment, costs nothing."
                .into(),
        );
        Ok(lines)
    }
}

/// Returns the runs in a file.
fn planned(options: &PlanArgs) -> anyhow::Result<Planned> {
    let path = &options.path;
    let Some((mut experiment, scale)) = experiment_of(path, options.scale.as_deref(), "paper")?
    else {
        let config = read_config(path)?;
        let given = [
            ("--seeds", options.seeds.is_some()),
            ("--only", !options.only.is_empty()),
        ];
        if let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given) {
            let problem = "is given, but a run file has a single run; leave it out";
            return Err(ConfigError::new(*option, problem).into());
        }
        let name = builtin::without_ending(path).display().to_string();
        let mut config = config.set(&options.set)?;
        options.data.apply(&mut config.data, &options.set)?;
        return Ok(Planned {
            runs: vec![(name, config)],
            scale: None,
            all: None,
        });
    };
    options.data.apply(&mut experiment.data, &options.set)?;
    if let Some(data) = &mut experiment.new_data {
        let tokenizer = DataArgs {
            data: None,
            tokenizer: options.data.tokenizer.clone(),
        };
        tokenizer.apply(data, &options.set)?;
    }
    experiment.check()?;
    if let Some(seeds) = options.seeds {
        cli::set_seeds(&mut experiment, seeds)?;
    }
    cli::refuse_swept(experiment.sweep.as_ref(), &options.set)?;
    let planned = match experiment.count {
        Some(_) => Vec::new(),
        None => experiment.only(&options.only, &experiment.plan(&options.set)?)?,
    };
    let seeds = |run: &PlannedRun<_>| run.seeds.as_ref().unwrap_or(&experiment.seeds).len();
    let mut runs: Vec<(String, RunConfig)> = Vec::new();
    let mut all = All {
        runs: Vec::new(),
        sweep: Vec::new(),
        bound: match &experiment.sweep {
            Some(sweep) if sweep.halving.is_some() => "at most ",
            Some(sweep) if sweep.widen > 0 => "at least ",
            _ => "",
        },
    };
    for run in &planned {
        if let Some(config) = &run.config {
            all.runs.push((runs.len(), config.clone(), seeds(run)));
            runs.push((run.name.clone(), config.clone()));
        }
    }
    if let Some(sweep) = &experiment.sweep {
        for AtPoints { run, points } in sweep.check_points(&planned)? {
            let Some(at) = runs.iter().position(|(name, _)| *name == run) else {
                continue;
            };
            let configs = points.into_iter().filter_map(|point| point.config);
            let configs: Vec<RunConfig> = configs.collect();
            if sweep.tuned
                && sweep.rule.is_none()
                && let Some(config) = dearest(&configs)
            {
                all.runs[at].1 = config.clone();
            }
            let configs = configs.into_iter();
            all.sweep
                .extend(configs.map(|config| (at, config, sweep.seeds.len())));
        }
    }
    match runs.is_empty() {
        false => Ok(Planned {
            runs,
            scale,
            all: Some(all),
        }),
        true => {
            let problem = "trains nothing, so there is nothing to plan; run it with `residual-zoo experiment`";
            Err(ConfigError::new(path.display().to_string(), problem).into())
        }
    }
}

/// Returns the config whose run takes most FLOPs. A tuned run may have the config of any point of its sweep.
fn dearest(configs: &[RunConfig]) -> Option<&RunConfig> {
    let flops = |config: &&RunConfig| {
        let tokens = config.train.steps as f64 * config.tokens_per_step() as f64;
        tokens * config.model.cost(config.vocabulary(1)).training_flops() as f64
    };
    configs.iter().max_by(|a, b| flops(a).total_cmp(&flops(b)))
}

/// Formats a time in its most readable unit.
fn time(seconds: f64) -> String {
    let (days, years) = (seconds / 86_400.0, seconds / (365.25 * 86_400.0));
    match () {
        () if years >= 2.0 => format!("{} years", si(years)),
        () if days >= 2.0 => format!("{} days", si(days)),
        () if seconds >= 3600.0 => format!("{} h", si(seconds / 3600.0)),
        () if seconds >= 60.0 => format!("{} min", si(seconds / 60.0)),
        () => format!("{} s", si(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_share_the_work_and_pay_for_the_sums() {
        let plan = Plan {
            parameters: 1e9,
            moments: 2e9,
            tokens: 1e9,
            flops: 6e18,
            steps: 100.0,
            sequences: 16,
        };
        let speed = Speed::Flops(1e15);
        assert_eq!(plan.seconds(1, speed, Some(1.0)), Some(6000.0));
        assert_eq!(plan.seconds(8, speed, None), Some(750.0));
        // 2 · ⅞ · 4 bytes · 1e9 = 7e9 bytes, 0.56 s at 100 Gbit/s.
        let summed = plan.seconds(8, speed, Some(100.0)).unwrap();
        assert!((summed - 750.0 - 56.0).abs() < 1e-9, "{summed}");
        assert_eq!(plan.seconds(64, speed, None), None);
        assert_eq!(plan.seconds(10, Speed::Tokens(1e6), None), Some(100.0));
    }

    #[test]
    fn times_have_the_unit_that_is_read_most_easily() {
        let shown = [30.0, 90.0, 7200.0, 260_000.0, 1e9].map(time);
        assert_eq!(shown, ["30 s", "1.5 min", "2 h", "3.01 days", "31.7 years"]);
    }
}
