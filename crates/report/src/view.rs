//! What a chart shows, and over which ranges.

use crate::chart::Chart;
use crate::domain::Domain;
use crate::series::{Trace, x_domain, y_domain};

/// What a chart shows, and over which ranges.
pub(crate) struct View<'a> {
    pub(crate) chart: &'a Chart,
    pub(crate) traces: Vec<Trace<'a>>,
    pub(crate) x: Domain,
    pub(crate) y: Domain,
    /// Whether something is above the y range.
    pub(crate) cut: bool,
    /// What was done to noise.
    pub(crate) note: &'static str,
}

impl<'a> View<'a> {
    pub(crate) fn of(chart: &'a Chart) -> Self {
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
            chart,
            traces,
            x,
            y,
            cut,
            note,
        }
    }

    /// The names and values of the references that have a place on the y axis.
    pub(crate) fn references(&self) -> impl Iterator<Item = (&'a str, f64)> {
        let pairs = self.chart.references.iter().map(|r| (r.name.as_str(), r.y));
        pairs.filter(|&(_, y)| self.y.scale.shows(y))
    }
}
