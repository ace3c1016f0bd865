//! What came of a suite, as a report, JSON, CSV and Markdown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use residual_zoo_core::ModelConfig;
use serde::Serialize;

use super::{
    Axis, ChartSpec, Estimate, Judgement, Line, Observation, Observed, Outcome, Planned, Suite,
    describe, observe,
};
use crate::Error;
use crate::report::{self, Chart, Column, Report, Section, Series, Style, Table, sig};

/// Where, when and by which command results came about.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Origin {
    /// The name of the experiment.
    pub name: String,
    /// Its scale.
    pub scale: String,
    /// The command that repeats it.
    pub command: String,
    /// A hash of the suite and of all that was set on top of it.
    pub hash: String,
    /// The processor and its cores.
    pub machine: String,
    /// The backend.
    pub backend: String,
    /// The commit of the source, where it is known.
    pub commit: Option<String>,
}

/// The results of a suite.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    title: String,
    about: String,
    origin: Origin,
    /// Seconds of training of all runs together.
    training_seconds: f64,
    /// Why results are not complete, a line for each run that is missing.
    missing: Vec<String>,
    claims: Vec<Judgement>,
    observations: Vec<Observation>,
    #[serde(skip)]
    rows: Vec<PlannedRow>,
    #[serde(skip)]
    columns: Vec<String>,
    #[serde(skip)]
    charts: Vec<ChartSpec>,
    #[serde(skip)]
    lines: Vec<String>,
}

/// A row of the table.
#[derive(Clone, Debug)]
struct PlannedRow {
    name: String,
    published: BTreeMap<String, f64>,
}

impl Results {
    /// Judges the claims of `suite` on what its runs gave.
    pub fn new<C: ModelConfig>(
        suite: &Suite<C>,
        planned: &[Planned<C>],
        outcome: Outcome,
        origin: Origin,
    ) -> Self {
        let claims = suite.claims.iter();
        let mut lines: Vec<String> = Vec::new();
        for run in planned {
            if !lines.contains(&run.line) {
                lines.push(run.line.clone());
            }
        }
        let row = |run: &Planned<C>| PlannedRow {
            name: run.name.clone(),
            published: run.published.clone(),
        };
        Self {
            title: suite.title.clone(),
            about: suite.about.clone(),
            origin,
            training_seconds: outcome.seconds,
            missing: outcome.missing,
            claims: claims
                .map(|claim| claim.judge(&outcome.observations))
                .collect(),
            observations: outcome.observations,
            rows: planned.iter().map(row).collect(),
            columns: suite.columns.clone(),
            charts: suite.charts.clone(),
            lines,
        }
    }

    /// The claims with their verdicts.
    pub fn claims(&self) -> &[Judgement] {
        &self.claims
    }

    /// What was observed.
    pub fn observations(&self) -> &[Observation] {
        &self.observations
    }

    /// A row for each claim: what the paper says, the verdict, and the numbers.
    pub fn verdicts(&self) -> Table {
        let row = |found: &Judgement| {
            let claim = &found.claim;
            vec![
                format!("{} ({})", claim.says, claim.source),
                found.verdict.name().into(),
                found.because.clone(),
                claim.published.clone(),
            ]
        };
        Table {
            heading: "Claims".into(),
            note: "A difference between runs counts when the 95 % confidence interval of its mean \
                   over the seeds leaves zero out; ± is half of that interval."
                .into(),
            columns: ["claim", "verdict", "measured", "printed"]
                .map(Column::text)
                .into(),
            rows: self.claims.iter().map(row).collect(),
            highlight: None,
        }
    }

