//! Runs the seeds of the fuzz targets, and the inputs that found bugs, without libFuzzer.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use residual_zoo_fuzz::{TARGETS, good_checkpoint};

/// The files for `target` in a folder of this crate, in the order of their names.
fn files(folder: &str, target: &str) -> Vec<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let Ok(entries) = fs::read_dir(path.join(target)) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_seed_is_accepted() {
    for (name, target) in TARGETS {
        let seeds = files("corpus", name);
        assert!(!seeds.is_empty(), "{name}");
        for seed in seeds {
            let mut content = fs::read(&seed).unwrap();
            if name == "manifest" {
                // The last bits of weights, and therefore their hashes, differ between processors.
                content = good_checkpoint()["manifest.json"].clone();
            }
            let verdict = target(&content);
            assert_eq!(verdict, Ok(()), "{}", seed.display());
        }
    }
}

#[test]
fn inputs_that_found_bugs_find_no_bugs() {
    let mut count = 0;
    for (name, target) in TARGETS {
        for input in files("regressions", name) {
            println!("{}", input.display());
            target(&fs::read(&input).unwrap()).ok();
            count += 1;
        }
    }
    assert!(count > 0);
}

#[test]
fn every_target_has_a_program_and_every_folder_has_a_target() {
    let names = TARGETS.map(|(name, _)| name);
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = |folder: &str| {
        let entries = fs::read_dir(crate_root.join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut names: Vec<String> = paths
            .map(|path| path.file_stem().unwrap().to_str().unwrap().into())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list("fuzz_targets"), names);
    assert_eq!(list("corpus"), names);
    let strays: Vec<String> = list("regressions");
    assert!(strays.iter().all(|name| names.contains(&name.as_str())));
}

#[test]
#[ignore = "it rewrites the seeds after a change of the format"]
fn write_the_seeds_of_checkpoints() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, content) in good_checkpoint() {
        let target = match name.as_str() {
            "manifest.json" => "manifest",
            _ => "checkpoint",
        };
        fs::write(folder.join(target).join(name), content).unwrap();
    }
}
