//! Reads RON text, and describes its errors in plain words.

use std::path::Path;

use ron::error::{Position, SpannedError};
use ron::extensions::Extensions;
use serde::de::DeserializeOwned;
use serde_path_to_error::Track;

use crate::Error;
use crate::form::{Misfit, form};
use crate::wording::{
    NAMES, in_plain_words, name_is_missing, of_composition, of_connection, unknown,
};

/// Parses RON text with the RON extensions that files under `experiments/` use. Errors refer to the text as `path`.
///
/// # Errors
///
/// Returns an error with the line, the column and the path of the field if the text does not parse.
pub fn parse_ron<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, Error> {
    read_ron(text).map_err(|failed| {
        let (field, error) = *failed;
        let listed = match error.code {
            ron::Error::ExpectedIdentifier => read_ron::<T>(&with_a_name(text, &error)).err(),
            _ => None,
        };
        let form = form_in::<T>(text, &field, &error);
        let problem = match listed.map(|failed| failed.1.code) {
            _ if has_some(text, &error) => SOME.into(),
            Some(ron::Error::NoSuchEnumVariant { expected, .. }) => {
                let found = rest_at(text, error.span.end).unwrap_or_default();
                name_is_missing(found, expected) + &of_connection("", expected)
            }
            _ => match &form {
                Some(form) => OTHER_FORM.to_owned() + &format!("; write `{form}`"),
                None => describe(&error.code),
            },
        };
        Error::Parse {
            path: path.into(),
            line: error.span.start.line,
            column: error.span.start.col,
            problem: match path_of(&field) {
                "" => problem,
                field if form.is_some() => format!("`{}`: {problem}", without_name(field)),
                field => format!("`{field}`: {problem}"),
            },
        }
    })
}

/// Reads RON text. An error comes with the path of its field.
fn read_ron<T: DeserializeOwned>(text: &str) -> Result<T, Box<(String, SpannedError)>> {
    let ron = ron::Deserializer::from_str_with_options(text, &options());
    let mut ron = ron.map_err(|error| Box::new((String::new(), error)))?;
    let mut fields = Track::new();
    let parsed = T::deserialize(serde_path_to_error::Deserializer::new(
        &mut ron,
        &mut fields,
    ));
    let parsed =
        parsed.map_err(|error| Box::new((fields.path().to_string(), ron.span_error(error))))?;
    let ended = ron.end();
    ended.map_err(|error| Box::new((String::new(), ron.span_error(error))))?;
    Ok(parsed)
}

/// Returns the form that the value at the position of `error` must have; `None` if the form is unknown. `field` is the
/// path of the field to which the error belongs.
fn form_in<T: DeserializeOwned>(text: &str, field: &str, error: &SpannedError) -> Option<String> {
    let field = path_of(field);
    let has_form = matches!(
        error.code,
        ron::Error::ExpectedStructLike | ron::Error::ExpectedNamedStructLike(_)
    );
    let rest = rest_at(text, error.span.end).filter(|_| has_form && !field.is_empty())?;
    let before = text[..text.len() - rest.len()].trim_end();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let name = before.trim_end_matches(is_part).len();
    let (before, given, rest) = match before[name..].starts_with(char::is_uppercase) {
        true => (&text[..name], &before[name..], rest),
        false => {
            let end = rest.find([',', ')', '\n']).unwrap_or(rest.len());
            (&text[..text.len() - rest.len()], &rest[..end], &rest[end..])
        }
    };
    form(given, &|value| {
        let failed = read_ron::<T>(&format!("{before}{value}{rest}")).err()?;
        let is_here = path_of(&failed.0).starts_with(field);
        is_here.then(|| misfit(&failed.1.code))
    })
}

/// Returns the path of a field without a final `?`, which stands for a name that had not been read before the error.
fn path_of(field: &str) -> &str {
    field.trim_end_matches(['?', '.'])
}

/// Returns the path of the field whose value has the name at the end of `field`: `schedule` for `schedule.Wsd`.
fn without_name(field: &str) -> &str {
    match field.rsplit_once('.') {
        Some((field, name)) if name.starts_with(char::is_uppercase) => field,
        _ => field,
    }
}

