//! `residual-zoo list`

use residual_zoo::cli::{self, Files};
use residual_zoo::compose::List;
use residual_zoo::experiment::Experiment;
use residual_zoo::lab::Error;
use residual_zoo::{ConnectionConfig, Zoo, builtin};

/// Prints everything that has a name.
pub fn list() -> anyhow::Result<()> {
    let named = |list: &[(&str, &str)]| {
        let rows = list
            .iter()
            .map(|(name, about)| [name, about.trim()].map(str::to_owned));
        rows.collect::<Vec<_>>()
    };
    let run_files = builtin::run_files().map(|(name, text)| [name, first_comment(text)]);
    let mut experiments = Vec::new();
    for source in builtin::experiments() {
        if let Files::Scales([text, ..]) = source.files {
            let experiment = Experiment::parse(text, source.name.as_ref())?;
            experiments.push([source.name, experiment.title]);
        }
    }
    let composed = (
        "Composed",
        "Layers of one or several architectures, with a connection around each sublayer or layer, a recurrence over \
         the layers, or patches of images.",
    );
    section("Architectures", named(&[Zoo::NAMES, &[composed]].concat()))?;
    section("Connections", named(ConnectionConfig::NAMES))?;
    section(
        "Run files, for train, compare, bench and describe",
        run_files.collect(),
    )?;
    section("Experiments", experiments)?;
    Ok(())
}

/// The first sentence of the comment that `text` begins with.
fn first_comment(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//"));
    let comment = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    match comment.split_once(". ") {
        Some((first, _)) => format!("{first}."),
        None => comment,
    }
}

/// Prints a heading and the names, each with what it is beside it.
fn section(heading: &str, rows: Vec<[String; 2]>) -> Result<(), Error> {
    let width = rows.iter().map(|[name, _]| name.len()).max().unwrap_or(0);
    cli::print(heading)?;
    for [name, about] in rows {
        for (i, line) in wrapped(&about, COLUMNS - width - 4).into_iter().enumerate() {
            let name = if i == 0 { &name } else { "" };
            cli::print(&format!("  {name:<width$}  {line}"))?;
        }
    }
    cli::print("")
}

/// The columns of a terminal.
const COLUMNS: usize = 80;

/// `text` in lines of at most `width` characters, unless a word is longer.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            *line += word;
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            *line += &format!(" {word}");
        } else {
            lines.push(word.into());
        }
    }
    lines
}
