//! Reads the claims of a results page.

use std::fs;

use residual_zoo_testing::root;

use super::pages::Table;

/// The published results of an experiment.
pub struct Results {
    pub name: String,
    pub claims: Vec<Row>,
    /// Seeds, passes over the text and time.
    pub budget: String,
    /// Whether models were trained.
    pub is_trained: bool,
}

/// The end of the text of a claim that no paper makes.
const NOT_IN_PAPER: &str = "(not in the paper)";

/// A claim with its verdict.
#[derive(Clone)]
pub struct Row {
    pub says: String,
    pub sign: char,
    pub found: String,
    pub reported: String,
    /// The p-value before any correction.
    pub p: Option<P>,
    /// The smallest difference that the seeds would show in 80 % of cases, as text.
    pub detectable: Option<String>,
}

/// A p-value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct P {
    pub value: f64,
    /// Whether the p-value is below `value`, as in `< 0.001`.
    pub is_below: bool,
}

impl Results {
    pub fn read(name: &str) -> Self {
        let path = root().join(format!("docs/results/{name}.md"));
        let page = fs::read_to_string(path).unwrap();
        let claims = page.lines().filter_map(Row::read).collect();
        let after = |start: &str| page.split(start).nth(1)?.split_whitespace().next();
        let time = page
            .lines()
            .find_map(|line| line.strip_suffix(" of training"));
        // With several texts, each text has its own number of passes.
        let passes = Table::of(&page, "Data").and_then(|data| {
            let column = data.column("passes")?;
            let passes: Vec<&str> = data.rows.iter().map(|row| row[column].as_str()).collect();
            Some(passes.join(" and "))
        });
        let seeds = after("Means over ");
        let budget = match (time, seeds, passes.as_deref()) {
            (None, None, _) => "exact".into(),
            (None, Some(seeds), _) => format!("{seeds} measurements"),
            // Generated data have no passes.
            (Some(time), Some(seeds), passes)
                if passes.is_none_or(|passes| passes.contains('–')) =>
            {
                format!("{seeds} seeds, {time}")
            }
            (Some(time), Some(seeds), Some(passes)) => {
                format!("{seeds} seeds, {passes} passes, {time}")
            }
            (Some(time), ..) => time.into(),
        };
        Self {
            name: name.into(),
            claims,
            budget,
            is_trained: time.is_some(),
        }
    }

    /// Returns the name as a link, from a directory whose path to `docs` is `docs`.
    pub fn link(&self, docs: &str) -> String {
        format!("[`{0}`]({docs}results/{0}.md)", self.name)
    }
}

impl Row {
    /// Whether the claim is in the paper.
    pub fn is_of_paper(&self) -> bool {
        !self.says.ends_with(NOT_IN_PAPER)
    }

    /// Whether the claim counts as a claim of the paper. A source `check: …` marks a claim that holds by construction
    /// or tests the experiment itself. `as in NAME: …` marks a claim that another experiment tests with the same runs.
    pub fn is_counted(&self) -> bool {
        let source = self.says.rsplit_once(" (").map_or("", |(_, source)| source);
        let is_left_out = source.starts_with("check: ") || source.starts_with("as in ");
        self.is_of_paper() && !is_left_out
    }

    /// Reads a row of the table of claims.
    fn read(line: &str) -> Option<Self> {
        let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
        assert!(
            !line.contains("(not in the papers)"),
            "write `{NOT_IN_PAPER}`: {line}"
        );
        let [says, verdict, measured, reported] = cells.split(" | ").collect::<Vec<_>>()[..] else {
            return None;
        };
        let sign = verdict.chars().next()?;
        "✓✗?–".contains(sign).then(|| Self {
            says: says.into(),
            sign,
            found: short(measured),
            reported: reported.into(),
            p: uncorrected(measured),
            detectable: detectable(measured),
        })
    }
}

/// Shortens a measurement:
///
/// | long | short |
/// |---|---|
/// | `A: 1.5; B: 1.7 nats; difference -0.2 ± 0.1 over 8 seeds, …; p = 0.01, corrected 0.02` | `1.5 against 1.7: -0.2 ± 0.1, p 0.02` |
/// | `99.0, 99.0, 99.0 %; expected at least 95.0` | `99.0 % in all 3 seeds; expected at least 95.0` |
/// | `0.1, 0.3, 0.2; expected at most 1` | `0.1 to 0.3 in 3 seeds; expected at most 1` |
///
/// Leaves out the unit of a loss, and the published figure, which has its own column.
fn short(measured: &str) -> String {
    difference(measured)
        .or_else(|| each_seed(measured))
        .or_else(|| along_a_line(measured))
        .unwrap_or_else(|| {
            let value = measured.split(", reported").next();
            value
                .and_then(|value| value.split(", expected").next())
                .unwrap_or(measured)
                .to_owned()
        })
}

fn difference(measured: &str) -> Option<String> {
    let (values, rest) = measured.split_once("; difference ")?;
    let number = |part: &str| Some(part.rsplit_once(": ")?.1.to_owned());
    let (first, second) = values.split_once("; ")?;
    let (first, second) = (number(first)?, number(second)?);
    let difference = rest.split(" over ").next()?;
    let is_zero = difference.chars().all(|c| !('1'..='9').contains(&c));
    let mut short = match is_zero {
        true => format!("{first} in both"),
        false => format!("{first} against {second}: {difference}"),
    };
    let kept = [
        "excludes the reported",
        "tolerance",
        "lower in",
        "higher in",
    ];
    for part in rest.split("; ") {
        if kept.iter().any(|start| part.starts_with(start)) {
            short += &format!(", {part}");
        }
    }
    if !is_zero && let Some(p) = corrected(rest) {
        short += &format!(", {p}");
    }
    Some(short.replace(" nats", ""))
}

