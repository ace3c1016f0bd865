//! The evaluation of a run on tasks.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::backend::Backend;
use residual_zoo_core::{ModelConfig, Precision};
use residual_zoo_data::{Tokenizer, hash_of_parts, read_file};
use residual_zoo_runs::{Lock, Run, checkpoint, disk};
use serde_json::{Map, Value, json};

use crate::Error;
use crate::metric::{Found, Metric, metrics};
use crate::request::{GoesOn, Request, Requests};
use crate::samples::{Heading, Samples, check_is_file, set_aside};
use crate::scoring::{Scorer, Scoring};
use crate::task::{Kind, Task};

/// Options of an evaluation.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory for samples and results.
    pub directory: PathBuf,
    /// Maximum number of requests of equal length that are scored at once.
    pub batch: usize,
    /// Number of tokens that each window of a long text predicts, except the first window, which predicts as many
    /// tokens as the model reads. With `None`, every window predicts as many tokens as the model reads.
    pub stride: Option<usize>,
}

/// The results of a task.
#[derive(Clone, Debug)]
pub struct Results {
    /// The name of the task.
    pub task: String,
    /// The kind of the task.
    pub kind: Kind,
    /// The number of documents that were scored.
    pub documents: usize,
    /// The number of documents in the task's file.
    pub original: usize,
    /// The checkpoint of the model.
    pub checkpoint: PathBuf,
    /// The metrics.
    pub metrics: Vec<Metric>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Receives the progress of an evaluation: the task, the number of scored requests, and the number of all requests.
/// While documents are read, both numbers are 0. Returns false to stop the evaluation.
pub type OnProgress<'a> = &'a mut dyn FnMut(&str, usize, usize) -> bool;

/// Hashes the model's config and the tokenizer. Together with the weights, they determine the scores of a run.
fn model_blake3<C: ModelConfig>(run: &Run<C>) -> String {
    let config = json!(run.config.model).to_string();
    let tokenizer = run.tokenizer.fingerprint();
    let parts = [config.as_bytes(), tokenizer.as_bytes()];
    hash_of_parts("residual-zoo-evaluate model v1", &parts).to_string()
}

/// Evaluates the chosen checkpoint of `run` on `tasks`. Writes the samples of each task, and `results.json` in the
/// layout of `lm_eval`. Results of other tasks with the same weights, config and tokenizer are kept.
///
/// # Errors
///
/// Returns an error if a document cannot be scored, if the run has no valid checkpoint, if another process uses the
/// directory, or if a file cannot be read or written. Returns [`Error::Stopped`] if `progress` returns false or the
/// user stops the process.
pub fn evaluate<B: Backend, C: ModelConfig>(
    run: &Run<C>,
    tasks: &[Task],
    options: &Options,
    device: &B::Device,
    progress: OnProgress,
) -> Result<Vec<Results>, Error> {
    let checkpoint = run.checkpoint()?.path;
    let weights = run.weights().blake3(&checkpoint)?;
    let model = model_blake3(run);
    disk::create_directories(&options.directory)?;
    let _lock = Lock::take(&options.directory)?;
    let path = options.directory.join("results.json");
    let (mut written, mut is_of_others) = previous(&path, (&weights, &model))?;
    let requests = Requests::new(run, options);
    // Both the reading of documents and the scoring report progress.
    let progress = RefCell::new(progress);
    let reads = |task: &Task| (*progress.borrow_mut())(&task.name, 0, 0);
    // Finds documents that cannot be scored, before scoring begins.
    let counts = tasks
        .iter()
        .map(|task| counts(task, &requests, &mut || reads(task)))
        .collect::<Result<Vec<_>, _>>()?;
    let scorer = Scorer {
        model: run.model_at::<B>(&checkpoint, device)?,
        revises: run.config.model.revises(),
        batch: options.batch,
        device: device.clone(),
    };
    let mut all = Vec::new();
    for (task, counts) in tasks.iter().zip(counts) {
        let heading = Heading {
            task: task.name.clone(),
            kind: task.kind.name().into(),
            weights_blake3: weights.clone(),
            model_blake3: model.clone(),
            documents_blake3: task.blake3.clone(),
            stride: requests.stride,
            context: requests.most,
            precision: Precision::now(),
        };
        let mut samples = Samples::open(&options.directory, task, &heading, &mut || reads(task))?;
        Scoring::new(&scorer, task, &counts, &mut samples, &progress).score_all(&requests)?;
        drop(counts);
        samples.check_is_here()?;
        let found: Vec<Found> = samples.found.into_iter().flatten().collect();
        let mut notes = samples.notes;
        // The file is moved only after a task is done, so a stopped evaluation does not lose the note.
        if std::mem::take(&mut is_of_others) {
            notes.push(format!(
                "the results with other weights or settings were moved to {}",
                set_aside(&path)?.display()
            ));
        }
        let results = Results {
            task: task.name.clone(),
            kind: task.kind,
            documents: task.len(),
            original: task.original,
            checkpoint: checkpoint.clone(),
            metrics: metrics(task, &found)?,
            notes,
        };
        add(&mut written, run, &results, (&weights, &model), options);
        disk::replace(&path, format!("{written:#}\n").as_bytes())?;
        all.push(results);
    }
    Ok(all)
}

/// Checks that a model that reads `context` tokens of `tokenizer` can score all documents of `tasks`. The check ends
/// early when `goes_on` returns false.
///
/// # Errors
///
/// Returns an error that names the first document that the model cannot score, and the reason. Returns
/// [`Error::Stopped`] if `goes_on` returns false.
pub fn check(
    tasks: &[Task],
    tokenizer: &Tokenizer,
    context: usize,
    mut goes_on: impl FnMut() -> bool,
) -> Result<(), Error> {
    let requests = Requests {
        tokenizer,
        most: context,
        stride: context,
    };
    tasks
        .iter()
        .try_for_each(|task| counts(task, &requests, &mut goes_on).map(drop))
}

/// Returns an upper bound on the number of tokens that a model reads for its longest request, if the model reads at
/// most `context` tokens at once. The bound is one more than the number of bytes of the longest text of a request, as
/// if each byte were a token, but at most `context`. Nothing is tokenized.
///
/// # Errors
///
/// Returns an error if a document cannot be parsed.
pub fn most_tokens(tasks: &[Task], context: usize) -> Result<usize, Error> {
    let mut most = 1;
    for task in tasks {
        for number in 0..task.len() {
            // The token between documents may come first, so one token is added.
            most = most.max(task.document(number)?.longest().saturating_add(1));
            if most >= context {
                return Ok(context);
            }
        }
    }
    Ok(most)
}

/// Returns the number of tokens that a model reads for its longest request. The model reads at most `context` tokens of
/// `tokenizer` at once, and predicts `stride` tokens with each window after the first.
///
/// # Errors
///
/// Returns the errors of [`check`].
pub fn longest(
    tasks: &[Task],
    tokenizer: &Tokenizer,
    (context, stride): (usize, usize),
    mut goes_on: impl FnMut() -> bool,
) -> Result<usize, Error> {
    let requests = Requests {
        tokenizer,
        most: context,
        stride: stride.min(context),
    };
    let mut most = 1;
    for task in tasks {
        for number in 0..task.len() {
            let document = task.document(number)?;
            let mut take = |request: Request| {
                // The last token is predicted, but not read.
                most = most.max(request.context().len() + request.continuation().len() - 1);
                Ok(())
            };
            requests.of((&task.name, number), &document, &mut take, &mut goes_on)?;
            if !goes_on() {
                return Err(Error::Stopped);
            }
        }
    }
    Ok(most)
}

/// Returns the number of requests of each document of `task`.
fn counts(task: &Task, requests: &Requests, goes_on: GoesOn) -> Result<Vec<u32>, Error> {
    let mut counts = vec![0; task.len()];
    for (number, count) in counts.iter_mut().enumerate() {
        let document = task.document(number)?;
        let mut take = |_| {
            *count += 1;
            Ok(())
        };
        requests.of((&task.name, number), &document, &mut take, goes_on)?;
        if !goes_on() {
            return Err(Error::Stopped);
        }
    }
    Ok(counts)
}

impl<'a> Requests<'a> {
    fn new<C: ModelConfig>(run: &'a Run<C>, options: &Options) -> Self {
        let most = run.config.model.shape().context;
        Self {
            tokenizer: &run.tokenizer,
            most,
            stride: options.stride.unwrap_or(most).min(most),
        }
    }
}

/// Maximum size of a results file, in bytes. A task takes about a thousand bytes.
const MOST_RESULTS: u64 = 4 << 20;

/// Returns the results in the file `path` if they are for these weights and this model, and whether the file has any
/// other content.
fn previous(path: &Path, (weights, model): (&str, &str)) -> Result<(Value, bool), Error> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok((json!({}), false));
    };
    check_is_file(path)?;
    if metadata.len() <= MOST_RESULTS {
        let found: Option<Value> = serde_json::from_slice(&read_file(path)?).ok();
        let is_same = |found: &Value| {
            let config = &found["config"];
            config["weights_blake3"] == weights && config["model_blake3"] == model
        };
        if let Some(found) = found.filter(is_same) {
            return Ok((found, false));
        }
    }
    Ok((json!({}), true))
}

