//! `residual-zoo depth`

use std::path::{Path, PathBuf};

use clap::Args;
use residual_zoo::cli::{self, CheckpointArgs, DataArgs, PlaceArgs};
use residual_zoo::core::{ConfigError, DepthMap};
use residual_zoo::data::Source;
use residual_zoo::drive::{Depths, Use, check_size, open_corpus};
use residual_zoo::experiment;
use residual_zoo::report::{Cell, Column, HeatMap, Report, Section, Table, csv, sig};
use residual_zoo::runs::disk;
use residual_zoo_system::console::warn;
use residual_zoo_system::counted;

use super::note_edited;

/// Show how much of each earlier output every sublayer reads
///
/// The input h_i of sublayer i is fitted as Σ w_ij f_j, by least squares over validation sequences. f0 is the
/// embedding, and f1, f2, … are the outputs of the sublayers before i. In a plain model every w is 1. The last row is
/// the end of the stream, before the final norm. `explained` is 100 % if the weights are exact.
#[derive(Args)]
#[command(after_long_help = "Example:
  residual-zoo depth runs/gpt2-smoke --out depth.html")]
pub struct DepthArgs {
    /// The run directory, such as runs/gpt2-shakespeare-cpu
    run: PathBuf,
    /// Number of validation sequences, or of images [default: enough sequences for 1,024 positions, or 16 images]
    #[arg(long, value_name = "N", value_parser = cli::number(1, 4096))]
    sequences: Option<u32>,
    /// Draw the shares instead of the weights: the projections of w_ij f_j on h_i. The table and .csv have both
    #[arg(long)]
    shares: bool,
    /// The file of the map: .svg, .html or .csv [default: depth.svg; depth.html if there are several maps, as for a
    /// recurrence, which has one for each window of each layer]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Maximum number of outputs that the table names in a row.
const NAMED: usize = 3;

pub fn depth(options: DepthArgs) -> anyhow::Result<()> {
    if let Some(out) = &options.out
        && format_of(out).is_none()
    {
        let problem = format!("is {}; it must end in .svg, .html or .csv", out.display());
        return Err(ConfigError::new("--out", problem).into());
    }
    let run = options.checkpoint.open(&options.run)?;
    note_edited(run.directory());
    let place = options.place.place()?;
    let mut data = run.config.data.clone();
    options.data.apply(&mut data, &[])?;
    if data.source == Source::Imported {
        let problem = "is needed: a text for the map, because the run is an imported model";
        return Err(ConfigError::new("--data", problem).into());
    }
    let device = (place.kind, place.gpu);
    check_size(&run.config, run.vocabulary(), device, Use::Load)?;
    let stop = cli::stop_on_signal()?;
    let corpus = open_corpus(&data, &stop)?;
    let asked = options.sequences.map(|sequences| sequences as usize);
    let Depths { maps, sequences } = experiment::depth(&run, &corpus, asked, place, &stop)?;
    // A recurrence opens a stream for each window of each layer, so it has several maps.
    let usual = match maps.len() {
        1 => "depth.svg",
        _ => "depth.html",
    };
    let out = options.out.unwrap_or_else(|| usual.into());
    let format = format_of(&out);
    if maps.len() > 1 && format == Some(Format::Svg) {
        let problem = format!(
            "is an image, which has one map, but this model has {}; give a file that ends in .html or .csv",
            counted(maps.len(), "stream")
        );
        return Err(ConfigError::new("--out", problem).into());
    }
    let name = options.run.display().to_string();
    let values = |map: &DepthMap| match options.shares {
        true => map.shares.clone(),
        false => map.weights.clone(),
    };
    let titles = titles(&name, maps.len());
    let drawn = maps.iter().zip(&titles).map(|(map, title)| HeatMap {
        heading: title.clone(),
        note: note(options.shares).into(),
        rows: rows(map),
        columns: (0..=map.branches.len()).map(|j| format!("f{j}")).collect(),
        values: values(map),
    });
    let drawn: Vec<HeatMap> = drawn.collect();
    let text = match format {
        Some(Format::Csv) => lines(&maps),
        Some(Format::Html) => Report {
            title: format!("What each sublayer of {name} reads"),
            sections: drawn.into_iter().map(Section::HeatMap).collect(),
            ..Report::default()
        }
        .to_html(),
        _ => drawn[0].to_svg(),
    };
    for (map, title) in maps.iter().zip(&titles) {
        let table = cli::fitted(&table(map));
        cli::print(&match maps.len() {
            1 => format!("{table}\n"),
            _ => format!("{title}\n{table}\n"),
        })?;
    }
    if maps.iter().any(|map| map.unique.contains(&false)) {
        warn(
            "note: some outputs are sums of earlier ones on these data, so other weights would fit as well; more \
             `--sequences` may help",
        );
    }
    disk::write_output(&out, text.as_bytes())?;
    let read = match corpus.valid.images(1) {
        Some(_) => counted(sequences, "validation image"),
        None => counted(sequences, "validation sequence"),
    };
    cli::print(&format!("{}, from {read}", out.display()))?;
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Svg,
    Html,
    Csv,
}

/// Returns the format of a file by its extension, or `None` if the extension is unknown.
fn format_of(path: &Path) -> Option<Format> {
    let end = path.extension()?.to_ascii_lowercase();
    match end.to_str()? {
        "svg" => Some(Format::Svg),
        "html" => Some(Format::Html),
        "csv" => Some(Format::Csv),
        _ => None,
    }
}

/// Returns the title of each map.
fn titles(run: &str, count: usize) -> Vec<String> {
    match count {
        1 => vec![run.to_owned()],
        _ => (1..=count).map(|i| format!("{run}, stream {i}")).collect(),
    }
}

fn note(shares: bool) -> &'static str {
    match shares {
        true => {
            "The projection of each weighted output on the input of a sublayer, as a share. f0 is the start of the stream."
        }
        false => {
            "The weight of each earlier output in the input of a sublayer. f0 is the start of the stream."
        }
    }
}

