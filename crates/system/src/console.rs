//! Prints lines for the user to standard output and standard error. While a screen covers the terminal, the screen
//! shows the lines. The lines are printed after the screen has closed.

use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::mutex::{lock, lock_within};
use crate::output::{self, Stream};
use crate::{counted, harmless, terminal};

/// Maximum time that the program waits for another thread when the program ends.
const PATIENCE: Duration = Duration::from_millis(300);
/// Maximum number of warnings printed after the screen has closed. Earlier warnings are left out.
const MOST_WARNINGS: usize = 20;

/// Duration of work before its first status line.
const BEGIN: Duration = Duration::from_secs(2);
/// Time between two status lines, on a terminal and elsewhere.
const REDRAW: Duration = Duration::from_millis(250);
const REPEAT: Duration = Duration::from_secs(20);
/// Columns of a line if the terminal's width is unknown.
const COLUMNS: usize = 80;

/// The function that shows a line on the screen, while there is a screen.
static SCREEN: Mutex<Option<fn(&str)>> = Mutex::new(None);
/// Lines that are printed after the screen has closed.
static LATER: Mutex<Vec<(Stream, String)>> = Mutex::new(Vec::new());

/// Prints a line to standard output. Control characters are escaped. Errors are ignored, so training continues even if
/// the output is closed.
pub fn print(text: &str) {
    put(Stream::Out, text);
}

/// Like [`print()`], to standard error.
pub fn warn(text: &str) {
    put(Stream::Err, text);
}

fn put(stream: Stream, text: &str) {
    let text = harmless(text);
    let screen = *lock(&SCREEN);
    match screen {
        Some(show) => {
            show(text.trim());
            lock(&LATER).push((stream, text.into_owned()));
        }
        None => {
            print_later();
            write(stream, &text);
        }
    }
}

/// Passes later lines to `show`, and keeps them until [`uncover`].
pub fn cover(show: fn(&str)) {
    *lock(&SCREEN) = Some(show);
}

/// Prints the lines that were kept while a screen covered the terminal. Later lines are printed at once. Any thread may
/// call this function, even at the end of the program.
pub fn uncover() {
    if let Some(mut screen) = lock_within(&SCREEN, PATIENCE) {
        *screen = None;
    }
    print_later();
}

fn print_later() {
    let Some(mut later) = lock_within(&LATER, PATIENCE) else {
        return;
    };
    let lines = std::mem::take(&mut *later);
    drop(later);
    let warnings = lines.iter().filter(|(stream, _)| *stream == Stream::Err);
    let left_out = warnings.count().saturating_sub(MOST_WARNINGS);
    if left_out > 0 {
        write(
            Stream::Err,
            &format!("({})", counted(left_out, "earlier note")),
        );
    }
    let mut warnings = 0;
    for (stream, text) in lines {
        warnings += usize::from(stream == Stream::Err);
        if stream == Stream::Out || warnings > left_out {
            write(stream, &text);
        }
    }
}

fn write(stream: Stream, text: &str) {
    output::write(stream, format!("{text}\n").as_bytes()).ok();
}

/// A status line on standard error, with the progress of some work. On a terminal, the line is redrawn. Elsewhere, a
/// new line is printed from time to time.
pub struct Status {
    terminal: bool,
    columns: usize,
    is_shown: bool,
    next: Instant,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            terminal: io::stderr().is_terminal(),
            columns: terminal::columns().unwrap_or(COLUMNS),
            is_shown: false,
            next: Instant::now() + BEGIN,
        }
    }
}

impl Status {
    /// Shows `text()` if a line is due.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        if !self.terminal {
            self.next = now + REPEAT;
            return warn(&text());
        }
        self.next = now + REDRAW;
        self.is_shown = true;
        let text = text();
        let text: String = harmless(&text).chars().take(self.columns - 1).collect();
        output::write(Stream::Err, format!("\r\x1b[K{text}").as_bytes()).ok();
    }

    /// Returns the number of columns of the terminal; 80 if it is unknown.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Removes the line from the terminal, to make room for other text, until it is shown again.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            output::write(Stream::Err, b"\r\x1b[K").ok();
        }
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SHOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[test]
    fn a_screen_shows_lines_that_are_printed_after_it() {
        cover(|line| lock(&SHOWN).push(line.to_owned()));
        print("  step 7");
        warn("a bell: \x07");
        assert_eq!(*lock(&SHOWN), ["step 7", "a bell: \\u{7}"]);
        assert_eq!(
            *lock(&LATER),
            [
                (Stream::Out, "  step 7".to_owned()),
                (Stream::Err, "a bell: \\u{7}".to_owned())
            ]
        );
        uncover();
        print("later");
        assert!(lock(&LATER).is_empty() && lock(&SHOWN).len() == 2);
    }
}
