//! Escapes untrusted text: one function for HTML and SVG, one for CSV, and [`markdown`](crate::markdown).

use residual_zoo_system::harmless;

/// Whether the character must not be written unchanged: XML forbids it, or it separates lines, changes the direction of
/// text or controls a terminal.
fn is_odd(c: char) -> bool {
    matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
        || c.is_control()
}

/// Replaces odd characters (see `is_odd`) of an HTML or SVG document by U+FFFD, except for line breaks and tabs.
pub(crate) fn printable(document: String) -> String {
    document.replace(|c| is_odd(c) && !"\n\t".contains(c), "\u{fffd}")
}

/// Puts text on one line. Each run of spaces, tabs and line breaks becomes one space, or nothing at the ends of the
/// text. Control characters are escaped.
pub(crate) fn one_line(text: &str) -> String {
    let is_space = |c: char| matches!(c, ' ' | '\t'..='\r');
    let words = text.split(is_space).filter(|word| !word.is_empty());
    harmless(&words.collect::<Vec<_>>().join(" ")).into_owned()
}

/// Makes a cell of a CSV file. Different texts become different cells. A spreadsheet reads a cell that begins with `=`,
/// `+`, `-` or `@` as a formula, so such a cell gets an apostrophe in front. A cell that begins with an apostrophe gets
/// a second apostrophe. Odd characters are escaped as `\u{…}`. Numbers stay unchanged.
pub(crate) fn csv_cell(cell: &str) -> String {
    let mut text = String::with_capacity(cell.len());
    // A text that has `\u{` itself would otherwise look escaped.
    for c in cell.replace("\\u{", "\\u{5c}u{").chars() {
        match is_odd(c) {
            true => text.extend(c.escape_unicode()),
            false => text.push(c),
        }
    }
    let cell = text;
    // Some spreadsheets drop invisible characters, and some read full-width forms as signs too.
    let is_unseen = |c: char| {
        c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}')
    };
    let first = cell.trim_start_matches(is_unseen).chars().next();
    let is_marked = first.is_some_and(|c| "'=+-@＝＋－＠".contains(c));
    match is_marked && !is_number(&cell) {
        true => format!("'{cell}"),
        false => cell,
    }
}

/// Whether `text` is a number as this program writes it, such as `-1.5` or `2e-7`.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.starts_with(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::csv_cell;
    use crate::csv;

    /// Text that a spreadsheet would read as a formula stays text. Numbers stay numbers.
    #[test]
    fn csv_has_no_formulas_and_no_control_characters() {
        let cell = |text: &str| {
            let csv = csv(&["x"], [vec![text.to_owned()]]);
            csv.strip_prefix("x\n")
                .unwrap()
                .trim_end_matches('\n')
                .to_owned()
        };
        for number in ["-1.5", "0", "1e21", "-2e-7", "1.2345"] {
            assert_eq!(cell(number), number);
        }
        let formulas = [
            ("=cmd|'/C calc'!A0", "'=cmd|'/C calc'!A0"),
            ("+1+1", "'+1+1"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("+5", "'+5"),
            ("-inf", "'-inf"),
            ("- 1", "'- 1"),
            ("'=1+1", "''=1+1"),
            (" '=1", "' '=1"),
            ("'", "''"),
            ("it's", "it's"),
            ("\t=1", "\\u{9}=1"),
            ("\r=1", "\\u{d}=1"),
            ("\\u{9}=1", "\\u{5c}u{9}=1"),
            ("C:\\users", "C:\\users"),
            (" =1", "' =1"),
            ("\u{feff}=1", "'\u{feff}=1"),
            ("＝1+1", "'＝1+1"),
            ("=\"a\"", "\"'=\"\"a\"\"\""),
            ("x\u{1b}[31m", "x\\u{1b}[31m"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("two\nlines\tand a tab", "two\\u{a}lines\\u{9}and a tab"),
            ("a=1", "a=1"),
            ("a-b", "a-b"),
        ];
        for (text, expected) in formulas {
            assert_eq!(cell(text), expected, "{text:?}");
        }
        assert_eq!(csv(&["=x"], []), "'=x\n");
    }

    #[test]
    fn different_texts_are_different_cells() {
        // Tries every text of up to five of these parts.
        let parts = ["'", "=", " ", "1", "-", "\\", "u{", "5c}", "9}", "\t", "\n"];
        let mut texts = vec![String::new()];
        let mut last = texts.clone();
        for _ in 0..5 {
            let longer = last
                .iter()
                .flat_map(|text| parts.map(|part| text.clone() + part));
            last = longer.collect();
            texts.extend(last.iter().cloned());
        }
        let count = texts.len();
        let cells: HashSet<String> = texts.iter().map(|text| csv_cell(text)).collect();
        assert_eq!(cells.len(), count);
    }
}
