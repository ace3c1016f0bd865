//! Saves a trainer as a checkpoint, and restores it. The files are described in [`residual_zoo_runs::checkpoint`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_core::params::Role;
use residual_zoo_core::{ConfigError, ModelConfig, Tensors, params};
use residual_zoo_data::Source;
use residual_zoo_runs::checkpoint::{
    EMA, MODEL, OPTIMIZER, STATE, aside, files, move_away, optimizer_files, read_finite_tensors,
    write_tensors,
};
use residual_zoo_runs::manifest::{self, MANIFEST};
use residual_zoo_runs::row::{MOST_STEPS, totals_problem};
use residual_zoo_runs::{Error, Mark, disk};
use serde::{Deserialize, Serialize};

use crate::health::{Interval, RecentLosses};
use crate::optimizer::Moments;
use crate::{Progress, Trainer};

/// The logs of a run at a checkpoint, and the measurements that are not logged yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// The measurements since the last row of the metrics.
    pub interval: Interval,
    /// The earlier losses, with which a spike is detected.
    pub recent: RecentLosses,
    /// Length of `metrics.jsonl` in bytes.
    pub metrics: u64,
    /// BLAKE3 of `metrics.jsonl`. Checkpoints of earlier versions have none.
    #[serde(default)]
    pub metrics_blake3: Option<String>,
    /// Length of `samples.txt` in bytes.
    pub samples: u64,
    /// BLAKE3 of `samples.txt`. Checkpoints of earlier versions have none.
    #[serde(default)]
    pub samples_blake3: Option<String>,
}

impl Journal {
    /// Returns the marks of `metrics.jsonl` and `samples.txt`.
    pub fn logs(&self) -> [Mark; 2] {
        let mark = |bytes, blake3: &Option<String>| Mark {
            bytes,
            blake3: blake3.clone(),
        };
        [
            mark(self.metrics, &self.metrics_blake3),
            mark(self.samples, &self.samples_blake3),
        ]
    }

