//! The drawing of a chart as SVG.

use maud::{Markup, html};

use crate::chart::{Axis, Style};
use crate::frame::Frame;
use crate::labels::{Label, beside, labels};
use crate::number::{label, si};
use crate::series::{POINTS, Span, Trace, View, thin};
use crate::shapes::{circle, color, diamond, length, path, stroke, text};

/// Up to this many points are measurements worth a dot each; more are a curve.
const DOTS: usize = 24;

/// A drawing of what a chart shows.
pub(crate) struct Plot<'a> {
    view: &'a View<'a>,
    labels: Vec<Label>,
    pub(crate) frame: Frame,
}

impl<'a> Plot<'a> {
    pub(crate) fn new(view: &'a View<'a>, narrow: bool) -> Self {
        let labels = labels(view, narrow);
        let longest = labels.iter().map(Label::length).max();
        Self {
            view,
            labels,
            frame: Frame::new(view.x, view.y, narrow, longest),
        }
    }

    /// The `svg` element of the chart numbered `index`.
    pub(crate) fn draw(&self, index: usize) -> Markup {
        let frame = &self.frame;
        let class = if frame.narrow { "narrow" } else { "wide" };
        let id = format!("{class}{index}");
        let (left, top) = (length(frame.left), length(frame.top));
        let width = length(frame.right - frame.left);
        let height = length(frame.bottom - frame.top);
        html! {
            svg class={ "plot " (class) } xmlns="http://www.w3.org/2000/svg"
                viewBox={ "0 0 " (frame.width) " " (frame.height) }
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
                (beside(frame, &self.labels))
                g class="hover" {}
            } "\n"
        }
    }

    /// The chart in words, for those who cannot see it.
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
        out
    }

    fn axes(&self) -> Markup {
        let (frame, chart) = (&self.frame, self.view.chart);
        let (left, right, font) = (frame.left, frame.right, frame.font);
        let (top, bottom) = (frame.top, frame.bottom);
        let (middle, center) = ((left + right) / 2.0, (top + bottom) / 2.0);
        let (x, y) = (frame.x_ticks(), frame.y_ticks());
        let columns = |ticks: &[f64], to: &str| -> String {
            let column = |&tick: &f64| format!("M{:.1},{bottom:.1}{to}", frame.column(tick));
            ticks.iter().map(column).collect()
        };
        let rows = |ticks: &[f64], to: &str| -> String {
            let row = |&tick: &f64| format!("M{left:.1},{:.1}{to}", frame.row(tick));
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
            (text("title mid", middle, frame.height - 5.0, &title(&chart.x)))
            @for (&tick, label) in x.major.iter().zip(&x.labels) {
                (text("mid", frame.column(tick), bottom + font * 1.5, label))
            }
            @for (&tick, label) in y.major.iter().zip(&y.labels) {
                (text("end", left - 7.0, frame.row(tick) + font * 0.35, label))
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
        let (left, right) = (self.frame.left, self.frame.right);
        let across = |y| format!("M{left:.1},{:.1}H{right:.1}", self.frame.row(y));
        let traces = self.view.traces.iter();
        html! {
            @for (_, y) in self.view.references() {
                (path("line ref", &across(y)))
            }
            @for trace in traces.filter(|t| t.is_line() && t.points.len() > 1) {
                @let (stroke, color) = (stroke(trace.series.style), color(trace.series.group));
                @let points = thin(&trace.points, &self.view.x, POINTS);
                (path(&format!("{stroke} {color}"), &self.through(&points)))
            }
        }
    }

    fn through(&self, spans: &[Span]) -> String {
        let frame = &self.frame;
        let point = |s: &Span| format!("{:.1},{:.1}", frame.column(s.0), frame.row(s.1));
        format!("M{}", spans.iter().map(point).collect::<Vec<_>>().join("L"))
    }

    /// The markers, and the points of lines that have few.
    fn dots(&self) -> Markup {
        let frame = &self.frame;
        let few = |t: &&Trace| t.series.style == Style::Markers || t.points.len() <= DOTS;
        html! {
            @for Trace { series, points, .. } in self.view.traces.iter().filter(few) {
                g class=(color(series.group)) {
                    @for &(x, y, _) in points.iter().filter(|s| frame.reaches(s.1)) {
                        @if series.style == Style::Markers {
                            @let title = format!("{}: {}", series.name, label(y));
                            (diamond(frame.column(x), frame.row(y), &title))
                        } @else {
                            (circle("dot", frame.column(x), frame.row(y)))
                        }
                    }
                } "\n"
            }
        }
    }
}

fn title(Axis { label, unit, .. }: &Axis) -> String {
    match unit.as_str() {
        "" => label.clone(),
        unit => format!("{label} ({unit})"),
    }
}
