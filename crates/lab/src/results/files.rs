//! Writes results to files: a report, JSON, CSV, and Markdown with its pictures.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use residual_zoo_report::{Section, Table, csv, markdown};
use residual_zoo_runs::{Error as RunError, disk};

use super::{REPORT, Results};
use crate::Error;
use crate::charts::RunRow;
use crate::experiment::ChartSpec;
use crate::finished::{FinishedFile, FinishedRuns, Host};
use crate::sweep::Value;
use crate::tuning::Tuning;

impl Results {
    /// Returns a CSV with a line for every observation. A line has the swept values, the directory of the run, and all
    /// quantities, in seconds, bytes and shares. After these lines, every run with seeds has a line with its means,
    /// marked `mean` in the seed column. A run with two or more seeds also has a line with the standard deviations
    /// (with n − 1), marked `deviation`. If only some seeds of a run have a quantity, its mean and deviation are empty.
    pub fn to_csv(&self) -> String {
        let all = self.observations.iter();
        let quantities: BTreeSet<&str> = all
            .flat_map(|found| found.quantities.keys().map(String::as_str))
            .collect();
        let values = self.tuning.iter().flat_map(Tuning::values);
        let values: BTreeMap<String, (&str, &[Value])> = values.collect();
        let is_swept = (self.observations.iter()).any(|found| values.contains_key(&found.run));
        let over = self.tuning.iter().flat_map(|tuning| &tuning.sweep.over);
        let over: Vec<&str> = over
            .filter(|_| is_swept)
            .map(|swept| &*swept.field)
            .collect();
        let has_place = self
            .observations
            .iter()
            .any(|found| found.directory.is_some());
        let mut head = [&["run"], &over[..], &["seed"]].concat();
        head.extend(has_place.then_some("directory"));
        head.extend(&quantities);
        let line = |run: &str,
                    seed: String,
                    directory: Option<&Path>,
                    value: &dyn Fn(&str) -> Option<f64>| {
            let value = |name: &&str| value(name).map_or(String::new(), |x| x.to_string());
            let (run, values) = values.get(run).copied().unwrap_or((run, &[]));
            let of_sweep = |i: usize| values.get(i).map_or(String::new(), Value::to_string);
            let mut cells = vec![run.to_owned()];
            cells.extend((0..over.len()).map(of_sweep));
            cells.push(seed);
            let place = || directory.map_or(String::new(), |path| path.display().to_string());
            cells.extend(has_place.then(place));
            cells.extend(quantities.iter().map(value));
            cells
        };
        let all = self.observations.iter();
        let lines = all.map(|found| {
            let seed = found.seed.map_or(String::new(), |seed| seed.to_string());
            let directory = found.directory.as_deref();
            line(&found.run, seed, directory, &|name| found.get(name))
        });
        let mut lines: Vec<Vec<String>> = lines.collect();
        for RunRow { name: run, .. } in &self.rows {
            let seeds = self.seeds(run);
            let estimate = |quantity: &str| {
                let found = self.estimate(run, quantity);
                found.filter(|found| found.count == seeds)
            };
            if seeds > 0 {
                let mean = |quantity: &str| Some(estimate(quantity)?.mean);
                lines.push(line(run, "mean".into(), None, &mean));
            }
            if seeds > 1 {
                let deviation = |quantity: &str| Some(estimate(quantity)?.deviation);
                lines.push(line(run, "deviation".into(), None, &deviation));
            }
        }
        csv(&head, lines)
    }

