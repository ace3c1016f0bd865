//! Commands as they are written in a shell.

use std::path::Path;

use residual_zoo_backend::BackendKind;

/// The beginning of the command that runs the example `name` on the backend `kind`.
pub fn example(name: &str, kind: BackendKind) -> String {
    // Flex needs no feature, because it is a default one.
    let features = match kind {
        BackendKind::Flex => String::new(),
        kind => format!(" --features {}", kind.feature()),
    };
    format!("cargo run --release{features} --example {name} --")
}

/// The arguments of this program, as text.
pub fn arguments() -> impl Iterator<Item = String> {
    let arguments = std::env::args_os().skip(1);
    arguments.map(|argument| argument.to_string_lossy().into_owned())
}

/// The command that runs `program` with these arguments, as it is written in a shell.
pub fn command(program: &str, arguments: impl Iterator<Item = String>) -> String {
    let quoted = arguments.map(|argument| quoted(&argument));
    let parts = std::iter::once(program.to_owned()).chain(quoted);
    parts.collect::<Vec<_>>().join(" ")
}

/// A word as it is written in a shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The path of a run as a word of a shell that is no option.
pub fn quoted_path(path: &Path) -> String {
    let path = path.to_string_lossy();
    match path.starts_with('-') {
        true => quoted(&format!("./{path}")),
        false => quoted(&path),
    }
}
