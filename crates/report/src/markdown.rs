//! Text in Markdown. Everything that looks like HTML, a link or a heading is escaped, so text appears unchanged.

use residual_zoo_system::harmless;

use crate::escape::one_line;

/// Escapes a line of text, for a heading, a cell or a sentence.
pub fn text(text: &str) -> String {
    let line: Vec<char> = one_line(text).chars().collect();
    let mut out = String::new();
    for (i, &c) in line.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| line[i]);
        let next = line.get(i + 1).copied();
        let is_next = |test: fn(char) -> bool| next.is_some_and(test);
        match c {
            '\\' | '`' | '*' | '[' | ']' | '|' | '~' | '$' => out.extend(['\\', c]),
            // An underscore within a word is not emphasis.
            '_' if before.is_some_and(char::is_alphanumeric) && is_next(char::is_alphanumeric) => {
                out.push(c);
            }
            '_' => out.push_str("\\_"),
            '<' if is_next(|c| c.is_alphabetic() || "/!?".contains(c)) => out.push_str("&lt;"),
            '&' if is_next(|c| c.is_alphanumeric() || c == '#') => out.push_str("&amp;"),
            // At the beginning of a line, these would start a heading, a quotation or a list.
            '#' | '>' if i == 0 => out.extend(['\\', c]),
            '-' | '+' if i == 0 && next.is_none_or(|c| c == ' ' || c == '-') => {
                out.extend(['\\', c]);
            }
            '.' | ')' if is_item(&line[..i]) && next.is_none_or(|c| c == ' ') => {
                out.extend(['\\', c]);
            }
            _ => out.push(c),
        }
    }
    out
}

/// Whether a line with this beginning would be an item of a numbered list.
fn is_item(start: &[char]) -> bool {
    !start.is_empty() && start.iter().all(char::is_ascii_digit)
}

/// Escapes paragraphs; a blank line starts a new one.
pub fn paragraphs(body: &str) -> String {
    let paragraphs = body.split("\n\n").map(text);
    let paragraphs = paragraphs.filter(|paragraph| !paragraph.is_empty());
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

/// Makes a block of preformatted text in a language, such as `ron`. Its fence is longer than any fence in the text.
pub fn code(language: &str, body: &str) -> String {
    let ticks = body.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(ticks + 1));
    format!("{fence}{language}\n{}\n{fence}", harmless(body))
}

/// Escapes a file name for use in a URL.
pub fn address(name: &[u8]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escape = |byte: &u8| match is_plain(*byte) {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    name.iter().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Section, markdown};

    #[test]
    fn markdown_shows_text_as_it_is() {
        for (text, expected) in [
            (
                "A <b>test</b> & \"quotes\" | pipe",
                "A &lt;b>test&lt;/b> & \"quotes\" \\| pipe",
            ),
            (
                "x < y, p < 0.001, R&D &lt; &#60;",
                "x < y, p < 0.001, R&amp;D &amp;lt; &amp;#60;",
            ),
            (
                "`code` *star* _under_ snake_case",
                "\\`code\\` \\*star\\* \\_under\\_ snake_case",
            ),
            (
                "[link](http://a) ![x](y)",
                "\\[link\\](http://a) !\\[x\\](y)",
            ),
            (
                "](javascript:alert(1)) | x `",
                "\\](javascript:alert(1)) \\| x \\`",
            ),
            (
                "<!-- --> <?x <http://a>",
                "&lt;!-- --> &lt;?x &lt;http://a>",
            ),
            ("$x$ ~~no~~ C:\\*", "\\$x\\$ \\~\\~no\\~\\~ C:\\\\\\*"),
            ("# no heading", "\\# no heading"),
            ("  > no quote", "\\> no quote"),
            ("- no item", "\\- no item"),
            ("--- no rule", "\\--- no rule"),
            ("12. no item", "12\\. no item"),
            ("1) no item", "1\\) no item"),
            ("-1.5 ± 0.2", "-1.5 ± 0.2"),
            ("12.5", "12.5"),
            ("a\nb\r\n# c", "a b # c"),
            ("x\u{1b}[31m\u{202e}", "x\\\\u{1b}\\[31m\\\\u{202e}"),
        ] {
            assert_eq!(markdown::text(text), expected, "{text:?}");
        }
        assert_eq!(markdown::paragraphs("a\nb\n\n\n# c"), "a b\n\n\\# c");
        assert_eq!(
            markdown::code("text", "a\n```\nb"),
            "````text\na\n```\nb\n````"
        );
        assert_eq!(
            markdown::address(b"a (b)/\"c\"-1.svg"),
            "a%20%28b%29%2F%22c%22-1.svg"
        );
        let section = Section::Folded {
            heading: "Configs".into(),
            note: String::new(),
            language: "ron".into(),
            texts: vec![("</summary><script>\nx".into(), "(a: \"```\")".into())],
        };
        assert_eq!(
            section.to_markdown().unwrap(),
            "## Configs\n\n<details>\n<summary>&lt;/summary&gt;&lt;script&gt; x</summary>\n\n````ron\n(a: \"```\")\n````\n\n</details>"
        );
    }
}
