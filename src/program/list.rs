//! `residual-zoo list`

use clap::Args;
use residual_zoo::cli;
use residual_zoo::compose::List;
use residual_zoo::core::ConfigError;
use residual_zoo::experiment::Experiment;
use residual_zoo::lab::Error;
use residual_zoo::report::wrap;
use residual_zoo::runs::did_you_mean;
use residual_zoo::{ConnectionConfig, Zoo, builtin};
use residual_zoo_system::terminal::output_columns;

/// List the architectures, connections, run files and experiments that have a name
///
/// Without WORD, print the names. With one of the words architectures, connections, runs or experiments, print the
/// names of this kind with descriptions. Any other word searches: only names and descriptions that contain all such
/// words are shown.
#[derive(Args)]
#[command(after_long_help = "Examples:
  residual-zoo list runs
  residual-zoo list shakespeare
  residual-zoo list experiments tokenformer")]
pub struct ListArgs {
    /// The kind to describe: architectures, connections, runs, experiments; or a word to search for
    #[arg(value_name = "WORD")]
    words: Vec<String>,
}

/// The words for the kinds of names.
pub const KINDS: [&str; 4] = ["architectures", "connections", "runs", "experiments"];

/// Names of one kind.
struct Group {
    /// The word for the kind.
    word: &'static str,
    heading: &'static str,
    /// Names and their descriptions.
    rows: Vec<[String; 2]>,
}

/// Prints names, with descriptions if the options ask for them.
pub fn list(options: ListArgs) -> anyhow::Result<()> {
    let groups = groups()?;
    let words: Vec<String> = options
        .words
        .iter()
        .flat_map(|words| words.split_whitespace())
        .map(str::to_lowercase)
        .collect();
    if words.is_empty() {
        return overview(&groups);
    }
    // The word may be plural or singular.
    let is_kind = |group: &Group, word: &String| {
        group.word == word || group.word.strip_suffix('s') == Some(word)
    };
    let (kinds, searched): (Vec<_>, Vec<_>) = words
        .iter()
        .partition(|word| groups.iter().any(|group| is_kind(group, word)));
    let is_found = |row: &[String; 2]| {
        let text = row.join(" ").to_lowercase();
        searched.iter().all(|word| text.contains(word.as_str()))
    };
    let mut found = Vec::new();
    for group in &groups {
        let is_asked = kinds.is_empty() || kinds.iter().any(|word| is_kind(group, word));
        let rows = group.rows.iter().filter(|row| is_asked && is_found(row));
        let rows: Vec<_> = rows.cloned().collect();
        if !rows.is_empty() {
            found.push((group.heading, rows));
        }
    }
    if found.is_empty() {
        let names = groups.iter().flat_map(|group| &group.rows);
        let meant = did_you_mean(searched[0], names.map(|[name, _]| name));
        let problem = format!(
            "does not occur in any name or description here{meant}; `residual-zoo list` shows all names"
        );
        return Err(ConfigError::new(options.words.join(" "), problem).into());
    }
    for (i, (heading, rows)) in found.into_iter().enumerate() {
        if i > 0 {
            cli::print("")?;
        }
        section(heading, rows)?;
    }
    Ok(())
}

fn groups() -> Result<Vec<Group>, Error> {
    let named = |list: &[(&str, &str)]| {
        let rows = list
            .iter()
            .map(|(name, about)| [name, about.trim()].map(str::to_owned));
        rows.collect::<Vec<_>>()
    };
    let run_files = builtin::run_files().map(|(name, text)| [name, first_comment(text)]);
    let mut experiments = Vec::new();
    for source in builtin::experiments() {
        let experiment = Experiment::parse(&source.text, &source.path)?;
        experiments.push([source.name, experiment.title]);
    }
    let composed = (
        "Composed",
        "Layers of one or several architectures, with a connection around each sublayer or layer, a recurrence over \
         the layers, a depth loop, or patches of images.",
    );
    Ok(vec![
        Group {
            word: KINDS[0],
            heading: "Architectures",
            rows: named(&[Zoo::NAMES, &[composed]].concat()),
        },
        Group {
            word: KINDS[1],
            heading: "Connections",
            rows: named(ConnectionConfig::NAMES),
        },
        Group {
            word: KINDS[2],
            heading: "Run files, for train, compare, sweep, bench, plan, describe and tokenize",
            rows: run_files.collect(),
        },
        Group {
            word: KINDS[3],
            heading: "Experiments, for experiment, sweep and plan",
            rows: experiments,
        },
    ])
}

/// Prints the names on one screen. For run files, prints only the directories.
fn overview(groups: &[Group]) -> anyhow::Result<()> {
    for group in groups {
        let names = group
            .rows
            .iter()
            .map(|[name, _]| match name.split_once('/') {
                Some((folder, _)) => format!("{folder}/"),
                None => name.clone(),
            });
        let mut shown: Vec<String> = names.collect();
        shown.dedup();
        let text = format!(
            "{} ({}): {}",
            group.word,
            group.rows.len(),
            shown.join(", ")
        );
        for (i, line) in wrap(&text, columns() - 3).into_iter().enumerate() {
            let indent = if i == 0 { "" } else { "  " };
            cli::print(&format!("{indent}{line}"))?;
        }
    }
    let more = "More: `residual-zoo list runs` lists the run files; any other WORD searches.";
    cli::print(&cli::wrapped(more, ""))?;
    Ok(())
}

/// Returns the first sentence of the comment at the beginning of `text`.
fn first_comment(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//"));
    let comment = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    match comment.split_once(". ") {
        Some((first, _)) => format!("{first}."),
        None => comment,
    }
}

/// Prints a heading, and the names with their descriptions.
fn section(heading: &str, rows: Vec<[String; 2]>) -> Result<(), Error> {
    let width = rows.iter().map(|[name, _]| name.len()).max().unwrap_or(0);
    cli::print(heading)?;
    for [name, about] in rows {
        for (i, line) in wrap(&about, columns() - width - 4).into_iter().enumerate() {
            let name = if i == 0 { &name } else { "" };
            cli::print(&format!("  {name:<width$}  {line}"))?;
        }
    }
    Ok(())
}

/// Returns the number of columns to fill: the width of the terminal, but at least 60 and at most 100.
fn columns() -> usize {
    output_columns().map_or(80, |columns| columns.clamp(60, 100))
}
