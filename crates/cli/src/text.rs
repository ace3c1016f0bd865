//! Text on standard output.

use std::io::{ErrorKind, IsTerminal as _};

use residual_zoo_lab::{Error, Verdict};
use residual_zoo_report::{Table, Tone};
use residual_zoo_runs::Error as RunError;
use residual_zoo_system::{harmless, output, terminal};

/// Prints a line to standard output. Control characters are escaped. A reader that closes the pipe, such as `head`, is
/// not an error.
///
/// # Errors
///
/// Returns an error if the line cannot be written.
pub fn print(text: &str) -> Result<(), Error> {
    write(&format!("{}\n", harmless(text)))
}

/// Formats a table as text, no wider than the terminal if standard output is one.
pub fn fitted(table: &Table) -> String {
    match terminal::output_columns() {
        Some(columns) => table.fit(columns),
        None => table.to_text(),
    }
}

/// Returns the name of a verdict, in color if standard output is a terminal and `NO_COLOR` is not set.
pub(crate) fn verdict(verdict: Verdict) -> String {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    painted(verdict, std::io::stdout().is_terminal() && !no_color)
}

fn painted(verdict: Verdict, in_color: bool) -> String {
    let color = match verdict.tone() {
        Tone::Good => "32",
        Tone::Bad => "31",
        Tone::Open => "33",
        Tone::Plain | Tone::Muted => "2",
    };
    match in_color {
        true => format!("\x1b[{color}m{}\x1b[0m", verdict.signed()),
        false => verdict.signed(),
    }
}

/// Writes text to standard output unchanged.
pub(crate) fn write(text: &str) -> Result<(), Error> {
    match output::write(output::Stream::Out, text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written.map_err(RunError::io("write", "standard output".as_ref()))?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_has_a_sign_with_and_without_color() {
        assert_eq!(painted(Verdict::Holds, false), "✓ holds");
        assert_eq!(painted(Verdict::DoesNotHold, false), "✗ does not hold");
        assert_eq!(
            painted(Verdict::Undecided, true),
            "\x1b[33m? undecided\x1b[0m"
        );
    }
}
