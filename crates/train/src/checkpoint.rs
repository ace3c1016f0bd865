//! Checkpoints: a directory with the model and the optimizer as safetensors, the progress as JSON,
//! and a manifest of these with their checksums.
//!
//! A checkpoint is written aside, waited for, and renamed; its manifest is written last. Readers
//! take the newest whose manifest holds and say which they passed over.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::module::AutodiffModule;
use burn::tensor::{DType, TensorData, backend::AutodiffBackend};
use residual_zoo_core::{ModelConfig, Tensors, params};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use crate::health::{Interval, RecentLosses};
use crate::manifest::{self, MANIFEST};
use crate::optimizer::Moments;
use crate::{Error, Progress, Trainer, disk};

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
/// All files of a checkpoint but the manifest, in the order of their names.
const FILES: [&str; 3] = [MODEL, OPTIMIZER, STATE];

/// What a run has logged at a checkpoint, and what it has measured since.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// What no row of the metrics tells yet.
    pub interval: Interval,
    /// The losses by which a spike is told.
    pub recent: RecentLosses,
    /// Bytes of the metrics.
    pub metrics: u64,
    /// Bytes of the samples.
    pub samples: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    progress: Progress,
    journal: Journal,
}

/// Writes a checkpoint of `trainer` to `directory`, which appears only once it is complete.
///
/// # Errors
///
/// When `directory` is there already, or the disk refuses.
pub fn save<B, C>(trainer: &Trainer<B, C>, journal: &Journal, directory: &Path) -> Result<(), Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    save_if(trainer, journal, directory, || Ok(()))
}

/// As [`save`], but asks `check` once more when all is written, just before it appears.
pub(crate) fn save_if<B, C>(
    trainer: &Trainer<B, C>,
    journal: &Journal,
    directory: &Path,
    check: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    // The name is of this process, which may not know yet that its run was replaced by another's.
    let aside = directory.with_extension(format!("{}.{PARTIAL}", std::process::id()));
    disk::remove_directory(&aside)?;
    let written = write_files(trainer, journal, &aside).and_then(|()| {
        check()?;
        // Renaming would replace an empty directory without a word.
        match fs::symlink_metadata(directory) {
            Err(_) => disk::rename(&aside, directory),
            Ok(_) => Err(Error::Checkpoint {
                path: directory.into(),
                problem: "is there already; move it away".into(),
            }),
        }
    });
    // What could not be completed only takes space.
    written.inspect_err(|_| drop(disk::remove_directory(&aside)))
}

fn write_files<B, C>(
    trainer: &Trainer<B, C>,
    journal: &Journal,
    directory: &Path,
) -> Result<(), Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    disk::create_directory(directory)?;
    // One copy after the other: each is as large as the model, or twice that.
    let model = params::export::<B, _>(trainer.model());
    write_tensors(&directory.join(MODEL), &model, None)?;
    drop(model);

    let mut moments = BTreeMap::new();
    let mut steps = BTreeMap::new();
    for (name, state) in trainer.optimizer.export(trainer.model()) {
        moments.insert(format!("{name}.first"), state.first);
        moments.insert(format!("{name}.second"), state.second);
        steps.insert(name, state.steps);
    }
    let steps = serde_json::to_string(&steps).unwrap_or_else(|e| unreachable!("{e}"));
    write_tensors(&directory.join(OPTIMIZER), &moments, Some(("steps", steps)))?;

    let state = State {
        progress: trainer.progress,
        journal: journal.clone(),
    };
    let state = serde_json::to_vec_pretty(&state);
    let state = state.unwrap_or_else(|e| unreachable!("{e}"));
    disk::write(&directory.join(STATE), &state)?;
    manifest::write(directory, &FILES)?;
    disk::sync(directory)
}

/// Restores model, optimizer and progress of `trainer` from a checkpoint of the same config.
/// Returns the rest of what [`save`] was given, and the names that [`load_parameters`] returns.
///
/// # Errors
///
/// A file that is missing, damaged or of another model.
pub fn load<B, C>(
    trainer: &mut Trainer<B, C>,
    directory: &Path,
) -> Result<(Journal, Vec<String>), Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    let path = directory.join(STATE);
    let text = residual_zoo_data::read_file(&path)?;
    let state: State = serde_json::from_slice(&text).map_err(|e| Error::Checkpoint {
        path: path.clone(),
        problem: e.to_string(),
    })?;
    let before = trainer.model().clone();
    let kept = take_over(trainer, directory, |weights, _| Ok(weights))?;
    let moments = read_moments(directory)?;
    import_moments(trainer, directory, moments).inspect_err(|_| trainer.replace_model(before))?;
    trainer.progress = state.progress;
    Ok((state.journal, kept))
}

