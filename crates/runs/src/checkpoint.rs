//! The files of checkpoints, and the checkpoint directories of a run.
//!
//! A checkpoint is a directory with the model, the average of its weights (if the run keeps one) and the optimizer as
//! safetensors, the progress as JSON, and a manifest with their checksums. If several processes share the optimizer's
//! moments, each process writes its own file. A checkpoint of an imported or merged model has only the weights and the
//! manifest. A checkpoint is written under a temporary name, with the manifest last, then synced to disk and renamed. A
//! reader takes the newest checkpoint in which all files that it needs match the manifest. The reader reports newer
//! checkpoints that it passed over, and damaged files that it does not need.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::{TensorData, backend::Backend};
use residual_zoo_core::params;

use crate::manifest::{self, MANIFEST};
pub use crate::tensor_file::{TensorFile, read_finite_tensors, read_tensors, write_tensors};
use crate::{Error, SavedWeights, disk};

/// The weights, by parameter name.
pub const MODEL: &str = "model.safetensors";
/// The average of the weights, by parameter name, if the run keeps one.
pub const EMA: &str = "ema.safetensors";
/// The moments of the optimizer, by parameter name.
pub const OPTIMIZER: &str = "optimizer.safetensors";
/// The progress of the run.
pub const STATE: &str = "state.json";

/// Returns the names of all files of a checkpoint except the manifest, sorted. The moments are in `shards` files. If
/// `shards` is 0, the checkpoint has only the weights. `has_ema` tells whether the checkpoint has an average of the
/// weights.
pub fn files(shards: usize, has_ema: bool) -> Vec<String> {
    if shards == 0 {
        return vec![MODEL.to_owned()];
    }
    let weights = has_ema.then_some(EMA).into_iter().chain([MODEL]);
    let moments = (0..shards).map(|rank| optimizer_file(rank, shards));
    let all = weights.map(str::to_owned).chain(moments);
    all.chain([STATE.to_owned()]).collect()
}

/// Returns the name of the file with the moments of process `rank` among `shards` processes: [`OPTIMIZER`] for a single
/// process, otherwise a name such as `optimizer-00001-of-00004.safetensors`.
pub fn optimizer_file(rank: usize, shards: usize) -> String {
    match shards {
        1 => OPTIMIZER.to_owned(),
        _ => format!("optimizer-{:05}-of-{shards:05}.safetensors", rank + 1),
    }
}

/// Returns the files with the optimizer's moments in a checkpoint; none if it has no moments.
///
/// # Errors
///
/// Returns an error if the manifest is damaged, and I/O errors.
pub fn optimizer_files(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    // Only the files in the manifest have been verified.
    let shards = match directory.join(MANIFEST).exists() {
        true => shards(directory)?,
        false => 1,
    };
    let files = (0..shards).map(|rank| directory.join(optimizer_file(rank, shards)));
    Ok(files.filter(|path| shards > 1 || path.exists()).collect())
}

/// Returns the number of files with moments, according to the manifest.
fn shards(directory: &Path) -> Result<usize, Error> {
    let names = manifest::names(directory)?.into_iter();
    Ok(names.filter(|name| name.starts_with("optimizer")).count())
}

/// Writes a checkpoint that has only weights, by parameter name.
///
/// # Errors
///
/// Returns an error if `directory` exists and is not empty, or if a tensor has a type that cannot be saved. Also
/// returns I/O errors.
pub fn write_weights(
    directory: &Path,
    weights: &BTreeMap<String, TensorData>,
) -> Result<(), Error> {
    let aside = aside(directory);
    disk::remove_directory(&aside)?;
    disk::create_directory(&aside)?;
    write_tensors(&aside.join(MODEL), weights, None)?;
    manifest::write(&aside, &files(0, false))?;
    disk::sync(&aside)?;
    disk::rename(&aside, directory)
}

/// The files of a checkpoint that a reader needs. A reader reports damage to other files, and continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// All files, to continue the run.
    All,
    /// The trained weights and the moments of the optimizer, to start another run.
    Start,
    /// These weights, to use the model.
    Weights(SavedWeights),
}

impl Needs {
    fn include(self, file: &str) -> bool {
        match self {
            Self::All => true,
            Self::Start => file == MODEL || file.starts_with("optimizer"),
            Self::Weights(weights) => file == weights.file_name(),
        }
    }
}

