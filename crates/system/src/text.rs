//! Makes untrusted text safe for a terminal, and formats numbers in text.

use std::borrow::Cow;
use std::fmt::Display;

/// Escapes control characters of `text`, except for line breaks and tabs. Otherwise, text could set the title, move
/// the cursor or type for the user. Characters that embed, override or isolate a text direction, and Unicode's line and
/// paragraph separators, are escaped too, because they can disguise text.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| match c {
        '\n' | '\t' => false,
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    };
    if !text.contains(is_harmful) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_harmful(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown.into()
}

/// Formats a number with its noun, such as `1 step`, `2 steps` or `3 batches`.
pub fn counted(count: impl Display, one: &str) -> String {
    let count = count.to_string();
    let several = match one.strip_suffix('y') {
        _ if count == "1" => one.into(),
        Some(stem) => format!("{stem}ies"),
        None if one.ends_with('s') || one.ends_with("ch") => format!("{one}es"),
        None => format!("{one}s"),
    };
    format!("{count} {several}")
}

/// Returns `text` with very long numbers in a short form: `1e308` instead of a 1 with 308 zeros.
pub fn short_numbers(text: &str) -> String {
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut short = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c| !is_of_number(c)).unwrap_or(from.len());
        let (number, after) = from.split_at(end);
        // A full stop that ends the sentence is not part of the number.
        let digits = number.trim_end_matches('.');
        let is_name = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "_/.".contains(c));
        let is_alone =
            !is_name(short.chars().chain(before.chars()).last()) && !is_name(after.chars().next());
        short += before;
        match digits.parse::<f64>() {
            Ok(value) if is_alone && is_long(digits) => {
                short += &format!("{value:e}");
                short += &number[digits.len()..];
            }
            _ => short += number,
        }
        rest = after;
    }
    short + rest
}

/// Whether a number has more than 20 digits before the point, or is below 1 and has more than 20 zeros after the point.
/// Integers of 64 bits have at most 20 digits.
fn is_long(number: &str) -> bool {
    const MOST: usize = 20;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let zeros = part.bytes().take_while(|digit| *digit == b'0').count();
    whole.len() > MOST || whole == "0" && zeros > MOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_all_others_stay() {
        assert_eq!(harmless("α\tβ\nγ 🙂"), "α\tβ\nγ 🙂");
        let title = harmless("a\u{1b}]0;title\u{7}\u{9b}2J\r\u{8}\u{7f}b");
        assert_eq!(title, r"a\u{1b}]0;title\u{7}\u{9b}2J\r\u{8}\u{7f}b");
        assert_eq!(harmless("a\u{202e}txt.exe"), r"a\u{202e}txt.exe");
    }

    #[test]
    fn one_thing_is_not_several() {
        for (count, one, expected) in [
            (0, "token", "0 tokens"),
            (1, "token id", "1 token id"),
            (11, "token id", "11 token ids"),
            (1, "batch", "1 batch"),
            (2, "batch", "2 batches"),
            (2, "class", "2 classes"),
            (1, "directory", "1 directory"),
            (2, "directory", "2 directories"),
        ] {
            assert_eq!(counted(count, one), expected);
        }
    }

    #[test]
    fn long_numbers_are_short() {
        let large = format!("`model.dropout` is {}; it must be below 1.", 1e308);
        assert_eq!(
            short_numbers(&large),
            "`model.dropout` is 1e308; it must be below 1."
        );
        assert_eq!(short_numbers(&format!("-{}.", 2.5e300)), "-2.5e300.");
        assert_eq!(
            short_numbers(&format!("floating point `{:?}0`, {}", 1e15, 1e-300)),
            "floating point `1000000000000000.00`, 1e-300"
        );
        for same in [
            "18446744073709551615 and 0.1, 1.5.".to_owned(),
            format!("runs/{0}/x {0}.ron step_{0}", "1".repeat(40)),
            "0.99999999999999999999999999".into(),
            "é 1 é".into(),
        ] {
            assert_eq!(short_numbers(&same), same);
        }
    }
}