/// Returns the row names: the sublayers in depth order, and the end of the stream.
fn rows(map: &DepthMap) -> Vec<String> {
    let branches = map.branches.iter().enumerate();
    let names = branches.map(|(i, name)| format!("h{} {name}", i + 1));
    names.chain(["end".into()]).collect()
}

/// Makes a table with a line for each input: how much of the input is explained, and its largest shares.
fn table(map: &DepthMap) -> Table {
    let row = |(i, name): (usize, String)| {
        let (weights, shares) = (&map.weights[i], &map.shares[i]);
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by(|a, b| shares[*b].abs().total_cmp(&shares[*a].abs()));
        let named = order
            .iter()
            .take(NAMED)
            .map(|&j| format!("f{j} × {} ({} %)", sig(weights[j], 3), percent(shares[j])));
        vec![
            Cell::from(name),
            format!("{:.1}", 100.0 * map.explained()[i]).into(),
            named.collect::<Vec<_>>().join(", ").into(),
        ]
    };
    Table {
        columns: vec![
            Column::text("input"),
            Column::number("explained", "%"),
            Column::text("largest shares: output × weight (share)"),
        ],
        rows: rows(map).into_iter().enumerate().map(row).collect(),
        ..Table::default()
    }
}

/// Rounds a share to whole percent. Negative zero becomes zero.
fn percent(share: f64) -> f64 {
    (100.0 * share).round() + 0.0
}

/// Formats the maps as CSV, with one row for each weight.
fn lines(maps: &[DepthMap]) -> String {
    let mut all = Vec::new();
    for (stream, map) in maps.iter().enumerate() {
        for (i, name) in rows(map).into_iter().enumerate() {
            for (j, (weight, share)) in map.weights[i].iter().zip(&map.shares[i]).enumerate() {
                all.push(vec![
                    (stream + 1).to_string(),
                    name.clone(),
                    format!("f{j}"),
                    weight.to_string(),
                    share.to_string(),
                ]);
            }
        }
    }
    csv(&["stream", "input", "output", "weight", "share"], all)
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn a_small_negative_share_is_zero() {
        let shown = [-0.001, -0.02, 0.314].map(|share| percent(share).to_string());
        assert_eq!(shown, ["0", "-2", "31"]);
    }
}
