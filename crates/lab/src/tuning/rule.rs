//! Fits the [`Rule`] of a sweep on a ladder to the results of the sweep.

use residual_zoo_report::sig;
use serde::Serialize;

use super::{SweptRun, Tuning};
use crate::sweep::{Rule, Value, rounded};
use crate::{Line, PlannedRun};

/// The values that a rule gives a run at the sizes of a ladder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleFit {
    /// The name of the run, without a size.
    pub run: String,
    /// The best values at the fitted sizes.
    pub fitted: Vec<Best>,
    /// The best value at the checked size.
    pub checked: Best,
    /// The value at the checked size of the power that is fitted to the fitted sizes alone.
    pub at_checked: f64,
    /// The loss, in nats, that this value costs by the parabola at the checked size; `None` if it is not between the
    /// neighbours of the best point.
    pub cost: Option<f64>,
    /// The exponent of the power that is fitted to all of these sizes.
    pub exponent: f64,
    /// The value of this power at each size, by the name of the size. Runs on more tokens have it too.
    pub values: Vec<(String, f64)>,
    /// The reason why the rule has failed for this run; `None` if it has not.
    pub failure: Option<String>,
}

/// The best value of a swept field at one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Best {
    /// The name of the size.
    pub size: String,
    /// The number of non-embedding parameters of the baseline at this size.
    pub parameters: f64,
    /// The value: the minimum of a parabola over the logarithm of the field, through the best point of the sweep and
    /// its neighbours. Without two neighbours, the value of the best point.
    pub value: f64,
    /// The values of the two neighbours; `None` if the best point lacks one.
    pub between: Option<(f64, f64)>,
    /// Half the second derivative of the parabola, in nats.
    #[serde(skip)]
    curvature: f64,
}

impl Best {
    /// Returns the loss, in nats, that another value costs by the parabola. Returns `None` if the value is not between
    /// the neighbours.
    pub(crate) fn cost(&self, value: f64) -> Option<f64> {
        let (low, high) = self.between?;
        let far = (value / self.value).ln();
        (low..=high)
            .contains(&value)
            .then_some(self.curvature * far * far)
    }

    /// Finds the best value of a run at the size `size`.
    fn of(run: &SweptRun, (size, parameters): (&str, f64)) -> Result<Self, String> {
        let point = |tried: &super::TriedPoint| match tried.values[..] {
            [Value::Number(x)] if tried.share == 1.0 => Some((x, tried.loss()?.mean)),
            _ => None,
        };
        let mut points: Vec<(f64, f64)> = run.tried.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let best = points
            .iter()
            .enumerate()
            .min_by(|a, b| a.1.1.total_cmp(&b.1.1));
        let (at, (x1, y1)) = match (best, run.best) {
            (Some((at, point)), Some(_)) => (at, *point),
            _ => return Err(format!("{}: {}", run.run, run.failure())),
        };
        let around = at
            .checked_sub(1)
            .and_then(|left| Some((points[left], *points.get(at + 1)?)));
        let mut best = Self {
            size: size.to_owned(),
            parameters,
            value: x1,
            between: None,
            curvature: 0.0,
        };
        if let Some(((x0, y0), (x2, y2))) = around {
            let [left, mid, right] = [x0, x1, x2].map(f64::ln);
            let (first, second) = ((y1 - y0) / (mid - left), (y2 - y1) / (right - mid));
            best.between = Some((x0, x2));
            best.curvature = (second - first) / (right - left);
            if best.curvature > 0.0 {
                best.value = ((left + mid) / 2.0 - first / (2.0 * best.curvature)).exp();
            }
        }
        Ok(best)
    }
}

impl RuleFit {
    /// Returns the value at a size.
    pub(crate) fn at(&self, size: &str) -> Option<f64> {
        let own = self.values.iter().find(|(own, _)| own == size);
        own.map(|(_, value)| *value)
    }

