//! The display as lines of text. In a terminal, the lines of a row have at most 80 columns.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use super::rows::{Metric, Reached, Sink};
use super::{Activity, GRADIENT_NORM, LEARNING_RATE, LOSS, MUON_RATE, Pace, UTILISATION, Unit};
use residual_zoo_report::{duration, si, wrap};
use residual_zoo_system::console::print;
use residual_zoo_system::terminal::output_columns;

/// Maximum number of columns in a terminal, for each line of a row.
const COLUMNS: usize = 80;
/// Time after which a line reports a validation or a sample that is still in progress.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time between two lines about the same validation or sample.
const REMINDER: Duration = Duration::from_secs(5);
/// Time without a row after which a line reports the progress of the steps.
const SILENCE: Duration = Duration::from_secs(30);

/// Prints a line for every row, and lines between rows that are far apart.
pub(super) struct Log {
    pace: Pace,
    unit: Unit,
    /// Maximum number of columns for each line of a row; unlimited in a file or a pipe.
    columns: usize,
    activity: Activity,
    /// The time of the next line about the activity.
    next: Instant,
}

impl Log {
    pub(super) fn new(pace: Pace, unit: Unit) -> Self {
        Self {
            pace,
            unit,
            columns: match std::io::stdout().is_terminal() {
                true => COLUMNS,
                false => usize::MAX,
            },
            activity: Activity::Starting,
            next: Instant::now() + SILENCE,
        }
    }

    /// Returns a line about the activity, if one is due.
    fn reminder(&mut self, activity: Activity, now: Instant) -> Option<String> {
        let trains = activity == Activity::Training;
        if !self.activity.is_same(activity) {
            self.activity = activity;
            self.next = now + if trains { SILENCE } else { PATIENCE };
        }
        if now < self.next {
            return None;
        }
        self.next = now + if trains { SILENCE } else { REMINDER };
        let step = counter(self.pace.reached(), self.pace.total());
        let left = self.pace.left(now).map(left_of);
        let left = left.map_or(String::new(), |left| format!(", {left}"));
        Some(format!("{step}  {}{left}", activity.describe()))
    }
}

impl Sink for Log {
    fn row(&mut self, reached: Reached, metrics: Vec<Metric>) {
        let now = Instant::now();
        let left = self.pace.left(now).filter(|_| reached.step < reached.total);
        for line in lines(reached, &metrics, left, self.unit, self.columns) {
            print(&line);
        }
        self.next = now + SILENCE;
    }

    fn activity(&mut self, activity: Activity) {
        let now = Instant::now();
        if activity == Activity::Training {
            self.pace.begin(now);
        }
        if let Some(line) = self.reminder(activity, now) {
            print(&line);
        }
    }

    fn step(&mut self, step: usize, _: u64) {
        self.pace.step(step, Instant::now());
    }

    fn note(&mut self, text: &str) {
        match output_columns() {
            Some(columns) => print(&wrap(text, columns).join("\n")),
            None => print(text),
        }
    }

    fn sample(&mut self, step: usize, text: &str) {
        print(&format!("--- sample at step {step}\n{text}\n---"));
    }
}

