//! The visible part of a chart's series, and the ranges of its axes.

use std::collections::BTreeSet;

use crate::chart::{Axis, Chart, Scale, Series, Style};
use crate::domain::Domain;
use crate::number::{si, sig};

/// Maximum number of points that are drawn for a series. The points of longer series are thinned out.
pub(crate) const POINTS: usize = 800;
/// Number of averages over the whole axis that replace a noisy line.
const AVERAGES: usize = 200;

/// An x, and the lowest and the highest y at this x. For a single point, both are equal.
pub(crate) type Span = (f64, f64, f64);

/// The part of a series that the axes can show, sorted by x.
pub(crate) struct Trace<'a> {
    pub(crate) series: &'a Series,
    pub(crate) points: Vec<Span>,
    pub(crate) band: Vec<Span>,
    /// Points that the axes cannot show.
    unseen: Vec<(f64, f64)>,
    /// Whether the axes cannot show a part of the band, although they show the points there. Assumes that a band has an
    /// entry for each point.
    is_band_cut: bool,
}

impl<'a> Trace<'a> {
    fn new(series: &'a Series, x: &Axis, y: &Axis) -> Self {
        let shown = |mut spans: Vec<Span>| {
            spans.retain(|s| x.scale.shows(s.0) && y.scale.shows(s.1) && y.scale.shows(s.2));
            spans.sort_by(|a, b| a.0.total_cmp(&b.0));
            spans
        };
        // Unlike `min` and `max`, this form keeps NaN, which is dropped later.
        let ordered = |&(x, a, b): &Span| if a <= b { (x, a, b) } else { (x, b, a) };
        let points = series.points.iter().map(|&(x, y)| (x, y, y)).collect();
        let band = series.band.iter().map(ordered).collect();
        let is_seen = |point: &(f64, f64)| x.scale.shows(point.0) && y.scale.shows(point.1);
        let unseen = series.points.iter().copied();
        let (points, band) = (shown(points), shown(band));
        Self {
            unseen: unseen.filter(|point| !is_seen(point)).collect(),
            is_band_cut: !series.band.is_empty() && band.len() < points.len(),
            series,
            points,
            band,
        }
    }

    pub(crate) fn is_line(&self) -> bool {
        self.series.style != Style::Markers
    }

    /// Whether the points zigzag so densely that a line through them would be a solid stripe.
    fn is_noise(&self) -> bool {
        let turns = |w: &&[Span]| (w[1].1 - w[0].1) * (w[2].1 - w[1].1) < 0.0;
        let turns = self.points.windows(3).filter(turns).count();
        self.is_line() && self.points.len() > AVERAGES && turns * 4 > self.points.len()
    }

    /// Replaces the points by averages. The range of the averaged points becomes the band, unless the series has a
    /// band.
    fn average(&mut self, x: &Domain) {
        let (mut averages, mut ranges) = (Vec::new(), Vec::new());
        for part in parts(&self.points, x, AVERAGES) {
            let count = part.len() as f64;
            let middle = part.iter().map(|s| s.0).sum::<f64>() / count;
            let mean = part.iter().map(|s| s.1 / count).sum();
            let (low, high) = range(part.iter().map(|s| s.1));
            averages.push((middle, mean, mean));
            ranges.push((middle, low, high));
        }
        self.points = averages;
        if self.band.is_empty() {
            self.band = ranges;
        }
    }
}

/// Groups `spans` by `count` equal parts of the axis.
fn parts<'a>(spans: &'a [Span], x: &Domain, count: usize) -> impl Iterator<Item = &'a [Span]> {
    let part = move |s: &Span| ((x.unit(s.0) * count as f64) as usize).min(count - 1);
    spans.chunk_by(move |a, b| part(a) == part(b))
}

/// Keeps at most `limit` of `spans`: the ends, and the lowest and highest of each part of the axis.
pub(crate) fn thin(spans: &[Span], x: &Domain, limit: usize) -> Vec<Span> {
    let [first, inner @ .., last] = spans else {
        return spans.to_vec();
    };
    if spans.len() <= limit {
        return spans.to_vec();
    }
    let mut kept = vec![*first];
    for part in parts(inner, x, limit.saturating_sub(2).div_ceil(2).max(1)) {
        let places = 0..part.len();
        let low = places
            .clone()
            .min_by(|&a, &b| part[a].1.total_cmp(&part[b].1));
        let high = places.max_by(|&a, &b| part[a].2.total_cmp(&part[b].2));
        let ends = BTreeSet::from_iter(low.into_iter().chain(high));
        kept.extend(ends.into_iter().map(|place| part[place]));
    }
    kept.push(*last);
    kept
}

/// Returns the range of the x axis: the range of all x, extended to 0 if the axis is linear and the lowest x is near 0.
/// With markers, the range is padded.
fn x_domain(traces: &[Trace], scale: Scale) -> Domain {
    let spans = traces.iter().flat_map(|t| t.points.iter().chain(&t.band));
    let (lo, hi) = range(spans.map(|s| scale.position(s.0)));
    let from_zero = scale == Scale::Linear && lo > 0.0 && lo < 0.05 * hi;
    let domain = Domain::new(scale, if from_zero { 0.0 } else { lo }, hi);
    match traces.iter().all(Trace::is_line) {
        true => domain,
        false => domain.padded(0.02),
    }
}

