//! Parses values of `--set PATH=VALUE`, which are written as in a RON file.

use serde_json::{Map, Value};

/// Parses the value of an assignment as JSON or RON. Other text without brackets and quotes becomes a string.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    if let (true, Ok(json)) = (text != "None", serde_json::from_str(text)) {
        return Ok(json);
    }
    let mut ron = Ron { text, depth: 0 };
    let value = ron.value().and_then(|value| match ron.text.trim() {
        "" => Ok(value),
        rest => Err(format!("`{rest}` is left over")),
    });
    match value {
        // A path or a word that is not a RON value.
        Err(_) if !text.contains(['(', '[', '"']) => Ok(Value::String(text.into())),
        value => value,
    }
}

/// Maximum nesting depth of a value.
const DEEPEST: usize = 32;

/// The rest of a RON text that is being parsed. Values become the JSON form of a config, so `Name(a: 1)` becomes
/// `{"Name": {"a": 1}}`. The `ron` crate's own values cannot be used, because they lose the names of variants.
struct Ron<'a> {
    text: &'a str,
    depth: usize,
}

impl Ron<'_> {
    fn value(&mut self) -> Result<Value, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("is nested more than {DEEPEST} deep"));
        }
        self.text = self.text.trim_start();
        let value = match self.text.chars().next() {
            Some('[') => self.list('[', ']').map(Value::Array),
            Some('(') => self.fields(),
            _ if is_string(self.text) => self.string(),
            Some(c) if c.is_alphabetic() || c == '_' => self.named(),
            Some(_) => self.number(),
            None => Err("a value is missing".into()),
        };
        self.depth -= 1;
        value
    }

    /// Parses `true`, `None`, `Some(x)`, `Name` or `Name(…)`.
    fn named(&mut self) -> Result<Value, String> {
        // RON writes `r#` before a variant that has the name of a RON keyword, such as `r#None` in `NormParams`.
        let is_raw = self.text.starts_with("r#");
        self.text = self.text.strip_prefix("r#").unwrap_or(self.text);
        let name = self.word();
        let content = match self.text.trim_start().starts_with('(') {
            true => Some(self.fields()?),
            false => None,
        };
        Ok(match (name.as_str(), content) {
            ("true", None) => Value::Bool(true),
            ("false", None) => Value::Bool(false),
            ("None", None) if !is_raw => Value::Null,
            ("Some", Some(content)) => content,
            (_, Some(content)) => Value::Object(Map::from_iter([(name, content)])),
            (_, None) => Value::String(name),
        })
    }

    /// Parses `(a: 1, b: 2)` with names, or `(x)`, or `(x, y)`.
    fn fields(&mut self) -> Result<Value, String> {
        let inside = self.text.trim_start().strip_prefix('(');
        let inside = inside.unwrap_or_default().trim_start();
        let name: String = inside.chars().take_while(|c| is_word(*c)).collect();
        let is_named = inside[name.len()..].trim_start().starts_with(':');
        if !is_named && !inside.starts_with(')') {
            let mut values = self.list('(', ')')?;
            return Ok(match values.len() {
                1 => values.remove(0),
                _ => Value::Array(values),
            });
        }
        let mut fields = Map::new();
        self.expect('(')?;
        while !self.ends(')') {
            self.text = self.text.trim_start();
            let name = self.word();
            self.expect(':')?;
            let value = self.value()?;
            if fields.insert(name.clone(), value).is_some() {
                return Err(format!("`{name}` is given twice"));
            }
            self.comma(')')?;
        }
        Ok(Value::Object(fields))
    }

    fn list(&mut self, open: char, close: char) -> Result<Vec<Value>, String> {
        let mut values = Vec::new();
        self.expect(open)?;
        while !self.ends(close) {
            values.push(self.value()?);
            self.comma(close)?;
        }
        Ok(values)
    }

    /// Parses a string with RON's escapes, or a raw string.
    fn string(&mut self) -> Result<Value, String> {
        let value = literal(self.text).and_then(|end| {
            let (literal, rest) = self.text.split_at(end);
            self.text = rest;
            ron::from_str(literal).ok()
        });
        let value = value.ok_or("a string does not end, or has an invalid escape")?;
        Ok(Value::String(value))
    }

    fn number(&mut self) -> Result<Value, String> {
        let end = self.text.find([',', ')', ']', ' ', '\n']);
        let (number, rest) = self.text.split_at(end.unwrap_or(self.text.len()));
        self.text = rest;
        let plain = number.replace('_', "");
        let plain = plain.strip_prefix('+').unwrap_or(&plain);
        let value = serde_json::from_str(plain);
        let value = value.or_else(|_| match plain.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::from(number)),
            _ => Err(()),
        });
        value.map_err(|_| match number {
            "" => format!("a value is missing before `{rest}`"),
            _ => format!("`{number}` is not a value"),
        })
    }

    fn word(&mut self) -> String {
        let word: String = self.text.chars().take_while(|c| is_word(*c)).collect();
        self.text = &self.text[word.len()..];
        word
    }

    fn expect(&mut self, what: char) -> Result<(), String> {
        self.text = self.text.trim_start();
        let rest = self.text.strip_prefix(what);
        self.text = rest.ok_or_else(|| match self.text {
            "" => "a bracket is not closed".to_owned(),
            text => format!("`{what}` is missing before `{text}`; text may need quotes"),
        })?;
        Ok(())
    }

    /// Skips `close` if it is next. Returns true if it was.
    fn ends(&mut self, close: char) -> bool {
        self.text = self.text.trim_start();
        let rest = self.text.strip_prefix(close);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    /// Skips a comma, which is optional before `close`.
    fn comma(&mut self, close: char) -> Result<(), String> {
        match self.text.trim_start().starts_with(close) {
            true => Ok(()),
            false => self.expect(','),
        }
    }
}

