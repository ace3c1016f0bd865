//! What the tests of the zoo share: small models, the cases of the reference, the programs as a
//! user runs them, and files made to harm.
//!
//! Every function panics where something is not as a test needs it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

pub mod hostile;
pub mod pass;
pub mod program;
pub mod reference;
pub mod runs;
pub mod zoo;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Waits until no other thread holds the returned guard.
///
/// Burn's backends have one random generator for the whole process. A test that needs the same
/// random numbers twice holds the guard while it draws them, and so does every test in its process
/// that draws at all.
pub fn my_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
