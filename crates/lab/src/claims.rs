//! Claims of papers, their tests, and the verdicts.

use std::ops::Not;

use residual_zoo_report::Tone;
use serde::{Deserialize, Serialize};

use crate::Axis;
use crate::stats::holm;

/// A claim of a paper, to be tested by an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim as a sentence.
    pub says: String,
    /// The place of the claim in the paper: a table, a figure or a section.
    pub source: String,
    /// The numbers that the paper reports for the claim.
    #[serde(default)]
    pub published: String,
    /// The test that decides whether the claim holds.
    pub test: Test,
    /// Whether the claim is primary: one of the few claims that the experiment was designed to test. Primary claims are
    /// named before their results are known. They form one family, within which p-values are corrected. All other
    /// claims are exploratory, and form a second family.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub primary: bool,
}

/// The test of a claim. Runs are compared seed by seed. A difference is significant only if the 95 % confidence
/// interval of its mean over the seeds (Student's t) excludes zero. Its p-value must also be below 0.05 after Holm's
/// correction for the number of claims in the same family. With [`By::Seeds`], or if `run` of [`Test::Sooner`] never
/// reaches the loss with some seed, a sign test takes the place of the interval.
///
/// A line of runs consists of all runs with the same [`RunSpec::line`](crate::RunSpec::line).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Test {
    /// `run` has less of `quantity` than `than`, or at most `within` more.
    Lower(Compared),
    /// `run` has more of `quantity` than `than`, or at most `within` less.
    Higher(Compared),
    /// `run` and `than` differ in `quantity` by at most `within`.
    Close(Close),
    /// `quantity` falls along a line of runs as `along` grows: the slope of `quantity` over the logarithm of `along` is
    /// negative, and the mean over the seeds never rises from one value of `along` to the next.
    Falls(Falls),
    /// `quantity` is above 0 and shrinks along a line of runs by at most `within` for each doubling of `along`. The slope
    /// of `quantity` over the binary logarithm of `along` is above −`within`, `quantity` is above 0 at the largest
    /// `along`, and its mean over the seeds is above 0 everywhere.
    Keeps(Keeps),
    /// The line of runs `line` has less of `quantity` than the line `than` at equal `along`.
    Below(Below),
    /// `run` reaches the final validation loss of `than`, or a given loss, with less of `axis`.
    Sooner(Sooner),
    /// `quantity` of `run` is at least `value` for every seed.
    AtLeast(Bound),
    /// `quantity` of `run` is at most `value` for every seed.
    AtMost(Bound),
    /// `quantity` of `run` is between `low` and `high` for every seed.
    Between(Between),
    /// The ratio of `quantity` in `run` to `quantity` in `than` is `value` ± `within`. The claim holds if the 95 %
    /// confidence interval of the ratio over the seeds lies inside these bounds. If the whole interval lies outside,
    /// the claim does not hold.
    Ratio(Ratio),
    /// The mean of `quantity` over the seeds of `run` is `value` ± `within`.
    Is(Is),
    /// `quantity` along a line of runs is a power of `along`, and the 95 % confidence interval of
    /// the exponent lies between `low` and `high`.
    Exponent(Exponent),
    /// The transfer of the best setting from one line of runs to another costs less than the transfer between two other
    /// lines.
    Transfers(Transfers),
    /// The claim cannot be tested at this scale, for the given reason.
    NotTested(String),
}

/// The fields of [`Test::Lower`] and [`Test::Higher`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// The name of the quantity.
    pub quantity: String,
    /// The name of the run.
    pub run: String,
    /// The name of the other run.
    pub than: String,
    /// The difference between two other runs, which is subtracted. The claim is then about a difference in differences:
    /// how much more a change affects one model than another. `None` subtracts nothing.
    #[serde(default)]
    pub beyond: Option<Beyond>,
    /// The largest tolerated difference in the opposite direction, for a claim that a run is at least as good as
    /// another.
    #[serde(default)]
    pub within: f64,
    /// The tested value: the mean difference, or the number of seeds with the claimed sign.
    #[serde(default, skip_serializing_if = "By::is_mean")]
    pub by: By,
}

