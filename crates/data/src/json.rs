//! JSON as Python writes it: with `NaN`, `Infinity` and lone surrogates, which JSON does not allow.

use crate::error::one_line;

/// The names of numbers that JSON does not allow. `-Infinity` comes before `Infinity`, which it contains.
const NOT_FINITE: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// Returns the text with an empty list in place of each number that is not finite. The parser thus refuses such a
/// number only if its value matters. Returns `None` if there is no such number. Columns and lines stay the same.
pub fn without_nan(text: &str) -> Option<String> {
    // Most texts contain neither name.
    if !text.contains("NaN") && !text.contains("Infinity") {
        return None;
    }
    let mut found = false;
    let changed = outside_of_strings(text, |rest| {
        let name = NOT_FINITE.iter().find(|name| rest.starts_with(name))?;
        found = true;
        Some((name.len(), b"[]".as_slice()))
    });
    found.then_some(changed)
}

/// Returns the name of the non-finite number that begins at byte `column` of `text`, or one byte earlier. `column` is
/// the position at which serde found the list that [`without_nan`] put in place of the number.
pub fn not_finite_at(text: &str, column: usize) -> Option<&'static str> {
    let is_at = |name: &&&[u8]| {
        let places = [column, column.saturating_sub(1)];
        let mut rests = places.map(|at| text.as_bytes().get(at..)).into_iter();
        rests.any(|rest| rest.is_some_and(|rest| rest.starts_with(name)))
    };
    let found = NOT_FINITE.iter().find(is_at)?;
    std::str::from_utf8(found).ok()
}

/// Returns the text with U+FFFD in place of each escaped lone surrogate, such as `\ud800`. Columns and lines stay the
/// same.
pub fn without_halves(text: &str) -> String {
    let (bytes, mut at) = (text.as_bytes(), 0);
    let mut changed = bytes.to_vec();
    // A backslash only occurs within a string.
    while let Some(next) = bytes[at..].iter().position(|byte| *byte == b'\\') {
        at += next;
        let (unit, after) = (
            unit(&bytes[at..]),
            unit(bytes.get(at + 6..).unwrap_or_default()),
        );
        at += match (unit, after) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 12,
            (Some(0xd800..0xe000), _) => {
                changed[at..at + 6].copy_from_slice(b"\\ufffd");
                6
            }
            (Some(_), _) => 6,
            (None, _) => 2,
        };
        at = at.min(bytes.len());
    }
    String::from_utf8(changed).unwrap_or_default()
}

/// Parses the UTF-16 unit of an escape such as `\u00e9` at the beginning of `text`.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    let digits = std::str::from_utf8(digits).ok()?;
    u16::from_str_radix(digits, 16)
        .ok()
        .filter(|_| !digits.starts_with('+'))
}

/// Replaces parts of the text outside of strings. `replace` returns the length of a part and its new bytes; spaces fill
/// the rest.
fn outside_of_strings(
    text: &str,
    mut replace: impl FnMut(&[u8]) -> Option<(usize, &'static [u8])>,
) -> String {
    let (mut bytes, mut is_text, mut at) = (text.as_bytes().to_vec(), false, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => is_text = !is_text,
            b'\\' if is_text => at += 1,
            // A line break ends a string that is not closed.
            b'\n' => is_text = false,
            _ if is_text => {}
            _ => {
                if let Some((length, with)) = replace(&bytes[at..]) {
                    bytes[at..at + length].fill(b' ');
                    bytes[at..at + with.len()].copy_from_slice(with);
                    at += length - 1;
                }
            }
        }
        at += 1;
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// Describes the problem that serde found in JSON, on one line, with a remedy for Python's extensions.
pub fn problem(error: &serde_json::Error) -> String {
    let problem = one_line(error);
    let remedy = match () {
        () if problem.contains("surrogate") || problem.contains("end of hex escape") => {
            "; an escape such as \\ud800 is half of a character, which cannot be read: write \\ufffd in its place"
        }
        () if ["f64", "usize"]
            .map(|kind| format!("sequence, expected {kind}"))
            .iter()
            .any(|wrong| problem.contains(wrong)) =>
        {
            "; write one finite number, neither a list nor NaN or Infinity"
        }
        () => "",
    };
    problem + remedy
}

/// Describes the [`problem`] that serde found in the JSON `text`, with a remedy for numbers that JSON does not allow.
pub fn problem_in(text: &str, error: &serde_json::Error) -> String {
    let remedy = match without_nan(text) {
        Some(_) => "; NaN and Infinity are not JSON: write null or a finite number",
        None => "",
    };
    problem(error) + remedy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_finite_become_empty_lists() {
        let text = r#"{"NaN": NaN, "b": [-Infinity, Infinity], "c": "\"NaN", "d": "Infinity"}"#;
        let strict = without_nan(text).unwrap();
        let expected = r#"{"NaN": [] , "b": [[]       , []      ], "c": "\"NaN", "d": "Infinity"}"#;
        assert_eq!(strict, expected);
        for same in ["{}", r#"{"NaN": "NaN", "a": "Infinity"}"#, "é"] {
            assert_eq!(without_nan(same), None, "{same}");
        }
    }

    #[test]
    fn halves_of_characters_are_replaced_and_whole_ones_kept() {
        for (text, expected) in [
            (r#""\ud800""#, r#""\ufffd""#),
            (
                r#""\uDC00\ud83d\ude00\ud83d""#,
                r#""\ufffd\ud83d\ude00\ufffd""#,
            ),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\\ud800 \u00e9\n\ud8""#, r#""\\ud800 \u00e9\n\ud8""#),
            (r#""\"#, r#""\"#),
        ] {
            assert_eq!(without_halves(text), expected);
        }
    }

    #[test]
    fn problems_have_a_remedy() {
        let of = |text: &str| problem(&serde_json::from_str::<String>(text).unwrap_err());
        for half in [r#""\ud800""#, r#""\udc00 a""#, r#""\ud800\n""#] {
            assert!(of(half).contains("write \\ufffd"), "{}", of(half));
        }
        let number = serde_json::from_str::<f64>(&without_nan("NaN").unwrap()).unwrap_err();
        assert!(problem(&number).contains("NaN or Infinity"), "{number}");
        assert!(!of("7").contains("half"));
    }
}
