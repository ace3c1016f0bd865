//! The report of a sweep: a table of all points, and a chart for each field.

use residual_zoo_report::{
    Axis, Cell, Chart, Column, Reference, Section, Series, Style, Table, Tone, csv, si,
};

use crate::Observed;
use crate::stats::Estimate;
use crate::sweep::{Swept, Value};
use crate::tuning::{SweptRun, TriedPoint, Tuning};

const LOSS: &str = "valid_loss";

impl Tuning {
    /// Returns the table and the charts.
    pub(crate) fn sections(&self) -> Vec<Section> {
        let charts = self.charts().into_iter().map(Section::Chart);
        charts.chain([Section::Table(self.table())]).collect()
    }

    /// Returns a table with a row for each point of each run, the best first.
    pub fn table(&self) -> Table {
        let mut columns = vec![Column::text("run")];
        columns.extend(
            self.sweep
                .over
                .iter()
                .map(|swept| Column::number(swept.name(), "")),
        );
        columns.push(Column::number("training tokens", ""));
        columns.push(Column::number("validation loss", Observed::of(LOSS).unit));
        columns.push(Column::text("remark"));
        Table {
            heading: "Sweep".into(),
            note: self.note(),
            columns,
            rows: self.runs.iter().flat_map(|run| self.rows(run)).collect(),
            highlight: None,
        }
    }

    /// Describes the tried values and the seeds, with notes.
    fn note(&self) -> String {
        let seeds: Vec<String> = self.sweep.seeds.iter().map(u64::to_string).collect();
        let over: Vec<String> = self.sweep.over.iter().map(Swept::describe).collect();
        let mut note = format!(
            "{}. {} {}: {}{} training tokens in all{}. ",
            over.join("; "),
            if seeds.len() > 1 { "Seeds" } else { "Seed" },
            seeds.join(", "),
            if seeds.len() > 1 {
                "means ± standard deviation; "
            } else {
                ""
            },
            si(self.tokens()),
            match self
                .points()
                .any(|tried| tried.failed.is_some() && tried.tokens == 0.0)
            {
                true => ", without points at which a run ended early",
                false => "",
            }
        );
        if self
            .points()
            .any(|tried| tried.share > 0.0 && tried.share < 1.0)
        {
            note += "Points were given up because of their loss in the middle of the learning-rate schedule, which \
                     favours points whose loss falls early. ";
        }
        if let Some(widened) = self.sweep.widened() {
            note += &format!("In the sweep, {widened}. ");
        }
        if !self.rule.is_empty() {
            note += "Each run was then trained with the value that the rule gives it. ";
        } else if self.sweep.tuned && self.sweep.rule.is_none() {
            note += "Each run was then trained at its best point for the seeds of the experiment. ";
        }
        for edge in self.edges() {
            note += &format!("{edge}. ");
        }
        note.trim_end().to_owned()
    }

    fn rows(&self, run: &SweptRun) -> Vec<Vec<Cell>> {
        let mut order: Vec<usize> = (0..run.tried.len()).collect();
        let rank = |i: &usize| {
            let tried = &run.tried[*i];
            let loss = tried.loss().map_or(f64::INFINITY, |loss| loss.mean);
            (run.best != Some(*i), -tried.share, loss)
        };
        order.sort_by(|a, b| {
            let (a, b) = (rank(a), rank(b));
            a.0.cmp(&b.0)
                .then(a.1.total_cmp(&b.1))
                .then(a.2.total_cmp(&b.2))
        });
        let row = |i: usize| {
            let tried = &run.tried[i];
            let mut cells: Vec<Cell> = vec![run.run.as_str().into()];
            cells.extend(
                tried
                    .values
                    .iter()
                    .map(|value| Cell::from(value.to_string())),
            );
            cells.push(si(tried.tokens).into());
            cells.push(loss(tried).into());
            cells.push(remark(tried, run.best == Some(i)));
            cells
        };
        order.into_iter().map(row).collect()
    }

    /// Returns charts of the validation loss, one over each field with numbers. At each value of the field, a chart
    /// shows the best point with this value.
    pub fn charts(&self) -> Vec<Chart> {
        let fields = self.sweep.over.iter().enumerate();
        let charts = fields.map(|(i, swept)| self.chart(i, swept));
        charts.filter(|chart| !chart.series.is_empty()).collect()
    }

    /// Returns a horizontal line at the loss of the best point of each run, labelled with that point's value of the
    /// field.
    fn best_lines(&self, field: usize) -> Vec<Reference> {
        let line = |run: &SweptRun| {
            let best = run.best()?;
            let (value, loss) = (best.values.get(field)?, best.loss()?);
            Some(Reference::new(
                format!("{}: best at {value}", run.run),
                loss.mean,
            ))
        };
        self.runs.iter().filter_map(line).collect()
    }

