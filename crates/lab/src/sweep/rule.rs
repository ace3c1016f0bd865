//! A rule for the swept field on a ladder: a power of the size, fitted to the best values at the small sizes.

use residual_zoo_core::ConfigError;
use serde::{Deserialize, Serialize};

use super::{OVER, Sweep, Values};
use crate::{Ladder, PlannedRun};

/// A rule that gives the swept field a value at every size of a ladder. Each run is swept at a few sizes only. At each
/// of them, a parabola over the logarithm of the field goes through the lowest mean loss and the losses on both sides;
/// its minimum is the best value. For each run by itself, a power of the size is fitted to the best values at the sizes
/// `fitted`, and compared with the best value at the size `checked`. Then a power is fitted to the best values at all of
/// these sizes. At every size of the ladder, the run is trained with the value of this second power, rounded to three
/// digits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The names of the sizes to which the first power is fitted: two or more.
    pub fitted: Vec<String>,
    /// The name of a larger size, at which the first power is checked.
    pub checked: String,
    /// The largest loss, in nats, that the value of the first power may cost at the checked size, by the parabola there.
    /// If it costs more, or if the best value at one of the sizes has no neighbour with a loss on one side, the rule has failed for
    /// this run. Claims about such a run, or about gains over it, are then undecided.
    #[serde(default = "hundredth")]
    pub within: f64,
}

fn hundredth() -> f64 {
    0.01
}

impl Rule {
    /// Whether the run is swept.
    pub(crate) fn sweeps<C>(&self, run: &PlannedRun<C>) -> bool {
        let is_swept = |size: &String| self.fitted.contains(size) || *size == self.checked;
        let rung = run.rung.as_ref();
        rung.is_some_and(|rung| rung.tokens == 1.0 && is_swept(&rung.size))
    }

    /// Checks the rule of a sweep on `ladder`.
    pub(crate) fn check(&self, sweep: &Sweep, ladder: Option<&Ladder>) -> Result<(), ConfigError> {
        let error = |field: &str, problem: &str| Err(ConfigError::new(field, problem));
        let Some(ladder) = ladder else {
            let problem =
                "is given without a `ladder`, whose sizes it needs; add one, or leave the rule out";
            return error("sweep.rule", problem);
        };
        let position = |size: &String| ladder.sizes.iter().position(|known| known.name == *size);
        let all = self.fitted.iter().chain([&self.checked]);
        if let Some(size) = all.clone().find(|size| position(size).is_none()) {
            let problem = format!("has `{size}`, which is not a size of the ladder");
            return error("sweep.rule", &problem);
        }
        let positions: Vec<_> = all.map(position).collect();
        if self.fitted.len() < 2 || !positions.is_sorted_by(|a, b| a < b) {
            let problem = "needs two or more `fitted` sizes, from the smallest to the largest, and a `checked` size that is \
                           larger than all of them";
            return error("sweep.rule", problem);
        }
        if !(self.within.is_finite() && self.within >= 0.0) {
            let problem = format!("is {}; it must be at least 0", self.within);
            return error("sweep.rule.within", &problem);
        }
        if !sweep.tuned || sweep.halving.is_some() {
            let problem = "is given; it needs `tuned: true`, and no halving";
            return error("sweep.rule", problem);
        }
        match &sweep.over[..] {
            [swept] if matches!(&swept.values, Values::Log(range) if range.count < 3 && sweep.widen == 0) => {
                error(
                    OVER,
                    "has two values, but a rule needs a best value between two others; give three or more, or `widen`",
                )
            }
            [swept] if matches!(swept.values, Values::Log(_)) => Ok(()),
            _ => error(
                OVER,
                "must have a single field with `Log` values, because a rule is given",
            ),
        }
    }
}
