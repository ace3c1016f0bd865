//! Several models on the same data and budget: one table, one report.

use std::fs;
use std::path::Path;

use residual_zoo_data::Entropy;

use crate::report::{Axis, Chart, Column, Reference, Report, Section, Series, Table, si};
use crate::{Error, Row, Summary};

/// A finished run and the name it goes by.
pub struct Entry {
    /// Name of the model.
    pub name: String,
    /// How it went.
    pub summary: Summary,
}

/// What was compared, and on what.
pub struct Comparison {
    /// The runs.
    pub entries: Vec<Entry>,
    /// What the data is, for the lead of the report.
    pub data: String,
    /// The least possible losses, where the data has any that are known.
    pub entropy: Option<Entropy>,
    /// The command that repeats it.
    pub command: String,
}

impl Comparison {
    /// The table, columns and rows.
    pub fn table(&self) -> Table {
        let mut columns = vec![
            Column::text("model"),
            Column::number("parameters", ""),
            Column::number("not embedding", ""),
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
        let losses = self.entries.iter().map(|entry| entry.summary.valid_loss);
        let highlight = losses.enumerate().min_by(best).map(|(i, _)| i);
        Table {
            heading: "Results".into(),
            note: "The lowest validation loss is marked.".into(),
            columns,
            rows,
            highlight,
        }
    }

    fn row(&self, Entry { name, summary }: &Entry) -> Vec<String> {
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
        cells
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
        let references: Vec<Reference> = self
            .entropy
            .into_iter()
            .flat_map(|e| [("entropy rate", e.rate), ("best bigram model", e.bigram)])
            .map(|(name, y)| Reference {
                name: name.into(),
                y,
            })
            .collect();
        let chart = |over: &str, x: Axis, at: fn(&Row) -> f64| {
            Section::Chart(Chart {
                heading: format!("Validation loss over {over}"),
                note: String::new(),
                x,
                y: Axis::linear("validation loss", "nats/token"),
                series: self.series(at),
                references: references.clone(),
            })
        };
        Report {
            title: "Comparison of architectures".into(),
            lead: format!(
                "Every model was trained on the same tokens of {} with the same budget.{}",
                self.data,
                entropy.unwrap_or_default()
            ),
            sections: vec![
                Section::Table(self.table()),
                chart("tokens", Axis::linear("training tokens", ""), |row| {
                    row.tokens as f64
                }),
                chart("FLOPs", Axis::linear("training FLOPs", ""), |row| row.flops),
                chart("time", Axis::linear("training time", "s"), |row| {
                    row.seconds
                }),
                Section::Code {
                    heading: "Command".into(),
                    body: self.command.clone(),
                },
            ],
        }
    }

    fn series(&self, at: fn(&Row) -> f64) -> Vec<Series> {
        let curve = |rows: &[Row]| {
            rows.iter()
                .filter_map(|row| Some((at(row), row.valid_loss?)))
                .collect()
        };
        let entries = self.entries.iter().enumerate();
        entries
            .map(|(i, e)| Series::line(&e.name, i, curve(&e.summary.rows)))
            .collect()
    }

    /// Writes the report to `path`.
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        fs::write(path, self.report().to_html()).map_err(Error::io("write", path))
    }
}

/// A table as text, columns aligned.
pub fn to_text(table: &Table) -> String {
    let titles = table
        .columns
        .iter()
        .map(|column| column.title.clone())
        .collect();
    let lines: Vec<Vec<String>> = std::iter::once(titles).chain(table.rows.clone()).collect();
    let width = |i: usize| {
        lines
            .iter()
            .map(|line| line[i].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let format = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).zip(&table.columns);
        let cells = cells.map(|((cell, &width), column)| match column.numeric {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    lines.iter().map(format).collect::<Vec<_>>().join("\n")
}
