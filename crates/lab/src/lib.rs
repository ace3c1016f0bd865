//! Experiments on models: what is trained or measured, what a paper claims about it, and whether the
//! claim holds.
//!
//! An [`Experiment`] is a RON file: models, data, budget and seeds, what to draw, and each claim as
//! a [`Test`]. [`run_experiment`] trains the runs that are not trained yet, observes them, judges
//! the claims and returns the [`Results`]:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use residual_zoo_backend::BackendKind;
//! use residual_zoo_core::PlainModel;
//! use residual_zoo_gpt2::Gpt2Config;
//! use residual_zoo_lab::{Options, run_experiment};
//!
//! let path = Path::new("experiment.ron");
//! let text = residual_zoo_data::read_utf8(path)?;
//! let options = Options::new(Path::new("runs/pool"), BackendKind::first()?);
//! let results = run_experiment::<PlainModel<Gpt2Config>>(&text, path, None, &options)?;
//! println!("{}", results.table().to_text());
//! # Ok::<(), residual_zoo_lab::Error>(())
//! ```
//!
//! Everything is generic over the config of a model, so other projects can run experiments on their
//! own zoo. Programs take their options from `residual-zoo-cli`.
//!
//! A module uses only modules before it in this order: `error`, `size`, `single`, `options`, `quantity`,
//! `stats`, `claims`, `sweep`, `experiment`, `plan`, `facts`, `observe`, `corpora`, `measure`, `curves`,
//! `check`, `judge`, `charts`, `origin`, `pool`, `merge`, `training`, `tune`, `tuning_report`, `notes`, `looks`, `results`, `run`,
//! `compare`, `index`, `generate`, `classify`, `trial`; `basis` follows `corpora`.

#![forbid(unsafe_code)]

mod basis;
mod charts;
mod check;
pub mod claims;
mod classify;
mod compare;
mod corpora;
mod curves;
mod error;
mod evaluate;
mod experiment;
mod facts;
mod generate;
mod index;
mod judge;
mod looks;
pub mod measure;
mod merge;
mod notes;
mod observe;
mod options;
pub mod origin;
mod plan;
mod pool;
mod quantity;
mod results;
mod run;
mod serve;
mod single;
mod size;
mod sound;
mod stats;
pub mod sweep;
mod tasks;
#[cfg(test)]
mod tests;
mod training;
pub mod trial;
mod tune;
mod tuning_report;

pub use basis::{Basis, MOST_BYTES, basis_notes};
pub use check::unequal_budgets;
pub use claims::{Claim, Judgement, Test, Verdict};
pub use classify::{Classified, Found, IMAGES_REPORT, classify};
pub use compare::{Comparison, Setting, compare};
pub use corpora::{fetch_model, open_corpus, store_corpus};
pub use curves::{BITS_PER_BYTE, CURVES, Curve, curves, have_different_tokens};
pub use error::Error;
pub use evaluate::evaluate;
pub use experiment::{After, ChartSpec, Experiment, Measure, RunSpec, Vary};
pub use facts::{DataFacts, token};
pub use generate::generate;
pub use index::{INDEX, check_pages, write_index};
pub use judge::Planned;
pub use looks::LOOKS;
pub use merge::merge;
pub use notes::long_warm_ups;
pub use observe::{Missing, Observation, Outcome};
pub use options::Options;
pub use origin::Origin;
pub use plan::{PlannedRun, only};
pub use pool::Pool;
pub use quantity::{Axis, Observed, describe, is_cost};
pub use results::{REPORT, Results};
pub use run::run_experiment;
pub use serve::serve;
pub use single::{Bench, check_precision, check_start, follow, measure_rates, time, train};
pub use size::{
    Reading, Use, available_memory, check_memory, check_reading, check_size, least_memory,
};
pub use stats::{Estimate, Line};
pub use sweep::Sweep;
pub use tasks::TaskSpec;
pub use tune::{SweptRun, TriedPoint, Tuning};
