//! The structure that docs/architecture.md describes: dependencies run one way, no crate outgrows the others, and no
//! file is included by its path.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use residual_zoo_testing::root;
use serde_json::Value;

/// The layers of the library, from the lowest to the highest. A crate depends only on crates in lower layers.
const ROOMS: [&[&str]; 12] = [
    &["residual-zoo-system"],
    &[
        "residual-zoo-data",
        "residual-zoo-kernels",
        "residual-zoo-report",
    ],
    &["residual-zoo-core"],
    &[
        "residual-zoo-gpt2",
        "residual-zoo-laurel",
        "residual-zoo-llama",
        "residual-zoo-loops",
        "residual-zoo-ngpt",
        "residual-zoo-recurrent",
        "residual-zoo-resnet",
        "residual-zoo-rmt",
        "residual-zoo-streams",
        "residual-zoo-tokenformer",
        "residual-zoo-vit",
    ],
    &["residual-zoo-runs"],
    &[
        "residual-zoo-evaluate",
        "residual-zoo-models",
        "residual-zoo-serve",
    ],
    &["residual-zoo-exchange", "residual-zoo-train"],
    &["residual-zoo-backend"],
    &["residual-zoo-drive"],
    &["residual-zoo-lab"],
    &["residual-zoo-cli"],
    &["residual-zoo"],
];

/// The crates that only tests depend on.
const FOR_TESTS: [&str; 2] = ["residual-zoo-fuzz", "residual-zoo-testing"];

/// Returns the ordinary dependencies of every crate of the workspace, by crate name.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let name = |of: &Value| of["name"].as_str().unwrap().to_string();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let ordinary = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        all.filter(|dependency| dependency["kind"].is_null())
            .map(name)
            .collect()
    };
    packages
        .map(|package| (name(package), ordinary(package)))
        .collect()
}

#[test]
fn dependencies_run_one_way() {
    let dependencies = dependencies();
    let room = |name: &str| ROOMS.iter().position(|room| room.contains(&name));
    for (name, needs) in &dependencies {
        if FOR_TESTS.contains(&name.as_str()) {
            continue;
        }
        let here = room(name).unwrap_or_else(|| {
            panic!("{name} is in no layer: add it to ROOMS in tests/lab/rooms.rs")
        });
        for need in needs.iter().filter(|need| need.starts_with("residual-zoo")) {
            let there = room(need).unwrap_or_else(|| panic!("{name} needs {need}"));
            assert!(there < here, "{name} needs {need}");
        }
    }
    let needs = |name: &str, need: &str| dependencies[name].iter().any(|found| found == need);
    assert!(needs("residual-zoo-core", "burn"));
    assert!(!needs("residual-zoo-report", "burn"));
}

#[test]
fn an_embedded_model_needs_neither_trainer_nor_dashboard() {
    let arguments = ["tree", "--offline", "--edges", "normal", "--prefix", "none"];
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--package", "residual-zoo-models"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let tree = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = tree.lines().filter_map(|l| l.split(' ').next()).collect();
    for needed in [
        "burn",
        "residual-zoo-gpt2",
        "residual-zoo-runs",
        "tokenizers",
    ] {
        assert!(names.contains(&needed), "{needed}");
    }
    for heavy in [
        "residual-zoo-train",
        "burn-train",
        "crossterm",
        "ratatui",
        "clap",
    ] {
        assert!(!names.contains(&heavy), "{heavy}");
    }
}

/// Returns the Rust files below `directory`, except tests.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
    let is_test = |path: &Path| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        ["tests", "testing", "contract", "target"].contains(&name)
    };
    let mut found = Vec::new();
    for path in entries.filter(|path| !is_test(path)) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Counts the lines of code of a file, without blank lines, comments and unit tests.
fn lines(path: &Path) -> usize {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[test]
fn no_crate_has_more_than_a_quarter_of_the_lines() {
    let mut crates: Vec<PathBuf> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("testing"))
        .collect();
    crates.extend(["src", "examples", "fuzz/src"].map(|path| root().join(path)));
    let count = |path: &PathBuf| sources(path).iter().map(|file| lines(file)).sum();
    let counts: Vec<usize> = crates.iter().map(count).collect();
    let total: usize = counts.iter().sum();
    for (path, count) in crates.iter().zip(counts) {
        println!("{count:6} {}", path.display());
        assert!(4 * count <= total, "{}: {count} of {total}", path.display());
    }
    println!("{total:6} in all");
}

#[test]
fn no_file_is_included_by_its_path_and_no_dead_code_is_allowed() {
    // The words are split, so that this file does not match.
    let forbidden = [concat!("#[pa", "th"), concat!("allow(dead", "_code)")];
    for directory in ["src", "crates", "examples", "tests", "fuzz"] {
        let mut files = sources(&root().join(directory));
        if directory == "tests" {
            assert!(!files.is_empty());
        }
        files.retain(|file| {
            let text = fs::read_to_string(file).unwrap();
            forbidden.iter().any(|word| text.contains(word))
        });
        assert!(files.is_empty(), "{files:?}");
    }
}
