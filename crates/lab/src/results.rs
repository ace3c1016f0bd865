//! The results of an experiment: tables, charts, and the report.

mod files;
pub(crate) mod sweep_seeds;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use residual_zoo_core::ModelConfig;
use residual_zoo_report::{Cell, Chart, Column, Report, Section, Table, duration};
use residual_zoo_runs::Error as RunError;
use serde::Serialize;

use crate::charts::RunRow;
use crate::check::unequal_budgets;
use crate::facts::{data_table, folded};
use crate::finished::FinishedRuns;
use crate::ladder::Effects;
use crate::looks::{self, Look};
use crate::quantity::title;
use crate::stats::Estimate;
use crate::sweep::Swept;
use crate::{
    ChartSpec, DataFacts, Experiment, Judgement, Missing, Observation, Observed, Origin, Outcome,
    PlannedRun, Tuning, Verdict, origin,
};

/// The name of the report in the directory of an experiment or a comparison.
pub const REPORT: &str = "report.html";

/// The results of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    title: String,
    about: String,
    /// The date and time of the report.
    date: String,
    origin: Origin,
    data: Vec<DataFacts>,
    /// Seconds of training, summed over all runs.
    training_seconds: f64,
    /// A line for each missing run with the reason; empty if the results are complete.
    missing: Vec<String>,
    /// A line for each machine that trained some of the runs, if their results were read from a file.
    from_file: Vec<String>,
    /// Whether the runs are long enough to judge claims.
    judge: bool,
    /// Notes on the claims.
    notes: Vec<String>,
    /// Notes on the runs, as shown at their start.
    notes_of_runs: Vec<String>,
    claims: Vec<Judgement>,
    /// The name of each run, and all its settings as RON.
    configs: Vec<(String, String)>,
    /// All looks at the verdicts, the current one last; empty before [`look`](Self::look).
    looks: Vec<Look>,
    tuning: Option<Tuning>,
    /// The gains on the ladder, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    effects: Option<Effects>,
    observations: Vec<Observation>,
    #[serde(skip)]
    finished: FinishedRuns,
    #[serde(skip)]
    rows: Vec<RunRow>,
    #[serde(skip)]
    columns: Vec<String>,
    #[serde(skip)]
    charts: Vec<ChartSpec>,
}

impl Results {
    /// Makes the results of `experiment` from the outcome of its runs and its `claims`, as
    /// [`verdicts`](Experiment::verdicts) judges them. `planned` holds all runs, including omitted runs.
    pub fn new<C: ModelConfig>(
        experiment: &Experiment<C>,
        planned: &[PlannedRun<C>],
        outcome: Outcome,
        claims: Vec<Judgement>,
        origin: Origin,
    ) -> Self {
        let row = |run: &PlannedRun<C>| RunRow {
            name: run.name.clone(),
            line: run.line.clone(),
            published: run.published.clone(),
        };
        let most = |facts: &DataFacts| facts.passes.map(|(_, most)| most);
        let passes = outcome.data.iter().filter_map(most).reduce(f64::max);
        let effects = experiment.ladder.as_ref().map(|ladder| {
            let (found, tuning) = (&outcome.observations, outcome.tuning.as_ref());
            Effects::of(
                ladder,
                planned,
                found,
                tuning,
                (experiment.seeds.len(), passes),
            )
        });
        Self {
            effects,
            title: experiment.title.clone(),
            about: experiment.about.clone(),
            date: origin::now(),
            origin,
            data: outcome.data,
            training_seconds: outcome.seconds.values().sum(),
            from_file: outcome.finished.of_hosts(),
            finished: outcome.finished,
            missing: outcome.missing.iter().map(Missing::to_string).collect(),
            tuning: outcome.tuning,
            configs: outcome.configs,
            looks: Vec::new(),
            judge: experiment.judge,
            notes: unequal_budgets(experiment, planned),
            notes_of_runs: outcome.notes,
            claims,
            observations: outcome.observations,
            rows: planned.iter().map(row).collect(),
            columns: columns(experiment),
            charts: experiment.charts.clone(),
        }
    }

