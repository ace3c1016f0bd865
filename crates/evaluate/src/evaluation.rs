//! The evaluation of a run on tasks. What is scored is written at once, so an evaluation that was stopped continues.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::backend::Backend;
use residual_zoo_core::ModelConfig;
use residual_zoo_data::{Tokenizer, read_file};
use residual_zoo_runs::{Lock, Run, checkpoint, disk};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Error;
use crate::metric::{Metric, Sample, metrics};
use crate::request::{Request, Requests};
use crate::score::{Score, batches, score};
use crate::task::{Document, Kind, Task};

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
    /// Its kind.
    pub kind: Kind,
    /// Its number of documents.
    pub documents: usize,
    /// The metrics.
    pub metrics: Vec<Metric>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Told how far an evaluation is: the task, batches of requests done, and of how many. If it returns false, the
/// evaluation stops.
pub type OnProgress<'a> = &'a mut dyn FnMut(&str, usize, usize) -> bool;

/// Evaluates the newest checkpoint of `run` on `tasks`, and writes `results.json`, in the layout of `lm_eval`, and the
/// samples of each task. Results of other tasks with the same weights stay.
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
    let _lock = Lock::take(&options.directory)?;
    let path = options.directory.join("results.json");
    let (mut written, mut set_aside) = previous(&path, &weights)?;
    // A document that cannot be scored is noticed before anything is.
    check(tasks, &run.tokenizer, run.config.model.shape().context)?;
    let model = run.model_at::<B>(&checkpoint, device)?;
    let mut all = Vec::new();
    for task in tasks {
        let (samples, mut notes) =
            samples::<B, C>(run, &model, task, (options, &weights), device, progress)?;
        notes.extend(set_aside.take());
        let results = Results {
            task: task.name.clone(),
            kind: task.kind,
            documents: samples.len(),
            metrics: metrics(task, &samples),
            notes,
        };
        add(&mut written, run, &results, &weights, options);
        disk::replace(&path, format!("{written:#}\n").as_bytes())?;
        all.push(results);
    }
    Ok(all)
}

