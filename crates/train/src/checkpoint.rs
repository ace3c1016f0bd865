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
use residual_zoo_core::{ModelConfig, params};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::manifest::{self, MANIFEST, sync};
use crate::optimizer::Moments;
use crate::{Error, Trainer};

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
/// All files of a checkpoint but the manifest, in the order of their names.
const FILES: [&str; 3] = [MODEL, OPTIMIZER, STATE];

/// Writes a checkpoint of `trainer` to `directory`, which appears only once it is complete.
///
/// # Errors
///
/// When the disk refuses.
pub fn save<B, C>(trainer: &Trainer<B, C>, directory: &Path) -> Result<(), Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    let aside = directory.with_extension("partial");
    if aside.exists() {
        fs::remove_dir_all(&aside).map_err(Error::io("delete", &aside))?;
    }
    let written = write_files(trainer, &aside);
    if let Err(error) = written {
        // What could not be completed only takes space.
        fs::remove_dir_all(&aside).ok();
        return Err(error);
    }
    fs::rename(&aside, directory).map_err(Error::io("write", directory))?;
    directory.parent().map_or(Ok(()), sync)
}

fn write_files<B, C>(trainer: &Trainer<B, C>, directory: &Path) -> Result<(), Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    fs::create_dir_all(directory).map_err(Error::io("create", directory))?;
    let model = params::export::<B, _>(trainer.model());
    write_tensors(&directory.join(MODEL), &model, None)?;

    let mut moments = BTreeMap::new();
    let mut steps = BTreeMap::new();
    for (name, state) in trainer.optimizer.export(trainer.model()) {
        moments.insert(format!("{name}.first"), state.first);
        moments.insert(format!("{name}.second"), state.second);
        steps.insert(name, state.steps);
    }
    let steps = serde_json::to_string(&steps).unwrap_or_else(|e| unreachable!("{e}"));
    write_tensors(&directory.join(OPTIMIZER), &moments, Some(("steps", steps)))?;

    let state = serde_json::to_vec_pretty(&trainer.progress);
    let state = state.unwrap_or_else(|e| unreachable!("{e}"));
    let path = directory.join(STATE);
    fs::write(&path, state).map_err(Error::io("write", &path))?;
    sync(&path)?;
    manifest::write(directory, &FILES)?;
    sync(directory)
}

/// Restores model, optimizer and progress of `trainer` from a checkpoint of the same config.
///
/// # Errors
///
/// A file that is missing, damaged or of another model.
pub fn load<B, C>(trainer: &mut Trainer<B, C>, directory: &Path) -> Result<(), Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    let path = directory.join(STATE);
    let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let progress = serde_json::from_str(&text).map_err(|e| Error::Checkpoint {
        path: path.clone(),
        problem: e.to_string(),
    })?;
    load_weights(trainer, directory)?;
    trainer.progress = progress;
    Ok(())
}