/// Returns the p-value after Holm's correction, such as `p 0.02` or `p < 0.001`.
fn corrected(measured: &str) -> Option<String> {
    let (_, p) = measured.rsplit_once("; p ")?;
    let p = p
        .split_once("corrected ")
        .map_or(p.trim_start_matches("= "), |(_, p)| p);
    Some(format!("p {p}"))
}

/// Returns the p-value before the correction.
fn uncorrected(measured: &str) -> Option<P> {
    let (_, p) = measured.rsplit_once("; p ")?;
    let p = p.split(',').next()?.trim();
    let value = p.trim_start_matches(['=', '<', ' ']).parse().ok()?;
    let is_below = p.starts_with('<');
    Some(P { value, is_below })
}

/// Returns the detectable difference.
fn detectable(measured: &str) -> Option<String> {
    let (_, rest) = measured.split_once(", detectable ")?;
    Some(rest.split([';', ' ']).next()?.to_owned())
}

fn each_seed(measured: &str) -> Option<String> {
    let (values, asked) = measured.split_once("; expected ")?;
    let (values, unit) = values
        .split_once(" %")
        .map_or((values, ""), |(values, _)| (values, " %"));
    let values: Vec<&str> = values.split(", ").collect();
    let numbers: Vec<f64> = values
        .iter()
        .map(|value| value.parse().ok())
        .collect::<Option<_>>()?;
    let order = |a: &usize, b: &usize| numbers[*a].total_cmp(&numbers[*b]);
    let least = values[(0..values.len()).min_by(order)?];
    let most = values[(0..values.len()).max_by(order)?];
    let count = values.len();
    Some(match least == most {
        _ if count == 1 => return None,
        true => format!("{least}{unit} in all {count} seeds; expected {asked}"),
        false => format!("{least} to {most}{unit} in {count} seeds; expected {asked}"),
    })
}

/// Shortens a measurement between lines of runs, or along a line.
fn along_a_line(measured: &str) -> Option<String> {
    let p = corrected(measured)?;
    let rest = measured.rsplit_once("; p ")?.0;
    // The mean distance, and the distance at each size, are enough.
    let rest = match rest.split_once(" over ") {
        Some((mean, sizes)) if sizes.contains("detectable") => {
            format!("{mean}; {}", sizes.split_once("; ")?.1)
        }
        _ => rest.to_owned(),
    };
    Some(format!("{}; {p}", rest.replace(" nats", "")))
}

#[test]
fn checks_and_repeated_claims_are_not_counted() {
    let is_counted = |says: &str| {
        let line = format!("| {says} | ✓ holds | A: 1; B: 2 |  |");
        Row::read(&line).unwrap().is_counted()
    };
    assert!(is_counted("A is lower (Table 1)"));
    assert!(is_counted("A (as in the code) is lower (Table 1)"));
    assert!(!is_counted("A is smaller (check: Table 1)"));
    assert!(!is_counted("A is lower (as in first: Table 1)"));
    assert!(!is_counted("A is lower (not in the paper)"));
}

#[test]
fn a_measurement_is_shortened() {
    let measured = "A, 1: 1.5; B: 1.7 nats; difference -0.2 ± 0.1 over 8 seeds, detectable 0.14; p = 0.010, \
                    corrected 0.020";
    assert_eq!(short(measured), "1.5 against 1.7: -0.2 ± 0.1, p 0.020");
    let of = |value, is_below| Some(P { value, is_below });
    assert_eq!(uncorrected(measured), of(0.01, false));
    assert_eq!(detectable(measured).as_deref(), Some("0.14"));
    let alone = measured.split(", corrected").next().unwrap();
    assert_eq!(short(alone), "1.5 against 1.7: -0.2 ± 0.1, p 0.010");
    let by_seeds = "A: 1.5; B: 1.7 nats; difference -0.2 ± 0.3 over 8 seeds, detectable 0.4; lower in 7 of 8 \
                    seeds; sign test; p = 0.070, corrected 0.140";
    assert_eq!(
        short(by_seeds),
        "1.5 against 1.7: -0.2 ± 0.3, lower in 7 of 8 seeds, p 0.140"
    );
    let memory = "A: 37.8; B: 37.3 MiB; difference +0.5 ± 0.0 over 8 seeds, detectable 0.0; p < 0.001, corrected < 0.001";
    assert_eq!(
        short(memory),
        "37.8 against 37.3 MiB: +0.5 ± 0.0, p < 0.001"
    );
    assert_eq!(uncorrected(memory), of(0.001, true));
    let close = "A: 1.5; B: 1.5 nats; difference -0.0000 ± 0.0000 over 8 seeds, detectable 0.0000; tolerance 0.0020";
    assert_eq!(short(close), "1.5 in both, tolerance 0.0020");
    assert_eq!(
        short("99.0, 99.0, 99.0 %; expected at least 95.0"),
        "99.0 % in all 3 seeds; expected at least 95.0"
    );
    assert_eq!(
        short("-0.1, 0.3, 0.2; expected at most 1"),
        "-0.1 to 0.3 in 3 seeds; expected at most 1"
    );
    assert_eq!(
        short(
            "-0.1 ± 0.2 nats for each doubling over 8 seeds; 3 of 4 steps lower the value; p = 0.3, corrected 0.6"
        ),
        "-0.1 ± 0.2 for each doubling over 8 seeds; 3 of 4 steps lower the value; p 0.6"
    );
    assert_eq!(short("A: 148k; B: 210k"), "A: 148k; B: 210k");
}