/// Checks a checkpoint against its manifest. Returns the errors of damaged files that are not needed.
pub(crate) fn verify(directory: &Path, needs: Needs) -> Result<Vec<Error>, Error> {
    let has_ema = manifest::names(directory)?.iter().any(|name| name == EMA);
    let files = files(shards(directory)?, has_ema);
    let verified = manifest::verify(directory, &files, |file| needs.include(file));
    verified.map_err(|error| match error {
        Error::Checkpoint { path, problem } if path.ends_with(EMA) && needs != Needs::All => {
            let problem = format!("{problem}; restore the average, or leave out `--weights ema`");
            Error::Checkpoint { path, problem }
        }
        error => error,
    })
}

/// File name extension of a checkpoint that is being written or deleted.
pub const PARTIAL: &str = "partial";

/// Returns the temporary path of the checkpoint `directory` while this process writes or deletes it. The name contains
/// the process id, because another process may have replaced this run.
pub fn aside(directory: &Path) -> PathBuf {
    directory.with_extension(format!("{}.{PARTIAL}", std::process::id()))
}

/// Whether the path is an unfinished checkpoint, such as `step-00000100.PROCESS.partial`.
fn is_partial(path: &Path) -> bool {
    let step_of = || {
        let name = path.file_name()?.to_str()?;
        let name = name.strip_prefix("step-")?.strip_suffix(PARTIAL)?;
        let (step, process) = name.strip_suffix('.')?.split_once('.')?;
        step.parse::<usize>().ok().zip(process.parse::<u32>().ok())
    };
    step_of().is_some()
}

/// Returns the directory of the checkpoint after `step` steps.
pub fn directory(run: &Path, step: usize) -> PathBuf {
    run.join(CHECKPOINTS).join(format!("step-{step:08}"))
}

/// Returns the number of steps after which the checkpoint in `directory` was written, according to its name.
pub fn step_of(directory: &Path) -> Option<usize> {
    let name = directory.file_name()?.to_str()?;
    name.strip_prefix("step-")?.parse().ok()
}

/// The folder of the checkpoints in a run directory.
pub const CHECKPOINTS: &str = "checkpoints";

/// The newest good checkpoint of a run, found by [`newest`].
#[derive(Debug)]
pub struct Newest {
    /// The directory of the checkpoint.
    pub path: PathBuf,
    /// The newer checkpoints that were passed over, newest first, and the reasons.
    pub passed_over: Vec<(PathBuf, Error)>,
    /// The errors of the checkpoint's damaged files, none of which the reader needs.
    pub damaged: Vec<Error>,
}

impl Newest {
    /// Returns notes for the user about the newer checkpoints and the damaged files.
    pub fn notes(&self) -> Vec<String> {
        let passed_over = self.passed_over.iter();
        let passed_over = passed_over.map(|(_, error)| format!("passed over: {error}"));
        let damaged = self.damaged.iter();
        let damaged = damaged.map(|error| match error {
            Error::Checkpoint { path, .. } if path.ends_with(EMA) => {
                format!(
                    "{error}; the average of the weights is lost, but the trained weights are good"
                )
            }
            error => format!("{error}; the file that is read is good"),
        });
        passed_over.chain(damaged).collect()
    }
}

/// Finds the newest checkpoint of a run that matches its manifest.
///
/// # Errors
///
/// Returns an error if there is no such checkpoint, and I/O errors.
pub fn newest(run: &Path) -> Result<Newest, Error> {
    newest_for(run, Needs::All)
}

/// Like [`newest`], but only the needed files must match the manifest.
///
/// # Errors
///
/// Returns the errors of [`newest`].
pub fn newest_for(run: &Path, needs: Needs) -> Result<Newest, Error> {
    let none = |problem: &str| Error::NoRun {
        path: run.into(),
        problem: problem.into(),
    };
    match find(run, needs)? {
        Some(newest) => Ok(newest),
        None if run.join(CHECKPOINTS).is_dir() => Err(none("has no complete checkpoint yet")),
        None => Err(none("has no checkpoints; give a run directory")),
    }
}

/// Like [`newest`], but returns `None` if no checkpoint was ever completed.
///
/// # Errors
///
/// Returns an error if all checkpoints are damaged, and I/O errors.
pub fn newest_if_any(run: &Path) -> Result<Option<Newest>, Error> {
    find(run, Needs::All)
}

