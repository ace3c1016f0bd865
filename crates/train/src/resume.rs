//! Going on with a run: what must be as it was, and where it stopped.

use std::path::{Path, PathBuf};

use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
use residual_zoo_core::ModelConfig;
use residual_zoo_data::Corpus;
use serde::Serialize;
use serde_json::Value;

use crate::checkpoint::{self, Journal};
use crate::run_dir::{self, DataIdentity, Start};
use crate::{Error, Row, RunConfig, RunDir, RunOptions, Trainer, disk};

/// Where a run goes on.
pub(crate) struct Resumed {
    /// Its rows up to there.
    pub rows: Vec<Row>,
    /// What is not in these rows yet.
    pub journal: Journal,
    /// The checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Goes on with the run in `directory` from its newest good checkpoint; without one, from its
/// start.
pub(crate) fn resume<B, C>(
    trainer: &mut Trainer<B, C>,
    corpus: &Corpus,
    options: &RunOptions,
    directory: &mut RunDir,
) -> Result<Resumed, Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    let path = &options.directory;
    let history = run_dir::read_history(path)?;
    let (first, last) = (history.first(), history.last());
    check_first_weights(first, options)?;
    let mut start = this_start::<B>(options, trainer.device());
    let identity = DataIdentity::of(corpus);
    let config = run_dir::read_config(path)?;
    let mut changes = differences(&config, &trainer.config);
    changes.extend(other_data(path, corpus, &identity)?);
    if let Some(last) = last.filter(|last| last.backend != start.backend) {
        changes.push(difference("backend", &last.backend, &start.backend));
    }
    if !changes.is_empty() && !options.allow_config_change {
        return Err(Error::Differs {
            path: path.clone(),
            differences: changes,
        });
    }
    changes.extend(longer(&config, &trainer.config));
    start.changes = changes;
    let changed = start
        .changes
        .iter()
        .map(|change| format!("changed: {change}"));
    let mut notes: Vec<String> = changed.collect();
    if let Some(last) = last.filter(|last| last.threads != start.threads) {
        notes.push(format!(
            "{} threads, {} before: sums may be rounded otherwise",
            start.threads, last.threads
        ));
    }

    // All that can fail comes before the first change on disk.
    let newest = checkpoint::newest_if_any(path)?;
    if let (None, Some(run)) = (&newest, first.and_then(|first| first.init_from.as_ref())) {
        let run = run.display();
        return Err(Error::NoRun {
            path: path.clone(),
            problem: format!(
                "has lost its checkpoints, and with them the weights of {run} that it began with; \
                 begin again in another directory"
            ),
        });
    }
    let (mut journal, mut rows) = (Journal::default(), Vec::new());
    if let Some(newest) = &newest {
        let (found, kept) = checkpoint::load(trainer, &newest.path)?;
        notes.extend(kept_note(&kept, path));
        let (read, lost) = directory.read_back(trainer.progress.step, &found)?;
        notes.extend(lost);
        (journal, rows) = (found, read);
    }
    start.step = trainer.progress.step;
    for (damaged, error) in newest.iter().flat_map(|newest| &newest.passed_over) {
        let aside = checkpoint::set_aside(damaged)?;
        notes.push(format!("passed over, now {}: {error}", aside.display()));
    }
    let steps = trainer.config.train.steps;
    notes.push(match &newest {
        Some(newest) if start.step >= steps => format!(
            "trained already: {} has all {steps} steps; more by `--set train.steps=N`",
            newest.path.display()
        ),
        Some(newest) => format!("going on from {}", newest.path.display()),
        None => {
            directory.set_logs_aside()?;
            disk::create_directories(&path.join(checkpoint::CHECKPOINTS))?;
            "there is no checkpoint yet: starting again".into()
        }
    });
    checkpoint::clean(path);
    directory.go_on(&trainer.config, &identity, &start, &journal)?;
    Ok(Resumed {
        rows,
        journal,
        checkpoint: newest.map(|newest| newest.path),
        notes,
    })
}