    /// Returns the claims with their verdicts.
    pub fn claims(&self) -> &[Judgement] {
        &self.claims
    }

    /// Returns a line for each machine that trained some of the runs, if their results were read from a file.
    pub fn from_file(&self) -> &[String] {
        &self.from_file
    }

    /// Returns a line for each missing run with the reason; empty if the results are complete.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Returns the tables of the ladder; empty without a ladder.
    pub fn ladder(&self) -> Vec<Table> {
        let tables = self.effects.iter().flat_map(Effects::tables);
        let rule = self.tuning.iter().filter_map(Tuning::rule_table);
        tables.chain(rule).collect()
    }

    /// Returns the results of the sweep, if there was one.
    pub fn tuning(&self) -> Option<&Tuning> {
        self.tuning.as_ref()
    }

    /// Returns the observations.
    pub fn observations(&self) -> &[Observation] {
        &self.observations
    }

    /// Returns a table with a row for each claim: the claim, the verdict, and the numbers.
    pub fn verdicts(&self) -> Table {
        let has_families = self.claims.iter().any(|found| found.claim.primary);
        let row = |found: &Judgement| {
            let claim = &found.claim;
            let verdict = Cell {
                tone: found.verdict.tone(),
                ..Cell::from(found.verdict.signed())
            };
            let family = match claim.primary {
                true => "primary: ",
                false if has_families => "exploratory: ",
                false => "",
            };
            vec![
                format!("{family}{} ({})", claim.says, claim.source).into(),
                verdict,
                found.because.as_str().into(),
                claim.published.as_str().into(),
            ]
        };
        let note = match self.judge {
            true => {
                "A difference is decided if its 95 % confidence interval excludes zero and its p-value is below 0.05 \
                 after Holm's correction for the number of claims; other kinds of claims have their own rules. ± is half \
                 the width of the interval, without the correction. Detectable is the smallest difference that this \
                 many seeds would find in 80 % of repetitions."
            }
            false => {
                "The runs are too short to judge a claim, except for those about what models cost. They only check that \
                 everything works."
            }
        };
        let families = match self.judge && has_families {
            true => {
                " The primary claims were named before the runs of the tested models. They form one family, and the \
                 exploratory claims form another. p-values are corrected within each family."
            }
            false => "",
        };
        let tuned = self.tuned_note();
        let columns = ["claim", "verdict", "measured", "reported"];
        Table {
            heading: "Claims".into(),
            note: format!(
                "{note}{families}{tuned}{}",
                self.notes
                    .iter()
                    .map(|note| sentence(note))
                    .collect::<String>()
            ),
            columns: columns.map(Column::text).into(),
            rows: self.claims.iter().map(row).collect(),
            highlight: None,
        }
    }

    /// Says at which point each run was trained, if a sweep chose the point.
    fn tuned_note(&self) -> String {
        let Some(tuning) = self.tuning.as_ref().filter(|tuning| tuning.sweep.tuned) else {
            return String::new();
        };
        let seeds: Vec<String> = tuning.sweep.seeds.iter().map(u64::to_string).collect();
        let widened = tuning.sweep.widened();
        let widened = widened.map(|note| format!(" In the sweep, {note}."));
        let edges = tuning.edges().into_iter().map(|edge| format!(" {edge}."));
        if tuning.sweep.rule.is_some() {
            return format!(
                " The values of the swept field follow a rule, which a sweep with other seeds ({}) gave on the same \
                 validation data.{}",
                seeds.join(", "),
                widened.unwrap_or_default()
            );
        }
        format!(
            " Each run was trained at the best point of its sweep, chosen with other seeds ({}) on the same \
             validation data: {}.{}{}",
            seeds.join(", "),
            tuning.bests().join("; "),
            widened.unwrap_or_default(),
            edges.collect::<String>()
        )
    }

