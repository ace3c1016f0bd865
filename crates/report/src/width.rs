//! Measures the width of text in a terminal, and cuts text to a width.

use residual_zoo_system::terminal::output_columns;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Returns the number of terminal columns that `text` takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Pads `text` with spaces to `columns`: at the right, or for numbers at the left.
pub(crate) fn pad(text: &str, columns: usize, is_number: bool) -> String {
    let space = " ".repeat(columns.saturating_sub(width(text)));
    match is_number {
        true => space + text,
        false => text.to_owned() + &space,
    }
}

/// Breaks text between words, into lines of at most `columns` unless a single word is wider.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(word) <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Formats text for standard output. In a terminal, lines are broken between words, and all but the first begin with
/// `indent`.
pub fn wrapped(text: &str, indent: &str) -> String {
    let Some(columns) = output_columns() else {
        return text.to_owned();
    };
    let words = text.trim_start();
    let first = &text[..text.len() - words.len()];
    let room = columns.saturating_sub(first.len().max(indent.len()));
    format!("{first}{}", wrap(words, room).join(&format!("\n{indent}")))
}

/// Shortens texts to at most `columns` each; `…` marks the omitted part. Different texts stay different: if their
/// beginnings are equal, another part is omitted, or the texts are numbered.
pub(crate) fn shorten<T: AsRef<str>>(texts: &[T], columns: usize) -> Vec<String> {
    let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
    let is_long = |text: &&str| width(text) > columns;
    let long: Vec<&str> = texts.iter().copied().filter(is_long).collect();
    let common = common(&long);
    let part = long.first().map_or("", |first| &first[..common]);
    let words: Vec<usize> = part
        .match_indices(['/', ' '])
        .map(|(at, _)| at + 1)
        .collect();
    let fits = |start: &&usize| long.iter().all(|text| width(&text[**start..]) < columns);
    let word = words.iter().find(fits).or(words.last()).copied();
    let without =
        |start: usize| move |text: &str| end_cut(&format!("…{}", &text[start..]), columns);
    let ways: [&dyn Fn(&str) -> String; 5] = [
        &|text| end_cut(text, columns),
        &without(word.unwrap_or(0)),
        &without(common),
        &|text| {
            let half = (columns - columns.min(1)) / 2;
            format!(
                "{}…{}",
                head(text, half),
                tail(text, columns.saturating_sub(half + 1))
            )
        },
        &|text| format!("…{}", tail(text, columns.saturating_sub(1))),
    ];
    let mut best: Vec<String> = Vec::new();
    for way in ways {
        let short = texts.iter().map(|text| match is_long(text) {
            true => way(text),
            false => (*text).to_owned(),
        });
        let short: Vec<String> = short.collect();
        if distinct(&short) > distinct(&best) {
            best = short;
        }
    }
    if distinct(&best) < distinct(&texts) {
        let numbered = texts.iter().map(|text| {
            let number = texts.iter().position(|other| other == text).unwrap_or(0) + 1;
            end_cut(&format!("{number}: {text}"), columns)
        });
        best = numbered.collect();
    }
    best
}

/// Returns the number of different texts.
fn distinct<T: AsRef<str>>(texts: &[T]) -> usize {
    let set: std::collections::BTreeSet<&str> = texts.iter().map(AsRef::as_ref).collect();
    set.len()
}

/// Returns the number of bytes at the beginning that all texts share.
fn common(texts: &[&str]) -> usize {
    let Some((first, rest)) = texts.split_first() else {
        return 0;
    };
    let mut end = 0;
    for (at, part) in first.grapheme_indices(true) {
        let until = at + part.len();
        if !rest
            .iter()
            .all(|text| text.get(..until) == Some(&first[..until]))
        {
            break;
        }
        end = until;
    }
    end
}