/// The value that [`Test::Lower`] and [`Test::Higher`] test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// The mean difference over the seeds.
    #[default]
    Mean,
    /// The number of seeds in which the difference has the claimed sign (sign test). In a mean, a single seed with a
    /// very high loss can outweigh all others; here, it counts as one seed.
    Seeds,
}

impl By {
    /// Whether the mean is tested. If so, the field is omitted from a claim's text, so that claims of earlier versions
    /// keep their hash.
    fn is_mean(&self) -> bool {
        *self == Self::Mean
    }
}

/// A difference between two runs that is subtracted from another difference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beyond {
    /// The name of the run.
    pub run: String,
    /// The name of the run whose value is subtracted.
    pub than: String,
}

/// The fields of [`Test::Close`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Close {
    /// The name of the quantity.
    pub quantity: String,
    /// The name of the run.
    pub run: String,
    /// The name of the other run.
    pub than: String,
    /// The quantity of the other run; `None` for the same quantity.
    #[serde(default)]
    pub than_quantity: Option<String>,
    /// The largest difference at which the claim holds.
    pub within: f64,
}

/// The fields of [`Test::Falls`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Falls {
    /// The name of the quantity.
    pub quantity: String,
    /// The name of the quantity that grows along the line.
    pub along: String,
    /// The name of the line of runs.
    pub line: String,
}

/// The fields of [`Test::Keeps`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keeps {
    /// The name of the quantity, such as `gain` on a ladder.
    pub quantity: String,
    /// The name of the quantity that grows along the line.
    pub along: String,
    /// The name of the line of runs.
    pub line: String,
    /// The largest tolerated fall for each doubling of `along`.
    pub within: f64,
}

/// The fields of [`Test::Below`]. For each seed, the tested value is the mean distance of the runs of `line` from the
/// line `than`. The line `than` is interpolated linearly between neighbouring runs, over the logarithm of `along`. Runs
/// of `line` beyond the ends of `than` do not count. The claim is undecided if, averaged over the seeds, some runs are
/// above `than` and others below.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Below {
    /// The name of the quantity, which should be low.
    pub quantity: String,
    /// The quantity at which the lines are compared, such as FLOPs.
    pub along: String,
    /// The name of the line of runs.
    pub line: String,
    /// The name of the other line.
    pub than: String,
}

/// The fields of [`Test::Transfers`]. The cost of a transfer is measured on the line `to`: `quantity` at the best
/// `along` of the line `from`, minus `quantity` at the best `along` of `to`. For each seed, the best `along` has the
/// lowest mean of `quantity` over the other seeds or, if a run has a single seed, over all seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfers {
    /// The name of the quantity, which should be low.
    pub quantity: String,
    /// The setting that is transferred, such as a learning rate.
    pub along: String,
    /// The line on which the setting is tuned.
    pub from: String,
    /// The line on which the setting is used.
    pub to: String,
    /// The two lines of the other transfer.
    pub than: Lines,
}

/// Two lines of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lines {
    /// The line on which the setting is tuned.
    pub from: String,
    /// The line on which the setting is used.
    pub to: String,
}

/// The fields of [`Test::Sooner`]. If `run` never reaches the loss with some seed, a sign test counts the seeds for
/// which `run` reaches the loss with less of `axis` than `than`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sooner {
    /// Tokens, FLOPs or seconds.
    pub axis: Axis,
    /// The name of the run.
    pub run: String,
    /// The name of the other run.
    pub than: String,
    /// The validation loss to reach; `None` for the final loss of `than`. With a loss, the tested value is the mean over
    /// the seeds of the share of `axis` that `run` saves until it first reaches this loss, interpolated between
    /// validations. Choose the loss beforehand, so that both runs reach it with every seed. If one of them does not, the
    /// seeds are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

/// The fields of [`Test::AtLeast`] and [`Test::AtMost`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// The name of the quantity.
    pub quantity: String,
    /// The name of the run.
    pub run: String,
    /// The bound.
    pub value: f64,
}