    /// Returns the reason why the rule has failed for the run, if it has.
    fn failure(&self, within: f64) -> Option<String> {
        let run = &self.run;
        let mut bests = self.fitted.iter().chain([&self.checked]);
        if let Some(best) = bests.find(|best| best.between.is_none()) {
            let size = &best.size;
            return Some(format!(
                "the best value of {run} at {size} has no neighbour with a loss on one side"
            ));
        }
        let (size, value) = (&self.checked.size, self.at_checked);
        let best = sig(self.checked.value, 3);
        match self.cost {
            None => Some(format!(
                "for {run} at {size}, the rule predicts {value}, far from the best value, {best}"
            )),
            Some(cost) if cost > within => Some(format!(
                "for {run} at {size}, the rule predicts {value}, which costs {cost:.4} nats more than the best value, {best}; \
                 tolerance {within}"
            )),
            Some(_) => None,
        }
    }
}

impl Tuning {
    /// Fits the rule to the results of the sweep, for each run of `planned`. For a run without a best value at one of
    /// the sizes, returns the reason.
    pub(crate) fn fit<C>(
        &self,
        rule: &Rule,
        planned: &[PlannedRun<C>],
    ) -> Vec<(String, Result<RuleFit, String>)> {
        let mut fits: Vec<(String, Result<RuleFit, String>)> = Vec::new();
        for rung in planned.iter().filter_map(|run| run.rung.as_ref()) {
            if fits.iter().all(|(run, _)| *run != rung.run) {
                fits.push((rung.run.clone(), self.fit_of(rule, planned, &rung.run)));
            }
        }
        fits
    }

