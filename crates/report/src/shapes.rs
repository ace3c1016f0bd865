//! The SVG elements that drawings are made of, a line of text each.

use std::fmt;

use maud::{Markup, html};

use crate::chart::Style;

/// A coordinate or a length, written with one decimal.
pub(crate) struct Length(pub(crate) f64);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:.1}", self.0)
    }
}

pub(crate) fn text(class: &str, x: f64, y: f64, text: &str) -> Markup {
    html! { text class=(class) x=(Length(x)) y=(Length(y)) { (text) } "\n" }
}

pub(crate) fn path(class: &str, d: &str) -> Markup {
    html! { path class=(class) d=(d) {} "\n" }
}

pub(crate) fn circle(class: &str, x: f64, y: f64) -> Markup {
    html! { circle class=(class) cx=(Length(x)) cy=(Length(y)) r="3" {} "\n" }
}

/// A hollow diamond that shows `title` under the pointer where there is no script.
pub(crate) fn diamond(x: f64, y: f64, title: &str) -> Markup {
    let d = format!("M{x:.1},{:.1}l5,5l-5,5l-5,-5Z", y - 5.0);
    html! {
        path class="diamond" d=(d) {
            @if !title.is_empty() { title { (title) } }
        } "\n"
    }
}

/// The classes of a line.
pub(crate) fn stroke(style: Style) -> &'static str {
    if style == Style::Dashed {
        "line dashed"
    } else {
        "line"
    }
}

/// The class with the color of `group`.
pub(crate) fn color(group: usize) -> String {
    format!("c{}", group % 8)
}