/// Returns the lines of a row, with at most `columns` columns each: first the training, then the validation.
fn lines(
    reached: Reached,
    metrics: &[Metric],
    left: Option<Duration>,
    unit: Unit,
    columns: usize,
) -> Vec<String> {
    let step = counter(reached.step, reached.total);
    let trained = |name: &str| metrics.iter().find(|m| m.name == name && !m.valid);
    let valid = metrics.iter().find(|m| m.name == LOSS && m.valid);
    let valid = valid.map(|metric| format!("valid loss {}", metric.shown));
    if metrics.iter().all(|metric| metric.valid) {
        // Before the first step, there is only a validation.
        let valid = valid.map(|valid| validation(&step, 2, &valid, columns));
        return std::iter::once(step).chain(valid).collect();
    }
    // From the most to the least important; fields that do not fit are omitted, the last one first.
    let ranked = [
        (0, Some(step.clone())),
        (
            1,
            Some(format!(
                "loss {:>6}",
                trained(LOSS).map_or("–".into(), |m| digits(m.value, 6))
            )),
        ),
        (6, left.map(|left| format!("{:<12}", left_of(left)))),
        (
            2,
            trained(unit.speed()).map(|m| {
                let short = match unit {
                    Unit::Tokens(_) => "tok",
                    Unit::Images => "img",
                };
                format!("{:>5} {short}/s", si(m.value))
            }),
        ),
        (
            4,
            trained(GRADIENT_NORM).map(|m| format!("norm {:>5}", digits(m.value, 5))),
        ),
        (
            3,
            trained(UTILISATION).map(|m| format!("MFU {:>6}", m.shown)),
        ),
        (
            5,
            trained(LEARNING_RATE).map(|m| match trained(MUON_RATE) {
                Some(muon) => format!("lr {:.1e}/{:.1e}", m.value, muon.value),
                None => format!("lr {:.2e}", m.value),
            }),
        ),
    ];
    let ranked = ranked
        .into_iter()
        .filter_map(|(place, text)| Some((place, text?)));
    let mut fields: Vec<(i32, String)> = ranked.collect();
    let width = |fields: &[(i32, String)], gap: usize| {
        let texts = fields.iter().map(|(_, text)| text.chars().count() + gap);
        texts.sum::<usize>().saturating_sub(gap)
    };
    let gap = if width(&fields, 2) <= columns { 2 } else { 1 };
    while width(&fields, gap) > columns && fields.len() > 1 {
        fields.pop();
    }
    fields.sort_by_key(|(place, _)| *place);
    let texts: Vec<String> = fields.into_iter().map(|(_, text)| text).collect();
    let first = texts.join(&" ".repeat(gap));
    let mut lines = vec![cut(first.trim_end().to_owned(), columns)];
    lines.extend(valid.map(|valid| validation(&step, gap, &valid, columns)));
    lines
}

/// Returns the line of a validation, with its loss in the column of the training loss if there is room.
fn validation(step: &str, gap: usize, valid: &str, columns: usize) -> String {
    let indent = (step.len() + gap).saturating_sub("valid ".len());
    let indent = indent.min(columns.saturating_sub(valid.chars().count()));
    cut(format!("{}{valid}", " ".repeat(indent)), columns)
}

/// Returns the step counter, such as `step  20/300`.
fn counter(step: usize, total: usize) -> String {
    let width = total.to_string().len();
    format!("step {step:>width$}/{total}")
}

fn left_of(left: Duration) -> String {
    format!("left {}", duration(left))
}

/// Shortens a text to at most `columns` characters, with `…` at the end.
fn cut(text: String, columns: usize) -> String {
    match text.chars().count() > columns {
        true => text.chars().take(columns - 1).chain(['…']).collect(),
        false => text,
    }
}