/// Adds the results of a task to `all`, which is in the layout of `lm_eval`.
fn add<C: ModelConfig>(
    all: &mut Value,
    run: &Run<C>,
    results: &Results,
    (weights, model): (&str, &str),
    options: &Options,
) {
    let Results {
        task,
        kind,
        documents,
        original,
        checkpoint,
        metrics,
        ..
    } = results;
    let stride = Requests::new(run, options).stride;
    let mut values = json!({ "alias": task });
    let mut is_better = Map::new();
    for metric in metrics {
        values[format!("{},none", metric.name)] = metric.value.into();
        let error = metric.error.map_or("N/A".into(), Value::from);
        values[format!("{}_stderr,none", metric.name)] = error;
        is_better.insert(metric.name.into(), metric.higher_is_better.into());
    }
    let counts = json!({ "original": original, "effective": documents });
    let config = json!({ "task": task, "kind": kind.name(), "stride": stride, "precision": Precision::now().to_string() });
    for (part, value) in [
        ("results", values),
        ("higher_is_better", is_better.into()),
        ("n-samples", counts),
        ("configs", config),
    ] {
        if !all[part].is_object() {
            all[part] = json!({});
        }
        all[part][task.as_str()] = value;
    }
    all["config"] = json!({
        "model": "residual-zoo",
        "model_args": run.directory().display().to_string(),
        "checkpoint": checkpoint.display().to_string(),
        "step": checkpoint::step_of(checkpoint),
        "model_name": run.config.model.name(),
        "weights_blake3": weights,
        "model_blake3": model,
        "batch_size": options.batch,
    });
    all["max_length"] = run.config.model.shape().context.into();
}
