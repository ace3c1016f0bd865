//! Commands in the syntax of a shell.

use std::path::Path;

use residual_zoo_backend::BackendKind;

/// Returns the beginning of the command that runs the example `name` on the backend `kind`.
pub fn example(name: &str, kind: BackendKind) -> String {
    // Flex is a default feature, so it needs no option.
    let features = match kind {
        BackendKind::Flex => String::new(),
        kind => format!(" --features {}", kind.feature()),
    };
    format!("cargo run --release{features} --example {name} --")
}

/// Returns the arguments of this program, as text.
pub fn arguments() -> impl Iterator<Item = String> {
    let arguments = std::env::args_os().skip(1);
    arguments.map(|argument| argument.to_string_lossy().into_owned())
}

/// Returns the shell command that runs `program` with these arguments.
pub fn command(program: &str, arguments: impl Iterator<Item = String>) -> String {
    let quoted = arguments.map(|argument| quoted(&argument));
    let parts = std::iter::once(program.to_owned()).chain(quoted);
    parts.collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        // Control characters are written as escape codes, which `$'…'` decodes.
        false if word.contains(char::is_control) => {
            let codes = |c: char| match c {
                '\\' | '\'' => format!("\\{c}"),
                c if c.is_control() => c
                    .to_string()
                    .bytes()
                    .map(|b| format!("\\x{b:02x}"))
                    .collect(),
                c => c.to_string(),
            };
            format!("$'{}'", word.chars().map(codes).collect::<String>())
        }
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Quotes the path of a run for a shell. A path that begins with a hyphen is not taken for an option.
pub fn quoted_path(path: &Path) -> String {
    let path = path.to_string_lossy();
    match path.starts_with('-') {
        true => quoted(&format!("./{path}")),
        false => quoted(&path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, quoted_word) in [
            ("runs/a-1.5", "runs/a-1.5"),
            ("", "''"),
            ("two words", "'two words'"),
            ("it's", "'it'\\''s'"),
            ("a\x1b[31m\nb'", "$'a\\x1b[31m\\x0ab\\''"),
        ] {
            assert_eq!(quoted(word), quoted_word);
        }
    }
}
