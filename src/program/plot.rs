//! `residual-zoo plot`

use std::path::{Path, PathBuf};

use clap::Args;
use residual_zoo::RunConfig;
use residual_zoo::cli;
use residual_zoo::core::{ConfigError, ModelConfig as _};
use residual_zoo::data::{DataConfig, TokenizerConfig};
use residual_zoo::drive::open_corpus;
use residual_zoo::lab::{self, BITS_PER_BYTE, CURVES, Curve};
use residual_zoo::report::{Chart, Report, Section, csv};
use residual_zoo::runs::{Error as RunError, disk, run_dir};
use residual_zoo::train::Interrupter;
use residual_zoo_system::console::warn;

use super::{Untrained, with_tokenizer_beside};

/// Draw the curves of runs in one chart
#[derive(Args)]
pub struct PlotArgs {
    /// The directories of the runs
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// The vertical axis. `bits_per_byte` is the validation loss per byte of text, which compares runs with different
    /// tokenizers [default: valid_loss; bits_per_byte if the runs have different tokens and it is known]
    #[arg(long, value_parser = CURVES)]
    y: Option<String>,
    /// The horizontal axis
    #[arg(long, default_value = "tokens", value_parser = ["steps", "tokens", "flops", "seconds"])]
    x: String,
    /// Draw runs that differ only in their seed as one line: their mean, with a band of their range
    #[arg(long)]
    mean: bool,
    /// The file to write: .svg, .html or .csv
    #[arg(long, value_name = "FILE", default_value = "plot.svg")]
    out: PathBuf,
}

pub fn plot(options: PlotArgs) -> anyhow::Result<()> {
    let PlotArgs { x, out, .. } = &options;
    let format = out.extension().unwrap_or_default().to_ascii_lowercase();
    let format = format.to_string_lossy();
    if !["svg", "html", "csv"].contains(&&*format) {
        let problem = format!("is {}; it must end in .svg, .html or .csv", out.display());
        return Err(ConfigError::new("--out", problem).into());
    }
    let mut runs = Vec::new();
    for run in &options.runs {
        // Reading the config first reports a path that is not a run, rather than missing metrics.
        let config = run_dir::read_config(run)?;
        let config = with_tokenizer_beside(config, &run.join(run_dir::CONFIG))?;
        runs.push((curve(run, &config)?, config.data));
    }
    let y = vertical(&options, &mut runs)?;
    let runs: Vec<Curve> = runs.into_iter().map(|(run, _)| run).collect();
    let mut chart = lab::curves(&runs, x, &y, options.mean)?;
    let text = match &*format {
        "svg" => chart.to_svg(),
        "csv" => table(&chart, x, &y),
        _ => {
            let title = std::mem::take(&mut chart.heading);
            Report {
                title,
                sections: vec![Section::Chart(chart.clone())],
                ..Report::default()
            }
            .to_html()
        }
    };
    for note in [&chart.note, &chart.notes()]
        .into_iter()
        .filter(|note| !note.is_empty())
    {
        warn(&format!("note: {note}"));
    }
    disk::write_output(out, text.as_bytes())?;
    cli::print(&out.display().to_string())?;
    Ok(())
}