/// Whether `text` begins with a string, such as `"a"`, `r"a"` or `r#"a"#`.
pub(super) fn is_string(text: &str) -> bool {
    let raw = text.strip_prefix('r').unwrap_or("");
    text.starts_with('"') || raw.trim_start_matches('#').starts_with('"')
}

/// Returns the length of the string at the beginning of `text`, with its quotes; `None` if the string does not end.
fn literal(text: &str) -> Option<usize> {
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let end = format!("\"{}", &raw[..hashes]);
        let inside = 1 + hashes + 1;
        return Some(inside + text[inside..].find(&end)? + end.len());
    }
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.map(|(at, _)| at + 1)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_ron_become_the_json_of_configs() {
        for (text, expected) in [
            ("100", json!(100)),
            ("3e-4", json!(3e-4)),
            ("1_000", json!(1000)),
            ("+.5", json!(0.5)),
            ("true", json!(true)),
            ("None", Value::Null),
            ("r#None", json!("None")),
            ("Some(3)", json!(3)),
            ("Kausik", json!("Kausik")),
            ("my-text.txt", json!("my-text.txt")),
            ("texts/a b.txt", json!("texts/a b.txt")),
            ("\"(x)\"", json!("(x)")),
            (r#""a\x41\u{1b}\'\"\n""#, json!("aA\u{1b}'\"\n")),
            (r##"r#"a"\n"#"##, json!("a\"\\n")),
            (r#"Path(r"x")"#, json!({"Path": "x"})),
            ("[1, 2,]", json!([1, 2])),
            ("(block: 16)", json!({"block": 16})),
            ("Synthetic()", json!({"Synthetic": {}})),
            ("{\"Lr\": {\"r\": 8}}", json!({"Lr": {"r": 8}})),
            ("Path(\"a.txt\")", json!({"Path": "a.txt"})),
            (
                "PerLayer( Laurel(weights: Softmax, augmentation: LowRank(rank: 4)) )",
                json!({"PerLayer": {"Laurel": {
                    "weights": "Softmax", "augmentation": {"LowRank": {"rank": 4}},
                }}}),
            ),
        ] {
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_value_is_said() {
        for (text, problem) in [
            ("Lr(r: 8", "a bracket is not closed"),
            (
                "Path(a.txt)",
                "`,` is missing before `.txt)`; text may need quotes",
            ),
            ("(a: 1, a: 2)", "`a` is given twice"),
            ("[1] 2", "`2` is left over"),
            ("[1e999]", "`1e999` is not a value"),
            ("(a: )", "a value is missing before `)`"),
            ("[\"a]", "a string does not end, or has an invalid escape"),
            (r#""\q""#, "a string does not end, or has an invalid escape"),
        ] {
            assert_eq!(parse(text).unwrap_err(), problem, "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse(&deep).unwrap_err().contains("nested"));
    }
}
