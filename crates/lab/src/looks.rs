//! The record of looks. A look is an occasion on which the verdicts of an experiment were shown. Seeds that are added
//! after a look make a false verdict more likely. If looks had different seeds, the report therefore shows the verdicts
//! and the number of seeds of each look.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use residual_zoo_data::hash_of_parts;
use residual_zoo_report::{Cell, Column, Table};
use residual_zoo_runs::{Error as RunError, disk};
use serde::{Deserialize, Serialize};

use crate::{Judgement, Verdict};

/// The file name of the record in the directory of a report. The record has a line of JSON for each look.
pub const LOOKS: &str = "looks.jsonl";

/// A look: the verdicts that were shown on one occasion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Look {
    date: String,
    /// The observed seeds.
    seeds: BTreeSet<u64>,
    /// A hash of the configs without their seeds. Looks with another hash do not count.
    configs: String,
    /// Each claim and its verdict.
    verdicts: Vec<(String, Verdict)>,
}

impl Look {
    pub(crate) fn new(
        date: &str,
        seeds: impl Iterator<Item = u64>,
        configs: &[(String, String)],
        claims: &[Judgement],
    ) -> Self {
        let is_seed = |line: &&str| line.trim_start().starts_with("seed: ");
        let parts = configs.iter().map(|(name, config)| {
            let lines: Vec<&str> = config.lines().filter(|line| !is_seed(line)).collect();
            format!("{name}\n{}", lines.join("\n"))
        });
        let parts: Vec<String> = parts.collect();
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        let verdict = |found: &Judgement| (found.claim.says.clone(), found.verdict);
        Self {
            date: date.to_owned(),
            seeds: seeds.collect(),
            configs: hash_of_parts("residual-zoo looks v1", &parts).to_hex()[..12].to_owned(),
            verdicts: claims.iter().map(verdict).collect(),
        }
    }

    /// Whether any claim was tested.
    fn saw(&self) -> bool {
        let mut verdicts = self.verdicts.iter();
        verdicts.any(|(_, verdict)| *verdict != Verdict::NotTested)
    }

    /// Whether both looks have the same seeds, configs and verdicts.
    fn is_like(&self, other: &Self) -> bool {
        let seen = |look: &Self| {
            (
                look.seeds.clone(),
                look.configs.clone(),
                look.verdicts.clone(),
            )
        };
        seen(self) == seen(other)
    }
}

/// Adds a look to the record in `directory`, and returns all looks at these runs. With `anew`, the record is emptied
/// first. A look without a tested claim is not added, and neither is a repetition of the last look. Lines that are not
/// looks stay.
pub(crate) fn record(directory: &Path, now: Look, anew: bool) -> Result<Vec<Look>, RunError> {
    let path = directory.join(LOOKS);
    let is_file = fs::symlink_metadata(&path).is_ok_and(|there| there.is_file());
    let before = match is_file && !anew {
        true => fs::read(&path).map_err(RunError::io("read", &path))?,
        false => Vec::new(),
    };
    let mut text = String::from_utf8_lossy(&before).into_owned();
    let known = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let mut looks: Vec<Look> = known.collect();
    looks.retain(|look| look.configs == now.configs);
    let is_new = now.saw() && !looks.last().is_some_and(|last| last.is_like(&now));
    if is_new {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text += &serde_json::to_string(&now).unwrap_or_default();
        text.push('\n');
        looks.push(now);
    }
    if is_new || (anew && is_file) {
        fs::create_dir_all(directory).map_err(RunError::io("create", directory))?;
        disk::replace_shared(&path, text.as_bytes())?;
    }
    Ok(looks)
}

/// Returns the verdicts of each look at `claims`, if there are several looks with different seeds.
pub(crate) fn table(looks: &[Look], claims: &[Judgement]) -> Option<Table> {
    let seeds: BTreeSet<&BTreeSet<u64>> = looks.iter().map(|look| &look.seeds).collect();
    if seeds.len() < 2 {
        return None;
    }
    let title = |look: &Look| Column {
        hint: look.date.clone(),
        ..Column::text(match look.seeds.len() {
            1 => "1 seed".into(),
            count => format!("{count} seeds"),
        })
    };
    let row = |found: &Judgement| {
        let says = &found.claim.says;
        let cell = |look: &Look| {
            let known = look.verdicts.iter().find(|(claim, _)| claim == says);
            known.map_or_else(Cell::default, |(_, verdict)| Cell {
                tone: verdict.tone(),
                ..Cell::from(verdict.signed())
            })
        };
        std::iter::once(says.as_str().into())
            .chain(looks.iter().map(cell))
            .collect()
    };
    Some(Table {
        heading: "Looks at the verdicts".into(),
        note: "The verdicts were seen more than once, with different seeds. Seeds that are added after a look make a false \
               verdict more likely."
            .into(),
        columns: std::iter::once(Column::text("claim")).chain(looks.iter().map(title)).collect(),
        rows: claims.iter().map(row).collect(),
        highlight: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(seeds: u64, verdict: Verdict) -> Look {
        Look {
            date: format!("day {seeds}"),
            seeds: (1..=seeds).collect(),
            configs: "a".into(),
            verdicts: vec![("better".into(), verdict)],
        }
    }

    #[test]
    fn a_look_is_added_if_it_saw_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let folder = &folder.path().join("report");
        let add = |look: Look, anew| record(folder, look, anew).unwrap().len();
        assert_eq!(add(look(1, Verdict::NotTested), false), 0);
        assert!(!folder.exists());
        assert_eq!(add(look(2, Verdict::Undecided), false), 1);
        let later = Look {
            date: "later".into(),
            ..look(2, Verdict::Undecided)
        };
        assert_eq!(add(later, false), 1);
        assert_eq!(add(look(8, Verdict::Holds), false), 2);
        // A look at another experiment under this name, and an incomplete line.
        let other = Look {
            configs: "b".into(),
            ..look(2, Verdict::Holds)
        };
        assert_eq!(add(other, false), 1);
        let path = folder.join(LOOKS);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text + "{\"date\": ").unwrap();
        assert_eq!(add(look(9, Verdict::Holds), false), 3);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 5, "{text}");
        // The runs of the earlier looks were deleted, so the record is emptied.
        assert_eq!(add(look(2, Verdict::NotTested), true), 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }
}
