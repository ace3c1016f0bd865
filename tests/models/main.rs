//! The models: what they compute, what they cost, how they are put together, grown and written in
//! RON.

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
