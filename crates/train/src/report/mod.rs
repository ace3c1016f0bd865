//! Reports: one HTML file of text, tables and line charts that opens without a network.
//!
//! ```ignore
//! let loss = Chart {
//!     heading: "Validation loss".into(),
//!     x: Axis::log("training compute", "FLOP"),
//!     y: Axis::linear("loss", "nats/token"),
//!     series: vec![Series::line("gpt2", 0, points)],
//!     ..Chart::default()
//! };
//! let html = Report { title, lead, sections: vec![Section::Chart(loss)] }.to_html();
//! ```

mod chart;
mod domain;
mod html;
mod labels;
mod number;
mod plot;
mod series;
#[cfg(test)]
mod tests;

pub use number::{si, sig};

/// A report page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The page title and first heading.
    pub title: String,
    /// The sentence under the title.
    pub lead: String,
    /// The page body, in order.
    pub sections: Vec<Section>,
}

impl Report {
    /// The page as one HTML document; equal reports give equal bytes.
    pub fn to_html(&self) -> String {
        html::page(self)
    }
}

/// One part of a report page.
#[derive(Debug, Clone, PartialEq)]
pub enum Section {
    /// Prose; a blank line starts a new paragraph.
    Text {
        /// The section heading.
        heading: String,
        /// The paragraphs.
        body: String,
    },
    /// Preformatted text, such as a configuration or a command.
    Code {
        /// The section heading.
        heading: String,
        /// The text, shown as it is.
        body: String,
    },
    /// A table.
    Table(Table),
    /// A chart.
    Chart(Chart),
}

/// A table whose first column names the rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// The section heading.
    pub heading: String,
    /// A sentence under the heading; empty for none.
    pub note: String,
    /// The columns, left to right.
    pub columns: Vec<Column>,
    /// The cells; a short row is padded and a long one is cut to the columns.
    pub rows: Vec<Vec<String>>,
    /// The row to emphasize.
    pub highlight: Option<usize>,
}

/// The head of a table column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Column {
    /// The column title.
    pub title: String,
    /// The unit or a short hint under the title; empty for none.
    pub hint: String,
    /// Whether the cells are numbers, which align to the right.
    pub numeric: bool,
}

impl Column {
    /// A column of words.
    pub fn text(title: impl Into<String>) -> Self {
        let title = title.into();
        Self {
            title,
            ..Self::default()
        }
    }

    /// A column of numbers with its unit or hint.
    pub fn number(title: impl Into<String>, hint: impl Into<String>) -> Self {
        let (title, hint, numeric) = (title.into(), hint.into(), true);
        Self {
            title,
            hint,
            numeric,
        }
    }
}

/// A chart of series over a shared x axis.
///
/// The y axis spans what the lines show over most of the x axis, so that the first steps of a
/// run do not flatten the rest; what rises above it is cut off and the chart says so. Markers and
/// references are always inside. A line too dense and noisy to follow is averaged, which the chart
/// says as well, and the range of its points becomes its band unless it has one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chart {
    /// The section heading.
    pub heading: String,
    /// A sentence under the heading; empty for none.
    pub note: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn, the first series lowest.
    pub series: Vec<Series>,
    /// Horizontal reference lines.
    pub references: Vec<Reference>,
}

impl Chart {
    /// The chart as an SVG file of its own, with its legend, light or dark as the reader's system
    /// is; without hover values.
    pub fn to_svg(&self) -> String {
        chart::standalone(self)
    }
}

/// A chart axis.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Axis {
    /// The quantity.
    pub label: String,
    /// Its unit; empty for none.
    pub unit: String,
    /// How values map to positions.
    pub scale: Scale,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>, unit: impl Into<String>) -> Self {
        let (label, unit, scale) = (label.into(), unit.into(), Scale::Linear);
        Self { label, unit, scale }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>, unit: impl Into<String>) -> Self {
        let scale = Scale::Log;
        Self {
            scale,
            ..Self::linear(label, unit)
        }
    }
}

/// How values map to positions along an axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scale {
    /// In proportion to the value.
    #[default]
    Linear,
    /// In proportion to its logarithm; values that are not positive are left out.
    Log,
}

/// A named sequence of points; points that are not finite are left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// `(x, y)` in any order.
    pub points: Vec<(f64, f64)>,
    /// `(x, low, high)`, such as the range over seeds; empty for none.
    pub band: Vec<(f64, f64, f64)>,
    /// How the points are drawn.
    pub style: Style,
    /// The color, taken modulo the eight of the palette.
    pub group: usize,
}

impl Series {
    /// A solid line.
    pub fn line(name: impl Into<String>, group: usize, points: Vec<(f64, f64)>) -> Self {
        let name = name.into();
        Self {
            name,
            group,
            points,
            ..Self::default()
        }
    }

    /// Hollow diamonds without a line, such as published results.
    pub fn markers(name: impl Into<String>, group: usize, points: Vec<(f64, f64)>) -> Self {
        let style = Style::Markers;
        Self {
            style,
            ..Self::line(name, group, points)
        }
    }
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Style {
    /// A solid line.
    #[default]
    Solid,
    /// A dashed line.
    Dashed,
    /// Hollow diamonds without a line.
    Markers,
}

/// A horizontal line at a known value, such as an entropy rate.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reference {
    /// The name beside the line.
    pub name: String,
    /// The value.
    pub y: f64,
}

impl Reference {
    /// A reference line.
    pub fn new(name: impl Into<String>, y: f64) -> Self {
        let name = name.into();
        Self { name, y }
    }
}