/// The fields of [`Test::Between`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Between {
    /// The name of the quantity.
    pub quantity: String,
    /// The name of the run.
    pub run: String,
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

/// The fields of [`Test::Ratio`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// The name of the quantity.
    pub quantity: String,
    /// The name of the run.
    pub run: String,
    /// The name of the other run.
    pub than: String,
    /// The expected ratio.
    pub value: f64,
    /// The largest difference from `value` at which the claim holds.
    pub within: f64,
}

/// The fields of [`Test::Is`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Is {
    /// The name of the quantity.
    pub quantity: String,
    /// The name of the run.
    pub run: String,
    /// The expected mean.
    pub value: f64,
    /// The largest difference from `value` at which the claim holds.
    pub within: f64,
}

/// The fields of [`Test::Exponent`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exponent {
    /// The name of the quantity.
    pub quantity: String,
    /// The name of the quantity that grows along the line.
    pub along: String,
    /// The name of the line of runs.
    pub line: String,
    /// The lower bound of the exponent.
    pub low: f64,
    /// The upper bound of the exponent.
    pub high: f64,
}

impl Test {
    /// Returns the names of the runs (or of the lines of runs) and of the quantities to which the test refers.
    pub(crate) fn names(&self) -> (Vec<&str>, Vec<&str>) {
        match self {
            Self::Lower(it) | Self::Higher(it) => {
                let beyond = it.beyond.iter();
                let beyond = beyond.flat_map(|beyond| [&*beyond.run, &*beyond.than]);
                let runs = [&*it.run, &*it.than].into_iter().chain(beyond);
                (runs.collect(), vec![&it.quantity])
            }
            Self::Close(it) => {
                let other = it.than_quantity.as_deref().unwrap_or(&it.quantity);
                (vec![&it.run, &it.than], vec![&it.quantity, other])
            }
            Self::Falls(it) => (vec![&it.line], vec![&it.quantity, &it.along]),
            Self::Keeps(it) => (vec![&it.line], vec![&it.quantity, &it.along]),
            Self::Below(it) => (vec![&it.line, &it.than], vec![&it.quantity, &it.along]),
            Self::Sooner(it) => (vec![&it.run, &it.than], vec![]),
            Self::AtLeast(it) | Self::AtMost(it) => (vec![&it.run], vec![&it.quantity]),
            Self::Between(it) => (vec![&it.run], vec![&it.quantity]),
            Self::Ratio(it) => (vec![&it.run, &it.than], vec![&it.quantity]),
            Self::Is(it) => (vec![&it.run], vec![&it.quantity]),
            Self::Exponent(it) => (vec![&it.line], vec![&it.quantity, &it.along]),
            Self::Transfers(it) => {
                let lines = vec![&*it.from, &it.to, &it.than.from, &it.than.to];
                (lines, vec![&it.quantity, &it.along])
            }
            Self::NotTested(_) => (vec![], vec![]),
        }
    }

    /// Returns the lines of runs to which the test refers.
    pub(crate) fn lines(&self) -> Vec<&str> {
        match self {
            Self::Falls(Falls { line, .. })
            | Self::Keeps(Keeps { line, .. })
            | Self::Exponent(Exponent { line, .. }) => vec![line],
            Self::Below(_) | Self::Transfers(_) => self.names().0,
            _ => Vec::new(),
        }
    }
}

