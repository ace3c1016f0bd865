//! The page of text, tables and charts.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::Chart;
use crate::figure::{STYLE, render};
use crate::table::{Column, Table};

const HOVER: &str = include_str!("hover.js");

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

impl Report {
    /// The page as one HTML document; equal reports give equal bytes.
    pub fn to_html(&self) -> String {
        let page = html! {
            (DOCTYPE) "\n"
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) }
                    style { "\n" (PreEscaped(STYLE)) }
                } "\n"
                body {
                    main { "\n"
                        h1 { (self.title) } "\n"
                        (paragraphs("lead", &self.lead))
                        @for (i, section) in self.sections.iter().enumerate() {
                            section { "\n" (section.to_html(i)) } "\n"
                        }
                    } "\n"
                    script { "\n" (PreEscaped(HOVER)) }
                }
            } "\n"
        };
        page.into_string()
    }
}

impl Section {
    fn to_html(&self, index: usize) -> Markup {
        match self {
            Section::Text { heading, body } => under(heading, "", paragraphs("text", body)),
            Section::Code { heading, body } => under(
                heading,
                "",
                html! { pre tabindex="0" { code { (body) } } "\n" },
            ),
            Section::Table(it) => under(&it.heading, &it.note, table(it)),
            Section::Chart(it) => under(&it.heading, &it.note, render(it, index)),
        }
    }
}

fn under(heading: &str, note: &str, body: Markup) -> Markup {
    html! {
        @if !heading.is_empty() { h2 { (heading) } "\n" }
        (paragraphs("note", note))
        (body)
    }
}

fn table(table: &Table) -> Markup {
    let class = |column: &Column| column.numeric.then_some("num");
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(table.heading) {
            table {
                thead {
                    tr {
                        @for column in &table.columns {
                            th scope="col" class=[class(column)] {
                                (column.title)
                                @if !column.hint.is_empty() { small { (column.hint) } }
                            }
                        }
                    }
                } "\n"
                tbody { "\n"
                    @for (i, row) in table.rows.iter().enumerate() {
                        tr class=[(table.highlight == Some(i)).then_some("best")] {
                            @let cells = table.cells(row).zip(&table.columns);
                            @for (j, (cell, column)) in cells.enumerate() {
                                @if j == 0 {
                                    th scope="row" class=[class(column)] { (cell) }
                                } @else {
                                    td class=[class(column)] { (cell) }
                                }
                            }
                        } "\n"
                    }
                }
            }
        } "\n"
    }
}

fn paragraphs(class: &str, text: &str) -> Markup {
    html! {
        @for paragraph in text.split("\n\n").filter(|p| !p.trim().is_empty()) {
            p class=(class) { (paragraph) } "\n"
        }
    }
}
