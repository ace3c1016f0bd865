//! A page of text, tables and charts.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::Chart;
use crate::escape::{one_line, printable};
use crate::figure::{STYLE, render};
use crate::heat::HeatMap;
use crate::markdown;
use crate::table::{Cell, Column, Table, Tone};

const HOVER: &str = include_str!("hover.js");

/// The tag that distinguishes pages of this program from other pages.
pub const MARK: &str = "<meta name=\"generator\" content=\"residual-zoo\">";

/// A report page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The page title and first heading.
    pub title: String,
    /// The text under the title; a blank line starts a new paragraph.
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
        /// The text, shown unchanged.
        body: String,
    },
    /// Preformatted texts that a reader unfolds one by one, such as configurations.
    Folded {
        /// The section heading.
        heading: String,
        /// A note under the heading; empty for none.
        note: String,
        /// The language of the texts in Markdown, such as `ron`.
        language: String,
        /// Name and content of each text.
        texts: Vec<(String, String)>,
    },
    /// A table.
    Table(Table),
    /// A chart.
    Chart(Chart),
    /// A heat map.
    HeatMap(HeatMap),
    /// Images with captions, side by side.
    Pictures {
        /// The section heading.
        heading: String,
        /// A note under the heading; empty for none.
        note: String,
        /// The images.
        pictures: Vec<Picture>,
    },
}

/// An image with a caption.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// A PNG file.
    pub png: Vec<u8>,
    /// The caption.
    pub caption: String,
}

impl Report {
    /// Renders the page as one HTML document. Equal reports give equal bytes.
    pub fn to_html(&self) -> String {
        let page = html! {
            (DOCTYPE) "\n"
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="generator" content="residual-zoo";
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
        printable(page.into_string())
    }
}

impl Section {
    /// Renders text, code and tables as Markdown; `None` for charts, heat maps and pictures, which are separate files.
    pub fn to_markdown(&self) -> Option<String> {
        let under = |heading: &str, note: &str, body: String| {
            let heading = format!("## {}", markdown::text(heading));
            let parts = [heading, markdown::paragraphs(note), body];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            Some(parts.join("\n\n"))
        };
        match self {
            Section::Text { heading, body } => under(heading, "", markdown::paragraphs(body)),
            Section::Code { heading, body } => under(heading, "", markdown::code("text", body)),
            Section::Folded {
                heading,
                note,
                language,
                texts,
            } => {
                let text = |(name, text): &(String, String)| {
                    let name = printable(html! { (one_line(name)) }.into_string());
                    let code = markdown::code(language, text);
                    format!("<details>\n<summary>{name}</summary>\n\n{code}\n\n</details>")
                };
                let texts: Vec<String> = texts.iter().map(text).collect();
                under(heading, note, texts.join("\n\n"))
            }
            Section::Table(table) => Some(table.to_markdown()),
            Section::Chart(_) | Section::HeatMap(_) | Section::Pictures { .. } => None,
        }
    }

    fn to_html(&self, index: usize) -> Markup {
        match self {
            Section::Text { heading, body } => under(heading, "", paragraphs("text", body)),
            Section::Code { heading, body } => under(
                heading,
                "",
                html! { pre tabindex="0" { code { (body) } } "\n" },
            ),
            Section::Folded {
                heading,
                note,
                texts,
                ..
            } => under(heading, note, folded(texts)),
            Section::Table(it) => under(&it.heading, &it.note, table(it)),
            Section::Chart(it) => under(&it.heading, &it.note, render(it, index)),
            Section::HeatMap(it) => under(
                &it.heading,
                &it.note,
                scrolled(&it.heading, it.draw(html! {})),
            ),
            Section::Pictures {
                heading,
                note,
                pictures: all,
            } => under(heading, note, pictures(all)),
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

/// Lets a narrow page scroll `wide` sideways.
fn scrolled(name: &str, wide: Markup) -> Markup {
    html! { div class="scroll" tabindex="0" role="region" aria-label=(name) { (wide) } "\n" }
}

fn folded(texts: &[(String, String)]) -> Markup {
    html! {
        @for (name, text) in texts {
            details { summary { (name) } pre tabindex="0" { code { (text) } } } "\n"
        }
    }
}

/// Renders images, enlarged without smoothing because small images have few pixels.
fn pictures(pictures: &[Picture]) -> Markup {
    html! {
        ul class="pictures" { "\n"
            @for Picture { png, caption } in pictures {
                li {
                    @let address = format!("data:image/png;base64,{}", BASE64_STANDARD.encode(png));
                    img src=(address) alt="" width="96" height="96";
                    span { (caption) }
                } "\n"
            }
        } "\n"
    }
}

/// Renders a table. Narrow pages show each row as a card. Explicit roles keep the card a row for screen readers.
fn table(table: &Table) -> Markup {
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(table.heading) {
            table role="table" {
                caption { (table.heading) }
                thead role="rowgroup" {
                    tr role="row" {
                        @for column in &table.columns {
                            th scope="col" role="columnheader" class=[class(column, Tone::Plain)] {
                                (column.title)
                                @if !column.hint.is_empty() { " " small { (column.hint) } }
                            }
                        }
                    }
                } "\n"
                tbody role="rowgroup" { "\n"
                    @for (i, row) in table.rows.iter().enumerate() {
                        tr role="row" class=[(table.highlight == Some(i)).then_some("best")] {
                            @for (j, pair) in table.cells(row).zip(&table.columns).enumerate() {
                                (cell(j == 0, pair))
                            }
                        } "\n"
                    }
                }
            }
        } "\n"
    }
}

fn cell(is_first: bool, (cell, column): (&Cell, &Column)) -> Markup {
    let class = class(column, cell.tone);
    let content = html! {
        @if cell.link.is_empty() { (cell.text) } @else { a href=(cell.link) { (cell.text) } }
        @for note in &cell.notes { " " small { (note) } }
    };
    html! {
        @if is_first {
            th scope="row" role="rowheader" class=[class] { (content) }
        } @else {
            td role="cell" class=[class] data-label=(column.full_title()) { (content) }
        }
    }
}

fn class(column: &Column, tone: Tone) -> Option<String> {
    let tone = match tone {
        Tone::Plain => None,
        Tone::Good => Some("good"),
        Tone::Bad => Some("bad"),
        Tone::Open => Some("open"),
        Tone::Muted => Some("muted"),
    };
    let classes = column.numeric.then_some("num").into_iter().chain(tone);
    let classes: Vec<&str> = classes.collect();
    (!classes.is_empty()).then(|| classes.join(" "))
}

fn paragraphs(class: &str, text: &str) -> Markup {
    html! {
        @for paragraph in text.split("\n\n").filter(|p| !p.trim().is_empty()) {
            p class=(class) { (paragraph) } "\n"
        }
    }
}
