//! Where results come from: the command, the configuration, the machine and the commit.

use std::process::Command;

use residual_zoo::backend::BackendKind;
use residual_zoo::experiment::{self, Planned, Suite};

use super::Options;

/// The command that repeats the results.
pub fn command(name: &str, scale: &str, kind: BackendKind, options: &Options) -> String {
    // Flex is there without a feature, and then comes first.
    let is_default = kind == BackendKind::Flex;
    let features = match is_default {
        true => String::new(),
        false => format!(" --features {}", kind.feature()),
    };
    let mut command = format!("cargo run --release{features} --example {name} -- --scale {scale}");
    let mut add = |option: &str, value: String| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=".contains(c);
        command += &match value.chars().all(is_plain) {
            true => format!(" {option} {value}"),
            false => format!(" {option} '{value}'"),
        };
    };
    for text in &options.only {
        add("--only", text.clone());
    }
    for set in &options.set {
        add("--set", set.clone());
    }
    if let Some(seeds) = options.seeds {
        add("--seeds", seeds.to_string());
    }
    if let Some(data) = &options.data.data {
        add("--data", data.clone());
    }
    if let Some(path) = &options.new_data {
        add("--new-data", path.display().to_string());
    }
    if let Some(tokenizer) = &options.data.tokenizer {
        add("--tokenizer", tokenizer.clone());
    }
    if !is_default {
        add("--backend", kind.to_string());
    }
    if let Some(gpu) = options.backend.gpu {
        add("--gpu", gpu.to_string());
    }
    command
}

/// A hash of the suite with all that was set on top of it.
pub fn hash(file: &str, suite: &Suite, planned: &[Planned], kind: BackendKind) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("residual-zoo experiment v1");
    hasher.update(file.as_bytes());
    hasher.update(format!("{:?} {:?}", suite.seeds, suite.data.source).as_bytes());
    hasher.update(experiment::to_ron(planned).as_bytes());
    hasher.update(kind.to_string().as_bytes());
    hasher.finalize().to_hex()[..12].to_owned()
}

/// The processor and its cores.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name
        .and_then(|rest| rest.split_once(':'))
        .map(|(_, name)| name.trim());
    let name = name.unwrap_or(std::env::consts::ARCH);
    format!("{cores} cores of {name}")
}

/// The commit of the source, and whether it was changed since.
pub fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let root = env!("CARGO_MANIFEST_DIR");
        let output = Command::new("git")
            .arg("-C")
            .arg(root)
            .args(args)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&[
        "status",
        "--porcelain",
        "--",
        "src",
        "crates",
        "examples",
        "experiments",
    ])?;
    Some(if changed.is_empty() {
        commit
    } else {
        commit + ", changed since"
    })
}
