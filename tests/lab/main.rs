//! The experiments: their files, and the programs that run them.

#![allow(clippy::unwrap_used)]

mod suite_files;
mod suites;
