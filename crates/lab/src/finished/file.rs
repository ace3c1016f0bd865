//! The format of a results file: JSON with a line for each finished run.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io::Read;
use std::marker::PhantomData;
use std::ops::Not;
use std::path::{Path, PathBuf};

use residual_zoo_data::{DataError, hash_of_parts, one_line, read_utf8};
use residual_zoo_runs::{Error as RunError, Row};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Number;

use super::{FinishedFile, FinishedRun, FinishedRuns, Key};
use crate::Error;
use crate::quantity::QUANTITIES;

/// The version of the format. A file with another version is refused.
const FORMAT: u32 = 2;
/// Maximum size of a file, in bytes.
const MOST_BYTES: usize = 32 << 20;
/// Maximum number of rows that are written for a run.
const MOST_ROWS: usize = 64;
/// Maximum number of rows that are read for a run, and maximum number of its quantities.
const MOST_READ: usize = 1000;
/// Maximum size of a text, in bytes.
const MOST_TEXT: usize = 300;
/// The largest value of a number in a file. Squares of larger numbers may be infinite.
const MOST: f64 = 1e100;
/// The number up to which all integers are exact in an `f64`.
const MOST_EXACT: f64 = (1u64 << 53) as f64;

/// The header of a file, which names the experiment.
#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    experiment: String,
    scale: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    #[serde(rename = "format")]
    _format: u32,
    #[serde(rename = "experiment")]
    _experiment: String,
    #[serde(rename = "scale")]
    _scale: String,
    hosts: Vec<Host>,
    runs: Vec<Line>,
}

/// The program and the machine that trained a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    pub(crate) backend: String,
    pub(crate) machine: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<String>,
}

impl Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend {} on {}", self.backend, self.machine)?;
        match &self.commit {
            Some(commit) => write!(f, ", commit {commit}"),
            None => Ok(()),
        }
    }
}

/// A line of the file: a finished run.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// The name of the run's directory in the pool.
    key: String,
    /// The step at which the run's rung of a sweep ends (see [`Key`]); `None` if the run is trained to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<usize>,
    run: String,
    seed: u64,
    /// The index of the machine in the file's list of hosts.
    host: usize,
    #[serde(default, skip_serializing_if = "Not::not")]
    point: bool,
    #[serde(default, skip_serializing_if = "Not::not")]
    shared: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    diverged: Option<String>,
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "each_once"
    )]
    tasks: BTreeMap<String, String>,
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "each_once"
    )]
    measured: BTreeMap<String, Number>,
    /// Step, tokens, FLOPs, seconds, validation loss, validation accuracy and training loss. Trailing numbers may be
    /// missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rows: Vec<Vec<Option<Number>>>,
    /// The beginning of the BLAKE3 hash of this line (without this field) and of its machine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    blake3: String,
}