    /// Records this look at the verdicts in a file in `directory`, and shows the earlier looks if they had other seeds.
    /// With `anew`, the earlier runs were deleted, so the record starts with this look.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub fn look(&mut self, directory: &Path, anew: bool) -> Result<(), RunError> {
        let seeds = self.observations.iter().filter_map(|found| found.seed);
        let now = Look::new(&self.date, seeds, &self.configs, &self.claims);
        self.looks = looks::record(directory, now, anew)?;
        Ok(())
    }

    /// Returns a table with the verdicts of each look, if seeds changed between looks.
    fn looks(&self) -> Option<Table> {
        looks::table(&self.looks, &self.claims)
    }

    /// Returns a table with a row for each run: means over the seeds, and published values. The small print gives the
    /// margins of claims (see [`Judgement::margin`]).
    pub fn table(&self) -> Table {
        let is_reported = |column: &str| self.rows.iter().any(|r| r.published.contains_key(column));
        let mut columns = vec![Column::text("run")];
        for column in &self.columns {
            let unit = self.shown(column).unit;
            let title = title(column);
            columns.push(Column::number(title.clone(), unit));
            if is_reported(column) {
                columns.push(Column::number(format!("{title}, reported"), unit));
            }
        }
        let row = |planned: &RunRow| {
            let mut cells = vec![planned.name.as_str().into()];
            for column in &self.columns {
                cells.push(Cell {
                    notes: self.margins(&planned.name, column),
                    ..Cell::from(self.mean(&planned.name, column))
                });
                if is_reported(column) {
                    let reported = planned.published.get(column);
                    let show = |value: &f64| self.shown(column).show(*value);
                    cells.push(reported.map_or_else(String::new, show).into());
                }
            }
            cells
        };
        let rows: Vec<Vec<Cell>> = self.rows.iter().map(row).collect();
        let mut note = match seeds(&self.observations) {
            (_, 0) => String::new(),
            (_, 1) => "One seed.".into(),
            (n, most) if n == most => format!("Means over {n} seeds ± their standard deviation."),
            (n, most) => format!("Means over {n} to {most} seeds ± their standard deviation."),
        };
        let is_partial = |run: &RunRow, column: &String| {
            let found = self.estimate(&run.name, column);
            found.is_some_and(|found| found.count < self.seeds(&run.name))
        };
        let mut all = self.rows.iter();
        if all.any(|run| (self.columns.iter()).any(|column| is_partial(run, column))) {
            note += " (k of n): only k of the n seeds have the value. Runs that were trained beside others have no times.";
        }
        if rows.iter().flatten().any(|cell| !cell.notes.is_empty()) {
            note += " A note on a value states what a claim tests: the difference from another run ± half the \
                     width of its 95 % confidence interval, a bound, or a tolerance.";
        }
        Table {
            heading: "Runs".into(),
            note: note.trim_start().into(),
            columns,
            rows,
            highlight: None,
        }
    }

    /// Returns a table of the claimed quantities for each run and seed, if values differ between seeds. The table is
    /// useful if some seeds failed, because a mean then says little.
    fn of_seeds(&self) -> Option<Table> {
        let seeds: BTreeSet<u64> = self
            .observations
            .iter()
            .filter_map(|found| found.seed)
            .collect();
        let mut quantities: Vec<&str> = Vec::new();
        for claim in &self.claims {
            for quantity in claim.claim.test.names().1 {
                if !quantities.contains(&quantity) {
                    quantities.push(quantity);
                }
            }
        }
        let mut columns = vec![Column::text("run"), Column::text("quantity")];
        columns.extend(
            seeds
                .iter()
                .map(|seed| Column::number(format!("seed {seed}"), "")),
        );
        let mut rows: Vec<Vec<Cell>> = Vec::new();
        for quantity in quantities {
            let of = self.shown(quantity);
            for RunRow { name: run, .. } in &self.rows {
                let spread = self.estimate(run, quantity);
                if !spread.is_some_and(|spread| spread.is_spread()) {
                    continue;
                }
                let value = |seed: &u64| {
                    let mut all = self.observations.iter();
                    let found = all.find(|it| it.run == *run && it.seed == Some(*seed))?;
                    Some(of.show(found.get(quantity)?))
                };
                let mut row: Vec<Cell> = vec![run.as_str().into(), title(quantity).into()];
                row.extend(
                    seeds
                        .iter()
                        .map(|seed| value(seed).unwrap_or("–".into()).into()),
                );
                rows.push(row);
            }
        }
        (!rows.is_empty()).then(|| Table {
            heading: "Every seed".into(),
            columns,
            rows,
            ..Table::default()
        })
    }

    /// Returns the comparisons of the claims on the seeds of the sweep; `None` if the runs are too short to judge claims.
    fn on_sweep_seeds(&self) -> Option<Table> {
        let tuning = self.tuning.as_ref().filter(|_| self.judge)?;
        sweep_seeds::table(&self.claims, &self.observations, tuning)
    }

    /// Returns the margins of the claims about a quantity of a run. A claim without a verdict has no margin.
    fn margins(&self, run: &str, quantity: &str) -> Vec<String> {
        let is_tested = |found: &&Judgement| {
            let (runs, quantities) = found.claim.test.names();
            let is_about_it = runs.first() == Some(&run) && quantities.first() == Some(&quantity);
            is_about_it && found.verdict != Verdict::NotTested
        };
        let found = self.claims.iter().filter(is_tested);
        found.filter_map(|found| found.margin.clone()).collect()
    }

    /// Returns the format of a quantity in the table.
    fn shown(&self, quantity: &str) -> Observed {
        let measured = self
            .observations
            .iter()
            .filter_map(|found| found.get(quantity));
        let reported = self
            .rows
            .iter()
            .filter_map(|row| row.published.get(quantity));
        Observed::of_all(quantity, measured.chain(reported.copied()))
    }

    /// Estimates a quantity of a run over its seeds.
    fn estimate(&self, run: &str, quantity: &str) -> Option<Estimate> {
        let of_run = self.observations.iter().filter(|found| found.run == run);
        let values: Vec<f64> = of_run.filter_map(|found| found.get(quantity)).collect();
        Estimate::of(&values)
    }

    /// Returns the number of seeds of a run.
    fn seeds(&self, run: &str) -> usize {
        let of_run = self.observations.iter().filter(|found| found.run == run);
        of_run.filter(|found| found.seed.is_some()).count()
    }

    /// Returns the mean of a run over its seeds, with the standard deviation if there are several seeds. If only some
    /// seeds have the quantity, states how many.
    fn mean(&self, run: &str, quantity: &str) -> String {
        let Some(found) = self.estimate(run, quantity) else {
            return "–".into();
        };
        let of = self.shown(quantity);
        let mean = of.show(found.mean);
        let mean = match found.is_spread() {
            true => format!("{mean} ± {}", of.show_difference(found.deviation)),
            false => mean,
        };
        match self.seeds(run) {
            seeds if found.count < seeds => format!("{mean} ({} of {seeds})", found.count),
            _ => mean,
        }
    }

    /// Returns the charts.
    pub fn charts(&self) -> Vec<Chart> {
        let chart = |spec: &ChartSpec| spec.chart(&self.rows, &self.observations);
        self.charts.iter().map(chart).collect()
    }

    /// Returns the charts, including the sweep's.
    fn pictures(&self) -> Vec<Chart> {
        let of_sweep = self.tuning.iter().flat_map(Tuning::charts);
        self.charts().into_iter().chain(of_sweep).collect()
    }

    /// Returns the tables of the claims and of the ladder.
    fn tables_of_claims(&self) -> Vec<Table> {
        let verdicts = (!self.claims.is_empty()).then(|| self.verdicts());
        let tables = verdicts.into_iter().chain(self.looks());
        tables.chain(self.ladder()).collect()
    }

    /// Returns the tables of the values of the runs.
    fn tables_of_runs(&self) -> Vec<Table> {
        let means = (!self.rows.is_empty()).then(|| self.table());
        let tables = means.into_iter().chain(self.of_seeds());
        tables.chain(self.on_sweep_seeds()).collect()
    }

    /// Returns the whole report.
    pub fn report(&self) -> Report {
        let mut sections = Vec::new();
        if let Some(body) = self.incomplete() {
            sections.push(Section::Text {
                heading: "Not complete".into(),
                body,
            });
        }
        sections.extend(self.tables_of_claims().into_iter().map(Section::Table));
        sections.extend(self.charts().into_iter().map(Section::Chart));
        sections.extend(self.tables_of_runs().into_iter().map(Section::Table));
        sections.extend(self.tuning.iter().flat_map(Tuning::sections));
        sections.extend(self.sections_of_data());
        Report {
            title: self.title.clone(),
            lead: self.lead(),
            sections,
        }
    }

    /// Returns a description of the experiment, and notes on the runs.
    fn lead(&self) -> String {
        let notes = self.notes_of_runs.iter().map(|note| sentence(note));
        let notes = notes.collect::<String>();
        let paragraphs = [self.about.as_str(), notes.trim_start()];
        let paragraphs = paragraphs.into_iter().filter(|text| !text.is_empty());
        paragraphs.collect::<Vec<_>>().join("\n\n")
    }

    /// Returns sections with the data, the configs and the command that repeats the experiment.
    fn sections_of_data(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        if !self.data.is_empty() {
            sections.push(Section::Table(data_table(&self.data)));
        }
        if !self.configs.is_empty() {
            let note = "All settings of each run, with the first of its seeds.";
            sections.push(folded(note, self.configs.clone()));
        }
        sections.push(Section::Code {
            heading: "How to repeat it".into(),
            body: self.provenance(),
        });
        sections
    }

    fn incomplete(&self) -> Option<String> {
        let missing = || format!("Missing: {}.", self.missing.join("; "));
        (!self.missing.is_empty()).then(missing)
    }

    fn provenance(&self) -> String {
        let origin = &self.origin;
        let command = match origin.command.as_str() {
            "" => None,
            command => Some(format!("{command}\n")),
        };
        let experiment = match origin.scale.as_str() {
            "" => format!("experiment {}", origin.name),
            scale => format!("experiment {}, scale {scale}", origin.name),
        };
        let commit = origin
            .commit
            .as_ref()
            .map(|commit| format!("commit {commit}"));
        let time = Duration::from_secs_f64(self.training_seconds);
        let time = (!time.is_zero()).then(|| format!("{} of training", duration(time)));
        let lines = [
            command,
            Some(experiment),
            Some(format!("configuration {}", origin.hash)),
            Some(format!("backend {} on {}", origin.backend, origin.machine)),
            commit,
            Some(format!("written {}", self.date)),
            time,
        ];
        let mut lines: Vec<String> = lines.into_iter().flatten().collect();
        lines.extend_from_slice(&self.from_file);
        lines.join("\n")
    }
}

/// Makes a sentence from `text`: ` Text.`
pub(crate) fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    format!(" {}{}.", first.unwrap_or_default(), chars.as_str())
}

/// Returns the columns of the table: the columns of the experiment file, and the fields that a sweep has tuned.
fn columns<C: ModelConfig>(experiment: &Experiment<C>) -> Vec<String> {
    let mut columns = experiment.columns.clone();
    if let Some(sweep) = experiment.sweep.as_ref().filter(|sweep| sweep.tuned) {
        let names = sweep.over.iter().map(Swept::name);
        columns.extend(names.filter(|name| !experiment.columns.contains(name)));
    }
    columns
}

/// Returns the fewest and the most seeds of a run.
fn seeds(observations: &[Observation]) -> (usize, usize) {
    let mut seeds: BTreeMap<&str, usize> = BTreeMap::new();
    for found in observations {
        *seeds.entry(&found.run).or_default() += usize::from(found.seed.is_some());
    }
    let fewest = seeds.values().min().copied().unwrap_or(0);
    (fewest, seeds.values().max().copied().unwrap_or(0))
}