/// Takes over the weights and the optimizer's moments of a checkpoint, but not its progress: the
/// schedule starts anew.
///
/// The checkpoint may belong to a `smaller` model that this one grows from ([`ModelConfig::grow`]).
/// New rows have moments of zero. Without a file of moments, all moments start anew.
///
/// # Errors
///
/// A file that is missing, damaged or of another model, and moments that do not grow with their
/// weights.
pub fn load_weights<B, C>(
    trainer: &mut Trainer<B, C>,
    smaller: &C,
    directory: &Path,
) -> Result<Vec<String>, Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    let before = trainer.model().clone();
    let kept = load_parameters(trainer, smaller, directory)?;
    let mut moments = read_moments(directory)?;
    for info in params::list::<B, _>(trainer.model()) {
        if let Some(Moments { first, second, .. }) = moments.get_mut(&info.name) {
            params::pad_rows(first, &info.shape, None);
            params::pad_rows(second, &info.shape, None);
        }
    }
    import_moments(trainer, directory, moments).inspect_err(|_| trainer.replace_model(before))?;
    Ok(kept)
}

/// Takes over the weights of a checkpoint as [`load_weights`] does and leaves the moments as they are.
///
/// Numbers that are not trained, such as τ of a TokenFormer, keep the value of the checkpoint even if
/// the config gives another one. Their names are returned.
///
/// # Errors
///
/// A file that is missing, damaged or of another model.
pub fn load_parameters<B, C>(
    trainer: &mut Trainer<B, C>,
    smaller: &C,
    directory: &Path,
) -> Result<Vec<String>, Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    let model = trainer.config.model.clone();
    take_over(trainer, directory, |weights, fresh| {
        Ok(model.grow(smaller, weights, fresh)?)
    })
}

/// Puts what `grow` makes of the weights of a checkpoint and of the fresh weights into `trainer`.
/// Returns the names of [`load_parameters`].
fn take_over<B, C>(
    trainer: &mut Trainer<B, C>,
    directory: &Path,
    grow: impl FnOnce(Tensors, &Tensors) -> Result<Tensors, Error>,
) -> Result<Vec<String>, Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    let path = directory.join(MODEL);
    let (weights, _) = read_tensors(&path)?;
    let fresh = params::export::<B, _>(trainer.model());
    let differs = |name: &String| match (weights.get(name), fresh.get(name)) {
        (Some(theirs), Some(ours)) => theirs.iter::<f32>().ne(ours.iter::<f32>()),
        _ => false,
    };
    let frozen = params::list::<B, _>(trainer.model()).into_iter();
    let frozen = frozen.filter(|info| !info.trainable).map(|info| info.name);
    let kept = frozen.filter(differs).collect();
    let weights = grow(weights, &fresh)?;
    let model = params::import::<B, _>(trainer.model().clone(), weights);
    trainer.replace_model(model.map_err(|source| Error::Import { path, source })?);
    Ok(kept)
}

/// The moments of a checkpoint by parameter name; none without a file of moments.
fn read_moments(directory: &Path) -> Result<BTreeMap<String, Moments>, Error> {
    let optimizer = directory.join(OPTIMIZER);
    if !optimizer.exists() {
        return Ok(BTreeMap::new());
    }
    let (mut tensors, metadata) = read_tensors(&optimizer)?;
    let damaged = |problem: String| Error::Checkpoint {
        path: optimizer.clone(),
        problem,
    };
    let steps = metadata
        .get("steps")
        .ok_or_else(|| damaged("has no step counts".into()))?;
    let steps: BTreeMap<String, usize> =
        serde_json::from_str(steps).map_err(|e| damaged(format!("step counts: {e}")))?;
    let mut moments = BTreeMap::new();
    for (name, steps) in steps {
        let mut take = |moment: &str| {
            let key = format!("{name}.{moment}");
            tensors
                .remove(&key)
                .ok_or_else(|| damaged(format!("`{key}` is missing")))
        };
        let (first, second) = (take("first")?, take("second")?);
        moments.insert(
            name,
            Moments {
                first,
                second,
                steps,
            },
        );
    }
    Ok(moments)
}

/// Puts `moments`, which were read from `directory`, into `trainer`. Without any, those of the trainer
/// stay.
fn import_moments<B, C>(
    trainer: &mut Trainer<B, C>,
    directory: &Path,
    moments: BTreeMap<String, Moments>,
) -> Result<(), Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
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