/// Reads a map. Refuses a map with a duplicate key, because the value of the key is ambiguous.
fn each_once<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    struct EachOnce<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for EachOnce<T> {
        type Value = BTreeMap<String, T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = entries.next_entry::<String, T>()? {
                if map.contains_key(&key) {
                    let problem = format!("has {:?} twice", one_line(key));
                    return Err(de::Error::custom(problem));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    deserializer.deserialize_map(EachOnce(PhantomData))
}

/// Converts a number to JSON with all of its digits, because a verdict can depend on the last digit. Whole numbers
/// become integers, which are shorter. Returns `None` if the number is not finite.
fn number(value: f64) -> Option<Number> {
    match value.fract() == 0.0 && value.abs() <= MOST_EXACT {
        true => Some((value as i64).into()),
        false => Number::from_f64(value),
    }
}

/// Returns the rows to write: every row with a loss that a chart plots, and the last row. If there are more than
/// [`MOST_ROWS`] of these, returns [`MOST_ROWS`] rows, of each kind at equal distances: first rows with a validation
/// loss, then other rows. For a point of a sweep, returns only the last row.
fn thinned(run: &FinishedRun, draws_train_loss: bool) -> Vec<&Row> {
    let Some((last, rest)) = run.rows.split_last() else {
        return Vec::new();
    };
    if run.is_point {
        return vec![last];
    }
    let (validated, others): (Vec<&Row>, Vec<&Row>) =
        rest.iter().partition(|row| row.valid_loss.is_some());
    let validated = spread([validated, vec![last]].concat(), MOST_ROWS);
    let others = others.into_iter();
    let others = others.filter(|row| draws_train_loss && row.train_loss.is_some());
    let mut rows = spread(others.collect(), MOST_ROWS - validated.len());
    rows.extend(validated);
    rows.sort_by_key(|row| row.step);
    rows
}

/// Returns at most `most` of `rows`, at equal distances, with the first and the last row.
fn spread(rows: Vec<&Row>, most: usize) -> Vec<&Row> {
    let count = rows.len();
    match most {
        _ if count <= most => rows,
        0 | 1 => rows.into_iter().take(most).collect(),
        _ => (0..most)
            .map(|i| rows[i * (count - 1) / (most - 1)])
            .collect(),
    }
}

/// Returns the numbers of a row, in the order of [`Line::rows`].
fn numbers(row: &Row, draws_train_loss: bool) -> Vec<Option<Number>> {
    let total = |value: f64| number(value).or(Some(0.into()));
    let mut numbers = vec![
        Some((row.step as u64).into()),
        Some(row.tokens.into()),
        total(row.flops),
        total(row.seconds),
        row.valid_loss.and_then(number),
        row.valid_accuracy.and_then(number),
        row.train_loss.filter(|_| draws_train_loss).and_then(number),
    ];
    while numbers.last().is_some_and(Option::is_none) {
        numbers.pop();
    }
    numbers
}

impl Line {
    fn of(
        (key, until): &Key,
        run: &FinishedRun,
        (host, on): (usize, &Host),
        draws_train_loss: bool,
    ) -> Self {
        let rows = thinned(run, draws_train_loss).into_iter();
        let measured = run.measured.iter();
        let line = Self {
            key: key.clone(),
            until: *until,
            run: run.run.clone(),
            seed: run.seed,
            host,
            point: run.is_point,
            shared: run.shared,
            diverged: run.diverged.clone(),
            tasks: run.tasks.clone(),
            measured: measured
                .filter_map(|(name, value)| Some((name.clone(), number(*value)?)))
                .collect(),
            rows: rows.map(|row| numbers(row, draws_train_loss)).collect(),
            blake3: String::new(),
        };
        Self {
            blake3: line.hash(on),
            ..line
        }
    }

    /// Hashes a line that has no hash yet, together with its machine.
    fn hash(&self, host: &Host) -> String {
        let parts = [json(self), json(host)];
        let parts = parts.each_ref().map(String::as_bytes);
        let hash = hash_of_parts("residual-zoo result v1", &parts);
        hash.to_hex()[..12].to_owned()
    }

    /// Reads the run. The error describes the first value that is impossible for a trained run.
    fn read(mut self, hosts: &[Host]) -> Result<(Key, FinishedRun), String> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if self.key.is_empty() || self.key.len() > MOST_TEXT || !self.key.bytes().all(is_name) {
            return Err(format!("has a run with the key {:?}", self.key));
        }
        let of_run = |problem: String| format!("has a run `{}` {problem}", self.key);
        let tasks = self.tasks.iter().flat_map(|(name, hash)| [name, hash]);
        let texts = tasks.chain(self.measured.keys()).chain([&self.run]);
        for text in texts {
            check_text(text).map_err(of_run)?;
        }
        if self.measured.len() > MOST_READ || self.rows.len() > MOST_READ {
            return Err(of_run(format!(
                "with more than {MOST_READ} numbers or rows"
            )));
        }
        let host = hosts.get(self.host).cloned();
        let host = host.ok_or_else(|| of_run(format!("on the machine {}", self.host)))?;
        if self.diverged.is_none() && self.rows.is_empty() {
            return Err(of_run("without a row".into()));
        }
        let mut measured = BTreeMap::new();
        for (name, value) in &self.measured {
            let found = finite(value).map_err(of_run)?;
            // Accuracies are shares. Losses and costs are not negative.
            let is_possible = match name.as_str() {
                name if name.ends_with("_accuracy") => (0.0..=1.0).contains(&found),
                name if QUANTITIES.contains(&name) => found >= 0.0,
                _ => true,
            };
            if !is_possible {
                return Err(of_run(format!("with {found} as the {name}")));
            }
            measured.insert(name.clone(), found);
        }
        let rows = self.rows.iter().map(|numbers| row(numbers));
        let rows: Vec<Row> = rows.collect::<Result<_, _>>().map_err(of_run)?;
        if rows.windows(2).any(|pair| pair[1].step <= pair[0].step) {
            return Err(of_run("whose steps do not rise".into()));
        }
        let totals = |row: &Row| [row.tokens as f64, row.flops, row.seconds];
        let falls = |pair: &[Row]| (0..3).any(|i| totals(&pair[1])[i] < totals(&pair[0])[i]);
        if rows.windows(2).any(falls) {
            return Err(of_run("whose tokens, FLOPs or seconds fall".into()));
        }
        check_losses(&measured, &rows, self.point).map_err(of_run)?;
        let written = std::mem::take(&mut self.blake3);
        if self.hash(&host) != written {
            return Err(format!(
                "has a run `{}` that was edited, or moved to another key, after it was written",
                self.key
            ));
        }
        let run = FinishedRun {
            run: self.run,
            seed: self.seed,
            is_point: self.point,
            shared: self.shared,
            diverged: self.diverged.map(one_line),
            tasks: self.tasks,
            measured,
            rows,
            host: Some(host),
        };
        Ok(((self.key, self.until), run))
    }
}

/// Checks that the measured losses and accuracies agree with the rows.
fn check_losses(
    measured: &BTreeMap<String, f64>,
    rows: &[Row],
    is_point: bool,
) -> Result<(), String> {
    let loss = |row: &Row| row.valid_loss;
    let accuracy = |row: &Row| row.valid_accuracy;
    let all = |of: fn(&Row) -> Option<f64>| rows.iter().filter_map(of);
    let first = rows.first().filter(|row| row.step == 0 && !is_point);
    // The rows of a sweep point are incomplete, and so are long lists of rows.
    let are_all = !is_point && rows.len() < MOST_ROWS;
    let (lowest, highest) = (all(loss).reduce(f64::min), all(accuracy).reduce(f64::max));
    let is_same = |a: f64, b: f64| a == b;
    let is_at_most = |a: f64, b: f64| if are_all { a == b } else { a <= b };
    let is_at_least = |a: f64, b: f64| if are_all { a == b } else { a >= b };
    type Fits<'a> = &'a dyn Fn(f64, f64) -> bool;
    let expected: [(&str, Option<f64>, Fits); 5] = [
        ("valid_loss", rows.last().and_then(loss), &is_same),
        ("first_valid_loss", first.and_then(loss), &is_same),
        ("lowest_valid_loss", lowest, &is_at_most),
        ("valid_accuracy", rows.last().and_then(accuracy), &is_same),
        ("highest_valid_accuracy", highest, &is_at_least),
    ];
    for (name, expected, fits) in expected {
        match (measured.get(name), expected) {
            (Some(found), Some(expected)) if !fits(*found, expected) => {
                return Err(format!(
                    "with {found} as the {name}, but {expected} by its rows"
                ));
            }
            (None, Some(_)) if name.ends_with("valid_loss") && !is_point => {
                return Err(format!("without the {name}"));
            }
            (Some(found), None) if name == "valid_loss" => {
                return Err(format!(
                    "with {found} as the {name}, but none in the last row"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_text(text: &str) -> Result<(), String> {
    match text.len() > MOST_TEXT || one_line(text) != text {
        true => Err(format!("with the text {:?}", one_line(text))),
        false => Ok(()),
    }
}

fn finite(value: &Number) -> Result<f64, String> {
    let found = value.as_f64().filter(|value| value.abs() <= MOST);
    found.ok_or_else(|| format!("with the number {value}"))
}

/// Returns the row with these numbers.
fn row(numbers: &[Option<Number>]) -> Result<Row, String> {
    let found = numbers.iter().map(|value| value.as_ref().map(finite));
    let found: Vec<Option<f64>> = found.map(Option::transpose).collect::<Result<_, _>>()?;
    let [
        Some(step),
        Some(tokens),
        Some(flops),
        Some(seconds),
        ref values @ ..,
    ] = found[..]
    else {
        return Err("with a row of fewer than four numbers".into());
    };
    let count = |value: f64| {
        let is_count = value.fract() == 0.0 && (0.0..=MOST_EXACT).contains(&value);
        let count = is_count.then_some(value as u64);
        count.ok_or_else(|| format!("with {value} as a count"))
    };
    let value = |i: usize| values.get(i).copied().flatten();
    let row = Row {
        step: usize::try_from(count(step)?).unwrap_or(usize::MAX),
        tokens: count(tokens)?,
        flops,
        seconds,
        valid_loss: value(0),
        valid_accuracy: value(1),
        train_loss: value(2),
        ..Row::default()
    };
    match row.problem() {
        Some(problem) => Err(format!("with a row in which {problem}")),
        None => Ok(row),
    }
}

impl FinishedRuns {
    /// Writes the runs of the experiment `name` at a scale as JSON. `here` is this machine, which trained all runs that
    /// were not read from a file. With `draws_train_loss`, the rows keep their training losses.
    pub(crate) fn to_json(
        &self,
        (name, scale): (&str, &str),
        here: &Host,
        draws_train_loss: bool,
    ) -> String {
        let mut hosts: Vec<&Host> = Vec::new();
        let mut lines = Vec::new();
        let mut runs: Vec<(&Key, &FinishedRun)> = self.runs.iter().collect();
        runs.sort_by_key(|(key, run)| (run.is_point, &run.run, run.seed, *key));
        for (key, run) in runs {
            let host = run.host.as_ref().unwrap_or(here);
            let at = hosts.iter().position(|known| *known == host);
            let at = at.unwrap_or_else(|| {
                hosts.push(host);
                hosts.len() - 1
            });
            lines.push(json(&Line::of(key, run, (at, host), draws_train_loss)));
        }
        let head = json(&Head {
            format: FORMAT,
            experiment: name.to_owned(),
            scale: scale.to_owned(),
        });
        let (head, hosts) = (head.trim_end_matches('}'), json(&hosts));
        format!(
            "{head},\n\"hosts\":{hosts},\n\"runs\":[\n{}\n]}}\n",
            lines.join(",\n")
        )
    }

    /// Whether no run is finished.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|e| unreachable!("results are plain data: {e}"))
}

/// Returns the error that the file at `path` has this problem.
fn wrong(path: &Path, problem: String) -> Error {
    Error::Finished {
        path: path.to_owned(),
        problem,
    }
}

/// Returns the error that the file at `path` is damaged in this way.
fn damaged(path: &Path, problem: &dyn Display) -> Error {
    let remedy = "restore the file, or choose another directory";
    wrong(path, format!("{problem}; {remedy}"))
}

/// Reads the text of a file, which must not be too long.
fn read_text(path: &Path) -> Result<String, Error> {
    let text = read_utf8(path).map_err(|error| {
        let problem = match error {
            _ if path.parent().is_some_and(|folder| folder.is_file()) => {
                "cannot be read; give `--results` the directory with this file".into()
            }
            DataError::NotFound { .. } => {
                "does not exist; publish the results first, or leave `--results` out".into()
            }
            error => format!("cannot be read: {error}"),
        };
        wrong(path, problem)
    })?;
    if text.len() > MOST_BYTES {
        let most = MOST_BYTES >> 20;
        let problem = format!("has more than {most} MiB; restore the file");
        return Err(wrong(path, problem));
    }
    Ok(text)
}

/// The beginning of every results file.
const BEGINNING: &[u8] = b"{\"format\":";

/// Whether a file begins as a results file does.
fn is_results_file(path: &Path) -> bool {
    let mut bytes = [0; BEGINNING.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.is_ok() && bytes == *BEGINNING
}

/// Reads the header in the text of a file.
fn read_head(path: &Path, text: &str) -> Result<Head, Error> {
    let head: Head = serde_json::from_str(text)
        .map_err(|error| damaged(path, &format!("holds no results of runs: {error}")))?;
    if head.format != FORMAT {
        let format = head.format;
        let problem = format!("has the format {format}, but this program reads {FORMAT}");
        return Err(damaged(path, &problem));
    }
    Ok(head)
}

/// Reads the runs in the text of a file.
fn read_runs(path: &Path, text: &str) -> Result<BTreeMap<Key, FinishedRun>, Error> {
    let whole: Whole = serde_json::from_str(text).map_err(|error| damaged(path, &error))?;
    for host in &whole.hosts {
        let commit = host.commit.iter();
        let texts = commit.chain([&host.backend, &host.machine]);
        for text in texts {
            let checked = check_text(text);
            checked.map_err(|problem| damaged(path, &format!("has a machine {problem}")))?;
        }
    }
    let mut runs = BTreeMap::new();
    for line in whole.runs {
        let read = line.read(&whole.hosts);
        let (key, run) = read.map_err(|problem| damaged(path, &problem))?;
        if let Some(twice) = runs.insert(key.clone(), run) {
            let problem = format!("has the run `{}` twice ({})", key.0, twice.run);
            return Err(damaged(path, &problem));
        }
    }
    Ok(runs)
}

impl FinishedFile {
    /// Reads the runs of the experiment `name` at a scale.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is missing or damaged, or belongs to another experiment or scale.
    pub fn read(path: &Path, name: &str, scale: &str) -> Result<Self, Error> {
        let text = read_text(path)?;
        let head = read_head(path, &text)?;
        let elsewhere = "choose another directory";
        if head.experiment != name {
            let other = head.experiment;
            let problem =
                format!("holds runs of the experiment `{other}`, not of `{name}`; {elsewhere}");
            return Err(wrong(path, problem));
        }
        if head.scale != scale {
            let other = head.scale;
            let scale = match scale {
                "" => "of an experiment without scales".to_owned(),
                scale => format!("of `{scale}`"),
            };
            let problem = format!("holds runs of the scale `{other}`, not {scale}; {elsewhere}");
            return Err(wrong(path, problem));
        }
        Ok(Self {
            path: path.to_owned(),
            runs: read_runs(path, &text)?,
            others: BTreeMap::new(),
        })
    }

    /// Reads the runs of the experiment `name` at a scale, and the runs in all other results files of the directory,
    /// without their times. The experiment's own file may be missing if there are others.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FinishedFile::read`], and an error if another results file is damaged.
    pub fn read_all(path: &Path, name: &str, scale: &str) -> Result<Self, Error> {
        let others = Self::read_others(path)?;
        let own = match path.symlink_metadata().is_ok() || others.is_empty() {
            true => Self::read(path, name, scale)?,
            false => Self {
                path: path.to_owned(),
                runs: BTreeMap::new(),
                others: BTreeMap::new(),
            },
        };
        Ok(Self { others, ..own })
    }

    /// Reads the runs in all results files beside the file at `path`. Other files of the directory are left out.
    fn read_others(path: &Path) -> Result<BTreeMap<Key, Vec<(PathBuf, FinishedRun)>>, Error> {
        let folder = path.parent().into_iter();
        let entries = folder.flat_map(std::fs::read_dir).flatten().flatten();
        let is_other = |found: &PathBuf| {
            let is_json = found.extension().is_some_and(|end| end == "json");
            found != path && is_json && found.is_file() && is_results_file(found)
        };
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_other).collect();
        files.sort();
        let mut others: BTreeMap<Key, Vec<(PathBuf, FinishedRun)>> = BTreeMap::new();
        for file in files {
            let text = read_text(&file)?;
            read_head(&file, &text)?;
            for (key, run) in read_runs(&file, &text)? {
                let run = (file.clone(), run.without_times());
                others.entry(key).or_default().push(run);
            }
        }
        Ok(others)
    }

    /// Checks that results of the experiment `name` at a scale may be added to `path`: to a new file, or to earlier
    /// results of this scale.
    ///
    /// # Errors
    ///
    /// Returns an error if the path leads to anything else, such as another file or a dangling link, if the earlier
    /// results are damaged, or if no file can be written there.
    pub fn check_place(path: &Path, name: &str, scale: &str) -> Result<(), Error> {
        if let Some(directory) = path.parent().filter(|directory| directory.is_dir()) {
            let probe = directory.join(format!(".{}.partial", std::process::id()));
            let written = std::fs::write(&probe, "").and_then(|()| std::fs::remove_file(&probe));
            written.map_err(RunError::io("write", &probe))?;
        }
        match read_utf8(path) {
            Err(DataError::NotFound { .. }) => Ok(()),
            Err(error) => Err(wrong(path, format!("cannot be read: {error}"))),
            Ok(text)
                if text.as_bytes().starts_with(BEGINNING)
                    || serde_json::from_str::<Head>(&text).is_ok() =>
            {
                Self::read(path, name, scale).map(drop)
            }
            Ok(_) => {
                let problem = "holds no results of this experiment, so `--publish` does not replace it; move it, or \
                               publish to another directory";
                Err(wrong(path, problem.into()))
            }
        }
    }
}
