//! Runs sweeps: trains every run at every point, round by round.

use std::collections::{BTreeMap, BTreeSet};

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::Corpus;
use residual_zoo_drive::training_flops;

use crate::corpora::{check_data, open_corpora};
use crate::finished::Goal;
use crate::ladder::{parameters, unequal};
use crate::sweep::{OVER, Point, Sweep, Value, rounded, until};
use crate::train_runs::train_runs;
use crate::tuning::{SweptRun, TriedPoint, Tuning};
use crate::{After, DataFacts, Error, Missing, Observation, Options, Outcome, PlannedRun, Pool};

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
        let (all, planned) = (planned, &self.swept(planned)[..]);
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
        let whole = Outcome {
            data: DataFacts::of_runs(&runs, &data),
            ..Outcome::default()
        };
        if options.force {
            options.backend.check_device(options.gpu)?;
            // Also deletes the runs that start from the weights of these runs.
            let pool = Pool::open(options);
            pool.forget(&pool.runs(&runs, &self.seeds, &data))?;
        }
        let work = match &self.rule {
            Some(_) => work(all, &candidates, &corpora),
            None => {
                let first = candidates.iter().filter(|candidate| candidate.at.1 == 0);
                let first: Vec<_> = first.map(|candidate| candidate.planned.clone()).collect();
                work(&first, &candidates, &corpora)
            }
        };
        let options = &Options {
            to_come: claimed as f64 * work,
            ..options.clone()
        };
        let mut search = Search {
            sweep: self,
            planned,
            rungs: self.rungs(&runs),
            corpora,
            options,
            tuning: self.untrained(planned, &points),
            whole,
        };
        for generation in generations(planned) {
            let of_generation = |candidate: &&Candidate<C>| generation.contains(&candidate.at.0);
            let of_generation = candidates.iter().filter(of_generation);
            search.generation(&generation, of_generation.cloned().collect())?;
            if search.whole.stopped {
                break;
            }
        }
        Ok((search.tuning, search.whole))
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

    /// Checks that every point can be set and gives a valid config. Returns each swept run at every point.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid point.
    pub fn check_points<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
    ) -> Result<Vec<AtPoints<C>>, Error> {
        let names = planned.iter().map(|run| run.name.as_str());
        let names: BTreeSet<&str> = names.collect();
        let planned = self.swept(planned);
        let points = self.points();
        let runs = planned.iter().map(|run| AtPoints {
            run: run.name.clone(),
            points: Vec::new(),
        });
        let mut at_points: Vec<AtPoints<C>> = runs.collect();
        for candidate in self.candidates(&planned, &points)? {
            let (run, point) = candidate.at;
            if let Some(config) = &candidate.planned.config {
                let (run, set) = (&planned[run].name, self.set(&points[point]).join(", "));
                let place = format!("run `{run}`, {OVER} {set}");
                config.validate(1).map_err(|error| {
                    ConfigError::new(format!("{place}: {}", error.field), error.problem)
                })?;
            }
            self.check_point(&planned[run], &candidate.planned)?;
            at_points[run].points.push(candidate.planned);
        }
        let beyond = self.possible();
        for run in &planned {
            self.check_between(run, &points)?;
            for point in points.iter().chain(&beyond) {
                let name = self.name(run, point);
                if names.contains(&*name) {
                    let problem = format!(
                        "would train a point called `{name}`, which is the name of a run; rename the run"
                    );
                    return Err(ConfigError::new("sweep", problem).into());
                }
            }
        }
        Ok(at_points)
    }

    /// Checks that, on a ladder, a point changes neither the size of the model nor its tokens, sequences and validation.
    fn check_point<C: ModelConfig>(
        &self,
        run: &PlannedRun<C>,
        at_point: &PlannedRun<C>,
    ) -> Result<(), Error> {
        if run.rung.is_none() {
            return Ok(());
        }
        let change = match unequal((at_point, 0.0), (run, 0.0)) {
            Some(difference) => Some(difference),
            None if parameters(run)? != parameters(at_point)? => {
                Some("another number of parameters".into())
            }
            None => None,
        };
        match change {
            None => Ok(()),
            Some(change) => {
                let problem = format!(
                    "gives `{}` {change}, which the sizes of a ladder set",
                    at_point.name
                );
                Err(ConfigError::new(OVER, problem).into())
            }
        }
    }

    /// Checks that a run accepts a value between two points, if a rule gives such values.
    fn check_between<C: ModelConfig>(
        &self,
        run: &PlannedRun<C>,
        points: &[Point],
    ) -> Result<(), Error> {
        let [first, second, ..] = points else {
            return Ok(());
        };
        let values = [&first.0[..], &second.0[..]];
        let (Some(_), [[Value::Number(a)], [Value::Number(b)]]) = (&self.rule, values) else {
            return Ok(());
        };
        let between = Point(vec![Value::Number(rounded((a * b).sqrt()))]);
        match self.candidate(run, (0, 0), &between) {
            Ok(_) => Ok(()),
            Err(error) => {
                let problem =
                    format!("has a rule, which gives values between those of the range: {error}");
                Err(ConfigError::new("sweep", problem).into())
            }
        }
    }

    /// Returns the name of a run at a point.
    fn name<C>(&self, run: &PlannedRun<C>, point: &Point) -> String {
        format!("{}, {}", run.name, self.describe(point))
    }

    /// Returns every run at every point. The name of each run includes its point.
    pub(crate) fn runs<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
    ) -> Result<Vec<PlannedRun<C>>, Error> {
        let candidates = self
            .candidates(&self.swept(planned), &self.points())?
            .into_iter();
        Ok(candidates.map(|candidate| candidate.planned).collect())
    }

    /// Returns every run at every point that it may reach by wider ranges and that can be set.
    pub(crate) fn possible_runs<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
    ) -> Vec<PlannedRun<C>> {
        let points = self.possible();
        let planned = self.swept(planned);
        let all = planned.iter().flat_map(|run| {
            let points = points.iter();
            points.filter_map(|point| Some(self.candidate(run, (0, 0), point).ok()?.planned))
        });
        all.collect()
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
        planned.name = self.name(run, point);
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
            rule: Vec::new(),
        }
    }

    /// Returns the runs of `planned` that are swept: all of them or, with a rule, those at some sizes.
    pub fn swept<C: ModelConfig>(&self, planned: &[PlannedRun<C>]) -> Vec<PlannedRun<C>> {
        let is_swept =
            |run: &&PlannedRun<C>| self.rule.as_ref().is_none_or(|rule| rule.sweeps(run));
        planned.iter().filter(is_swept).cloned().collect()
    }
}

