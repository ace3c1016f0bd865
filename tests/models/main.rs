//! The models: results, costs, compositions, growth, and their form in RON.

#![allow(clippy::unwrap_used)]

mod compositions;
mod costs;
mod documentation;
mod embedding;
mod experiments;
mod fixtures;
mod growth;
mod paper_tables;
mod parity;
mod toy;
mod toy_architecture;
