//! Tells the program its commit.

use std::path::Path;
use std::process::Command;

fn main() {
    let git = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output();
    let commit = git.ok().filter(|output| output.status.success());
    let commit = commit.and_then(|output| String::from_utf8(output.stdout).ok());
    let commit = commit.unwrap_or_else(|| "unknown".into());
    println!("cargo:rustc-env=ZOO_COMMIT={}", commit.trim());
    println!("cargo:rerun-if-changed=experiments");
    // A file that does not exist would run this script, and compile the crate, every time.
    let log = ".git/logs/HEAD";
    if Path::new(log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
}
