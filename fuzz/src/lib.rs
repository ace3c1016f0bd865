//! What must hold for any bytes that the zoo reads, one function for each kind of file.
//!
//! Each function gives `data` to a parser as a user would, by path where that is how it is read,
//! and panics where a promise is broken: the parser panics, takes what it must not, or its error
//! is no single line. It returns why the parser refused `data`, or `Ok`.
//!
//! The functions are the bodies of the fuzz targets, and what the tests of hostile input call.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod data;
mod run;

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

pub use data::{cifar, documents, shard, tokenizer};
pub use run::{checkpoint, config, good_checkpoint, manifest, metrics, set};

/// What a parser made of its input: taken, or the error.
pub type Verdict = Result<(), String>;

/// What gives bytes to a parser.
pub type Target = fn(&[u8]) -> Verdict;

/// All targets by name.
pub const TARGETS: [(&str, Target); 9] = [
    ("checkpoint", checkpoint),
    ("cifar", cifar),
    ("config", config),
    ("documents", documents),
    ("manifest", manifest),
    ("metrics", metrics),
    ("set", set),
    ("shard", shard),
    ("tokenizer", tokenizer),
];

/// The message of an error, which must be one line of reasonable length.
fn refused(error: impl Display) -> String {
    let message = error.to_string();
    assert_eq!(message.lines().count(), 1, "{message:?}");
    assert!(message.len() < 4_000, "{} bytes: {message}", message.len());
    message
}

/// A directory for the files of one input, gone with the value.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        Self(folder.unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str, data: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, data).unwrap();
        path
    }
}

/// Takes the panic hook, by which libFuzzer stops, from panics in crates of the registry: those of
/// `tokenizers` are caught where it is called. What is not caught still stops libFuzzer.
pub fn pass_over_panics_of_dependencies() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map_or("", |place| place.file());
        if !place.contains("/registry/") {
            hook(panic);
        }
    }));
}
