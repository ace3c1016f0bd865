//! Reads JSON files of other projects.

use std::path::Path;

use residual_zoo_data::json::{problem, without_halves, without_nan};
use residual_zoo_data::{is_there, read_utf8};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::Error;

/// The fields of a JSON object.
pub type Fields = Map<String, Value>;

/// Reads the fields of a JSON file. Fields that are `null` are left out, because Python writes `null` for a field that
/// is not set. Whole numbers such as `12.0`, which some programs write, become integers.
///
/// # Errors
///
/// Returns an error if the file is missing, or if its content is not a JSON object.
pub fn read_fields(path: &Path) -> Result<Fields, Error> {
    let mut fields = read_with_nulls(path)?;
    fields.retain(|_, value| !value.is_null());
    Ok(fields)
}

/// Reads the fields of a JSON file, including `null` fields. Returns no fields if the file does not exist.
///
/// # Errors
///
/// Returns the errors of [`read_fields`].
pub fn read_with_nulls_if_any(path: &Path) -> Result<Fields, Error> {
    match is_there(path)? {
        true => read_with_nulls(path),
        false => Ok(Fields::new()),
    }
}

fn read_with_nulls(path: &Path) -> Result<Fields, Error> {
    let damaged = |problem: String| Error::file(path, format!("is damaged: {problem}"));
    let text = read_utf8(path)?;
    let json: Value = serde_json::from_str(&text)
        .or_else(|_| {
            // Reads as Python does: an unused field may have values that JSON does not allow.
            let text = without_nan(&text).unwrap_or(text);
            serde_json::from_str(&without_halves(&text))
        })
        .map_err(|e| damaged(problem(&e)))?;
    let Value::Object(mut fields) = json else {
        return Err(damaged("it is not an object, `{…}`".into()));
    };
    fields.values_mut().for_each(make_whole);
    Ok(fields)
}

/// Reads a struct from fields.
///
/// # Errors
///
/// Returns the name of the field that has the wrong type, and the problem.
pub fn from_fields<T: DeserializeOwned>(fields: Fields) -> Result<T, String> {
    let read = |fields: &Fields| serde_json::from_value::<T>(fields.clone().into());
    read(&fields).map_err(|error| {
        // The error lacks the name of its field, so each field is left out in turn: without the wrong field, there is
        // no error.
        let is_cause = |name: &&String| {
            let mut others = fields.clone();
            others.remove(*name);
            read(&others).is_ok()
        };
        let name = fields.keys().find(is_cause);
        let name = name.map_or(String::new(), |name| format!("`{name}`: "));
        name + &problem(&error)
    })
}

/// Reads the fields of a JSON file. Returns no fields if the file does not exist.
///
/// # Errors
///
/// Returns the errors of [`read_fields`].
pub fn read_fields_if_any(path: &Path) -> Result<Fields, Error> {
    match is_there(path)? {
        true => read_fields(path),
        false => Ok(Fields::new()),
    }
}

/// Replaces floats without a fraction with integers. A float can also be read from an integer.
fn make_whole(value: &mut Value) {
    /// Above this number, floats skip integers.
    const MOST: f64 = (1_u64 << 53) as f64;
    match value {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap_or(f64::NAN);
            if float.fract() == 0.0 && float.abs() <= MOST {
                *value = (float as i64).into();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_whole),
        Value::Object(fields) => fields.values_mut().for_each(make_whole),
        _ => {}
    }
}
