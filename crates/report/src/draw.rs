//! Draws a chart as SVG.

use maud::{Markup, html};

use crate::chart::{Axis, Style};
use crate::labels::{Label, spread};
use crate::number::{label, si, with_unit};
use crate::plot::Plot;
use crate::series::{POINTS, Span, Trace, thin};
use crate::shapes::{circle, color, diamond, length, line, path, text};

/// Maximum number of points that get a dot each. A line with more points is drawn without dots.
const DOTS: usize = 24;

impl Plot<'_> {
    /// Draws the `svg` element of the chart numbered `index`.
    pub(crate) fn draw(&self, index: usize) -> Markup {
        let class = if self.narrow { "narrow" } else { "wide" };
        let id = format!("{class}{index}");
        let (left, top) = (length(self.left), length(self.top));
        let width = length(self.right - self.left);
        let height = length(self.bottom - self.top);
        html! {
            svg class={ "plot " (class) } xmlns="http://www.w3.org/2000/svg"
                viewBox={ "0 0 " (self.width) " " (self.height) }
                role="img" aria-labelledby={ (id) "-title " (id) "-desc" }
                data-plot={ (left) " " (top) " " (width) " " (height) } {
                title id={ (id) "-title" } { (self.view.chart.heading) } "\n"
                desc id={ (id) "-desc" } { (self.summary()) } "\n"
                clipPath id={ (id) "-clip" } {
                    rect x=(left) y=(top) width=(width) height=(height) {}
                } "\n"
                (self.axes())
                g clip-path={ "url(#" (id) "-clip)" } { "\n" (self.bands()) (self.lines()) } "\n"
                (self.dots())
                (self.beside())
                g class="hover" {}
            } "\n"
        }
    }

    /// Describes the chart in words, for readers who cannot see it.
    fn summary(&self) -> String {
        let chart = self.view.chart;
        let mut out = format!("{} against {}.", title(&chart.y), title(&chart.x));
        for Trace { series, points, .. } in &self.view.traces {
            if let (Some(first), Some(last)) = (points.first(), points.last()) {
                let [from, to] = [first, last].map(|s| format!("{} at {}", label(s.1), si(s.0)));
                out += &format!(" {}: {from} to {to}.", series.name);
            }
        }
        for (name, y) in self.view.references() {
            out += &format!(" {name}: {}.", label(y));
        }
        let notes = self.view.notes();
        if !notes.is_empty() {
            out += &format!(" {notes}");
        }
        out
    }

    fn axes(&self) -> Markup {
        let chart = self.view.chart;
        let (left, right, font) = (self.left, self.right, self.font);
        let (top, bottom) = (self.top, self.bottom);
        let (middle, center) = ((left + right) / 2.0, (top + bottom) / 2.0);
        let (x, y) = (self.x_ticks(), self.y_ticks());
        let columns = |ticks: &[f64], to: &str| -> String {
            let column = |&tick: &f64| format!("M{:.1},{bottom:.1}{to}", self.column(tick));
            ticks.iter().map(column).collect()
        };
        let rows = |ticks: &[f64], to: &str| -> String {
            let row = |&tick: &f64| format!("M{left:.1},{:.1}{to}", self.row(tick));
            ticks.iter().map(row).collect()
        };
        let (up, across) = (format!("V{top:.1}"), format!("H{right:.1}"));
        let grid = columns(&x.major, &up) + &rows(&y.major, &across);
        let axis = format!("M{left:.1},{bottom:.1}{across}") + &columns(&x.major, "v5");
        let axis = axis + &columns(&x.minor, "v3") + &rows(&y.minor, "h-3");
        let empty = |t: &Trace| t.points.is_empty() && t.band.is_empty();
        html! {
            (path("grid", &grid))
            (path("axis", &axis))
            (text("title", 2.0, font, &title(&chart.y)))
            (text("title mid", middle, self.height - 5.0, &title(&chart.x)))
            @for (&tick, label) in x.major.iter().zip(&x.labels) {
                (text("mid", self.column(tick), bottom + font * 1.5, label))
            }
            @for (&tick, label) in y.major.iter().zip(&y.labels) {
                (text("end", left - 7.0, self.row(tick) + font * 0.35, label))
            }
            @if self.view.traces.iter().all(empty) {
                (text("mid", middle, center, "no data"))
            }
        }
    }

    fn bands(&self) -> Markup {
        let outline = |trace: &Trace| {
            let mut outline = thin(&trace.band, &self.view.x, POINTS);
            let upper: Vec<Span> = outline.iter().rev().map(|s| (s.0, s.2, s.2)).collect();
            outline.extend(upper);
            self.through(&outline)
        };
        html! {
            @for trace in self.view.traces.iter().filter(|t| !t.band.is_empty()) {
                (path(&format!("band {}", color(trace.series.group)), &outline(trace)))
            }
        }
    }

    fn lines(&self) -> Markup {
        let (left, right) = (self.left, self.right);
        let across = |y| format!("M{left:.1},{:.1}H{right:.1}", self.row(y));
        let traces = self.view.traces.iter();
        html! {
            @for (_, y) in self.view.references() {
                (path("line ref", &across(y)))
            }
            @for trace in traces.filter(|t| t.is_line() && t.points.len() > 1) {
                @let points = thin(&trace.points, &self.view.x, POINTS);
                (line(trace.series.style, trace.series.group, &self.through(&points)))
            }
        }
    }

    fn through(&self, spans: &[Span]) -> String {
        let point = |s: &Span| format!("{:.1},{:.1}", self.column(s.0), self.row(s.1));
        format!("M{}", spans.iter().map(point).collect::<Vec<_>>().join("L"))
    }

    /// Draws the markers, and the points of lines with few points.
    fn dots(&self) -> Markup {
        let few = |t: &&Trace| t.series.style == Style::Markers || t.points.len() <= DOTS;
        html! {
            @for Trace { series, points, .. } in self.view.traces.iter().filter(few) {
                g class=(color(series.group)) {
                    @for &(x, y, _) in points.iter().filter(|s| self.reaches(s.1)) {
                        @if series.style == Style::Markers {
                            @let title = format!("{}: {}", series.name, label(y));
                            (diamond(self.column(x), self.row(y), &title))
                        } @else {
                            (circle("dot", self.column(x), self.row(y)))
                        }
                    }
                } "\n"
            }
        }
    }

    /// Draws the labels in the right margin, or nothing if they do not fit.
    fn beside(&self) -> Markup {
        let places = self.labels.iter().map(|label| (self.row(label.y), label));
        let mut places: Vec<(f64, &Label)> = places.collect();
        places.sort_by(|a, b| a.0.total_cmp(&b.0));
        let wanted: Vec<f64> = places.iter().map(|p| p.0).collect();
        let rows = spread(&wanted, self.font * 1.25, self.top, self.bottom);
        let (dot, left) = (self.right + 14.0, self.right + 21.0);
        html! {
            @for ((y, label), row) in places.iter().zip(rows.unwrap_or_default()) {
                @let x = label.x.map_or(self.right, |x| self.column(x));
                g class={ "label " (label.class) } {
                    // A line from a point far from the margin to its label would cross other lines; there, the color
                    // suffices.
                    @if x > self.right - 40.0 {
                        (path("", &format!("M{x:.1},{y:.1}L{dot:.1},{row:.1}")))
                    }
                    (circle("", dot, row))
                    text x=(length(left)) y=(length(row + self.font * 0.35)) {
                        (label.name) tspan class="value" { (label.value) }
                    }
                } "\n"
            }
        }
    }
}

fn title(axis: &Axis) -> String {
    with_unit(&axis.label, &axis.unit)
}