/// The parameters of a checkpoint that have one element, by name.
///
/// # Errors
///
/// A file that is missing or damaged.
pub fn read_scalars(directory: &Path) -> Result<BTreeMap<String, f64>, Error> {
    let (tensors, _) = read_tensors(&directory.join(MODEL))?;
    let scalars = tensors
        .into_iter()
        .filter(|(_, data)| data.num_elements() == 1);
    let value = |(name, data): (String, TensorData)| Some((name, data.iter::<f64>().next()?));
    Ok(scalars.filter_map(value).collect())
}

/// `model` with the weights of a checkpoint.
///
/// # Errors
///
/// A file that is missing, damaged or of another model.
pub fn load_model<B, M>(model: M, directory: &Path) -> Result<M, Error>
where
    B: burn::tensor::backend::Backend,
    M: burn::module::Module<B>,
{
    let path = directory.join(MODEL);
    let (tensors, _) = read_tensors(&path)?;
    params::import::<B, M>(model, tensors).map_err(|source| Error::Import { path, source })
}

fn write_tensors(
    path: &Path,
    tensors: &BTreeMap<String, TensorData>,
    metadata: Option<(&str, String)>,
) -> Result<(), Error> {
    let invalid = |problem: String| Error::Checkpoint {
        path: path.into(),
        problem,
    };
    let views: Result<Vec<_>, Error> = tensors
        .iter()
        .map(|(name, data)| {
            let dtype = match data.dtype {
                DType::F64 => Dtype::F64,
                DType::F32 => Dtype::F32,
                DType::F16 => Dtype::F16,
                DType::BF16 => Dtype::BF16,
                other => return Err(invalid(format!("`{name}` is {other:?}"))),
            };
            let view = TensorView::new(dtype, data.shape.to_vec(), data.as_bytes());
            Ok((name, view.map_err(|e| invalid(e.to_string()))?))
        })
        .collect();
    let metadata = metadata.map(|(key, value)| [(key.to_string(), value)].into());
    let bytes = safetensors::serialize(views?, metadata).map_err(|e| invalid(e.to_string()))?;
    disk::write(path, &bytes)
}

/// Bytes of a safetensors header that any file may have, some hundred for each tensor; parsed, it
/// takes many times that. A larger one must be a small part of its file.
const MOST_HEADER: u64 = 1 << 21;
const HEADER_SHARE: u64 = 32;

/// Tensors and metadata of a file.
type Content = (BTreeMap<String, TensorData>, BTreeMap<String, String>);

fn read_tensors(path: &Path) -> Result<Content, Error> {
    let bytes = residual_zoo_data::read_file(path)?;
    let damaged = |problem: String| Error::Checkpoint {
        path: path.into(),
        problem,
    };
    let header = bytes.first_chunk().copied().map(u64::from_le_bytes);
    let most = MOST_HEADER.max(bytes.len() as u64 / HEADER_SHARE);
    if header.is_some_and(|length| length > most) {
        let problem = format!("is no checkpoint: its header has more than {most} bytes");
        return Err(damaged(problem));
    }
    let (_, header) =
        SafeTensors::read_metadata(&bytes).map_err(|e| damaged(format!("is damaged: {e}")))?;
    let metadata = header.metadata().iter().flatten();
    let metadata = metadata
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(format!("is damaged: {e}")))?;
    let tensors = file.iter().map(|(name, view)| {
        let dtype = match view.dtype() {
            Dtype::F64 => DType::F64,
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            other => return Err(damaged(format!("`{name}` is {other:?}, no float"))),
        };
        let shape = view.shape().to_vec();
        Ok((
            name.to_string(),
            TensorData::from_bytes_vec(view.data().to_vec(), shape, dtype),
        ))
    });
    Ok((tensors.collect::<Result<_, Error>>()?, metadata))
}

/// Of the name of a checkpoint that is being written.
const PARTIAL: &str = "partial";

fn is_partial(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == PARTIAL)
}

/// The directory of the checkpoint after `step` steps.
pub fn directory(run: &Path, step: usize) -> PathBuf {
    run.join(CHECKPOINTS).join(format!("step-{step:08}"))
}

pub(crate) const CHECKPOINTS: &str = "checkpoints";

/// The newest good checkpoint of a run.
#[derive(Debug)]
pub struct Newest {
    /// Its directory.
    pub path: PathBuf,
    /// The newer ones, newest first, and why they were passed over.
    pub passed_over: Vec<(PathBuf, Error)>,
}

