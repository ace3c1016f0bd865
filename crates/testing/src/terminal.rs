//! Runs programs in terminals of their own, which the command `script` makes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::program::heard;

/// A program in its own terminal.
pub struct Terminal {
    /// The command `script`. Killing it removes the terminal.
    pub child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    /// Runs `command` in a terminal of 80 columns and 24 rows. Writes the command's exit code to the file `status`.
    pub fn open(command: &Command, status: &Path) -> Self {
        Self::open_as("xterm-256color", command, status)
    }

    /// Like [`open`](Self::open), in a terminal of type `term`.
    pub fn open_as(term: &str, command: &Command, status: &Path) -> Self {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words = words.map(|word| format!("'{}'", word.to_str().unwrap()));
        let line = words.collect::<Vec<_>>().join(" ");
        // The inner shell outlives the terminal, so that it can write the program's exit code. The outer shell ends
        // with the terminal, so the system tells the program that the terminal is gone. Programs inherit only ignored
        // signals, so these traps do not affect the program.
        let status = status.display();
        let line = format!(
            "trap : INT; sh -c \"trap : HUP; trap : INT; stty rows 24 cols 80; {line}; echo \\$? > '{status}'\"; \
             exit $(cat '{status}')"
        );
        let mut child = heard("script".as_ref())
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env("TERM", term)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut output, copy) = (child.stdout.take().unwrap(), shown.clone());
        let reader = thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut part) {
                copy.lock().unwrap().extend_from_slice(&part[..count]);
            }
        });
        Self {
            child,
            shown,
            reader,
        }
    }

    /// Returns everything that the program has written so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until the screen shows `text`.
    pub fn wait_for(&self, text: &str) {
        let found = wait(|| screen(&self.shown()).contains(text).then_some(()));
        assert!(found.is_some(), "no `{text}` in {}", screen(&self.shown()));
    }

    /// Types `keys`.
    pub fn press(&mut self, keys: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Waits for the program's end, and returns its exit status and output.
    pub fn end(mut self) -> (ExitStatus, String) {
        let status = wait(|| self.child.try_wait().unwrap());
        let status = status.unwrap_or_else(|| panic!("no end: {}", screen(&self.shown())));
        // The reader may still be receiving the last output.
        wait(|| self.reader.is_finished().then_some(()));
        (status, self.shown())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Calls `done` for up to a minute, until it returns a value. Returns this value, or `None` if there is none.
pub fn wait<T>(mut done: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(done) = done() {
            return Some(done);
        }
        thread::sleep(Duration::from_millis(20));
    }
    None
}

/// Returns the content of the screen after a program has written `shown`.
pub fn screen(shown: &str) -> String {
    let mut cells = BTreeMap::new();
    let (mut row, mut column) = (1_usize, 1_usize);
    let mut chars = shown.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => {
                let mut sequence = String::new();
                while !sequence.ends_with(|c: char| c.is_ascii_alphabetic()) {
                    // The output may end within a sequence.
                    let Some(c) = chars.next() else { break };
                    sequence.push(c);
                }
                let sequence = sequence.trim_start_matches('[');
                if let Some(at) = sequence.strip_suffix('H') {
                    let (to_row, to_column) = at.split_once(';').unwrap();
                    (row, column) = (to_row.parse().unwrap(), to_column.parse().unwrap());
                } else if sequence == "2J" || sequence.starts_with("?1049") {
                    cells.clear();
                }
            }
            '\r' => column = 1,
            '\n' => row += 1,
            c => {
                cells.insert((row, column), c);
                column += 1;
            }
        }
    }
    let mut lines = vec![String::new(); cells.keys().map(|(row, _)| row + 1).max().unwrap_or(0)];
    for ((row, column), c) in cells {
        let line = &mut lines[row];
        let gap = column - 1 - line.chars().count();
        line.extend(std::iter::repeat_n(' ', gap));
        line.push(c);
    }
    lines.join("\n")
}
