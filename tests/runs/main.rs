//! Tests runs and the programs that start them: stopping, resuming, and errors.

#![allow(clippy::unwrap_used)]

mod bad_input;
#[cfg(target_os = "linux")]
mod changed;
mod checkpoints;
mod checks;
mod cli;
mod counts;
mod damaged;
mod depth;
#[cfg(unix)]
mod disk;
mod embedding;
mod files;
#[cfg(target_os = "linux")]
mod hardening;
#[cfg(unix)]
mod health;
mod help;
mod hints;
mod hub;
mod images;
#[cfg(unix)]
mod kills;
#[cfg(unix)]
mod places;
mod plot;
#[cfg(target_os = "linux")]
mod pools;
mod program;
#[cfg(unix)]
mod resume;
mod reuse;
#[cfg(target_os = "linux")]
mod settings;
#[cfg(target_os = "linux")]
mod stopping;
mod sweep;
mod tensorboard;
#[cfg(target_os = "linux")]
mod terminal;
mod threads;