/// Shows `value` in at most `width` characters: `1.4342`, `12.345`, `2e12`.
fn digits(value: f64, width: usize) -> String {
    for decimals in (0..=width.saturating_sub(2)).rev() {
        let text = format!("{value:.decimals$}");
        if text.len() <= width {
            return text;
        }
    }
    format!("{value:.0e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(name: &str, valid: bool, value: f64, shown: String) -> Metric {
        Metric {
            name: name.into(),
            valid,
            value,
            shown,
        }
    }

    const TEXT: Unit = Unit::Tokens(Some(1.0));

    /// Returns a row with all metrics.
    fn full(value: f64) -> Vec<Metric> {
        let loss = super::super::describe_loss(value, Some(1.0), TEXT);
        let mut metrics: Vec<Metric> = [LOSS, GRADIENT_NORM, LEARNING_RATE, TEXT.speed()]
            .into_iter()
            .map(|name| metric(name, false, value, String::new()))
            .collect();
        metrics.push(metric(LOSS, true, value, loss));
        metrics
    }

    #[test]
    fn a_row_is_a_line_and_its_validation_another() {
        let reached = Reached {
            step: 20,
            total: 300,
            tokens: 0,
        };
        let mut metrics = full(4.1234);
        metrics[1].value = 1.2345;
        metrics[2].value = 1e-3;
        metrics[3].value = 12_345.0;
        let shown = lines(
            reached,
            &metrics,
            Some(Duration::from_secs(130)),
            TEXT,
            COLUMNS,
        );
        assert_eq!(
            shown,
            [
                "step  20/300  loss 4.1234  12.3k tok/s  norm 1.234  lr 1.00e-3  left 2m 10s",
                "        valid loss 4.1234 (perplexity 61.77, accuracy 100.0 %, 5.949 bits/byte)",
            ]
        );
        let mut with_muon = metrics.clone();
        with_muon.push(metric(MUON_RATE, false, 0.02, String::new()));
        let left = Some(Duration::from_secs(130));
        let shown = lines(reached, &with_muon, left, TEXT, COLUMNS);
        assert_eq!(
            shown[0],
            "step  20/300 loss 4.1234 12.3k tok/s norm 1.234 lr 1.0e-3/2.0e-2 left 2m 10s"
        );
        let only = [metrics.remove(4)];
        let start = Reached { step: 0, ..reached };
        let shown = lines(start, &only, None, TEXT, COLUMNS);
        let valid =
            "        valid loss 4.1234 (perplexity 61.77, accuracy 100.0 %, 5.949 bits/byte)";
        assert_eq!(shown, ["step   0/300", valid]);
    }

    #[test]
    fn every_line_has_at_most_80_columns_and_every_field() {
        let lefts = [None, Some(7), Some(3_599), Some(359_999_999)];
        for left in lefts.map(|left| left.map(Duration::from_secs)) {
            for total in [1, 9_999, 999_999, 9_999_999, usize::MAX] {
                for value in [0.0, 1.2345e-9, 9.99999, 12.0, 123_456.7, 9.87e37, 1e300] {
                    let reached = Reached {
                        step: total,
                        total,
                        tokens: 0,
                    };
                    for line in lines(reached, &full(value), left, TEXT, COLUMNS) {
                        assert!(line.chars().count() <= COLUMNS, "{line}");
                    }
                }
                let reached = Reached {
                    step: total,
                    total,
                    tokens: 0,
                };
                let shown = &lines(reached, &full(4.5), left, TEXT, COLUMNS)[0];
                let fits = total <= 9_999_999 && left < Some(Duration::from_secs(3_600));
                for field in ["loss", "tok/s", "norm", "lr"] {
                    assert!(!fits || shown.contains(field), "{shown}");
                }
                let mut metrics = full(4.5);
                metrics.push(metric(UTILISATION, false, 0.4, "40.1 %".into()));
                let shown = &lines(reached, &metrics, left, TEXT, COLUMNS)[0];
                assert!(shown.chars().count() <= COLUMNS, "{shown}");
                assert!(!fits || shown.contains("MFU"), "{shown}");
                // In a file, every field is shown, and both losses are in the same column.
                let shown = lines(reached, &metrics, left, TEXT, usize::MAX);
                for field in ["loss", "tok/s", "norm", "lr", "MFU"] {
                    assert!(shown[0].contains(field), "{shown:?}");
                }
                let column = |line: &str| line.find("loss");
                assert_eq!(column(&shown[0]), column(&shown[1]), "{shown:?}");
                let only = [metrics[4].clone()];
                assert_eq!(lines(reached, &only, None, TEXT, usize::MAX)[1], shown[1]);
            }
        }
    }

    #[test]
    fn images_are_called_images() {
        let reached = Reached {
            step: 20,
            total: 300,
            tokens: 0,
        };
        let metrics = [
            metric(LOSS, false, 1.5, String::new()),
            metric(Unit::Images.speed(), false, 550.0, String::new()),
        ];
        let shown = lines(reached, &metrics, None, Unit::Images, COLUMNS);
        assert_eq!(shown, ["step  20/300  loss 1.5000    550 img/s"]);
    }

    #[test]
    fn what_takes_long_says_so_now_and_then() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut log = Log::new(Pace::new(start, (0, 300), 0.0), TEXT);
        let mut said = |batch, seconds| log.reminder(Activity::Validating(batch, 90), at(seconds));
        assert_eq!(said(1, 0.0), None);
        assert_eq!(said(2, 1.9), None);
        let line = "step   0/300  validating, batch 3 of 90";
        assert_eq!(said(3, 2.1), Some(line.to_owned()));
        assert_eq!(said(4, 5.0), None);
        assert!(said(5, 7.2).is_some());
        let mut steps = |seconds| log.reminder(Activity::Training, at(seconds));
        assert_eq!((steps(10.0), steps(39.0)), (None, None));
        assert!(steps(41.0).is_some_and(|line| line.contains("training")));
    }
}