    /// A row for each run: means over the seeds, and what the paper printed.
    pub fn table(&self) -> Table {
        let is_printed = |column: &str| self.rows.iter().any(|r| r.published.contains_key(column));
        let mut columns = vec![Column::text("run")];
        for column in &self.columns {
            let shown = describe(column).unwrap_or(Observed::OWN);
            let title = column.replace('_', " ");
            columns.push(Column::number(title.clone(), shown.unit));
            if is_printed(column) {
                columns.push(Column::number(format!("{title}, printed"), shown.unit));
            }
        }
        let row = |planned: &PlannedRow| {
            let mut cells = vec![planned.name.clone()];
            for column in &self.columns {
                let shown = describe(column).unwrap_or(Observed::OWN);
                cells.push(
                    self.estimate(&planned.name, column)
                        .map_or("–".into(), |found| {
                            let mean = shown.show(found.mean);
                            match found.is_spread() {
                                true => {
                                    format!("{mean} ± {}", shown.show_difference(found.deviation))
                                }
                                false => mean,
                            }
                        }),
                );
                if is_printed(column) {
                    let printed = planned.published.get(column);
                    cells.push(printed.map_or(String::new(), |value| shown.show(*value)));
                }
            }
            cells
        };
        Table {
            heading: "Runs".into(),
            note: match self.seeds() {
                0 => String::new(),
                1 => "One seed.".into(),
                n => format!("Means over {n} seeds ± their standard deviation."),
            },
            columns,
            rows: self.rows.iter().map(row).collect(),
            highlight: None,
        }
    }

    fn seeds(&self) -> usize {
        let seeds: BTreeSet<u64> = self.observations.iter().filter_map(|o| o.seed).collect();
        seeds.len()
    }

    fn estimate(&self, run: &str, quantity: &str) -> Option<Estimate> {
        let of_run = self.observations.iter().filter(|found| found.run == run);
        let values: Vec<f64> = of_run.filter_map(|found| found.get(quantity)).collect();
        Estimate::of(&values)
    }

    /// The charts.
    pub fn charts(&self) -> Vec<Chart> {
        self.charts.iter().map(|spec| self.chart(spec)).collect()
    }

    fn chart(&self, spec: &ChartSpec) -> Chart {
        let drawn = self.lines.iter().enumerate();
        let drawn = drawn.filter(|(_, line)| spec.lines.is_empty() || spec.lines.contains(line));
        let mut series = Vec::new();
        let mut note = spec.note.clone();
        for (group, line) in drawn {
            match (spec.curves, Axis::parse(&spec.x)) {
                (true, Some(axis)) => series.push(self.curve(line, group, axis, &spec.y)),
                _ => series.extend(self.points(spec, line, group, &mut note)),
            }
        }
        for (i, (name, points)) in spec.published.iter().enumerate() {
            let scale = |quantity: &str| describe(quantity).map_or(1.0, Observed::scale);
            let (x, y) = (scale(&spec.x), scale(&spec.y));
            let points = points.iter().map(|p| (p.0 * x, p.1 * y)).collect();
            series.push(Series::markers(name, self.lines.len() + i, points));
        }
        if self.seeds() > 1 {
            let seeds = format!("Means over {} seeds; bands are their range.", self.seeds());
            note = format!("{note} {seeds}").trim().to_owned();
        }
        let axis = |quantity: &str, log: bool| report::Axis {
            label: quantity.replace('_', " "),
            unit: unit(quantity).into(),
            scale: if log {
                report::Scale::Log
            } else {
                report::Scale::Linear
            },
        };
        Chart {
            heading: spec.title.clone(),
            note,
            x: axis(&spec.x, spec.log_x),
            y: axis(&spec.y, spec.log_y),
            series,
            references: Vec::new(),
        }
    }

    /// Mean and range over the seeds of a run's rows, matched by their step.
    fn curve(&self, line: &str, group: usize, axis: Axis, quantity: &str) -> Series {
        let scale = describe(quantity).map_or(1.0, Observed::scale);
        let mut at: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
        for found in self.observations.iter().filter(|found| found.line == line) {
            for row in &found.rows {
                if let Ok(Some(y)) = observe::on_curve(quantity, row) {
                    at.entry(row.step)
                        .or_default()
                        .push((axis.of(row), y * scale));
                }
            }
        }
        let most = at.values().map(Vec::len).max().unwrap_or(0);
        at.retain(|_, found| found.len() == most);
        spans(&Series::line(line, group, Vec::new()), at.values())
    }