fn find(run: &Path, needs: Needs) -> Result<Option<Newest>, Error> {
    let mut paths = all(run)?;
    let passed_over = loop {
        let mut passed_over = Vec::new();
        for path in &paths {
            match verify(path, needs) {
                Ok(damaged) => {
                    return Ok(Some(Newest {
                        path: path.clone(),
                        passed_over,
                        damaged,
                    }));
                }
                Err(error @ Error::Checkpoint { .. }) => passed_over.push((path.clone(), error)),
                // A checkpoint that cannot be read now may still be good, so it is not passed over.
                Err(error) => return Err(error),
            }
        }
        // A training process may have replaced a checkpoint in the meantime.
        let now = all(run)?;
        if now == paths {
            break passed_over;
        }
        paths = now;
    };
    let Some((path, first)) = passed_over.into_iter().next() else {
        return Ok(None);
    };
    let remedy = match needs {
        Needs::Weights(SavedWeights::Ema) => String::new(),
        Needs::All if verify(&path, Needs::Start).is_ok() => format!(
            "; restore a good one, or start another run from its trained weights: `--init-from {}`",
            run.display()
        ),
        _ => "; restore a good one, or start again in another directory".into(),
    };
    Err(Error::NoRun {
        path: run.into(),
        problem: format!("has no good checkpoint: {first}{remedy}"),
    })
}

/// Returns the BLAKE3 hash of the trained weights in the checkpoint `directory`, according to its manifest.
///
/// # Errors
///
/// Returns the errors of [`manifest::blake3_of`].
pub fn weights_blake3(directory: &Path) -> Result<String, Error> {
    manifest::blake3_of(directory, MODEL)
}

/// Renames a damaged checkpoint, so that it is not used again but can still be examined. Returns its
/// new path.
///
/// # Errors
///
/// Returns I/O errors.
pub fn set_aside(path: &Path) -> Result<PathBuf, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = free(|n| path.with_file_name(format!("{DAMAGED}{name}{n}")));
    disk::rename(path, &aside)?;
    Ok(aside)
}

/// Renames the directory, link or other file at `path`, so that it is kept when the run writes its own content to
/// `path`. Returns the new path.
///
/// # Errors
///
/// Returns I/O errors.
pub fn move_away(path: &Path) -> Result<PathBuf, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // `--force` deletes entries with the name of a checkpoint, but not entries with this name.
    let moved = free(|n| path.with_file_name(format!("moved-{name}{n}")));
    disk::rename(path, &moved)?;
    Ok(moved)
}

/// Returns the first unused path among `path("")`, `path(".2")`, `path(".3")` and so on.
pub(crate) fn free(path: impl Fn(&str) -> PathBuf) -> PathBuf {
    let later = (2_usize..).map(|n| format!(".{n}"));
    let mut paths = std::iter::once(String::new())
        .chain(later)
        .map(|n| path(&n));
    let is_free = |path: &PathBuf| fs::symlink_metadata(path).is_err();
    paths
        .find(is_free)
        .unwrap_or_else(|| unreachable!("numbers have no end"))
}

/// Deletes the remains of interrupted checkpoint writes. Ignores errors, because the remains only take space.
pub fn clean(run: &Path) {
    let directory = run.join(CHECKPOINTS);
    if disk::refuse_linked_directory(&directory).is_err() {
        return;
    }
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    for path in paths.filter(|path| is_partial(path)) {
        disk::remove_directory(&path).ok();
    }
}

/// Finds a file or directory that no run writes, in the checkpoint folder of a run or in one of the run's checkpoints.
pub(crate) fn foreign(run: &Path) -> Option<PathBuf> {
    let paths = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten();
        entries.filter_map(Result::ok).map(|entry| entry.path())
    };
    let is_checkpoint = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let of_damaged = |name: &str| {
            let name = name.strip_prefix(DAMAGED)?;
            step_of(Path::new(name.split('.').next()?))
        };
        step_of(path).is_some() || of_damaged(&name).is_some() || is_partial(path)
    };
    let is_file = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        let is_shard = || {
            let name = name.to_str()?.strip_prefix("optimizer-")?;
            let (rank, shards) = name.strip_suffix(".safetensors")?.split_once("-of-")?;
            rank.parse::<usize>().ok().zip(shards.parse::<usize>().ok())
        };
        let mut names = [EMA, MODEL, OPTIMIZER, STATE, MANIFEST].into_iter();
        names.any(|own| name == own) || is_shard().is_some()
    };
    paths(&run.join(CHECKPOINTS)).find_map(|path| match is_checkpoint(&path) {
        true => paths(&path).find(|path| !is_file(path)),
        false => Some(path),
    })
}

/// The name prefix of a damaged checkpoint that was set aside.
const DAMAGED: &str = "damaged-";

/// Whether the folder of the checkpoints has nothing but the checkpoint before the first step and unfinished
/// checkpoints. The folder may be empty, but must exist.
pub fn only_the_first(run: &Path) -> bool {
    let first = directory(run, 0);
    let entries = fs::read_dir(run.join(CHECKPOINTS)).map(|entries| {
        let mut paths = entries.filter_map(Result::ok).map(|entry| entry.path());
        paths.all(|path| path == first || is_partial(&path))
    });
    entries.unwrap_or(false)
}

