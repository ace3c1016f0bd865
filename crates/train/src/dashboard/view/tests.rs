//! Tests the content of screens of many sizes.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::dashboard::{GRADIENT_NORM, LEARNING_RATE, MEMORY};

const TEXT: Unit = Unit::Tokens(None);

/// Returns the lines of a screen of this size, 100 s after `start`.
fn screen(state: &State, start: Instant, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let now = start + Duration::from_secs(100);
    terminal.draw(|frame| draw(frame, state, now)).unwrap();
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(width as usize);
    lines
        .map(|line| line.iter().map(|cell| cell.symbol()).collect())
        .collect()
}

fn start(to_come: f64) -> (State, Instant) {
    let start = Instant::now();
    let heading = ["rmt_vs_transformer", "RMT, 16 × 16", "2 of 6", "seed 1"];
    let directory = "runs/experiments/pool/RMT-0123456789ab".to_owned();
    let pace = Pace::new(start, (0, 400), to_come);
    let heading = heading.map(String::from).to_vec();
    (State::new(heading, directory, pace, TEXT), start)
}

/// Makes a run after 120 of 400 steps, 100 s after its start.
fn running() -> (State, Instant) {
    let (mut state, start) = start(1.5);
    state.pace.begin(start);
    for step in 0..=120_usize {
        if step > 0 {
            let at = start + Duration::from_millis(10_000 + 750 * (step as u64 - 1));
            state.pace.step(step, at);
        }
        let metric = |name: &str, valid, value: f64| Metric {
            name: name.into(),
            valid,
            value,
            shown: format!("{value:.4}"),
        };
        let loss = 5.4 - step as f64 / 40.0;
        let mut metrics = Vec::new();
        if step > 0 {
            metrics.push(metric(LOSS, false, loss));
            metrics.push(metric(GRADIENT_NORM, false, 1.25));
            metrics.push(metric(LEARNING_RATE, false, 1e-3));
            metrics.push(metric(TEXT.speed(), false, 12_300.0 + step as f64));
            metrics.push(metric(MEMORY, false, 300.0));
        }
        if step.is_multiple_of(40) {
            metrics.push(metric(LOSS, true, loss + 0.1));
        }
        let reached = Reached {
            step,
            total: 400,
            tokens: 10_000 * step as u64,
        };
        state.row(reached, metrics);
    }
    state.activity = Activity::Training;
    (state, start)
}

fn contains(lines: &[String], parts: &[&str]) {
    let all = lines.join("\n");
    for part in parts {
        assert!(all.contains(part), "no `{part}` in\n{all}");
    }
}

#[test]
fn a_small_screen_has_title_progress_times_and_losses() {
    let (state, start) = running();
    let lines = screen(&state, start, (60, 15));
    contains(
        &lines,
        &[
            "rmt_vs_transformer · RMT, 16 × 16 · 2 of 6 · seed 1",
            "runs/experiments/pool/RMT-0123456789ab",
            "step 120/400 · 1.2M tokens · 30 %",
            // 280 steps of 0.75 s, less the 0.75 s since the last step ended.
            "1m 40s so far · 3m 29s left · 10m 59s left of all runs",
            "loss 2.4000",
            "⠒⠒ train   • valid",
            "steps",
            "training",
            "q stop  tab chart",
        ],
    );
    contains(&[lines[14].clone()], &["training", "q stop"]);
}

#[test]
fn a_usual_screen_also_has_every_number() {
    let (state, start) = running();
    let lines = screen(&state, start, (80, 24));
    contains(
        &lines,
        &[
            "gradient norm 1.2500",
            "learning rate 0.0010",
            "tokens/s 12420.0000",
            "valid loss 2.5000",
        ],
    );
    let axis = lines.iter().position(|line| line.contains('└')).unwrap();
    let ticks: Vec<&str> = lines[axis + 1].split_whitespace().collect();
    assert_eq!(ticks, ["0", "20", "40", "60", "80", "100", "120"]);
    // Each label is under its step.
    let left = lines[axis].chars().position(|c| c == '└').unwrap();
    let middle = left + 1 + (80 - left - 2) / 2;
    let sixty: String = lines[axis + 1].chars().skip(middle - 1).take(3).collect();
    assert!(sixty.contains("60"), "{sixty}\n{}", lines[axis + 1]);
    // The values are between round numbers.
    contains(&lines, &["6│", "5│", "4│", "3│", "2│"]);
}

