//! Finished runs: their results, without their weights. The results file beside the page of an experiment holds these
//! results. Another machine can read this file instead of training the runs again.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use residual_zoo_core::{Cost, ModelConfig};
use residual_zoo_data::{Source, hash_of_parts};
use residual_zoo_evaluate::Task;
use residual_zoo_runs::{Row, RunConfig};
use residual_zoo_system::counted;
use residual_zoo_train::Summary;

use crate::quantity::{Axis, BITS_PER_BYTE, LEARNED, QUANTITIES, TIMES, is_cost};
pub(crate) use file::Host;

/// The quantities by which a sweep chooses the best point of a run.
const OF_SWEEP: [&str; 2] = ["first_valid_loss", "valid_loss"];

/// The key of a finished run: the name of its directory in the pool, and the step at which its rung of a sweep ends
/// (see [`Halving`](crate::sweep::Halving)). The step is `None` if the run is trained to its end.
pub(crate) type Key = (String, Option<usize>);

/// The results that a run must provide.
#[derive(Clone, Copy)]
pub(crate) enum Goal<'a> {
    /// The losses of a sweep point after this share of the steps.
    Point(f64),
    /// All quantities at the end, with the metrics of these tasks.
    Whole(&'a [Task]),
}

impl<'a> Goal<'a> {
    /// Returns the share of the run's steps for which it is trained.
    pub(crate) fn share(self) -> f64 {
        match self {
            Self::Point(share) => share,
            Self::Whole(_) => 1.0,
        }
    }

    /// Returns the tasks on which the run is evaluated.
    pub(crate) fn tasks(self) -> &'a [Task] {
        match self {
            Self::Point(_) => &[],
            Self::Whole(tasks) => tasks,
        }
    }
}

/// The results of a run with one seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FinishedRun {
    /// The name in the experiment, for readers of the file.
    pub(crate) run: String,
    pub(crate) seed: u64,
    /// Whether only the losses that a sweep needs are known.
    is_point: bool,
    /// Whether other runs were trained on the same cores at the same time, so that times mean nothing.
    shared: bool,
    /// A description of the divergence, if the run diverged.
    pub(crate) diverged: Option<String>,
    /// A hash of each task on which the run was evaluated, by task name.
    tasks: BTreeMap<String, String>,
    /// The quantities that do not follow from the config or the rows.
    measured: BTreeMap<String, f64>,
    /// The logged rows. Their tokens, FLOPs and seconds exclude the runs from whose weights the run started.
    rows: Vec<Row>,
    /// The machine that trained the run, if the run was read from a file.
    host: Option<Host>,
}

/// Whether a quantity follows from the config and the data, or from the rows and the validation loss.
fn follows(quantity: &str) -> bool {
    is_cost(quantity)
        || Axis::parse(quantity).is_some()
        || ["perplexity", BITS_PER_BYTE].contains(&quantity)
}

/// Hashes the kind and the documents of a task.
fn hash(task: &Task) -> String {
    let kind = format!("{:?}", task.kind);
    let parts = [kind.as_bytes(), task.blake3.as_bytes()];
    hash_of_parts("residual-zoo task v1", &parts).to_hex()[..12].to_owned()
}

impl FinishedRun {
    /// Records a run with this `summary` and these observed `quantities`. `given` holds the values that the experiment
    /// file gives.
    pub(crate) fn of(
        (run, seed): (&str, u64),
        goal: Goal,
        summary: &Summary,
        quantities: &BTreeMap<String, f64>,
        given: &BTreeMap<String, f64>,
    ) -> Self {
        let is_point = matches!(goal, Goal::Point(_));
        let is_kept = |name: &str| match is_point {
            true => OF_SWEEP.contains(&name),
            false => !follows(name) && !given.contains_key(name),
        };
        let measured = quantities
            .iter()
            .filter(|(name, value)| is_kept(name) && value.is_finite());
        let tasks = goal.tasks().iter();
        Self {
            run: run.to_owned(),
            seed,
            is_point,
            shared: !quantities.contains_key(Axis::Seconds.name()),
            diverged: None,
            tasks: tasks.map(|task| (task.name.clone(), hash(task))).collect(),
            measured: measured
                .map(|(name, value)| (name.clone(), *value))
                .collect(),
            rows: summary.rows.clone(),
            host: None,
        }
    }

    /// Whether the results reach `goal`.
    fn reaches(&self, goal: Goal) -> bool {
        let knows = |task: &Task| self.tasks.get(&task.name) == Some(&hash(task));
        let is_whole = match goal {
            Goal::Point(_) => true,
            Goal::Whole(tasks) => !self.is_point && tasks.iter().all(knows),
        };
        self.diverged.is_some() || is_whole
    }

    /// Describes why a run of `config` and `seed` cannot have these results after `steps` steps; `None` if it can.
    pub(crate) fn misfit<C: ModelConfig>(
        &self,
        config: &RunConfig<C>,
        flops_per_token: f64,
        seed: u64,
        steps: usize,
    ) -> Option<String> {
        if self.seed != seed {
            let found = self.seed;
            return Some(format!("has the seed {found} for a run of seed {seed}"));
        }
        let last = self.rows.last()?.step;
        if last != steps {
            return Some(format!(
                "ends `{}` after {}, and not after {steps}",
                self.run,
                counted(last, "step")
            ));
        }
        // With a curriculum, sequences are shorter at first, so there may be fewer tokens.
        let is_curriculum = matches!(config.data.source, Source::Copying(_));
        let row = self.rows.iter().find(|row| {
            let tokens = (row.step * config.tokens_per_step()) as u64;
            let flops = row.tokens as f64 * flops_per_token;
            let is_near = (row.flops - flops).abs() <= 1e-6 * flops;
            !(is_curriculum && row.tokens <= tokens || row.tokens == tokens && is_near)
        })?;
        Some(format!(
            "has {} and {} FLOPs after {} of `{}`, which its config does not give",
            counted(row.tokens as usize, "token"),
            row.flops,
            counted(row.step, "step"),
            self.run
        ))
    }

