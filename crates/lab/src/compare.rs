//! Trains several models on the same data with the same budget, and shows them in one table and one report.

mod directory;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{Corpus, Entropy};
use residual_zoo_report::{
    Axis as ChartAxis, Cell, Chart, Column, Reference, Report, Section, Series, Table, si,
};
use residual_zoo_runs::{Error as RunError, Remedy, Row, RunConfig, checkpoint, disk, vocabulary};
use residual_zoo_system::console::{print, warn};
use residual_zoo_train::Summary;
use residual_zoo_train::dashboard::{Display, Screen, Title};

use residual_zoo_drive::{
    Basis, Error as DriveError, Use, available_memory, check_memory, check_precision, check_size,
    open_corpus, train, training_flops, usual_precision,
};

use crate::facts::{data_table, folded, settings};
use crate::notes::long_warm_ups;
use crate::results::sentence;
use crate::{Axis, DataFacts, Error, Options, REPORT};
use directory::{MARK, prepare};

/// Trains the named models and writes `report.html`. Models that are already trained are not trained again. The report
/// shows `command`, which repeats the comparison.
///
/// If a run fails, the other models are still compared, and the first error is returned with the comparison. A stopped
/// comparison has the models that were trained so far; the same call without `force` continues it.
///
/// # Errors
///
/// Returns an error if the models differ in data or budget or cannot be trained, if the backend fails, or if a file
/// cannot be written. Also returns an error if the directory holds other files or, without `force`, another comparison.
/// If no run succeeds, returns the error of the first run that failed.
pub fn compare<C: ModelConfig>(
    models: &[(String, RunConfig<C>)],
    command: String,
    options: &Options,
) -> Result<(Comparison, Option<Error>), Error> {
    // The configs of earlier runs in the directory name their precision, so the new configs must name theirs too.
    let in_precision = |(name, config): &(String, RunConfig<C>)| {
        let mut config = config.clone();
        let usual = usual_precision(options.backend);
        config.train.precision.get_or_insert(usual);
        (name.clone(), config)
    };
    let models = &*models.iter().map(in_precision).collect::<Vec<_>>();
    let data = check_budget(models)?;
    let corpus = open_corpus(&data.data, &options.stop)?;
    // All checks come before the first change on disk.
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
    let setting = |(name, config): &(String, RunConfig<C>)| {
        let (seed, learning_rate) = (config.train.seed, config.train.learning_rate);
        (
            name.clone(),
            Setting {
                seed,
                learning_rate,
                is_reached: config.train.warmup < config.train.steps,
            },
        )
    };
    let mut comparison = Comparison {
        entries: Vec::new(),
        settings: models.iter().map(setting).collect(),
        configs: models
            .iter()
            .map(|(name, config)| (name.clone(), settings(config)))
            .collect(),
        data: DataFacts::of_run(data, &corpus),
        basis: Basis::of_corpus(&corpus),
        entropy: corpus.entropy,
        command,
        warm_ups: long_warm_ups(models.iter().map(|(name, config)| (&**name, &config.train))),
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
            to_come: work_left(&models[i + 1..], &corpus, options)
                / training_flops(config, &corpus),
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
            Err(DriveError::Backend(error)) => return Err(error.into()),
            Err(mut error) => {
                comparison.missing.push(name.clone());
                match failure {
                    Some(_) => {
                        error.of_run().map(of_comparison);
                        warn(&format!("{name} failed: {error}"));
                    }
                    None => {
                        warn(&format!("{name} failed; the error comes at the end"));
                        failure = Some(error.into());
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

/// Replaces a remedy that only the command `train` offers with a remedy that comparisons offer.
pub fn of_comparison(error: &mut RunError) {
    let own = "begin anew with `--force`, or choose another directory with `--run DIR`";
    match error.remedies().0 {
        // Comparisons offer these remedies too.
        None | Some(Remedy::AnotherDirectory | Remedy::AnotherOrNoDirectory) => {}
        Some(remedy) => *remedy = Remedy::OfCommand(own),
    }
}

/// Returns the training FLOPs of the models that are not trained yet.
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
    left.map(|(_, config)| training_flops(config, corpus)).sum()
}

/// Checks the names of the models, and that all models have the same data and budget. Returns the first model's config.
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
            let problem = format!(
                "has different data from `{first_name}`; give all models the same with `--data`"
            );
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
            let problem = format!(
                "is {ours}, but {theirs} in `{first_name}`; all models need the same budget"
            );
            return Err(ConfigError::new(format!("{name}.{what}"), problem));
        }
    }
    Ok(first)
}

/// Models count as equal in size if their numbers of parameters differ by at most this factor.
const LIKE: f64 = 1.05;

/// Settings that affect how well a model learns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The seed of the run.
    pub seed: u64,
    /// The peak learning rate of the run.
    pub learning_rate: f64,
    /// Whether the warm-up ends before the run, so that the learning rate reaches its peak.
    pub is_reached: bool,
}

/// Runs of several models on the same data.
pub struct Comparison {
    /// The finished runs, by model name.
    pub entries: Vec<(String, Summary)>,
    /// The settings of all models, by model name.
    pub settings: BTreeMap<String, Setting>,
    /// The name of each model, and all settings of its run as RON.
    pub configs: Vec<(String, String)>,
    /// The data on which all models are trained.
    pub data: DataFacts,
    /// The vocabulary for which parameters and FLOPs are counted.
    pub basis: Basis,
    /// The lowest possible losses on the data, if they are known.
    pub entropy: Option<Entropy>,
    /// The command that repeats the comparison.
    pub command: String,
    /// A sentence for each warm-up that takes all steps of a run; see [`long_warm_ups`].
    pub warm_ups: Vec<String>,
    /// The models that are not trained to the end, because their run failed, was stopped or did not begin.
    pub missing: Vec<String>,
    /// Whether the comparison was stopped.
    pub stopped: bool,
}

