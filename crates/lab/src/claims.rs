//! Claims of the papers, how each is tested, and the verdicts.

use serde::{Deserialize, Serialize};

use crate::Axis;

/// A claim of a paper that an experiment tests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim as a sentence.
    pub says: String,
    /// Its place in the paper: a table, a figure, a section.
    pub source: String,
    /// The numbers that the paper prints for it.
    #[serde(default)]
    pub published: String,
    /// How it is tested.
    pub test: Test,
}

/// How a claim is tested. Runs are compared seed by seed. A difference is significant when the 95 %
/// confidence interval of its mean over the seeds (Student's t) excludes zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Test {
    /// `run` has less of `quantity` than `than`.
    Lower {
        /// The quantity.
        quantity: String,
        /// The run that should have less.
        run: String,
        /// The run that it is compared with.
        than: String,
    },
    /// `run` has more of `quantity` than `than`.
    Higher {
        /// The quantity.
        quantity: String,
        /// The run that should have more.
        run: String,
        /// The run that it is compared with.
        than: String,
    },
    /// `run` and `than` differ in `quantity` by at most `within`.
    Close {
        /// The quantity.
        quantity: String,
        /// One run.
        run: String,
        /// The run that it is compared with.
        than: String,
        /// The quantity of the other run; `None` for the same.
        #[serde(default)]
        than_quantity: Option<String>,
        /// The largest difference that is still close.
        within: f64,
    },
    /// `quantity` falls along the line of runs as `along` grows: the slope over its logarithm is
    /// negative.
    Falls {
        /// The quantity.
        quantity: String,
        /// What grows.
        along: String,
        /// The line.
        line: String,
    },
    /// `run` reaches the last validation loss of `than` with less of `axis`.
    Sooner {
        /// Tokens, FLOPs or seconds.
        axis: Axis,
        /// The run that should need less.
        run: String,
        /// The run that it is compared with.
        than: String,
    },
    /// Every seed of `run` has at least `value`.
    AtLeast {
        /// The quantity.
        quantity: String,
        /// The run.
        run: String,
        /// The value.
        value: f64,
    },
    /// Every seed of `run` has at most `value`.
    AtMost {
        /// The quantity.
        quantity: String,
        /// The run.
        run: String,
        /// The value.
        value: f64,
    },
    /// Every seed of `run` is between `low` and `high`.
    Between {
        /// The quantity.
        quantity: String,
        /// The run.
        run: String,
        /// The lower bound.
        low: f64,
        /// The upper bound.
        high: f64,
    },
    /// The mean over the seeds of `run` is `value` times that of `than`, up to `within`.
    Ratio {
        /// The quantity.
        quantity: String,
        /// The run.
        run: String,
        /// The run that it is compared with.
        than: String,
        /// The ratio.
        value: f64,
        /// The largest difference.
        within: f64,
    },
    /// The mean over the seeds of `run` is `value`, up to `within`.
    Is {
        /// The quantity.
        quantity: String,
        /// The run.
        run: String,
        /// The value.
        value: f64,
        /// The largest difference.
        within: f64,
    },
    /// `quantity` along a line of runs is a power of `along`, and the 95 % confidence interval of
    /// the exponent lies between `low` and `high`.
    Exponent {
        /// The quantity.
        quantity: String,
        /// What it is a power of.
        along: String,
        /// The line.
        line: String,
        /// The least exponent.
        low: f64,
        /// The largest exponent.
        high: f64,
    },
    /// The claim cannot be tested at this scale, for this reason.
    NotTested(String),
}

impl Test {
    /// The runs and quantities that it refers to.
    pub(crate) fn names(&self) -> (Vec<&str>, Vec<&str>) {
        match self {
            Self::Lower {
                quantity,
                run,
                than,
            }
            | Self::Higher {
                quantity,
                run,
                than,
            }
            | Self::Ratio {
                quantity,
                run,
                than,
                ..
            } => (vec![run, than], vec![quantity]),
            Self::Close {
                quantity,
                run,
                than,
                than_quantity,
                ..
            } => {
                let quantities = [Some(quantity), than_quantity.as_ref()];
                let quantities = quantities.into_iter().flatten().map(String::as_str);
                (vec![run, than], quantities.collect())
            }
            Self::Falls {
                quantity,
                along,
                line,
            }
            | Self::Exponent {
                quantity,
                along,
                line,
                ..
            } => (vec![line], vec![quantity, along]),
            Self::Sooner { run, than, .. } => (vec![run, than], vec![]),
            Self::AtLeast { quantity, run, .. }
            | Self::AtMost { quantity, run, .. }
            | Self::Between { quantity, run, .. }
            | Self::Is { quantity, run, .. } => (vec![run], vec![quantity]),
            Self::NotTested(_) => (vec![], vec![]),
        }
    }

    /// The line of runs that it tests, if it tests one.
    pub(crate) fn line(&self) -> Option<&str> {
        match self {
            Self::Falls { line, .. } | Self::Exponent { line, .. } => Some(line),
            _ => None,
        }
    }
}

/// The result of testing a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It holds.
    Holds,
    /// The opposite was measured.
    DoesNotHold,
    /// The seeds do not agree.
    Undecided,
    /// It was not tested.
    NotTested,
}

impl Verdict {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::Undecided => "undecided",
            Self::NotTested => "not tested at this scale",
        }
    }
}

/// A claim with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// The claim.
    pub claim: Claim,
    /// The verdict.
    pub verdict: Verdict,
    /// The numbers behind it.
    pub because: String,
}