/// Returns the reason why a value does not fit, for [`form`].
pub(crate) fn misfit(error: &ron::Error) -> Misfit {
    match error {
        ron::Error::MissingStructField { field, .. } => Misfit::Missing((*field).into()),
        ron::Error::NoSuchStructField { expected, .. } => {
            Misfit::Fields(expected.iter().map(|field| (*field).into()).collect())
        }
        _ => Misfit::Other,
    }
}

/// Inserts an invalid name where a name is missing, so that the next error lists the valid names.
fn with_a_name(text: &str, error: &SpannedError) -> String {
    let rest = rest_at(text, error.span.end);
    let at = rest.map_or(text.len(), |rest| text.len() - rest.len());
    format!("{}_ {}", &text[..at], &text[at..])
}

/// Returns the text from `place` on.
fn rest_at(text: &str, place: Position) -> Option<&str> {
    let mut lines = text.split_inclusive('\n').skip(place.line - 1);
    let line = lines.next()?;
    let column = line.char_indices().nth(place.col - 1)?.0;
    text.get(line.as_ptr() as usize - text.as_ptr() as usize + column..)
}

/// Whether an error is due to a wrong `Some`: around a value that is not optional, or around a value with its own
/// parentheses.
fn has_some(text: &str, error: &SpannedError) -> bool {
    let is_about_another = match &error.code {
        ron::Error::NoSuchEnumVariant { found, .. } => found != "Some",
        ron::Error::NoSuchStructField { .. }
        | ron::Error::MissingStructField { .. }
        | ron::Error::DuplicateStructField { .. } => true,
        _ => false,
    };
    let Some(rest) = rest_at(text, error.span.start).filter(|_| !is_about_another) else {
        return false;
    };
    let before = text[..text.len() - rest.len()].trim_end();
    let inside = before.strip_suffix('(').map(str::trim_end);
    let is_inside = inside.is_some_and(|before| before.ends_with("Some"));
    let rest = rest.trim_start();
    let is_here = rest
        .strip_prefix("Some")
        .is_some_and(|rest| rest.trim_start().starts_with('('));
    is_here || (is_inside && rest.starts_with('('))
}

/// Describes a RON error in plain words.
fn describe(error: &ron::Error) -> String {
    match error {
        ron::Error::MissingStructField { field, .. } => format!("field `{field}` is missing"),
        ron::Error::SuggestRawIdentifier(found) => {
            format!("found `{found}` where a name belongs; {NAMES}")
        }
        ron::Error::ExpectedIdentifier => format!(
            "a name is missing; choices have names, as in `Path(\"text.txt\")` or `Bytes`, and {NAMES}"
        ),
        ron::Error::ExpectedComma => COMMA.into(),
        ron::Error::NoSuchStructField {
            found, expected, ..
        } => unknown("field", found, expected) + of_composition(found),
        ron::Error::NoSuchEnumVariant {
            found, expected, ..
        } => unknown("name", found, expected) + &of_connection(found, expected),
        ron::Error::ExpectedNamedStructLike(_) | ron::Error::ExpectedDifferentStructName { .. } => {
            NO_FIELDS.into()
        }
        ron::Error::DuplicateStructField { field, .. } => {
            format!("the field `{field}` is given twice; leave one of them out")
        }
        ron::Error::ExpectedMapColon => COLON.into(),
        ron::Error::TrailingCharacters => TRAILING.into(),
        error => in_plain_words(&error.to_string()),
    }
}

/// The message for a value that ends too early.
const COMMA: &str = "a comma or the closing bracket is missing here; whole numbers have no decimal point, and text needs \
                     quotes";
/// The message for a value without fields where fields belong.
const NO_FIELDS: &str = "expected fields with names in parentheses, as in `(field: 1)`";
/// The message for a value that was written in another form.
pub(crate) const OTHER_FORM: &str = "the value has another form";
/// The message for a value inside of `Some`.
const SOME: &str = "leave `Some` out; a value stands alone, as in `(field: 1)`, `Name(…)` or `3`";
/// The message for a field without a colon.
const COLON: &str = "a colon is missing here; a field is written as `name: value`";
/// The message for text after the last bracket.
const TRAILING: &str =
    "there is more text after the closing bracket; remove it, or move the bracket to the end";

