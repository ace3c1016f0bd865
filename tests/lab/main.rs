//! Tests the experiments, their files, the programs that run them, and the structure of the project.

#![allow(clippy::unwrap_used)]

mod findings;
mod finished;
mod memory;
mod published;
mod rooms;
mod same;
mod suite_files;
mod suites;
mod tasks;
