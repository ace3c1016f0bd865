//! Differences of losses in the unit of the papers: how many times the tokens they are worth.

use std::fmt::Write as _;

use super::papers::{PAPERS, Paper, Size};
use super::rows::{Results, Row};
use super::{find, of_paper};

/// The slope of the baseline's loss for each doubling of its tokens, with half the width of its 95 % interval.
#[derive(Clone, Copy)]
pub struct Slope {
    pub loss: f64,
    pub half_width: f64,
}

/// The factor on the baseline's tokens that changes its loss as much as a connection does.
pub struct Worth {
    pub factor: f64,
    /// The 95 % interval.
    pub low: f64,
    pub high: f64,
}

impl Slope {
    /// The factor 2^r with r = difference / slope. The interval of r is that of the delta method, for a difference and
    /// a slope that are independent.
    pub fn worth(self, (difference, half_width): (f64, f64)) -> Worth {
        let r = difference / self.loss;
        let of_difference = half_width / self.loss;
        let of_slope = r * self.half_width / self.loss;
        let error = of_difference.hypot(of_slope);
        Worth {
            factor: r.exp2(),
            low: (r - error).exp2(),
            high: (r + error).exp2(),
        }
    }

    /// Reads the slope from the claim that the loss falls with the tokens.
    fn of(results: &Results) -> Self {
        let found = &results.claims[0].found;
        assert!(found.contains("for each doubling"), "{found}");
        let (loss, half_width) = interval(found).unwrap();
        Self { loss, half_width }
    }
}

/// Reads `a ± b` at the start of the text.
fn interval(text: &str) -> Option<(f64, f64)> {
    let (mean, rest) = text.split_once(" ± ")?;
    let half_width = rest.split([' ', ',']).next()?;
    Some((mean.parse().ok()?, half_width.parse().ok()?))
}

/// Reads the difference of a row, such as `1.9 against 2.0: -0.1 ± 0.05, p 0.01`.
fn difference(row: &Row) -> Option<(f64, f64)> {
    interval(row.found.split_once(": ")?.1)
}

impl Worth {
    /// Compares the interval with the factor that the paper reports.
    fn verdict(&self, reported: f64) -> &'static str {
        match () {
            () if self.high < reported => "smaller than reported",
            () if self.low > reported => "larger than reported",
            () => "as reported",
        }
    }
}

/// The sizes of a paper's claims, in the order of [`Paper::sizes`]. Empty until the experiment on tokens has a page.
pub fn sizes(paper: &Paper, all: &[Results]) -> Vec<(&'static Size, String, Worth)> {
    let of_tokens = |name| all.iter().find(|it| it.name == name);
    let Some(tokens) = paper.tokens.and_then(of_tokens) else {
        return Vec::new();
    };
    let slope = Slope::of(tokens);
    let size = |size: &'static Size| {
        let (results, row) = find(all, (size.experiment, size.claim));
        let of_row = difference(row).unwrap_or_else(|| panic!("{}", row.found));
        (size, results.link(""), slope.worth(of_row))
    };
    paper.sizes.iter().map(size).collect()
}

/// A table of the sizes.
pub fn table(sizes: &[(&Size, String, Worth)]) -> String {
    let mut text = "| | paper, × the tokens | here, × the tokens | size | experiment |\n|---|---|---|---|---|\n".to_owned();
    for (size, link, worth) in sizes {
        let Worth { factor, low, high } = worth;
        let (reported, verdict) = match size.reported {
            Some((factor, source)) => (format!("{factor} ({source})"), worth.verdict(factor)),
            None => (String::new(), ""),
        };
        let name = size.name;
        writeln!(
            text,
            "| {name} | {reported} | {factor:.2} ({low:.2} to {high:.2}) | {verdict} | {link} |"
        )
        .unwrap();
    }
    text
}

const ROW: f64 = 30.0;
const LEFT: f64 = 260.0;
const WIDTH: f64 = 760.0;
const TOP: f64 = 18.0;

