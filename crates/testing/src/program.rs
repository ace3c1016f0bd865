//! The examples as a user runs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::root;

/// A program of `examples/`, which `cargo test` builds next to the tests.
pub fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let program = profile.join("examples").join(name);
    assert!(
        program.exists(),
        "build it first: cargo build --release --examples"
    );
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Runs without any input, to the end.
pub fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// What a program printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs and expects success.
pub fn ok(command: &mut Command) -> String {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}\n{}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs and expects exit code `code` with one line of error that contains each of `says`.
pub fn fails(command: &mut Command, code: i32, says: &[&str]) {
    let output = run(command);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{error}");
    assert_eq!(error.lines().count(), 1, "not one line: {error}");
    assert!(error.starts_with("error: "), "{error}");
    for part in says {
        assert!(error.contains(part), "no `{part}` in: {error}");
    }
}

/// The file of a small run.
pub const SMOKE: &str = "experiments/gpt2/smoke.ron";

/// A smoke run of a few steps into `directory`.
pub fn smoke(directory: &Path) -> Command {
    let mut command = example("train");
    command.arg(SMOKE).arg("--run").arg(directory);
    command.args(["--set", "train.steps=4", "--set", "train.sample_every=None"]);
    command
}

/// A directory that is deleted with the value.
pub struct Scratch(tempfile::TempDir);

impl Default for Scratch {
    fn default() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Scratch {
    /// An empty directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// The path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes `content` to `name` in it, and gives the path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }
}
