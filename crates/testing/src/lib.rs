//! Shared code of the zoo's tests: small models, reference cases, the program as a user runs it, and malicious files.
//!
//! All functions panic on errors, which fails the test.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

pub mod hostile;
pub mod ops;
pub mod pass;
pub mod program;
pub mod reference;
pub mod runs;
pub mod server;
#[cfg(unix)]
pub mod terminal;
pub mod zoo;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Returns the root of the repository.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Waits until no other thread holds the guard, and returns it.
///
/// Each of Burn's backends has one random generator per process. A test that needs the same random numbers twice holds
/// the guard while it draws them. All other tests of the process that draw random numbers must hold the guard too.
pub fn my_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
