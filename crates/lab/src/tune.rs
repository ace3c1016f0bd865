//! Runs sweeps, and finds the best point of every run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::Corpus;
use serde::Serialize;

use residual_zoo_drive::training_flops;

use crate::corpora::{check_data, open_corpora};
use crate::finished::Goal;
use crate::stats::Estimate;
use crate::sweep::{OVER, Point, Sweep, Value, until};
use crate::train_runs::train_runs;
use crate::{After, DataFacts, Error, Missing, Observation, Options, Outcome, PlannedRun, Pool};

/// The results of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuning {
    /// The sweep.
    pub sweep: Sweep,
    /// The runs that were swept.
    pub runs: Vec<SweptRun>,
}

/// A swept run and its points.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweptRun {
    /// The name.
    pub run: String,
    /// Every point, in the order of the sweep; then the points beyond the ends of ranges.
    pub tried: Vec<TriedPoint>,
    /// The index of the point with the lowest mean validation loss; `None` if every point diverged, if a point could
    /// not be trained, or if the sweep was stopped.
    pub best: Option<usize>,
    /// The reason why a point could not be trained, other than divergence; a stop is such a reason. If it is set, there
    /// is no best point.
    pub broken: Option<String>,
}

/// A point of a sweep, trained with every seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TriedPoint {
    /// The values of the fields.
    pub values: Vec<Value>,
    /// The assignments of the point.
    pub set: Vec<String>,
    /// The share of the steps for which the point was trained; 1 if it was trained to the end.
    pub share: f64,
    /// The training tokens per seed.
    pub tokens: f64,
    /// The directory of each seed of the sweep in the pool; `None` if the seed failed, or if its results come from a
    /// file.
    #[serde(skip)]
    pub directories: Vec<Option<PathBuf>>,
    /// The validation loss of each seed of the sweep, in nats per token; `None` if the seed failed.
    pub losses: Vec<Option<f64>>,
    /// The reason why the point has no loss, if it has none.
    pub failed: Option<String>,
    /// Whether the point lies beyond an end of the sweep's ranges.
    #[serde(skip)]
    pub(crate) is_beyond: bool,
    /// Whether the point was not trained, or could not be trained for another reason than divergence.
    #[serde(skip)]
    pub(crate) is_untrained: bool,
}

impl TriedPoint {
    /// Returns the mean validation loss and its spread over the seeds; `None` if a seed failed.
    pub fn loss(&self) -> Option<Estimate> {
        match self.failed {
            None => Estimate::of(&self.losses.iter().copied().flatten().collect::<Vec<_>>()),
            Some(_) => None,
        }
    }

    fn rank(&self) -> f64 {
        self.loss().map_or(f64::INFINITY, |loss| loss.mean)
    }
}

impl SweptRun {
    /// Returns the reason why there is no best point.
    pub fn failure(&self) -> String {
        match &self.broken {
            Some(why) => format!("a point could not be trained: {why}"),
            None => "every point of the sweep diverged".into(),
        }
    }

    /// Returns the best point.
    pub fn best(&self) -> Option<&TriedPoint> {
        self.tried.get(self.best?)
    }
}

impl Tuning {
    /// Returns a sentence for each run whose best value of a field is at an end of the range.
    pub fn edges(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for run in &self.runs {
            let Some(best) = run.best() else {
                continue;
            };
            for (field, (swept, value)) in self.sweep.over.iter().zip(&best.values).enumerate() {
                let Value::Number(value) = value else {
                    continue;
                };
                // The points that differ from the best one in this field only.
                let is_near = |tried: &&TriedPoint| {
                    let mut others = tried.values.iter().zip(&best.values).enumerate();
                    !tried.is_untrained && others.all(|(i, (a, b))| i == field || a == b)
                };
                let tried = run.tried.iter().filter(is_near);
                let tried = tried.map(|tried| &tried.values[field]);
                if let Some(edge) = swept.edge(tried, *value) {
                    warnings.push(format!(
                        "{}: the best {}, {value}, is at the {edge} end of its range; extend the range, if the field allows it",
                        run.run,
                        swept.name()
                    ));
                }
            }
        }
        warnings
    }

    /// Returns the best point of each run, such as `GPT-2: learning rate 0.003`.
    pub fn bests(&self) -> Vec<String> {
        let best = |run: &SweptRun| match run.best() {
            Some(best) => format!(
                "{}: {}",
                run.run,
                self.sweep.describe(&Point(best.values.clone()))
            ),
            None => format!("{}: no point, because {}", run.run, run.failure()),
        };
        self.runs.iter().map(best).collect()
    }

