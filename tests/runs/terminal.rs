//! The dashboard in a terminal of the command `script`: keys, signals, and a terminal that disappears.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use residual_zoo::runs::checkpoint;
use residual_zoo_testing::program::{SMOKE, Scratch, ok, path_of, zoo};
use residual_zoo_testing::terminal::{Terminal, screen, wait};

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// Returns a command for a run that does not end by itself.
fn endless(directory: &Path, settings: &[&str]) -> Command {
    of_steps(100_000_000, directory, settings)
}

/// Returns a command that trains a run of `steps` steps.
fn of_steps(steps: usize, directory: &Path, settings: &[&str]) -> Command {
    let mut command = zoo("train");
    command.arg(SMOKE).arg("--run").arg(directory);
    let steps = format!("train.steps={steps}");
    for setting in [&*steps, "train.warmup=5"].iter().chain(settings) {
        command.args(["--set", setting]);
    }
    command
}

/// Checks that the program left the alternate screen after all drawing and before the last lines.
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
        // No key does harm. After the first row, there are charts to choose from.
        terminal.press("kxyz\x1b[5~\t\x1b[C\x1b[D");
        terminal.wait_for("Gradient norm");
        terminal.press(last);
        let (status, shown) = terminal.end();
        assert_eq!(status.code(), Some(130), "{}", screen(&shown));
        assert!(
            shown.contains("stopped after") && shown.contains("checkpoint:"),
            "{shown}"
        );
        assert_restored(&shown);
        assert!(checkpoint::newest(&run).is_ok());
    }
}

#[test]
fn lines_about_runs_are_cut_between_words() {
    let scratch = Scratch::new();
    let name = "word ".repeat(20);
    let model = "Gpt2(n_layer: 1, n_head: 1, width: 4, context: 8)";
    let text = format!(
        "(title: \"t\", data: (source: Synthetic(tokens: 3000)), columns: [\"valid_loss\"], \
         train: (steps: 2, warmup: 1, validate_batches: 1), runs: [(name: {:?}, model: {model})])",
        name.trim()
    );
    for jobs in ["1", "2"] {
        let mut command = zoo("experiment");
        command.arg(scratch.file("long.ron", &text));
        command
            .arg("--runs")
            .arg(scratch.path(jobs))
            .args(["--jobs", jobs]);
        let status = scratch.path(&format!("status{jobs}"));
        let (status, shown) = Terminal::open(&command, &status).end();
        assert!(status.success(), "{shown}");
        let line = "word word word word word word word\r\n  word word";
        assert!(
            shown.contains(line) && shown.contains("validation loss"),
            "{shown}"
        );
    }
}

