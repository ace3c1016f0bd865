//! The fields of a line of JSON. Fields that no task has are skipped. If a field is repeated, only its last value is
//! kept.

use std::collections::BTreeMap;
use std::fmt;

use residual_zoo_data::json::problem;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Names of the fields that tasks have.
const KNOWN: [&str; 17] = [
    "activity_label",
    "answer",
    "answerKey",
    "choices",
    "ctx_a",
    "ctx_b",
    "endings",
    "goal",
    "label",
    "option1",
    "option2",
    "page",
    "question",
    "sentence",
    "sol1",
    "sol2",
    "text",
];

/// Maximum number of field names that an error shows.
const SHOWN: usize = 12;

/// The fields of a line.
#[derive(Default)]
pub struct Fields<'a> {
    /// The JSON of the known fields.
    known: BTreeMap<&'static str, &'a RawValue>,
    /// The first field names in the line.
    pub names: Vec<String>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields = Fields::default();
                while let Some(name) = map.next_key::<String>()? {
                    match KNOWN.iter().find(|known| **known == name) {
                        // As in Python, the last of several equal names counts.
                        Some(known) => _ = fields.known.insert(known, map.next_value()?),
                        None => _ = map.next_value::<IgnoredAny>()?,
                    }
                    if fields.names.len() < SHOWN {
                        fields.names.push(brief(&name));
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl<'a> Fields<'a> {
    /// Reads a line.
    ///
    /// # Errors
    ///
    /// Returns the problem, as the end of a sentence about the line.
    pub fn read(line: &'a str) -> Result<Self, String> {
        if !line.trim_start().starts_with('{') {
            return Err("is not a JSON object".into());
        }
        serde_json::from_str(line).map_err(|error| {
            // The caller reports the line of the file, so the position within this one line is removed.
            let problem = problem(&error);
            let own = format!(" at line {} column {}", error.line(), error.column());
            format!("is not a JSON object: {}", problem.replacen(&own, "", 1))
        })
    }

    /// Whether there is a field `name`.
    pub fn has(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// Returns the JSON of the field `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such field.
    pub fn get(&self, name: &str) -> Result<&'a RawValue, String> {
        let found = self.known.get(name).copied();
        found.ok_or_else(|| format!("no field `{name}`"))
    }

    /// Returns the text of the field `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such field, or if it is not a string.
    pub fn text(&self, name: &str) -> Result<String, String> {
        text(self.get(name)?, name)
    }
}

/// Reads a string; `name` is for errors.
pub fn text(json: &RawValue, name: &str) -> Result<String, String> {
    serde_json::from_str(json.get()).map_err(|e| match json.get().starts_with('"') {
        true => format!("`{name}` cannot be read: {}", problem(&e)),
        false => format!("`{name}` is not a text"),
    })
}

/// Whether `json` is an object.
pub fn is_object(json: &RawValue) -> bool {
    json.get().starts_with('{')
}

/// Returns the beginning of a JSON value or a name, for an error.
pub fn brief(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

/// The first values of a list, and the number of all values.
pub struct First<T> {
    /// The first values.
    pub kept: Vec<T>,
    /// The number of all values.
    pub count: usize,
}

impl<T: for<'de> Deserialize<'de>> First<T> {
    /// Reads at most `most` values of a list. Returns `None` if `json` is not a list, if the list is empty, or if one
    /// of these values is not a `T`.
    pub fn read(json: &RawValue, most: usize) -> Option<Self> {
        let mut deserializer = serde_json::Deserializer::from_str(json.get());
        let first = Most(most, std::marker::PhantomData).deserialize(&mut deserializer);
        first.ok().filter(|first| first.count > 0)
    }
}

/// Reads a [`First`] that keeps at most this many values.
struct Most<T>(usize, std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Most<T> {
    type Value = First<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<First<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Most<T> {
    type Value = First<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<First<T>, A::Error> {
        let (mut kept, mut count) = (Vec::new(), 0);
        while kept.len() < self.0
            && let Some(value) = list.next_element()?
        {
            kept.push(value);
            count += 1;
        }
        while count >= self.0 && list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(First { kept, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_no_line_of_its_own() {
        let error = Fields::read("{\"text\": \"a\",\n").err().unwrap();
        assert!(error.starts_with("is not a JSON object: EOF"), "{error}");
        assert!(!error.contains("line"), "{error}");
    }

    #[test]
    fn unknown_fields_are_skipped_and_the_last_of_a_name_counts() {
        let line = r#"{"x": [{"y": []}], "text": 1, "text": "a\u0062"}"#;
        let fields = Fields::read(line).unwrap();
        assert_eq!(fields.text("text"), Ok("ab".into()));
        assert_eq!(fields.names, ["x", "text", "text"]);
        assert!(!fields.has("page"));
        for wrong in [
            "",
            "[]",
            "\"text\"",
            "{",
            "{\"text\"}",
            "{\"text\": 1} x",
            "{\"text\": \"\\ud800\"}x",
        ] {
            assert!(Fields::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_are_counted_and_their_beginning_is_kept() {
        let list = |json: &str, most| {
            let raw: &RawValue = serde_json::from_str(json).unwrap();
            First::<String>::read(raw, most).map(|first| (first.kept.concat(), first.count))
        };
        assert_eq!(list(r#"["a", "b", 3, []]"#, 2), Some(("ab".into(), 4)));
        assert_eq!(list(r#"["a", "b"]"#, 2), Some(("ab".into(), 2)));
        assert_eq!(list(r#"["a"]"#, 2), Some(("a".into(), 1)));
        for wrong in ["[]", "{}", "1", r#"["a", 1]"#] {
            assert_eq!(list(wrong, 2), None, "{wrong}");
        }
    }
}
