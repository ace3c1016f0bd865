use std::collections::BTreeMap;

use residual_zoo_runs::{DecayShape, MinLearningRate, Schedule, TrainConfig};
use serde_json::Value;

use super::learning_rate;

#[test]
fn the_learning_rate_rises_linearly_and_falls_as_a_cosine() {
    let config = TrainConfig {
        learning_rate: 1.0,
        min_learning_rate: MinLearningRate::Ratio(0.1),
        warmup: 3,
        steps: 14,
        ..TrainConfig::default()
    };
    let at = |step| learning_rate(&config, step);
    assert_eq!([at(0), at(1), at(2), at(3)], [0.25, 0.5, 0.75, 1.0]);
    assert!(
        (at(8) - 0.55).abs() < 1e-12,
        "half way is the mean of peak and floor"
    );
    assert!(
        (at(13) - 0.1).abs() < 1e-12,
        "the last step is at the floor"
    );
    assert_eq!(at(100), 0.1);
    let all_warmup = TrainConfig {
        warmup: 10,
        steps: 5,
        ..config
    };
    assert!((0..5).all(|step| learning_rate(&all_warmup, step) < 1.0));
}

#[test]
fn schedules_follow_the_traces_of_transformers() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/optim/schedules.json"
    );
    let traces: BTreeMap<String, Value> =
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let shapes = [
        ("linear", DecayShape::Linear),
        ("cosine", DecayShape::Cosine),
        ("1-sqrt", DecayShape::OneMinusSqrt),
    ];
    let mut compared = 0;
    for (name, trace) in traces {
        let [formula, arguments] = ["formula", "arguments"].map(|key| &trace[key]);
        let size = |key: &str| arguments[key].as_u64().unwrap() as usize;
        if formula != "wsd" && formula != "cosine" {
            continue;
        }
        let floor = arguments["floor"].as_f64().unwrap();
        let (steps, schedule) = match formula == "wsd" {
            true => {
                let (stable, decay) = (size("stable"), size("decay"));
                let steps = size("warmup") + stable + decay;
                let (_, shape) = shapes
                    .iter()
                    .find(|(name, _)| arguments["shape"] == *name)
                    .unwrap();
                let decay = decay as f64 / steps as f64;
                (
                    steps,
                    Schedule::Wsd {
                        decay,
                        shape: *shape,
                    },
                )
            }
            false => (size("total"), Schedule::Cosine),
        };
        // In `transformers`, the learning rate before the first step counts as step 0. In this project, warmup rises
        // from 0, whatever the floor.
        let config = TrainConfig {
            learning_rate: 1.0,
            min_learning_rate: MinLearningRate::Ratio(floor),
            warmup: size("warmup") - 1,
            steps,
            schedule,
            ..TrainConfig::default()
        };
        let numbers = |key: &str| {
            trace[key]
                .as_array()
                .unwrap()
                .iter()
                .map(|x| x.as_f64().unwrap())
        };
        for (step, factor) in numbers("steps").zip(numbers("factors")) {
            let step = step as usize;
            if step == 0 || (step < size("warmup") && floor > 0.0 && formula == "wsd") {
                continue;
            }
            let found = learning_rate(&config, step - 1);
            assert!(
                (found - factor).abs() < 1e-6,
                "{name}, step {step}: {found}, not {factor}"
            );
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn a_linear_schedule_and_a_short_fall_end_at_the_floor() {
    let config = |schedule| TrainConfig {
        learning_rate: 1.0,
        min_learning_rate: MinLearningRate::Ratio(0.0),
        warmup: 2,
        steps: 11,
        schedule,
        ..TrainConfig::default()
    };
    let linear = config(Schedule::Linear);
    assert_eq!(learning_rate(&linear, 2), 1.0);
    assert_eq!(learning_rate(&linear, 6), 0.5);
    assert_eq!(learning_rate(&linear, 10), 0.0);
    let shape = DecayShape::Linear;
    let wsd = |decay| config(Schedule::Wsd { decay, shape });
    let all = |config: &TrainConfig| {
        (2..11)
            .map(|step| learning_rate(config, step))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        all(&wsd(0.01)),
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    );
    assert_eq!(all(&wsd(1.0)), all(&linear));
    for decay in [0.0, 1.5, f64::NAN] {
        let error = wsd(decay).validate().unwrap_err().to_string();
        assert!(error.contains("`schedule.decay` is"), "{error}");
    }
}

#[test]
fn an_unknown_field_of_a_schedule_is_refused() {
    let read = |text: &str| serde_json::from_str::<Schedule>(text);
    assert!(read(r#"{"Wsd": {"decay": 0.2}}"#).is_ok());
    let error = read(r#"{"Wsd": {"decay": 0.2, "shap": "Cosine"}}"#);
    assert!(error.unwrap_err().to_string().contains("shap"));
}
