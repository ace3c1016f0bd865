//! The charts of an experiment: curves or points with their range over the seeds, fits, and published values.

use std::collections::BTreeMap;

use residual_zoo_report::{Axis as ChartAxis, Chart, Reference, Scale, Series, Style, sig};

use crate::observe::points_by_run;
use crate::quantity::{on_curve, title};
use crate::stats::estimates;
use crate::{Axis, ChartSpec, Line, Observation, Observed};

/// A planned run without its config.
#[derive(Clone, Debug)]
pub(crate) struct RunRow {
    pub(crate) name: String,
    pub(crate) line: String,
    pub(crate) published: BTreeMap<String, f64>,
}

impl ChartSpec {
    /// Draws the observations of `runs`.
    pub(crate) fn chart(&self, runs: &[RunRow], observations: &[Observation]) -> Chart {
        let traces = self.traces(runs);
        let mut note = self.note.clone();
        let (mut series, mut references) = (Vec::new(), Vec::new());
        for (group, (name, runs)) in traces.iter().enumerate() {
            if !self.lines.is_empty() && !self.lines.contains(&runs[0].line) {
                continue;
            }
            let found = |o: &&Observation| runs.iter().any(|run| run.name == o.run);
            let found: Vec<_> = observations.iter().filter(found).collect();
            match (self.curves, Axis::parse(&self.x)) {
                (true, Some(axis)) => series.push(self.curve(&found, axis, (name, group))),
                _ => series.extend(self.points(&found, (name, group), &mut note)),
            }
            if self.printed {
                let name = format!("{name}, reported");
                let of = |run: &&RunRow, quantity| run.published.get(quantity).copied();
                let point = |run: &&RunRow| of(run, &self.x).zip(of(run, &self.y));
                let points: Vec<_> = runs.iter().filter_map(point).collect();
                if !points.is_empty() {
                    series.push(Series::markers(name, group, self.scaled(&points)));
                } else if let Some(y) = runs.iter().find_map(|run| of(run, &self.y)) {
                    references.push(Reference::new(name, y * Observed::of(&self.y).scale()));
                }
            }
        }
        for (i, (name, points)) in self.published.iter().enumerate() {
            series.push(Series::markers(name, traces.len() + i, self.scaled(points)));
        }
        // A run without points is omitted from the legend.
        series.retain(|series| !series.points.is_empty());
        if series.iter().any(|series| !series.band.is_empty()) {
            note += " Means over the seeds; bands are their range.";
        }
        let axis = |quantity: &str, log: bool| ChartAxis {
            label: title(quantity),
            unit: Observed::of(quantity).unit.into(),
            scale: match log {
                true => Scale::Log,
                false => Scale::Linear,
            },
        };
        Chart {
            heading: self.title.clone(),
            note: note.trim().to_owned(),
            x: axis(&self.x, self.log_x),
            y: axis(&self.y, self.log_y),
            series,
            references,
        }
    }

    /// Groups the runs by color: one color per run if each run is a curve, otherwise one color per line of runs.
    fn traces<'a>(&self, runs: &'a [RunRow]) -> Vec<(&'a str, Vec<&'a RunRow>)> {
        let mut traces: Vec<(&str, Vec<&RunRow>)> = Vec::new();
        for run in runs {
            let name = if self.curves { &run.name } else { &run.line };
            match traces.iter_mut().find(|(known, _)| known == name) {
                Some((_, of)) => of.push(run),
                None => traces.push((name, vec![run])),
            }
        }
        traces
    }

    /// Returns the curve of a run: its mean and range over the seeds, with rows matched by step. Omits the untrained
    /// model, because the fall from its loss would take up most of the axis.
    fn curve(&self, found: &[&Observation], axis: Axis, (name, group): (&str, usize)) -> Series {
        let mut at: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
        let rows = found.iter().flat_map(|found| &found.rows);
        for row in rows.filter(|row| row.tokens > 0) {
            if let Ok(Some(y)) = on_curve(&self.y, row) {
                at.entry(row.step).or_default().push((axis.of(row), y));
            }
        }
        let most = at.values().map(Vec::len).max().unwrap_or(0);
        at.retain(|_, found| found.len() == most);
        self.spans(name, group, at.values())
    }

    /// Returns the mean and range over the seeds for each run of a line. With `fit`, also returns the power law through
    /// the means.
    fn points(
        &self,
        found: &[&Observation],
        (name, group): (&str, usize),
        note: &mut String,
    ) -> Vec<Series> {
        let runs = points_by_run(found.iter().copied(), (&self.x, &self.y));
        let series = self.spans(name, group, runs.iter());
        let is_positive = |point: &(f64, f64)| point.0 > 0.0 && point.1 > 0.0;
        if self.fit && series.points.len() > 1 && !series.points.iter().all(is_positive) {
            *note += &format!(" {name}: no power law, because a value is not above 0.");
        }
        let Some(fit) = Line::power_law(&series.points).filter(|_| self.fit) else {
            return vec![series];
        };
        *note += &format!(
            " {name}: {} ∝ {}^({} ± {}), R² {:.3}.",
            title(&self.y),
            title(&self.x),
            sig(fit.slope, 3),
            sig(fit.slope_half_width, 2),
            fit.r_squared
        );
        let on_fit = |x: f64| (x, (fit.intercept + fit.slope * x.ln()).exp());
        let fitted = series.points.iter().map(|point| on_fit(point.0)).collect();
        let fitted = Series {
            style: Style::Dashed,
            ..Series::line(format!("{name}, fitted"), group, fitted)
        };
        let measured = Series {
            style: Style::Markers,
            ..series
        };
        vec![measured, fitted]
    }

    /// Returns a series through the means of groups of points, with the range of each group as the band.
    fn spans<'a>(
        &self,
        name: &str,
        group: usize,
        points: impl Iterator<Item = &'a Vec<(f64, f64)>>,
    ) -> Series {
        let mut series = Series::line(name, group, Vec::new());
        let mut several = false;
        for [x, y] in points.filter_map(|points| estimates(&self.scaled(points))) {
            series.points.push((x.mean, y.mean));
            series.band.push((x.mean, y.lowest, y.highest));
            several |= y.count > 1;
        }
        if !several {
            series.band.clear();
        }
        series
    }

    /// Converts points to the units of the axes.
    fn scaled(&self, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let (x, y) = (Observed::of(&self.x).scale(), Observed::of(&self.y).scale());
        points
            .iter()
            .map(|point| (point.0 * x, point.1 * y))
            .collect()
    }
}