/// The result of testing a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The claim holds.
    Holds,
    /// The measurements contradict the claim.
    DoesNotHold,
    /// The seeds do not decide the claim.
    Undecided,
    /// The claim was not tested.
    NotTested,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Self; 4] = [
        Self::Holds,
        Self::DoesNotHold,
        Self::Undecided,
        Self::NotTested,
    ];

    pub(crate) fn of(holds: bool) -> Self {
        match holds {
            true => Self::Holds,
            false => Self::DoesNotHold,
        }
    }

    /// Returns the name of the verdict in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::Undecided => "undecided",
            Self::NotTested => "not tested",
        }
    }

    /// Returns the name with a sign before it, such as `✓ holds`.
    pub fn signed(self) -> String {
        let sign = match self {
            Self::Holds => "✓",
            Self::DoesNotHold => "✗",
            Self::Undecided => "?",
            Self::NotTested => "–",
        };
        format!("{sign} {}", self.name())
    }

    /// Returns the color of the name on a page.
    pub fn tone(self) -> Tone {
        match self {
            Self::Holds => Tone::Good,
            Self::DoesNotHold => Tone::Bad,
            Self::Undecided => Tone::Open,
            Self::NotTested => Tone::Muted,
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
    /// The numbers behind the verdict.
    pub because: String,
    /// The margin, a short text that tables show under the value of the claim's run: the difference from the other run
    /// with its confidence interval, a bound, or a tolerance. `None` if no single value is tested.
    pub margin: Option<String>,
    /// The p-value of a difference over several seeds, under the hypothesis of no difference; `None` for other tests.
    /// It is 1 if a run of the claim is missing.
    pub p: Option<f64>,
}

impl Judgement {
    /// Marks a claim as not tested, because its runs only check that everything works. Claims about the cost of models
    /// are still tested, because cost does not depend on the length of a run.
    pub(crate) fn set_aside(&mut self) {
        if self.claim.test.is_counted() {
            return;
        }
        if self.verdict != Verdict::NotTested {
            self.because += "; these runs are too short to judge it";
        }
        self.verdict = Verdict::NotTested;
    }

    /// Says that the sweep's rule has failed for these runs of the claim. A decided claim becomes undecided.
    pub(crate) fn doubt(&mut self, runs: &[&str]) {
        if self.claim.test.is_counted() || self.verdict == Verdict::NotTested {
            return;
        }
        let runs = runs.join(" and ");
        self.because += &format!("; undecided, because the rule of the sweep failed for {runs}");
        self.verdict = Verdict::Undecided;
    }

    /// Corrects the verdicts of an experiment for the number of claims in each family. A difference that is significant
    /// by itself, but not after Holm's correction, is undecided. If any claim is primary, also states each p-value as
    /// corrected in a single family of all claims.
    pub(crate) fn correct(claims: &mut [Self]) {
        let all: Vec<f64> = claims.iter().filter_map(|it| it.p).collect();
        let in_one: Vec<f64> = holm(&all);
        let has_families = claims.iter().any(|it| it.claim.primary);
        let tested = claims.iter_mut().filter(|it| it.p.is_some());
        let tested: Vec<(&mut Self, f64)> = tested.zip(in_one).collect();
        let (primary, others): (Vec<_>, Vec<_>) =
            tested.into_iter().partition(|(it, _)| it.claim.primary);
        for family in [primary, others] {
            Self::correct_family(family, has_families);
        }
    }

    /// Corrects the verdicts of a family for the number of its claims. Each claim comes with its p-value as corrected
    /// in a single family of all claims. This p-value is shown if `has_families` is set.
    fn correct_family(family: Vec<(&mut Self, f64)>, has_families: bool) {
        let p: Vec<f64> = family.iter().filter_map(|(it, _)| it.p).collect();
        let count = p.len();
        for ((it, in_one), (p, corrected)) in family.into_iter().zip(p.iter().zip(holm(&p))) {
            let short = |p| p_value(p).trim_start_matches("= ").to_owned();
            // The p-value of identical runs is 1, and is omitted.
            if *p < 1.0 || it.because.ends_with("sign test") {
                it.because += &format!("; p {}", p_value(*p));
                if count > 1 {
                    it.because += &format!(", corrected {}", short(corrected));
                }
                if has_families {
                    it.because += &format!(" ({} in one family of all claims)", short(in_one));
                }
            }
            let decided = matches!(it.verdict, Verdict::Holds | Verdict::DoesNotHold);
            if decided && corrected >= 0.05 {
                it.verdict = Verdict::Undecided;
            }
        }
    }
}

fn p_value(p: f64) -> String {
    match p < 0.001 {
        true => "< 0.001".into(),
        false => format!("= {p:.3}"),
    }
}
