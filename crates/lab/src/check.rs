//! Checks that the names in an experiment refer to things that exist.

use std::collections::BTreeSet;

use residual_zoo_core::{ConfigError, ModelConfig, Tensors, check};
use residual_zoo_report::si;
use residual_zoo_runs::{RunConfig, did_you_mean};

use crate::curves::CURVES;
use crate::experiment::MOST_SEEDS;
use crate::quantity::{GAIN, QUANTITIES, SIZE, is_curve};
use crate::sweep::OVER;
use crate::{
    After, Axis, ChartSpec, Claim, Error, Experiment, Ladder, Measure, PlannedRun, TaskSpec,
    describe, sound, tasks,
};

impl<C: ModelConfig> Experiment<C> {
    /// Checks the seeds, the sweep, the tasks and the runs, whose names must be unique. Also checks that columns,
    /// charts and claims refer to existing runs and quantities, and that the verdicts will be meaningful.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first problem.
    pub fn check(&self) -> Result<(), Error> {
        if self.ladder.is_some() {
            Ladder::check_fields(self)?;
        }
        let planned = self.plan(&[])?;
        let names = Names::of(self, &planned);
        self.check_seeds()?;
        if let Some(count) = self.count {
            check::size("count", count)?;
        }
        if let Some(ladder) = &self.ladder {
            ladder.check(self, &planned)?;
        }
        self.check_sweep(&planned)?;
        if self.measure.is_some() && self.count.is_none() {
            let problem = "is given without `count`; a run that trains is measured anyway";
            error("measure", problem)?;
        }
        tasks::check(&self.tasks)?;
        if self.count.is_some() && !self.tasks.is_empty() {
            error("tasks", "are given, but nothing is trained; leave them out")?;
        }
        self.check_runs(&planned)?;
        if let Some(column) = self.columns.iter().find(|column| !names.measures(column)) {
            error(
                "columns",
                format!("nothing called `{column}` is measured; {}", known()),
            )?;
        }
        self.check_published(&names, &planned)?;
        for (i, chart) in self.charts.iter().enumerate() {
            names
                .check_chart(chart, &planned)
                .map_err(in_list("charts", i))?;
        }
        for (i, claim) in self.claims.iter().enumerate() {
            names.check_claim(claim).map_err(in_list("claims", i))?;
        }
        Ok(sound::check(self, &planned)?)
    }

    /// Checks that each published quantity is measured, or used in a column, a chart or a claim.
    fn check_published(&self, names: &Names, planned: &[PlannedRun<C>]) -> Result<(), ConfigError> {
        let charts = self.charts.iter().flat_map(|chart| [&*chart.x, &*chart.y]);
        let claims = self.claims.iter();
        let claims = claims.flat_map(|claim| claim.test.names().1);
        let mut used: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        used.extend(charts.chain(claims));
        for run in planned {
            let is_unused = |name: &&String| !names.finds(name) && !used.contains(&name.as_str());
            if let Some(name) = run.published.keys().find(is_unused) {
                let meant = did_you_mean(name, QUANTITIES.iter().copied().chain(used));
                let problem = format!(
                    "of `{}` has `{name}`, which nothing measures, draws or claims{meant}; {}",
                    run.name,
                    known()
                );
                return error("published", problem);
            }
        }
        Ok(())
    }

    fn check_seeds(&self) -> Result<(), ConfigError> {
        not_empty("seeds", self.seeds.len())?;
        if self.seeds.len() > MOST_SEEDS {
            return error("seeds", format!("are more than {MOST_SEEDS}"));
        }
        let mut different = BTreeSet::new();
        match self.seeds.iter().find(|seed| !different.insert(**seed)) {
            Some(seed) => error("seeds", format!("has {seed} twice")),
            None => Ok(()),
        }
    }

