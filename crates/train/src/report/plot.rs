//! The drawing of a chart as SVG.

use super::domain::Domain;
use super::html::escape;
use super::number::{label, si};
use super::series::{POINTS, Span, Trace, thin};
use super::{Axis, Chart, Style};

/// Up to this many points are measurements worth a dot each; more are a curve.
const DOTS: usize = 24;

/// A drawing and the place of its plot area, in units that are about pixels.
pub(super) struct Plot<'a> {
    pub(super) chart: &'a Chart,
    pub(super) traces: &'a [Trace<'a>],
    pub(super) narrow: bool,
    pub(super) font: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
    left: f64,
    height: f64,
    width: f64,
    x: Domain,
    y: Domain,
}

impl<'a> Plot<'a> {
    pub(super) fn new(
        chart: &'a Chart,
        traces: &'a [Trace<'a>],
        x: Domain,
        y: Domain,
        narrow: bool,
    ) -> Self {
        let (width, height, font) = if narrow {
            (360.0, 300.0, 12.0)
        } else {
            (840.0, 430.0, 13.0)
        };
        let mut plot = Self {
            chart,
            traces,
            narrow,
            font,
            top: font * 2.2,
            right: width,
            bottom: height - font * 3.5,
            left: 0.0,
            height,
            width,
            x,
            y,
        };
        let ticks = plot.y.ticks(plot.rows()).labels;
        let tick = ticks.iter().map(|t| t.chars().count()).max().unwrap_or(0);
        let label = plot.labels().iter().map(|l| l.length()).max();
        plot.left = tick as f64 * font * 0.6 + 10.0;
        plot.right -= label.map_or(16.0, |l| l as f64 * font * 0.6 + 24.0);
        plot
    }

    /// Width and height.
    pub(super) fn size(&self) -> (f64, f64) {
        (self.width, self.height)
    }

    fn columns(&self) -> usize {
        ((self.right - self.left) / (self.font * 5.5)) as usize
    }

    fn rows(&self) -> usize {
        ((self.bottom - self.top) / (self.font * 4.2)) as usize
    }

    pub(super) fn column(&self, x: f64) -> f64 {
        self.left + (self.right - self.left) * self.x.unit(x)
    }

    pub(super) fn row(&self, y: f64) -> f64 {
        // Far outside the clip path the exact place is moot, and long numbers upset renderers.
        self.bottom - (self.bottom - self.top) * self.y.unit(y).clamp(-5.0, 5.0)
    }

    pub(super) fn references(&self) -> impl Iterator<Item = (&str, f64)> {
        let pairs = self.chart.references.iter().map(|r| (r.name.as_str(), r.y));
        pairs.filter(|&(_, y)| self.y.scale.shows(y))
    }

    /// The `svg` element of the chart numbered `index`.
    pub(super) fn draw(&self, index: usize) -> String {
        let class = if self.narrow { "narrow" } else { "wide" };
        let (id, width, height) = (format!("{class}{index}"), self.width, self.height);
        let (left, top) = (self.left, self.top);
        let (w, h) = (self.right - left, self.bottom - top);
        let (axes, lines) = (self.axes(), self.lines());
        let (dots, labels) = (self.dots(), self.end_labels());
        let (title, summary) = (escape(&self.chart.heading), escape(&self.summary()));
        format!(
            r##"<svg class="plot {class}" xmlns="http://www.w3.org/2000/svg"
 viewBox="0 0 {width} {height}" role="img" aria-labelledby="{id}-title {id}-desc"
 data-plot="{left:.1} {top:.1} {w:.1} {h:.1}">
<title id="{id}-title">{title}</title>
<desc id="{id}-desc">{summary}</desc>
<clipPath id="{id}-clip">
<rect x="{left:.1}" y="{top:.1}" width="{w:.1}" height="{h:.1}"/>
</clipPath>
{axes}<g clip-path="url(#{id}-clip)">
{lines}</g>
{dots}{labels}<g class="hover"></g>
</svg>
"##
        )
    }

    fn summary(&self) -> String {
        let mut out = format!("{} against {}.", title(&self.chart.y), title(&self.chart.x));
        for Trace { series, points, .. } in self.traces {
            if let (Some(first), Some(last)) = (points.first(), points.last()) {
                let [from, to] = [first, last].map(|s| format!("{} at {}", label(s.1), si(s.0)));
                out += &format!(" {}: {from} to {to}.", series.name);
            }
        }
        for (name, y) in self.references() {
            out += &format!(" {name}: {}.", label(y));
        }
        out
    }

    fn axes(&self) -> String {
        let (left, right, font) = (self.left, self.right, self.font);
        let (top, bottom) = (self.top, self.bottom);
        let (middle, center) = ((left + right) / 2.0, (top + bottom) / 2.0);
        let (x, y) = (self.x.ticks(self.columns()), self.y.ticks(self.rows()));
        let (mut grid, mut axis) = (String::new(), format!("M{left:.1},{bottom:.1}H{right:.1}"));
        let mut texts = text("title", 2.0, font, &title(&self.chart.y));
        texts += &text(
            "title mid",
            middle,
            self.height - 5.0,
            &title(&self.chart.x),
        );
        for (&tick, label) in x.major.iter().zip(&x.labels) {
            let column = self.column(tick);
            grid += &format!("M{column:.1},{bottom:.1}V{top:.1}");
            axis += &format!("M{column:.1},{bottom:.1}v5");
            texts += &text("mid", column, bottom + font * 1.5, label);
        }
        for (&tick, label) in y.major.iter().zip(&y.labels) {
            let row = self.row(tick);
            grid += &format!("M{left:.1},{row:.1}H{right:.1}");
            texts += &text("end", left - 7.0, row + font * 0.35, label);
        }
        for &tick in &x.minor {
            axis += &format!("M{:.1},{bottom:.1}v3", self.column(tick));
        }
        for &tick in &y.minor {
            axis += &format!("M{left:.1},{:.1}h-3", self.row(tick));
        }
        let empty = |t: &Trace| t.points.is_empty() && t.band.is_empty();
        if self.traces.iter().all(empty) {
            texts += &text("mid", middle, center, "no data");
        }
        path("grid", &grid) + &path("axis", &axis) + &texts
    }

    fn lines(&self) -> String {
        let mut out = String::new();
        for trace in self.traces.iter().filter(|t| !t.band.is_empty()) {
            let mut outline = thin(&trace.band, &self.x, POINTS);
            let upper: Vec<Span> = outline.iter().rev().map(|s| (s.0, s.2, s.2)).collect();
            outline.extend(upper);
            let color = color(trace.series.group);
            out += &path(&format!("band {color}"), &self.through(&outline));
        }
        for (_, y) in self.references() {
            let (left, right, row) = (self.left, self.right, self.row(y));
            out += &path("line ref", &format!("M{left:.1},{row:.1}H{right:.1}"));
        }
        for trace in self
            .traces
            .iter()
            .filter(|t| t.is_line() && t.points.len() > 1)
        {
            let (stroke, color) = (stroke(trace.series.style), color(trace.series.group));
            let points = thin(&trace.points, &self.x, POINTS);
            out += &path(&format!("{stroke} {color}"), &self.through(&points));
        }
        out
    }

    fn through(&self, spans: &[Span]) -> String {
        let point = |s: &Span| format!("{:.1},{:.1}", self.column(s.0), self.row(s.1));
        format!("M{}", spans.iter().map(point).collect::<Vec<_>>().join("L"))
    }

    fn dots(&self) -> String {
        let mut out = String::new();
        for Trace { series, points, .. } in self.traces {
            let (color, line) = (color(series.group), series.style != Style::Markers);
            if line && points.len() > DOTS {
                continue;
            }
            out += &format!("<g class=\"{color}\">\n");
            for &(x, y, _) in points.iter().filter(|s| self.y.unit(s.1) <= 1.0) {
                let (column, row) = (self.column(x), self.row(y));
                let title = format!("{}: {}", series.name, label(y));
                out += &if line {
                    circle("dot", column, row)
                } else {
                    diamond(column, row, &title)
                };
            }
            out += "</g>\n";
        }
        out
    }
}

fn title(Axis { label, unit, .. }: &Axis) -> String {
    match unit.as_str() {
        "" => label.clone(),
        unit => format!("{label} ({unit})"),
    }
}

fn text(class: &str, x: f64, y: f64, text: &str) -> String {
    let text = escape(text);
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>\n")
}

pub(super) fn path(class: &str, d: &str) -> String {
    format!("<path class=\"{class}\" d=\"{d}\"/>\n")
}

pub(super) fn circle(class: &str, x: f64, y: f64) -> String {
    format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>\n")
}

/// A hollow diamond that shows `title` under the pointer where there is no script.
pub(super) fn diamond(x: f64, y: f64, title: &str) -> String {
    let (top, title) = (y - 5.0, escape(title));
    let d = format!("M{x:.1},{top:.1}l5,5l-5,5l-5,-5Z");
    format!("<path class=\"diamond\" d=\"{d}\"><title>{title}</title></path>\n")
}

/// The classes of a line.
pub(super) fn stroke(style: Style) -> &'static str {
    if style == Style::Dashed {
        "line dashed"
    } else {
        "line"
    }
}

/// The class with the color of `group`.
pub(super) fn color(group: usize) -> String {
    format!("c{}", group % 8)
}