/// Cuts `text` to at most `columns`, with `…` for the rest. A number that the cut would split is omitted as a whole,
/// unless nothing else would be left.
pub(crate) fn end_cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let cut = head(text, columns.saturating_sub(1));
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let kept = match text[cut.len()..].starts_with(is_part) {
        true => cut.trim_end_matches(is_part),
        false => cut,
    };
    let kept = if kept.is_empty() { cut } else { kept };
    format!("{}…", kept.trim_end())
}

/// Returns the beginning of `text` that fits into `columns`.
fn head(text: &str, columns: usize) -> &str {
    let fits = text
        .grapheme_indices(true)
        .map(|(at, part)| at + part.len());
    let end = fits
        .take_while(|end| width(&text[..*end]) <= columns)
        .last();
    &text[..end.unwrap_or(0)]
}

/// Returns the end of `text` that fits into `columns`.
fn tail(text: &str, columns: usize) -> &str {
    let starts = text.grapheme_indices(true).rev().map(|(at, _)| at);
    let start = starts
        .take_while(|at| width(&text[*at..]) <= columns)
        .last();
    &text[start.unwrap_or(text.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_as_wide_as_a_terminal_shows_it() {
        assert_eq!(
            ["abc", "größer", "日本", "🙂", "e\u{301}"].map(width),
            [3, 6, 4, 2, 1]
        );
        assert_eq!(pad("日本", 6, false), "日本  ");
        assert_eq!(pad("1.5", 6, true), "   1.5");
    }

    #[test]
    fn lines_are_cut_between_words() {
        assert_eq!(
            wrap("a difference -0.2936 ± 0.1307", 15),
            ["a difference", "-0.2936 ±", "0.1307"]
        );
        assert_eq!(wrap("日本 語", 5), ["日本", "語"]);
        assert!(wrap("", 5).is_empty());
    }

    #[test]
    fn a_number_is_not_cut() {
        let cut = |columns| end_cut("rose from 4.12 to 2207.26", columns);
        assert_eq!(
            [25, 22, 13].map(cut),
            [
                "rose from 4.12 to 2207.26",
                "rose from 4.12 to…",
                "rose from…"
            ]
        );
        assert_eq!(end_cut("123456", 4), "123…");
    }

    #[test]
    fn what_is_cut_still_differs() {
        let short = |texts: &[&str], columns| shorten(texts, columns);
        assert_eq!(short(&["abc", "abcdefgh"], 5), ["abc", "abcd…"]);
        assert_eq!(
            short(&["runs/pool/GPT-2-0a1b", "runs/pool/GPT-2-9c8d"], 12),
            ["…GPT-2-0a1b", "…GPT-2-9c8d"]
        );
        assert_eq!(
            short(&["wide, stream 96", "wide, stream 192"], 8),
            ["…96", "…192"]
        );
        assert_eq!(
            short(
                &[
                    "wide model with many layers A",
                    "tall model with many layers B",
                    "wide model with many layers C"
                ],
                9
            ),
            ["wide…rs A", "tall…rs B", "wide…rs C"]
        );
        // Any two of these are equal where the third differs.
        let hard = [
            "aaaaaaXbbbbbbZcccccc",
            "aaaaaaYbbbbbbZcccccc",
            "aaaaaaXbbbbbbWcccccc",
        ];
        let found = short(&hard, 9);
        assert_eq!(distinct(&found), 3, "{found:?}");
        // No character is split.
        assert_eq!(short(&["日本語日本語"], 6), ["日本…"]);
        assert_eq!(short(&["👩‍👩‍👧‍👦👩‍👩‍👧‍👦"], 3), ["👩‍👩‍👧‍👦…"]);
    }

    #[test]
    fn every_width_holds() {
        let texts = [
            "",
            "a",
            "日本語",
            "runs/experiments/pool/GPT-2-0a1b",
            "runs/experiments/pool/GPT-2-0a1c",
        ];
        for columns in 1..40 {
            let short = shorten(&texts, columns);
            assert!(
                short.iter().all(|text| width(text) <= columns),
                "{columns}: {short:?}"
            );
        }
    }
}
