//! Reports: text, tables, line charts and heat maps in one HTML file that opens without a network. Charts and heat maps
//! are also written as SVG, tables as Markdown and plain text, and rows as CSV.
//!
//! ```
//! use residual_zoo_report::{Axis, Chart, Report, Section, Series};
//!
//! let loss = Chart {
//!     heading: "Validation loss".into(),
//!     x: Axis::log("training compute", "FLOP"),
//!     y: Axis::linear("loss", "nats/token"),
//!     series: vec![Series::line("gpt2", 0, vec![(1e15, 4.1), (1e16, 3.4)])],
//!     ..Chart::default()
//! };
//! let report = Report {
//!     title: "Comparison".into(),
//!     sections: vec![Section::Chart(loss)],
//!     ..Report::default()
//! };
//! assert!(report.to_html().contains("Validation loss"));
//! ```
//!
//! A module uses only modules before it in this order: `escape`, `markdown`, `width`, `number`, `table` with `text`,
//! `chart`, `domain`, `series`, `shapes`, `labels`, `plot`, `draw`, `figure`, `heat`, `page`.

#![forbid(unsafe_code)]

mod chart;
mod domain;
mod draw;
mod escape;
mod figure;
mod heat;
mod labels;
pub mod markdown;
mod number;
mod page;
mod plot;
mod series;
mod shapes;
mod table;
mod text;
mod width;

#[cfg(test)]
mod tests;

pub use chart::{Axis, Chart, Reference, Scale, Series, Style};
pub use heat::HeatMap;
pub use number::{bytes, duration, flops_per_second, si, sig};
pub use page::{MARK, Picture, Report, Section};
pub use table::{Cell, Column, Table, Tone, csv};
pub use width::{wrap, wrapped};
