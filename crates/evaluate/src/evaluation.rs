//! The evaluation of a run on tasks. What is scored is written at once, so an evaluation that was stopped continues.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::backend::Backend;
use residual_zoo_core::ModelConfig;
use residual_zoo_runs::{Run, checkpoint, disk};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Error;
use crate::metric::{Metric, Sample, metrics};
use crate::request::{Request, Requests};
use crate::score::{Score, batches, score};
use crate::task::Task;

/// How to evaluate.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where samples and results go.
    pub directory: PathBuf,
    /// Requests of equal lengths that are scored at once.
    pub batch: usize,
    /// Tokens of a long text that each window predicts; `None` is as many as the model reads.
    pub stride: Option<usize>,
}

/// The results of a task.
#[derive(Clone, Debug)]
pub struct Results {
    /// The task.
    pub task: String,
    /// Its number of documents.
    pub documents: usize,
    /// The metrics.
    pub metrics: Vec<Metric>,
}

/// Told how far an evaluation is: the task, documents done, and of how many. If it returns false, the evaluation stops.
pub type OnProgress<'a> = &'a mut dyn FnMut(&str, usize, usize) -> bool;

/// Evaluates the newest checkpoint of `run` on `tasks`, and writes `results.json`, in the layout of `lm_eval`, and the
/// samples of each task.
///
/// # Errors
///
/// A document that cannot be scored; a run without a good checkpoint; [`Error::Stopped`]; I/O errors.
pub fn evaluate<B: Backend, C: ModelConfig>(
    run: &Run<C>,
    tasks: &[Task],
    options: &Options,
    device: &B::Device,
    progress: OnProgress,
) -> Result<Vec<Results>, Error> {
    let checkpoint = run.checkpoint()?.path;
    let weights = checkpoint::weights_blake3(&checkpoint)?;
    disk::create_directories(&options.directory)?;
    let model = run.model_at::<B>(&checkpoint, device)?;
    let mut all = Vec::new();
    for task in tasks {
        let samples = samples::<B, C>(run, &model, task, (options, &weights), device, progress)?;
        all.push(Results {
            task: task.name.clone(),
            documents: samples.len(),
            metrics: metrics(task, &samples),
        });
        let text = format!("{:#}\n", report(run, &all, &weights, options));
        disk::replace(&options.directory.join("results.json"), text.as_bytes())?;
    }
    Ok(all)
}

/// The first line of a file of samples: what they are of.
#[derive(PartialEq, Serialize, Deserialize)]
struct Heading {
    task: String,
    weights_blake3: String,
    documents_blake3: String,
    stride: usize,
    context: usize,
}

/// The samples of all documents of `task`, of which those that are in its file are not scored again.
fn samples<B: Backend, C: ModelConfig>(
    run: &Run<C>,
    model: &C::Model<B>,
    task: &Task,
    (options, weights): (&Options, &str),
    device: &B::Device,
    progress: OnProgress,
) -> Result<Vec<Sample>, Error> {
    let most = run.config.model.shape().context;
    let requests = Requests {
        tokenizer: &run.tokenizer,
        most,
        stride: options.stride.unwrap_or(most).min(most),
    };
    let heading = Heading {
        task: task.name.clone(),
        weights_blake3: weights.into(),
        documents_blake3: blake3::hash(format!("{:?}", task.documents).as_bytes()).to_string(),
        stride: requests.stride,
        context: most,
    };
    let path = options
        .directory
        .join(format!("samples_{}.jsonl", task.name));
    let mut file = Samples::open(&path, &heading, task.documents.len())?;
    let mut waiting: Vec<Request> = Vec::new();
    for (number, document) in task.documents.iter().enumerate() {
        if !file.done.contains_key(&number) {
            let found = requests
                .of(number, document)
                .map_err(|problem| Error::Document {
                    task: task.name.clone(),
                    document: number,
                    problem,
                })?;
            waiting.extend(found);
        }
    }
    // The requests of each document and their scores.
    let mut open: BTreeMap<usize, Vec<(usize, Option<Score>)>> = BTreeMap::new();
    for (place, request) in waiting.iter().enumerate() {
        open.entry(request.document)
            .or_default()
            .push((place, None));
    }
    for batch in batches(&waiting, options.batch) {
        if !progress(&task.name, file.done.len(), task.documents.len()) {
            return Err(Error::Stopped);
        }
        for (place, score) in
            score::<B, _>(model, run.config.model.revises(), &waiting, &batch, device)
        {
            let number = waiting[place].document;
            let Some(scores) = open.get_mut(&number) else {
                continue;
            };
            let slot = scores.iter_mut().find(|(known, _)| *known == place);
            slot.into_iter().for_each(|slot| slot.1 = Some(score));
            let scored: Option<Vec<Score>> = scores.iter().map(|(_, score)| *score).collect();
            if let Some(scored) = scored {
                if scored.iter().any(|score| !score.log_likelihood.is_finite()) {
                    return Err(Error::Document {
                        task: task.name.clone(),
                        document: number,
                        problem: "the model gives numbers that are not finite".into(),
                    });
                }
                let places = open.remove(&number).into_iter().flatten();
                let tokens = places
                    .map(|(place, _)| waiting[place].continuation.len())
                    .sum();
                file.add(Sample::of(number, &task.documents[number], &scored, tokens))?;
            }
        }
    }
    progress(&task.name, file.done.len(), task.documents.len());
    Ok(file.done.into_values().collect())
}

