//! Expresses differences in loss in the papers' unit: the factor on the baseline's tokens that lowers the baseline's
//! loss by the same amount.

use std::fmt::Write as _;
use std::fs;

use residual_zoo::lab::Estimate;
use residual_zoo_testing::root;

use super::papers::{PAPERS, Paper, Size};
use super::rows::{Results, Row};
use super::{find, of_paper};

/// The losses of a baseline, by its number of training tokens.
pub struct Fall {
    seeds: Vec<String>,
    /// For each factor on the tokens, in increasing order, the loss of each seed. The first factor is 1.
    points: Vec<(f64, Vec<f64>)>,
}

/// A model that is compared with the baseline.
pub enum Compared {
    /// The loss of each seed, for the seeds of the baseline.
    SameSeeds(Vec<f64>),
    /// For other seeds, the difference from the baseline, and half the width of its 95 % interval.
    OtherSeeds(f64, f64),
}

/// The factor on the baseline's tokens at which the baseline has the same loss as a model.
#[derive(Debug, PartialEq)]
pub struct Worth {
    /// The factor: 0 if it is below 1, and infinite if it is above the largest factor that was trained.
    pub factor: f64,
    /// The 95 % interval.
    pub low: f64,
    pub high: f64,
}

impl Fall {
    /// Returns the loss of each seed at a factor, interpolated linearly in the logarithm of the factor.
    fn at(&self, factor: f64) -> Vec<f64> {
        let last = self.points.len() - 2;
        let is_within = |i: &usize| factor <= self.points[i + 1].0;
        let i = (0..last).find(is_within).unwrap_or(last);
        let ((f0, losses), (f1, next)) = (&self.points[i], &self.points[i + 1]);
        let part = (factor / f0).log2() / (f1 / f0).log2();
        let pairs = losses.iter().zip(next);
        pairs
            .map(|(loss, next)| loss + part * (next - loss))
            .collect()
    }

    /// Returns the difference of the model from the baseline with `factor` × its tokens, and half the width of the
    /// interval.
    fn difference(&self, model: &Compared, factor: f64) -> (f64, f64) {
        let baseline = self.at(factor);
        let mean = |from: &[f64]| {
            let pairs = from.iter().zip(&baseline);
            let found: Vec<f64> = pairs.map(|(a, b)| a - b).collect();
            let found = Estimate::of(&found).unwrap();
            (found.mean, found.half_width)
        };
        match model {
            Compared::SameSeeds(losses) => mean(losses),
            Compared::OtherSeeds(difference, half_width) => {
                let (fall, of_fall) = mean(&self.points[0].1);
                (difference + fall, half_width.hypot(of_fall))
            }
        }
    }

    /// Finds the factor at which the difference is 0, and the interval of factors at which the difference is not
    /// significant.
    pub fn worth(&self, model: &Compared) -> Worth {
        const STEPS: usize = 4000;
        let most = self.points.last().unwrap().0;
        let factors: Vec<f64> = (0..=STEPS)
            .map(|i| most.powf(i as f64 / STEPS as f64))
            .collect();
        let differences: Vec<_> = factors.iter().map(|f| self.difference(model, *f)).collect();
        // Finds the first factor at which a bound of the difference is not negative.
        let crosses = |bound: &dyn Fn(&(f64, f64)) -> f64| {
            let is_positive = |difference| bound(difference) >= 0.0;
            match differences.iter().position(is_positive) {
                Some(0) => 0.0,
                Some(i) => factors[i],
                None => f64::INFINITY,
            }
        };
        Worth {
            factor: crosses(&|(mean, _)| *mean),
            low: crosses(&|(mean, half_width)| mean + half_width),
            high: crosses(&|(mean, half_width)| mean - half_width),
        }
    }

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
        assert!(points.len() > 1 && points[0].0 == 1.0, "{name}");
        Self { seeds, points }
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

impl Worth {
    /// Compares the interval with the factor that the paper reports.
    fn verdict(&self, reported: f64) -> &'static str {
        match () {
            () if self.high < reported => "smaller than reported",
            () if self.low > reported => "larger than reported",
            () if self.low < 1.0 => "undecided",
            () => "as reported",
        }
    }
}