/// A run of an experiment at every point of a sweep.
pub struct AtPoints<C> {
    /// The name of the run.
    pub run: String,
    /// The run at each point, in the order of the points.
    pub points: Vec<PlannedRun<C>>,
}

/// A sweep under way.
struct Search<'a, C> {
    sweep: &'a Sweep,
    planned: &'a [PlannedRun<C>],
    /// The data of each run, by the index of the run. All points of a run have the same data.
    corpora: BTreeMap<usize, &'a Corpus>,
    /// The share of the steps at which each rung ends.
    rungs: Vec<f64>,
    options: &'a Options,
    tuning: Tuning,
    /// The outcome of all training runs so far.
    whole: Outcome,
}

impl<C: ModelConfig> Search<'_, C> {
    /// Trains the candidates of a generation. As long as ranges are widened, also trains the points beyond their ends.
    fn generation(
        &mut self,
        generation: &[usize],
        mut candidates: Vec<Candidate<C>>,
    ) -> Result<(), Error> {
        while !candidates.is_empty() {
            self.rungs_of(generation, candidates)?;
            if self.whole.stopped {
                return Ok(());
            }
            self.tuning.choose();
            candidates = self.widen(generation);
            if self.options.force {
                let runs: Vec<_> = candidates.iter().map(|it| it.planned.clone()).collect();
                let pool = Pool::open(self.options);
                let data: Vec<&Corpus> = candidates.iter().map(|it| self.data(it)).collect();
                pool.forget(&pool.runs(&runs, &self.sweep.seeds, &data))?;
            }
        }
        Ok(())
    }

    /// Trains candidates from rung to rung, and gives up the worse ones between them.
    fn rungs_of(
        &mut self,
        generation: &[usize],
        mut candidates: Vec<Candidate<C>>,
    ) -> Result<(), Error> {
        for (rung, share) in self.rungs.clone().into_iter().enumerate() {
            if rung > 0 {
                candidates = self.survivors(candidates);
            }
            // A run that starts from an earlier run starts from the best point of that run.
            let mut turns = self.tuning.bests_of(self.planned)?;
            turns.retain(|parent| !generation.contains(&parent.at.0));
            turns.extend(candidates.iter().cloned());
            let runs: Vec<_> = turns.iter().map(|turn| turn.planned.clone()).collect();
            let data: Vec<&Corpus> = turns.iter().map(|turn| self.data(turn)).collect();
            let goal = Goal::Point(share);
            let outcome = train_runs(&runs, &self.sweep.seeds, &data, goal, self.options);
            self.take(outcome, share, &candidates);
            if self.whole.stopped {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes over what one rung has found. A stop leaves the runs of these candidates, and all later runs, without a
    /// best point.
    fn take(&mut self, mut outcome: Outcome, share: f64, candidates: &[Candidate<C>]) {
        let whole = &mut self.whole;
        whole.finished.extend(std::mem::take(&mut outcome.finished));
        whole.seconds.append(&mut outcome.seconds);
        whole.stopped |= outcome.stopped;
        if whole.stopped {
            whole.missing = outcome.missing;
            for (i, run) in self.tuning.runs.iter_mut().enumerate() {
                // A run whose points have all diverged has no candidate left.
                let has_candidates = candidates.iter().any(|candidate| candidate.at.0 == i);
                if has_candidates || run.tried.iter().all(|tried| tried.share == 0.0) {
                    run.best = None;
                    run.broken.get_or_insert("the sweep was stopped".into());
                }
            }
            return;
        }
        for candidate in candidates {
            self.tuning.record(candidate, share, &outcome);
        }
        // The observation of a later rung replaces the observation of an earlier one.
        for mut found in outcome.observations {
            found.rows = Vec::new();
            let is_same =
                |other: &Observation| (&other.run, other.seed) == (&found.run, found.seed);
            whole.observations.retain(|other| !is_same(other));
            whole.observations.push(found);
        }
        // A point beyond the grid that cannot be trained is the end of its range.
        let is_beyond = |name: &str| {
            let mut named = candidates.iter().filter(|it| it.planned.name == name);
            named.any(|it| self.tuning.runs[it.at.0].tried[it.at.1].is_beyond)
        };
        let broken = outcome.missing.into_iter();
        whole
            .missing
            .extend(broken.filter(|it| !it.diverged && !is_beyond(&it.run)));
    }

    /// Returns the candidates of each run that continue to the next rung, in order.
    fn survivors(&self, candidates: Vec<Candidate<C>>) -> Vec<Candidate<C>> {
        let Some(halving) = self.sweep.halving else {
            return candidates;
        };
        let rank = |(run, point): (usize, usize)| self.tuning.runs[run].tried[point].rank();
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

    /// Adds the points beyond the ends of ranges to the runs of a generation whose best point is at an end. Returns
    /// these runs at these points.
    fn widen(&mut self, generation: &[usize]) -> Vec<Candidate<C>> {
        let mut candidates = Vec::new();
        for i in generation.iter().copied() {
            let run = &mut self.tuning.runs[i];
            let Some(best) = run.best().map(|best| best.values.clone()) else {
                continue;
            };
            let tried: Vec<&[Value]> = run.tried.iter().map(|tried| &*tried.values).collect();
            for point in self.sweep.wider(&tried, &best) {
                let at = (i, run.tried.len());
                let candidate = self.sweep.candidate(&self.planned[i], at, &point);
                let is_fit = |candidate: &Candidate<C>| {
                    let PlannedRun { name, config, .. } = &candidate.planned;
                    let config = config.as_ref();
                    config.is_none_or(|config| check_data(name, config, self.corpora[&i]).is_ok())
                };
                if let Some(candidate) = candidate.ok().filter(is_fit) {
                    run.tried.push(TriedPoint {
                        is_beyond: true,
                        ..self.sweep.untried(&point)
                    });
                    candidates.push(candidate);
                }
            }
        }
        candidates
    }

    fn data(&self, candidate: &Candidate<C>) -> &Corpus {
        self.corpora[&candidate.at.0]
    }
}

/// Returns the sum of the training FLOPs of `runs`, on the data of the candidates.
fn work<C: ModelConfig>(
    runs: &[PlannedRun<C>],
    candidates: &[Candidate<C>],
    corpora: &BTreeMap<usize, &Corpus>,
) -> f64 {
    let flops = |run: &PlannedRun<C>| {
        let config = run.config.as_ref()?;
        let is_same = |other: &&Candidate<C>| {
            let other = other.planned.config.as_ref();
            other.is_some_and(|other| other.data == config.data)
        };
        let same = candidates.iter().find(is_same)?;
        Some(training_flops(config, corpora[&same.at.0]))
    };
    runs.iter().filter_map(flops).sum()
}

impl Tuning {
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