/// Takes over the weights and the optimizer's moments of a checkpoint, but not its progress: the
/// schedule starts anew.
///
/// The checkpoint may be of a smaller model where the config says how parameters grow
/// ([`ModelConfig::growth`]). New rows have moments of zero. Without a file of moments all start
/// anew.
///
/// Numbers that are not trained, such as τ of a TokenFormer, are the checkpoint's, also where the
/// config says otherwise: the names of such are returned.
///
/// # Errors
///
/// A file that is missing, damaged or of another model.
pub fn load_weights<B, C>(
    trainer: &mut Trainer<B, C>,
    directory: &Path,
) -> Result<Vec<String>, Error>
where
    B: AutodiffBackend,
    C: ModelConfig,
    C::Model<B>: AutodiffModule<B, InnerModule = C::Model<B::InnerBackend>>,
{
    let path = directory.join(MODEL);
    let (tensors, _) = read_tensors(&path)?;
    let frozen = params::export_some::<B, _>(trainer.model(), |info| !info.trainable);
    let differs = |(name, ours): &(String, TensorData)| {
        let theirs = tensors.get(name);
        theirs.is_some_and(|theirs| theirs.iter::<f32>().ne(ours.iter::<f32>()))
    };
    let kept = frozen.into_iter().filter(differs).map(|(name, _)| name);
    let kept = kept.collect();
    let growth = {
        let model = trainer.config.model.clone();
        move |name: &str| model.growth(name)
    };
    let model = params::import_grown::<B, _>(trainer.model().clone(), tensors, &growth)
        .map_err(|source| Error::Import { path, source })?;
    let optimizer = directory.join(OPTIMIZER);
    if !optimizer.exists() {
        trainer.replace_model(model);
        return Ok(kept);
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
    let mut state = BTreeMap::new();
    for (name, steps) in steps {
        let mut take = |moment: &str| {
            let key = format!("{name}.{moment}");
            tensors
                .remove(&key)
                .ok_or_else(|| damaged(format!("`{key}` is missing")))
        };
        let (first, second) = (take("first")?, take("second")?);
        state.insert(
            name,
            Moments {
                first,
                second,
                steps,
            },
        );
    }
    let device = trainer.device().clone();
    let imported = trainer.optimizer.import(&model, state, growth, &device);
    imported.map_err(|source| Error::Import {
        path: optimizer,
        source,
    })?;
    trainer.replace_model(model);
    Ok(kept)
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
    fs::write(path, bytes).map_err(Error::io("write", path))?;
    sync(path)
}

/// Tensors and metadata of a file.
type Content = (BTreeMap<String, TensorData>, BTreeMap<String, String>);

fn read_tensors(path: &Path) -> Result<Content, Error> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let damaged = |problem: String| Error::Checkpoint {
        path: path.into(),
        problem,
    };
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

/// The directory of the checkpoint after `step` steps.
pub fn directory(run: &Path, step: usize) -> PathBuf {
    run.join(CHECKPOINTS).join(format!("step-{step:08}"))
}

const CHECKPOINTS: &str = "checkpoints";

/// The newest good checkpoint of a run.
#[derive(Debug)]
pub struct Newest {
    /// Its directory.
    pub path: PathBuf,
    /// Why newer ones were passed over, newest first.
    pub passed_over: Vec<Error>,
}

/// Finds the newest checkpoint of a run whose files are as they were written.
///
/// # Errors
///
/// When there is none.
pub fn newest(run: &Path) -> Result<Newest, Error> {
    let none = |problem: String| Error::NoRun {
        path: run.into(),
        problem,
    };
    let all = all(run).map_err(|_| none("has no checkpoints; is it a run directory?".into()))?;
    let mut passed_over = Vec::new();
    for path in all {
        match manifest::verify(&path, &FILES) {
            Ok(()) => return Ok(Newest { path, passed_over }),
            Err(error) => passed_over.push(error),
        }
    }
    Err(none(match passed_over.into_iter().next() {
        Some(first) => format!("has no good checkpoint: {first}"),
        None => "has no complete checkpoint yet".into(),
    }))
}

/// The checkpoints of a run, newest first, good or not.
fn all(run: &Path) -> std::io::Result<Vec<PathBuf>> {
    let step = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix("step-")?.parse::<usize>().ok()
    };
    let entries = fs::read_dir(run.join(CHECKPOINTS))?.filter_map(Result::ok);
    let mut all: Vec<_> = entries.map(|entry| entry.path()).collect();
    all.retain(|path| step(path).is_some());
    all.sort_by_key(|path| std::cmp::Reverse(step(path)));
    Ok(all)
}

/// Deletes the checkpoints of a run but for the newest `keep`, which is at least 1, and `best`.
/// Returns what could not be deleted, which loses nothing but space.
pub fn prune(run: &Path, keep: usize, best: Option<&Path>) -> Vec<Error> {
    let old = all(run).unwrap_or_default().into_iter().skip(keep.max(1));
    let old = old.filter(|path| Some(path.as_path()) != best);
    let delete = |path: PathBuf| {
        // Without its manifest it is no checkpoint any more, wherever the deletion stops.
        let manifest = path.join(MANIFEST);
        let deleted = match fs::remove_file(&manifest) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => fs::remove_dir_all(&path),
        };
        deleted.map_err(Error::io("delete", &path)).err()
    };
    old.filter_map(delete).collect()
}