    /// Returns the report as Markdown, with links to pictures of the charts. The names of the pictures start with
    /// `prefix`.
    pub fn to_markdown(&self, prefix: &str) -> String {
        let mut parts = vec![
            format!("# {}", markdown::text(&self.title)),
            markdown::paragraphs(&self.about),
        ];
        if let Some(missing) = self.incomplete() {
            parts.push(format!("**Not complete.** {}", markdown::text(&missing)));
        }
        let mut tables = self.tables_of_claims();
        tables.extend(self.tables_of_runs());
        parts.extend(tables.iter().map(Table::to_markdown));
        let tuning = self.tuning.iter();
        parts.extend(tuning.map(|tuning| tuning.table().to_markdown()));
        for (i, chart) in self.pictures().iter().enumerate() {
            let heading = markdown::text(&chart.heading);
            let picture = markdown::address(format!("{prefix}{}.svg", i + 1).as_bytes());
            parts.push(format!("## {heading}"));
            parts.push(format!("![{heading}]({picture})"));
            let notes = [&chart.note, &chart.notes()].map(|note| markdown::paragraphs(note));
            parts.extend(notes.into_iter().filter(|note| !note.is_empty()));
        }
        parts.extend(
            self.sections_of_data()
                .iter()
                .filter_map(Section::to_markdown),
        );
        parts.retain(|part| !part.is_empty());
        parts.join("\n\n") + "\n"
    }

    /// Writes `report.html`, `results.json`, `results.csv`, `results.md` and its pictures into `directory`. A sweep
    /// adds `sweep.csv`.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), RunError> {
        fs::create_dir_all(directory).map_err(RunError::io("create", directory))?;
        let json = serde_json::to_string_pretty(self);
        let json = json.unwrap_or_else(|e| unreachable!("results are plain data: {e}"));
        write(directory, REPORT, &self.report().to_html())?;
        write(directory, "results.json", &json)?;
        write(directory, "results.csv", &self.to_csv())?;
        if let Some(tuning) = &self.tuning {
            write(directory, "sweep.csv", &tuning.to_csv())?;
        }
        self.write_markdown(directory, "results")
    }

    /// Writes the Markdown and its pictures as `NAME.md` and `NAME-1.svg`, ….
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be written.
    pub fn write_markdown(&self, directory: &Path, name: &str) -> Result<(), RunError> {
        fs::create_dir_all(directory).map_err(RunError::io("create", directory))?;
        let prefix = format!("{name}-");
        write(directory, &format!("{name}.md"), &self.to_markdown(&prefix))?;
        for (i, chart) in self.pictures().iter().enumerate() {
            let name = format!("{prefix}{}.svg", i + 1);
            write(directory, &name, &chart.to_svg())?;
        }
        Ok(())
    }

    /// Adds the finished runs to the results file at `path`, so that other machines need not train them again. Replaces
    /// earlier results of the same runs and keeps all other runs of the file. Creates the directory if needed. Returns
    /// false if no run is finished.
    ///
    /// # Errors
    ///
    /// Returns an error if an existing file holds anything but runs of this experiment and scale, or if the file cannot
    /// be written.
    pub fn add_finished(&self, path: &Path) -> Result<bool, Error> {
        if self.finished.is_empty() {
            return Ok(false);
        }
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(RunError::io("create", directory))?;
        }
        let mut all = match path.exists() {
            true => FinishedFile::read(path, &self.origin.name, &self.origin.scale)?.into_runs(),
            false => FinishedRuns::default(),
        };
        all.extend(self.finished.clone());
        self.write_runs(&all, path)?;
        Ok(true)
    }

    fn write_runs(&self, runs: &FinishedRuns, path: &Path) -> Result<(), RunError> {
        let origin = &self.origin;
        let here = Host {
            backend: origin.backend.clone(),
            machine: origin.machine.clone(),
            commit: origin.commit.clone(),
        };
        let draws_train_loss = self.charts.iter().any(ChartSpec::draws_train_loss);
        let of = (&*origin.name, &*origin.scale);
        let text = runs.to_json(of, &here, draws_train_loss);
        disk::replace_shared(path, text.as_bytes())
    }
}

fn write(directory: &Path, name: &str, text: &str) -> Result<(), RunError> {
    disk::replace_shared(&directory.join(name), text.as_bytes())
}
