//! Parses sweeps on the command line.

use std::str::FromStr;

use super::values::is_inexact;
use super::{Range, Swept, Value, Values};

/// Parses `FIELD=VALUES`. Values are a list `8,16,32`, a range `0..0.3:4` with its number of values, a logarithmic
/// range `1e-4..1e-1:log:8`, or draws `1e-4..1e-1:log-uniform:8`.
impl FromStr for Swept {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example =
            "give FIELD=VALUES, such as train.learning_rate=1e-4..1e-1:log:8 or train.batch=8,16";
        let (field, values) = text
            .split_once('=')
            .ok_or_else(|| format!("it has no `=`; {example}"))?;
        let swept = Self {
            field: field.trim().to_owned(),
            values: values
                .parse()
                .map_err(|problem: String| format!("it {problem}; {example}"))?,
        };
        let checked = swept.check();
        checked.map_err(|found| format!("it {}", found.problem))?;
        Ok(swept)
    }
}

impl FromStr for Values {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.trim().replace('_', "").parse::<f64>();
            number.map_err(|_| format!("has `{text}`, which is not a number"))
        };
        let Some((from, rest)) = text.split_once("..") else {
            let values = list(text).into_iter().map(|value| match number(value) {
                Ok(number) if !is_inexact(number) => Value::Number(number),
                _ => Value::Ron(value.to_owned()),
            });
            return Ok(Self::Grid(values.collect()));
        };
        let parts: Vec<&str> = rest.split(':').map(str::trim).collect();
        let (to, kind, count) = match parts[..] {
            [to, count] => (to, "linear", count),
            [to, kind, count] => (to, kind, count),
            _ => return Err("is a range without the number of its values".into()),
        };
        let range = Range {
            from: number(from)?,
            to: number(to)?,
            count: count
                .parse()
                .map_err(|_| format!("has `{count}` as the number of values"))?,
        };
        match kind {
            "linear" => Ok(Self::Linear(range)),
            "log" => Ok(Self::Log(range)),
            "log-uniform" => Ok(Self::LogUniform(range)),
            _ => Err(format!(
                "has `{kind}`; it can be log, log-uniform or nothing"
            )),
        }
    }
}

/// Splits a list at the commas outside brackets and quotes. An empty text has no parts.
fn list(text: &str) -> Vec<&str> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (i, c) in text.char_indices() {
        let is_literal = std::mem::take(&mut is_escaped);
        match c {
            '"' if !is_literal => is_quoted = !is_quoted,
            '\\' if is_quoted => is_escaped = !is_literal,
            _ if is_quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}