    /// Removes the times, which cannot be compared with times on another machine.
    fn without_times(mut self) -> Self {
        self.shared = true;
        self.measured.retain(|name, _| !TIMES.contains(&&**name));
        self
    }

    /// Returns the summary that the trainer would return, with the kept rows. `cost` is the cost of the model.
    pub(crate) fn summary(&self, cost: Cost) -> Summary {
        let get = |name: &str| self.measured.get(name).copied().unwrap_or(f64::NAN);
        Summary {
            rows: self.rows.clone(),
            cost,
            train_loss: get("train_loss"),
            valid_loss: get("valid_loss"),
            valid_accuracy: get("valid_accuracy"),
            tokens_per_second: f64::NAN,
            stopped: false,
            trained: false,
            checkpoint: PathBuf::new(),
        }
    }

    /// Keeps the quantities that follow from the config and the rows. Replaces all others with measured values, and
    /// adds the metrics of `tasks`. Removes the times if the cores were shared.
    pub(crate) fn put_measured(&self, tasks: &[Task], quantities: &mut BTreeMap<String, f64>) {
        quantities.retain(|name, _| follows(name));
        if self.shared {
            quantities.remove(Axis::Seconds.name());
        }
        let is_metric = |name: &str| {
            let of = |task: &Task| name.strip_prefix(&task.name)?.strip_prefix(' ');
            let is_of = |task: &Task| of(task).is_some_and(|it| task.kind.metrics().contains(&it));
            tasks.iter().any(is_of)
        };
        let is_known =
            |name: &str| QUANTITIES.contains(&name) || name.starts_with(LEARNED) || is_metric(name);
        let measured = self.measured.iter();
        let measured = measured.filter(|(name, _)| is_known(name) && !follows(name));
        quantities.extend(measured.map(|(name, value)| (name.clone(), *value)));
    }
}

/// The finished runs of an experiment.
#[derive(Clone, Debug, Default)]
pub struct FinishedRuns {
    runs: BTreeMap<Key, FinishedRun>,
    /// All runs that the experiment has, finished or not.
    planned: BTreeSet<Key>,
}

impl FinishedRuns {
    /// Records that the experiment has this run.
    pub(crate) fn plan(&mut self, key: Key) {
        self.planned.insert(key);
    }

    /// Adds a finished run. A point of a sweep does not replace a whole run.
    pub(crate) fn add(&mut self, key: Key, run: FinishedRun) {
        let known = self.runs.get(&key);
        if !run.is_point || known.is_none_or(|known| known.is_point) {
            self.runs.insert(key, run);
        }
    }

    /// Adds a run that diverged, unless it is recorded already.
    pub(crate) fn add_diverged(&mut self, key: Key, (run, seed): (&str, u64), why: &str) {
        self.runs.entry(key).or_insert_with(|| FinishedRun {
            run: run.to_owned(),
            seed,
            diverged: Some(why.to_owned()),
            ..FinishedRun::default()
        });
    }

    /// Adds the runs of `other`.
    pub(crate) fn extend(&mut self, other: Self) {
        self.planned.extend(other.planned);
        for (key, run) in other.runs {
            self.add(key, run);
        }
    }

    /// Describes the runs that were read from a file: a line for each machine that trained some of them.
    pub(crate) fn of_hosts(&self) -> Vec<String> {
        let mut counts: BTreeMap<&Host, usize> = BTreeMap::new();
        for host in self.runs.values().filter_map(|run| run.host.as_ref()) {
            *counts.entry(host).or_default() += 1;
        }
        let line = |(host, count): (&Host, usize)| match count {
            1 => format!("1 run from a file: {host}"),
            _ => format!("{count} runs from a file: {host}"),
        };
        counts.into_iter().map(line).collect()
    }
}

/// A results file: the finished runs of an experiment, beside its page.
#[derive(Clone, Debug)]
pub struct FinishedFile {
    path: PathBuf,
    runs: BTreeMap<Key, FinishedRun>,
    /// The runs in the results files of other experiments, with the paths of the files.
    others: BTreeMap<Key, Vec<(PathBuf, FinishedRun)>>,
}

impl FinishedFile {
    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the run with this key and the path of its file, if its results reach `goal`. The experiment's own file
    /// comes first.
    pub(crate) fn find(&self, key: &Key, goal: Goal) -> Option<(&Path, &FinishedRun)> {
        let own = self.runs.get(key).map(|run| (&*self.path, run));
        let others = self.others.get(key).into_iter().flatten();
        let others = others.map(|(path, run)| (&**path, run));
        own.into_iter()
            .chain(others)
            .find(|(_, run)| run.reaches(goal))
    }

    /// Returns all runs of the file.
    pub(crate) fn into_runs(self) -> FinishedRuns {
        FinishedRuns {
            runs: self.runs,
            ..FinishedRuns::default()
        }
    }

    /// Says how many runs of the file do not belong to the experiment, if there are any.
    pub fn unused(&self, of: &FinishedRuns) -> Option<String> {
        let unused = self.runs.keys().filter(|key| !of.planned.contains(key));
        let runs = match unused.count() {
            0 => return None,
            1 => "1 run".into(),
            count => format!("{count} runs"),
        };
        let (path, all) = (self.path.display(), self.runs.len());
        Some(format!(
            "{runs} of {all} in {path} not used, because no run of this experiment has that config, data, seed and backend"
        ))
    }
}