#[test]
fn a_second_ctrl_c_ends_a_long_step_at_once() {
    let scratch = Scratch::new();
    // A key that arrives before the first step stops the run there. In that case, the next attempt waits longer.
    for pause in [0.5, 2.0, 8.0] {
        let (run, status) = (scratch.path(&format!("run{pause}")), scratch.path("status"));
        fs::remove_file(&status).ok();
        let mut terminal = Terminal::open(&endless(&run, &["train.batch=2000"]), &status);
        terminal.wait_for("training");
        thread::sleep(Duration::from_secs_f64(pause));
        terminal.press("q");
        let stopping = wait(|| {
            let shown = terminal.shown();
            let ended = status.exists();
            (ended || screen(&shown).contains("stopping")).then_some(!ended)
        });
        if stopping == Some(true) {
            terminal.press("\x03");
        }
        let (code, shown) = terminal.end();
        assert_eq!(code.code(), Some(130), "{}", screen(&shown));
        assert_restored(&shown);
        // A run that saves its state does not end at once.
        if stopping == Some(true) && !shown.contains("stopped after") {
            return;
        }
    }
    panic!("no step took long enough to be interrupted");
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
        assert_eq!(code.as_deref().map(str::trim), Some("129"), "{run:?}");
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
    assert_eq!(status.code(), Some(130), "{}", screen(&shown));
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
    // A comparison of trained runs does not open the dashboard again.
    let (_, shown) = Terminal::open(&command, &scratch.path("status")).end();
    assert_eq!(shown.matches(ENTER).count(), 0);
    assert_eq!(ok(&mut command).matches("already trained").count(), 7);
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_gets_lines() {
    let scratch = Scratch::new();
    for term in ["dumb", ""] {
        let run = scratch.path(&format!("run-{term}"));
        let command = of_steps(4, &run, &[]);
        let (status, shown) = Terminal::open_as(term, &command, &scratch.path("status")).end();
        assert!(status.success(), "{shown}");
        assert!(!shown.contains('\x1b'), "{shown}");
        assert!(shown.contains("run directory:"), "{shown}");
    }
}

#[test]
fn what_is_listed_and_planned_fits_into_a_narrow_terminal() {
    let scratch = Scratch::new();
    let program = path_of("residual-zoo");
    let program = program.display();
    for (columns, arguments) in [
        (60, "list"),
        (60, "list experiments"),
        (
            60,
            "plan gpt2/smoke --tflops 1 --devices 1 --set train.steps=100000",
        ),
        (100, "list experiments"),
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("stty cols {columns}; {program} {arguments}")]);
        let (status, shown) = Terminal::open(&command, &scratch.path("status")).end();
        assert!(status.success(), "{shown}");
        let widths = shown.lines().map(|line| line.trim_end().chars().count());
        let widest = widths.max().unwrap_or(0);
        let room = columns - 25..=columns;
        assert!(room.contains(&widest), "{arguments} in {columns}: {shown}");
    }
}

/// Writes a text with the characters that set the title of a terminal.
fn hostile_text(scratch: &Scratch) -> std::path::PathBuf {
    scratch.file("text.txt", "a\x1b]0;b\x07".repeat(4000))
}

#[test]
fn generated_text_cannot_drive_the_terminal() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let mut command = of_steps(2, &run, &["train.sample_every=2"]);
    command.args(["--no-tui", "--tokenizer", "chars"]);
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
    // A file gets the text unchanged.
    assert!(ok(&mut generate).contains('\x1b'));
}

#[test]
fn a_stopped_program_gives_the_screen_back_until_it_goes_on() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let mut terminal = Terminal::open(&endless(&run, &[]), &scratch.path("status"));
    terminal.wait_for("tokens/s");
    let pid = || {
        let lock = fs::read_to_string(run.join("lock")).unwrap();
        lock.split_whitespace().nth(1).unwrap().to_owned()
    };
    let signal = |name: &str| ok(Command::new("kill").args([name, &pid()]));
    signal("-TSTP");
    let left = |shown: &str| shown.matches(LEAVE).count();
    assert!(wait(|| (left(&terminal.shown()) == 1).then_some(())).is_some());
    let state = || {
        let status = fs::read_to_string(format!("/proc/{}/status", pid())).unwrap();
        status.lines().any(|line| line.starts_with("State:\tT"))
    };
    assert!(wait(|| state().then_some(())).is_some());
    signal("-CONT");
    let entered = |shown: &str| shown.matches(ENTER).count();
    assert!(wait(|| (entered(&terminal.shown()) == 2).then_some(())).is_some());
    terminal.press("q");
    let (status, shown) = terminal.end();
    assert_eq!(status.code(), Some(130), "{}", screen(&shown));
    assert_restored(&shown);
}

#[test]
fn a_program_that_quits_gives_the_screen_back() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let terminal = Terminal::open(&endless(&run, &[]), &scratch.path("status"));
    terminal.wait_for("tokens/s");
    let lock = fs::read_to_string(run.join("lock")).unwrap();
    let pid = lock.split_whitespace().nth(1).unwrap();
    ok(Command::new("kill").args(["-QUIT", pid]));
    let (status, shown) = terminal.end();
    assert!(!status.success(), "{}", screen(&shown));
    assert_restored(&shown);
}