    fn fit_of<C>(
        &self,
        rule: &Rule,
        planned: &[PlannedRun<C>],
        run: &str,
    ) -> Result<RuleFit, String> {
        let own = planned
            .iter()
            .filter_map(|planned| Some((planned, planned.rung.as_ref()?)));
        let own: Vec<_> = own.filter(|(_, rung)| rung.run == run).collect();
        let best = |size: &String| {
            let at_size = own
                .iter()
                .find(|(_, rung)| rung.size == *size && rung.tokens == 1.0);
            let swept = at_size.and_then(|(planned, rung)| {
                let swept = self.runs.iter().find(|swept| swept.run == planned.name)?;
                Some((swept, rung.parameters))
            });
            let (swept, parameters) =
                swept.ok_or_else(|| format!("the sweep at {size} was left out"))?;
            Best::of(swept, (size, parameters))
        };
        let fitted = rule
            .fitted
            .iter()
            .map(best)
            .collect::<Result<Vec<Best>, String>>()?;
        let checked = best(&rule.checked)?;
        let power = |bests: &[&Best]| {
            let points = bests.iter().map(|best| (best.parameters, best.value));
            let power = Line::power_law(&points.collect::<Vec<_>>());
            power.ok_or("the rule has no power law")
        };
        let at = |power: Line, parameters: f64| {
            rounded((power.intercept + power.slope * parameters.ln()).exp())
        };
        let of_fitted: Vec<&Best> = fitted.iter().collect();
        let at_checked = at(power(&of_fitted)?, checked.parameters);
        let whole = power(&[&of_fitted[..], &[&checked]].concat())?;
        let at_size = own.iter().filter(|(_, rung)| rung.tokens == 1.0);
        let values = at_size.map(|(_, rung)| (rung.size.clone(), at(whole, rung.parameters)));
        let mut fit = RuleFit {
            run: run.to_owned(),
            at_checked,
            cost: checked.cost(at_checked),
            exponent: whole.slope,
            values: values.collect(),
            fitted,
            checked,
            failure: None,
        };
        fit.failure = fit.failure(rule.within);
        Ok(fit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::TriedPoint;

    /// Makes a swept run with these values and losses.
    fn swept(points: &[(f64, Option<f64>)]) -> SweptRun {
        let tried = points.iter().map(|(x, loss)| TriedPoint {
            values: vec![Value::Number(*x)],
            set: Vec::new(),
            share: 1.0,
            tokens: 1.0,
            directories: Vec::new(),
            losses: vec![*loss],
            failed: loss.is_none().then(|| "diverged".into()),
            is_beyond: false,
            is_untrained: false,
        });
        let mut run = SweptRun {
            run: "plain, small".into(),
            tried: tried.collect(),
            best: None,
            broken: None,
        };
        let losses = points
            .iter()
            .enumerate()
            .filter_map(|(i, (_, loss))| Some((i, (*loss)?)));
        run.best = losses.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i);
        run
    }

    fn best(points: &[(f64, Option<f64>)]) -> Best {
        Best::of(&swept(points), ("small", 100.0)).unwrap()
    }

    #[test]
    fn the_best_value_is_the_minimum_of_a_parabola_over_the_logarithm() {
        // The losses are 2 + 0.5 (ln x − ln 0.005)², at unequal ratios and out of order.
        let loss = |x: f64| Some(2.0 + 0.5 * (x / 0.005f64).ln().powi(2));
        let found = best(&[0.012, 0.001, 0.003, 0.006].map(|x| (x, loss(x))));
        assert!((found.value / 0.005 - 1.0).abs() < 1e-9, "{}", found.value);
        assert_eq!(found.between, Some((0.003, 0.012)));
        let cost = found.cost(0.01).unwrap();
        assert!((cost - 0.5 * 2f64.ln().powi(2)).abs() < 1e-9, "{cost}");
        assert_eq!(found.cost(0.02), None);
    }

    #[test]
    fn a_best_point_without_two_neighbours_keeps_its_value() {
        let at_end = best(&[(0.001, Some(2.0)), (0.002, Some(2.1)), (0.004, Some(2.3))]);
        assert_eq!((at_end.value, at_end.between), (0.001, None));
        // The next value diverged.
        let last = best(&[(0.001, Some(2.2)), (0.002, Some(2.1)), (0.004, None)]);
        assert_eq!((last.value, last.between), (0.002, None));
        let flat = best(&[(0.001, Some(2.0)), (0.002, Some(2.0)), (0.004, Some(2.0))]);
        assert_eq!(flat.value, 0.001);
        let none = Best::of(&swept(&[(0.001, None)]), ("small", 100.0));
        assert_eq!(
            none.unwrap_err(),
            "plain, small: every point of the sweep diverged"
        );
    }

    #[test]
    fn a_rule_fails_where_its_value_costs_too_much_or_a_best_value_has_no_neighbours() {
        let failure = |points: &[(f64, Option<f64>)], at_checked: f64| {
            let checked = best(points);
            let fit = RuleFit {
                run: "plain".into(),
                exponent: -0.5,
                fitted: Vec::new(),
                at_checked,
                cost: checked.cost(at_checked),
                checked,
                values: Vec::new(),
                failure: None,
            };
            fit.failure(0.01)
        };
        // A factor of 2 costs 0.1 nats, so a factor of 2^0.3 costs 0.009 and one of 2^0.4 costs 0.016.
        let points = [(0.001, Some(2.1)), (0.002, Some(2.0)), (0.004, Some(2.1))];
        assert_eq!(failure(&points, 0.002 * 2f64.powf(0.3)), None);
        assert_eq!(
            failure(&points, 0.002_639).unwrap(),
            "for plain at small, the rule predicts 0.002639, which costs 0.0160 nats more than the best value, 0.00200; \
             tolerance 0.01"
        );
        assert_eq!(
            failure(&points, 0.0045).unwrap(),
            "for plain at small, the rule predicts 0.0045, far from the best value, 0.00200"
        );
        assert_eq!(
            failure(&points[1..], 0.002).unwrap(),
            "the best value of plain at small has no neighbour with a loss on one side"
        );
    }
}
