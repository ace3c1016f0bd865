//! Properties that must hold for any bytes that the zoo reads, one function for each kind of file.
//!
//! Each function gives `data` to a parser as a user would, by path if the parser reads a path. The function panics if a
//! property is violated: the parser panics, accepts invalid data, or returns an error of more than one line. The
//! function returns `Ok` if the parser accepted `data`, otherwise the error.
//!
//! The fuzz targets and the tests of hostile input call these functions.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod data;
mod run;

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

pub use data::{cifar, documents, shard, tokenizer};
pub use run::{checkpoint, config, good_checkpoint, manifest, metrics, set, weights};

/// The result of a parser: accepted, or the error.
pub type Verdict = Result<(), String>;

/// A function that gives bytes to a parser and checks the result.
pub type Target = fn(&[u8]) -> Verdict;

/// All targets by name.
pub const TARGETS: [(&str, Target); 10] = [
    ("checkpoint", checkpoint),
    ("cifar", cifar),
    ("config", config),
    ("documents", documents),
    ("manifest", manifest),
    ("metrics", metrics),
    ("set", set),
    ("shard", shard),
    ("tokenizer", tokenizer),
    ("weights", weights),
];

/// The message of an error. It must be a single line of reasonable length.
fn refused(error: impl Display) -> String {
    let message = error.to_string();
    assert_eq!(message.lines().count(), 1, "{message:?}");
    assert!(message.len() < 4_000, "{} bytes: {message}", message.len());
    message
}

/// A directory for the files of one input, deleted when dropped.
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

/// Skips the panic hook, which stops libFuzzer, for panics in crates from the registry. The caller of
/// `tokenizers` catches its panics. A panic that is not caught still stops libFuzzer.
pub fn pass_over_panics_of_dependencies() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map_or("", |place| place.file());
        if !place.contains("/registry/") {
            hook(panic);
        }
    }));
}