    /// Mean and range over the seeds of the runs of a line, and the power law through them.
    fn points(&self, spec: &ChartSpec, line: &str, group: usize, note: &mut String) -> Vec<Series> {
        let scale = |quantity: &str| describe(quantity).map_or(1.0, Observed::scale);
        let (x, y) = (scale(&spec.x), scale(&spec.y));
        let mut runs: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for found in self.observations.iter().filter(|found| found.line == line) {
            if let (Some(a), Some(b)) = (found.get(&spec.x), found.get(&spec.y)) {
                runs.entry(&found.run).or_default().push((a * x, b * y));
            }
        }
        if runs.is_empty() {
            return Vec::new();
        }
        let series = spans(&Series::line(line, group, Vec::new()), runs.values());
        if !spec.fit {
            return vec![series];
        }
        let all: Vec<(f64, f64)> = runs.values().flatten().copied().collect();
        let Some(fit) = Line::power_law(&all) else {
            return vec![series];
        };
        *note += &format!(
            " {line}: {} ∝ {}^({} ± {}), R² {:.3}.",
            spec.y.replace('_', " "),
            spec.x.replace('_', " "),
            sig(fit.slope, 3),
            sig(fit.slope_half_width, 2),
            fit.r_squared
        );
        *note = note.trim().to_owned();
        let of = |x: f64| (x, (fit.intercept + fit.slope * x.ln()).exp());
        let fitted = Series {
            style: Style::Dashed,
            ..Series::line(
                format!("{line}, fitted"),
                group,
                series.points.iter().map(|point| of(point.0)).collect(),
            )
        };
        let measured = Series {
            style: Style::Markers,
            ..series
        };
        vec![measured, fitted]
    }

    /// The whole report.
    pub fn report(&self) -> Report {
        let mut sections = Vec::new();
        if !self.missing.is_empty() {
            sections.push(Section::Text {
                heading: "Not complete".into(),
                body: format!("Missing are {}.", self.missing.join("; ")),
            });
        }
        if !self.claims.is_empty() {
            sections.push(Section::Table(self.verdicts()));
        }
        sections.extend(self.charts().into_iter().map(Section::Chart));
        sections.push(Section::Table(self.table()));
        sections.push(Section::Code {
            heading: "How to repeat it".into(),
            body: self.provenance(),
        });
        Report {
            title: self.title.clone(),
            lead: self.about.clone(),
            sections,
        }
    }

    fn provenance(&self) -> String {
        let origin = &self.origin;
        let mut lines = vec![
            origin.command.clone(),
            String::new(),
            format!("experiment {}, scale {}", origin.name, origin.scale),
            format!("configuration {}", origin.hash),
            format!("backend {} on {}", origin.backend, origin.machine),
        ];
        lines.extend(
            origin
                .commit
                .iter()
                .map(|commit| format!("commit {commit}")),
        );
        if self.training_seconds > 0.0 {
            let time = std::time::Duration::from_secs_f64(self.training_seconds);
            let time = crate::dashboard::duration(time);
            lines.push(format!("{time} of training"));
        }
        lines.join("\n")
    }

    /// Every observation with every quantity, a line each.
    pub fn to_csv(&self) -> String {
        let quantities: BTreeSet<&str> = self
            .observations
            .iter()
            .flat_map(|found| found.quantities.keys().map(String::as_str))
            .collect();
        let head = ["run", "seed"]
            .into_iter()
            .chain(quantities.iter().copied());
        let mut lines = vec![head.map(quoted).collect::<Vec<_>>().join(",")];
        for found in &self.observations {
            let seed = found.seed.map_or(String::new(), |seed| seed.to_string());
            let mut cells = vec![quoted(&found.run), seed];
            let value = |name: &&str| found.get(name).map_or(String::new(), |x| x.to_string());
            cells.extend(quantities.iter().map(value));
            lines.push(cells.join(","));
        }
        lines.join("\n") + "\n"
    }

