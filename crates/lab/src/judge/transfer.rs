//! Tests whether the best setting of one model is good for another.

use std::collections::{BTreeMap, BTreeSet};

use residual_zoo_report::sig;

use super::{Finding, Found, ONE_SEED};
use crate::claims::Transfers;
use crate::stats::Estimate;
use crate::{Observation, Observed};

/// Tests whether a transfer costs less than another one.
pub(super) fn transfers(observations: &[Observation], test: &Transfers) -> Found {
    let one = Cost::of(observations, test, [&test.from, &test.to])?;
    let other = Cost::of(observations, test, [&test.than.from, &test.than.to])?;
    let minus = |(seed, a): (&Option<u64>, &f64)| Some(other.of_seed.get(seed)? - a);
    let gains: Vec<f64> = one.of_seed.iter().filter_map(minus).collect();
    let found = Estimate::of(&gains).ok_or("the lines have no seed in common")?;
    let of = Observed::of(&test.quantity);
    let because = [one.shown(test, &of), other.shown(test, &of)].join("; ");
    let because = match found.count {
        1 => format!("{because}; {ONE_SEED}"),
        count => {
            let interval = format!(
                "{} ± {}",
                of.show_difference(-found.mean),
                of.show_difference(found.half_width)
            );
            let detectable = of.show_difference(found.detectable());
            format!("{because}; difference {interval} over {count} seeds, detectable {detectable}")
        }
    };
    Ok(Finding::sign(found, false, because))
}

/// The cost of a transfer.
struct Cost<'a> {
    lines: [&'a str; 2],
    /// The best value on each line over all seeds, and whether it is the first or the last value.
    best: [(f64, bool); 2],
    /// The cost for each seed, at the best values according to the other seeds.
    of_seed: BTreeMap<Option<u64>, f64>,
}

/// The quantity, by the value along a line and then by seed. Keys are the bits of positive numbers, which sort like the
/// numbers.
type ByValue = BTreeMap<u64, BTreeMap<Option<u64>, f64>>;

impl<'a> Cost<'a> {
    fn of(
        observations: &[Observation],
        test: &Transfers,
        [from, to]: [&'a str; 2],
    ) -> Result<Self, String> {
        let [on_from, on_to] = [from, to].map(|line| by_value(observations, test, line));
        let mut of_seed = BTreeMap::new();
        let seeds: BTreeSet<&Option<u64>> = on_to.values().flat_map(BTreeMap::keys).collect();
        for seed in seeds {
            let without = Some(*seed).filter(|_| has_others(&on_from, &on_to));
            let tuned = best(&on_from, without, from)?;
            let own = best(&on_to, without, to)?;
            let there = on_to.get(&tuned);
            let there = there.ok_or(format!("{to} has no run at the best value of {from}"))?;
            if let (Some(there), Some(own)) = (there.get(seed), on_to[&own].get(seed)) {
                of_seed.insert(*seed, there - own);
            }
        }
        let shown = |line: &ByValue, name| {
            let best = best(line, None, name)?;
            let edges = [line.keys().next(), line.keys().next_back()];
            Ok::<_, String>((f64::from_bits(best), edges.contains(&Some(&best))))
        };
        Ok(Self {
            lines: [from, to],
            best: [shown(&on_from, from)?, shown(&on_to, to)?],
            of_seed,
        })
    }

    /// Describes the cost as `from width 32 to width 128: best learning rate 0.01 and 0.02 (an edge), cost 0.0123`.
    fn shown(&self, test: &Transfers, of: &Observed) -> String {
        let [from, to] = self.lines;
        let [tuned, own] = self.best.map(|(value, is_edge)| {
            let edge = if is_edge { " (an edge)" } else { "" };
            sig(value, 3) + edge
        });
        let mean = self.of_seed.values().sum::<f64>() / self.of_seed.len() as f64;
        let cost = of.with_unit(of.show_difference(mean));
        format!(
            "from {from} to {to}: best {} {tuned} and {own}, cost {cost}",
            test.along
        )
    }
}

fn by_value(observations: &[Observation], test: &Transfers, line: &str) -> ByValue {
    let mut found = ByValue::new();
    for observation in observations.iter().filter(|found| found.line == line) {
        if let (Some(x), Some(y)) = (
            observation.get(&test.along),
            observation.get(&test.quantity),
        ) {
            let of_seeds = found.entry(x.abs().to_bits()).or_default();
            of_seeds.insert(observation.seed, y);
        }
    }
    found
}

/// Whether each value has several seeds, so that the best value for a seed can be chosen without that seed.
fn has_others(from: &ByValue, to: &ByValue) -> bool {
    let mut values = from.values().chain(to.values());
    values.all(|of_seeds| of_seeds.len() > 1)
}

/// Returns the value with the lowest mean over the seeds except `without`.
fn best(line: &ByValue, without: Option<Option<u64>>, name: &str) -> Result<u64, String> {
    let mean = |of_seeds: &BTreeMap<Option<u64>, f64>| {
        let others = of_seeds.iter().filter(|(seed, _)| Some(**seed) != without);
        let values: Vec<f64> = others.map(|(_, value)| *value).collect();
        Estimate::of(&values).map_or(f64::INFINITY, |found| found.mean)
    };
    let best = line.iter().min_by(|a, b| mean(a.1).total_cmp(&mean(b.1)));
    best.map(|(value, _)| *value)
        .ok_or(format!("{name} is missing"))
}
