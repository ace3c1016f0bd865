//! The results of a sweep: the points of each run, and the best point.

mod rule;

use std::collections::BTreeMap;
use std::path::PathBuf;

use residual_zoo_core::ModelConfig;
use serde::Serialize;

use crate::stats::Estimate;
use crate::sweep::{OVER, Point, Sweep, Value};
use crate::{Error, Missing, PlannedRun};

pub use rule::{Best, RuleFit};

/// The results of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuning {
    /// The sweep.
    pub sweep: Sweep,
    /// The runs that were swept.
    pub runs: Vec<SweptRun>,
    /// The values that the sweep's rule gives each run, if there is a rule and the sweep was not stopped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule: Vec<RuleFit>,
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

    /// Returns the mean validation loss, or infinity if there is none.
    pub(crate) fn rank(&self) -> f64 {
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
            let is_tuned = self.sweep.tuned && self.sweep.rule.is_none();
            if let Some(best) = run.best().filter(|_| is_tuned) {
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

    /// Returns the runs of `planned`, each at its best point or, if the sweep has a rule, at the rule's value. A run
    /// without a value is returned as missing.
    pub(crate) fn tuned<C: ModelConfig>(
        &mut self,
        planned: &[PlannedRun<C>],
    ) -> Result<(Vec<PlannedRun<C>>, Vec<Missing>), Error> {
        let fits = self.sweep.rule.as_ref().map(|rule| self.fit(rule, planned));
        let (mut tuned, mut missing) = (Vec::new(), Vec::new());
        for run in planned {
            let point = match &fits {
                Some(fits) => value_of_rule(fits, run),
                None => self.best_of(&run.name),
            };
            match point {
                Ok(values) => {
                    let point = Point(values);
                    let set = run.clone().set(&self.sweep.set(&point), OVER);
                    let set = set.and_then(|run| {
                        let config = run.config.as_ref();
                        config.map_or(Ok(()), |config| config.validate(1))?;
                        Ok(run)
                    });
                    let mut run = match set {
                        Ok(run) => run,
                        // Every point of the sweep was accepted, but a value of a rule lies between or beyond them.
                        Err(error) if fits.is_some() => {
                            let point = self.sweep.describe(&point);
                            missing.push(Missing {
                                run: run.name.clone(),
                                seed: None,
                                why: format!("the rule of the sweep gives {point}: {error}"),
                                diverged: false,
                            });
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                    // Adds the values, so that charts and tables can show them.
                    for (swept, value) in self.sweep.over.iter().zip(&point.0) {
                        if let Value::Number(value) = value {
                            run.values.insert(swept.name(), *value);
                        }
                    }
                    tuned.push(run);
                }
                Err((why, diverged)) => missing.push(Missing {
                    run: run.name.clone(),
                    seed: None,
                    why,
                    diverged,
                }),
            }
        }
        let fits = fits.into_iter().flatten();
        self.rule = fits.filter_map(|(_, fit)| fit.ok()).collect();
        Ok((tuned, missing))
    }

    /// Returns the values of the best point of a run, or the reason why it has none and whether all points diverged.
    fn best_of(&self, run: &str) -> Result<Vec<Value>, (String, bool)> {
        let swept = self.runs.iter().find(|swept| swept.run == run);
        let swept = swept.ok_or_else(|| ("was not swept".to_owned(), false))?;
        let best = swept.best().map(|best| best.values.clone());
        best.ok_or_else(|| (swept.failure(), swept.broken.is_none()))
    }

    /// Chooses the best point of every run among the points that were trained to the end.
    pub(crate) fn choose(&mut self) {
        for run in &mut self.runs {
            let whole = run.tried.iter().enumerate();
            let whole = whole.filter(|(_, tried)| tried.share == 1.0 && tried.loss().is_some());
            let best = whole.min_by(|(_, a), (_, b)| a.rank().total_cmp(&b.rank()));
            run.best = best.map(|(i, _)| i).filter(|_| run.broken.is_none());
        }
    }
}

/// Returns the value that the rule gives a run, or the reason why it gives none.
fn value_of_rule<C>(
    fits: &[(String, Result<RuleFit, String>)],
    run: &PlannedRun<C>,
) -> Result<Vec<Value>, (String, bool)> {
    let rung = run.rung.as_ref();
    let fit = rung.and_then(|rung| fits.iter().find(|(name, _)| *name == rung.run));
    let value = match fit.map(|(_, fit)| fit) {
        Some(Ok(fit)) => rung.and_then(|rung| fit.at(&rung.size)),
        Some(Err(why)) => {
            return Err((format!("the rule of the sweep has no value: {why}"), false));
        }
        None => None,
    };
    let value = value.ok_or_else(|| ("is not on the ladder".to_owned(), false))?;
    Ok(vec![Value::Number(value)])
}
