//! A drawing of a chart and the position of its plot area.

use crate::domain::Ticks;
use crate::labels::{Label, labels};
use crate::series::View;
use crate::width::width;

/// A drawing and the position of its plot area, in units of about a pixel.
pub(crate) struct Plot<'a> {
    pub(crate) view: &'a View<'a>,
    pub(crate) labels: Vec<Label>,
    pub(crate) narrow: bool,
    pub(crate) font: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

impl<'a> Plot<'a> {
    /// Makes a drawing with room for tick labels at the left and for labels of lines at the right.
    pub(crate) fn new(view: &'a View<'a>, narrow: bool) -> Self {
        let (across, height, font) = match narrow {
            true => (360.0, 300.0, 12.0),
            false => (840.0, 430.0, 13.0),
        };
        let mut plot = Self {
            view,
            labels: labels(view, narrow),
            narrow,
            font,
            width: across,
            height,
            left: 0.0,
            right: across,
            top: font * 2.2,
            bottom: height - font * 3.5,
        };
        let ticks = plot.y_ticks().labels;
        let tick = ticks.iter().map(|t| width(t)).max().unwrap_or(0);
        let label = plot.labels.iter().map(Label::columns).max();
        plot.left = tick as f64 * font * 0.6 + 10.0;
        plot.right -= label.map_or(16.0, |l| l as f64 * font * 0.6 + 24.0);
        plot
    }

    pub(crate) fn x_ticks(&self) -> Ticks {
        let room = (self.right - self.left) / (self.font * 5.5);
        self.view.x.ticks(room as usize)
    }

    pub(crate) fn y_ticks(&self) -> Ticks {
        let room = (self.bottom - self.top) / (self.font * 4.2);
        self.view.y.ticks(room as usize)
    }

    /// Returns the horizontal coordinate of the value `x`.
    pub(crate) fn column(&self, x: f64) -> f64 {
        self.left + (self.right - self.left) * self.view.x.unit(x)
    }

    /// Returns the vertical coordinate of the value `y`.
    pub(crate) fn row(&self, y: f64) -> f64 {
        // Far outside the clip path, the exact position does not matter. The position is limited, because long numbers
        // break renderers.
        self.bottom - (self.bottom - self.top) * self.view.y.unit(y).clamp(-5.0, 5.0)
    }

    /// Whether the plot area reaches up to the value `y`.
    pub(crate) fn reaches(&self, y: f64) -> bool {
        self.view.y.unit(y) <= 1.0
    }
}