    /// Returns a CSV with a line for each run, point and seed. A line has the values, the directory, the trained share
    /// of the steps and the training tokens. Each line also says whether the point is the best of its run, and has the
    /// validation loss or the reason why the loss is missing.
    pub fn to_csv(&self) -> String {
        let fields: Vec<String> = self
            .sweep
            .over
            .iter()
            .map(|swept| swept.field.clone())
            .collect();
        let mut head = vec!["run"];
        head.extend(fields.iter().map(String::as_str));
        head.extend([
            "seed",
            "directory",
            "share",
            "tokens",
            "valid_loss",
            "best",
            "failed",
        ]);
        let mut lines = Vec::new();
        for run in &self.runs {
            for (i, tried) in run.tried.iter().enumerate() {
                for (j, seed) in self.sweep.seeds.iter().enumerate() {
                    let loss = tried.losses.get(j).copied().flatten();
                    let failed = tried.failed.clone().filter(|_| loss.is_none());
                    let loss = loss.map(|loss| loss.to_string());
                    let mut line = vec![run.run.clone()];
                    line.extend(tried.values.iter().map(Value::to_string));
                    let directory = tried.directories.get(j).and_then(Option::as_deref);
                    line.extend([
                        seed.to_string(),
                        directory.map_or(String::new(), |it| it.display().to_string()),
                        tried.share.to_string(),
                        tried.tokens.to_string(),
                        loss.unwrap_or_default(),
                        (run.best == Some(i)).to_string(),
                        failed.unwrap_or_default(),
                    ]);
                    lines.push(line);
                }
            }
        }
        csv(&head, lines)
    }

    fn chart(&self, field: usize, swept: &Swept) -> Chart {
        let name = swept.name();
        let mut series = Vec::new();
        for (group, run) in self.runs.iter().enumerate() {
            let of = |tried: &TriedPoint| match tried.values.get(field)? {
                Value::Number(x) => Some((*x, tried.loss()?)),
                Value::Ron(_) => None,
            };
            let (mut line, mut given_up) = (Series::line(&run.run, group, vec![]), Vec::new());
            for tried in &run.tried {
                let Some((x, loss)) = of(tried) else { continue };
                if tried.share < 1.0 {
                    given_up.push((x, loss.mean));
                    continue;
                }
                match line.points.iter().position(|point| point.0 == x) {
                    Some(at) if line.points[at].1 <= loss.mean => {}
                    Some(at) => {
                        line.points[at] = (x, loss.mean);
                        line.band[at] = (x, loss.lowest, loss.highest);
                    }
                    None => {
                        line.points.push((x, loss.mean));
                        line.band.push((x, loss.lowest, loss.highest));
                    }
                }
            }
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
            line.band.sort_by(|a, b| a.0.total_cmp(&b.0));
            if self.sweep.seeds.len() == 1 {
                line.band.clear();
            }
            let given_up = Series::markers(format!("{}, given up", run.run), group, given_up);
            series.extend(
                [line, given_up]
                    .into_iter()
                    .filter(|s| !s.points.is_empty()),
            );
        }
        let mut note = String::new();
        if self.sweep.over.len() > 1 {
            note += "For each value, the best of the points that have it. ";
        }
        let failed = self.points().filter(|tried| tried.failed.is_some());
        let failed = failed.count();
        if failed > 0 {
            note += &format!(
                "{failed} of {} points have no loss. ",
                self.points().count()
            );
        }
        if series.iter().any(|series| series.style == Style::Markers) {
            note += "A point that was given up is drawn at its last loss. ";
        }
        Chart {
            heading: format!("Validation loss over {name}"),
            note: note.trim_end().into(),
            x: match swept.is_log() {
                true => Axis::log(&name, ""),
                false => Axis::linear(&name, ""),
            },
            y: Axis::linear("validation loss", Observed::of(LOSS).unit),
            series,
            references: self.best_lines(field),
        }
    }
}

/// Returns the loss of a point as text.
fn loss(tried: &TriedPoint) -> String {
    let of = Observed::of(LOSS);
    tried.loss().map_or("–".into(), |loss| {
        let mean = of.show(loss.mean);
        match loss.is_spread() {
            true => format!("{mean} ± {}", of.show_difference(loss.deviation)),
            false => mean,
        }
    })
}

/// Describes the results of the seeds that finished, if there are any.
fn of_the_others(tried: &TriedPoint) -> String {
    let losses: Vec<f64> = tried.losses.iter().copied().flatten().collect();
    let (of, count) = (Observed::of(LOSS), losses.len());
    Estimate::of(&losses).map_or(String::new(), |loss| {
        let (all, mean) = (tried.losses.len(), of.show(loss.mean));
        match count {
            1 => format!("; 1 of {all} seeds ended at {mean}"),
            _ => format!("; {count} of {all} seeds ended at {mean} on average"),
        }
    })
}

fn remark(tried: &TriedPoint, is_best: bool) -> Cell {
    let (text, tone) = match &tried.failed {
        _ if is_best => ("✓ best".to_owned(), Tone::Good),
        Some(why) => (format!("{why}{}", of_the_others(tried)), Tone::Bad),
        None if tried.share < 1.0 => {
            let share = 100.0 * tried.share;
            (
                format!("given up after {share:.0} % of the steps"),
                Tone::Muted,
            )
        }
        None => (String::new(), Tone::Plain),
    };
    Cell {
        tone,
        ..Cell::from(text)
    }
}
