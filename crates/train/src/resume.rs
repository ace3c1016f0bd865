//! Continues a run: checks the changes since its last start, and restores the state of its newest checkpoint.

use std::path::{Path, PathBuf};

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{Corpus, Source};
use residual_zoo_runs::checkpoint::{self, Needs, Newest};
use residual_zoo_runs::run_dir::{self, DataIdentity, Start};
use residual_zoo_runs::{Choice, Error, Remedy, Row, RunConfig, RunDir, SavedWeights, disk};
use residual_zoo_system::{Blame as _, counted};

use crate::checkpoint::{Journal, load};
use crate::differences::{difference, differences, longer};
use crate::{RunOptions, Trainer};

/// The state from which a run continues.
pub(crate) struct Resumed {
    /// The rows so far.
    pub rows: Vec<Row>,
    /// The logs at the checkpoint, and the measurements that are not in a row yet.
    pub journal: Journal,
    /// The checkpoint from which the run continues, if there is one.
    pub checkpoint: Option<PathBuf>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Continues the run in `directory` from its newest good checkpoint, or from step 0 if there is none.
pub(crate) fn resume<B: AutodiffBackend, C: ModelConfig>(
    trainer: &mut Trainer<B, C>,
    corpus: &Corpus,
    options: &RunOptions,
    directory: &mut RunDir,
) -> Result<Resumed, Error> {
    let path = &options.directory;
    let Compared {
        lost_before,
        mut start,
        identity,
        mut notes,
        newest,
    } = compared(trainer, corpus, options)?;
    // All checks come before the first change on disk.
    let (mut journal, mut rows) = (Journal::default(), Vec::new());
    // The last step with a row. The steps after it are in the journal, and their row is not written yet.
    let mut logged = 0;
    if let Some(newest) = &newest {
        let (found, kept) = load(trainer, &newest.path)?;
        check_step(&newest.path, trainer.progress.step)?;
        notes.extend(kept_note(&kept, path));
        logged = trainer.progress.step - found.interval.steps;
        let [metrics, samples] = &found.logs();
        let (read, lost) = run_dir::read_back(path, logged, [metrics, samples])?;
        let is_of_rows = |note: &&String| note.contains(run_dir::METRICS);
        start.lost = lost.iter().filter(is_of_rows).cloned().collect();
        match lost.first().or(lost_before.first()) {
            Some(lost) if options.needs_all_rows => {
                return Err(Error::NoRun {
                    path: path.clone(),
                    problem: format!(
                        "{lost}; restore the file, or train the run again with `--force`"
                    ),
                });
            }
            _ => notes.extend(lost),
        }
        (journal, rows) = (found, read);
    }
    start.step = trainer.progress.step;
    notes.extend(set_aside(newest.as_ref())?);
    let note = match &newest {
        Some(newest) => {
            let (step, steps) = (start.step, trainer.config.train.steps);
            let ended = step >= steps && journal.interval.steps == 0;
            if ended && !start.changes.is_empty() {
                notes.push("no step used these changes, because the run had ended".into());
            }
            progress_note(newest, steps, ended)
        }
        None => {
            directory.set_logs_aside()?;
            disk::create_directories(&path.join(checkpoint::CHECKPOINTS))?;
            "there is no checkpoint yet: starting over from step 0".into()
        }
    };
    notes.push(note);
    checkpoint::clean(path);
    let [metrics, samples] = &journal.logs();
    let now = (&trainer.config, &corpus.tokenizer, &identity);
    directory.go_on(now, &start, [metrics, samples], (&rows, logged))?;
    Ok(Resumed {
        rows,
        journal,
        checkpoint: newest.map(|newest| newest.path),
        notes,
    })
}

/// Checks that the run in the directory of `options` can continue. Writes nothing.
pub(crate) fn check<B: AutodiffBackend, C: ModelConfig>(
    trainer: &mut Trainer<B, C>,
    corpus: &Corpus,
    options: &RunOptions,
) -> Result<(), Error> {
    let path = &options.directory;
    let Some(newest) = compared(trainer, corpus, options)?.newest else {
        return run_dir::check_writable(path, false, trainer.config.train.tensorboard);
    };
    let (journal, _) = load(trainer, &newest.path)?;
    check_step(&newest.path, trainer.progress.step)?;
    let [metrics, samples] = &journal.logs();
    let logged = trainer.progress.step - journal.interval.steps;
    run_dir::read_back(path, logged, [metrics, samples])?;
    run_dir::check_writable(path, true, trainer.config.train.tensorboard)
}

/// The result of comparing a run with its current start.
struct Compared {
    /// The reports of lost rows from earlier starts.
    lost_before: Vec<String>,
    /// The current start.
    start: Start,
    /// The data of the current start.
    identity: DataIdentity,
    /// Notes for the user.
    notes: Vec<String>,
    /// The checkpoint from which to continue, if there is one.
    newest: Option<Newest>,
}

/// Compares the run in the directory of `options` with its current start. Writes nothing.
///
/// # Errors
///
/// Returns an error if the run cannot continue.
fn compared<B: AutodiffBackend, C: ModelConfig>(
    trainer: &Trainer<B, C>,
    corpus: &Corpus,
    options: &RunOptions,
) -> Result<Compared, Error> {
    let path = &options.directory;
    if run_dir::read_config::<C>(path)?.data.source == Source::Imported {
        let problem = "is an imported model, which has no training to continue; start another run from it with \
                       `--init-from`";
        return Err(Error::NoRun {
            path: path.clone(),
            problem: problem.into(),
        });
    }
    let history = run_dir::read_history(path)?;
    let (first, last) = (history.first(), history.last());
    check_first_weights(first, options)?;
    let mut start = this_start::<B>(options, trainer.device());
    let identity = DataIdentity::of(corpus);
    start.changes = changes(
        &trainer.config,
        (corpus, &identity),
        (&history, &start),
        options,
    )?;
    let notes = change_notes(last, &start);
    let newest = checkpoint::newest_if_any(path)?;
    if newest.is_none() {
        check_restart(path, first)?;
    }
    Ok(Compared {
        lost_before: history.into_iter().flat_map(|start| start.lost).collect(),
        start,
        identity,
        notes,
        newest,
    })
}

/// Returns the changes to the config, data and backend since the last start in `history`.
///
/// # Errors
///
/// Returns [`Error::Differs`] if `options` do not allow the changes. A larger number of steps is always allowed.
/// Another tokenizer, or an optimizer that keeps other moments, is always an error.
fn changes<C: ModelConfig>(
    config: &RunConfig<C>,
    (corpus, identity): (&Corpus, &DataIdentity),
    (history, now): (&[Start], &Start),
    options: &RunOptions,
) -> Result<Vec<String>, Error> {
    let path = &options.directory;
    let before = run_dir::read_config(path)?;
    if !config.train.optimizer.continues(before.train.optimizer) {
        let problem = "keeps other moments than the run's optimizer; start another run with \
                       `--init-from RUN --init-by grow-fresh`";
        return Err(ConfigError::new("train.optimizer", problem).into());
    }
    let mut changes = differences(&before, config);
    if run_dir::is_config_edited(path, history)? {
        let edited = "config.ron was edited after the last start, so the run may have been trained with another config";
        changes.push(edited.into());
    }
    changes.extend(data_difference(path, corpus, identity)?);
    let last = history.last();
    if let Some(last) = last.filter(|last| last.backend != now.backend) {
        changes.push(difference("backend", &last.backend, &now.backend));
    }
    if !changes.is_empty() && !options.allow_config_change {
        let of_model = changes.iter().any(|change| change.starts_with("model"));
        let differs = Error::Differs {
            path: path.clone(),
            differences: changes,
        };
        return Err(differs.then("; ", Remedy::AnotherRunOrChanges { of_model }));
    }
    changes.extend(longer(&before, config));
    Ok(changes)
}

/// Returns notes for the user on the changes since the start `last`.
fn change_notes(last: Option<&Start>, now: &Start) -> Vec<String> {
    let changed = now
        .changes
        .iter()
        .map(|change| format!("changed: {change}"));
    let mut notes: Vec<String> = changed.collect();
    // On Flex, results do not depend on the number of threads.
    let depends = !now.backend.contains("flex");
    if let Some(last) = last.filter(|last| depends && last.threads != now.threads) {
        notes.push(format!(
            "{} instead of {}: sums may be rounded differently",
            counted(now.threads, "thread"),
            last.threads
        ));
    }
    let before = last.map_or(now.processes, |last| last.processes.max(1));
    if before != now.processes {
        notes.push(format!(
            "{} instead of {before}: sums are rounded differently",
            counted(now.processes, "process")
        ));
    }
    notes
}

/// Refuses to start a run over if its initial weights came from another run, because these weights are lost with the
/// run's checkpoints.
fn check_restart(path: &Path, first: Option<&Start>) -> Result<(), Error> {
    let Some(run) = first.and_then(|first| first.init_from.as_ref()) else {
        return Ok(());
    };
    let lost = Error::NoRun {
        path: path.into(),
        problem: format!(
            "has lost its checkpoints, and with them the weights of {} that it began with",
            run.display()
        ),
    };
    Err(lost.then("; ", Remedy::AnotherRun))
}

/// Renames the damaged checkpoints that are newer than `newest`. Returns a note for each.
fn set_aside(newest: Option<&Newest>) -> Result<Vec<String>, Error> {
    let damaged = newest.into_iter().flat_map(|newest| &newest.passed_over);
    damaged
        .map(|(path, error)| {
            let aside = checkpoint::set_aside(path)?;
            let aside = aside.display();
            Ok(format!(
                "skipped a damaged checkpoint, now {aside}: {error}"
            ))
        })
        .collect()
}

/// Refuses a checkpoint whose name and state have different steps.
fn check_step(path: &Path, step: usize) -> Result<(), Error> {
    match checkpoint::step_of(path) == Some(step) {
        true => Ok(()),
        false => Err(Error::Checkpoint {
            path: path.into(),
            problem: format!(
                "has the state after {}; give the directory its original name, or delete it to continue from an \
                 earlier checkpoint",
                counted(step, "step")
            ),
        }),
    }
}

/// Returns a note for the user: a run of `steps` steps continues from the checkpoint `newest`, or has `ended`.
fn progress_note(newest: &Newest, steps: usize, ended: bool) -> String {
    let path = newest.path.display();
    match ended {
        true => format!(
            "already trained up to step {steps}: {path}; train longer with \
             `--set train.steps=N`"
        ),
        false => format!("resuming from {path}"),
    }
}

/// Refuses initial weights that differ from the weights with which the run began. Weights count as the same if no
/// checkpoint is chosen and they come from the same directory. Otherwise they must be equal, for example after the
/// directory was moved.
fn check_first_weights(first: Option<&Start>, options: &RunOptions) -> Result<(), Error> {
    let Some(asked) = options.init_from.as_ref().map(|(run, _)| absolute(run)) else {
        return Ok(());
    };
    let before = first.and_then(|first| first.init_from.as_ref());
    let choice = options.init_checkpoint;
    if before == Some(&asked) && choice == Choice::default() {
        return Ok(());
    }
    if let Some(weights) = first.and_then(|first| first.init_weights.as_ref()) {
        let chosen = choice.of(&asked, Needs::Weights(SavedWeights::Trained))?;
        if checkpoint::weights_blake3(&chosen.path)? == *weights {
            return Ok(());
        }
    }
    let began = match before {
        None => "fresh weights".into(),
        Some(run) if *run == asked => format!("another checkpoint of {}", run.display()),
        Some(run) => format!("the weights of {}", run.display()),
    };
    let asked = match (before == Some(&asked), choice) {
        (true, Choice::Step(step)) => format!("the checkpoint of step {step}"),
        (true, choice) => format!("its {choice} checkpoint"),
        (false, _) => format!("the weights of {}", asked.display()),
    };
    let differs = Error::NoRun {
        path: options.directory.clone(),
        problem: format!("began with {began}, not with {asked}"),
    };
    Err(differs.then("; ", Remedy::AnotherRun))
}

/// Resolves a path, so that all its spellings become equal.
fn absolute(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or(path.into())
}

/// Returns a note on values that are not trained and were taken from a run instead of the config.
pub(crate) fn kept_note(kept: &[String], run: &Path) -> Option<String> {
    let first = kept.first()?;
    let first = match kept.len() {
        1 => format!("the value `{first}`, which is not trained, comes"),
        count => format!("{count} values that are not trained, such as `{first}`, come"),
    };
    Some(format!(
        "{first} from {}, not from the config",
        run.display()
    ))
}

/// Describes the current start of a run, as if at step 0.
pub(crate) fn this_start<B: AutodiffBackend>(options: &RunOptions, device: &B::Device) -> Start {
    let threads = std::thread::available_parallelism();
    Start {
        step: 0,
        version: env!("CARGO_PKG_VERSION").into(),
        backend: B::name(device),
        threads: threads.map_or(0, |threads| threads.get()),
        processes: options.team.map_or(1, |team| team.size()),
        shared: options.shares_cores,
        init_from: options.init_from.as_ref().map(|(run, _)| absolute(run)),
        merged_with: None,
        init_weights: None,
        config_blake3: None,
        changes: Vec::new(),
        lost: Vec::new(),
    }
}

/// Refuses a changed `tokenizer.json` in a run whose data are the same. The same data have the same tokenizer, because
/// the identity of the data includes the tokenizer. A missing file is written again later.
fn check_own_tokenizer(path: &Path, corpus: &Corpus) -> Result<(), Error> {
    if std::fs::symlink_metadata(path.join(run_dir::TOKENIZER)).is_err() {
        return Ok(());
    }
    match run_dir::read_tokenizer(path)?.fingerprint() == corpus.tokenizer.fingerprint() {
        true => Ok(()),
        false => {
            let problem = "was changed: it is not the tokenizer of the run's data";
            Err(run_dir::wrong_tokenizer(path, problem))
        }
    }
}

/// Describes how the data differ from the data of the run in `path`, if they do. The tokenizers must be equal.
///
/// # Errors
///
/// Returns an error if the tokenizers differ, or if the run lacks a file.
pub fn data_difference(
    path: &Path,
    corpus: &Corpus,
    now: &DataIdentity,
) -> Result<Option<String>, Error> {
    let before = run_dir::read_data(path)?;
    if before == *now {
        return check_own_tokenizer(path, corpus).map(|()| None);
    }
    let checked = run_dir::check_tokenizer(path, corpus);
    checked.map_err(|error| match error.is_stop() {
        true => error,
        false => error.then(", or ", Remedy::AnotherRun),
    })?;
    let count = |tokens: Option<usize>| tokens.map_or("endless".into(), |n| n.to_string());
    let counts = |data: &DataIdentity| (data.train_tokens, data.valid_tokens, data.vocab_size);
    if counts(&before) == counts(now) {
        let (then, now) = (&before.identity, &now.identity);
        return Ok(Some(format!(
            "the content of the data has changed, but not the number of tokens: its hash was {then:.8}, now {now:.8}"
        )));
    }
    let shown = |data: &DataIdentity| {
        let (train, valid) = (count(data.train_tokens), count(data.valid_tokens));
        let (train_blake3, valid_blake3) = (&data.train_blake3, &data.valid_blake3);
        let (ids, identity) = (data.vocab_size, &data.identity);
        format!(
            "{train} training and {valid} validation tokens with {} (BLAKE3 {train_blake3:.8} and {valid_blake3:.8}, \
             identity {identity:.8})",
            counted(ids, "id")
        )
    };
    Ok(Some(difference("the data", &shown(&before), &shown(now))))
}