    fn check_sweep(&self, planned: &[PlannedRun<C>]) -> Result<(), ConfigError> {
        let Some(sweep) = &self.sweep else {
            return Ok(());
        };
        sweep.check()?;
        if let Some(rule) = &sweep.rule {
            rule.check(sweep, self.ladder.as_ref())?;
        }
        if self.count.is_some() {
            return error(
                "sweep",
                "is given, but with `count` nothing is trained; leave one of them out",
            );
        }
        if sweep.halving.is_some()
            && let Some(run) = planned.iter().find(|run| run.after.is_some())
        {
            let problem = format!("`{}` starts from the weights of another run", run.name);
            return error(
                "sweep.halving",
                problem + ", which is trained to its end first; leave halving out",
            );
        }
        let own = self.runs.iter().flat_map(|spec| &spec.set);
        if let Some(set) = own.into_iter().find(|set| sweep.varies(set)) {
            return error(
                OVER,
                format!("varies what a run sets by `{set}`; leave that out"),
            );
        }
        let varied = self.runs.iter().filter_map(|spec| spec.vary.as_ref());
        let mut varied = varied.flat_map(|vary| vary.field.split(',').map(str::trim));
        if let Some(field) = varied.find(|field| !field.is_empty() && sweep.varies(field)) {
            let problem = format!("varies `{field}`, which the `vary` of a run does too");
            return error(OVER, problem + "; leave one out");
        }
        let is_shared = |seed: &&u64| sweep.tuned && self.seeds.contains(seed);
        match sweep.seeds.iter().find(is_shared) {
            None => Ok(()),
            Some(seed) => {
                let problem = format!("has {seed}, which is a seed of the experiment too");
                error(
                    "sweep.seeds",
                    problem + "; claims need seeds that the sweep does not use",
                )
            }
        }
    }

    fn check_runs(&self, planned: &[PlannedRun<C>]) -> Result<(), ConfigError> {
        not_empty("runs", planned.len())?;
        if self.new_data.is_none() && self.runs.iter().any(|spec| spec.on_new_data) {
            return error("new_data", "is missing, and there are runs on it");
        }
        for (i, run) in planned.iter().enumerate() {
            if run.seeds.as_ref().is_some_and(Vec::is_empty) {
                let problem = format!(
                    "has none for `{}`; give at least one, or leave `seeds` out",
                    run.name
                );
                return error("seeds", problem);
            }
            let mut own = run.seeds.iter().flatten();
            if let Some(seed) = own.find(|seed| !self.seeds.contains(seed)) {
                let problem = format!(
                    "`{}` has {seed}, which the experiment does not have",
                    run.name
                );
                return error("seeds", problem);
            }
            let mut known = BTreeSet::new();
            if let Some(seed) = run
                .seeds
                .iter()
                .flatten()
                .find(|seed| !known.insert(**seed))
            {
                return error("seeds", format!("`{}` has {seed} twice", run.name));
            }
            let parent = run.after.as_ref().map(|after| &after.run);
            let parent = planned.iter().find(|it| Some(&it.name) == parent);
            let of_parent = parent.and_then(|it| it.seeds.as_ref());
            let own = run.seeds.as_ref().unwrap_or(&self.seeds);
            let is_lacking = |seed: &&u64| of_parent.is_some_and(|seeds| !seeds.contains(seed));
            if let (Some(parent), Some(seed)) = (parent, own.iter().find(is_lacking)) {
                let problem = format!(
                    "`{}` has {seed}, which `{}`, from whose weights it starts, does not have",
                    run.name, parent.name
                );
                return error("seeds", problem);
            }
            match (self.count, &run.config) {
                // The config of a run that trains is checked later, with its data.
                (Some(count), Some(config)) => {
                    let valid = config.validate(count);
                    valid.map_err(|error| error.within(&run.name))?;
                }
                (None, None) => {
                    return error("runs", format!("`{}` has no model to train", run.name));
                }
                _ => {}
            }
            let is_before = |name: &str| planned[..i].iter().any(|run| run.name == name);
            if is_before(&run.name) {
                return error("runs", format!("has two called `{}`", run.name));
            }
            if let Some(after) = &run.after {
                check_after(run, after, &planned[..i])?;
            }
        }
        Ok(())
    }
}