    /// Records the marks of `metrics.jsonl` and `samples.txt`.
    pub(crate) fn set_logs(&mut self, [metrics, samples]: [Mark; 2]) {
        (self.metrics, self.metrics_blake3) = (metrics.bytes, metrics.blake3);
        (self.samples, self.samples_blake3) = (samples.bytes, samples.blake3);
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    progress: Progress,
    journal: Journal,
    /// Number of updates before the average of the weights began; 0 if it began with the run.
    #[serde(default, skip_serializing_if = "is_zero")]
    before_average: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl State {
    /// Describes the first value that is impossible in a run whose curriculum ends at `last_level`; `None` if all
    /// values are possible.
    fn problem(&self, last_level: usize) -> Option<String> {
        let Self {
            progress,
            journal,
            before_average,
        } = self;
        let Progress {
            step,
            flops,
            seconds,
            skipped,
            level,
            lr_scale,
            ..
        } = *progress;
        let found = totals_problem(step, flops, seconds);
        let found = found.or_else(|| {
            let tokens = progress.tokens;
            (tokens > MOST_STEPS as u64)
                .then(|| format!("`tokens` is {tokens}; no run has read so many"))
        });
        let rest = || {
            let problem = match () {
                () if skipped > step || progress.skipped_in_a_row > skipped => "skipped steps",
                () if *before_average > progress.updates() => "updates before the average",
                () if level > last_level => "level",
                () if !(0.0..=1.0).contains(&lr_scale) => "learning-rate factor",
                () if journal.interval.steps > step => "steps since the last row",
                () if !journal.interval.is_plausible() => "sums since the last row",
                () if !journal.recent.is_plausible() => "recent losses",
                () => return None,
            };
            Some(format!("has {problem} that no run can have"))
        };
        found.or_else(rest)
    }
}

/// Writes a checkpoint of `trainer` to `directory`, which appears only when the checkpoint is complete. Renames a file
/// or directory that already has this path.
///
/// # Errors
///
/// Returns I/O errors, including errors of other processes in a team.
pub fn save<B: AutodiffBackend, C: ModelConfig>(
    trainer: &Trainer<B, C>,
    journal: &Journal,
    directory: &Path,
) -> Result<(), Error> {
    save_if(trainer, journal, directory, false, || Ok(())).map(drop)
}

/// Like [`save`], but deletes an existing checkpoint if `replaces` is true. Calls `check` when everything is written,
/// just before the directory appears. Returns the new path of a renamed file or directory.
pub(crate) fn save_if<B: AutodiffBackend, C: ModelConfig>(
    trainer: &Trainer<B, C>,
    journal: &Journal,
    directory: &Path,
    replaces: bool,
    check: impl FnOnce() -> Result<(), Error>,
) -> Result<Option<PathBuf>, Error> {
    let aside = aside(directory);
    disk::remove_directory(&aside)?;
    let written = write_files(trainer, journal, &aside).and_then(|()| {
        check()?;
        match fs::symlink_metadata(directory) {
            Ok(found) if replaces && found.is_dir() && directory.join(MANIFEST).is_file() => {
                disk::replace_directory(&aside, directory).map(|()| None)
            }
            // Renaming would silently replace an empty directory.
            Ok(_) => {
                let moved = move_away(directory)?;
                disk::rename(&aside, directory).map(|()| Some(moved))
            }
            Err(_) => disk::rename(&aside, directory).map(|()| None),
        }
    });
    // An incomplete or replaced checkpoint only takes up space, so a failure to delete it is ignored.
    if written.is_err() || replaces {
        disk::remove_directory(&aside).ok();
    }
    written
}

fn write_files<B: AutodiffBackend, C: ModelConfig>(
    trainer: &Trainer<B, C>,
    journal: &Journal,
    directory: &Path,
) -> Result<(), Error> {
    disk::create_directory(directory)?;
    // Makes one copy at a time, because each copy is as large as the model, or twice as large.
    let model = params::export::<B, _>(trainer.model());
    write_tensors(&directory.join(MODEL), &model, None)?;
    drop(model);
    if let Some(average) = trainer.average() {
        let average = params::export::<B::InnerBackend, _>(average);
        write_tensors(&directory.join(EMA), &average, None)?;
    }
    let shards = trainer.save_moments(directory)?;
    let state = State {
        progress: trainer.progress,
        journal: journal.clone(),
        before_average: trainer.before_average,
    };
    let state = serde_json::to_vec_pretty(&state);
    let state = state.unwrap_or_else(|e| unreachable!("{e}"));
    disk::write(&directory.join(STATE), &state)?;
    manifest::write(directory, &files(shards, trainer.average().is_some()))?;
    disk::sync(directory)
}

/// Writes the moments in `state`, given by parameter name, to `file`.
pub(crate) fn write_moments(file: &Path, state: BTreeMap<String, Moments>) -> Result<(), Error> {
    let mut moments = BTreeMap::new();
    let mut steps = BTreeMap::new();
    for (name, state) in state {
        moments.insert(format!("{name}.first"), state.first);
        moments.extend(
            state
                .second
                .map(|second| (format!("{name}.second"), second)),
        );
        steps.insert(name, state.steps);
    }
    let steps = serde_json::to_string(&steps).unwrap_or_else(|e| unreachable!("{e}"));
    write_tensors(file, &moments, Some(("steps", steps)))
}

/// Restores the model, the average of its weights, the optimizer and the progress of `trainer` from a checkpoint of the
/// same model. Returns the journal that [`save`] was given, and the names that [`load_parameters`] returns.
///
/// # Errors
///
/// Returns an error if a file is missing, is damaged, or belongs to another model.
pub fn load<B: AutodiffBackend, C: ModelConfig>(
    trainer: &mut Trainer<B, C>,
    directory: &Path,
) -> Result<(Journal, Vec<String>), Error> {
    let path = directory.join(STATE);
    let text = residual_zoo_data::read_file(&path)?;
    let state: State = serde_json::from_slice(&text).map_err(|e| Error::Checkpoint {
        path: path.clone(),
        problem: e.to_string(),
    })?;
    let last_level = match &trainer.config.data.source {
        Source::Copying(copying) => copying.last_level(),
        _ => 0,
    };
    if let Some(problem) = state.problem(last_level) {
        let problem = problem + "; continue from an earlier checkpoint: delete this one";
        return Err(Error::Checkpoint { path, problem });
    }
    let before = trainer.model().clone();
    let kept = load_grown(trainer, directory, |weights, _| Ok(weights))?;
    let moments = read_moments(directory)?;
    import_moments(trainer, directory, moments).inspect_err(|_| trainer.replace_model(before))?;
    let path = directory.join(EMA);
    trainer.before_average = match (trainer.config.train.ema, path.is_file()) {
        (None, _) => 0,
        (Some(_), true) => state.before_average,
        // The average begins after this checkpoint.
        (Some(_), false) => state.progress.updates(),
    };
    if trainer.average().is_some() && path.is_file() {
        let (average, _) = read_finite_tensors(&path)?;
        let imported = trainer.import_average(average);
        imported.map_err(|source| Error::Import { path, source })?;
    }
    trainer.progress = state.progress;
    Ok((state.journal, kept))
}

/// Loads the weights and the optimizer's moments of a checkpoint, but not its progress, so the schedule starts from the
/// beginning.
///
/// The checkpoint may belong to a `smaller` model, from which the model of `trainer` grows
/// ([`Transfer::grow`](residual_zoo_core::Transfer::grow)). The moments of new rows of a parameter are zero. If the
/// checkpoint has no moments, `trainer` keeps its own. Returns the names that [`load_parameters`] returns.
///
/// # Errors
///
/// Returns an error if a file is missing, is damaged, or belongs to another model, or if the moments cannot grow with
/// their weights.
pub fn load_weights<B: AutodiffBackend, C: ModelConfig>(
    trainer: &mut Trainer<B, C>,
    smaller: &C,
    directory: &Path,
) -> Result<Vec<String>, Error> {
    let before = trainer.model().clone();
    let kept = load_parameters(trainer, smaller, directory)?;
    let mut moments = read_moments(directory)?;
    let shapes = params::list::<B, _>(trainer.model()).into_iter();
    let shapes: BTreeMap<_, _> = shapes.map(|info| (info.name, info.shape)).collect();
    for (name, Moments { first, second, .. }) in &mut moments {
        let fits = shapes.get(name).is_some_and(|shape| {
            params::pad_rows(first, shape, None);
            if let Some(second) = second {
                params::pad_rows(second, shape, None);
            }
            *first.shape == **shape
        });
        if !fits {
            trainer.replace_model(before);
            let problem = format!(
                "keeps the optimizer's moments, but the moments of `{name}` do not grow with its weights; \
                 use grow-fresh"
            );
            return Err(ConfigError::new("--init-by", problem).into());
        }
    }
    import_moments(trainer, directory, moments).inspect_err(|_| trainer.replace_model(before))?;
    Ok(kept)
}

/// Loads the weights of a checkpoint as [`load_weights`] does, but leaves the moments unchanged.
///
/// Parameters that are not trained, such as TokenFormer's τ, take the value of the checkpoint even if the config has
/// another value. Returns the names of the untrained parameters whose two values differ, except the frozen weights of a
/// tuned model.
///
/// # Errors
///
/// Returns an error if a file is missing, is damaged, or belongs to another model.
pub fn load_parameters<B: AutodiffBackend, C: ModelConfig>(
    trainer: &mut Trainer<B, C>,
    smaller: &C,
    directory: &Path,
) -> Result<Vec<String>, Error> {
    let model = trainer.config.model.clone();
    model.grows_from(smaller)?;
    load_grown(trainer, directory, |weights, fresh| {
        Ok(model.grow(smaller, weights, fresh)?)
    })
}

/// Calls `grow` with the weights of a checkpoint and the fresh weights of `trainer`, and gives the result to `trainer`.
/// Returns the names that [`load_parameters`] returns.
fn load_grown<B: AutodiffBackend, C: ModelConfig>(
    trainer: &mut Trainer<B, C>,
    directory: &Path,
    grow: impl FnOnce(Tensors, &Tensors) -> Result<Tensors, Error>,
) -> Result<Vec<String>, Error> {
    let path = directory.join(MODEL);
    let (weights, _) = read_finite_tensors(&path)?;
    let fresh = params::export::<B, _>(trainer.model());
    let differs = |name: &String| match (weights.get(name), fresh.get(name)) {
        (Some(theirs), Some(ours)) => theirs.iter::<f32>().ne(ours.iter::<f32>()),
        _ => false,
    };
    let frozen = params::list::<B, _>(trainer.model()).into_iter();
    // Frozen weights of a tuned model are always taken from the checkpoint, so they need no note.
    let frozen = frozen.filter(|info| !info.trainable && info.role == Role::Mixing);
    let frozen = frozen.map(|info| info.name);
    let kept = frozen.filter(differs).collect();
    let weights = grow(weights, &fresh)?;
    let model = params::import::<B, _>(trainer.model().clone(), weights);
    trainer.replace_model(model.map_err(|source| Error::Import { path, source })?);
    trainer.restart_average();
    Ok(kept)
}

/// Reads the moments of a checkpoint, by parameter name. The result is empty if the checkpoint has no moments.
fn read_moments(directory: &Path) -> Result<BTreeMap<String, Moments>, Error> {
    let mut moments = BTreeMap::new();
    for file in optimizer_files(directory)? {
        read_moments_of(&file, &mut moments)?;
    }
    Ok(moments)
}

/// Adds the moments in the file `optimizer` to `moments`.
fn read_moments_of(optimizer: &Path, moments: &mut BTreeMap<String, Moments>) -> Result<(), Error> {
    let (mut tensors, metadata) = read_finite_tensors(optimizer)?;
    let damaged = |problem: String| Error::Checkpoint {
        path: optimizer.into(),
        problem,
    };
    let steps = metadata
        .get("steps")
        .ok_or_else(|| damaged("has no step counts".into()))?;
    let steps: BTreeMap<String, usize> =
        serde_json::from_str(steps).map_err(|e| damaged(format!("step counts: {e}")))?;
    for (name, steps) in steps {
        let mut take = |moment: &str| tensors.remove(&format!("{name}.{moment}"));
        // SGD has no second moments. The optimizer checks that it gets the moments that it needs.
        let (first, second) = (take("first"), take("second"));
        let first = first.ok_or_else(|| damaged(format!("`{name}.first` is missing")))?;
        if steps > MOST_STEPS {
            let problem = format!("`{name}` has made {steps} steps; no run is that long");
            return Err(damaged(problem));
        }
        let squares = second.iter().flat_map(|second| second.iter::<f32>());
        if squares.into_iter().any(|x| x < 0.0) {
            return Err(damaged(format!("`{name}.second` has squares below 0")));
        }
        let found = Moments {
            first,
            second,
            steps,
        };
        if moments.insert(name.clone(), found).is_some() {
            return Err(damaged(format!(
                "has moments of `{name}`, and so does another file; continue from an earlier checkpoint: delete this \
                 one"
            )));
        }
    }
    Ok(())
}

/// Gives `moments`, read from `directory`, to `trainer`. If there are none, the trainer keeps its own moments.
fn import_moments<B: AutodiffBackend, C: ModelConfig>(
    trainer: &mut Trainer<B, C>,
    directory: &Path,
    moments: BTreeMap<String, Moments>,
) -> Result<(), Error> {
    if moments.is_empty() {
        return Ok(());
    }
    let (device, model) = (trainer.device().clone(), trainer.model().clone());
    let imported = trainer.optimizer.import(&model, moments, &device);
    imported.map_err(|source| Error::Import {
        path: directory.join(OPTIMIZER),
        source,
    })
}
