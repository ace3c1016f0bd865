//! Names and values beside the right ends of lines.

use super::Series;
use super::html::escape;
use super::number::label;
use super::plot::{Plot, circle, color, path};

/// The longest name beside a line; the legend has it in full.
const NAME: usize = 24;

/// A label and the end of the line it belongs to.
pub(super) struct Label {
    class: String,
    name: String,
    value: String,
    end: (f64, f64),
}

impl Label {
    /// The number of characters.
    pub(super) fn length(&self) -> usize {
        self.name.chars().count() + self.value.chars().count()
    }
}

impl Plot<'_> {
    /// The labels of all lines and references, top to bottom; narrow drawings leave the names to
    /// the legend.
    pub(super) fn labels(&self) -> Vec<Label> {
        let mut labels = Vec::new();
        let mut add = |class: String, name: &str, x: f64, y: f64| {
            let (value, end) = (label(y), (x, self.row(y)));
            let name = if self.narrow {
                String::new()
            } else {
                shorten(name) + " "
            };
            labels.push(Label {
                class,
                name,
                value,
                end,
            });
        };
        for trace in self.traces.iter().filter(|t| t.is_line()) {
            let Series { name, group, .. } = trace.series;
            if let Some(&(x, y, _)) = trace.points.last() {
                add(color(*group), name, self.column(x), y);
            }
        }
        for (name, y) in self.references() {
            add("ref".to_owned(), name, self.right, y);
        }
        labels.sort_by(|a, b| a.end.1.total_cmp(&b.end.1));
        labels
    }

    /// The labels in the right margin, or nothing where they do not fit.
    pub(super) fn end_labels(&self) -> String {
        let labels = self.labels();
        let wanted: Vec<f64> = labels.iter().map(|l| l.end.1).collect();
        let rows = spread(&wanted, self.font * 1.25, self.top, self.bottom);
        let (dot, left) = (self.right + 14.0, self.right + 21.0);
        let mut out = String::new();
        for (label, row) in labels.iter().zip(rows.unwrap_or_default()) {
            let (x, y) = label.end;
            out += &format!("<g class=\"label {}\">\n", label.class);
            // Far from the margin a leader would cross other lines; the color has to do.
            if x > self.right - 40.0 {
                out += &path("", &format!("M{x:.1},{y:.1}L{dot:.1},{row:.1}"));
            }
            let (name, value) = (escape(&label.name), &label.value);
            let baseline = row + self.font * 0.35;
            out += &circle("", dot, row);
            out += &format!("<text x=\"{left:.1}\" y=\"{baseline:.1}\">{name}");
            out += &format!("<tspan class=\"value\">{value}</tspan></text>\n</g>\n");
        }
        out
    }
}

/// The places closest to the sorted `wanted` that are `gap` apart, if there is room.
pub(super) fn spread(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Option<Vec<f64>> {
    let room = bottom - top - gap * wanted.len().saturating_sub(1) as f64;
    if room < 0.0 {
        return None;
    }
    // With the gaps taken out, what remains is to make the places ascend: labels that collide
    // share the mean of what they want.
    let mut shared: Vec<(f64, usize)> = Vec::new();
    for (i, want) in wanted.iter().enumerate() {
        let (mut place, mut count) = (want - gap * i as f64, 1);
        while let Some((above, n)) = shared.pop_if(|(above, _)| *above > place) {
            place = (above * n as f64 + place * count as f64) / (n + count) as f64;
            count += n;
        }
        shared.push((place, count));
    }
    let places = shared.iter().flat_map(|&(p, n)| std::iter::repeat_n(p, n));
    let places = places.map(|p| p.clamp(top, top + room)).enumerate();
    Some(places.map(|(i, p)| p + gap * i as f64).collect())
}

fn shorten(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    name.chars().take(NAME - 1).chain(['…']).collect()
}