/// Checks that a run starts from the weights of earlier runs, and that these weights fit its model.
fn check_after<C: ModelConfig>(
    run: &PlannedRun<C>,
    after: &After,
    earlier: &[PlannedRun<C>],
) -> Result<(), ConfigError> {
    let mut first: Option<C> = None;
    for name in after.runs() {
        let Some(config) = &check_is_before(run, name, earlier)?.config else {
            continue;
        };
        first = Some(match first {
            None => config.model.clone(),
            Some(model) => {
                let none = Tensors::new();
                let merged = model.merge(&none, (&config.model, &none), 1.0);
                let cannot =
                    |problem| format!("`{}` cannot be merged with `{name}`: {problem}", after.run);
                merged
                    .map_err(|problem| ConfigError::new("after", cannot(problem)))?
                    .0
            }
        });
    }
    if let Some(with) = &after.with
        && base(earlier, &after.run) != base(earlier, with)
    {
        let problem = format!(
            "`{}` and `{with}` did not start from the same run, so their tables differ and they cannot be merged; let \
             both start `after` one run",
            after.run
        );
        return error("after", problem);
    }
    let (Some(first), Some(config)) = (first, &run.config) else {
        return Ok(());
    };
    config
        .model
        .grows_from(&first)
        .map_err(|ConfigError { field, problem }| {
            let from: Vec<String> = after.runs().map(|name| format!("`{name}`")).collect();
            let from = match after.with {
                Some(_) => format!("{}, merged", from.join(" and ")),
                None => from.join(""),
            };
            let problem = format!("`{field}` of `{}` {problem} ({from})", run.name);
            ConfigError::new("after", problem)
        })
}

/// Returns the run `name`, from whose weights `run` starts, or an error if it is not among the `earlier` runs.
pub(crate) fn check_is_before<'a, C>(
    run: &PlannedRun<C>,
    name: &str,
    earlier: &'a [PlannedRun<C>],
) -> Result<&'a PlannedRun<C>, ConfigError> {
    let found = earlier.iter().find(|run| run.name == name);
    found.ok_or_else(|| {
        let meant = did_you_mean(name, earlier.iter().map(|run| &run.name));
        let problem = format!("there is no run `{name}` before `{}`{meant}", run.name);
        ConfigError::new("after", problem)
    })
}

/// Returns the first run of the chain that leads to the run `name`. Each run of a chain starts from the weights of the
/// previous run.
fn base<'a, C: ModelConfig>(planned: &'a [PlannedRun<C>], name: &'a str) -> &'a str {
    let run = planned.iter().find(|run| run.name == name);
    match run.and_then(|run| run.after.as_ref()) {
        Some(after) => base(planned, &after.run),
        None => name,
    }
}

/// Returns the number of training tokens of the run `name` and of the runs before it in its chain.
fn tokens<C: ModelConfig>(planned: &[PlannedRun<C>], name: &str) -> Option<f64> {
    let run = planned.iter().find(|run| run.name == name)?;
    Some(own_tokens(run.config.as_ref()?) + tokens_before(planned, run)?)
}

/// Returns the number of training tokens of the runs before `run` in its chain (see `base`). A run that is merged in
/// (`with`) does not count.
pub(crate) fn tokens_before<C: ModelConfig>(
    planned: &[PlannedRun<C>],
    run: &PlannedRun<C>,
) -> Option<f64> {
    match &run.after {
        Some(after) => tokens(planned, &after.run),
        None => Some(0.0),
    }
}

/// Returns the number of training tokens of a run by itself.
pub(crate) fn own_tokens<C: ModelConfig>(config: &RunConfig<C>) -> f64 {
    config.train.steps as f64 * config.tokens_per_step() as f64
}