impl Comparison {
    /// Returns a table with a row for each finished model.
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
        if self
            .one(|setting| setting.learning_rate.to_string())
            .is_none()
        {
            columns.push(Column::number("learning rate", ""));
        }
        if self.one(|setting| setting.seed.to_string()).is_none() {
            columns.push(Column::number("seed", ""));
        }
        let rows = self.entries.iter().map(|entry| self.row(entry)).collect();
        let best = |(_, a): &(usize, f64), (_, b): &(usize, f64)| a.total_cmp(b);
        let losses = self.entries.iter().map(|(_, summary)| summary.valid_loss);
        let is_compared = self.entries.len() > 1;
        let highlight = losses
            .enumerate()
            .min_by(best)
            .map(|(i, _)| i)
            .filter(|_| is_compared);
        Table {
            heading: "Results".into(),
            note: format!(
                "{}{}{}",
                match self.entries.len() {
                    0 | 1 => "",
                    _ => "The lowest validation loss is marked. ",
                },
                self.remarks().join(" "),
                self.warm_ups
                    .iter()
                    .map(|note| sentence(note))
                    .collect::<String>()
            ),
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
        let setting = self.settings.get(name);
        let shown: [fn(&Setting) -> String; 2] =
            [|of| of.learning_rate.to_string(), |of| of.seed.to_string()];
        let different = shown.into_iter().filter(|shown| self.one(shown).is_none());
        cells.extend(different.map(|shown| setting.map_or_else(String::new, shown)));
        cells.into_iter().map(Cell::from).collect()
    }

    /// Returns the value of this setting, if it is the same for all models.
    fn one(&self, of: impl Fn(&Setting) -> String) -> Option<String> {
        let values: BTreeSet<String> = self.settings.values().map(of).collect();
        match values.len() {
            0 | 1 => Some(values.into_iter().next().unwrap_or_default()),
            _ => None,
        }
    }

    /// Returns notes on the limits of a ranking of the models: the learning rate, the seed, and differences in size.
    /// Returns no notes if fewer than two models are trained.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.entries.len() < 2 {
            return remarks;
        }
        let rate = self.one(|setting| setting.learning_rate.to_string());
        remarks.push(match rate {
            Some(rate) if !self.warm_ups.is_empty() => {
                let is_reached = self.settings.values().any(|setting| setting.is_reached);
                let runs = if is_reached { "not all runs" } else { "no run" };
                format!(
                    "All models have the peak learning rate {rate}, but {runs} reached it; it may suit some of them better \
                     than others."
                )
            }
            Some(rate) => format!(
                "All models have the learning rate {rate}, which may suit some of them better than others."
            ),
            None => "The models have different learning rates.".into(),
        });
        remarks.push(match self.one(|setting| setting.seed.to_string()) {
            Some(seed) => format!("Each was trained once, with seed {seed}: another seed may rank them differently."),
            None => "Each was trained once, with a seed of its own: other seeds may rank them differently.".into(),
        });
        let size = |(_, summary): &&(String, Summary)| summary.cost.params.total();
        let ends = (
            self.entries.iter().min_by_key(size),
            self.entries.iter().max_by_key(size),
        );
        if let (Some(small), Some(large)) = ends
            && size(&large) as f64 > LIKE * size(&small) as f64
        {
            let [few, many] = [small, large].map(|entry| si(size(&entry) as f64));
            remarks.push(format!(
                "The models differ in size, from {few} parameters ({}) to {many} ({}), so a lower loss may come from more \
                 parameters.",
                small.0, large.0
            ));
        }
        remarks
    }

    /// Returns the report: the table, the curves of the validation loss over tokens, FLOPs and seconds, the data, the
    /// settings and the command.
    pub fn report(&self) -> Report {
        let entropy = self.entropy.map(|e| {
            format!(
                " No model can be below the entropy rate of the data, {:.4} nats per token; one that sees a \
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
        let mut sections = Vec::new();
        if !self.entries.is_empty() {
            sections.push(Section::Table(self.table()));
            sections.extend(charts.map(|spec| Section::Chart(chart(spec))));
        }
        sections.push(Section::Table(data_table(std::slice::from_ref(&self.data))));
        sections.push(folded("All settings of each run.", self.configs.clone()));
        sections.push(Section::Code {
            heading: "Command".into(),
            body: self.command.clone(),
        });
        Report {
            title: "Comparison of architectures".into(),
            lead: format!(
                "{}{}{}",
                self.not_complete(),
                self.budget(),
                entropy.unwrap_or_default()
            ),
            sections,
        }
    }

    /// Names the data. With several models, also says that all had the same data and budget.
    fn budget(&self) -> String {
        let source = &self.data.source;
        match (self.entries.len(), self.missing.is_empty()) {
            (0 | 1, _) => format!("The data are {source}."),
            (_, true) => {
                format!(
                    "Every model was trained on the same tokens of {source} with the same budget."
                )
            }
            (_, false) => {
                format!(
                    "The others were trained on the same tokens of {source} with the same budget."
                )
            }
        }
    }

    /// Returns a sentence that names the missing models, with a space after it; empty if no model is missing.
    pub fn not_complete(&self) -> String {
        let (names, were) = match self.missing.as_slice() {
            [] => return String::new(),
            [one] => (one.clone(), "was"),
            [first @ .., last] => (format!("{} and {last}", first.join(", ")), "were"),
        };
        format!("Not complete: {names} {were} not trained to the end. ")
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
    /// Returns an error if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        disk::replace_shared(path, self.report().to_html().as_bytes())
    }
}
