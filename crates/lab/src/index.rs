//! The page that links the reports of a directory.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use residual_zoo_data::read_utf8;
use residual_zoo_report::markdown::address;
use residual_zoo_report::{Cell, Column, MARK, Report, Section, Table};
use residual_zoo_runs::{Error as RunError, disk};
use serde::Deserialize;

use crate::{REPORT, Verdict};

/// The name of the page in the directory of the reports.
pub const INDEX: &str = "index.html";

/// The fields of an experiment's `results.json` that the page shows.
#[derive(Deserialize)]
struct Known {
    title: String,
    date: String,
    origin: Origin,
    missing: Vec<String>,
    claims: Vec<Claim>,
}

#[derive(Deserialize)]
struct Origin {
    scale: String,
}

#[derive(Deserialize)]
struct Claim {
    verdict: Verdict,
}

/// Checks that the index of `directory` and a report in its folder `name` can be written. Existing ones must be from
/// this program, and no file may stand in the place of a folder.
///
/// # Errors
///
/// Names the first file or folder that cannot be replaced.
pub fn check_pages(directory: &Path, name: &str) -> Result<(), RunError> {
    let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    let is_ours =
        |path: &Path| is_file(path) && read_utf8(path).is_ok_and(|text| text.contains(MARK));
    let (index, folder) = (directory.join(INDEX), directory.join(name));
    if is_there(&index) && !is_ours(&index) {
        return Err(RunError::RunExists(index));
    }
    let mut known = folder.ancestors().skip(1).filter(|path| is_there(path));
    if known.next().is_some_and(|path| !path.is_dir()) {
        let error = std::io::ErrorKind::NotADirectory.into();
        return Err(RunError::io("create", &folder)(error));
    }
    let entries = fs::read_dir(&folder).into_iter().flatten();
    let entries = entries.filter_map(Result::ok).map(|entry| entry.path());
    // Partial files of a report, left by a full disk or a killed process, are written again.
    let is_partial = |path: &PathBuf| path.extension().is_some_and(|it| it == "partial");
    let entries: Vec<_> = entries
        .filter(|path| !(is_partial(path) && is_file(path)))
        .collect();
    let is_report = entries.iter().all(|path| is_file(path)) && is_ours(&folder.join(REPORT));
    match entries.is_empty() || is_report {
        true => Ok(()),
        false => Err(RunError::RunExists(folder)),
    }
}

/// Writes `index.html` into `directory`. It links the report of every directory in it, the newest first. Anything else
/// is left out. A report without readable results has only its name.
///
/// # Errors
///
/// Returns an error if the directory cannot be read or the page cannot be written.
pub fn write_index(directory: &Path) -> Result<(), RunError> {
    let failed = |error| RunError::io("read", directory)(error);
    let mut rows = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().join(REPORT).is_file() {
            rows.push(row(&entry.path(), &entry.file_name()));
        }
    }
    rows.sort_by(|a, b| (&b.0, &a.1[0].link).cmp(&(&a.0, &b.1[0].link)));
    let verdicts = Verdict::ALL.map(|verdict| Column::number(verdict.signed(), ""));
    let columns = ["experiment", "scale", "date"].map(Column::text);
    let table = Table {
        heading: "Reports".into(),
        note: "The number of claims with each verdict, the newest report first.".into(),
        columns: columns.into_iter().chain(verdicts).collect(),
        rows: rows.into_iter().map(|(_, row)| row).collect(),
        ..Table::default()
    };
    let report = Report {
        title: "Experiments".into(),
        sections: vec![Section::Table(table)],
        ..Report::default()
    };
    disk::replace_shared(&directory.join(INDEX), report.to_html().as_bytes())
}

/// The date and the row of the report in `directory`, under the name `name`.
fn row(directory: &Path, name: &OsStr) -> (String, Vec<Cell>) {
    let mut first = Cell {
        link: format!("{}/{REPORT}", address(name.as_encoded_bytes())),
        ..Cell::from(name.to_string_lossy().into_owned())
    };
    let results = directory.join("results.json");
    // Anything else, such as a pipe, could block.
    let text = results.is_file().then(|| read_utf8(&results));
    let Some(Ok(text)) = text else {
        return (String::new(), vec![first]);
    };
    let Ok(known) = serde_json::from_str::<Known>(&text) else {
        first.notes.push("its results cannot be read".into());
        return (String::new(), vec![first]);
    };
    first
        .notes
        .push(std::mem::replace(&mut first.text, known.title));
    if !known.missing.is_empty() {
        first.notes.push("not complete".into());
    }
    let count = |verdict: Verdict| {
        let found = known.claims.iter().filter(|claim| claim.verdict == verdict);
        match found.count() {
            0 => Cell::from("0"),
            count => Cell {
                tone: verdict.tone(),
                ..Cell::from(count.to_string())
            },
        }
    };
    let scale = match known.origin.scale.as_str() {
        "" => "–",
        scale => scale,
    };
    let mut cells = vec![first, scale.into(), known.date.as_str().into()];
    cells.extend(Verdict::ALL.map(count));
    (known.date, cells)
}