pub(crate) fn extensions() -> Extensions {
    Extensions::IMPLICIT_SOME | Extensions::UNWRAP_NEWTYPES | Extensions::UNWRAP_VARIANT_NEWTYPES
}

pub(crate) fn options() -> ron::Options {
    ron::Options::default().with_default_extension(extensions())
}

#[cfg(test)]
mod tests {
    use residual_zoo_data::DataConfig;
    use serde::Deserialize;

    use super::*;
    use crate::Schedule;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "the fields are only read from text")]
    struct File {
        data: DataConfig,
        #[serde(default)]
        schedule: Schedule,
        #[serde(default)]
        part: Option<Part>,
        #[serde(default)]
        count: usize,
        #[serde(default)]
        connection: Option<Place>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "the fields are only read from text")]
    struct Part {
        size: usize,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "the fields are only read from text")]
    enum Place {
        PerSublayer(Schedule),
        PerLayer(Schedule),
    }

    #[test]
    fn a_value_inside_of_some_is_pointed_out() {
        let read = |text: &str| parse_ron::<File>(text, Path::new("a.ron"));
        for text in [
            "(data: Some((valid_fraction: 0.1)))",
            "(data: Some(valid_fraction: 0.1))",
            "(data: (), schedule: Some(Cosine))",
            "(data: (), part: Some((size: 3)))",
            "(data: (), part: Some( (size: 3)))",
            "(data: (), count: Some(3))",
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(SOME), "{text}: {error}");
        }
        // Other errors keep their wording.
        for (text, problem) in [
            (
                "(data: (), part: Some(length: 3))",
                "unknown field `length`",
            ),
            ("(data: (), part: Some())", "field `size` is missing"),
            ("(data: (), connection: Some(Cosine))", "PerSublayer(Cosine"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(
                error.contains(problem) && !error.contains(SOME),
                "{text}: {error}"
            );
        }
        read("(data: (), part: Some(size: 3))").unwrap();
        read("(data: (), part: (size: 3))").unwrap();
    }

    #[test]
    fn a_connection_without_its_place_is_shown_with_one() {
        for text in [
            "(data: (), connection: Cosine)",
            "(data: (), connection: Linear())",
            "(data: (), connection: (Linear()))",
        ] {
            let error = parse_ron::<File>(text, Path::new("a.ron")).unwrap_err();
            let error = error.to_string();
            let name = match text.contains("Cosine") {
                true => "write `PerSublayer(Cosine(…))`",
                false => "write `PerSublayer(",
            };
            assert!(
                error.contains(name) && error.contains("PerLayer("),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn what_a_file_lacks_is_said_in_plain_words() {
        for (text, problem) in [
            (
                "(data: (source: \"mine.txt\"))",
                "write `Path(\"mine.txt\")` for a file or directory",
            ),
            (
                "(data: (source: \"µ\"))",
                "`data.source`: unknown name `µ`; the names are ",
            ),
            (
                "(data: (), schedule: \"Kausik\")",
                "the names are Cosine, Linear, Wsd, Kausik; write `Kausik` without quotes",
            ),
            (
                "(data: (), schedule: [1e-3, 1e-2])",
                "expected one of the names Cosine, Linear, Wsd, Kausik",
            ),
            (
                "(data: (), schedule: kausik)",
                "unknown name `kausik` (did you mean `Kausik`?); the names are Cosine, Linear, Wsd, Kausik",
            ),
            (
                "(data: (), schedules: Kausik)",
                "unknown field `schedules` (did you mean `schedule`?); the fields are data, schedule",
            ),
            (
                "(data: \"wide\")",
                "the value has another form; write `(source: …)`",
            ),
            (
                "(data: (), schedule: Wsd)",
                "`schedule`: the value has another form; write `Wsd(decay: …)`",
            ),
            (
                "(data: (), part: 3, surprise: 1)",
                "`part`: the value has another form; write `(size: …)`",
            ),
            ("(data = ())", COLON),
            ("(data: ()))", TRAILING),
        ] {
            let error = parse_ron::<File>(text, Path::new("a.ron")).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
