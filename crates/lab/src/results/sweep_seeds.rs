//! Repeats the comparisons of claims on the seeds of the sweep.

use residual_zoo_report::{Cell, Column, Table};

use crate::claims::{Compared, Test};
use crate::ladder::LOSS;
use crate::stats::Estimate;
use crate::{Judgement, Observation, Observed, Tuning};

/// Returns a table with the difference of each claimed comparison of losses on the claims' seeds, on the sweep's seeds
/// and on all of them. Returns `None` if runs were not trained at their best points, or if no comparison has both.
pub(crate) fn table(
    claims: &[Judgement],
    observations: &[Observation],
    tuning: &Tuning,
) -> Option<Table> {
    if !tuning.sweep.tuned || tuning.sweep.rule.is_some() {
        return None;
    }
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for found in claims {
        if let Test::Lower(test) | Test::Higher(test) = &found.claim.test
            && let Some(pair) = pair(test)
            && !pairs.contains(&pair)
            && !pairs.contains(&(pair.1, pair.0))
        {
            pairs.push(pair);
        }
    }
    let rows = pairs
        .into_iter()
        .filter_map(|pair| row(pair, observations, tuning));
    let rows: Vec<Vec<Cell>> = rows.collect();
    let unit = Observed::of(LOSS).unit;
    (!rows.is_empty()).then(|| Table {
        heading: "On the sweep's seeds".into(),
        note: "The differences of the compared losses on the seeds that judge the claims, on the seeds of the sweep at \
               the same points, and on all of these seeds: means ± half the width of the 95 % confidence interval, with \
               the number of seeds in brackets. The sweep's seeds chose the points, so they judge no claim. If they \
               disagree with the claims' seeds, the difference varies more between seeds than the interval of one \
               group shows."
            .into(),
        columns: vec![
            Column::text("losses"),
            Column::number("claims' seeds", unit),
            Column::number("sweep's seeds", unit),
            Column::number("all", unit),
        ],
        rows,
        highlight: None,
    })
}

/// Returns the names of the two runs whose losses a claim compares.
fn pair(test: &Compared) -> Option<(&str, &str)> {
    let is_simple = test.quantity == LOSS && test.beyond.is_none();
    is_simple.then_some((&*test.run, &*test.than))
}

fn row(
    (run, than): (&str, &str),
    observations: &[Observation],
    tuning: &Tuning,
) -> Option<Vec<Cell>> {
    let losses = |run: &str| -> Vec<(u64, f64)> {
        let of_run = observations.iter().filter(|found| found.run == run);
        of_run
            .filter_map(|found| Some((found.seed?, found.get(LOSS)?)))
            .collect()
    };
    let judged = losses(run);
    let of_claims = differences(&judged, &losses(than));
    let of_sweep = |run: &str| -> Option<Vec<(u64, f64)>> {
        let swept = tuning.runs.iter().find(|swept| swept.run == run)?;
        let losses = tuning.sweep.seeds.iter().zip(&swept.best()?.losses);
        let is_other = |seed: &u64| judged.iter().all(|(other, _)| other != seed);
        let losses = losses.filter(|(seed, _)| is_other(seed));
        Some(
            losses
                .filter_map(|(seed, loss)| Some((*seed, (*loss)?)))
                .collect(),
        )
    };
    let of_sweep = differences(&of_sweep(run)?, &of_sweep(than)?);
    let all = [&*of_claims, &of_sweep].concat();
    let show = |differences: &[f64]| {
        let found = Estimate::of(differences)?;
        let shown = Observed::of(LOSS).show_interval(found.mean, found.half_width);
        Some(Cell::from(format!("{shown} ({})", found.count)))
    };
    Some(vec![
        format!("{run} minus {than}").into(),
        show(&of_claims)?,
        show(&of_sweep)?,
        show(&all)?,
    ])
}

/// Returns the difference of the losses of each seed that both runs have.
fn differences(run: &[(u64, f64)], than: &[(u64, f64)]) -> Vec<f64> {
    let of_seed = |(seed, loss): &(u64, f64)| {
        let other = than.iter().find(|(other, _)| other == seed)?;
        Some(loss - other.1)
    };
    run.iter().filter_map(of_seed).collect()
}
