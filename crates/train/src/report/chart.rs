//! Charts: a legend, a drawing for wide pages and one for phones, and the values to hover over.

use serde_json::{Value, json};

use super::domain::Domain;
use super::html::{STYLE, escape};
use super::number::{label, round, sig};
use super::plot::{Plot, color, diamond, stroke};
use super::series::{POINTS, Span, Trace, thin, x_domain, y_domain};
use super::{Axis, Chart, Scale, Style};

/// What a chart shows, and over which ranges.
struct View<'a> {
    traces: Vec<Trace<'a>>,
    x: Domain,
    y: Domain,
    /// Whether something is above the y range.
    cut: bool,
    /// What was done to noise.
    note: &'static str,
}

impl<'a> View<'a> {
    fn of(chart: &'a Chart) -> Self {
        let trace = |s| Trace::new(s, &chart.x, &chart.y);
        let mut traces: Vec<Trace> = chart.series.iter().map(trace).collect();
        let x = x_domain(&traces, chart.x.scale);
        let mut note = "";
        for trace in traces.iter_mut().filter(|t| t.is_noise()) {
            if trace.band.is_empty() {
                note = "Noisy lines are averages of nearby points, in a band of their range. ";
            } else if note.is_empty() {
                note = "Noisy lines are averages of nearby points. ";
            }
            trace.average(&x);
        }
        let (y, cut) = y_domain(chart, &traces, &x);
        Self {
            traces,
            x,
            y,
            cut,
            note,
        }
    }
}

/// The chart as an SVG document, the legend below the drawing.
pub(super) fn standalone(chart: &Chart) -> String {
    let View { traces, x, y, .. } = View::of(chart);
    let plot = Plot::new(chart, &traces, x, y, false);
    let (width, height) = plot.size();
    let series = chart.series.iter();
    let names = series.map(|series| {
        let mark = match series.style {
            Style::Markers => diamond(13.0, -4.0, ""),
            style => format!(r#"<path class="{}" d="M1,-4H25"/>"#, stroke(style)),
        };
        (color(series.group), mark, series.name.clone())
    });
    let references = chart.references.iter().map(|reference| {
        let name = format!("{} ({})", reference.name, label(reference.y));
        (
            "ref".to_owned(),
            r#"<path class="line" d="M1,-4H25"/>"#.to_owned(),
            name,
        )
    });
    let (mut legend, mut left, mut line) = (String::new(), 0.0, 1.0);
    for (class, mark, name) in names.chain(references) {
        let room = 44.0 + 7.0 * name.chars().count() as f64;
        if left > 0.0 && left + room > width {
            (left, line) = (0.0, line + 1.0);
        }
        let (top, name) = (height + 20.0 * line, escape(&name));
        legend += &format!("<g class=\"{class}\" transform=\"translate({left:.0},{top:.0})\">");
        legend += &format!("{mark}<text x=\"32\">{name}</text></g>\n");
        left += room;
    }
    let drawing = plot.draw(0);
    let full = height + 20.0 * line + 10.0;
    format!(
        r#"<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 {} {}">
<style>
{STYLE}.wide {{ display: block; }}
.plot {{ background: var(--page); font-family: system-ui, sans-serif; }}
</style>
<rect x="-8" y="-8" width="100%" height="100%" fill="var(--page)"/>
<svg width="{width}" height="{height}">{drawing}</svg>
{legend}</svg>
"#,
        width + 16.0,
        full + 8.0
    )
}

/// The chart without its heading; `index` makes its element ids unique on the page.
pub(super) fn render(chart: &Chart, index: usize) -> String {
    let View {
        traces,
        x,
        y,
        cut,
        note,
    } = View::of(chart);
    let cut = if cut {
        format!("Values above {} are cut off.", sig(y.scale.value(y.hi), 3))
    } else {
        String::new()
    };
    let draw = |narrow| Plot::new(chart, &traces, x, y, narrow).draw(index);
    let (wide, narrow) = (draw(false), draw(true));
    let (legend, data) = (legend(chart), data(chart, &traces, x, y).to_string());
    // A script element ends at the first `</script`, wherever it stands.
    let data = data.replace('<', "\\u003c");
    format!(
        r#"<ul class="legend">{legend}</ul>
<div class="chart">
{wide}{narrow}<div class="tip" hidden></div>
<script type="application/json">{data}</script>
</div>
<p class="note">{note}{cut}</p>
"#
    )
}

fn legend(chart: &Chart) -> String {
    let item = |class: &str, mark: &str, name: &str| {
        let key =
            format!(r#"<svg class="key" viewBox="0 0 26 12" aria-hidden="true">{mark}</svg>"#);
        format!("<li class=\"{class}\">{key}{}</li>\n", escape(name))
    };
    let mut items = String::new();
    for series in &chart.series {
        let mark = match series.style {
            Style::Markers => diamond(13.0, 6.0, ""),
            style => format!(r#"<path class="{}" d="M1,6H25"/>"#, stroke(style)),
        };
        items += &item(&color(series.group), &mark, &series.name);
    }
    for reference in &chart.references {
        let name = format!("{} ({})", reference.name, label(reference.y));
        items += &item("ref", r#"<path class="line" d="M1,6H25"/>"#, &name);
    }
    items
}

/// The values for the hover script.
fn data(chart: &Chart, traces: &[Trace], x: Domain, y: Domain) -> Value {
    let column = |spans: &[Span], of: fn(&Span) -> f64| -> Vec<f64> {
        spans.iter().map(|s| round(of(s), 6)).collect()
    };
    let series = |t: &Trace| {
        let (points, band) = (thin(&t.points, &x, POINTS), thin(&t.band, &x, POINTS));
        json!({
            "name": t.series.name, "color": color(t.series.group), "line": t.is_line(),
            "x": column(&points, |s| s.0), "y": column(&points, |s| s.1),
            "bandX": column(&band, |s| s.0),
            "low": column(&band, |s| s.1), "high": column(&band, |s| s.2),
        })
    };
    let axis = |axis: &Axis, domain: Domain| {
        json!({
            "label": axis.label, "unit": axis.unit, "log": domain.scale == Scale::Log,
            "lo": domain.lo, "hi": domain.hi,
        })
    };
    let series: Vec<Value> = traces.iter().map(series).collect();
    json!({ "x": axis(&chart.x, x), "y": axis(&chart.y, y), "series": series })
}
