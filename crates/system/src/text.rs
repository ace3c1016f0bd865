//! Untrusted text, made safe for a terminal.

use std::borrow::Cow;

/// Escapes control characters of `text`, except for line breaks and tabs. Otherwise, text could set the title, move
/// the cursor or type for the user. Characters that reverse the direction of text or break lines are escaped too,
/// because they can disguise text.
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
}
