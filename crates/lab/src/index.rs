//! The page that links the reports of a directory.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use residual_zoo_data::read_utf8;
use residual_zoo_report::markdown::address;
use residual_zoo_report::{Cell, Column, MARK, Report, Section, Table};
use residual_zoo_runs::{Error as RunError, disk};
use serde::Deserialize;

use crate::{Origin, REPORT, Verdict};

/// The file name of the page in the directory of the reports.
pub const INDEX: &str = "index.html";

/// The name of the file with an experiment's results, in the directory of its report.
const RESULTS: &str = "results.json";

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
struct Claim {
    verdict: Verdict,
}

/// The fields of a `results.json` that identify the experiment of the report.
#[derive(Deserialize)]
struct Owner {
    title: String,
    origin: Origin,
}

impl Owner {
    /// Whether a report with this title and origin may replace this report, because both are of the same experiment.
    /// The path of the file identifies an experiment whose title was edited. The title identifies an experiment whose
    /// file was moved.
    fn is_of(&self, title: &str, origin: &Origin) -> bool {
        let is_same_file = !origin.file.is_empty() && self.origin.file == origin.file;
        self.origin.name == origin.name
            && self.origin.scale == origin.scale
            && (self.title == title || is_same_file)
    }

    /// Returns the error for a `folder` that holds this report.
    fn refuse(&self, folder: PathBuf) -> RunError {
        let (title, name) = (&self.title, &self.origin.name);
        let scale = match self.origin.scale.as_str() {
            "" => String::new(),
            scale => format!(", scale {scale}"),
        };
        RunError::NoRun {
            path: folder,
            problem: format!(
                "holds the report of another experiment, \"{title}\" (experiment {name}{scale}); rename the file of this \
                 one, delete that directory, or choose another place with `--runs DIR`"
            ),
        }
    }
}

/// Checks that the index of `directory` and a report in its folder `name` can be written. An existing report must be of
/// the same experiment. These paths may hold only files of a report, and no links.
///
/// # Errors
///
/// Returns an error that names the first file or folder that cannot be replaced, or the experiment whose report is
/// there.
pub fn check_pages(
    directory: &Path,
    name: &str,
    title: &str,
    origin: &Origin,
) -> Result<(), RunError> {
    let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    let is_ours =
        |path: &Path| is_file(path) && read_utf8(path).is_ok_and(|text| text.contains(MARK));
    let (index, folder) = (directory.join(INDEX), directory.join(name));
    if is_there(&index) && !is_ours(&index) {
        return Err(not_ours(index));
    }
    let mut known = folder.ancestors().filter(|path| is_there(path));
    if known.next().is_some_and(|path| !path.is_dir()) {
        let error = std::io::ErrorKind::NotADirectory.into();
        return Err(RunError::io("create", &folder)(error));
    }
    let entries = fs::read_dir(&folder).into_iter().flatten();
    let entries = entries.filter_map(Result::ok).map(|entry| entry.path());
    // Partial files of a report, left by a full disk or a killed process, do not count, because they are written again.
    let is_partial = |path: &PathBuf| path.extension().is_some_and(|it| it == "partial");
    let mut entries: Vec<_> = entries
        .filter(|path| !(is_partial(path) && is_file(path)))
        .collect();
    entries.sort();
    let report = folder.join(REPORT);
    let foreign = match is_ours(&report) {
        true => entries.iter().find(|path| !is_file(path)),
        false => entries
            .iter()
            .find(|path| **path == report)
            .or(entries.first()),
    };
    if let Some(foreign) = foreign {
        return Err(not_ours(foreign.clone()));
    }
    let results = folder.join(RESULTS);
    let text = is_file(&results).then(|| read_utf8(&results));
    let owner = text.and_then(|text| serde_json::from_str::<Owner>(&text.ok()?).ok());
    match owner {
        Some(owner) if !owner.is_of(title, origin) => Err(owner.refuse(folder)),
        _ => Ok(()),
    }
}

/// Returns the error for a file or folder that is not part of a report, although a report would be written there.
fn not_ours(path: PathBuf) -> RunError {
    RunError::NoRun {
        path,
        problem: "is a link or something else that is not part of a report; move it away, or choose another place with \
                  `--runs DIR`"
            .into(),
    }
}

/// Writes `index.html` into `directory`. The page links the reports in all subdirectories, newest first. Other entries
/// are skipped. If the results of a report cannot be read, only its name is shown.
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

/// Returns the date and the table row of the report in `directory`, which is called `name`.
fn row(directory: &Path, name: &OsStr) -> (String, Vec<Cell>) {
    let mut first = Cell {
        link: format!("{}/{REPORT}", address(name.as_encoded_bytes())),
        ..Cell::from(name.to_string_lossy().into_owned())
    };
    let results = directory.join(RESULTS);
    // Reading anything else, such as a pipe, could block.
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
