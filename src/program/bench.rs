//! `residual-zoo bench`

use std::path::PathBuf;

use clap::Args;
use residual_zoo::backend::BackendKind;
use residual_zoo::cli::{self, BackendArgs};
use residual_zoo::experiment::time;
use residual_zoo::lab::open_corpus;
use residual_zoo::report::{Cell, Column, Table, si};
use residual_zoo::runs::Error;
use residual_zoo::train::Interrupter;
use residual_zoo::train::bench::StepTime;
use serde::Serialize;

use super::read_config;

/// The model of docs/performance.md: 10.7M parameters, batch 8 of 256 tokens.
const DEFAULT: &str = "gpt2/bench";

/// Time the parts of a training step
///
/// Medians of the data, the forward pass, the backward pass and the optimizer after a warmup, for every
/// model and every backend that is compiled in.
#[derive(Args, Debug)]
#[command(mut_arg("backend", |arg| arg.help(
    "Backend to time: flex, tch, cuda, vulkan or wgpu [default: all that are compiled in]"
)))]
pub struct Options {
    /// Run files of the models to time [default: GPT-2 with 10.7M parameters, batch 8 × 256]
    configs: Vec<PathBuf>,
    /// Set a field of every model's run: train.batch=4, …
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,
    /// Steps that are not counted
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=100_000))]
    warmup: u32,
    /// Steps that are timed
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendArgs,
}

#[derive(Serialize)]
struct Line {
    model: String,
    backend: String,
    #[serde(flatten)]
    time: StepTime,
}

pub fn bench(options: Options) -> anyhow::Result<()> {
    let configs = match options.configs.is_empty() {
        true => vec![DEFAULT.into()],
        false => options.configs,
    };
    let named = configs
        .iter()
        .map(|path| Ok((path.display().to_string(), read_config(path)?)));
    let models = named.collect::<anyhow::Result<Vec<_>>>()?;
    let kinds = match options.backend.backend {
        Some(kind) => vec![kind],
        None => BackendKind::compiled(),
    };
    let counts = (options.warmup as usize, options.steps as usize);
    let mut lines = Vec::new();
    let mut failure = None;
    for (model, config) in models {
        let config = config.set(&options.set)?;
        let corpus = open_corpus(&config.data, &Interrupter::new())?;
        for kind in &kinds {
            let gpu = options.backend.gpu;
            let time = match time(*kind, gpu, config.clone(), &corpus, counts) {
                Ok(time) => time,
                // Other backends may well work.
                Err(error) => {
                    eprintln!("{model} on {kind}: {error}");
                    failure.get_or_insert(error);
                    continue;
                }
            };
            eprintln!("{model} on {kind}: {:.1} ms a step", 1e3 * time.step);
            lines.push(Line {
                model: model.clone(),
                backend: kind.to_string(),
                time,
            });
        }
    }
    cli::print(&format!("\n{}", table(&lines).to_text()))?;
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&lines)?;
        std::fs::write(path, json).map_err(Error::io("write", path))?;
    }
    failure.map_or(Ok(()), |error| Err(error.into()))
}

fn table(lines: &[Line]) -> Table {
    let milliseconds = |seconds: f64| format!("{:.1}", 1e3 * seconds);
    let rows = lines.iter().map(|line| {
        let time = &line.time;
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
        row.into_iter().map(Cell::from).collect()
    });
    let mut columns = vec![Column::text("model"), Column::text("backend")];
    columns.push(Column::number("parameters", ""));
    let parts = ["data", "forward", "backward", "optimizer", "step", "range"];
    columns.extend(parts.map(|title| Column::number(title, "ms")));
    columns.extend(["tokens/s", "FLOP/s"].map(|title| Column::number(title, "")));
    Table {
        columns,
        rows: rows.collect(),
        ..Table::default()
    }
}
