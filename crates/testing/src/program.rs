//! Runs the program and the examples as a user does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::root;

/// Returns a command that runs the subcommand `command` of `residual-zoo`, which `cargo test` builds.
pub fn zoo(command: &str) -> Command {
    let mut program = built("residual-zoo");
    program.arg(command);
    program
}

/// Returns a command that runs the subcommand `command` in the directory of `scratch`, outside the repository.
pub fn outside(scratch: &Scratch, command: &str) -> Command {
    let mut program = zoo(command);
    program.current_dir(scratch.path(""));
    program
}

/// Returns a command that runs a program in `examples/`, which `cargo test` builds.
pub fn example(name: &str) -> Command {
    built(&format!("examples/{name}"))
}

/// Returns the path of a program that `cargo test` builds.
pub fn path_of(program: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join(program);
    assert!(
        program.exists(),
        "build it first: cargo build --release --bins --examples"
    );
    program
}

fn built(program: &str) -> Command {
    let mut command = heard(&path_of(program));
    command.current_dir(root());
    command
}

/// Makes a command for `program`. The program receives signals even if the tests run with signals ignored, as under
/// `nohup` or `&` in a script.
pub fn heard(program: &Path) -> Command {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
    // SIGHUP, SIGINT, SIGQUIT and SIGTERM.
    let asked = [1, 2, 3, 15]
        .iter()
        .any(|signal| ignored & (1 << (signal - 1)) != 0);
    if !asked {
        return Command::new(program);
    }
    let mut command = Command::new(RESET[0]);
    command.arg(RESET[1]).arg(program);
    command
}

/// A command that restores default signal handling. A process inherits ignored signals, and only GNU's `env` resets
/// them for another program.
const RESET: [&str; 2] = ["env", "--default-signal=HUP,INT,QUIT,TERM"];

/// Runs a command to its end, without input.
pub fn run(command: &mut Command) -> Output {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    end(command.stderr(Stdio::piped()).spawn().unwrap())
}

/// The longest wait for a program, even on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Waits for the end of a program, and reads its remaining output.
pub fn end(mut child: Child) -> Output {
    let id = child.id();
    let (done, ended) = mpsc::channel();
    drop(child.stdin.take());
    thread::spawn(move || done.send(child.wait_with_output()));
    let ended = ended.recv_timeout(LIMIT);
    let ended = ended.unwrap_or_else(|_| {
        Command::new("kill")
            .args(["-9", &id.to_string()])
            .status()
            .ok();
        panic!("process {id} does not end")
    });
    ended.unwrap()
}

/// Waits for the end of a program.
pub fn ends(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().ok();
    panic!("process {} does not end", child.id())
}

/// Returns the exit code of a command that `signal`, such as `-TERM`, stopped early.
pub fn stopped_by(signal: &str) -> Option<i32> {
    let number = match signal {
        "-HUP" => 1,
        "-INT" => 2,
        "-TERM" => 15,
        other => panic!("{other}"),
    };
    Some(128 + number)
}

/// Converts the output of a program to text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command, expects success and returns its standard output.
pub fn ok(command: &mut Command) -> String {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}\n{}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs a command and expects exit code `code` and a one-line error that contains each of `says`.
pub fn fails(command: &mut Command, code: i32, says: &[&str]) {
    let output = run(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{said}");
    // A command may print notes before it fails.
    let lines = said.lines().filter(|line| !line.starts_with("note: "));
    let error: String = lines.flat_map(|line| [line, "\n"]).collect();
    assert_eq!(error.lines().count(), 1, "not one line: {error}");
    assert!(error.starts_with("error: "), "{error}");
    for part in says {
        assert!(error.contains(part), "no `{part}` in: {error}");
    }
}

/// Wraps `command` in a shell that first runs `first`, such as a limit or a trap. The command gets no input.
pub fn in_shell(first: &str, command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    // The shell itself receives signals, unless `first` says otherwise.
    let words = words.skip(if command.get_program() == RESET[0] {
        RESET.len()
    } else {
        0
    });
    let words = words.map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''")));
    let words = words.collect::<Vec<_>>().join(" ");
    let mut shell = heard("sh".as_ref());
    shell.args(["-c", &format!("{first}; exec {words}")]);
    shell.current_dir(command.get_current_dir().unwrap_or(Path::new(".")));
    shell.stdin(Stdio::null());
    shell
}

/// Sends a signal, such as `-TERM`, to a process. After `-STOP`, waits until the process has stopped.
pub fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([name, &pid]).status();
    assert!(sent.unwrap().success(), "{name}");
    // Threads on other cores still run for a moment after the signal was sent.
    while name == "-STOP" && !is_stopped(child) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether all threads of `child` have stopped or ended; `true` where the system does not tell.
fn is_stopped(child: &Child) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", child.id())) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name of the program, which is in parentheses.
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
    })
}

/// The config file of a small run.
pub const SMOKE: &str = "experiments/gpt2/smoke.ron";

/// Returns a command that trains the smoke model for a few steps in `directory`.
pub fn smoke(directory: &Path) -> Command {
    smoke_of(directory, 4)
}

/// Like [`smoke`], with a different number of steps.
pub fn smoke_of(directory: &Path, steps: usize) -> Command {
    let mut command = zoo("train");
    command.arg(SMOKE).arg("--run").arg(directory);
    for setting in [&format!("train.steps={steps}"), "train.sample_every=None"] {
        command.args(["--set", setting]);
    }
    command
}

/// A temporary directory, deleted when dropped.
pub struct Scratch(tempfile::TempDir);

impl Default for Scratch {
    fn default() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Scratch {
    /// Makes an empty directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the path of `name` in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes `content` to the file `name` in the directory, and returns its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }
}
