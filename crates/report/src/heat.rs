//! Heat maps of a matrix of numbers. The color of a cell shows the sign of its number. The opacity shows the magnitude
//! of the number, relative to the largest magnitude in its row.

use maud::{Markup, PreEscaped, html};

use crate::escape::printable;
use crate::figure::{ALONE, STYLE};
use crate::shapes::{length, text};
use crate::width::width;

/// A matrix of numbers. Rows may have different lengths.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeatMap {
    /// The section heading.
    pub heading: String,
    /// A note under the heading; empty for none.
    pub note: String,
    /// The name of each row.
    pub rows: Vec<String>,
    /// The name of each column.
    pub columns: Vec<String>,
    /// The numbers of each row. A number that is not finite has an empty cell.
    pub values: Vec<Vec<f64>>,
}

/// The style of a map, in addition to the style of charts.
const HEAT: &str = "
.heat text { fill: var(--ink); font-size: 12px; }
.heat .column, .heat .number { text-anchor: middle; }
.heat .row { text-anchor: end; }
.heat .column { fill: var(--muted); }
.heat .positive { fill: var(--c0); }
.heat .negative { fill: var(--c1); }
";
const CELL: (f64, f64) = (34.0, 20.0);
const TOP: f64 = 20.0;
/// The width in pixels below which a map does not shrink, so that its digits stay legible.
const NARROWEST: f64 = 700.0;
/// The opacity of the number with the largest magnitude in a row. The digits are still legible.
const STRONGEST: f64 = 0.45;

impl HeatMap {
    /// Returns the map as a separate SVG file, in the light or dark colors of the reader's system.
    pub fn to_svg(&self) -> String {
        let svg = self.draw(html! {
            style { "\n" (PreEscaped(STYLE)) (PreEscaped(ALONE)) } "\n"
            rect width="100%" height="100%" fill="var(--page)" {} "\n"
        });
        printable(svg.into_string())
    }

    /// Draws the map, after `first`.
    pub(crate) fn draw(&self, first: Markup) -> Markup {
        let names = self.rows.iter().map(|name| width(name));
        let left = 8.0 + 7.0 * names.max().unwrap_or(0) as f64;
        let (wide, high) = CELL;
        let full = left + wide * self.columns.len() as f64 + 8.0;
        let height = TOP + high * self.rows.len() as f64 + 8.0;
        let middle = |column: usize| left + wide * (column as f64 + 0.5);
        let top = |row: usize| TOP + high * row as f64;
        html! {
            svg class="plot heat" xmlns="http://www.w3.org/2000/svg" role="img" aria-label=(self.heading)
                viewBox={ "0 0 " (length(full)) " " (length(height)) } style=(format!("min-width:{:.0}px;max-width:{full:.0}px", full.min(NARROWEST))) {
                (first)
                style { (PreEscaped(HEAT)) } "\n"
                @for (i, name) in self.columns.iter().enumerate() {
                    (text("column", middle(i), TOP - 6.0, name))
                }
                @for (i, (name, values)) in self.rows.iter().zip(&self.values).enumerate() {
                    (text("row", left - 6.0, top(i) + 14.0, name))
                    @let opacities = opacities(values);
                    @for (j, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
                        rect class=(if *value < 0.0 { "negative" } else { "positive" })
                            x=(length(middle(j) - wide / 2.0)) y=(length(top(i)))
                            width=(length(wide - 1.0)) height=(length(high - 1.0))
                            fill-opacity=(format!("{:.3}", opacities[j])) {} "\n"
                        (text("number", middle(j), top(i) + 14.0, &short(*value)))
                    }
                }
            } "\n"
        }
    }
}

/// Returns the opacity of each number of a row.
fn opacities(values: &[f64]) -> Vec<f64> {
    let finite = values.iter().filter(|value| value.is_finite());
    let largest = finite.fold(f64::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    let of = |value: &f64| STRONGEST * value.abs() / largest;
    values.iter().map(of).collect()
}

/// Writes a number with two decimals, with one decimal from 10 on, and with none from 100 on. Omits a zero before the
/// point.
fn short(value: f64) -> String {
    let shown = match value.abs() {
        size if size >= 99.95 => format!("{:.0}", value.abs()),
        size if size >= 9.995 => format!("{:.1}", value.abs()),
        _ => format!("{:.2}", value.abs()),
    };
    let shown = shown.strip_prefix('0').unwrap_or(&shown);
    match value < 0.0 && shown.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) {
        true => format!("−{shown}"),
        false => shown.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{HeatMap, short};

    #[test]
    fn numbers_fit_their_cells() {
        let all = [0.0, 0.314, -0.314, -0.001, 1.0, -12.34, 123.4];
        assert_eq!(
            all.map(short),
            [".00", ".31", "−.31", ".00", "1.00", "−12.3", "123"]
        );
    }

    #[test]
    fn the_largest_number_of_a_row_has_the_strongest_color_and_a_missing_one_none() {
        let map = HeatMap {
            rows: vec!["a".into(), "b".into()],
            columns: vec!["x".into(), "y".into()],
            values: vec![vec![8.0, 4.0], vec![-2.0, f64::NAN]],
            ..HeatMap::default()
        };
        let svg = map.to_svg();
        let opacity = |share: &str| svg.matches(&format!("fill-opacity=\"{share}\"")).count();
        assert_eq!((opacity("0.450"), opacity("0.225")), (2, 1), "{svg}");
        assert_eq!(svg.matches("<rect class=").count(), 3, "{svg}");
        assert_eq!(svg.matches("<rect class=\"negative\"").count(), 1, "{svg}");
        let empty = HeatMap::default().to_svg();
        assert!(empty.contains("<svg") && !empty.contains("NaN"));
    }
}