    /// Returns the name of the run and the values at each point, keyed by the name of the point. A tuned run has the
    /// values of its best point.
    pub(crate) fn values(&self) -> BTreeMap<String, (&str, &[Value])> {
        let mut values = BTreeMap::new();
        for run in &self.runs {
            for tried in &run.tried {
                let point = self.sweep.describe(&Point(tried.values.clone()));
                values.insert(format!("{}, {point}", run.run), (&*run.run, &*tried.values));
            }
            if let Some(best) = run.best().filter(|_| self.sweep.tuned) {
                values.insert(run.run.clone(), (&*run.run, &*best.values));
            }
        }
        values
    }

    /// Returns the training tokens of all points and seeds.
    pub fn tokens(&self) -> f64 {
        let of_seeds = self.sweep.seeds.len() as f64;
        self.points().map(|tried| tried.tokens * of_seeds).sum()
    }

    /// Returns the points of all runs.
    pub(crate) fn points(&self) -> impl Iterator<Item = &TriedPoint> {
        self.runs.iter().flat_map(|run| &run.tried)
    }

    /// Returns each run of `planned` that has a best point, set to that point, for all seeds.
    fn bests_of<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
    ) -> Result<Vec<Candidate<C>>, Error> {
        let mut bests = Vec::new();
        for (i, (run, swept)) in planned.iter().zip(&self.runs).enumerate() {
            if let (Some(at), Some(best)) = (swept.best, swept.best()) {
                let mut planned = run.clone().set(&best.set, OVER)?;
                planned.seeds = None;
                bests.push(Candidate {
                    at: (i, at),
                    planned,
                });
            }
        }
        Ok(bests)
    }

    /// Returns the runs of `planned`, each at its best point. A run without a best point is returned as missing.
    pub(crate) fn tuned<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
    ) -> Result<(Vec<PlannedRun<C>>, Vec<Missing>), Error> {
        let (mut tuned, mut missing) = (Vec::new(), Vec::new());
        for (run, swept) in planned.iter().zip(&self.runs) {
            match swept.best() {
                Some(best) => {
                    let mut run = run.clone().set(&best.set, OVER)?;
                    // Adds the values of the best point, so that charts and tables can show them.
                    for (swept, value) in self.sweep.over.iter().zip(&best.values) {
                        if let Value::Number(value) = value {
                            run.values.insert(swept.name(), *value);
                        }
                    }
                    tuned.push(run);
                }
                None => missing.push(Missing {
                    run: run.name.clone(),
                    seed: None,
                    why: swept.failure(),
                    diverged: swept.broken.is_none(),
                }),
            }
        }
        Ok((tuned, missing))
    }
}

/// Groups the indices of runs by generation: first the runs with new weights, then the runs that start from them, and
/// so on.
fn generations<C>(planned: &[PlannedRun<C>]) -> Vec<Vec<usize>> {
    let mut generations: Vec<Vec<usize>> = Vec::new();
    let mut depth: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, run) in planned.iter().enumerate() {
        let parents = run.after.iter().flat_map(After::runs);
        let deepest = parents.filter_map(|name| depth.get(&**name)).max();
        let own = deepest.map_or(0, |depth| depth + 1);
        depth.insert(&run.name, own);
        if own == generations.len() {
            generations.push(Vec::new());
        }
        generations[own].push(i);
    }
    generations
}

/// A run at a point.
#[derive(Clone)]
struct Candidate<C> {
    /// The index of the run and the index of the point.
    at: (usize, usize),
    planned: PlannedRun<C>,
}