/// Returns a sentence for each claim that compares losses or accuracies of runs with different numbers of training
/// tokens, or of runs on the same data with different validations.
pub fn unequal_budgets<C: ModelConfig>(
    experiment: &Experiment<C>,
    planned: &[PlannedRun<C>],
) -> Vec<String> {
    let config = |name: &str| {
        let run = planned.iter().find(|run| run.name == name)?;
        run.config.as_ref()
    };
    let mut sentences = Vec::new();
    for claim in &experiment.claims {
        let (runs, quantities) = claim.test.names();
        let ([run, than], false) = (&runs[..], quantities.is_empty()) else {
            continue;
        };
        let (Some(own), Some(other)) = (config(run), config(than)) else {
            continue;
        };
        if !quantities.iter().all(|quantity| is_curve(quantity)) {
            continue;
        }
        let compares = format!("the claim \"{}\" compares", claim.says);
        let (a, b) = (tokens(planned, run), tokens(planned, than));
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            let (a, b) = (si(a), si(b));
            sentences.push(format!(
                "{compares} runs of different length: {run} has {a} training tokens, {than} {b}"
            ));
        }
        let (a, b) = (validated(own), validated(other));
        let of_training = quantities.iter().all(|quantity| *quantity == "train_loss");
        if own.data == other.data && a != b && !of_training {
            let (a, b) = (si(a), si(b));
            sentences.push(format!(
                "{compares} different validations: {run} reads {a} tokens, {than} {b}"
            ));
        }
    }
    sentences
}

/// Returns the number of tokens that a validation reads.
fn validated<C: ModelConfig>(config: &RunConfig<C>) -> f64 {
    let sequences = config.train.batch as f64 * config.train.validate_batches as f64;
    sequences * config.time() as f64
}

/// The names to which columns, charts and claims may refer.
struct Names<'a> {
    runs: BTreeSet<&'a str>,
    lines: BTreeSet<&'a str>,
    /// The quantities that the experiment itself measures or gives.
    own: BTreeSet<&'a str>,
    /// The published quantities, which need not be measured.
    published: BTreeSet<&'a str>,
    /// The quantities of the experiment's tasks.
    of_tasks: Vec<String>,
}

impl<'a> Names<'a> {
    fn of<C>(experiment: &Experiment<C>, planned: &'a [PlannedRun<C>]) -> Self {
        let given = planned.iter().flat_map(|run| run.values.keys());
        let published = planned.iter().flat_map(|run| run.published.keys());
        let measured = experiment.measure.map_or(&[][..], Measure::names);
        Self {
            runs: planned.iter().map(|run| run.name.as_str()).collect(),
            lines: planned.iter().map(|run| run.line.as_str()).collect(),
            own: given
                .map(String::as_str)
                .chain(experiment.ladder.iter().map(|_| GAIN))
                .chain(measured.iter().copied())
                .collect(),
            published: published.map(String::as_str).collect(),
            of_tasks: experiment
                .tasks
                .iter()
                .flat_map(TaskSpec::quantities)
                .collect(),
        }
    }

    fn measures(&self, quantity: &str) -> bool {
        self.published.contains(quantity) || self.finds(quantity)
    }

    /// Whether the experiment measures the quantity or gives its value.
    fn finds(&self, quantity: &str) -> bool {
        let is_of_task = || self.of_tasks.iter().any(|own| own == quantity);
        self.own.contains(quantity) || is_of_task() || describe(quantity).is_some()
    }

