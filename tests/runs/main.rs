//! Runs and the programs that make them: how they stop, go on, and what they do when something is
//! wrong.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod checkpoints;
mod cli;
#[cfg(unix)]
mod disk;
#[cfg(unix)]
mod health;
#[cfg(unix)]
mod resume;
mod stop;