/// Finds the newest checkpoint of a run whose files are as they were written.
///
/// # Errors
///
/// When there is none.
pub fn newest(run: &Path) -> Result<Newest, Error> {
    let none = |problem: &str| Error::NoRun {
        path: run.into(),
        problem: problem.into(),
    };
    match newest_if_any(run)? {
        Some(newest) => Ok(newest),
        None if run.join(CHECKPOINTS).is_dir() => Err(none("has no complete checkpoint yet")),
        None => Err(none("has no checkpoints; is it a run directory?")),
    }
}

/// As [`newest`]; `None` where no checkpoint was ever completed.
///
/// # Errors
///
/// When all are damaged.
pub(crate) fn newest_if_any(run: &Path) -> Result<Option<Newest>, Error> {
    let mut passed_over = Vec::new();
    for path in all(run)? {
        match manifest::verify(&path, &FILES) {
            Ok(()) => return Ok(Some(Newest { path, passed_over })),
            Err(error @ Error::Checkpoint { .. }) => passed_over.push((path, error)),
            // What cannot be read now may be good.
            Err(error) => return Err(error),
        }
    }
    match passed_over.into_iter().next() {
        Some((_, first)) => Err(Error::NoRun {
            path: run.into(),
            problem: format!(
                "has no good checkpoint: {first}; put a good one back, or begin again in another \
                 directory"
            ),
        }),
        None => Ok(None),
    }
}

/// The BLAKE3 hash of the weights in the checkpoint `directory`, as its manifest has it.
///
/// # Errors
///
/// As [`manifest::blake3_of`].
pub(crate) fn weights_blake3(directory: &Path) -> Result<String, Error> {
    manifest::blake3_of(directory, MODEL)
}

/// Renames a damaged checkpoint, so that it is in nobody's way and still there for who wants to
/// look at it. Returns its new name.
///
/// # Errors
///
/// When the disk refuses.
pub(crate) fn set_aside(path: &Path) -> Result<PathBuf, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!("damaged-{name}"));
    disk::remove_directory(&aside)?;
    disk::rename(path, &aside)?;
    Ok(aside)
}

/// Deletes what interrupted writes of checkpoints left behind. What cannot be deleted only takes
/// space.
pub(crate) fn clean(run: &Path) {
    let entries = fs::read_dir(run.join(CHECKPOINTS)).into_iter().flatten();
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    for path in paths.filter(|path| is_partial(path)) {
        disk::remove_directory(&path).ok();
    }
}

/// Whether a run has no checkpoint but the one before the first step.
pub(crate) fn only_the_first(run: &Path) -> bool {
    let first = directory(run, 0);
    let entries = fs::read_dir(run.join(CHECKPOINTS)).map(|entries| {
        let mut paths = entries.filter_map(Result::ok).map(|entry| entry.path());
        paths.all(|path| path == first || is_partial(&path))
    });
    entries.unwrap_or(false)
}

/// The checkpoints of a run, newest first, good or not. Links are none: what is deleted there would
/// be another run's.
fn all(run: &Path) -> Result<Vec<PathBuf>, Error> {
    let directory = run.join(CHECKPOINTS);
    let there = fs::symlink_metadata(&directory).is_ok();
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !there => return Ok(vec![]),
        entries => entries.map_err(Error::io("read", &directory))?,
    };
    let step = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix("step-")?.parse::<usize>().ok()
    };
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let entries = entries.filter_map(Result::ok).filter(is_directory);
    let mut all: Vec<_> = entries.map(|entry| entry.path()).collect();
    all.retain(|path| step(path).is_some());
    all.sort_by_key(|path| std::cmp::Reverse(step(path)));
    Ok(all)
}

/// Deletes the checkpoints of a run but for the newest `keep`, which is at least 1, and `best`.
/// Returns what could not be deleted, which loses nothing but space.
pub fn prune(run: &Path, keep: usize, best: Option<&Path>) -> Vec<Error> {
    let all = match all(run) {
        Ok(all) => all,
        Err(error) => return vec![error],
    };
    let old = all.into_iter().skip(keep.max(1));
    let old = old.filter(|path| Some(path.as_path()) != best);
    // Without its manifest it is no checkpoint any more, wherever the deletion stops.
    let delete = |path: PathBuf| {
        let deleted = disk::remove_file(&path.join(MANIFEST));
        deleted.and_then(|()| disk::remove_directory(&path)).err()
    };
    old.filter_map(delete).collect()
}
