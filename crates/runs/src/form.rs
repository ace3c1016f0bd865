//! Finds the form that a value must have when it was written in another form: `Muon()` for `Muon`, `(decay: …)` for
//! `0.99`.

/// The reason why a text is not a valid value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// A field is missing.
    Missing(String),
    /// The value has an unknown field. The variant holds the known fields.
    Fields(Vec<String>),
    /// Another reason.
    Other,
}

impl Misfit {
    /// Parses an error message of `serde`.
    pub fn of(message: &str) -> Self {
        let quoted = |text: &str| -> Vec<String> {
            text.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect()
        };
        if let Some((_, rest)) = message.split_once("missing field ")
            && let [field, ..] = quoted(rest).as_slice()
        {
            return Self::Missing(field.clone());
        }
        match message.split_once("unknown field ") {
            Some((_, rest)) => Self::Fields(quoted(rest).into_iter().skip(1).collect()),
            None => Self::Other,
        }
    }
}

/// Values of the simple types, to find out which type a name or a field takes.
const EXAMPLES: [&str; 4] = ["1", "0.5", "true", "\"text\""];
/// A value with a field that no type has.
const UNKNOWN: &str = "(_: 0)";
/// Maximum number of fields that a form lists after its first field without a default.
const MOST_FIELDS: usize = 4;

/// Returns the form that a value must have in place of `given`. `misfit` returns the reason why a text is not a valid
/// value of the field, or `None` if the text is valid. Returns `None` if no form is found.
pub(crate) fn form(given: &str, misfit: &dyn Fn(&str) -> Option<Misfit>) -> Option<String> {
    let given = given.trim();
    let name: String = given
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    let name = if name.starts_with(char::is_uppercase) {
        name
    } else {
        String::new()
    };
    if !name.is_empty() && name != given && misfit(&name).is_none() {
        return Some(name);
    }
    let empty = format!("{name}()");
    match misfit(&empty) {
        // Only the value of a field is wrong.
        None if given[name.len()..].starts_with('(') && given.contains(':') => None,
        None if !name.is_empty() => Some(empty),
        None => match misfit(UNKNOWN) {
            Some(Misfit::Fields(fields)) => one_of(&fields),
            _ => None,
        },
        // The value is not a name at all.
        Some(Misfit::Fields(fields)) => one_of(&fields),
        Some(Misfit::Missing(first)) => {
            Some(format!("{name}({})", with_fields(&name, first, misfit)))
        }
        Some(_) if !name.is_empty() => {
            let mut examples = EXAMPLES.iter().map(|value| format!("{name}({value})"));
            let example = examples.find(|text| misfit(text).is_none());
            // The value takes no name, so its fields are shown.
            example.or_else(|| form("0", misfit))
        }
        Some(_) => None,
    }
}

/// Shows the first of `fields`, all of which have a default.
fn one_of(fields: &[String]) -> Option<String> {
    Some(format!("({}: …)", fields.first()?))
}

/// Lists the fields without a default, beginning with `first`: `a: …, b: …`.
fn with_fields(name: &str, first: String, misfit: &dyn Fn(&str) -> Option<Misfit>) -> String {
    let mut fields: Vec<(String, &str)> = vec![(first, "")];
    for _ in 0..MOST_FIELDS {
        let at = fields.len() - 1;
        let next = EXAMPLES.iter().find_map(|value| {
            fields[at].1 = value;
            let text: Vec<String> = fields
                .iter()
                .map(|(field, value)| format!("{field}: {value}"))
                .collect();
            match misfit(&format!("{name}({})", text.join(", "))) {
                Some(Misfit::Missing(next)) => Some(next),
                _ => None,
            }
        });
        match next {
            Some(next) if fields.iter().all(|(field, _)| *field != next) => fields.push((next, "")),
            _ => break,
        }
    }
    let fields: Vec<String> = fields
        .into_iter()
        .map(|(field, _)| format!("{field}: …"))
        .collect();
    fields.join(", ")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::{Ema, OptimizerKind, Schedule, ron_text};

    /// Returns the form of a value of type `T` in RON.
    fn of<T: for<'a> Deserialize<'a>>(given: &str) -> Option<String> {
        form(given, &|text| {
            let error = ron_text::options().from_str::<T>(text).err()?;
            Some(ron_text::misfit(&error.code))
        })
    }

    #[test]
    fn the_form_of_a_value_is_found() {
        assert_eq!(of::<OptimizerKind>("Muon").as_deref(), Some("Muon()"));
        assert_eq!(of::<OptimizerKind>("Muon(form: Nanochat)"), None);
        assert_eq!(of::<OptimizerKind>("AdamW()").as_deref(), Some("AdamW"));
        assert_eq!(
            of::<OptimizerKind>("Sgd").as_deref(),
            Some("Sgd(momentum: …)")
        );
        assert_eq!(of::<Schedule>("Wsd").as_deref(), Some("Wsd(decay: …)"));
        assert_eq!(of::<Schedule>("Kausik()").as_deref(), Some("Kausik"));
        assert_eq!(of::<Option<Ema>>("0.99").as_deref(), Some("(decay: …)"));
        assert_eq!(of::<Option<Ema>>("(0.99)").as_deref(), Some("(decay: …)"));
        assert_eq!(of::<Option<Ema>>("(decay: high)"), None);
        assert_eq!(of::<Option<Ema>>("true").as_deref(), Some("(decay: …)"));
        assert_eq!(
            of::<crate::MinLearningRate>("Rate").as_deref(),
            Some("Rate(1)")
        );
        assert_eq!(of::<Option<Ema>>("Warm").as_deref(), Some("(decay: …)"));
        assert_eq!(of::<usize>("many"), None);
        assert_eq!(of::<usize>("Many"), None);
    }

    #[test]
    fn fields_without_a_default_are_listed() {
        #[derive(Deserialize)]
        #[allow(dead_code, reason = "the fields are only read from text")]
        struct Two {
            count: usize,
            name: String,
            #[serde(default)]
            other: bool,
        }
        assert_eq!(of::<Two>("3").as_deref(), Some("(count: …, name: …)"));
    }
}