#[test]
fn a_large_screen_has_more_charts() {
    let (mut state, start) = running();
    let charts = ["Loss (nats", "Gradient norm", "Learning rate", "Tokens/s"];
    let lines = screen(&state, start, (160, 45));
    contains(&lines, &charts);
    assert_eq!(lines.iter().filter(|line| line.contains('└')).count(), 2);
    // Each key press moves another chart to the top.
    let first = |state: &State| {
        let lines = screen(state, start, (160, 45));
        let found = lines.iter().find_map(|line| {
            charts
                .iter()
                .find(|chart| line.starts_with(**chart))
                .copied()
        });
        found.unwrap()
    };
    assert_eq!(first(&state), charts[0]);
    state.choose(true);
    assert_eq!(first(&state), charts[1]);
    state.choose(false);
    state.choose(false);
    state.choose(true);
    assert_eq!(first(&state), charts[0]);
}

#[test]
fn before_the_first_step_there_are_times_already() {
    let (mut state, start) = start(0.0);
    state.activity = Activity::Validating(3, 145);
    let lines = screen(&state, start, (60, 15));
    contains(
        &lines,
        &[
            "1m 40s so far · first step…",
            "step 0/400",
            "the curves begin with the first measurement",
            "validating, batch 3 of 145",
        ],
    );
    assert!(!lines.join("").contains("all runs"));
}

#[test]
fn it_says_what_it_is_doing_and_that_it_stops() {
    let (mut state, start) = running();
    let activities = [
        (Activity::Sampling(7, 200), "sampling, token 7 of 200"),
        (Activity::Saving, "saving a checkpoint"),
    ];
    for (activity, shown) in activities {
        state.activity = activity;
        state.stopping = false;
        contains(&screen(&state, start, (60, 15)), &[shown, "q stop"]);
        state.stopping = true;
        let lines = screen(&state, start, (60, 15));
        contains(&lines, &["stopping", shown, "Ctrl-C ends at once"]);
    }
    state.activity = Activity::Training;
    for size in [(30, 3), (60, 15), (160, 45)] {
        contains(&screen(&state, start, size), &["stopping after this step…"]);
    }
}

#[test]
fn the_newest_notes_are_shown() {
    let (mut state, start) = running();
    for step in 0..50 {
        state.note(&format!("step {step} skipped:\nthe loss is NaN"));
    }
    let lines = screen(&state, start, (60, 15));
    contains(&lines, &["step 49 skipped: the loss is NaN"]);
    assert!(!lines.join("").contains("step 48"));
    contains(&screen(&state, start, (80, 30)), &["step 45", "step 49"]);
}

#[test]
fn every_size_can_be_drawn() {
    let (mut long, begun) = running();
    long.heading = vec!["名前".repeat(90), "a".repeat(300)];
    long.directory = "/目録".repeat(80);
    long.note(&"語".repeat(300));
    let mut flat = start(0.0).0;
    let metric = |value: f64| Metric {
        name: LOSS.into(),
        valid: false,
        value,
        shown: value.to_string(),
    };
    let at = |step| Reached {
        step,
        total: 400,
        tokens: u64::MAX,
    };
    flat.row(at(400), vec![metric(2.0)]);
    let mut wild = start(f64::INFINITY).0;
    for (step, value) in [1e300, f64::NAN, -1e300, f64::INFINITY, 0.0]
        .into_iter()
        .enumerate()
    {
        wild.row(at(step), vec![metric(value)]);
    }
    let begun_state = start(0.0).0;
    for state in [&long, &flat, &wild, &begun_state, &running().0] {
        for width in (1..=30).chain([59, 60, 79, 80, 120, 160, 300]) {
            for height in (1..=32).chain([45, 80]) {
                let lines = screen(state, begun, (width, height));
                assert_eq!(lines.len(), height as usize);
            }
        }
    }
}

#[test]
fn long_curves_keep_their_extremes() {
    let mut points: Vec<(f64, f64)> = (0..10_000).map(|i| (f64::from(i), 1.0)).collect();
    points[5_003].1 = 9.0;
    points[5_004].1 = -9.0;
    let thinned = thin(&points, 80);
    assert!(thinned.len() <= 4 * 80, "{}", thinned.len());
    assert!(thinned.contains(&(5_003.0, 9.0)) && thinned.contains(&(5_004.0, -9.0)));
    assert!(thinned.is_sorted_by(|a, b| a.0 <= b.0));
}

#[test]
fn an_earlier_validation_has_its_step() {
    let (mut state, _) = running();
    let valid = |state: &State| numbers(state).pop().unwrap();
    assert_eq!(valid(&state), "valid loss 2.5000");
    let metric = Metric {
        name: LOSS.into(),
        valid: false,
        value: 2.3,
        shown: "2.3".into(),
    };
    let reached = Reached {
        step: 130,
        total: 400,
        tokens: 0,
    };
    state.row(reached, vec![metric]);
    assert_eq!(valid(&state), "valid loss 2.5000 at step 120");
}
