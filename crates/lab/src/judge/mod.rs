//! How each test of a claim comes to its verdict.

mod difference;
mod evidence;
mod line;
mod value;

use crate::{Claim, Judgement, Observation, Test, Verdict};
use difference::{close, compare, sooner};
use evidence::Found;
use line::{exponent, falls};
use value::{bound, is, ratio};

impl Claim {
    /// Tests the claim on what was observed.
    ///
    /// `lines` are the runs that were planned and the lines that they are on: a line that lacks a
    /// point is not tested.
    pub fn judge(&self, observations: &[Observation], lines: &[(&str, &str)]) -> Judgement {
        let observed = |run: &str| observations.iter().any(|found| found.run == run);
        let of_line = |(_, line): &&(&str, &str)| self.test.line() == Some(line);
        let mut of_line = lines.iter().filter(of_line);
        let found = match of_line.find(|(run, _)| !observed(run)) {
            Some((run, _)) => Err(format!("{run} is missing")),
            None => self.test.judge(observations),
        };
        let (verdict, because) = match found {
            Ok(found) => found,
            Err(missing) => (Verdict::NotTested, missing),
        };
        Judgement {
            claim: self.clone(),
            verdict,
            because,
        }
    }
}

impl Test {
    fn judge(&self, observations: &[Observation]) -> Found {
        match self {
            Self::Lower {
                quantity,
                run,
                than,
            } => compare(observations, quantity, (run, than), -1.0),
            Self::Higher {
                quantity,
                run,
                than,
            } => compare(observations, quantity, (run, than), 1.0),
            Self::Close {
                quantity,
                run,
                than,
                than_quantity,
                within,
            } => {
                let than_quantity = than_quantity.as_ref().unwrap_or(quantity);
                let quantities = (quantity.as_str(), than_quantity.as_str());
                close(observations, quantities, (run, than), *within)
            }
            Self::Falls {
                quantity,
                along,
                line,
            } => falls(observations, quantity, along, line),
            Self::Sooner { axis, run, than } => sooner(observations, *axis, run, than),
            Self::AtLeast {
                quantity,
                run,
                value,
            } => bound(observations, quantity, run, (*value, f64::INFINITY)),
            Self::AtMost {
                quantity,
                run,
                value,
            } => bound(observations, quantity, run, (f64::NEG_INFINITY, *value)),
            Self::Between {
                quantity,
                run,
                low,
                high,
            } => bound(observations, quantity, run, (*low, *high)),
            Self::Ratio {
                quantity,
                run,
                than,
                value,
                within,
            } => ratio(observations, quantity, (run, than), (*value, *within)),
            Self::Is {
                quantity,
                run,
                value,
                within,
            } => is(observations, quantity, run, *value, *within),
            Self::Exponent {
                quantity,
                along,
                line,
                low,
                high,
            } => exponent(observations, (quantity, along, line), *low, *high),
            Self::NotTested(why) => Err(why.clone()),
        }
    }
}