/// Returns the curve of the run in a directory.
fn curve(run: &Path, config: &RunConfig) -> anyhow::Result<Curve> {
    let name = run.display().to_string();
    if let Some(untrained) = Untrained::of(run, config) {
        let problem = format!(
            "{untrained} and has not been trained since, so it has no training curve; {}`{}`",
            match untrained {
                Untrained::Imported => "train it with ",
                Untrained::Merged(..) => "plot those runs, or train it with ",
            },
            untrained.command(run)
        );
        return Err(ConfigError::new(name, problem).into());
    }
    let lost = run_dir::lost_rows(run)?;
    if run.join(run_dir::METRICS).symlink_metadata().is_err() {
        let problem = match lost {
            Some(_) => "has lost its metrics.jsonl; restore it, for instance from a backup",
            None => "has no rows of metrics yet; train it first",
        };
        return Err(ConfigError::new(name, problem).into());
    }
    if let Some(lost) = lost {
        warn(&format!(
            "note: {lost}; restore the file to see the whole run"
        ));
    }
    let mut settings = config.clone();
    settings.train.seed = 0;
    settings.data.cache = None;
    let token = lab::token(&config.data);
    let tokens = match &config.data.tokenizer {
        TokenizerConfig::Bpe { .. } | TokenizerConfig::File(_) => {
            let tokenizer = run_dir::read_tokenizer(run).ok();
            tokenizer.map(|tokenizer| tokenizer.fingerprint())
        }
        TokenizerConfig::Bytes | TokenizerConfig::Chars => None,
    };
    let data = run_dir::read_data(run).ok();
    Ok(Curve {
        name,
        model: config.model.name(),
        text: config.data.source.to_string(),
        rows: run_dir::read_metrics(run)?,
        settings: settings.to_ron(),
        tokens: tokens.unwrap_or_else(|| token.clone()),
        trained_on: data.as_ref().map(|data| data.train_blake3.clone()),
        validated_on: data.map(|data| data.valid_blake3),
        token,
        bytes_per_token: None,
    })
}

/// Returns the quantity to draw: the requested one, otherwise a loss with which these runs can be compared.
fn vertical(options: &PlotArgs, runs: &mut [(Curve, DataConfig)]) -> anyhow::Result<String> {
    let loss = "valid_loss".to_owned();
    let curves: Vec<Curve> = runs.iter().map(|(run, _)| run.clone()).collect();
    match &options.y {
        Some(y) if y != BITS_PER_BYTE => return Ok(y.clone()),
        None if !lab::have_different_tokens(&curves) => return Ok(loss),
        _ => {}
    }
    let stop = cli::stop_on_signal()?;
    for ((run, data), path) in runs.iter_mut().zip(&options.runs) {
        match bytes_per_token(path, data, &stop) {
            Ok(bytes) => run.bytes_per_token = Some(bytes),
            Err(error) if options.y.is_some() || stop.should_stop() => return Err(error),
            Err(error) => {
                warn(&format!("note: bits per byte are not known: {error}"));
                return Ok(loss);
            }
        }
    }
    Ok(BITS_PER_BYTE.to_owned())
}

/// Computes the bytes of text per validation token from a run's data, which must be unchanged since training.
fn bytes_per_token(run: &Path, data: &DataConfig, stop: &Interrupter) -> anyhow::Result<f64> {
    let problem = |problem: &str| ConfigError::new(run.display().to_string(), problem);
    // The original error suggests options of other commands, so it is replaced.
    run_dir::check_paths(run, data).map_err(|error| match error {
        RunError::Outside { field, path, .. } => {
            let path = path.display();
            problem(&format!(
                "`{field}` is {path}, which is not known to be the run's own"
            ))
            .into()
        }
        error => anyhow::Error::from(error),
    })?;
    let corpus = open_corpus(data, stop)?;
    if corpus.identity != run_dir::read_data(run)?.identity {
        return Err(problem("was trained on other data than its config names now").into());
    }
    let bytes = corpus.bytes_per_token;
    bytes.ok_or_else(|| {
        problem("was trained on data that are not text, so there are no bytes").into()
    })
}

/// Returns the points as CSV. For curves that are means, also returns their range.
fn table(chart: &Chart, x: &str, y: &str) -> String {
    let has_bands = chart.series.iter().any(|series| !series.band.is_empty());
    let mut head = vec!["run", x, y];
    if has_bands {
        head.extend(["lowest", "highest"]);
    }
    let points = chart.series.iter().flat_map(|series| {
        let point = |(i, (x, y)): (usize, &(f64, f64))| {
            let mut row = vec![series.name.clone(), x.to_string(), y.to_string()];
            let band = series.band.get(i);
            row.extend(
                band.iter()
                    .flat_map(|(_, low, high)| [low, high])
                    .map(f64::to_string),
            );
            row
        };
        series
            .points
            .iter()
            .enumerate()
            .map(point)
            .collect::<Vec<_>>()
    });
    csv(&head, points)
}