    /// Checks that the lines and axes of a chart exist. If the chart draws published values, also checks that there are
    /// any.
    fn check_chart<C>(
        &self,
        chart: &ChartSpec,
        planned: &[PlannedRun<C>],
    ) -> Result<(), ConfigError> {
        let is_unknown = |line: &&String| !self.lines.contains(line.as_str());
        if let Some(line) = chart.lines.iter().find(is_unknown) {
            let problem = no_such(
                &format!("\"{}\" draws", chart.title),
                line,
                "run",
                &self.lines,
            );
            return error("charts", problem);
        }
        let (x, y) = match chart.curves {
            true => (Axis::parse(&chart.x).is_some(), is_curve(&chart.y)),
            false => (self.measures(&chart.x), self.measures(&chart.y)),
        };
        if let Some((quantity, _)) = [(&chart.x, x), (&chart.y, y)].iter().find(|axis| !axis.1) {
            let known = match chart.curves {
                true => format!(
                    "curves have x: {}; y: {}",
                    Axis::ALL.map(Axis::name).join(", "),
                    CURVES
                        .into_iter()
                        .filter(|y| is_curve(y))
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
                false => known(),
            };
            let problem = format!(
                "\"{}\" draws `{quantity}`, which such a chart cannot show; {known}",
                chart.title
            );
            return error("charts", problem);
        }
        let is_drawn = |line| chart.lines.is_empty() || chart.lines.contains(line);
        let mut drawn = planned.iter().filter(|run| is_drawn(&run.line));
        if chart.printed && !drawn.any(|run| run.published.contains_key(&chart.y)) {
            let problem = format!(
                "\"{}\": no run has a published value of `{}`",
                chart.title, chart.y
            );
            return error("charts", problem);
        }
        Ok(())
    }

    fn check_claim(&self, claim: &Claim) -> Result<(), ConfigError> {
        let (runs, quantities) = claim.test.names();
        let (there, what) = match claim.test.lines().is_empty() {
            true => (&self.runs, "run"),
            false => (&self.lines, "line of runs"),
        };
        if let Some(name) = runs.iter().find(|name| !there.contains(**name)) {
            let problem = no_such(&format!("\"{}\" refers to", claim.says), name, what, there);
            return error("claims", problem);
        }
        if let Some(name) = quantities.iter().find(|name| !self.measures(name)) {
            let problem = format!(
                "\"{}\" refers to `{name}`, which is unknown{}; {}",
                claim.says,
                did_you_mean(name, QUANTITIES.iter().chain(&[SIZE, GAIN])),
                known()
            );
            return error("claims", problem);
        }
        // A claim may compare two quantities of one run.
        let is_one = quantities.windows(2).all(|pair| pair[0] == pair[1]);
        if let [run, than] = runs[..]
            && run == than
            && is_one
        {
            let problem = format!("\"{}\" compares `{run}` with itself", claim.says);
            return error("claims", problem);
        }
        Ok(())
    }
}

/// Describes a reference to something that does not exist, and lists the existing names.
fn no_such(refers: &str, name: &str, what: &str, there: &BTreeSet<&str>) -> String {
    const MOST: usize = 10;
    let meant = did_you_mean(name, there.iter());
    let listed = there.iter().take(MOST);
    let listed: Vec<String> = listed.map(|name| format!("`{name}`")).collect();
    let more = match there.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "{refers} `{name}`, which is not a {what}{meant}; there are {}{more}",
        listed.join(", ")
    )
}

/// Checks that the list `field` is not empty.
pub(crate) fn not_empty(field: &str, count: usize) -> Result<(), ConfigError> {
    match count {
        0 => error(field, "is empty; give at least one"),
        _ => Ok(()),
    }
}

/// Lists the known quantities, for an error.
fn known() -> String {
    format!(
        "there are {}, the values of runs and, on a ladder, {SIZE} and {GAIN}",
        QUANTITIES.join(", ")
    )
}

/// Renames the field of an error to entry `i` of the list `name`.
pub(crate) fn in_list(name: &str, i: usize) -> impl Fn(ConfigError) -> ConfigError {
    move |error| ConfigError::new(format!("{name}[{i}]"), error.problem)
}

fn error(field: &str, problem: impl Into<String>) -> Result<(), ConfigError> {
    Err(ConfigError::new(field, problem))
}