/// Checks that a model that reads `context` tokens of `tokenizer` can score all documents of `tasks`.
///
/// # Errors
///
/// The first document that it cannot score, and why.
pub fn check(tasks: &[Task], tokenizer: &Tokenizer, context: usize) -> Result<(), Error> {
    let requests = Requests {
        tokenizer,
        most: context,
        stride: context,
    };
    for task in tasks {
        for (number, document) in task.documents.iter().enumerate() {
            of_document(&requests, task, number, document)?;
        }
    }
    Ok(())
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

/// The requests of a document of `task`.
fn of_document(
    requests: &Requests,
    task: &Task,
    number: usize,
    document: &Document,
) -> Result<Vec<Request>, Error> {
    requests
        .of(number, document)
        .map_err(|problem| Error::Document {
            task: task.name.clone(),
            document: number,
            problem,
        })
}

/// The first line of a file of samples: what they are of.
#[derive(PartialEq, Serialize, Deserialize)]
struct Heading {
    task: String,
    kind: String,
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
) -> Result<(Vec<Sample>, Vec<String>), Error> {
    let requests = Requests::new(run, options);
    let heading = Heading {
        task: task.name.clone(),
        kind: task.kind.name().into(),
        weights_blake3: weights.into(),
        documents_blake3: task.blake3.clone(),
        stride: requests.stride,
        context: requests.most,
    };
    let path = options
        .directory
        .join(format!("samples_{}.jsonl", task.name));
    let (mut file, mut notes) = Samples::open(&path, &heading)?;
    let before = file.done.len();
    file.done.retain(|number, sample| {
        let document = task.documents.get(*number);
        document.is_none_or(|document| sample.is_of(document))
    });
    if file.done.len() < before {
        let damaged = before - file.done.len();
        notes.push(format!(
            "{damaged} samples in {} are damaged and were scored again",
            path.display()
        ));
    }
    let known = file.done.range(..task.documents.len()).count();
    if known > 0 {
        notes.push(format!(
            "{known} of {} documents were scored before",
            task.documents.len()
        ));
    }
    let mut waiting: Vec<Request> = Vec::new();
    for (number, document) in task.documents.iter().enumerate() {
        if !file.done.contains_key(&number) {
            let found = of_document(&requests, task, number, document)?;
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
    let batches = batches(&waiting, options.batch);
    for (number, batch) in batches.iter().enumerate() {
        if !progress(&task.name, number, batches.len()) {
            return Err(Error::Stopped);
        }
        for (place, score) in
            score::<B, _>(model, run.config.model.revises(), &waiting, batch, device)
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
                    .map(|(place, _)| waiting[place].continuation().len())
                    .sum();
                file.add(Sample::of(number, &task.documents[number], &scored, tokens))?;
            }
        }
    }
    let mut done = file.done;
    // Those of another limit stay in the file.
    done.split_off(&task.documents.len());
    Ok((done.into_values().collect(), notes))
}

/// A file of samples.
struct Samples {
    path: PathBuf,
    file: fs::File,
    done: BTreeMap<usize, Sample>,
}

impl Samples {
    /// Opens the file with the samples of `heading`, and returns notes. A file with samples of something else is set
    /// aside.
    fn open(path: &Path, heading: &Heading) -> Result<(Self, Vec<String>), Error> {
        let mut notes = Vec::new();
        let text = read_if_there(path)?.unwrap_or_default();
        let mut lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let found = lines.next().filter(|line| {
            serde_json::from_str::<Heading>(line).is_ok_and(|found| found == *heading)
        });
        let (mut keep, mut done) = (0, BTreeMap::new());
        match found {
            Some(first) => {
                keep = first.len();
                for line in lines {
                    let Ok(sample) = serde_json::from_str::<Sample>(line) else {
                        break;
                    };
                    keep += line.len();
                    done.insert(sample.doc_id, sample);
                }
            }
            None => {
                if path.exists() {
                    let aside = aside(path, &text);
                    disk::rename(path, &aside)?;
                    notes.push(format!(
                        "the samples of other weights or settings are in {} now",
                        aside.display()
                    ));
                }
                let line = json_line(heading);
                disk::replace(path, line.as_bytes())?;
                keep += line.len();
            }
        }
        let samples = Self {
            path: path.into(),
            file: disk::open_to_append(path, keep as u64)?,
            done,
        };
        Ok((samples, notes))
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

/// Where the file `path` with `text` is kept when another one takes its place: `NAME.before-HASH.ENDING`.
fn aside(path: &Path, text: &str) -> PathBuf {
    let hash = blake3::hash(text.as_bytes()).to_hex();
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    path.with_extension(format!("before-{}.{ending}", &hash[..8]))
}

/// The results in the file `path`, if they are of the same weights. Others are set aside, with a note.
fn previous(path: &Path, weights: &str) -> Result<(Value, Option<String>), Error> {
    let Some(text) = read_if_there(path)? else {
        return Ok((json!({}), None));
    };
    let found: Option<Value> = serde_json::from_str(&text).ok();
    let is_same = |found: &Value| found["config"]["weights_blake3"] == weights;
    if let Some(found) = found.filter(is_same) {
        return Ok((found, None));
    }
    let aside = aside(path, &text);
    disk::rename(path, &aside)?;
    let note = format!(
        "the results of other weights are in {} now",
        aside.display()
    );
    Ok((json!({}), Some(note)))
}

/// The text of a file that an evaluation wrote, if it is there. Links and what is no regular file are refused, because
/// reading them may never end.
fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    match fs::symlink_metadata(path) {
        Err(_) => Ok(None),
        Ok(metadata) if metadata.is_file() => {
            let text = read_file(path)?;
            Ok(Some(String::from_utf8_lossy(&text).into_owned()))
        }
        Ok(_) => Err(Error::Task {
            path: path.into(),
            line: None,
            problem: "is not a regular file; move it away, or give another directory with `--out`"
                .into(),
        }),
    }
}

/// Adds the results of a task to `all`, which is in the layout of `lm_eval`.
fn add<C: ModelConfig>(
    all: &mut Value,
    run: &Run<C>,
    results: &Results,
    weights: &str,
    options: &Options,
) {
    let Results {
        task,
        kind,
        documents,
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
    let counts = json!({ "original": documents, "effective": documents });
    let config = json!({ "task": task, "kind": kind.name(), "stride": stride });
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
        "model_name": run.config.model.name(),
        "weights_blake3": weights,
        "batch_size": options.batch,
    });
    all["max_length"] = run.config.model.shape().context.into();
}
