//! Reads documents from lines of JSON.

use std::fmt;
use std::path::Path;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};

use crate::DataError;
use crate::json::{not_finite_at, problem, without_nan};

/// Returns the document in line `number` of a file: the string in the field `field` of an object.
///
/// # Errors
///
/// Returns an error if the line is not an object, or has no such string.
pub(super) fn document(
    path: &Path,
    number: usize,
    line: &str,
    field: &str,
) -> Result<String, DataError> {
    let read = |line: &str| {
        let mut json = serde_json::Deserializer::from_str(line);
        let document = OfField(field).deserialize(&mut json);
        document.and_then(|document| json.end().map(|()| document))
    };
    let found = read(line).or_else(|error| match without_nan(line) {
        Some(line) => read(&line),
        None => Err(error),
    });
    let wrong = |message: String| {
        Err(DataError::Json {
            path: path.into(),
            line: number,
            message,
        })
    };
    match found {
        Ok(Some(document)) => Ok(document),
        Ok(None) => Err(DataError::MissingField {
            path: path.into(),
            line: number,
            field: field.to_owned(),
        }),
        // A file may begin with a byte order mark, but a line may not.
        Err(_) if line.starts_with('\u{feff}') => wrong(
            "begins with a byte order mark (U+FEFF), as in files that were joined; delete it"
                .into(),
        ),
        Err(e) => {
            let (found, column) = (json_problem(&e), e.column());
            let number = not_finite_at(line, column).filter(|_| found.contains("sequence"));
            wrong(match number {
                Some(number) => format!(
                    "`{field}` is {number}; write text, or leave the line out (column {column})"
                ),
                None => format!("{found} (column {column})"),
            })
        }
    }
}

/// Deserializes the text in this field of an object. If the field is repeated, the last one counts. Other fields are
/// skipped, because they could take many times their size in memory.
struct OfField<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for OfField<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OfField<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut text = None;
        while let Some(name) = object.next_key::<String>()? {
            if name == self.0 {
                text = Some(object.next_value()?);
            } else {
                object.next_value::<IgnoredAny>()?;
            }
        }
        Ok(text)
    }
}

/// Returns the message of `error` without its line number, which is always 1.
fn json_problem(error: &serde_json::Error) -> String {
    let message = problem(error);
    let place = format!(" at line {} column {}", error.line(), error.column());
    message.replacen(&place, "", 1)
}
