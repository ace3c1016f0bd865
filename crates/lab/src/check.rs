//! Checks that what the parts of an experiment refer to exists.

use std::collections::BTreeSet;

use residual_zoo_core::{ConfigError, ModelConfig, check};

use crate::quantity::is_curve;
use crate::{After, Axis, ChartSpec, Error, Experiment, PlannedRun, describe};

impl<C: ModelConfig> Experiment<C> {
    /// Checks that names are unique, and that what columns, charts and claims refer to exists.
    ///
    /// # Errors
    ///
    /// The first name that is wrong.
    pub fn check(&self) -> Result<(), Error> {
        let planned = self.plan(&[])?;
        let names = Names::of(self, &planned);
        self.check_seeds()?;
        self.check_measure()?;
        self.check_runs(&planned)?;
        self.check_columns(&names)?;
        self.check_charts(&names, &planned)?;
        Ok(self.check_claims(&names)?)
    }

    fn check_seeds(&self) -> Result<(), ConfigError> {
        check::at_least_one("seeds", self.seeds.len())?;
        let different: BTreeSet<u64> = self.seeds.iter().copied().collect();
        if different.len() < self.seeds.len() {
            return error("seeds", "has one of them twice".into());
        }
        Ok(())
    }

    fn check_measure(&self) -> Result<(), ConfigError> {
        if self.measure.is_some() && self.count.is_none() {
            let problem = "is given without `count`; a run that trains is measured anyway";
            return error("measure", problem.into());
        }
        Ok(())
    }

    fn check_runs(&self, planned: &[PlannedRun<C>]) -> Result<(), ConfigError> {
        check::at_least_one("runs", planned.len())?;
        if self.new_data.is_none() && self.runs.iter().any(|spec| spec.on_new_data) {
            return error("new_data", "is missing, and there are runs on it".into());
        }
        for (i, run) in planned.iter().enumerate() {
            let mut own = run.seeds.iter().flatten();
            if let Some(seed) = own.find(|seed| !self.seeds.contains(seed)) {
                let problem = format!("`{}` has {seed}, which the experiment has not", run.name);
                return error("seeds", problem);
            }
            if self.count.is_none() && run.config.is_none() {
                return error("runs", format!("`{}` has no model to train", run.name));
            }
            let is_before = |name: &str| planned[..i].iter().any(|run| run.name == name);
            if is_before(&run.name) {
                return error("runs", format!("has two called `{}`", run.name));
            }
            let is_missing = |after: &&After| !is_before(&after.run);
            if let Some(after) = run.after.as_ref().filter(is_missing) {
                let problem = format!("there is no run `{}` before `{}`", after.run, run.name);
                return error("after", problem);
            }
        }
        Ok(())
    }

    fn check_columns(&self, names: &Names) -> Result<(), ConfigError> {
        let unknown = self.columns.iter().find(|column| !names.measures(column));
        match unknown {
            Some(column) => error("columns", format!("nothing called `{column}` is measured")),
            None => Ok(()),
        }
    }

    fn check_charts(&self, names: &Names, planned: &[PlannedRun<C>]) -> Result<(), ConfigError> {
        for chart in &self.charts {
            names.check_chart(chart)?;
            let is_printed = |run: &PlannedRun<C>| {
                let is_drawn = chart.lines.is_empty() || chart.lines.contains(&run.line);
                is_drawn && run.published.contains_key(&chart.y)
            };
            if chart.printed && !planned.iter().any(is_printed) {
                let problem = format!("`{}`: no run says what was printed", chart.title);
                return error("charts", problem);
            }
        }
        Ok(())
    }

    fn check_claims(&self, names: &Names) -> Result<(), ConfigError> {
        for claim in &self.claims {
            let (runs, quantities) = claim.test.names();
            let unknown = |name: &&&str| !names.runs.contains(**name) && !names.is_line(name);
            if let Some(name) = runs.iter().find(unknown) {
                let problem = format!("`{}` refers to `{name}`, which is no run", claim.says);
                return error("claims", problem);
            }
            if let Some(name) = quantities.iter().find(|name| !names.measures(name)) {
                let problem = format!("`{}` refers to `{name}`, unknown", claim.says);
                return error("claims", problem);
            }
        }
        Ok(())
    }
}

/// What the parts of an experiment may refer to.
struct Names<'a> {
    runs: BTreeSet<&'a str>,
    lines: BTreeSet<&'a str>,
    /// The quantities that the experiment itself measures or gives.
    own: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of<C>(experiment: &Experiment<C>, planned: &'a [PlannedRun<C>]) -> Self {
        let runs = || planned.iter();
        // What was printed need not be measured.
        let given = runs().flat_map(|run| run.values.keys().chain(run.published.keys()));
        let measured = experiment
            .measure
            .map_or(&[][..], |measure| measure.names());
        Self {
            runs: runs().map(|run| run.name.as_str()).collect(),
            lines: runs().map(|run| run.line.as_str()).collect(),
            own: given
                .map(String::as_str)
                .chain(measured.iter().copied())
                .collect(),
        }
    }

    fn measures(&self, quantity: &str) -> bool {
        self.own.contains(quantity) || describe(quantity).is_some()
    }

    fn is_line(&self, name: &str) -> bool {
        self.lines.contains(name)
    }

    /// Checks the lines and axes of a chart.
    fn check_chart(&self, chart: &ChartSpec) -> Result<(), ConfigError> {
        if let Some(line) = chart.lines.iter().find(|line| !self.is_line(line)) {
            let problem = format!("`{}` draws `{line}`, which is no run", chart.title);
            return error("charts", problem);
        }
        let (x, y) = match chart.curves {
            true => (Axis::parse(&chart.x).is_some(), is_curve(&chart.y)),
            false => (self.measures(&chart.x), self.measures(&chart.y)),
        };
        for (quantity, is_known) in [(&chart.x, x), (&chart.y, y)] {
            if !is_known {
                let problem = format!("`{}` draws `{quantity}`, unknown there", chart.title);
                return error("charts", problem);
            }
        }
        Ok(())
    }
}

fn error(field: &str, problem: String) -> Result<(), ConfigError> {
    Err(ConfigError::new(field, problem))
}
