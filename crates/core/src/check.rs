//! Checks of settings. Each error names the field and its valid values.

use serde::Serialize;
use serde_json::Value;

use crate::ConfigError;

/// The largest size in a model's config. It is far above all useful sizes. Products of two sizes and small constants
/// cannot overflow.
pub const MOST: usize = 1 << 24;

/// Checks that no whole number in a model's config is above [`MOST`].
///
/// # Errors
///
/// Returns an error that names the first field above [`MOST`], or an error if the config cannot be written as JSON. The
/// path of the field omits the names of enum variants.
pub fn sizes(config: &impl Serialize) -> Result<(), ConfigError> {
    let tree = serde_json::to_value(config)
        .map_err(|error| ConfigError::new("config", format!("cannot be written: {error}")))?;
    sizes_in(&tree, "")
}

fn sizes_in(tree: &Value, path: &str) -> Result<(), ConfigError> {
    let inside = |name: &str, part| match path {
        _ if name.starts_with(char::is_uppercase) => sizes_in(part, path),
        "" => sizes_in(part, name),
        path => sizes_in(part, &format!("{path}.{name}")),
    };
    match tree {
        Value::Number(number) => {
            let value = number.as_u64().unwrap_or(0);
            at_most(path, usize::try_from(value).unwrap_or(usize::MAX), MOST)
        }
        Value::Array(parts) => {
            let mut parts = parts.iter().enumerate();
            parts.try_for_each(|(i, part)| inside(&i.to_string(), part))
        }
        Value::Object(fields) => {
            let mut fields = fields.iter();
            fields.try_for_each(|(name, part)| inside(name, part))
        }
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// Checks that a number is at most `most`.
pub fn at_most(field: &str, value: usize, most: usize) -> Result<(), ConfigError> {
    match value > most {
        true => {
            let problem = format!("is {value}; it must be at most {most}");
            Err(ConfigError::new(field, problem))
        }
        false => Ok(()),
    }
}

/// Checks that a size is from 1 to [`MOST`].
pub fn size(field: &str, value: usize) -> Result<(), ConfigError> {
    at_least_one(field, value)?;
    at_most(field, value, MOST)
}

/// Checks that a size is at least 1.
pub fn at_least_one(field: &str, value: usize) -> Result<(), ConfigError> {
    if value == 0 {
        return Err(ConfigError::new(field, "is 0; it must be at least 1"));
    }
    Ok(())
}

/// Checks that the size `part` divides the size `whole`.
pub fn divides(part: (&str, usize), whole: (&str, usize)) -> Result<(), ConfigError> {
    at_least_one(part.0, part.1)?;
    if !whole.1.is_multiple_of(part.1) {
        let nearest = (1..=part.1.min(whole.1))
            .rev()
            .find(|n| whole.1.is_multiple_of(*n))
            .unwrap_or(1);
        let problem = format!(
            "{} does not divide `{}` = {}; the next smaller divisor is {nearest}",
            part.1, whole.0, whole.1
        );
        return Err(ConfigError::new(part.0, problem));
    }
    Ok(())
}

/// Checks that a number is above 0 and finite, even after rounding to the 32 bits that models compute with.
pub fn positive(field: &str, value: f64) -> Result<(), ConfigError> {
    let narrow = value as f32;
    if !(narrow.is_finite() && narrow > 0.0) {
        let problem = format!("is {value:?}; it must be above 0 and fit into 32 bits");
        return Err(ConfigError::new(field, problem));
    }
    Ok(())
}

/// Checks that a number is finite, even after rounding to 32 bits.
pub fn finite(field: &str, value: f64) -> Result<(), ConfigError> {
    if !(value as f32).is_finite() {
        let problem = format!("is {value:?}; it must be finite and fit into 32 bits");
        return Err(ConfigError::new(field, problem));
    }
    Ok(())
}

/// Checks that a number is in [0, 1), even after rounding to 32 bits. Rounding turns numbers just below 1 into 1.
pub fn fraction(field: &str, value: f64) -> Result<(), ConfigError> {
    if !(value >= 0.0 && (value as f32) < 1.0) {
        let problem = format!("is {value}; it must be at least 0 and below 1, also in 32 bits");
        return Err(ConfigError::new(field, problem));
    }
    Ok(())
}

/// Checks that a number is at least 0, and finite after rounding to 32 bits.
pub fn not_negative(field: &str, value: f64) -> Result<(), ConfigError> {
    if !((value as f32).is_finite() && value >= 0.0) {
        let problem = format!("is {value}; it must be at least 0 and fit into 32 bits");
        return Err(ConfigError::new(field, problem));
    }
    Ok(())
}
