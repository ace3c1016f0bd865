//! Names and values beside the right ends of lines.

use crate::chart::Series;
use crate::number::label;
use crate::series::{Trace, View};
use crate::shapes::color;
use crate::width::{shorten, width};

/// Maximum width of a name beside a line, in terminal columns; the legend has the full name.
const NAME: usize = 24;

/// The label of a line or a reference.
pub(crate) struct Label {
    pub(crate) class: String,
    pub(crate) name: String,
    pub(crate) value: String,
    /// The x of the last point; `None` for a reference, which ends at the edge of the plot area.
    pub(crate) x: Option<f64>,
    pub(crate) y: f64,
}

impl Label {
    /// Returns the width of the text, in terminal columns.
    pub(crate) fn columns(&self) -> usize {
        width(&self.name) + width(&self.value)
    }
}

/// Returns the labels of all lines and references. Narrow drawings show names only in the legend.
pub(crate) fn labels<'a>(view: &View<'a>, narrow: bool) -> Vec<Label> {
    let line = |trace: &Trace<'a>| {
        let Series { name, group, .. } = trace.series;
        let &(x, y, _) = trace.points.last()?;
        Some((color(*group), name.as_str(), Some(x), y))
    };
    let lines = view.traces.iter().filter(|t| t.is_line());
    let references = view.references();
    let references = references.map(|(name, y)| ("ref".to_owned(), name, None, y));
    let all: Vec<_> = lines.filter_map(line).chain(references).collect();
    let names: Vec<&str> = all.iter().map(|(_, name, ..)| *name).collect();
    let named = all.iter().zip(shorten(&names, NAME));
    let label = |((class, _, x, y), name): (&(String, &str, Option<f64>, f64), String)| Label {
        class: class.clone(),
        name: match narrow {
            true => String::new(),
            false => name + " ",
        },
        value: label(*y),
        x: *x,
        y: *y,
    };
    named.map(label).collect()
}

/// Returns the positions closest to the sorted `wanted` that are at least `gap` apart; `None` if there is no room.
pub(crate) fn spread(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Option<Vec<f64>> {
    let room = bottom - top - gap * wanted.len().saturating_sub(1) as f64;
    if room < 0.0 {
        return None;
    }
    // Once the gaps are subtracted, the positions only have to ascend: colliding labels share the mean of their wanted
    // positions.
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
