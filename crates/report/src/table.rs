//! Tables, and their forms as text, Markdown and CSV.

use ::csv::Writer;

use crate::escape::csv_cell;
use crate::markdown;
use crate::number::with_unit;
use crate::text::Text;

/// A table whose first column names the rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// The section heading.
    pub heading: String,
    /// A note under the heading; empty for none.
    pub note: String,
    /// The columns, left to right.
    pub columns: Vec<Column>,
    /// The cells. A short row is padded to the columns, and a long one is cut.
    pub rows: Vec<Vec<Cell>>,
    /// The row to emphasize.
    pub highlight: Option<usize>,
}

/// A cell of a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cell {
    /// The text of the cell.
    pub text: String,
    /// Small print under the text, omitted in plain text.
    pub notes: Vec<String>,
    /// The address that a page links the text to; empty for none.
    pub link: String,
    /// The color of the text on a page. The text must be clear without it.
    pub tone: Tone,
}

/// The meaning of a color on a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    /// No meaning: the color of other text.
    #[default]
    Plain,
    /// Good.
    Good,
    /// Bad.
    Bad,
    /// Undecided.
    Open,
    /// Unimportant.
    Muted,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// A cell that fills short rows.
static EMPTY: Cell = Cell {
    text: String::new(),
    notes: Vec::new(),
    link: String::new(),
    tone: Tone::Plain,
};

impl Table {
    /// Renders the table as text with aligned columns, without heading and note. Units have their own line.
    pub fn to_text(&self) -> String {
        Text::of(self).lines()
    }

    /// Renders the table like [`to_text`](Self::to_text), but at most `columns` wide if possible. Titles are broken
    /// between words, and words are shortened. If that is not enough, the columns are split over several tables, each
    /// beginning with the first column. Numbers are never cut.
    pub fn fit(&self, columns: usize) -> String {
        Text::of(self).fit(columns)
    }

    /// Renders the table as Markdown, under its heading and note.
    pub fn to_markdown(&self) -> String {
        let title = |column: &Column| markdown::text(&column.full_title());
        let cell = |cell: &Cell| {
            let text = match cell.link.as_str() {
                "" => markdown::text(&cell.text),
                link => format!("[{}]({link})", markdown::text(&cell.text)),
            };
            match cell.notes.is_empty() {
                true => text,
                false => format!("{text} ({})", markdown::text(&cell.notes.join("; "))),
            }
        };
        let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let rule = |column: &Column| if column.numeric { "---:" } else { "---" }.to_owned();
        let mut lines = vec![
            line(self.columns.iter().map(title).collect()),
            line(self.columns.iter().map(rule).collect()),
        ];
        let rows = self.rows.iter();
        lines.extend(rows.map(|row| line(self.cells(row).map(cell).collect())));
        let note = match self.note.as_str() {
            "" => String::new(),
            note => format!("{}\n\n", markdown::paragraphs(note)),
        };
        let heading = markdown::text(&self.heading);
        format!("## {heading}\n\n{note}{}", lines.join("\n"))
    }

    /// Returns the cells of `row`, one per column.
    pub(crate) fn cells<'a>(&self, row: &'a [Cell]) -> impl Iterator<Item = &'a Cell> {
        let cells = row.iter().chain(std::iter::repeat(&EMPTY));
        cells.take(self.columns.len())
    }
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
    /// Makes a column of words.
    pub fn text(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    /// Makes a column of numbers with its unit or hint.
    pub fn number(title: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            hint: hint.into(),
            numeric: true,
            ..Self::text(title)
        }
    }

    /// Returns the title with its unit or hint.
    pub(crate) fn full_title(&self) -> String {
        with_unit(&self.title, &self.hint)
    }
}

/// Writes `head` and `rows` as CSV, a line each, with quotes around fields that need them. Numbers stay unchanged. In
/// other cells, an apostrophe marks text that a spreadsheet would read as a formula or that begins with an apostrophe.
/// Control characters are escaped. Different texts stay different.
///
/// A short row is padded to the columns of `head`, and a long one is cut.
pub fn csv(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let titles = head.iter().map(|&name| name.to_owned()).collect();
    let mut writer = Writer::from_writer(Vec::new());
    for mut row in std::iter::once::<Vec<String>>(titles).chain(rows) {
        row.resize(head.len(), String::new());
        let written = writer.write_record(row.iter().map(|cell| csv_cell(cell)));
        written.unwrap_or_else(|e| unreachable!("rows of one length in memory: {e}"));
    }
    let bytes = writer.into_inner();
    let bytes = bytes.unwrap_or_else(|e| unreachable!("writing to memory: {e}"));
    String::from_utf8(bytes).unwrap_or_else(|e| unreachable!("strings are UTF-8: {e}"))
}
