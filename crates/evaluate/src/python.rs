//! Text operations that follow Python where Rust differs, because `lm_eval` is written in Python.

use std::sync::LazyLock;

use regex::Regex;

/// The white space that `\s` matches in Python, as a character class for Rust's regular expressions.
pub const SPACE: &str = r"[\s\x1c-\x1f]";

/// Whether Python's `str.isspace` holds for `c`. Python counts the four ASCII separators as white space; Unicode does
/// not.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Removes white space at the ends of a text, as `str.strip` does.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Returns the length of `re.split(r"\s+", text)`: the words, and one for white space at each end.
pub fn count_words(text: &str) -> usize {
    static SPACES: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("{SPACE}+")));
    SPACES.split(text).count()
}

/// Returns the text with its first letter in title case and all others in lower case, as `str.capitalize` does.
pub fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let Some(first) = chars.next() else {
        return String::new();
    };
    let mut capital = String::with_capacity(text.len());
    match unicode_case_mapping::to_titlecase(first) {
        [0, ..] => capital.push(first),
        title => capital.extend(
            title
                .into_iter()
                .take_while(|c| *c > 0)
                .filter_map(char::from_u32),
        ),
    }
    // Whether a sigma is final depends on the letters around it, which may include the first letter. The whole text is
    // therefore lowercased.
    let small = text.to_lowercase();
    let of_first: usize = first.to_lowercase().map(char::len_utf8).sum();
    capital.push_str(&small[of_first..]);
    capital
}

/// Compiles a regular expression of this crate.
pub fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|e| unreachable!("{e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_that_of_python() {
        let spaces: Vec<u32> = ('\0'..=char::MAX)
            .filter(|c| is_space(*c))
            .map(u32::from)
            .collect();
        // The characters for which `chr(i).isspace()` holds.
        let expected: Vec<u32> = [
            0x9..=0xd,
            0x1c..=0x20,
            0x85..=0x85,
            0xa0..=0xa0,
            0x1680..=0x1680,
            0x2000..=0x200a,
        ]
        .into_iter()
        .chain([
            0x2028..=0x2029,
            0x202f..=0x202f,
            0x205f..=0x205f,
            0x3000..=0x3000,
        ])
        .flatten()
        .collect();
        assert_eq!(spaces, expected);
        let class = pattern(&format!("^{SPACE}$"));
        for c in '\0'..=char::MAX {
            assert_eq!(
                class.is_match(c.encode_utf8(&mut [0; 4])),
                is_space(c),
                "{c:?}"
            );
        }
        assert_eq!(strip(" \x1c\u{a0}a b\x1f\n"), "a b");
    }

    #[test]
    fn words_are_those_of_python() {
        for (text, count) in [
            ("", 1),
            ("a", 1),
            ("a b", 2),
            (" a ", 3),
            (" ", 2),
            ("\u{a}", 2),
            ("a\u{1c}b", 2),
            ("a\u{1c}\u{1d} b\u{1e}", 3),
            ("a\u{85}b\u{a0}c\u{2028}d", 4),
            ("a\u{200b}b", 1),
            ("a\u{feff}b", 1),
            ("a\u{180e}b", 1),
            ("\u{1f}", 2),
        ] {
            assert_eq!(count_words(text), count, "{text:?}");
        }
    }

    #[test]
    fn texts_are_capitalized_as_by_python() {
        for (text, expected) in [
            ("", ""),
            ("a", "A"),
            ("ABC dEF", "Abc def"),
            ("ßtraße cat DOG", "Sstraße cat dog"),
            ("ﬁnd it", "Find it"),
            ("ΟΔΟΣ ΑΣ", "Οδος ας"),
            ("ǆungla", "ǅungla"),
            ("iSTANBUL İ", "Istanbul i\u{307}"),
            ("Σ", "Σ"),
            ("ΣΑΣ", "Σας"),
            ("ΑΣ'Σ", "Ασ'ς"),
            ("ΑΣ. Β", "Ας. β"),
            ("ΑΣ.", "Ας."),
            ("ΑΣ2", "Ας2"),
            ("ŉA", "ʼNa"),
            ("İI", "İi"),
            ("\u{345}Σ", "Ισ"),
            ("ᾳΣ", "ᾼς"),
            ("ა ბᲐ", "ა ბა"),
            ("123 ABC", "123 abc"),
            (" ABC", " abc"),
            ("日本 ABC", "日本 abc"),
            ("𐐨𐐀", "𐐀𐐨"),
            ("ΣΣ", "Σς"),
            ("ΑΣΣ", "Ασς"),
        ] {
            assert_eq!(capitalize(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_first_letter_has_title_case() {
        // All characters whose `str.capitalize` differs from their `str.upper`, except for two ranges.
        let others = "ß:Ss Ǆ:ǅ ǅ:ǅ ǆ:ǅ Ǉ:ǈ ǈ:ǈ ǉ:ǈ Ǌ:ǋ ǋ:ǋ ǌ:ǋ Ǳ:ǲ ǲ:ǲ ǳ:ǲ և:Եւ ᾲ:Ὰ\u{345} ᾳ:ᾼ ᾴ:Ά\u{345} ᾷ:Α\u{342}\u{345} ᾼ:ᾼ ῂ:Ὴ\u{345} ῃ:ῌ ῄ:Ή\u{345} ῇ:Η\u{342}\u{345} ῌ:ῌ ῲ:Ὼ\u{345} ῳ:ῼ ῴ:Ώ\u{345} ῷ:Ω\u{342}\u{345} ῼ:ῼ ﬀ:Ff ﬁ:Fi ﬂ:Fl ﬃ:Ffi ﬄ:Ffl ﬅ:St ﬆ:St ﬓ:Մն ﬔ:Մե ﬕ:Մի ﬖ:Վն ﬗ:Մխ";
        let others = others.split(' ').map(|pair| pair.split_once(':').unwrap());
        let others: std::collections::BTreeMap<&str, &str> = others.collect();
        for c in '\0'..=char::MAX {
            // These letters are newer than the Unicode of Python 3.11.
            if matches!(u32::from(c), 0x1c89..=0x1c8a | 0xa7cb..=0xa7dc | 0x10d50..=0x10d85 | 0x16ea0..=0x16ed3)
            {
                continue;
            }
            let text = c.to_string();
            let expected = match u32::from(c) {
                0x10d0..=0x10fa | 0x10fd..=0x10ff => text.clone(),
                code @ 0x1f80..=0x1faf => char::from_u32(code | 8).unwrap().to_string(),
                _ => others
                    .get(&*text)
                    .map_or_else(|| text.to_uppercase(), |&title| title.into()),
            };
            assert_eq!(capitalize(&text), expected, "U+{:04X}", u32::from(c));
        }
    }
}
