//! Drives a single run on the backend that is chosen when a program starts: training and timing, generation,
//! evaluation, classification, depth maps, serving and merging.
//!
//! [`check_memory`] refuses a run that would not fit into memory, judged by the model's sizes or by a [`Trial`] of
//! smaller copies. [`open_corpus`] opens data and shows the progress. A [`Basis`] is the vocabulary for which
//! parameters and FLOPs are counted.
//!
//! All items are generic over the model config, so other projects can drive runs of their own zoo.

#![forbid(unsafe_code)]

mod basis;
mod classify;
mod data;
mod depth;
mod error;
mod evaluate;
mod generate;
mod merge;
mod place;
mod serve;
mod size;
mod train;
mod try_memory;

pub use basis::{Basis, MOST_BYTES, Opened, basis_notes, why_unopened};
pub use classify::{Classified, Found, IMAGES_REPORT, classify};
pub use data::{fetch_model, open_corpus, store_corpus};
pub use depth::{Depths, depth};
pub use error::Error;
pub use evaluate::evaluate;
pub use generate::generate;
pub use merge::merge;
pub use place::Place;
pub use serve::serve;
pub use size::{
    Reading, Sequences, Use, available_memory, check_memory, check_reading, check_size,
    least_memory,
};
pub use train::{
    Bench, check_precision, check_start, follow, measure_rates, time, train, training_flops,
    usual_precision,
};
pub use try_memory::{Peaks, Trial};
