//! The runs of an experiment, complete with everything that they take from the experiment.

use std::collections::BTreeMap;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::one_line;
use residual_zoo_runs::{Error as RunError, RunConfig, contained, names_of};

use crate::experiment::Vary;
use crate::{After, Error, Experiment, RunSpec, Rung};

/// Maximum number of values of a varied field. Each value makes a run.
const MOST_VALUES: usize = 1000;

/// The option with which a user of a program sets fields of all runs.
pub(crate) const OPTION: &str = "--set";

/// A run of an experiment, complete with everything that it takes from the experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRun<C> {
    /// The name.
    pub name: String,
    /// The name of the line of runs to which the run belongs.
    pub line: String,
    /// The model, data and training settings; the seed is set later. `None` without a model.
    pub config: Option<RunConfig<C>>,
    /// The run from whose weights this one starts.
    pub after: Option<After>,
    /// The seeds of the run; `None` for all seeds of the experiment.
    pub seeds: Option<Vec<u64>>,
    /// Numbers that charts and claims may use.
    pub values: BTreeMap<String, f64>,
    /// Values that the paper reports for the run, by quantity.
    pub published: BTreeMap<String, f64>,
    /// The place of the run on the experiment's ladder, if there is one.
    pub rung: Option<Rung>,
}

impl<C> PlannedRun<C> {
    /// Whether the run has the seed `seed`.
    pub fn is_for(&self, seed: u64) -> bool {
        self.seeds
            .as_ref()
            .is_none_or(|seeds| seeds.contains(&seed))
    }

    /// Returns a size that the experiment file gives for the run.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoValue`] if the file lacks the size.
    pub fn size(&self, name: &str) -> Result<usize, Error> {
        let missing = || Error::NoValue {
            run: self.name.clone(),
            name: name.to_owned(),
        };
        let value = self.values.get(name).ok_or_else(missing)?;
        Ok(*value as usize)
    }
}

impl<C: ModelConfig> PlannedRun<C> {
    /// Sets fields of the config. `place` names the source of the assignments in errors.
    pub(crate) fn set(mut self, set: &[String], place: &str) -> Result<Self, Error> {
        let config = self.config.map(|config| config.set(set)).transpose();
        self.config = config.map_err(|error| match error {
            RunError::Override {
                assignment,
                problem,
            } => {
                let field = format!("run `{}`, {place} {}", self.name, one_line(assignment));
                ConfigError::new(field, one_line(problem)).into()
            }
            error => Error::from(error),
        })?;
        Ok(self)
    }
}

impl<C: ModelConfig> Experiment<C> {
    /// Returns all runs, in order, each with `set` on top of the experiment's settings.
    ///
    /// # Errors
    ///
    /// Returns an error for a field that does not exist, for an invalid value, or for too many values of a varied
    /// field.
    pub fn plan(&self, set: &[String]) -> Result<Vec<PlannedRun<C>>, Error> {
        if let Some(ladder) = &self.ladder {
            let runs = self
                .runs
                .iter()
                .map(|spec| self.run_of(spec).set(&spec.set, "set"));
            return ladder.plan(&runs.collect::<Result<Vec<_>, _>>()?, set);
        }
        let mut planned = Vec::new();
        for spec in &self.runs {
            let run = self.run_of(spec).set(&spec.set, "set")?;
            match &spec.vary {
                None => planned.push(run.set(set, OPTION)?),
                Some(vary) if vary.over.len() > MOST_VALUES => {
                    let problem = format!(
                        "has {} values; it must have at most {MOST_VALUES}",
                        vary.over.len()
                    );
                    return Err(ConfigError::new("vary.over", problem).into());
                }
                Some(vary) => {
                    vary.check_alone(spec, set)?;
                    for value in &vary.over {
                        planned.push(vary.variant(&run, *value)?.set(set, OPTION)?);
                    }
                }
            }
        }
        Ok(planned)
    }

    /// Returns the run before `set` and `vary` are applied.
    fn run_of(&self, spec: &RunSpec<C>) -> PlannedRun<C> {
        let new_data = self.new_data.as_ref().filter(|_| spec.on_new_data);
        let config = spec.model.clone().map(|model| RunConfig {
            model,
            data: new_data.unwrap_or(&self.data).clone(),
            train: self.train.clone(),
        });
        PlannedRun {
            name: spec.name.clone(),
            line: spec.line.clone().unwrap_or_else(|| spec.name.clone()),
            config,
            after: spec.after.clone(),
            seeds: spec.seeds.clone(),
            values: spec.values.clone(),
            published: spec.published.clone(),
            rung: None,
        }
    }
}

impl Vary {
    /// Checks that the varied fields are not set otherwise, by the run `spec` before or by `set` after.
    fn check_alone<C>(&self, spec: &RunSpec<C>, set: &[String]) -> Result<(), ConfigError> {
        for field in self
            .field
            .split(',')
            .filter(|field| !field.trim().is_empty())
        {
            let field = names_of(field);
            let is_lost = |set: &&String| contained(&names_of(set), &field).is_some();
            if let Some(set) = spec.set.iter().find(is_lost) {
                let problem = format!(
                    "of `{}` replaces its `set` {set}; leave one of them out",
                    spec.name
                );
                return Err(ConfigError::new("vary", problem));
            }
            let is_over = |set: &&String| contained(&field, &names_of(set)).is_some();
            if let Some(set) = set.iter().find(is_over) {
                let problem = format!("sets what `{}` varies; leave it out", spec.name);
                return Err(ConfigError::new(format!("{OPTION} {set}"), problem));
            }
        }
        Ok(())
    }

