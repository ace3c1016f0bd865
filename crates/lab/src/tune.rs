//! Runs a sweep, and finds the best point of every run.

use std::collections::BTreeMap;

use residual_zoo_core::ModelConfig;
use residual_zoo_data::Corpus;
use serde::Serialize;

use crate::corpora::open_corpora;
use crate::stats::Estimate;
use crate::sweep::{Point, Sweep, Value};
use crate::training::train_runs;
use crate::{Error, Missing, Observation, Options, Outcome, PlannedRun, Pool};

/// What a sweep found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuning {
    /// The sweep.
    pub sweep: Sweep,
    /// The runs that were swept.
    pub runs: Vec<SweptRun>,
}

/// The points of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweptRun {
    /// Its name.
    pub run: String,
    /// Every point, in the order of the sweep.
    pub tried: Vec<TriedPoint>,
    /// The index of the point with the lowest mean validation loss; `None` if every point failed or the
    /// sweep was stopped.
    pub best: Option<usize>,
}

/// A point of a sweep, trained for every seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TriedPoint {
    /// The values of the fields.
    pub values: Vec<Value>,
    /// The assignments that make a run of it.
    pub set: Vec<String>,
    /// The share of the steps after which it was given up; 1 if it was trained to the end.
    pub share: f64,
    /// The validation loss of each seed, in nats per token.
    pub losses: Vec<f64>,
    /// Why it has no loss, if it has none.
    pub failed: Option<String>,
}

impl TriedPoint {
    /// The mean validation loss and its spread over the seeds; `None` if a seed failed.
    pub fn loss(&self) -> Option<Estimate> {
        match self.failed {
            None => Estimate::of(&self.losses),
            Some(_) => None,
        }
    }

    fn rank(&self) -> f64 {
        self.loss().map_or(f64::INFINITY, |loss| loss.mean)
    }
}

impl SweptRun {
    /// What was found at the best point.
    pub fn best(&self) -> Option<&TriedPoint> {
        self.tried.get(self.best?)
    }
}

impl Tuning {
    /// For each run whose best value of a field is the smallest or the largest that was tried, a sentence
    /// that says so.
    pub fn edges(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for run in &self.runs {
            let Some(best) = run.best() else { continue };
            for (i, swept) in self.sweep.over.iter().enumerate() {
                let number = |tried: &TriedPoint| match tried.values.get(i) {
                    Some(Value::Number(number)) => Some(*number),
                    _ => None,
                };
                let (Some(at), numbers) = (number(best), run.tried.iter().filter_map(number))
                else {
                    continue;
                };
                let range = numbers.fold((at, at), |(low, high), x| (low.min(x), high.max(x)));
                let edge = match range {
                    (low, high) if low == high => continue,
                    (low, _) if at == low => "smallest",
                    (_, high) if at == high => "largest",
                    _ => continue,
                };
                warnings.push(format!(
                    "{}: the best {}, {at}, is the {edge} that was tried; extend the range",
                    run.run,
                    swept.name()
                ));
            }
        }
        warnings
    }

    /// The runs of `planned`, each at its best point. Those without one are missing.
    pub(crate) fn tuned<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
    ) -> Result<(Vec<PlannedRun<C>>, Vec<Missing>), Error> {
        let (mut tuned, mut missing) = (Vec::new(), Vec::new());
        for (run, swept) in planned.iter().zip(&self.runs) {
            match swept.best() {
                Some(best) => tuned.push(run.clone().set(&best.set)?),
                None => missing.push(Missing {
                    run: run.name.clone(),
                    seed: None,
                    why: "every point of the sweep failed".into(),
                }),
            }
        }
        Ok((tuned, missing))
    }
}

/// A run at a point.
struct Candidate<C> {
    /// The indices of the run and of the point.
    at: (usize, usize),
    planned: PlannedRun<C>,
}

