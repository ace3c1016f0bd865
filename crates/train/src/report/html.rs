//! The page around the sections.

use super::{Column, Report, Section, Table, chart};

pub(super) const STYLE: &str = include_str!("style.css");
const HOVER: &str = include_str!("hover.js");

pub(super) fn page(report: &Report) -> String {
    let (title, lead) = (escape(&report.title), paragraphs("lead", &report.lead));
    let sections = report.sections.iter().enumerate();
    let sections: String = sections.map(|(i, s)| section(s, i)).collect();
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{lead}{sections}</main>
<script>
{HOVER}</script>
</body>
</html>
"#
    )
}

fn section(section: &Section, index: usize) -> String {
    let (heading, note, body) = match section {
        Section::Text { heading, body } => (heading, "", paragraphs("text", body)),
        Section::Code { heading, body } => (heading, "", code(body)),
        Section::Table(t) => (&t.heading, t.note.as_str(), table(t)),
        Section::Chart(c) => (&c.heading, c.note.as_str(), chart::render(c, index)),
    };
    let (heading, note) = (element("h2", heading), paragraphs("note", note));
    format!("<section>\n{heading}{note}{body}</section>\n")
}

fn code(body: &str) -> String {
    format!("<pre tabindex=\"0\">{}</pre>\n", element("code", body))
}

fn table(table: &Table) -> String {
    let mut rows = String::new();
    for column in &table.columns {
        let (title, hint) = (escape(&column.title), element("small", &column.hint));
        let class = cell_class(column);
        rows += &format!(r#"<th scope="col"{class}>{title}{hint}</th>"#);
    }
    rows = format!("<thead><tr>{rows}</tr></thead>\n<tbody>\n");
    for (i, row) in table.rows.iter().enumerate() {
        let best = table.highlight == Some(i);
        rows += if best { r#"<tr class="best">"# } else { "<tr>" };
        for (j, column) in table.columns.iter().enumerate() {
            let cell = row.get(j).map(|c| escape(c)).unwrap_or_default();
            let class = cell_class(column);
            rows += &match j {
                0 => format!(r#"<th scope="row"{class}>{cell}</th>"#),
                _ => format!("<td{class}>{cell}</td>"),
            };
        }
        rows += "</tr>\n";
    }
    let name = escape(&table.heading);
    format!(
        r#"<div class="scroll" tabindex="0" role="region" aria-label="{name}">
<table>
{rows}</tbody>
</table>
</div>
"#
    )
}

fn cell_class(column: &Column) -> &'static str {
    if column.numeric {
        r#" class="num""#
    } else {
        ""
    }
}

/// An element around `text`, or nothing around nothing.
fn element(tag: &str, text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("<{tag}>{}</{tag}>", escape(text)),
    }
}

fn paragraphs(class: &str, text: &str) -> String {
    let each = text.split("\n\n").filter(|p| !p.trim().is_empty());
    let paragraph = |p| format!("<p class=\"{class}\">{}</p>\n", escape(p));
    each.map(paragraph).collect()
}

/// `text` as it may stand in an element or a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