impl Sweep {
    /// Trains every run of `planned` at every point. `claimed` is the number of seeds with which the runs are trained
    /// afterwards, for the estimate of the remaining time.
    ///
    /// # Errors
    ///
    /// Returns an error if a point cannot be set or trained, the data cannot be opened, or runs cannot be deleted.
    pub(crate) fn run<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
        claimed: usize,
        options: &Options,
    ) -> Result<(Tuning, Outcome), Error> {
        let points = self.points();
        let candidates = self.candidates(planned, &points)?;
        let runs = candidates.iter().map(|candidate| candidate.planned.clone());
        let runs: Vec<PlannedRun<C>> = runs.collect();
        let corpora = open_corpora(&runs, options)?;
        // A map by run, because later rungs have fewer candidates. All points of a run have the same data.
        let at = candidates.iter().map(|candidate| candidate.at.0);
        let corpora: BTreeMap<usize, &Corpus> =
            at.zip(corpora.iter().map(|corpus| &**corpus)).collect();
        let data: Vec<&Corpus> = candidates.iter().map(|it| corpora[&it.at.0]).collect();
        let mut whole = Outcome {
            data: DataFacts::of_runs(&runs, &data),
            ..Outcome::default()
        };
        if options.force {
            options.backend.check_device(options.gpu)?;
            // Also deletes the runs that start from the weights of these runs.
            let pool = Pool::open(options);
            pool.forget(&pool.runs(&runs, &self.seeds, &data))?;
        }
        let mut tuning = self.untrained(planned, &points);
        let options = &Options {
            to_come: claimed as f64 * work_of_first_points(&candidates, &corpora),
            ..options.clone()
        };
        let rungs = self.rungs(&runs);
        for generation in generations(planned) {
            let of_generation = |candidate: &Candidate<C>| generation.contains(&candidate.at.0);
            let of_generation = candidates.iter().filter(|it| of_generation(it));
            let mut candidates: Vec<Candidate<C>> = of_generation.cloned().collect();
            while !candidates.is_empty() {
                for (rung, share) in rungs.iter().enumerate() {
                    // A run that starts from an earlier run starts from the best point of that run.
                    let mut parents = tuning.bests_of(planned)?;
                    parents.retain(|parent| !generation.contains(&parent.at.0));
                    let turns: Vec<&Candidate<C>> = parents.iter().chain(&candidates).collect();
                    let runs: Vec<_> = turns.iter().map(|turn| turn.planned.clone()).collect();
                    let data: Vec<&Corpus> = turns.iter().map(|turn| corpora[&turn.at.0]).collect();
                    let mut outcome =
                        train_runs(&runs, &self.seeds, &data, Goal::Point(*share), options);
                    whole.finished.extend(std::mem::take(&mut outcome.finished));
                    whole.stopped |= outcome.stopped;
                    whole.seconds.append(&mut outcome.seconds);
                    if whole.stopped {
                        whole.missing = outcome.missing;
                        // A run whose points have all diverged has no candidate left.
                        let left = |i: usize, run: &SweptRun| {
                            candidates.iter().any(|candidate| candidate.at.0 == i)
                                || run.tried.iter().all(|tried| tried.share == 0.0)
                        };
                        for (i, run) in tuning.runs.iter_mut().enumerate() {
                            if left(i, run) {
                                run.best = None;
                                run.broken.get_or_insert("the sweep was stopped".into());
                            }
                        }
                        return Ok((tuning, whole));
                    }
                    for candidate in &candidates {
                        tuning.record(candidate, *share, &outcome);
                    }
                    // The observation of a later rung replaces the observation of an earlier one.
                    for mut found in outcome.observations {
                        found.rows = Vec::new();
                        let is_same = |other: &Observation| {
                            (&other.run, other.seed) == (&found.run, found.seed)
                        };
                        whole.observations.retain(|other| !is_same(other));
                        whole.observations.push(found);
                    }
                    // A point beyond the grid that cannot be trained is the end of its range.
                    let is_beyond = |name: &str| {
                        let mut beyond = candidates.iter().filter(|it| it.at.1 >= points.len());
                        beyond.any(|candidate| candidate.planned.name == name)
                    };
                    let broken = outcome.missing.into_iter();
                    let broken = broken.filter(|it| !it.diverged && !is_beyond(&it.run));
                    whole.missing.extend(broken);
                    if rung + 1 < rungs.len() {
                        candidates = self.survivors(candidates, &tuning);
                    }
                }
                tuning.choose();
                candidates = self.widen(planned, &generation, &corpora, &mut tuning);
                if options.force {
                    let runs: Vec<_> = candidates.iter().map(|it| it.planned.clone()).collect();
                    let data: Vec<&Corpus> =
                        candidates.iter().map(|it| corpora[&it.at.0]).collect();
                    let pool = Pool::open(options);
                    pool.forget(&pool.runs(&runs, &self.seeds, &data))?;
                }
            }
        }
        Ok((tuning, whole))
    }

    /// Returns the share of the steps at which each rung ends (see [`Halving`](crate::sweep::Halving)). Without
    /// halving, the only rung ends at the last step.
    fn rungs<C>(&self, runs: &[PlannedRun<C>]) -> Vec<f64> {
        let trains = runs.iter().filter_map(|run| run.config.as_ref());
        let trains: Vec<_> = trains.map(|config| &config.train).collect();
        match self.halving {
            Some(halving) => halving.shares(&trains),
            None => vec![1.0],
        }
    }

    /// Returns the number of rungs that halving has and the number that the sweep asks for, if the first is smaller.
    pub(crate) fn fewer_rungs<C>(&self, runs: &[PlannedRun<C>]) -> Option<[usize; 2]> {
        let asked = self.halving?.rungs;
        let found = self.rungs(runs).len();
        (found < asked).then_some([found, asked])
    }

    /// Checks that every point can be set and gives a valid config. Returns the number of points of a run.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid point.
    pub fn check_points<C: ModelConfig>(&self, planned: &[PlannedRun<C>]) -> Result<usize, Error> {
        let points = self.points();
        for candidate in self.candidates(planned, &points)? {
            if let Some(config) = &candidate.planned.config {
                let (run, point) = candidate.at;
                let (run, set) = (&planned[run].name, self.set(&points[point]).join(", "));
                let place = format!("run `{run}`, {OVER} {set}");
                config.validate(1).map_err(|error| {
                    ConfigError::new(format!("{place}: {}", error.field), error.problem)
                })?;
            }
        }
        Ok(points.len())
    }

    /// Returns every run at every point. The name of each run includes its point.
    pub(crate) fn runs<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
    ) -> Result<Vec<PlannedRun<C>>, Error> {
        let candidates = self.candidates(planned, &self.points())?.into_iter();
        Ok(candidates.map(|candidate| candidate.planned).collect())
    }

    /// Returns every run at every point that it may reach by wider ranges and that can be set.
    pub(crate) fn possible_runs<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
    ) -> Vec<PlannedRun<C>> {
        let points = self.possible();
        let all = planned.iter().flat_map(|run| {
            let points = points.iter();
            points.filter_map(|point| Some(self.candidate(run, (0, 0), point).ok()?.planned))
        });
        all.collect()
    }

    /// Adds the points beyond the ends of ranges to the runs of a generation whose best point is at an end. Returns
    /// these runs at these points.
    fn widen<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
        generation: &[usize],
        corpora: &BTreeMap<usize, &Corpus>,
        tuning: &mut Tuning,
    ) -> Vec<Candidate<C>> {
        let mut candidates = Vec::new();
        for i in generation.iter().copied() {
            let run = &mut tuning.runs[i];
            let Some(best) = run.best().map(|best| best.values.clone()) else {
                continue;
            };
            let tried: Vec<&[Value]> = run.tried.iter().map(|tried| &*tried.values).collect();
            for point in self.wider(&tried, &best) {
                let at = (i, run.tried.len());
                let is_fit = |candidate: &Candidate<C>| {
                    let PlannedRun { name, config, .. } = &candidate.planned;
                    let config = config.as_ref();
                    config.is_none_or(|config| check_data(name, config, corpora[&i]).is_ok())
                };
                if let Some(candidate) = self.candidate(&planned[i], at, &point).ok().filter(is_fit)
                {
                    run.tried.push(TriedPoint {
                        is_beyond: true,
                        ..self.untried(&point)
                    });
                    candidates.push(candidate);
                }
            }
        }
        candidates
    }

    /// Returns every run at every point.
    fn candidates<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
        points: &[Point],
    ) -> Result<Vec<Candidate<C>>, Error> {
        let mut candidates = Vec::new();
        for (i, run) in planned.iter().enumerate() {
            for (j, point) in points.iter().enumerate() {
                candidates.push(self.candidate(run, (i, j), point)?);
            }
        }
        Ok(candidates)
    }

    fn candidate<C: ModelConfig>(
        &self,
        run: &PlannedRun<C>,
        at: (usize, usize),
        point: &Point,
    ) -> Result<Candidate<C>, Error> {
        let mut planned = run.clone().set(&self.set(point), OVER)?;
        planned.name = format!("{}, {}", run.name, self.describe(point));
        planned.seeds = None;
        Ok(Candidate { at, planned })
    }

    fn untried(&self, point: &Point) -> TriedPoint {
        TriedPoint {
            values: point.0.clone(),
            set: self.set(point),
            share: 0.0,
            tokens: 0.0,
            directories: Vec::new(),
            losses: Vec::new(),
            failed: Some("not trained".into()),
            is_beyond: false,
            is_untrained: true,
        }
    }

    /// Returns all points of all runs, before training.
    fn untrained<C>(&self, planned: &[PlannedRun<C>], points: &[Point]) -> Tuning {
        let run = |planned: &PlannedRun<C>| SweptRun {
            run: planned.name.clone(),
            tried: points.iter().map(|point| self.untried(point)).collect(),
            best: None,
            broken: None,
        };
        Tuning {
            sweep: self.clone(),
            runs: planned.iter().map(run).collect(),
        }
    }

    /// Returns the candidates of each run that continue to the next rung, in order.
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
            // A point that failed does not continue.
            kept.extend(of_run.into_iter().filter(|at| rank(*at).is_finite()));
        }
        let goes_on = |candidate: &Candidate<C>| kept.contains(&candidate.at);
        candidates.into_iter().filter(goes_on).collect()
    }
}

