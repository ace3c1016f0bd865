//! Charts: a legend, a drawing for wide pages, a drawing for phones, and the values that appear under the pointer.

use maud::{Markup, PreEscaped, html};
use serde_json::{Value, json};

use crate::chart::{Axis, Chart, Scale, Series, Style};
use crate::domain::Domain;
use crate::escape::printable;
use crate::number::{label, round};
use crate::plot::Plot;
use crate::series::{POINTS, Span, Trace, View, thin};
use crate::shapes::{color, diamond, line, path, text};
use crate::width::{shorten, width as columns, wrap};

/// The style sheet of pages and of separate SVG files.
pub(crate) const STYLE: &str = include_str!("style.css");
/// Maximum width of a legend name or a line of notes in a separate file, in terminal columns: the width of the drawing.
const NAME: usize = 112;
/// The additional style of a chart or a heat map in a separate file.
pub(crate) const ALONE: &str = ".wide { display: block; }
.plot { background: var(--page); font-family: system-ui, sans-serif; }
";

impl Chart {
    /// Describes changes to the data: noise that was averaged, values that were cut off, and points, parts of bands and
    /// references that the axes cannot show. Pages and chart files include these notes.
    pub fn notes(&self) -> String {
        View::of(self).notes()
    }

    /// Returns the chart as a separate SVG file with a legend, in the light or dark colors of the reader's system. The
    /// file shows no values under the pointer.
    pub fn to_svg(&self) -> String {
        let view = View::of(self);
        let plot = Plot::new(&view, false);
        let (width, height) = (plot.width, plot.height);
        let (mut entries, mut left, mut line) = (Vec::new(), 0.0, 1.0);
        let legend = legend(self, -4.0);
        let names: Vec<&String> = legend.iter().map(|(_, _, name)| name).collect();
        let names = shorten(&names, NAME);
        for ((class, sample, _), name) in legend.into_iter().zip(names) {
            let room = 44.0 + 7.0 * columns(&name) as f64;
            if left > 0.0 && left + room > width {
                (left, line) = (0.0, line + 1.0);
            }
            let place = format!("translate({left:.0},{:.0})", height + 20.0 * line);
            entries.push(html! {
                g class=(class) transform=(place) { (sample) text x="32" { (name) } } "\n"
            });
            left += room;
        }
        let notes = wrap(&view.notes(), NAME);
        let first = height + 20.0 * line + 22.0;
        let full = first - 12.0 + 18.0 * notes.len() as f64;
        let svg = html! {
            svg class="plot" xmlns="http://www.w3.org/2000/svg"
                viewBox={ "-8 -8 " (width + 16.0) " " (full + 8.0) } {
                style { "\n" (PreEscaped(STYLE)) (PreEscaped(ALONE)) } "\n"
                rect x="-8" y="-8" width="100%" height="100%" fill="var(--page)" {} "\n"
                svg width=(width) height=(height) { (plot.draw(0)) } "\n"
                @for entry in entries { (entry) }
                @for (i, note) in notes.iter().enumerate() {
                    (text("", 0.0, first + 18.0 * i as f64, note))
                }
            } "\n"
        };
        printable(svg.into_string())
    }
}

/// Returns the class, the sample and the name of each legend entry. A sample is a line or a marker, centered in a width
/// of 26 units and vertically at `y`.
fn legend(chart: &Chart, y: f64) -> Vec<(String, Markup, String)> {
    let stroke = format!("M1,{y}H25");
    let sample = |series: &Series| match series.style {
        Style::Markers => diamond(13.0, y, ""),
        style => line(style, series.group, &stroke),
    };
    let series = chart.series.iter();
    let series = series.map(|s| (color(s.group), sample(s), s.name.clone()));
    let references = chart.references.iter().map(|reference| {
        let name = format!("{} ({})", reference.name, label(reference.y));
        ("ref".to_owned(), path("line", &stroke), name)
    });
    series.chain(references).collect()
}

/// Renders the chart without its heading and `note`. `index` makes element ids unique on the page.
pub(crate) fn render(chart: &Chart, index: usize) -> Markup {
    let view = View::of(chart);
    let (wide, narrow) = (Plot::new(&view, false), Plot::new(&view, true));
    html! {
        ul class="legend" {
            @for (class, sample, name) in legend(chart, 6.0) {
                li class=(class) {
                    svg class="key" viewBox="0 0 26 12" aria-hidden="true" { (sample) }
                    (name)
                }
            }
        } "\n"
        div class="chart" data-values=(values(&view)) { "\n"
            (wide.draw(index))
            (narrow.draw(index))
            div class="tip" hidden {}
        } "\n"
        p class="note" { (view.notes()) } "\n"
    }
}

/// Returns the values for the hover script.
fn values(view: &View) -> Value {
    let column = |spans: &[Span], of: fn(&Span) -> f64| -> Vec<f64> {
        spans.iter().map(|s| round(of(s), 6)).collect()
    };
    let series = |t: &Trace| {
        let (points, band) = (
            thin(&t.points, &view.x, POINTS),
            thin(&t.band, &view.x, POINTS),
        );
        json!({
            "name": t.series.name, "color": color(t.series.group), "line": t.is_line(),
            "x": column(&points, |s| s.0), "y": column(&points, |s| s.1),
            "bandX": column(&band, |s| s.0),
            "low": column(&band, |s| s.1), "high": column(&band, |s| s.2),
        })
    };
    let axis = |axis: &Axis, domain: &Domain| {
        json!({
            "label": axis.label, "unit": axis.unit, "log": domain.scale == Scale::Log,
            "lo": domain.lo, "hi": domain.hi,
        })
    };
    let (x, y) = (axis(&view.chart.x, &view.x), axis(&view.chart.y, &view.y));
    let series: Vec<Value> = view.traces.iter().map(series).collect();
    json!({ "x": x, "y": y, "series": series })
}
