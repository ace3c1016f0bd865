//! Reproduces the parts of `tests/fixtures/paper-tables.json` with configs and formulas.

pub mod laurel;
pub mod recurrent;
pub mod rmt;
pub mod tokenformer;

use std::collections::BTreeMap;

use residual_zoo::core::Architecture;
use serde_json::Value;

/// GPT-2's number of token ids.
pub const GPT2: usize = 50_257;
/// GPT-NeoX-20B's number of token ids, rounded up to a multiple of 128.
pub const NEOX: usize = 50_304;

/// Reads the figures of the papers' tables, computed without the zoo's code.
pub fn file() -> Value {
    serde_json::from_str(include_str!("../../fixtures/paper-tables.json")).unwrap()
}

/// Returns the figure at `path` in the file.
pub fn figure(path: &str) -> f64 {
    file().pointer(path).unwrap().as_f64().unwrap()
}

/// Returns the numbers in `value` by their paths, which start with `path`.
pub fn figures(path: &str, value: &Value) -> BTreeMap<String, f64> {
    let entries: Vec<(String, &Value)> = match value {
        Value::Number(number) => return BTreeMap::from([(path.into(), number.as_f64().unwrap())]),
        Value::Array(entries) => (0..).map(|i: usize| i.to_string()).zip(entries).collect(),
        Value::Object(entries) => entries.iter().map(|(k, v)| (k.clone(), v)).collect(),
        _ => Vec::new(),
    };
    let inside = |(key, value): (String, &Value)| figures(&format!("{path}/{key}"), value);
    entries.into_iter().flat_map(inside).collect()
}

/// Whether `path` matches `pattern`, or is inside a match.
pub fn is_under(path: &str, pattern: &str) -> bool {
    let (mut path, mut pattern) = (path.split('/'), pattern.split('/'));
    pattern.all(|part| path.next().is_some_and(|key| part == "*" || part == key))
}

/// Rounds `x` to `digits` decimal places.
pub fn round(x: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    (x * unit).round() / unit
}

/// Returns the difference of `a` and `b` in percent of `b`.
pub fn percent(a: f64, b: f64) -> f64 {
    round(100.0 * (a - b) / b, 3)
}

/// Counts the parameters of a norm before each sublayer and a final norm, each with one scale per feature.
pub fn norm_scales(config: &impl Architecture) -> usize {
    let shape = config.shape();
    (shape.n_sublayer * shape.n_layer + 1) * shape.width
}