    /// Makes the variant of `run` with one value of the field.
    fn variant<C: ModelConfig>(
        &self,
        run: &PlannedRun<C>,
        value: f64,
    ) -> Result<PlannedRun<C>, Error> {
        let fields: Vec<&str> = match self.field.trim() {
            "" => Vec::new(),
            fields => fields.split(',').map(str::trim).collect(),
        };
        if fields.contains(&"") {
            let problem = format!(
                "of `{}` is `{}`, with an empty path between its commas; leave the comma out",
                run.name, self.field
            );
            return Err(ConfigError::new("vary.field", problem).into());
        }
        let set: Vec<String> = fields
            .iter()
            .map(|field| format!("{field}={value}"))
            .collect();
        let mut run = run.clone().set(&set, "vary")?;
        let named = value * self.times;
        run.name += &format!(", {} {named}", self.name);
        run.values.insert(self.name.clone(), named);
        Ok(run)
    }
}

impl<C: ModelConfig> Experiment<C> {
    /// Selects the runs that `asked` names, the runs from whose weights these runs start, and the runs at the sizes that
    /// the sweep's rule needs for them.
    ///
    /// # Errors
    ///
    /// Returns an error for a text that is empty or matches no run.
    pub fn only(
        &self,
        asked: &[String],
        planned: &[PlannedRun<C>],
    ) -> Result<Vec<PlannedRun<C>>, ConfigError> {
        let kept = only(asked, planned)?;
        let rule = self.sweep.as_ref().and_then(|sweep| sweep.rule.as_ref());
        let is_needed = |run: &PlannedRun<C>| {
            let base = |run: &PlannedRun<C>| run.rung.as_ref().map(|rung| rung.run.clone());
            let of_kept = kept.iter().any(|kept| base(kept) == base(run));
            of_kept && rule.is_some_and(|rule| rule.sweeps(run))
        };
        let is_kept = |run: &PlannedRun<C>| kept.iter().any(|kept| kept.name == run.name);
        let all = planned.iter();
        let needed = all.filter(|run| is_kept(run) || is_needed(run));
        Ok(needed.cloned().collect())
    }
}

/// Selects the runs that `asked` names, and the runs from whose weights these runs start. A text that is not the full
/// name of a run or a line selects all runs whose names contain it. Selects all runs if `asked` is empty.
///
/// # Errors
///
/// Returns an error for a text that is empty or matches no run.
pub(crate) fn only<C: Clone>(
    asked: &[String],
    planned: &[PlannedRun<C>],
) -> Result<Vec<PlannedRun<C>>, ConfigError> {
    let is_exact = |run: &PlannedRun<C>, text: &String| run.name == *text || run.line == *text;
    let is_meant =
        |run: &PlannedRun<C>, text: &String| match planned.iter().any(|run| is_exact(run, text)) {
            true => is_exact(run, text),
            false => run.name.contains(text),
        };
    for text in asked {
        if text.trim().is_empty() {
            let problem = "is empty; give the name of a run, or a part of it";
            return Err(ConfigError::new("--only", problem));
        }
        if !planned.iter().any(|run| is_meant(run, text)) {
            // If a name contains a comma, all names are quoted to keep them apart.
            let quoted = planned.iter().any(|run| run.name.contains(','));
            let names = planned.iter().map(|run| match quoted {
                true => format!("`{}`", run.name),
                false => run.name.clone(),
            });
            let names: Vec<String> = names.collect();
            let names = names.join(", ");
            let problem = format!("matches no run; the runs are {names}");
            return Err(ConfigError::new(format!("--only {text}"), problem));
        }
    }
    let is_asked =
        |run: &PlannedRun<C>| asked.is_empty() || asked.iter().any(|text| is_meant(run, text));
    Ok(with_starts(planned, is_asked)
        .into_iter()
        .cloned()
        .collect())
}

/// Returns the runs that `is_meant` selects and the runs from whose weights these runs start, in order.
pub(crate) fn with_starts<C>(
    planned: &[PlannedRun<C>],
    is_meant: impl Fn(&PlannedRun<C>) -> bool,
) -> Vec<&PlannedRun<C>> {
    let mut kept: Vec<&PlannedRun<C>> = Vec::new();
    // A run comes after the run from whose weights it starts, so one pass in reverse order suffices.
    for run in planned.iter().rev() {
        let starts_from = |other: &&PlannedRun<C>| {
            let mut starts = other.after.iter().flat_map(After::runs);
            starts.any(|name| *name == run.name)
        };
        if is_meant(run) || kept.iter().any(starts_from) {
            kept.push(run);
        }
    }
    kept.reverse();
    kept
}
