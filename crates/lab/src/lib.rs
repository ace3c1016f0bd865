//! Experiments on models: their runs and measurements, the claims of a paper, and whether the claims hold.
//!
//! An [`Experiment`] is read from a RON file. The file sets the models, the data, the budget, the seeds, the charts and
//! the claims. Each claim has a [`Test`]. [`run_experiment`] trains the runs that are not trained yet, measures all
//! runs, judges the claims and returns the [`Results`]:
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
//! Experiments are generic over the model config, so other projects can run experiments on their own models.
//! `residual-zoo-cli` provides the command-line options of experiments.
//!
//! A module mostly uses modules before it in this order: `error`, `quantity`, `finished`, `options`, `tasks`, `stats`,
//! `claims`, `sweep`, `ladder`, `experiment`, `scales`, `plan`, `facts`, `observe`, `corpora`, `measure`, `curves`, `sound`,
//! `check`, `judge`, `charts`, `origin`, `pool`, `tuning`, `train_runs`, `tune`, `tuning_report`, `notes`, `looks`,
//! `results`, `run_experiment`, `compare`, `index`. `residual-zoo-drive` handles single runs.

#![forbid(unsafe_code)]

mod charts;
mod check;
pub mod claims;
mod compare;
mod corpora;
mod curves;
mod error;
mod experiment;
mod facts;
mod finished;
mod index;
mod judge;
pub mod ladder;
mod looks;
pub mod measure;
mod notes;
mod observe;
mod options;
pub mod origin;
mod plan;
mod pool;
mod quantity;
mod results;
mod run_experiment;
mod scales;
mod sound;
mod stats;
pub mod sweep;
mod tasks;
#[cfg(test)]
mod tests;
mod train_runs;
mod tune;
mod tuning;
mod tuning_report;

pub use check::unequal_budgets;
pub use claims::{Claim, Judgement, Test, Verdict};
pub use compare::{Comparison, Setting, compare, of_comparison};
pub use corpora::open_data;
pub use curves::{CURVES, Curve, curves, have_different_tokens};
pub use error::Error;
pub use experiment::{After, ChartSpec, Experiment, Measure, RunSpec, Vary};
pub use facts::{DataFacts, token};
pub use finished::{FinishedFile, FinishedRuns};
pub use index::{INDEX, check_pages, write_index};
pub use judge::Planned;
pub use ladder::{Ladder, Rung};
pub use looks::LOOKS;
pub use notes::long_warm_ups;
pub use observe::{Missing, Observation, Outcome};
pub use options::Options;
pub use origin::Origin;
pub use plan::PlannedRun;
pub use pool::Pool;
pub use quantity::{Axis, BITS_PER_BYTE, Observed, describe, is_cost};
pub use results::{REPORT, Results};
pub use run_experiment::run_experiment;
pub use scales::{ExperimentFile, ExperimentText};
pub use stats::{Estimate, Line};
pub use sweep::Sweep;
pub use tasks::TaskSpec;
pub use tune::AtPoints;
pub use tuning::{Best, RuleFit, SweptRun, TriedPoint, Tuning};