/// A forest plot: a line for each interval, a dot for its middle, and a diamond for the paper's factor.
pub fn plot(sizes: &[(&Size, String, Worth)]) -> String {
    let ends = sizes.iter().flat_map(|(size, _, worth)| {
        [worth.low, worth.high]
            .into_iter()
            .chain(size.reported.map(|(factor, _)| factor))
    });
    let (low, high) = ends.fold((1.0, 1.0), |(low, high): (f64, f64), x| {
        (low.min(x), high.max(x))
    });
    // Quarters of a doubling at both ends.
    let (low, high) = (
        (4.0 * low.log2()).floor() / 4.0,
        (4.0 * high.log2()).ceil() / 4.0,
    );
    let x = |factor: f64| LEFT + (factor.log2() - low) / (high - low) * (WIDTH - LEFT - 30.0);
    let bottom = TOP + ROW * sizes.len() as f64;
    let height = bottom + 56.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Gains as a multiple of the tokens\"><style>\n\
         svg {{ color-scheme: light dark; --page: #fff; --ink: #1b1f24; --muted: #5a636e; --grid: #e8ebee; --c: #043aa8; --p: #c53d0c; font: 14px system-ui, sans-serif; }}\n\
         @media (prefers-color-scheme: dark) {{ svg {{ --page: #14161a; --ink: #e7eaee; --muted: #9da7b3; --grid: #282c33; --c: #6096e3; --p: #f0995c; }} }}\n\
         text {{ fill: var(--ink); }} .tick {{ fill: var(--muted); text-anchor: middle; }} .name {{ text-anchor: end; }}\n\
         .grid {{ stroke: var(--grid); }} .one {{ stroke: var(--muted); stroke-dasharray: 4 3; }}\n\
         .here {{ stroke: var(--c); stroke-width: 2; }} circle {{ fill: var(--c); }} .paper {{ fill: var(--p); }}\n\
         </style>\n<rect width=\"100%\" height=\"100%\" style=\"fill: var(--page)\"/>\n"
    );
    let mut tick = (4.0 * low).round() as i64;
    while tick as f64 <= 4.0 * high {
        let factor = (tick as f64 / 4.0).exp2();
        let (at, class) = (x(factor), if tick == 0 { "one" } else { "grid" });
        writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.0}\">{factor:.2}</text>",
            bottom + 18.0
        )
        .unwrap();
        tick += 1;
    }
    for (i, (size, _, worth)) in sizes.iter().enumerate() {
        let y = TOP + ROW * (i as f64 + 0.5);
        writeln!(
            svg,
            "<text class=\"name\" x=\"{:.0}\" y=\"{:.1}\">{}</text>\
             <line class=\"here\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\"/>",
            LEFT - 14.0,
            y + 5.0,
            size.name,
            x(worth.low),
            x(worth.high),
            x(worth.factor)
        )
        .unwrap();
        if let Some((factor, _)) = size.reported {
            let at = x(factor);
            let (left, right, above, below) = (at - 6.0, at + 6.0, y - 6.0, y + 6.0);
            writeln!(
                svg,
                "<polygon class=\"paper\" points=\"{left:.1},{y:.1} {at:.1},{above:.1} {right:.1},{y:.1} {at:.1},{below:.1}\"/>"
            )
            .unwrap();
        }
    }
    let (dot, diamond) = (LEFT + 6.0, LEFT + 250.0);
    let y = bottom + 42.0;
    let middle = y - 5.0;
    writeln!(
        svg,
        "<circle cx=\"{dot}\" cy=\"{middle}\" r=\"5\"/><text x=\"{:.0}\" y=\"{y}\">here, with the 95 % interval</text>\
         <polygon class=\"paper\" points=\"{:.1},{middle} {diamond:.1},{:.1} {:.1},{middle} {diamond:.1},{:.1}\"/>\
         <text x=\"{:.0}\" y=\"{y}\">paper</text>\n</svg>",
        dot + 12.0,
        diamond - 6.0,
        middle - 6.0,
        diamond + 6.0,
        middle + 6.0,
        diamond + 12.0
    )
    .unwrap();
    svg
}

#[test]
fn every_size_has_a_claim_with_a_difference() {
    for paper in &PAPERS {
        let all = of_paper(paper.directory);
        for size in paper.sizes {
            let (_, row) = find(&all, (size.experiment, size.claim));
            assert!(difference(row).is_some(), "{}: {}", size.name, row.found);
        }
    }
}

#[test]
fn a_difference_is_worth_as_many_tokens_as_the_slope_says() {
    let slope = Slope {
        loss: -0.1,
        half_width: 0.0,
    };
    // Half a doubling, √2 times the tokens; the ends are 2^0.3 and 2^0.7.
    let worth = slope.worth((-0.05, 0.02));
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-4, "{a} is not {b}");
    near(worth.factor, 2f64.sqrt());
    near(worth.low, 1.2311);
    near(worth.high, 1.6245);
    // r = 0.5, with an error of √(0.2² + (0.5 · 0.3)²) = 0.25.
    let slope = Slope {
        loss: -0.1,
        half_width: 0.03,
    };
    let worth = slope.worth((-0.05, 0.02));
    near(worth.low, 2f64.powf(0.25));
    near(worth.high, 2f64.powf(0.75));
    assert_eq!(worth.verdict(1.1), "larger than reported");
    assert_eq!(worth.verdict(1.25), "as reported");
    assert_eq!(worth.verdict(1.8), "smaller than reported");
    // A loss is worth fewer tokens.
    near(slope.worth((0.1, 0.0)).factor, 0.5);
}
