//! Charts: a legend, a drawing for wide pages and one for phones, and the values to hover over.

use maud::{Markup, PreEscaped, html};
use serde_json::{Value, json};

use crate::chart::{Axis, Chart, Scale, Style};
use crate::domain::Domain;
use crate::number::{label, round, sig};
use crate::plot::Plot;
use crate::series::{POINTS, Span, Trace, thin};
use crate::shapes::{color, diamond, path, stroke};
use crate::view::View;

/// The style sheet of pages and of the charts in them.
pub(crate) const STYLE: &str = include_str!("style.css");
/// What a chart needs on top of it where there is no page.
const ALONE: &str = ".wide { display: block; }
.plot { background: var(--page); font-family: system-ui, sans-serif; }
";

impl Chart {
    /// The chart as an SVG file of its own, with its legend, light or dark as the reader's system
    /// is; without hover values.
    pub fn to_svg(&self) -> String {
        let view = View::of(self);
        let plot = Plot::new(&view, false);
        let (width, height) = plot.size();
        let (mut entries, mut left, mut line) = (Vec::new(), 0.0, 1.0);
        for entry in legend(self) {
            let room = 44.0 + 7.0 * entry.name.chars().count() as f64;
            if left > 0.0 && left + room > width {
                (left, line) = (0.0, line + 1.0);
            }
            entries.push((left, height + 20.0 * line, entry));
            left += room;
        }
        let full = height + 20.0 * line + 10.0;
        let svg = html! {
            svg class="plot" xmlns="http://www.w3.org/2000/svg"
                viewBox={ "-8 -8 " (width + 16.0) " " (full + 8.0) } {
                style { "\n" (PreEscaped(STYLE)) (PreEscaped(ALONE)) } "\n"
                rect x="-8" y="-8" width="100%" height="100%" fill="var(--page)" {} "\n"
                svg width=(width) height=(height) { (plot.draw(0)) } "\n"
                @for (left, top, entry) in entries {
                    g class=(entry.class)
                        transform=(format_args!("translate({left:.0},{top:.0})")) {
                        (entry.mark(-4.0)) text x="32" { (entry.name) }
                    } "\n"
                }
            } "\n"
        };
        svg.into_string()
    }
}

/// An entry of a legend.
struct Entry {
    /// The class with its color.
    class: String,
    style: Style,
    name: String,
}

impl Entry {
    /// A sample of the line or marker, 26 wide and centered at `y`.
    fn mark(&self, y: f64) -> Markup {
        match self.style {
            Style::Markers => diamond(13.0, y, ""),
            style => path(stroke(style), &format!("M1,{y}H25")),
        }
    }
}

fn legend(chart: &Chart) -> impl Iterator<Item = Entry> {
    let series = chart.series.iter().map(|series| Entry {
        class: color(series.group),
        style: series.style,
        name: series.name.clone(),
    });
    let references = chart.references.iter().map(|reference| Entry {
        class: "ref".to_owned(),
        style: Style::Solid,
        name: format!("{} ({})", reference.name, label(reference.y)),
    });
    series.chain(references)
}

/// The chart without its heading; `index` makes its element ids unique on the page.
pub(crate) fn render(chart: &Chart, index: usize) -> Markup {
    let view = View::of(chart);
    let (wide, narrow) = (Plot::new(&view, false), Plot::new(&view, true));
    html! {
        ul class="legend" {
            @for entry in legend(chart) {
                li class=(entry.class) {
                    svg class="key" viewBox="0 0 26 12" aria-hidden="true" { (entry.mark(6.0)) }
                    (entry.name)
                }
            }
        } "\n"
        div class="chart" data-values=(values(&view)) { "\n"
            (wide.draw(index))
            (narrow.draw(index))
            div class="tip" hidden {}
        } "\n"
        p class="note" {
            (view.note)
            @if view.cut {
                "Values above " (sig(view.y.scale.value(view.y.hi), 3)) " are cut off."
            }
        } "\n"
    }
}

/// The values for the hover script.
fn values(
    View {
        chart,
        traces,
        x,
        y,
        ..
    }: &View,
) -> Value {
    let column = |spans: &[Span], of: fn(&Span) -> f64| -> Vec<f64> {
        spans.iter().map(|s| round(of(s), 6)).collect()
    };
    let series = |t: &Trace| {
        let (points, band) = (thin(&t.points, x, POINTS), thin(&t.band, x, POINTS));
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
    let series: Vec<Value> = traces.iter().map(series).collect();
    json!({ "x": axis(&chart.x, x), "y": axis(&chart.y, y), "series": series })
}