impl Sweep {
    /// Trains every run of `planned` at every point. What was stopped, and the seconds of training, are in
    /// the outcome.
    ///
    /// # Errors
    ///
    /// A point that cannot be set or trained, data that cannot be opened, runs that cannot be deleted.
    pub(crate) fn run<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
        options: &Options,
    ) -> Result<(Tuning, Outcome), Error> {
        let points = self.points();
        let mut candidates = self.candidates(planned, &points)?;
        let runs = candidates.iter().map(|candidate| candidate.planned.clone());
        let runs: Vec<PlannedRun<C>> = runs.collect();
        let corpora = open_corpora(&runs, &options.stop)?;
        // By run and point, because fewer and fewer go on.
        let at = candidates.iter().map(|candidate| candidate.at);
        let corpora: BTreeMap<(usize, usize), &Corpus> =
            at.zip(corpora.iter().map(|corpus| &**corpus)).collect();
        if options.force {
            let all: Vec<&Corpus> = corpora.values().copied().collect();
            let pool = Pool::open(options);
            pool.forget(&pool.runs(&runs, &self.seeds, &all))?;
        }
        let mut tuning = self.untrained(planned, &points);
        let mut whole = Outcome::default();
        let shares = self.halving.map_or(vec![1.0], |halving| halving.shares());
        let last = shares.len() - 1;
        for (rung, share) in shares.into_iter().enumerate() {
            let runs: Vec<_> = candidates.iter().map(|c| c.planned.clone()).collect();
            let data: Vec<&Corpus> = candidates.iter().map(|c| corpora[&c.at]).collect();
            let outcome = train_runs(&runs, &self.seeds, &data, share, options);
            whole.stopped |= outcome.stopped;
            whole.seconds += outcome.seconds;
            if whole.stopped {
                whole.missing = outcome.missing;
                return Ok((tuning, whole));
            }
            for candidate in &candidates {
                tuning.record(candidate, share, &outcome);
            }
            if rung < last {
                candidates = self.survivors(candidates, &tuning);
            }
        }
        for run in &mut tuning.runs {
            let whole = run.tried.iter().enumerate();
            let whole = whole.filter(|(_, tried)| tried.share == 1.0 && tried.loss().is_some());
            let best = whole.min_by(|(_, a), (_, b)| a.rank().total_cmp(&b.rank()));
            run.best = best.map(|(i, _)| i);
        }
        Ok((tuning, whole))
    }

    /// Every run with a model, at every point.
    fn candidates<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
        points: &[Point],
    ) -> Result<Vec<Candidate<C>>, Error> {
        let mut candidates = Vec::new();
        for (i, run) in planned.iter().enumerate() {
            for (j, point) in points.iter().enumerate() {
                let mut planned = run.clone().set(&self.set(point))?;
                planned.name = format!("{}, {}", run.name, self.describe(point));
                planned.seeds = None;
                candidates.push(Candidate {
                    at: (i, j),
                    planned,
                });
            }
        }
        Ok(candidates)
    }

    /// All points of all runs, before anything is trained.
    fn untrained<C>(&self, planned: &[PlannedRun<C>], points: &[Point]) -> Tuning {
        let untried = |point: &Point| TriedPoint {
            values: point.0.clone(),
            set: self.set(point),
            share: 0.0,
            losses: Vec::new(),
            failed: Some("not trained".into()),
        };
        let run = |planned: &PlannedRun<C>| SweptRun {
            run: planned.name.clone(),
            tried: points.iter().map(untried).collect(),
            best: None,
        };
        Tuning {
            sweep: self.clone(),
            runs: planned.iter().map(run).collect(),
        }
    }

    /// The better candidates of each run, in their order.
    fn survivors<C>(&self, candidates: Vec<Candidate<C>>, tuning: &Tuning) -> Vec<Candidate<C>> {
        let Some(halving) = self.halving else {
            return candidates;
        };
        let rank = |(run, point): (usize, usize)| tuning.runs[run].tried[point].rank();
        let mut ranked: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for candidate in &candidates {
            ranked.entry(candidate.at.0).or_default().push(candidate.at);
        }
        let mut kept = Vec::new();
        for mut of_run in ranked.into_values() {
            of_run.sort_by(|a, b| rank(*a).total_cmp(&rank(*b)));
            of_run.truncate(halving.survivors(of_run.len()));
            // A point that failed does not go on.
            kept.extend(of_run.into_iter().filter(|at| rank(*at).is_finite()));
        }
        let goes_on = |candidate: &Candidate<C>| kept.contains(&candidate.at);
        candidates.into_iter().filter(goes_on).collect()
    }
}

impl Tuning {
    /// Notes what was observed of a candidate after a share of its steps.
    fn record<C>(&mut self, candidate: &Candidate<C>, share: f64, outcome: &Outcome) {
        let (run, point) = candidate.at;
        let name = &candidate.planned.name;
        let found = outcome.observations.iter().filter(|o| o.run == *name);
        let loss = |found: &Observation| found.get("valid_loss").unwrap_or(f64::INFINITY);
        let losses: Vec<f64> = found.map(loss).collect();
        let why = || {
            let missing = outcome.missing.iter().find(|missing| missing.run == *name);
            missing.map_or("the loss is not finite".into(), |missing| {
                missing.why.clone()
            })
        };
        let is_whole = losses.len() == self.sweep.seeds.len();
        let is_finite = losses.iter().all(|loss| loss.is_finite());
        let tried = &mut self.runs[run].tried[point];
        tried.failed = (!is_whole || !is_finite).then(why);
        tried.share = share;
        tried.losses = losses;
    }
}
