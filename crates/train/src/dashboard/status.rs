//! A status line with the progress of a run.

use std::time::Instant;

use residual_zoo_report::duration;
use residual_zoo_system::console::{Status, print};

use super::rows::{Metric, Reached, Sink};
use super::{Activity, LOSS, Pace};

/// The status line of a run.
pub(super) struct RunStatus {
    name: String,
    pace: Pace,
    loss: Option<String>,
    activity: Activity,
    status: Status,
}

impl RunStatus {
    pub(super) fn new(name: String, pace: Pace) -> Self {
        Self {
            name,
            pace,
            loss: None,
            activity: Activity::Starting,
            status: Status::default(),
        }
    }

    fn show(&mut self) {
        let Self {
            name,
            pace,
            loss,
            activity,
            status,
        } = self;
        let columns = status.columns();
        status.show(|| {
            let shown = (loss.as_deref(), *activity);
            line(name, pace, shown, Instant::now(), columns)
        });
    }
}

/// Makes a line such as `[2/6] wide: step 120/1000, loss 2.1, left 40s, all 12m 00s`.
fn line(
    name: &str,
    pace: &Pace,
    (loss, activity): (Option<&str>, Activity),
    now: Instant,
    columns: usize,
) -> String {
    let mut text = format!(": step {}/{}", pace.reached(), pace.total());
    text += &loss.map_or(String::new(), |loss| format!(", loss {loss}"));
    if !activity.is_same(Activity::Training) {
        text += &format!(", {}", activity.describe());
    }
    if let Some(left) = pace.left(now) {
        text += &format!(", left {}", duration(left));
    }
    if let Some(left) = pace.left_of_all(now) {
        text += &format!(", all {}", duration(left));
    }
    // A long name loses its beginning to make room for the figures, because its end distinguishes the runs of a sweep.
    let space = columns.saturating_sub(text.chars().count() + 1);
    let long = name.chars().count();
    if long <= space {
        return name.to_owned() + &text;
    }
    let (number, run) = match name.split_once("] ") {
        Some((number, run)) if number.starts_with('[') => (format!("{number}] "), run),
        _ => (String::new(), name),
    };
    let left = space.saturating_sub(number.chars().count() + 1);
    let cut = run.chars().count().saturating_sub(left);
    let end: String = run.chars().skip(cut).collect();
    format!("{number}…{end}{text}")
}

impl Sink for RunStatus {
    fn row(&mut self, _: Reached, metrics: Vec<Metric>) {
        let loss = metrics.into_iter().find(|m| m.name == LOSS && !m.valid);
        self.loss = loss.map(|metric| metric.shown).or(self.loss.take());
        self.show();
    }

    fn activity(&mut self, activity: Activity) {
        if activity == Activity::Training {
            self.pace.begin(Instant::now());
        }
        self.activity = activity;
        self.show();
    }

    fn step(&mut self, step: usize, _: u64) {
        self.pace.step(step, Instant::now());
        self.show();
    }

    fn note(&mut self, text: &str) {
        // Omits the notes from the start of a run, such as the note on the checkpoint from which it resumes.
        if self.activity != Activity::Starting {
            self.status.clear();
            print(text);
        }
    }

    fn sample(&mut self, _: usize, _: &str) {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_names_the_run_its_step_and_the_time_left() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(start, (0, 100), 2.0);
        let text =
            |pace: &Pace, activity| line("[1/3] wide", pace, (Some("2.1"), activity), at(11), 80);
        let starting = line("[1/3] wide", &pace, (None, Activity::Starting), at(1), 80);
        assert_eq!(starting, "[1/3] wide: step 0/100, starting");
        pace.begin(start);
        pace.step(1, at(1));
        pace.step(11, at(11));
        let training = text(&pace, Activity::Training);
        let expected = "[1/3] wide: step 11/100, loss 2.1, left 1m 29s, all 4m 49s";
        assert_eq!(training, expected);
        // The number of the run and the value of its sweep point are kept.
        let name = "[12/64] gpt2-shakespeare-cpu, learning rate 0.003, seed 1";
        let shown = (Some("2.1"), Activity::Training);
        for (columns, expected) in [
            (
                120,
                format!("{name}: step 11/100, loss 2.1, left 1m 29s, all 4m 49s"),
            ),
            (
                80,
                "[12/64] …ing rate 0.003, seed 1: step 11/100, loss 2.1, left 1m 29s, all 4m 49s"
                    .into(),
            ),
        ] {
            let long = line(name, &pace, shown, at(11), columns);
            assert_eq!(long, expected);
            assert!(long.chars().count() < columns, "{long}");
        }
        let validating = text(&pace, Activity::Validating(2, 20));
        assert!(
            validating.contains(", validating, batch 2 of 20, left"),
            "{validating}"
        );
    }
}
