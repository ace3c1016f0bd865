//! Passes the commit of the source to the program.

use std::path::Path;
use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or("unknown".into());
    let changed = git(&[
        "status",
        "--porcelain",
        "--",
        "src",
        "crates",
        "experiments",
    ]);
    let note = match changed.is_some_and(|changed| !changed.is_empty()) {
        true => ", changed since",
        false => "",
    };
    println!("cargo:rustc-env=ZOO_COMMIT={commit}{note}");
    for path in ["experiments", "src", "crates", ".git/logs/HEAD"] {
        // If cargo watched a missing file, it would run this script and compile the crate every time.
        if Path::new(path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
