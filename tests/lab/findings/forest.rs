//! Draws the gains as a forest plot.

use std::fmt::Write as _;

use super::worth::Gain;

const ROW: f64 = 26.0;
const LEFT: f64 = 380.0;
const WIDTH: f64 = 860.0;
const TOP: f64 = 18.0;

/// Draws a forest plot: a line for each interval, a dot for its middle, and a diamond for the paper's factor. An
/// interval beyond the trained factors ends at the limit with an arrow.
pub fn plot(gains: &[Gain]) -> String {
    let within = |gain: &Gain, factor: f64| factor.clamp(1.0, gain.most);
    let ends = gains.iter().flat_map(|gain| {
        let ends = [gain.worth.low, gain.worth.high];
        let ends = ends.map(|factor| within(gain, factor));
        ends.into_iter()
            .chain(gain.reported.map(|(factor, _)| factor))
    });
    let high = ends.fold(1.0, f64::max);
    let most = (4.0 * high).ceil() / 4.0;
    // Some space is left for arrows.
    let low = -0.125;
    let x =
        |factor: f64| LEFT + (factor.log2() - low) / (most.log2() - low) * (WIDTH - LEFT - 40.0);
    let bottom = TOP + ROW * gains.len() as f64;
    let height = bottom + 80.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Gains as multiples of the baseline's tokens\"><style>\n\
         svg {{ color-scheme: light dark; --page: #fff; --ink: #1b1f24; --muted: #5a636e; --grid: #e8ebee; --c: #043aa8; --p: #c53d0c; font: 14px system-ui, sans-serif; }}\n\
         @media (prefers-color-scheme: dark) {{ svg {{ --page: #14161a; --ink: #e7eaee; --muted: #9da7b3; --grid: #282c33; --c: #6096e3; --p: #f0995c; }} }}\n\
         text {{ fill: var(--ink); }} .tick {{ fill: var(--muted); text-anchor: middle; }} .name, .size {{ text-anchor: end; }} .size {{ fill: var(--muted); }}\n\
         .grid {{ stroke: var(--grid); }} .one {{ stroke: var(--muted); stroke-dasharray: 4 3; }}\n\
         .here {{ stroke: var(--c); stroke-width: 2; }} .end, circle {{ fill: var(--c); }} .paper {{ fill: var(--p); }}\n\
         </style>\n<rect width=\"100%\" height=\"100%\" style=\"fill: var(--page)\"/>\n"
    );
    for quarter in 4..=(4.0 * most).round() as usize {
        let factor = quarter as f64 / 4.0;
        let (at, class) = (x(factor), if quarter == 4 { "one" } else { "grid" });
        writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.0}\">{factor:.2}</text>",
            bottom + 18.0
        )
        .unwrap();
    }
    writeln!(
        svg,
        "<text class=\"tick\" x=\"{:.0}\" y=\"{:.0}\">× the baseline's tokens</text>",
        f64::midpoint(x(1.0), x(most)),
        bottom + 38.0
    )
    .unwrap();
    for (i, gain) in gains.iter().enumerate() {
        let y = TOP + ROW * (i as f64 + 0.5);
        let is_first = i == 0 || gains[i - 1].design != gain.design;
        if is_first {
            let name = gain.design;
            label(&mut svg, ("name", LEFT - 66.0, y), name);
        }
        label(&mut svg, ("size", LEFT - 14.0, y), &gain.size);
        let (low, high) = (within(gain, gain.worth.low), within(gain, gain.worth.high));
        let (low, middle, high) = (x(low), x(within(gain, gain.worth.factor)), x(high));
        writeln!(
            svg,
            "<line class=\"here\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <circle cx=\"{middle:.1}\" cy=\"{y:.1}\" r=\"4\"/>"
        )
        .unwrap();
        for (is_beyond, end, length) in [
            (gain.worth.low < 1.0, low, -8.0),
            (gain.worth.high > gain.most, high, 8.0),
        ] {
            if is_beyond {
                let (above, below, tip) = (y - 5.0, y + 5.0, end + length);
                writeln!(
                    svg,
                    "<polygon class=\"end\" points=\"{end:.1},{above:.1} {tip:.1},{y:.1} {end:.1},{below:.1}\"/>"
                )
                .unwrap();
            }
        }
        if let Some((factor, _)) = gain.reported {
            diamond(&mut svg, x(factor), y);
        }
    }
    let (dot, paper) = (LEFT + 6.0, LEFT + 250.0);
    let y = bottom + 62.0;
    writeln!(svg, "<circle cx=\"{dot}\" cy=\"{y}\" r=\"4\"/>").unwrap();
    label(
        &mut svg,
        ("", dot + 12.0, y),
        "here, with the 95 % interval",
    );
    diamond(&mut svg, paper, y);
    label(&mut svg, ("", paper + 12.0, y), "paper");
    svg + "</svg>\n"
}

/// Writes text whose middle has the height `y`.
fn label(svg: &mut String, (class, x, y): (&str, f64, f64), text: &str) {
    let y = y + 5.0;
    writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.0}\" y=\"{y:.1}\">{text}</text>"
    )
    .unwrap();
}

fn diamond(svg: &mut String, x: f64, y: f64) {
    let (left, right, above, below) = (x - 6.0, x + 6.0, y - 6.0, y + 6.0);
    writeln!(
        svg,
        "<polygon class=\"paper\" points=\"{left:.1},{y:.1} {x:.1},{above:.1} {right:.1},{y:.1} {x:.1},{below:.1}\"/>"
    )
    .unwrap();
}
