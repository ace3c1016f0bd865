//! Expresses differences in loss in the papers' unit: the factor on the baseline's tokens that lowers the baseline's
//! loss by the same amount.

use std::fmt::Write as _;

use residual_zoo::core::{Cost, ModelConfig as _};
use residual_zoo::lab::ladder::{Fall, Losses, Worth};
use residual_zoo::report::si;

use super::pages::Table;
use super::papers::{PAPERS, Paper, Size};
use super::rows::{Results, Row};
use super::{find, ladder, of_paper};
use crate::suite_files::experiment;

/// The losses of the baseline of an experiment on tokens.
struct Baseline {
    /// The name of the run with 1 times the tokens.
    name: String,
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
        let first = runs.clone().find(|(run, _)| factor(run) == Some(1.0));
        let points = runs.filter_map(|(run, losses)| Some((factor(&run)?, losses)));
        let points: Vec<_> = points.collect();
        let fall = Fall::new(points).unwrap_or_else(|| panic!("{name}"));
        let (name, _) = first.unwrap_or_else(|| panic!("{name}"));
        Self { name, seeds, fall }
    }
}

/// Reads a page's table of the loss of every seed. Returns the seeds, and each run with its losses. Both are empty if
/// the page has no such table.
fn seeds_of(name: &str) -> (Vec<String>, Vec<(String, Vec<f64>)>) {
    let Some(table) = Table::read(name, "Every seed") else {
        return Default::default();
    };
    let losses = table.rows.iter().filter(|cells| cells[1] == "valid loss");
    let losses = losses.map(|cells| {
        let values = cells[2..].iter().map(|cell| cell.parse().unwrap());
        (cells[0].clone(), values.collect())
    });
    (table.columns[2..].to_vec(), losses.collect())
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

/// A gain over a baseline in the unit of tokens.
pub struct Gain {
    /// The name of the design.
    pub design: &'static str,
    /// The number of parameters of the baseline without embeddings, as shown on pages.
    pub size: String,
    pub worth: Worth,
    /// The largest factor on the tokens with which the baseline was trained.
    pub most: f64,
    /// The training FLOPs divided by the baseline's.
    pub flops: f64,
    /// The factor that the paper reports, and its measure.
    pub reported: Option<(f64, &'static str)>,
    /// A link to the experiment.
    pub link: String,
}

/// Returns the gains of a paper's designs. The gains of a design on ladders follow its claim. The claims are left out
/// until the experiment on tokens has a page.
pub fn gains(paper: &Paper, all: &[Results]) -> Vec<Gain> {
    let mut ladders = ladder::gains(paper, all);
    let mut gains = Vec::new();
    for gain in of_claims(paper, all) {
        let is_same = |rung: &Gain| rung.design == gain.design;
        let (same, others) = ladders.into_iter().partition(is_same);
        gains.push(gain);
        gains.extend::<Vec<Gain>>(same);
        ladders = others;
    }
    gains.extend(ladders);
    gains
}

/// Returns the gains of a paper's claims, in the order of [`Paper::sizes`].
fn of_claims(paper: &Paper, all: &[Results]) -> Vec<Gain> {
    let of_tokens = |name| all.iter().find(|it| it.name == name);
    let Some(tokens) = paper.tokens.and_then(of_tokens) else {
        return Vec::new();
    };
    let baseline = Baseline::read(&tokens.name);
    let of_baseline = cost(paper, &tokens.name, &baseline.name);
    let gain = |size: &'static Size| {
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
        // A design reads as many tokens as its baseline.
        let of_design = cost(paper, size.experiment, size.run);
        let flops = of_design.training_flops() as f64 / of_baseline.training_flops() as f64;
        Gain {
            design: size.name,
            size: si(of_baseline.params.other as f64),
            worth: worth.unwrap_or_else(|| panic!("{}", size.name)),
            most: baseline.fall.most(),
            flops,
            reported: size.reported,
            link: results.link(""),
        }
    };
    paper.sizes.iter().map(gain).collect()
}

/// The number of different characters of tiny shakespeare, on which these models are trained.
const CHARACTERS: usize = 65;

/// Returns the parameters and FLOPs of the model of an experiment's run.
fn cost(paper: &Paper, name: &str, run: &str) -> Cost {
    let planned = experiment(paper.directory, name, "cpu").plan(&[]).unwrap();
    let of_run = planned.into_iter().find(|it| it.name == run);
    let config = of_run.and_then(|it| it.config);
    let config = config.unwrap_or_else(|| panic!("{name}: {run}"));
    config.model.cost(config.vocabulary(CHARACTERS))
}

/// Formats a table of the gains. A factor at equal FLOPs is the gain divided by the design's FLOPs.
pub fn table(gains: &[Gain]) -> String {
    let mut text = "| design | baseline's parameters | gain here, × the tokens | × the FLOPs | factor at equal FLOPs | paper | \
                    against the paper | experiment |\n|---|---:|---|---|---|---|---|---|\n"
        .to_owned();
    for gain in gains {
        let Worth { factor, low, high } = gain.worth;
        let (reported, verdict) = match gain.reported {
            Some((factor, measure)) => (
                format!("{factor} × {measure}"),
                verdict(&gain.worth, factor),
            ),
            None => (String::new(), ""),
        };
        let interval = |by: f64| {
            let shown = |factor: f64| match factor {
                0.0 => format!("less than {:.2}", 1.0 / by),
                f64::INFINITY => format!("more than {:.2}", gain.most / by),
                _ => format!("{:.2}", factor / by),
            };
            format!("{} ({} to {})", shown(factor), shown(low), shown(high))
        };
        writeln!(
            text,
            "| {} | {} | {} | {:.2} | {} | {reported} | {verdict} | {} |",
            gain.design,
            gain.size,
            interval(1.0),
            gain.flops,
            interval(gain.flops),
            gain.link
        )
        .unwrap();
    }
    text
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