/// Returns the sum of the training FLOPs of all runs, each at its first point.
fn work_of_first_points<C: ModelConfig>(
    candidates: &[Candidate<C>],
    corpora: &BTreeMap<usize, &Corpus>,
) -> f64 {
    let first = candidates.iter().filter(|candidate| candidate.at.1 == 0);
    let work = |first: &Candidate<C>| {
        let config = first.planned.config.as_ref()?;
        Some(training_flops(config, corpora[&first.at.0]))
    };
    first.filter_map(work).sum()
}

impl Tuning {
    /// Chooses the best point of every run among the points that were trained to the end.
    fn choose(&mut self) {
        for run in &mut self.runs {
            let whole = run.tried.iter().enumerate();
            let whole = whole.filter(|(_, tried)| tried.share == 1.0 && tried.loss().is_some());
            let best = whole.min_by(|(_, a), (_, b)| a.rank().total_cmp(&b.rank()));
            run.best = best.map(|(i, _)| i).filter(|_| run.broken.is_none());
        }
    }

    /// Records the observations of a candidate after a share of its steps.
    fn record<C: ModelConfig>(&mut self, candidate: &Candidate<C>, share: f64, outcome: &Outcome) {
        let (run, point) = candidate.at;
        let name = &candidate.planned.name;
        let found = outcome.observations.iter().filter(|o| o.run == *name);
        let missing = outcome.missing.iter().filter(|m| m.run == *name);
        let missing: Vec<&Missing> = missing.collect();
        // Beyond the grid, a point that cannot be trained is the end of its range.
        let is_beyond = self.runs[run].tried[point].is_beyond;
        if let Some(broken) = missing.iter().find(|missing| !missing.diverged) {
            match is_beyond {
                true => self.runs[run].tried[point].is_untrained = true,
                false => self.runs[run].broken = Some(broken.to_string()),
            }
        } else {
            self.runs[run].tried[point].is_untrained = false;
        }
        let loss = |found: &Observation| found.get("valid_loss").unwrap_or(f64::INFINITY);
        // A run with trained initial weights starts at a low loss, which may rise a little on new data. Such a rise is
        // not a divergence.
        let is_new = candidate.planned.after.is_none();
        let rose = |found: &&Observation| {
            let first = found.get("first_valid_loss").filter(|_| is_new);
            first.is_some_and(|first| loss(found) > first)
        };
        let found: Vec<&Observation> = found.collect();
        let of_seed = |seed: &u64| found.iter().find(|found| found.seed == Some(*seed));
        let is_whole = self.sweep.seeds.iter().all(|seed| of_seed(seed).is_some());
        let good = |found: &&&Observation| !rose(found) && loss(found).is_finite();
        let losses = self.sweep.seeds.iter().map(|seed| {
            let found = of_seed(seed).filter(good);
            found.map(|found| loss(found))
        });
        let losses: Vec<Option<f64>> = losses.collect();
        let risen = found.iter().copied().find(rose);
        let why = || {
            if let Some(found) = risen {
                let first = found.get("first_valid_loss").unwrap_or(f64::NAN);
                return format!(
                    "diverged: the loss rose from {first:.2} to {:.2}",
                    loss(found)
                );
            }
            let missing = missing.first();
            missing.map_or("the loss is not finite".into(), |missing| {
                missing.why.clone()
            })
        };
        let tried = &mut self.runs[run].tried[point];
        tried.failed = losses.iter().any(Option::is_none).then(why);
        if let Some(config) = candidate.planned.config.as_ref().filter(|_| is_whole) {
            let steps = until(&config.train, share);
            tried.share = steps as f64 / config.train.steps as f64;
            tried.tokens = (steps * config.tokens_per_step()) as f64;
        }
        let directory = |seed: &u64| of_seed(seed)?.directory.clone();
        tried.directories = self.sweep.seeds.iter().map(directory).collect();
        tried.losses = losses;
    }
}
