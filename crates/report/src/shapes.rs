//! SVG elements of drawings, one line of text each.

use maud::{Markup, html};

use crate::chart::Style;

/// Writes a coordinate or a length with one decimal.
pub(crate) fn length(value: f64) -> String {
    format!("{value:.1}")
}

pub(crate) fn text(class: &str, x: f64, y: f64, text: &str) -> Markup {
    html! { text class=(class) x=(length(x)) y=(length(y)) { (text) } "\n" }
}

pub(crate) fn path(class: &str, d: &str) -> Markup {
    html! { path class=(class) d=(d) {} "\n" }
}

pub(crate) fn circle(class: &str, x: f64, y: f64) -> Markup {
    html! { circle class=(class) cx=(length(x)) cy=(length(y)) r="3" {} "\n" }
}

/// Draws a hollow diamond. Without a script, the diamond shows `title` under the pointer.
pub(crate) fn diamond(x: f64, y: f64, title: &str) -> Markup {
    let d = format!("M{x:.1},{:.1}l5,5l-5,5l-5,-5Z", y - 5.0);
    html! {
        path class="diamond" d=(d) {
            @if !title.is_empty() { title { (title) } }
        } "\n"
    }
}

/// The number of colors.
const COLORS: usize = 8;

/// Draws the line of `group`. Groups beyond the number of colors reuse the colors, with dashes.
pub(crate) fn line(style: Style, group: usize, d: &str) -> Markup {
    let class = match style {
        Style::Dashed => format!("line dashed {}", color(group)),
        _ => format!("line {}", color(group)),
    };
    html! { path class=(class) stroke-dasharray=[dashes(group)] d=(d) {} "\n" }
}

/// Returns the class with the color of `group`.
pub(crate) fn color(group: usize) -> String {
    format!("c{}", group % COLORS)
}

/// Returns the dashes of `group`: one long dash, and a short one for each earlier use of its color after the first.
/// `None` for the first use, a solid line.
pub(crate) fn dashes(group: usize) -> Option<String> {
    let short = (group / COLORS).checked_sub(1)?;
    Some(format!("9 3{}", " 2 3".repeat(short)))
}