/// A run has had its first weights; others need another run. They are the same if they come from
/// the same place, or if they are equal, as those of a directory are that was moved.
fn check_first_weights(first: Option<&Start>, options: &RunOptions) -> Result<(), Error> {
    let Some(asked) = options.init_from.as_ref().map(|run| absolute(run)) else {
        return Ok(());
    };
    let before = first.and_then(|first| first.init_from.as_ref());
    if before == Some(&asked) {
        return Ok(());
    }
    if let Some(weights) = first.and_then(|first| first.init_weights.as_ref()) {
        let newest = checkpoint::newest(&asked)?;
        if checkpoint::weights_blake3(&newest.path)? == *weights {
            return Ok(());
        }
    }
    let before = before.map_or("fresh weights".into(), |run| {
        format!("the weights of {}", run.display())
    });
    let asked = asked.display();
    Err(Error::NoRun {
        path: options.directory.clone(),
        problem: format!(
            "began with {before}, not with those of {asked}; begin another run by `--run DIR`; in \
             an experiment, `--force` trains it anew"
        ),
    })
}

/// The same for every way of writing a path.
fn absolute(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or(path.into())
}

/// What to say of numbers that are not trained and not those of the config.
pub(crate) fn kept_note(kept: &[String], run: &Path) -> Option<String> {
    let (first, count) = (kept.first()?, kept.len());
    Some(format!(
        "{count} numbers that are not trained, such as `{first}`, are those of {}, not of the \
         config",
        run.display()
    ))
}

/// This start of a run, of its first step.
pub(crate) fn this_start<B: AutodiffBackend>(options: &RunOptions, device: &B::Device) -> Start {
    let threads = std::thread::available_parallelism();
    Start {
        step: 0,
        version: env!("CARGO_PKG_VERSION").into(),
        backend: B::name(device),
        threads: threads.map_or(0, |threads| threads.get()),
        init_from: options.init_from.as_ref().map(|run| absolute(run)),
        init_weights: None,
        changes: Vec::new(),
    }
}

/// What differs in model and training between two configs, by path, but for more steps. The data
/// are compared by their content, not by where they come from.
pub fn differences<C: ModelConfig>(before: &RunConfig<C>, now: &RunConfig<C>) -> Vec<String> {
    fn tree<T: Serialize>(value: &T) -> Value {
        serde_json::to_value(value).unwrap_or_else(|e| unreachable!("a config is plain data: {e}"))
    }
    let mut train = before.train.clone();
    train.steps = match longer(before, now) {
        Some(_) => now.train.steps,
        None => before.train.steps,
    };
    let mut found = Vec::new();
    compare("model", &tree(&before.model), &tree(&now.model), &mut found);
    compare("train", &tree(&train), &tree(&now.train), &mut found);
    found
}

/// A larger number of steps, which needs no permission.
fn longer<C: ModelConfig>(before: &RunConfig<C>, now: &RunConfig<C>) -> Option<String> {
    let (from, to) = (before.train.steps, now.train.steps);
    (to > from).then(|| {
        format!(
            "train.steps raised from {from} to {to}; from here on the learning rate follows the \
             longer schedule"
        )
    })
}

fn compare(path: &str, before: &Value, now: &Value, found: &mut Vec<String>) {
    if let (Value::Object(a), Value::Object(b)) = (before, now)
        && a.keys().eq(b.keys())
    {
        for (key, value) in a {
            compare(&format!("{path}.{key}"), value, &b[key], found);
        }
    } else if before != now {
        found.push(difference(path, &short(before), &short(now)));
    }
}

fn difference(what: &str, before: &impl std::fmt::Display, now: &impl std::fmt::Display) -> String {
    format!("{what} was {before}, now {now}")
}

/// A value in few words: of an enum variant with content, its name.
fn short(value: &Value) -> String {
    match value {
        Value::Object(fields) => fields.keys().cloned().collect::<Vec<_>>().join(", "),
        Value::Null => "None".into(),
        other => other.to_string(),
    }
}

/// The difference of the data, which must have the same tokenizer.
fn other_data(path: &Path, corpus: &Corpus, now: &DataIdentity) -> Result<Option<String>, Error> {
    let before = run_dir::read_data(path)?;
    if before == *now {
        return Ok(None);
    }
    run_dir::check_tokenizer(path, corpus)?;
    let count = |tokens: Option<usize>| tokens.map_or("endless".into(), |n| n.to_string());
    let shown = |data: &DataIdentity| {
        let (train, valid) = (count(data.train_tokens), count(data.valid_tokens));
        let (train_blake3, valid_blake3) = (&data.train_blake3, &data.valid_blake3);
        format!(
            "{train} training and {valid} validation tokens (BLAKE3 {train_blake3:.8} and \
             {valid_blake3:.8})"
        )
    };
    Ok(Some(difference("the data", &shown(&before), &shown(now))))
}
