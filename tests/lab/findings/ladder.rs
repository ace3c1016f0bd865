//! Reads the gains at each size from the pages of ladders.

use residual_zoo::lab::ladder::Worth;

use super::pages::Table;
use super::papers::Paper;
use super::rows::Results;
use super::worth::Gain;
use crate::suite_files::experiment;

/// Returns the gains of a paper's designs on its ladders, from the smallest to the largest size. Ladders without a page
/// have none.
pub fn gains(paper: &Paper, all: &[Results]) -> Vec<Gain> {
    let mut gains = Vec::new();
    for rungs in paper.ladders {
        let Some(results) = all.iter().find(|it| it.name == rungs.experiment) else {
            continue;
        };
        let table = Table::read(rungs.experiment, "Gains at each size")
            .unwrap_or_else(|| panic!("{}", rungs.experiment));
        let ladder = experiment(paper.directory, rungs.experiment, "cpu").ladder;
        let most = ladder.unwrap().more_tokens.last().copied().unwrap();
        let found = of_run(&table, rungs.run);
        assert!(!found.is_empty(), "{}: {}", rungs.experiment, rungs.run);
        gains.extend(found.into_iter().map(|(size, worth, flops)| Gain {
            design: rungs.design,
            size,
            worth,
            most,
            flops,
            reported: None,
            link: results.link(""),
        }));
    }
    gains
}

/// Returns the number of parameters, the gain and the factor on the FLOPs at each size of `run`.
fn of_run(table: &Table, run: &str) -> Vec<(String, Worth, f64)> {
    let of_row = |row: &Vec<String>| {
        // A name consists of the run, a comma and the size.
        let (name, _) = row[0].rsplit_once(", ")?;
        let cell = |heading| table.column(heading).map(|column| row[column].clone());
        let worth = worth(&cell("worth")?)?;
        let flops = cell("× the FLOPs")?.parse().ok()?;
        (name == run).then_some((cell("size")?, worth, flops))
    };
    table.rows.iter().filter_map(of_row).collect()
}

/// Reads a gain such as `1.07 (less than 1 to 1.15)`.
fn worth(text: &str) -> Option<Worth> {
    let factor = |text: &str| match text.split_once(" than ") {
        Some(("less", _)) => Some(0.0),
        Some(("more", _)) => Some(f64::INFINITY),
        _ => text.parse().ok(),
    };
    let (middle, rest) = text.split_once(" (")?;
    let (low, high) = rest.trim_end_matches(')').split_once(" to ")?;
    Some(Worth {
        factor: factor(middle)?,
        low: factor(low)?,
        high: factor(high)?,
    })
}

#[test]
fn the_gains_of_a_run_are_read() {
    let page = "\n## Gains at each size\n\n\
                | run | gain (nats) | worth × the tokens | × the FLOPs | size |\n| --- | ---: | ---: | ---: | ---: |\n\
                | hyper, size 1 | +0.01 ± 0.02 | 1.04 (less than 1 to 1.1) | 1.12 | 3.12k |\n\
                | hyper, size 2 | +0.05 ± 0.02 | more than 1.5 (1.41 to more than 1.5) | 1.14 | 6.2k |\n\
                | static hyper, size 1 | +0.05 ± 0.02 | 1.2 (1.1 to 1.3) | 1.14 | 3.12k |\n\
                | hyper, size 3 | – | – | – | – |\n";
    let found = of_run(&Table::of(page, "Gains at each size").unwrap(), "hyper");
    let of = |factor, low, high| Worth { factor, low, high };
    let more = f64::INFINITY;
    assert_eq!(
        found,
        [
            ("3.12k".into(), of(1.04, 0.0, 1.1), 1.12),
            ("6.2k".into(), of(more, 1.41, more), 1.14),
        ]
    );
}
