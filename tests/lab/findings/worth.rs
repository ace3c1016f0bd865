//! Expresses differences in loss in the papers' unit: the factor on the baseline's tokens that lowers the baseline's
//! loss by the same amount.

use std::fmt::Write as _;
use std::fs;

use residual_zoo::lab::ladder::{Fall, Losses, Worth};
use residual_zoo_testing::root;

use super::papers::{PAPERS, Paper, Size};
use super::rows::{Results, Row};
use super::{find, of_paper};

/// The losses of the baseline of an experiment on tokens.
struct Baseline {
    seeds: Vec<String>,
    fall: Fall,
}

impl Baseline {
    /// Reads the losses from a page. The name of each run ends in `FACTOR × the tokens`.
    fn read(name: &str) -> Self {
        let (seeds, runs) = seeds_of(name);
        let factor = |run: &str| -> Option<f64> {
            let run = run.strip_suffix(" × the tokens")?;
            run.rsplit(' ').next()?.parse().ok()
        };
        let runs = runs.into_iter();
        let points = runs.filter_map(|(run, losses)| Some((factor(&run)?, losses)));
        let points: Vec<_> = points.collect();
        let fall = Fall::new(points).unwrap_or_else(|| panic!("{name}"));
        Self { seeds, fall }
    }
}

/// Reads a page's table of the loss of every seed. Returns the seeds, and each run with its losses. Both are empty if
/// the page has no such table.
fn seeds_of(name: &str) -> (Vec<String>, Vec<(String, Vec<f64>)>) {
    let page = root().join(format!("docs/results/{name}.md"));
    let page = fs::read_to_string(page).unwrap();
    let Some((_, table)) = page.split_once("## Every seed") else {
        return Default::default();
    };
    let table = table.split("\n## ").next().unwrap();
    let mut rows = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| {
            let cells = line
                .trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_owned());
            cells.collect::<Vec<_>>()
        });
    let seeds = rows.next().unwrap().split_off(2);
    let losses = rows.filter(|cells| cells[1] == "valid loss");
    let losses = losses.map(|cells| {
        let values = cells[2..].iter().map(|cell| cell.parse().unwrap());
        (cells[0].clone(), values.collect())
    });
    (seeds, losses.collect())
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

/// Compares the interval of a factor with the factor that the paper reports.
fn verdict(worth: &Worth, reported: f64) -> &'static str {
    match () {
        () if worth.high < reported => "smaller than reported",
        () if worth.low > reported => "larger than reported",
        () if worth.low < 1.0 => "undecided",
        () => "as reported",
    }
}

/// Formats a factor. The baselines are trained on at most twice their tokens.
fn shown(factor: f64) -> String {
    Worth::shown(factor, 2.0)
}

/// Returns the sizes of a paper's claims, in the order of [`Paper::sizes`]. The list is empty until the experiment on
/// tokens has a page.
pub fn sizes(paper: &Paper, all: &[Results]) -> Vec<(&'static Size, String, Worth)> {
    let of_tokens = |name| all.iter().find(|it| it.name == name);
    let Some(tokens) = paper.tokens.and_then(of_tokens) else {
        return Vec::new();
    };
    let baseline = Baseline::read(&tokens.name);
    let size = |size: &'static Size| {
        let (results, row) = find(all, (size.experiment, size.claim));
        let (seeds, runs) = seeds_of(size.experiment);
        let own = runs.into_iter().find(|(run, _)| run == size.run);
        let model = match own.filter(|_| seeds == baseline.seeds) {
            Some((_, losses)) => Losses::SameSeeds(losses),
            None => {
                let (difference, half_width) =
                    difference(row).unwrap_or_else(|| panic!("{}", row.found));
                Losses::OtherSeeds(difference, half_width)
            }
        };
        let worth = baseline.fall.worth(&model);
        (
            size,
            results.link(""),
            worth.unwrap_or_else(|| panic!("{}", size.name)),
        )
    };
    paper.sizes.iter().map(size).collect()
}

/// Formats a table of the sizes.
pub fn table(sizes: &[(&Size, String, Worth)]) -> String {
    let mut text =
        "| | here, × the tokens | paper | size | experiment |\n|---|---|---|---|---|\n".to_owned();
    for (size, link, worth) in sizes {
        let Worth { factor, low, high } = worth;
        let (reported, verdict) = match size.reported {
            Some((factor, measure)) => (format!("{factor} × {measure}"), verdict(worth, factor)),
            None => (String::new(), ""),
        };
        let name = size.name;
        let (factor, low, high) = (shown(*factor), shown(*low), shown(*high));
        writeln!(
            text,
            "| {name} | {factor} ({low} to {high}) | {reported} | {verdict} | {link} |"
        )
        .unwrap();
    }
    text
}

const ROW: f64 = 30.0;
const LEFT: f64 = 260.0;
const WIDTH: f64 = 760.0;
const TOP: f64 = 18.0;

/// Draws a forest plot: a line for each interval, a dot for its middle, and a diamond for the paper's factor. Values
/// outside the trained factors are drawn at the limits.
pub fn plot(sizes: &[(&Size, String, Worth)]) -> String {
    let within = |factor: f64| factor.clamp(1.0, 2.0);
    let ends = sizes.iter().flat_map(|(size, _, worth)| {
        [worth.low, worth.high]
            .into_iter()
            .chain(size.reported.map(|(factor, _)| factor))
            .map(within)
    });
    let (low, high) = ends.fold((1.0, 1.0), |(low, high): (f64, f64), x| {
        (low.min(x), high.max(x))
    });
    // Rounds both ends outwards to a quarter of a doubling.
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
            x(within(worth.low)),
            x(within(worth.high)),
            x(within(worth.factor))
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
fn a_factor_is_compared_with_the_reported_one() {
    let of = |low, high| Worth {
        factor: low,
        low,
        high,
    };
    assert_eq!(verdict(&of(1.2, 1.4), 1.1), "larger than reported");
    assert_eq!(verdict(&of(1.2, 1.4), 1.25), "as reported");
    assert_eq!(verdict(&of(1.2, 1.4), 1.8), "smaller than reported");
    assert_eq!(verdict(&of(0.0, 1.4), 1.25), "undecided");
}
