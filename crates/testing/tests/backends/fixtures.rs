//! Every model matches the logits, loss and gradients of the reference, on every backend that is compiled in. The cases
//! are in `tests/fixtures` or in the directory that `ZOO_FIXTURES` names. `ZOO_FIXTURES_STEP=5` takes every fifth case,
//! for slow devices.

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::OnBackend;
use residual_zoo_testing::my_turn;
use residual_zoo_testing::pass::Values;
use residual_zoo_testing::reference::{self, Case, Keys, cases, read_directory};

use crate::in_f32;

#[test]
fn every_case_equals_the_reference() {
    let _turn = my_turn();
    let mut failures = Vec::new();
    let step = std::env::var("ZOO_FIXTURES_STEP").map_or(1, |step| step.parse().unwrap());
    for case in cases().iter().step_by(step) {
        for kind in in_f32() {
            let errors = kind
                .run(kind.default_gpu(), Compare(case))
                .unwrap_or_else(|e| panic!("{e}"));
            say(format!("{:32} {kind:8} {errors}", case.name));
            if !errors.within_tolerance() {
                failures.push(format!("{} on {kind}: {errors}", case.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_repository_has_cases_of_every_architecture() {
    let _turn = my_turn();
    let directory = residual_zoo_testing::root().join("tests/fixtures");
    let cases = read_directory(&directory).unwrap();
    let count = |arch: &str| cases.iter().filter(|case| case.arch == arch).count();
    let counts = [
        "gpt2",
        "laurel",
        "recurrent",
        "rmt",
        "tokenformer",
        "streams",
        "vit",
        "resnet",
        "loops",
        "ngpt",
    ]
    .map(count);
    assert_eq!(counts, [4, 16, 16, 5, 16, 73, 6, 10, 8, 3]);
}

#[test]
fn an_unknown_switch_fails() {
    let _turn = my_turn();
    let config = |arch: &str| {
        let text = r#"{"arch": "ARCH", "case": "x", "activation": "tanh", "bias": true,
            "batch": 2, "seq": 9, "d_ff": 22, "d_model": 16, "ln_eps": 1e-5, "max_len": 15,
            "n_head": 2, "n_layer": 2, "vocab": 23}"#;
        Keys(serde_json::from_str(&text.replace("ARCH", arch)).unwrap())
    };
    assert!(reference::model(config("gpt2")).is_ok());
    for (key, value) in [("surprise", "true"), ("activation", "\"swish\"")] {
        let mut keys = config("gpt2");
        keys.0
            .insert(key.into(), serde_json::from_str(value).unwrap());
        let error = reference::model(keys).err().unwrap();
        assert!(error.contains(key), "{error}");
    }
    assert!(reference::model(config("surprise")).is_err());
}

#[test]
fn an_unreadable_case_fails() {
    let _turn = my_turn();
    let directory = tempfile::tempdir().unwrap();
    assert!(read_directory(directory.path()).is_err(), "no case at all");
    let good = residual_zoo_testing::root().join("tests/fixtures/gpt2_tanh.safetensors");
    let bytes = std::fs::read(good).unwrap();
    let cut = directory.path().join("cut.safetensors");
    std::fs::write(cut, &bytes[..bytes.len() / 2]).unwrap();
    assert!(read_directory(directory.path()).is_err(), "half a file");
}

/// Prints a line that the test runner does not capture, unlike `println!`.
fn say(line: String) {
    use std::io::Write;
    let mut out = std::io::stdout();
    writeln!(out, "{line}").unwrap();
}

/// Errors as fractions of the tolerances in docs/backends.md. Errors up to 1 are within the tolerance.
struct Errors {
    logits: f64,
    loss: f64,
    gradients: f64,
    statistics: f64,
    largest: [f64; 3],
}

impl Errors {
    fn within_tolerance(&self) -> bool {
        let errors = [self.logits, self.loss, self.gradients, self.statistics];
        errors.iter().all(|e| *e <= 1.0)
    }
}

impl std::fmt::Display for Errors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [logits, loss, gradients] = self.largest;
        write!(
            f,
            "largest error: logits {logits:.1e}, loss {loss:.1e}, gradients {gradients:.1e}"
        )?;
        if self.within_tolerance() {
            Ok(())
        } else {
            write!(f, " OUT OF TOLERANCE")
        }
    }
}

struct Compare<'a>(&'a Case);

impl OnBackend for Compare<'_> {
    type Output = Errors;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Errors {
        let Self(case) = self;
        let outcome = case.pass::<B>(&case.config, &case.weights, &device);

        let logits = Values::from(case.logits.clone());
        let loss = (outcome.loss - case.loss).abs();
        let mut errors = Errors {
            logits: outcome.logits.error(&logits, 3e-5, |b| 1e-5 * b.abs()),
            loss: loss / 1e-5,
            gradients: 0.0,
            statistics: 0.0,
            largest: [outcome.logits.error(&logits, 1.0, |_| 0.0), loss, 0.0],
        };
        assert!(!case.gradients.is_empty(), "{}: no gradient", case.name);
        for (name, expected) in &case.gradients {
            let expected = Values::from(expected.clone());
            let gradient = &outcome.gradients[name];
            let relative = gradient.error(&expected, 1e-5, |_| 3e-5 * expected.largest());
            errors.gradients = errors.gradients.max(relative);
            errors.largest[2] = errors.largest[2].max(gradient.error(&expected, 1.0, |_| 0.0));
        }
        for (name, expected) in &case.statistics {
            let expected = Values::from(expected.clone());
            let error = outcome.statistics[name].error(&expected, 1e-5, |b| 1e-5 * b.abs());
            errors.statistics = errors.statistics.max(error);
        }
        assert_eq!(outcome.statistics.len(), case.statistics.len());
        errors
    }
}