    /// The tables, with the charts as pictures beside it, whose names begin with `prefix`.
    pub fn to_markdown(&self, prefix: &str) -> String {
        let mut parts = vec![format!("# {}", self.title), self.about.clone()];
        if !self.missing.is_empty() {
            parts.push(format!(
                "**Not complete.** Missing are {}.",
                self.missing.join("; ")
            ));
        }
        if !self.claims.is_empty() {
            parts.push(section(&self.verdicts()));
        }
        parts.push(section(&self.table()));
        for (i, chart) in self.charts().iter().enumerate() {
            parts.push(format!("## {}", chart.heading));
            parts.push(format!("![{}]({prefix}{}.svg)", chart.heading, i + 1));
            if !chart.note.is_empty() {
                parts.push(chart.note.clone());
            }
        }
        parts.push(format!(
            "## How to repeat it\n\n```text\n{}\n```",
            self.provenance()
        ));
        parts.join("\n\n") + "\n"
    }

    /// Writes `report.html`, `results.json`, `results.csv`, `results.md` and its pictures into a
    /// directory.
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
        let json = serde_json::to_string_pretty(self);
        let json = json.unwrap_or_else(|e| unreachable!("results are plain data: {e}"));
        write(directory, "report.html", &self.report().to_html())?;
        write(directory, "results.json", &json)?;
        write(directory, "results.csv", &self.to_csv())?;
        self.write_markdown(directory, "results")
    }

    /// Writes the Markdown and its pictures as `NAME.md` and `NAME-1.svg`, ….
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub fn write_markdown(&self, directory: &Path, name: &str) -> Result<(), Error> {
        fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
        let prefix = format!("{name}-");
        write(directory, &format!("{name}.md"), &self.to_markdown(&prefix))?;
        for (i, chart) in self.charts().iter().enumerate() {
            write(
                directory,
                &format!("{prefix}{}.svg", i + 1),
                &chart.to_svg(),
            )?;
        }
        Ok(())
    }
}

fn write(directory: &Path, name: &str, text: &str) -> Result<(), Error> {
    let path = directory.join(name);
    fs::write(&path, text).map_err(Error::io("write", &path))
}

fn unit(quantity: &str) -> &'static str {
    match Axis::parse(quantity) {
        Some(Axis::Flops) => "FLOP",
        Some(Axis::Seconds) => "s",
        Some(Axis::Tokens) => "",
        None => describe(quantity).map_or("", |shown| shown.unit),
    }
}

/// `series` through the means of groups of points, with the range of each group as the band.
fn spans<'a>(series: &Series, groups: impl Iterator<Item = &'a Vec<(f64, f64)>>) -> Series {
    let mut series = series.clone();
    let mut several = false;
    for group in groups {
        let of =
            |at: fn(&(f64, f64)) -> f64| Estimate::of(&group.iter().map(at).collect::<Vec<_>>());
        if let (Some(x), Some(y)) = (of(|p| p.0), of(|p| p.1)) {
            series.points.push((x.mean, y.mean));
            series.band.push((x.mean, y.lowest, y.highest));
            several |= y.count > 1;
        }
    }
    if !several {
        series.band.clear();
    }
    series
}

/// A table as Markdown, under its heading.
fn section(table: &Table) -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let title = |column: &Column| match column.hint.as_str() {
        "" => cell(&column.title),
        hint => format!("{} ({})", cell(&column.title), cell(hint)),
    };
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let rule = |column: &Column| if column.numeric { "---:" } else { "---" }.to_owned();
    let mut lines = vec![
        line(table.columns.iter().map(title).collect()),
        line(table.columns.iter().map(rule).collect()),
    ];
    let rows = table.rows.iter();
    lines.extend(rows.map(|row| line(row.iter().map(|text| cell(text)).collect())));
    let note = match table.note.as_str() {
        "" => String::new(),
        note => format!("{note}\n\n"),
    };
    format!("## {}\n\n{note}{}", table.heading, lines.join("\n"))
}

/// A CSV field.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
