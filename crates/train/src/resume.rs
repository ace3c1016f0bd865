//! Going on with a run: what must be as it was, and where it stopped.

use std::path::{Path, PathBuf};

use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
use residual_zoo_core::ModelConfig;
use residual_zoo_data::Corpus;
use serde_json::Value;

use crate::checkpoint::{self, Journal};
use crate::run_dir::{self, DataIdentity, Start};
use crate::{Error, Progress, Row, RunConfig, RunDir, RunOptions, Trainer};

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
    let mut start = this_start::<B>(options, trainer.device());
    let mut changes = differences(&run_dir::read_config(path)?, &trainer.config);
    changes.extend(other_data(path, corpus)?);
    if let Some(last) = last.filter(|last| last.backend != start.backend) {
        changes.push(difference("backend", &last.backend, &start.backend));
    }
    let before = first.and_then(|first| first.init_from.as_ref());
    if let Some(asked) = options
        .init_from
        .as_ref()
        .filter(|asked| before != Some(asked))
    {
        let before = before.map_or("none".into(), |run| run.display().to_string());
        changes.push(difference(
            "--init-from",
            &before,
            &asked.display().to_string(),
        ));
    }
    let (allowed, refused): (Vec<_>, Vec<_>) = changes
        .into_iter()
        .partition(|change| options.allow_config_change || change.starts_with(LONGER));
    if !refused.is_empty() {
        return Err(Error::Differs {
            path: path.clone(),
            differences: refused,
        });
    }
    let mut notes: Vec<String> = allowed.iter().map(|c| format!("changed: {c}")).collect();
    if let Some(last) = last.filter(|last| last.threads != start.threads) {
        notes.push(format!(
            "{} threads, {} before: sums may be rounded otherwise",
            start.threads, last.threads
        ));
    }

    let newest = checkpoint::newest_if_any(path)?;
    let mut journal = Journal::default();
    if let Some(newest) = &newest {
        journal = checkpoint::load(trainer, &newest.path)?;
        for (damaged, error) in &newest.passed_over {
            let aside = checkpoint::set_aside(damaged)?;
            notes.push(format!("passed over, now {}: {error}", aside.display()));
        }
    }
    let Progress { step, .. } = trainer.progress;
    notes.push(match &newest {
        Some(newest) => format!("going on from {}", newest.path.display()),
        None => "there is no checkpoint yet: starting again".into(),
    });
    checkpoint::clean(path);
    (start.step, start.changes) = (step, allowed);
    let logged = newest.is_some() && journal.interval.steps == 0;
    let place = (step, logged, journal.samples);
    Ok(Resumed {
        rows: directory.go_on(&trainer.config, corpus, &start, place)?,
        journal,
        checkpoint: newest.map(|newest| newest.path),
        notes,
    })
}

/// This start of a run, of its first step.
pub(crate) fn this_start<B: AutodiffBackend>(options: &RunOptions, device: &B::Device) -> Start {
    let threads = std::thread::available_parallelism();
    Start {
        step: 0,
        version: env!("CARGO_PKG_VERSION").into(),
        backend: B::name(device),
        threads: threads.map_or(0, |threads| threads.get()),
        init_from: options.init_from.clone(),
        changes: Vec::new(),
    }
}

/// How the change of `train.steps` to more begins, which needs no permission.
const LONGER: &str = "train.steps raised";

/// What differs in model and training between two configs, by path. The data are compared by their
/// content, not by where they come from.
pub fn differences<C: ModelConfig>(before: &RunConfig<C>, now: &RunConfig<C>) -> Vec<String> {
    let mut found = Vec::new();
    let tree = |value: serde_json::Result<Value>| value.unwrap_or_default();
    let model = |config: &RunConfig<C>| tree(serde_json::to_value(&config.model));
    compare("model", &model(before), &model(now), &mut found);
    let train = |config: &RunConfig<C>| tree(serde_json::to_value(&config.train));
    compare("train", &train(before), &train(now), &mut found);
    if now.train.steps > before.train.steps {
        let lower = difference("train.steps", &before.train.steps, &now.train.steps);
        for change in found.iter_mut().filter(|change| **change == lower) {
            let (from, to) = (before.train.steps, now.train.steps);
            *change = format!(
                "{LONGER} from {from} to {to}; from here on the learning rate follows the longer \
                 schedule"
            );
        }
    }
    found
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

fn other_data(path: &Path, corpus: &Corpus) -> Result<Option<String>, Error> {
    let (before, now) = (run_dir::read_data(path)?, DataIdentity::of(corpus));
    if before == now {
        return Ok(None);
    }
    if run_dir::read_tokenizer(path)?.fingerprint() != corpus.tokenizer.fingerprint() {
        let problem = "was trained with another tokenizer, so its weights mean other tokens; use \
                       the same data, or give its tokenizer.json by --tokenizer";
        return Err(Error::NoRun {
            path: path.into(),
            problem: problem.into(),
        });
    }
    let shown = |data: &DataIdentity| {
        format!(
            "{} training and {} validation tokens (BLAKE3 {:.8} and {:.8})",
            data.train_tokens, data.valid_tokens, data.train_blake3, data.valid_blake3
        )
    };
    Ok(Some(difference("the data", &shown(&before), &shown(&now))))
}