/// A file of samples.
struct Samples {
    path: PathBuf,
    file: fs::File,
    done: BTreeMap<usize, Sample>,
}

impl Samples {
    /// Opens the file with the samples of `heading`. Samples of something else are replaced.
    fn open(path: &Path, heading: &Heading, documents: usize) -> Result<Self, Error> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let found = lines.next().filter(|line| {
            serde_json::from_str::<Heading>(line).is_ok_and(|found| found == *heading)
        });
        let Some(first) = found else {
            let line = json_line(heading);
            disk::replace(path, line.as_bytes())?;
            return Ok(Self {
                path: path.into(),
                file: disk::open_to_append(path, line.len() as u64)?,
                done: BTreeMap::new(),
            });
        };
        let mut keep = first.len();
        let mut done = BTreeMap::new();
        for line in lines {
            let sample: Option<Sample> = serde_json::from_str(line).ok();
            let Some(sample) = sample.filter(|sample| sample.doc_id < documents) else {
                break;
            };
            keep += line.len();
            done.insert(sample.doc_id, sample);
        }
        Ok(Self {
            path: path.into(),
            file: disk::open_to_append(path, keep as u64)?,
            done,
        })
    }

    fn add(&mut self, sample: Sample) -> Result<(), Error> {
        disk::append(&mut self.file, &self.path, json_line(&sample).as_bytes())?;
        self.done.insert(sample.doc_id, sample);
        Ok(())
    }
}

fn json_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|e| unreachable!("plain data: {e}")) + "\n"
}

/// The results in the layout of `lm_eval`.
fn report<C: ModelConfig>(
    run: &Run<C>,
    all: &[Results],
    weights: &str,
    options: &Options,
) -> Value {
    let (mut results, mut better, mut counts) = (Map::new(), Map::new(), Map::new());
    for Results {
        task,
        documents,
        metrics,
    } in all
    {
        let mut values = json!({ "alias": task });
        let mut is_better = Map::new();
        for metric in metrics {
            values[format!("{},none", metric.name)] = metric.value.into();
            let error = metric.error.map_or("N/A".into(), Value::from);
            values[format!("{}_stderr,none", metric.name)] = error;
            is_better.insert(metric.name.into(), metric.higher_is_better.into());
        }
        results.insert(task.clone(), values);
        better.insert(task.clone(), is_better.into());
        counts.insert(
            task.clone(),
            json!({ "original": documents, "effective": documents }),
        );
    }
    json!({
        "results": results,
        "higher_is_better": better,
        "n-samples": counts,
        "config": {
            "model": "residual-zoo",
            "model_args": run.directory().display().to_string(),
            "model_name": run.config.model.name(),
            "weights_blake3": weights,
            "batch_size": options.batch,
            "stride": options.stride,
        },
        "max_length": run.config.model.shape().context,
    })
}
