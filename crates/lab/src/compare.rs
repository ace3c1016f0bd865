//! Several models on the same data and budget: one table, one report.

mod directory;

use std::path::Path;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{Corpus, Entropy};
use residual_zoo_report::{
    Axis as ChartAxis, Cell, Chart, Column, Reference, Report, Section, Series, Table, si,
};
use residual_zoo_runs::{Error as RunError, Row, RunConfig, checkpoint, disk, vocabulary};
use residual_zoo_train::Summary;
use residual_zoo_train::dashboard::{Display, Screen, Title, print, warn};

use crate::basis::Basis;
use crate::corpora::open_corpus;
use crate::facts::data_table;
use crate::single::{check_precision, work};
use crate::size::{Use, available_memory, check_memory, check_size};
use crate::{Axis, DataFacts, Error, Options, REPORT, train};
use directory::{MARK, prepare};

/// Trains models, by name, and writes `report.html`. What is trained already is not trained again. The
/// report shows `command`, which repeats it.
///
/// Also returns the first error of a run; the other models are still compared. If the comparison is stopped, it
/// has the models that are trained, and the same call continues.
///
/// # Errors
///
/// Models that differ in data or budget or cannot be trained; a directory that holds something else
/// or other runs; a file that cannot be written; the error of a run when no run succeeded.
pub fn compare<C: ModelConfig>(
    models: &[(String, RunConfig<C>)],
    command: String,
    options: &Options,
) -> Result<(Comparison, Option<Error>), Error> {
    let data = check_budget(models)?;
    let corpus = open_corpus(&data.data, &options.stop)?;
    // Everything that can fail comes before the first change on disk.
    let device = (options.backend, options.gpu);
    options.backend.check_device(options.gpu)?;
    for (name, config) in models {
        let check = || {
            config.validate(corpus.tokenizer.vocab_size())?;
            check_precision(device.0, device.1, config.train.precision)?;
            check_size(config, vocabulary(&corpus), device, Use::Train)?;
            check_memory(config, vocabulary(&corpus), device, available_memory())?;
            Ok::<_, Error>(())
        };
        check().map_err(|error| error.within(name))?;
    }
    prepare(models, &corpus, options)?;
    let mut comparison = Comparison {
        entries: Vec::new(),
        data: DataFacts::of_run(data, &corpus),
        basis: Basis::of_corpus(&corpus),
        entropy: corpus.entropy,
        command,
        missing: Vec::new(),
        stopped: false,
    };
    let mut failure = None;
    let _screen = Screen::keep();
    for (i, (name, config)) in models.iter().enumerate() {
        if options.display == Display::Log {
            print(&format!("\n{name}"));
        }
        let title = Title {
            run: Some(name.clone()),
            number: Some((i + 1, models.len())),
            to_come: work_left(&models[i + 1..], &corpus, options) / work(config, &corpus),
            ..Title::default()
        };
        let run_options = options.of_run(options.directory.join(name), title, None);
        let (kind, gpu) = (options.backend, options.gpu);
        match train(kind, gpu, config.clone(), &corpus, &run_options) {
            Ok(summary) if summary.stopped => {
                let left = models[i..].iter().map(|(name, _)| name.clone());
                comparison.missing.extend(left);
                comparison.stopped = true;
                break;
            }
            Ok(summary) => comparison.entries.push((name.clone(), summary)),
            Err(Error::Backend(error)) => return Err(error.into()),
            Err(error) => {
                comparison.missing.push(name.clone());
                match failure {
                    Some(_) => warn(&format!("{name} failed: {error}")),
                    None => {
                        warn(&format!("{name} failed; the error comes at the end"));
                        failure = Some(error);
                    }
                }
            }
        }
    }
    match failure {
        Some(failure) if comparison.entries.is_empty() => Err(failure),
        failure => {
            comparison.write(&options.directory.join(REPORT))?;
            Ok((comparison, failure))
        }
    }
}

/// The training FLOPs of those models that are not trained yet.
fn work_left<C: ModelConfig>(
    models: &[(String, RunConfig<C>)],
    corpus: &Corpus,
    options: &Options,
) -> f64 {
    let is_left = |(name, config): &&(String, RunConfig<C>)| {
        let run = options.directory.join(name);
        !checkpoint::directory(&run, config.train.steps).exists()
    };
    let left = models.iter().filter(is_left);
    left.map(|(_, config)| work(config, corpus)).sum()
}

/// Checks that all models have the data and budget of the first, which it returns.
fn check_budget<C: ModelConfig>(
    models: &[(String, RunConfig<C>)],
) -> Result<&RunConfig<C>, ConfigError> {
    let Some((first_name, first)) = models.first() else {
        return Err(ConfigError::new("models", "are none; give at least one"));
    };
    for (i, (name, _)) in models.iter().enumerate() {
        let is_taken = ["", ".", "..", REPORT, MARK].contains(&name.trim());
        if is_taken
            || name.ends_with(".partial")
            || name.contains(|c: char| c.is_control() || c == '/')
        {
            let problem = "cannot be the name of a model, whose run goes into a directory of that name; give the file another \
                           name";
            return Err(ConfigError::new(format!("{name:?}"), problem));
        }
        if models[..i].iter().any(|(other, _)| other == name) {
            let problem = "is the name of two models; give each file another name";
            return Err(ConfigError::new(name, problem));
        }
    }
    for (name, config) in models {
        if config.data != first.data {
            let problem =
                format!("has other data than `{first_name}`; give all models the same by `--data`");
            return Err(ConfigError::new(format!("{name}.data"), problem));
        }
        let budget = [
            ("train.steps", config.train.steps, first.train.steps),
            (
                "tokens per step",
                config.tokens_per_step(),
                first.tokens_per_step(),
            ),
        ];
        if let Some((what, ours, theirs)) = budget.into_iter().find(|(_, a, b)| a != b) {
            let problem =
                format!("is {ours}, but {theirs} in `{first_name}`; models need one budget");
            return Err(ConfigError::new(format!("{name}.{what}"), problem));
        }
    }
    Ok(first)
}

