//! The dashboard in a terminal, which the command `script` makes: keys, signals, and a terminal that goes
//! away.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use residual_zoo::runs::checkpoint;
use residual_zoo_testing::program::{SMOKE, Scratch, ok, zoo};

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// A program in a terminal of its own.
struct Terminal {
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    /// Runs `command` in a terminal of 80 columns and 24 rows. Afterwards its exit code is in `status`.
    fn open(command: &Command, status: &Path) -> Self {
        Self::open_as("xterm-256color", command, status)
    }

    /// Like [`open`](Self::open), in a terminal of type `term`.
    fn open_as(term: &str, command: &Command, status: &Path) -> Self {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words = words.map(|word| format!("'{}'", word.to_str().unwrap()));
        let line = words.collect::<Vec<_>>().join(" ");
        // The inner shell outlives the terminal, to note how the program ended. The outer one does not,
        // so that the system tells the program that the terminal is gone. A trap that does something is not
        // passed on to the program, other than one that ignores.
        let status = status.display();
        let line = format!(
            "trap : INT; sh -c \"trap : HUP; trap : INT; stty rows 24 cols 80; {line}; echo \\$? > '{status}'\"; \
             exit $(cat '{status}')"
        );
        let mut child = Command::new("script")
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

    /// Everything that the program has written so far.
    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    fn wait_for(&self, text: &str) {
        let found = wait(|| screen(&self.shown()).contains(text).then_some(()));
        assert!(found.is_some(), "no `{text}` in {}", screen(&self.shown()));
    }

    fn press(&mut self, keys: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Waits for the end. Returns how the program ended, and what it wrote.
    fn end(mut self) -> (ExitStatus, String) {
        let status = wait(|| self.child.try_wait().unwrap());
        let status = status.unwrap_or_else(|| panic!("no end: {}", screen(&self.shown())));
        // What it wrote last may still be on its way.
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

fn wait<T>(mut done: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(done) = done() {
            return Some(done);
        }
        thread::sleep(Duration::from_millis(20));
    }
    None
}

/// What is on the screen after a program has written `shown`.
fn screen(shown: &str) -> String {
    let mut cells = BTreeMap::new();
    let (mut row, mut column) = (1_usize, 1_usize);
    let mut chars = shown.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => {
                let mut sequence = String::new();
                while !sequence.ends_with(|c: char| c.is_ascii_alphabetic()) {
                    // It may be torn.
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

/// A run that does not end by itself.
fn endless(directory: &Path, settings: &[&str]) -> Command {
    let mut command = zoo("train");
    command.arg(SMOKE).arg("--run").arg(directory);
    for setting in ["train.steps=100000000", "train.warmup=5"]
        .iter()
        .chain(settings)
    {
        command.args(["--set", setting]);
    }
    command
}

/// The screen was left after everything that was drawn, before the last lines.
fn assert_restored(shown: &str) {
    let left = shown.rfind(LEAVE).unwrap();
    assert!(shown.find(ENTER).is_some_and(|entered| entered < left));
    assert!(
        !shown[left..].contains("\x1b[1;"),
        "the screen was drawn after it was left"
    );
}

#[test]
fn a_key_and_ctrl_c_stop_a_run_with_a_checkpoint() {
    let scratch = Scratch::new();
    for (name, last) in [("q", "q"), ("ctrl-c", "\x03")] {
        let run = scratch.path(name);
        let mut terminal = Terminal::open(&endless(&run, &[]), &scratch.path("status"));
        terminal.wait_for("tokens/s");
        // No key does harm; after the first row there are charts to choose from.
        terminal.press("kxyz\x1b[5~\t\x1b[C\x1b[D");
        terminal.wait_for("Gradient norm");
        terminal.press(last);
        let (status, shown) = terminal.end();
        assert!(status.success(), "{}", screen(&shown));
        assert!(
            shown.contains("stopped in") && shown.contains("checkpoint:"),
            "{shown}"
        );
        assert_restored(&shown);
        assert!(checkpoint::newest(&run).is_ok());
    }
}

#[test]
fn a_second_ctrl_c_ends_a_long_step_at_once() {
    let scratch = Scratch::new();
    let command = endless(&scratch.path("run"), &["train.batch=2000"]);
    let mut terminal = Terminal::open(&command, &scratch.path("status"));
    terminal.wait_for("training");
    terminal.press("q");
    terminal.wait_for("stopping after this step");
    terminal.press("\x03");
    let (status, shown) = terminal.end();
    assert_eq!(status.code(), Some(130), "{}", screen(&shown));
    assert_restored(&shown);
}

#[test]
fn a_run_whose_terminal_goes_away_ends_with_a_checkpoint() {
    let scratch = Scratch::new();
    for i in 0..5_u32 {
        let (run, status) = (scratch.path(&format!("run{i}")), scratch.path("status"));
        fs::remove_file(&status).ok();
        let mut terminal = Terminal::open(&endless(&run, &[]), &status);
        terminal.wait_for("training");
        thread::sleep(Duration::from_millis(u64::from(97 * i)));
        terminal.child.kill().unwrap();
        let code = wait(|| {
            fs::read_to_string(&status)
                .ok()
                .filter(|code| !code.is_empty())
        });
        assert_eq!(code.as_deref().map(str::trim), Some("0"), "{run:?}");
        assert!(checkpoint::newest(&run).is_ok());
    }
}

#[test]
fn a_stopped_comparison_trains_no_other_model() {
    let scratch = Scratch::new();
    let directory = scratch.path("compare");
    let mut command = zoo("compare");
    command.arg("--run").arg(&directory);
    for setting in ["train.steps=100000000", "data.source.tokens=20000"] {
        command.args(["--set", setting]);
    }
    let mut terminal = Terminal::open(&command, &scratch.path("status"));
    terminal.wait_for("compare · gpt2 · ");
    terminal.wait_for("left of all runs");
    terminal.press("q");
    let (status, shown) = terminal.end();
    assert!(status.success(), "{}", screen(&shown));
    assert_restored(&shown);
    assert!(directory.join("gpt2").exists() && !directory.join("rmt").exists());
}

#[test]
fn the_screen_stays_from_one_run_to_the_next() {
    let scratch = Scratch::new();
    let mut command = zoo("compare");
    command.arg("--run").arg(scratch.path("compare"));
    for setting in [
        "train.steps=3",
        "train.warmup=1",
        "train.batch=1",
        "train.validate_batches=1",
        "data.source.tokens=20000",
    ] {
        command.args(["--set", setting]);
    }
    let (status, shown) = Terminal::open(&command, &scratch.path("status")).end();
    assert!(status.success(), "{}", screen(&shown));
    assert_eq!(shown.matches(ENTER).count(), 1);
    assert_restored(&shown);
    assert!(screen(&shown).contains("report:"));
    // What is trained already does not open it again.
    let (_, shown) = Terminal::open(&command, &scratch.path("status")).end();
    assert_eq!(shown.matches(ENTER).count(), 0);
    assert_eq!(ok(&mut command).matches("already trained").count(), 6);
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_gets_lines() {
    let scratch = Scratch::new();
    for term in ["dumb", ""] {
        let run = scratch.path(&format!("run-{term}"));
        let mut command = endless(&run, &[]);
        command.args(["--set", "train.steps=4"]);
        let (status, shown) = Terminal::open_as(term, &command, &scratch.path("status")).end();
        assert!(status.success(), "{shown}");
        assert!(!shown.contains('\x1b'), "{shown}");
        assert!(shown.contains("run directory:"), "{shown}");
    }
}

/// A text whose characters include those that set the title of a terminal.
fn hostile_text(scratch: &Scratch) -> std::path::PathBuf {
    scratch.file("text.txt", "a\x1b]0;b\x07".repeat(4000))
}

#[test]
fn generated_text_cannot_drive_the_terminal() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let mut command = endless(&run, &["train.sample_every=2"]);
    command.args(["--set", "train.steps=2", "--no-tui", "--tokenizer", "chars"]);
    command.arg("--data").arg(hostile_text(&scratch));
    let (status, shown) = Terminal::open(&command, &scratch.path("status")).end();
    assert!(status.success(), "{shown}");
    assert!(!shown.contains(['\x1b', '\x07']), "{shown:?}");

    let mut generate = zoo("generate");
    generate
        .arg(&run)
        .args(["--tokens", "400", "--temperature", "1"]);
    let (status, shown) = Terminal::open(&generate, &scratch.path("status")).end();
    assert!(status.success(), "{shown}");
    assert!(!shown.contains(['\x1b', '\x07']), "{shown:?}");
    assert!(shown.contains(r"\u{1b}"), "{shown:?}");
    // A file gets the text as it is.
    assert!(ok(&mut generate).contains('\x1b'));
}
