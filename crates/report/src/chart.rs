//! The description of a chart.

/// A chart of series over a shared x axis.
///
/// The y axis spans the values that lines show over most of the x axis. The high losses of a run's first steps thus do
/// not flatten the rest of its curve. Values far above this range are cut off, and the chart says so. Markers and
/// references that the axes can show are never cut off, and neither is the last point of a line.
///
/// A line that is too dense and noisy to follow is averaged, and the chart says so. The range of the averaged points
/// becomes the line's band, unless the line has a band already.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chart {
    /// The section heading.
    pub heading: String,
    /// A note under the heading; empty for none.
    pub note: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series, in drawing order: later series are drawn over earlier series.
    pub series: Vec<Series>,
    /// Horizontal reference lines.
    pub references: Vec<Reference>,
}

/// A chart axis.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Axis {
    /// The quantity.
    pub label: String,
    /// The unit of the quantity; empty for none.
    pub unit: String,
    /// The map from values to positions.
    pub scale: Scale,
}

impl Axis {
    /// Makes a linear axis.
    pub fn linear(label: impl Into<String>, unit: impl Into<String>) -> Self {
        let (label, unit, scale) = (label.into(), unit.into(), Scale::Linear);
        Self { label, unit, scale }
    }

    /// Makes a logarithmic axis.
    pub fn log(label: impl Into<String>, unit: impl Into<String>) -> Self {
        Self {
            scale: Scale::Log,
            ..Self::linear(label, unit)
        }
    }
}

/// A map from values to positions along an axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scale {
    /// Proportional to the value.
    #[default]
    Linear,
    /// Proportional to the logarithm. Values that are not positive are omitted, and the chart says so.
    Log,
}

/// A named sequence of points. Points that are not finite are omitted, and the chart says so.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The points `(x, y)`, in any order.
    pub points: Vec<(f64, f64)>,
    /// The band as `(x, low, high)`, such as the range over seeds; empty for none.
    pub band: Vec<(f64, f64, f64)>,
    /// The drawing style of the points.
    pub style: Style,
    /// The index of the color, modulo the eight colors of the palette. Lines of group 8 and above also have dashes.
    pub group: usize,
}

impl Series {
    /// Makes a solid line.
    pub fn line(name: impl Into<String>, group: usize, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            group,
            points,
            ..Self::default()
        }
    }

    /// Makes hollow diamonds without a line, for example for published results.
    pub fn markers(name: impl Into<String>, group: usize, points: Vec<(f64, f64)>) -> Self {
        Self {
            style: Style::Markers,
            ..Self::line(name, group, points)
        }
    }
}

/// The drawing style of a series.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Style {
    /// A solid line.
    #[default]
    Solid,
    /// A dashed line.
    Dashed,
    /// Hollow diamonds without a line.
    Markers,
}

/// A horizontal line at a known value, such as an entropy rate.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reference {
    /// The name beside the line.
    pub name: String,
    /// The value.
    pub y: f64,
}

impl Reference {
    /// Makes a reference line.
    pub fn new(name: impl Into<String>, y: f64) -> Self {
        let name = name.into();
        Self { name, y }
    }
}
