//! Compares evaluation with `lm_eval` 0.4.13.
//!
//! Some documents are written to reveal differences. `adversarial/expected.json` has the requests that `lm_eval` makes
//! for them, from `reference.py dummy`. The tests that need Python with `lm_eval` are ignored by default. This command
//! runs them:
//!
//! ```sh
//! RESIDUAL_ZOO_PYTHON=venv/bin/python cargo test --release --workspace --test evaluate -- --ignored
//! ```

use std::fs;
use std::process::Command;

use residual_zoo::Run;
use residual_zoo::core::ModelConfig as _;
use residual_zoo::evaluate::{Document, Results, Task};
use residual_zoo::exchange::{ExportOptions, export};
use residual_zoo_testing::server::Server;
use residual_zoo_testing::{program, root, zoo};
use serde_json::{Value, json};

use super::{Place, evaluated, options, samples};

/// The kinds of tasks that `lm_eval` has.
const NAMES: [&str; 6] = [
    "lambada",
    "hellaswag",
    "piqa",
    "arc",
    "winogrande",
    "wikitext",
];

#[test]
fn documents_are_asked_about_as_by_lm_eval() {
    let folder = root().join("tests/evaluate/adversarial");
    let expected = fs::read(folder.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    for name in NAMES {
        let path = folder.join(format!("{name}.jsonl"));
        let task = Task::read(&format!("{name}={}", path.display()), None).unwrap();
        let expected = expected[name].as_array().unwrap();
        assert_eq!(task.len(), expected.len());
        for (number, expected) in expected.iter().enumerate() {
            let found = match task.document(number).unwrap() {
                Document::Continue {
                    context,
                    continuation,
                } => json!({ "texts": [[context, continuation]], "target": expected["target"] }),
                Document::Choose { pairs, gold, .. } => {
                    let texts = pairs.iter().map(|(a, b)| json!([**a, **b]));
                    // For WinoGrande, the target is a text.
                    let target = match &expected["target"] {
                        Value::Number(_) => gold.into(),
                        other => other.clone(),
                    };
                    json!({ "texts": texts.collect::<Vec<_>>(), "target": target })
                }
                Document::Roll { text, words, bytes } => {
                    json!({ "texts": [[*text]], "words": words, "bytes": bytes })
                }
            };
            assert_eq!(found, *expected, "document {number} of {name}");
        }
    }
}

#[test]
fn lengths_of_choices_are_counted_in_characters() {
    let folder = root().join("tests/evaluate/adversarial");
    let path = folder.join("piqa.jsonl").display().to_string();
    let task = Task::read(&path, None).unwrap();
    let lengths = |number| match task.document(number).unwrap() {
        Document::Choose { lengths, .. } => lengths,
        other => panic!("{other:?}"),
    };
    // Lengths are counted as by Python's `len`, without the space before a choice.
    assert_eq!(lengths(1), [3, 3]);
    assert_eq!(lengths(4), [1, 1]);
    assert_eq!(lengths(13), [1, 3]);
}

#[test]
#[ignore = "needs Python with torch, transformers and lm_eval"]
fn likelihoods_and_metrics_are_those_of_lm_eval() {
    // With its cache, lm_eval confuses the windows of a text that repeats itself, so the second set of tasks runs
    // without the cache.
    for (from, more) in [("tasks", &[][..]), ("adversarial", &["logits_cache=false"])] {
        let place = Place::new();
        let run = place.run("run", &zoo::gpt2());
        let (tasks, ours) = evaluated_for_lm_eval(&place, &run, from);
        lm_eval(&place, place.path("exported").to_str().unwrap(), more);
        compare(&place, &tasks, &ours);
    }
}

#[test]
#[ignore = "needs Python with torch, transformers and lm_eval"]
fn likelihoods_through_a_server_are_those_of_evaluate() {
    for (name, model) in [("gpt2", zoo::gpt2()), ("rmt", zoo::rmt())] {
        println!("{name}");
        let place = Place::new();
        let run = place.run("zoo", &model);
        let (tasks, ours) = evaluated_for_lm_eval(&place, &run, "tasks");
        let server = Server::start(&place.path("zoo"), &[]);
        let address = format!("http://127.0.0.1:{}/v1/completions", server.port);
        let tokenizer = format!("tokenizer={:?}", place.path("exported"));
        // The window of `evaluate` is one token longer than the context. lm_eval leaves out one more token, so its
        // maximum length is two tokens longer than the context.
        let length = format!("max_length={}", run.config.model.shape().context + 2);
        let more = [
            &tokenizer,
            "tokenizer_backend=\"huggingface\"",
            &length,
            "num_concurrent=4",
        ];
        lm_eval(&place, &address, &more);
        compare(&place, &tasks, &ours);
    }
}

/// Exports the run, and evaluates it on the tasks that `lm_eval` knows.
fn evaluated_for_lm_eval(place: &Place, run: &Run, from: &str) -> (Vec<Task>, Vec<Results>) {
    export(run, &place.path("exported"), &ExportOptions::default()).unwrap();
    let folder = place.path("tasks");
    fs::create_dir(&folder).unwrap();
    let files = fs::read_dir(root().join("tests/evaluate").join(from)).unwrap();
    for file in files.map(Result::unwrap) {
        let text = fs::read_to_string(file.path()).unwrap();
        // lm_eval does not know the fields of ARC's original files.
        let lines = text.lines().filter(|line| !line.contains("stem"));
        fs::write(
            folder.join(file.file_name()),
            lines.collect::<Vec<_>>().join("\n") + "\n",
        )
        .unwrap();
    }
    let read = |name: &str| {
        let path = folder.join(format!("{name}.jsonl")).display().to_string();
        Task::read(&format!("{name}={path}"), None).unwrap()
    };
    let tasks: Vec<Task> = NAMES.into_iter().map(read).collect();
    let ours = evaluated(run, &tasks, &options(place.path("ours")));
    (tasks, ours)
}

/// Evaluates `model`, an exported directory or the address of a server, with `lm_eval`.
fn lm_eval(place: &Place, model: &str, more: &[&str]) {
    let python = std::env::var("RESIDUAL_ZOO_PYTHON").unwrap_or("python3".into());
    let mut reference = Command::new(python);
    reference.arg(root().join("tests/evaluate/reference.py"));
    reference
        .arg(model)
        .arg(place.path("tasks"))
        .arg(place.path("theirs.json"))
        .args(more);
    reference
        .env("HF_HOME", place.path("home"))
        .env("HF_MODULES_CACHE", place.path("modules"))
        .env("HF_HUB_OFFLINE", "1")
        .env("HF_DATASETS_OFFLINE", "1");
    println!("{}", program::ok(&mut reference));
}

/// Compares the results with the results of `lm_eval` in `theirs.json`.
fn compare(place: &Place, tasks: &[Task], ours: &[Results]) {
    let theirs = fs::read(place.path("theirs.json")).unwrap();
    let theirs: Value = serde_json::from_slice(&theirs).unwrap();
    for (task, results) in tasks.iter().zip(ours) {
        let theirs = &theirs[&task.name];
        let (mut largest, mut count) = (0.0_f64, 0);
        for (sample, found) in samples(&place.path("ours"), &task.name)
            .iter()
            .zip(theirs["samples"].as_array().unwrap())
        {
            for (i, ours) in sample.log_likelihoods.iter().enumerate() {
                let (value, greedy) = match &found[i] {
                    Value::Array(pair) => (pair[0].as_f64().unwrap(), pair[1].as_bool()),
                    value => (value.as_f64().unwrap(), None),
                };
                let difference = (ours - value).abs();
                if difference > 1e-4 {
                    println!("document {}: {ours}, not {value}", sample.doc_id);
                }
                largest = largest.max(difference);
                assert!(
                    greedy.is_none_or(|greedy| greedy == sample.is_greedy[i]),
                    "{}",
                    task.name
                );
                count += 1;
            }
        }
        println!(
            "{}: {count} log-likelihoods, largest difference {largest:.1e}",
            task.name
        );
        assert!(count >= 2 && largest <= 1e-4, "{}: {largest}", task.name);
        for metric in &results.metrics {
            let Some(value) = theirs["metrics"][format!("{},none", metric.name)].as_f64() else {
                assert!(metric.name.contains("token"), "{}", metric.name);
                continue;
            };
            let tolerance = if metric.name.starts_with("acc") {
                0.0
            } else {
                1e-4 * value
            };
            assert!(
                (metric.value - value).abs() <= tolerance,
                "{}: {metric:?} {value}",
                task.name
            );
        }
    }
}
