//! `residual-zoo plot`

use std::fs;
use std::path::PathBuf;

use clap::Args;
use residual_zoo::ModelConfig;
use residual_zoo::cli;
use residual_zoo::core::ConfigError;
use residual_zoo::data::Source;
use residual_zoo::lab::{self, CURVES};
use residual_zoo::report::{Report, Section, csv};
use residual_zoo::runs::{Error, run_dir};

/// Draw the curves of runs in one chart
#[derive(Args)]
pub struct Options {
    /// The directories of the runs
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// The vertical axis
    #[arg(long, default_value = "valid_loss", value_parser = CURVES)]
    y: String,
    /// The horizontal axis
    #[arg(long, default_value = "tokens", value_parser = ["steps", "tokens", "flops", "seconds"])]
    x: String,
    /// The file to write: .svg, .html or .csv
    #[arg(long, value_name = "FILE", default_value = "plot.svg")]
    out: PathBuf,
}

pub fn plot(options: Options) -> anyhow::Result<()> {
    let Options { runs, x, y, out } = options;
    let mut named = Vec::new();
    for run in runs {
        // Names what is no run, before its metrics are missing.
        let config = run_dir::read_config::<ModelConfig>(&run)?;
        if config.data.source == Source::Imported {
            let problem =
                "is an imported model, which was not trained here, so there is nothing to plot";
            return Err(ConfigError::new(run.display().to_string(), problem).into());
        }
        let rows = run_dir::read_metrics(&run)?;
        named.push((run.display().to_string(), rows));
    }
    let mut chart = lab::curves(&named, &x, &y)?;
    let ending = out.extension().map(|ending| ending.to_ascii_lowercase());
    let text = match ending.as_ref().and_then(|ending| ending.to_str()) {
        Some("svg") => chart.to_svg(),
        Some("html") => Report {
            title: std::mem::take(&mut chart.heading),
            sections: vec![Section::Chart(chart)],
            ..Report::default()
        }
        .to_html(),
        Some("csv") => {
            let points = chart.series.iter().flat_map(|series| {
                let point =
                    |(x, y): &(f64, f64)| vec![series.name.clone(), x.to_string(), y.to_string()];
                series.points.iter().map(point).collect::<Vec<_>>()
            });
            csv(&["run", &x, &y], points)
        }
        _ => {
            let problem = format!("is {}; it must end in .svg, .html or .csv", out.display());
            return Err(ConfigError::new("--out", problem).into());
        }
    };
    fs::write(&out, text).map_err(Error::io("write", &out))?;
    cli::print(&format!("{}", out.display()))?;
    Ok(())
}
