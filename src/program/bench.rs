//! `residual-zoo bench`

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use clap::Args;
use residual_zoo::backend::BackendKind;
use residual_zoo::cli::{self, BackendArgs};
use residual_zoo::core::ConfigError;
use residual_zoo::drive::{Basis, Bench, Place, Use, check_size, open_corpus};
use residual_zoo::experiment::{PLAIN, time, with_connections};
use residual_zoo::lab::Error;
use residual_zoo::report::{Cell, Column, Table, bytes, si};
use residual_zoo::runs::disk;
use residual_zoo::train::Interrupter;
use residual_zoo::train::bench::StepTime;
use residual_zoo_system::console::warn;
use serde::{Deserialize, Serialize};

use super::read_set;

/// The model that docs/performance.md times: 10.7M parameters, 8 sequences of 256 tokens in a batch.
const DEFAULT: &str = "gpt2/bench";

/// Time the parts of a training step
///
/// Shows the median times of the data, the forward pass, the backward pass and the optimizer after a warmup. Times
/// every model on every backend that is compiled in. Two columns are estimates of the shortest possible step.
/// `products` is the time of its matrix products at the speed of a large product. `traffic` is the time to write and
/// read the peak memory once. A line for each model names the operations for which the backend has no fast form.
#[derive(Args, Debug)]
#[command(mut_arg("backend", |arg| arg.help(
    "The backend to time [default: all that are compiled in]"
)))]
pub struct BenchArgs {
    /// Run files of the models to time [default: GPT-2 with 10.7M parameters, batch 8 × 256]
    configs: Vec<PathBuf>,
    /// Time one model with each connection, and compare its step and memory with those of the plain residual. Takes one
    /// run file, without a connection; a small one such as gpt2/smoke shows the figures soon
    #[arg(long)]
    connections: bool,
    /// Set a field of every model's run, such as train.batch=4; repeat it for several
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Untimed steps before the timed ones
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = cli::number(0, 100_000))]
    warmup: u32,
    /// Timed steps
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = cli::number(1, 100_000))]
    steps: u32,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Compare with the figures of an earlier `--json`, for the same models and batches. `faster` and `slower` need a
    /// difference of a tenth, and medians outside each other's range. Other work on the machine looks like a change, so
    /// run both again
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendArgs,
}

#[derive(Serialize, Deserialize)]
struct Line {
    model: String,
    backend: String,
    /// Number of token ids, or of image classes.
    #[serde(default)]
    vocabulary: usize,
    #[serde(flatten)]
    bench: Bench,
}