/// Runs of several models on the same data.
pub struct Comparison {
    /// The finished runs by the names of their models.
    pub entries: Vec<(String, Summary)>,
    /// The data of all models.
    pub data: DataFacts,
    /// What parameters and FLOPs hold for.
    pub basis: Basis,
    /// The lowest possible losses on the data, where they are known.
    pub entropy: Option<Entropy>,
    /// The command that repeats it.
    pub command: String,
    /// The models that are not trained to the end, because their run failed or was stopped.
    pub missing: Vec<String>,
    /// Whether it was stopped.
    pub stopped: bool,
}

impl Comparison {
    /// The table, columns and rows.
    pub fn table(&self) -> Table {
        let mut columns = vec![
            Column::text("model"),
            Column::number("parameters", self.basis.to_string()),
            Column::number("non-embedding", ""),
            Column::number("FLOPs/token", "training"),
            Column::number("train loss", "nats/token"),
            Column::number("valid loss", "nats/token"),
        ];
        if self.entropy.is_some() {
            columns.push(Column::number("above entropy", ""));
        }
        columns.push(Column::number("tokens/s", ""));
        let rows = self.entries.iter().map(|entry| self.row(entry)).collect();
        let best = |(_, a): &(usize, f64), (_, b): &(usize, f64)| a.total_cmp(b);
        let losses = self.entries.iter().map(|(_, summary)| summary.valid_loss);
        let highlight = losses.enumerate().min_by(best).map(|(i, _)| i);
        Table {
            heading: "Results".into(),
            note: "The lowest validation loss is marked.".into(),
            columns,
            rows,
            highlight,
        }
    }

    fn row(&self, (name, summary): &(String, Summary)) -> Vec<Cell> {
        let mut cells = vec![
            name.clone(),
            si(summary.cost.params.total() as f64),
            si(summary.cost.params.other as f64),
            si(summary.cost.training_flops() as f64),
            format!("{:.4}", summary.train_loss),
            format!("{:.4}", summary.valid_loss),
        ];
        if let Some(entropy) = self.entropy {
            let above = summary.valid_loss / entropy.rate - 1.0;
            cells.push(format!("{:+.1} %", 100.0 * above));
        }
        cells.push(si(summary.tokens_per_second));
        cells.into_iter().map(Cell::from).collect()
    }

    /// The report: the table and the curves of the validation loss over tokens, FLOPs and
    /// seconds.
    pub fn report(&self) -> Report {
        let entropy = self.entropy.map(|e| {
            format!(
                " No model can be below its entropy rate, {:.4} nats per token; one that sees a \
                 single earlier token cannot be below {:.4}.",
                e.rate, e.bigram
            )
        });
        let known = |e: Entropy| [("entropy rate", e.rate), ("best bigram model", e.bigram)];
        let references = self.entropy.into_iter().flat_map(known);
        let references: Vec<_> = references
            .map(|(name, y)| Reference::new(name, y))
            .collect();
        let chart = |(over, x, unit, axis): (&str, &str, &str, Axis)| Chart {
            heading: format!("Validation loss over {over}"),
            note: String::new(),
            x: ChartAxis::linear(x, unit),
            y: ChartAxis::linear("validation loss", "nats/token"),
            series: self.series(axis),
            references: references.clone(),
        };
        let charts = [
            ("tokens", "training tokens", "", Axis::Tokens),
            ("FLOPs", "training FLOPs", "", Axis::Flops),
            ("time", "training time", "s", Axis::Seconds),
        ];
        let mut sections = vec![Section::Table(self.table())];
        sections.extend(charts.map(|spec| Section::Chart(chart(spec))));
        sections.push(Section::Table(data_table(std::slice::from_ref(&self.data))));
        sections.push(Section::Code {
            heading: "Command".into(),
            body: self.command.clone(),
        });
        Report {
            title: "Comparison of architectures".into(),
            lead: format!(
                "{}Every model was trained on the same tokens of {} with the same budget.{}",
                self.not_complete(),
                self.data.source,
                entropy.unwrap_or_default()
            ),
            sections,
        }
    }

    /// Names the models that are missing, if there are any, in a sentence with a space after it.
    pub fn not_complete(&self) -> String {
        match self.missing.is_empty() {
            true => String::new(),
            false => format!(
                "Not complete: not trained to the end are {}. ",
                self.missing.join(", ")
            ),
        }
    }

    fn series(&self, axis: Axis) -> Vec<Series> {
        let point = |row: &Row| Some((axis.of(row), row.valid_loss?));
        let line = |(i, (name, summary)): (usize, &(String, Summary))| {
            Series::line(name, i, summary.rows.iter().filter_map(point).collect())
        };
        self.entries.iter().enumerate().map(line).collect()
    }

    /// Writes the report to `path`.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        disk::replace_shared(path, self.report().to_html().as_bytes())
    }
}
