//! Standard evaluation of a run: perplexity of texts, last-word prediction and multiple choice.
//!
//! A [`Task`] is a file of documents. The questions about a document become token requests. Each request asks for the
//! likelihood of a continuation, given its context. [`evaluate()`] scores the requests and writes the metrics with
//! their standard errors, in the layout of EleutherAI's `lm_eval`. The tasks are defined as in `lm_eval`.

#![forbid(unsafe_code)]

mod document;
mod error;
mod evaluation;
mod fields;
mod metric;
mod python;
mod request;
mod samples;
mod score;
mod scoring;
mod task;

pub use document::Document;
pub use error::Error;
pub use evaluation::{OnProgress, Options, Results, check, evaluate, longest, most_tokens};
pub use metric::{Metric, Sample};
pub use score::MOST_LOGITS;
pub use scoring::most_rows;
pub use task::{KINDS, Kind, Task};