/// Formats a factor with two decimals, or the limit of the trained factors that it exceeds.
fn shown(factor: f64) -> String {
    match factor {
        f64::INFINITY => "more than 2".into(),
        0.0 => "less than 1".into(),
        _ => format!("{factor:.2}"),
    }
}

/// Returns the sizes of a paper's claims, in the order of [`Paper::sizes`]. The list is empty until the experiment on
/// tokens has a page.
pub fn sizes(paper: &Paper, all: &[Results]) -> Vec<(&'static Size, String, Worth)> {
    let of_tokens = |name| all.iter().find(|it| it.name == name);
    let Some(tokens) = paper.tokens.and_then(of_tokens) else {
        return Vec::new();
    };
    let fall = Fall::read(&tokens.name);
    let size = |size: &'static Size| {
        let (results, row) = find(all, (size.experiment, size.claim));
        let (seeds, runs) = seeds_of(size.experiment);
        let own = runs.into_iter().find(|(run, _)| run == size.run);
        let model = match own.filter(|_| seeds == fall.seeds) {
            Some((_, losses)) => Compared::SameSeeds(losses),
            None => {
                let (difference, half_width) =
                    difference(row).unwrap_or_else(|| panic!("{}", row.found));
                Compared::OtherSeeds(difference, half_width)
            }
        };
        (size, results.link(""), fall.worth(&model))
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
            Some((factor, measure)) => (format!("{factor} × {measure}"), worth.verdict(factor)),
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
fn a_model_is_worth_the_tokens_at_which_the_baseline_has_its_loss() {
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-3, "{a} is not {b}");
    let fall = |twice: [f64; 2], most: [f64; 2]| Fall {
        seeds: vec!["seed 1".into(), "seed 2".into()],
        points: vec![
            (1.0, vec![1.0, 1.2]),
            (2.0, twice.to_vec()),
            (4.0, most.to_vec()),
        ],
    };
    let exact = fall([0.9, 1.1], [0.85, 1.05]);
    // The gain is half a doubling, √2 times the tokens. The interval ends at 2^0.3 and 2^0.7.
    let worth = exact.worth(&Compared::OtherSeeds(-0.05, 0.02));
    near(worth.factor, 2f64.sqrt());
    near(worth.low, 1.2311);
    near(worth.high, 1.6245);
    // In the second piece, a doubling lowers the loss by 0.05.
    near(
        exact.worth(&Compared::OtherSeeds(-0.125, 0.0)).factor,
        2f64.powf(1.5),
    );
    // These gains are outside the trained factors.
    let (less, more) = (
        Compared::OtherSeeds(0.1, 0.0),
        Compared::OtherSeeds(-0.2, 0.1),
    );
    assert_eq!(
        exact.worth(&less),
        Worth {
            factor: 0.0,
            low: 0.0,
            high: 0.0
        }
    );
    let more = exact.worth(&more);
    assert_eq!((more.factor, more.high), (f64::INFINITY, f64::INFINITY));
    near(more.low, 2.0);
    // With the same seeds, the differences between seeds cancel.
    let paired = exact.worth(&Compared::SameSeeds(vec![0.95, 1.15]));
    near(paired.factor, 2f64.sqrt());
    near(paired.low, paired.high);
    let unequal = fall([0.9, 1.1], [0.8, 1.1]);
    let unequal = unequal.worth(&Compared::SameSeeds(vec![0.87, 1.09]));
    assert!(unequal.low < unequal.factor && unequal.factor < unequal.high);
    let of = |low, high| Worth {
        factor: low,
        low,
        high,
    };
    assert_eq!(of(1.2, 1.4).verdict(1.1), "larger than reported");
    assert_eq!(of(1.2, 1.4).verdict(1.25), "as reported");
    assert_eq!(of(1.2, 1.4).verdict(1.8), "smaller than reported");
    assert_eq!(of(0.0, 1.4).verdict(1.25), "undecided");
    assert_eq!(of(0.0, 1.1).verdict(1.25), "smaller than reported");
}