/// Returns the y range, and whether it cuts values off.
///
/// Values are weighted by their share of the drawn width. Their share of the points would mislead: on a logarithmic x
/// axis, most points crowd at the right.
fn y_domain(chart: &Chart, traces: &[Trace], x: &Domain) -> (Domain, bool) {
    let scale = chart.y.scale;
    let (mut all, mut drawn, mut fixed) = (Vec::new(), Vec::new(), Vec::new());
    for trace in traces {
        for span in trace.points.iter().chain(&trace.band) {
            all.extend([scale.position(span.1), scale.position(span.2)]);
        }
        if trace.is_line() {
            sample(&trace.points, x, scale, &mut drawn);
            sample(&trace.band, x, scale, &mut drawn);
            fixed.extend(trace.points.last().map(|s| s.1));
        } else {
            fixed.extend(trace.points.iter().map(|s| s.1));
        }
    }
    let references = chart.references.iter().map(|reference| reference.y);
    fixed.extend(references.filter(|&y| scale.shows(y)));

    let (lo, max) = range(all.into_iter());
    drawn.sort_by(f64::total_cmp);
    let most = drawn.get(drawn.len() * 95 / 100).copied().unwrap_or(max);
    let dwarfs = most > lo && max - most > 0.5 * (most - lo);
    let top = match dwarfs {
        true => most + 0.15 * (most - lo),
        false => max,
    };
    let (least, greatest) = range(fixed.into_iter().map(|y| scale.position(y)));
    let domain = Domain::new(scale, lo.min(least), top.max(greatest)).padded(0.04);
    (domain, max > domain.hi)
}

/// Adds to `drawn` the upper ends of `spans` at evenly spaced points of the x axis, as positions on the y axis.
fn sample(spans: &[Span], x: &Domain, scale: Scale, drawn: &mut Vec<f64>) {
    for pair in spans.windows(2) {
        let [from, to] = [0, 1].map(|i| x.unit(pair[i].0) * 200.0);
        let [low, high] = [0, 1].map(|i| scale.position(pair[i].2));
        let slope = match to > from {
            true => (high - low) / (to - from),
            false => 0.0,
        };
        let places = from.ceil() as i64..=to.floor() as i64;
        drawn.extend(places.map(|place| low + (place as f64 - from) * slope));
    }
}

/// Writes a value with the name of its axis.
fn value(axis: &Axis, value: f64) -> String {
    match value.is_finite() {
        true => format!("{} {}", axis.label, si(value)),
        false => format!("{} {value}", axis.label),
    }
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| {
        (lo.min(v), hi.max(v))
    })
}

/// The visible part of a chart, and the ranges of its axes.
pub(crate) struct View<'a> {
    pub(crate) chart: &'a Chart,
    pub(crate) traces: Vec<Trace<'a>>,
    pub(crate) x: Domain,
    pub(crate) y: Domain,
    /// Whether values are above the y range.
    cut: bool,
    /// A note on averaged noise.
    note: &'static str,
}

/// Maximum number of omitted points, bands and references that the notes name.
const NAMED: usize = 5;

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

    /// Writes notes on averaged noise, on values that are cut off, and on points, parts of bands and references that
    /// the axes cannot show.
    pub(crate) fn notes(&self) -> String {
        let mut notes = self.note.to_owned();
        if self.cut {
            let top = sig(self.y.scale.value(self.y.hi), 3);
            notes += &format!("Values above {top} are cut off. ");
        }
        let mut unseen: Vec<String> = Vec::new();
        for trace in &self.traces {
            let name = &trace.series.name;
            let point = |point: &(f64, f64)| format!("{name} ({})", self.odd(*point));
            unseen.extend(trace.unseen.iter().map(point));
            if trace.is_band_cut {
                unseen.push(format!("{name} (a part of its band)"));
            }
        }
        let references = self.chart.references.iter();
        let references = references.filter(|reference| !self.y.scale.shows(reference.y));
        unseen.extend(references.map(|reference| {
            let y = value(&self.chart.y, reference.y);
            format!("{} ({y})", reference.name)
        }));
        if !unseen.is_empty() {
            let more = match unseen.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            unseen.truncate(NAMED);
            let is_log = [self.x.scale, self.y.scale].contains(&Scale::Log);
            let why = if is_log {
                "; a logarithmic axis has only values above 0"
            } else {
                ""
            };
            notes += &format!("Not shown: {}{more}{why}.", unseen.join(", "));
        }
        notes.trim_end().to_owned()
    }

    /// Writes the first coordinate of a point that has no position on its axis, with the name of the axis.
    fn odd(&self, (x, y): (f64, f64)) -> String {
        match self.x.scale.shows(x) {
            false => value(&self.chart.x, x),
            true => value(&self.chart.y, y),
        }
    }

    /// Returns the names and values of the references that the y axis can show.
    pub(crate) fn references(&self) -> impl Iterator<Item = (&'a str, f64)> {
        let pairs = self.chart.references.iter().map(|r| (r.name.as_str(), r.y));
        pairs.filter(|&(_, y)| self.y.scale.shows(y))
    }
}
