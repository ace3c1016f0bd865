//! Tests the models: costs, compositions, growth, and their form in RON.

#![allow(clippy::unwrap_used)]

mod attend;
mod compositions;
mod config_page;
mod costs;
mod depth;
mod documentation;
mod embedding;
mod experiments;
mod growth;
mod loops;
mod matrices;
mod mup;
mod ngpt;
mod paper_tables;
mod streams;
mod vision;