/// Returns all checkpoints of a run, good or damaged, newest first. Links do not count, because their targets may
/// belong to another run, whose checkpoints must not be deleted.
fn all(run: &Path) -> Result<Vec<PathBuf>, Error> {
    let directory = run.join(CHECKPOINTS);
    disk::refuse_linked_directory(&directory)?;
    let there = fs::symlink_metadata(&directory).is_ok();
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !there => return Ok(vec![]),
        entries => entries.map_err(Error::io("read", &directory))?,
    };
    let entries = entries.filter_map(Result::ok);
    let of_step = entries.filter(|entry| step_of(&entry.path()).is_some());
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let (own, others): (Vec<_>, Vec<_>) = of_step.partition(is_directory);
    if let (true, Some(link)) = (own.is_empty(), others.first()) {
        disk::refuse_linked_directory(&link.path())?;
    }
    let mut all: Vec<_> = own.iter().map(fs::DirEntry::path).collect();
    all.sort_by_key(|path| std::cmp::Reverse(step_of(path)));
    Ok(all)
}

/// Returns the steps of the checkpoints of a run, good or damaged, in order.
pub(crate) fn steps(run: &Path) -> Result<Vec<usize>, Error> {
    let all = all(run)?;
    Ok(all.iter().rev().filter_map(|path| step_of(path)).collect())
}

/// Deletes the checkpoints of a run up to `saved`, except `best` and the newest `keep` (at least 1). Returns an error
/// for each checkpoint that could not be deleted. Such checkpoints only take space.
///
/// `saved` is the last checkpoint that the run has written. A directory that is named like a checkpoint can be newer
/// than `saved` or have no manifest. Such directories do not count and are not deleted.
///
/// Before a checkpoint is deleted, it gets the name of an unfinished checkpoint. If the process is killed meanwhile,
/// the remains are deleted when the run continues.
pub fn prune(run: &Path, keep: usize, saved: &Path, best: Option<&Path>) -> Vec<Error> {
    let all = match all(run) {
        Ok(all) => all,
        Err(error) => return vec![error],
    };
    let is_own = |path: &PathBuf| step_of(path) <= step_of(saved) && path.join(MANIFEST).is_file();
    let old = all.into_iter().filter(is_own).skip(keep.max(1));
    let old = old.filter(|path| Some(path.as_path()) != best);
    let delete = |path: PathBuf| {
        let aside = aside(&path);
        let deleted = disk::remove_directory(&aside).and_then(|()| disk::rename(&path, &aside));
        deleted.and_then(|()| disk::remove_directory(&aside)).err()
    };
    // Checkpoints that could not be deleted last time.
    let own = format!(".{}.{PARTIAL}", std::process::id());
    let entries = fs::read_dir(run.join(CHECKPOINTS)).into_iter().flatten();
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let left = paths.filter(|path| is_partial(path) && path.to_string_lossy().ends_with(&own));
    let mut errors: Vec<Error> = left
        .filter_map(|path| disk::remove_directory(&path).err())
        .collect();
    errors.extend(old.filter_map(delete));
    errors
}

/// Reads the parameters with a single element from a checkpoint, by name.
///
/// # Errors
///
/// Returns an error if the file is missing or damaged.
pub fn read_scalars(directory: &Path) -> Result<BTreeMap<String, f64>, Error> {
    let file = TensorFile::open(&directory.join(MODEL))?;
    let scalars = file.tensors(|_, shape| shape.iter().product::<usize>() == 1);
    let value = |(name, data): (String, TensorData)| Some((name, data.iter::<f64>().next()?));
    let scalars = scalars.filter_map(|read| read.map(value).transpose());
    scalars.collect()
}

/// Loads the weights of a checkpoint into `model`.
///
/// # Errors
///
/// Returns an error if the file is missing, is damaged, has a number that is not finite, or belongs to another model.
pub fn load_model<B: Backend, M: Module<B>>(model: M, directory: &Path) -> Result<M, Error> {
    load_file(model, &directory.join(MODEL))
}

/// Loads the weights in a file of a checkpoint, [`MODEL`] or [`EMA`], into `model`.
///
/// # Errors
///
/// Returns the errors of [`load_model`].
pub fn load_file<B: Backend, M: Module<B>>(model: M, path: &Path) -> Result<M, Error> {
    let (tensors, _) = read_finite_tensors(path)?;
    let imported = params::import::<B, M>(model, tensors);
    imported.map_err(|source| Error::Import {
        path: path.into(),
        source,
    })
}