pub fn bench(options: BenchArgs) -> anyhow::Result<()> {
    cli::refuse_doubled("--steps", "train.steps", &options.set)?;
    let configs = match options.configs.is_empty() {
        true => vec![DEFAULT.into()],
        false => options.configs,
    };
    let kinds = match options.backend.backend {
        Some(kind) => vec![kind],
        None => BackendKind::compiled(),
    };
    let named = configs.iter().map(|path| {
        let config = read_set(path, &options.set)?;
        Ok((path.clone(), config))
    });
    let mut named = named.collect::<anyhow::Result<Vec<_>>>()?;
    if options.connections {
        let [(path, plain)] = &named[..] else {
            let problem = "takes one run file; leave the others out";
            return Err(ConfigError::new("--connections", problem).into());
        };
        let with = with_connections(plain.clone()).map_err(|error| error.in_file(path))?;
        named = with
            .into_iter()
            .map(|(name, config)| (name.into(), config))
            .collect();
    }
    // Connections that do not fit the model are omitted.
    let is_connection = |path: &Path| options.connections && path != Path::new(PLAIN);
    let opened = named.into_iter().map(|(path, config)| {
        let path = &path;
        let corpus = open_corpus(&config.data, &Interrupter::new())?;
        let basis = Basis::of_corpus(&corpus);
        let valid = config.validate(basis.vocabulary);
        if let (Err(error), true) = (&valid, is_connection(path)) {
            warn(&format!("{} is left out: {error}", path.display()));
            return Ok(None);
        }
        valid.map_err(|error| Error::from(error).in_file(path))?;
        for kind in &kinds {
            let device = (*kind, options.backend.gpu_for(*kind)?);
            let fits = check_size(&config, basis.vocabulary, device, Use::Train);
            fits.map_err(|error| error.in_file(path))?;
        }
        Ok(Some((path.display().to_string(), config)))
    });
    let models = opened.collect::<anyhow::Result<Vec<_>>>()?;
    let models = models.into_iter().flatten();
    let counts = (options.warmup as usize, options.steps as usize);
    if let Some(path) = &options.json {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        if !folder.is_dir() || path.is_dir() {
            let problem = format!(
                "cannot write {}; give a file in a folder that exists",
                path.display()
            );
            return Err(ConfigError::new("--json", problem).into());
        }
        // A file that is not empty is overwritten only if `--json` wrote it.
        let is_full = |file: Metadata| file.is_file() && file.len() > 0;
        if path.metadata().is_ok_and(is_full) {
            read(path)?;
        }
    }
    let old = options.against.as_deref().map(read).transpose()?;
    let mut lines = Vec::new();
    let mut failure = None;
    for (model, config) in models {
        // Opens the data again, because the data of other models would count as this model's memory.
        let corpus = open_corpus(&config.data, &Interrupter::new())?;
        for kind in &kinds {
            let gpu = options.backend.gpu_for(*kind)?;
            let bench = match time(*kind, gpu, config.clone(), &corpus, counts) {
                Ok(bench) => bench,
                // Other backends may still work, so the command fails only at the end.
                Err(error) => {
                    warn(&format!("{model} on {kind}: {error}"));
                    failure.get_or_insert(error);
                    continue;
                }
            };
            let step = 1e3 * bench.time.step;
            let plain = match &bench.time.plain[..] {
                [] => String::new(),
                plain => format!("; without a fast form: {}", plain.join(", ")),
            };
            let place = Place {
                kind: *kind,
                gpu,
                precision: config.train.precision,
            };
            warn(&format!(
                "{model} on {kind}{place}: {step:.1} ms a step{plain}"
            ));
            lines.push(Line {
                model: model.clone(),
                backend: kind.to_string(),
                vocabulary: Basis::of_corpus(&corpus).size(),
                bench,
            });
        }
    }
    cli::print(&format!(
        "\n{}",
        cli::fitted(&table(&lines, old.as_deref()))
    ))?;
    if options.connections {
        cli::print(&format!("\n{}", cli::fitted(&beside_plain(&lines))))?;
    }
    if let Some(path) = options.json.as_ref().filter(|_| !lines.is_empty()) {
        let json = serde_json::to_string_pretty(&lines)?;
        disk::write_output(path, json.as_bytes())?;
    }
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// Reads the figures that an earlier `--json` wrote.
fn read(path: &Path) -> anyhow::Result<Vec<Line>> {
    let text = residual_zoo::data::read_utf8(path)?;
    serde_json::from_str(&text).map_err(|_| {
        let problem = "has no figures of `bench --json`; give another file";
        ConfigError::new(path.display().to_string(), problem).into()
    })
}

/// Whether `old` has times for a model of the same size with the same batch.
fn is_comparable(new: &StepTime, old: &StepTime) -> bool {
    let tokens = |time: &StepTime| time.tokens_per_second * time.step;
    let times = 0.0 < old.fastest && old.fastest <= old.step && old.step <= old.slowest;
    let batch = (tokens(new) / tokens(old) - 1.0).abs() < 1e-3;
    times && batch && new.parameters == old.parameters
}

/// Returns the ratio of the medians and a verdict. A change must exceed the noise: the medians differ by a tenth, and
/// each is outside the range of the other.
fn against(Bench { time: new, .. }: &Bench, Bench { time: old, .. }: &Bench) -> String {
    let outside = |x: &StepTime, of: &StepTime| x.step < of.fastest || x.step > of.slowest;
    let apart = (new.step / old.step).max(old.step / new.step) > 1.1;
    let word = match apart && outside(new, old) && outside(old, new) {
        true if new.step < old.step => "faster",
        true => "slower",
        false => "same",
    };
    format!("{:.2} {word}", new.step / old.step)
}

fn table(lines: &[Line], old: Option<&[Line]>) -> Table {
    let milliseconds = |seconds: f64| format!("{:.1}", 1e3 * seconds);
    let rows = lines.iter().map(|line| {
        let (bench, time) = (&line.bench, &line.bench.time);
        let parts = [
            time.data,
            time.forward,
            time.backward,
            time.optimizer,
            time.step,
        ];
        let mut row = vec![
            line.model.clone(),
            line.backend.clone(),
            line.vocabulary.to_string(),
            si(time.parameters as f64),
        ];
        row.extend(parts.map(milliseconds));
        row.push(format!(
            "{}–{}",
            milliseconds(time.fastest),
            milliseconds(time.slowest)
        ));
        row.push(si(time.tokens_per_second));
        row.push(si(time.flops_per_second));
        let memory = bench.peak_memory.map(|peak| bytes(peak as f64));
        row.push(memory.unwrap_or_else(|| "–".into()));
        row.push(milliseconds(bench.arithmetic_floor()));
        row.push(
            bench
                .memory_floor()
                .map_or_else(|| "–".into(), milliseconds),
        );
        if let Some(old) = old {
            let same = |old: &&Line| {
                (&old.model, &old.backend) == (&line.model, &line.backend)
                    && is_comparable(&line.bench.time, &old.bench.time)
            };
            let old = old.iter().find(same);
            row.push(old.map_or_else(|| "–".into(), |old| against(bench, &old.bench)));
        }
        row.into_iter().map(Cell::from).collect()
    });
    let mut columns = vec![Column::text("model"), Column::text("backend")];
    columns.push(Column::number("vocabulary", ""));
    columns.push(Column::number("parameters", ""));
    let parts = ["data", "forward", "backward", "optimizer", "step", "range"];
    columns.extend(parts.map(|title| Column::number(title, "ms")));
    columns.extend(["tokens/s", "FLOP/s", "memory"].map(|title| Column::number(title, "")));
    columns.extend(["products", "traffic"].map(|title| Column::number(title, "ms")));
    if old.is_some() {
        columns.push(Column::text("against"));
    }
    Table {
        columns,
        rows: rows.collect(),
        ..Table::default()
    }
}

/// Makes a table of each connection's parameters, step time and peak memory, relative to the plain residual on the same
/// backend. If the plain residual was not timed there, a line has no ratios.
fn beside_plain(lines: &[Line]) -> Table {
    let rows = lines.iter().map(|line| {
        let is_plain = |other: &&Line| other.backend == line.backend && other.model == PLAIN;
        let plain = lines.iter().find(is_plain);
        let of = |value: &dyn Fn(&Bench) -> Option<f64>| {
            let ratio = || Some(value(&line.bench)? / value(&plain?.bench)?);
            ratio().map_or_else(|| "–".into(), |ratio| format!("{ratio:.2}"))
        };
        let row = [
            line.model.clone(),
            line.backend.clone(),
            of(&|bench| Some(bench.time.parameters as f64)),
            of(&|bench| Some(bench.time.step)),
            of(&|bench| bench.peak_memory.map(|peak| peak as f64)),
        ];
        row.map(Cell::from).into()
    });
    let mut columns = vec![Column::text("connection"), Column::text("backend")];
    let ratios = ["parameters", "step", "memory"];
    columns.extend(ratios.map(|title| Column::number(title, "× plain")));
    Table {
        columns,
        rows: rows.collect(),
        ..Table::default()
    }
}

#[cfg(test)]
mod tests {
    use residual_zoo::train::bench::Rates;

    use super::*;

    fn steps(fastest: f64, step: f64, slowest: f64) -> Bench {
        let time = StepTime {
            data: 0.0,
            forward: 0.0,
            backward: 0.0,
            optimizer: 0.0,
            step,
            fastest,
            slowest,
            tokens_per_second: 0.0,
            flops_per_second: 0.0,
            parameters: 1,
            plain: Vec::new(),
        };
        let rates = Rates {
            product: 1.0,
            copy: 1.0,
        };
        Bench {
            time,
            peak_memory: None,
            rates,
        }
    }

    #[test]
    fn a_change_counts_if_each_median_is_outside_the_other_range() {
        let old = steps(0.9, 1.0, 1.2);
        assert_eq!(against(&steps(0.4, 0.5, 0.6), &old), "0.50 faster");
        assert_eq!(against(&steps(1.5, 2.0, 2.5), &old), "2.00 slower");
        assert_eq!(against(&steps(0.8, 0.95, 1.1), &old), "0.95 same");
        // One outlier makes the range of the new steps wide.
        assert_eq!(against(&steps(0.7, 0.8, 3.0), &old), "0.80 same");
    }
}
