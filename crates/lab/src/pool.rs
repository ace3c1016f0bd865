//! The pool of trained runs, shared by all experiments.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use residual_zoo_backend::BackendKind;
use residual_zoo_core::{ModelConfig, Precision};
use residual_zoo_data::{Corpus, DataConfig, hash_of_parts};
use residual_zoo_drive::usual_precision;
use residual_zoo_runs::{Error as RunError, RunConfig, run_dir};
use residual_zoo_train::FirstWeights;

use crate::{Options, PlannedRun};

/// The runs of all experiments. Runs with equal config, data and backend share one directory.
#[derive(Clone, Debug)]
pub struct Pool {
    directory: PathBuf,
    backend: String,
    /// The precision of runs whose config sets none.
    precision: Precision,
}

/// Fields that were added after version 2 of the pool, each with the value that has no effect. A field with this value
/// is omitted from the hash, so that earlier runs are still found.
const LATER: [&str; 13] = [
    "deterministic: false,",
    "ema: None,",
    "label_smoothing: 0.0,",
    "lora: None,",
    "mup: None,",
    "optimizer: AdamW,",
    r#"separator: "\n","#,
    "recompute: None,",
    "root_n: Multiply,",
    "shard_optimizer: false,",
    "start: Identity(-8.0),",
    "tensorboard: false,",
    "tokens: None,",
];

/// The place of a run in the pool.
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
    /// The directory of the run from whose weights this run starts, and how this run uses these weights.
    pub(crate) before: Option<(PathBuf, FirstWeights)>,
    /// The two runs that are merged into the run in `before`; `None` without a merge.
    pub(crate) merged: Option<[PathBuf; 2]>,
}

impl Place {
    /// Returns the name of the directory, which contains the hash of the run.
    pub(crate) fn name(&self) -> String {
        let name = self.directory.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Returns the directories of the runs from whose weights the run starts.
    pub(crate) fn parents(&self) -> Vec<&PathBuf> {
        match (&self.merged, &self.before) {
            (Some(both), _) => both.iter().collect(),
            (None, before) => before.iter().map(|(parent, _)| parent).collect(),
        }
    }
}

impl Pool {
    /// Opens the pool of runs on the backend of these options.
    pub fn open(options: &Options) -> Self {
        // LibTorch gives different results on a CPU and on a GPU.
        let backend = match (options.backend, options.gpu) {
            (BackendKind::LibTorch, Some(_)) => format!("{}-gpu", options.backend),
            _ => options.backend.to_string(),
        };
        Self {
            directory: options.directory.clone(),
            backend,
            precision: usual_precision(options.backend),
        }
    }

    /// Returns the directories of all runs, in order, one seed after the other. `corpora` holds the data of each run.
    pub fn runs<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
        seeds: &[u64],
        corpora: &[&Corpus],
    ) -> Vec<PathBuf> {
        let mut directories = Vec::new();
        for seed in seeds {
            let runs = planned.iter().zip(self.places(planned, *seed, corpora));
            let due = runs.filter(|(run, _)| run.is_for(*seed));
            directories.extend(due.filter_map(|(_, place)| Some(place?.directory)));
        }
        directories
    }

    /// Deletes the runs in `directories` and all runs of the pool that started from their weights, directly or in a
    /// chain.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`run_dir::delete`].
    pub fn forget(&self, directories: &[PathBuf]) -> Result<(), RunError> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        let runs = entries.filter_map(Result::ok).map(|entry| entry.path());
        let began_with = |run: PathBuf| {
            let first = run_dir::read_history(&run)
                .ok()
                .and_then(|starts| starts.into_iter().next());
            let both = first
                .into_iter()
                .flat_map(|first| [first.init_from, first.merged_with]);
            // The directory that the run has now, because the pool may have moved.
            let now = both
                .flatten()
                .filter_map(|before| Some(self.directory.join(before.file_name()?)));
            now.map(|before| (run.clone(), before)).collect::<Vec<_>>()
        };
        let began_with: Vec<(PathBuf, PathBuf)> = runs.flat_map(began_with).collect();
        let mut forgotten = BTreeSet::from_iter(directories.iter().cloned());
        loop {
            let known = forgotten.len();
            for (run, before) in &began_with {
                if forgotten.contains(before) {
                    forgotten.insert(run.clone());
                }
            }
            if forgotten.len() == known {
                return run_dir::delete(&forgotten);
            }
        }
    }

    /// Returns the place of every run for `seed`; `None` for a run without a model.
    pub(crate) fn places<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
        seed: u64,
        corpora: &[&Corpus],
    ) -> Vec<Option<Place>> {
        let mut places: Vec<Option<Place>> = Vec::new();
        for (run, corpus) in planned.iter().zip(corpora) {
            let place = |name: &String| {
                let at = planned.iter().position(|other| other.name == *name)?;
                Some(places.get(at)?.as_ref()?.directory.clone())
            };
            let after = run.after.as_ref();
            let merged =
                after.and_then(|after| Some([place(&after.run)?, place(after.with.as_ref()?)?]));
            let first = match &merged {
                Some(both) => Some(self.merged(both)),
                None => after.and_then(|after| place(&after.run)),
            };
            let before = first.and_then(|first| Some((first, after?.by)));
            places.push(run.config.clone().map(|mut config| {
                config.train.seed = seed;
                Place {
                    merged,
                    ..self.place(config, corpus, before)
                }
            }));
        }
        places
    }

    /// Returns the directory of the run into which two runs are merged.
    fn merged(&self, both: &[PathBuf; 2]) -> PathBuf {
        let names = both.each_ref().map(|run| format!("{:?}", run.file_name()));
        let hash = hash_of_parts(
            "residual-zoo-train merged v1",
            &names.each_ref().map(|name| name.as_bytes()),
        );
        self.directory
            .join(format!("merged-{}", &hash.to_hex()[..12]))
    }

    /// Returns the place of a run. The name of its directory contains a hash of everything that determines the result
    /// of the run, except this program's version.
    fn place<C: ModelConfig>(
        &self,
        mut config: RunConfig<C>,
        corpus: &Corpus,
        before: Option<(PathBuf, FirstWeights)>,
    ) -> Place {
        config.model = config.model.hashed();
        config.data = DataConfig::default();
        config.train.precision.get_or_insert(self.precision);
        let config_text = config.to_hashed_text();
        let told = config_text
            .lines()
            .filter(|line| !LATER.contains(&line.trim()));
        let told = told.collect::<Vec<_>>().join("\n");
        let start = before
            .as_ref()
            .map(|(path, by)| format!("{:?} {by:?}", path.file_name()));
        let hash = hash_of_parts(
            // If the meaning of a config changes, such as by a new default, change [`ModelConfig::hashed`], or increase
            // the version.
            "residual-zoo-train pool v2",
            &[
                told.as_bytes(),
                corpus.identity.as_bytes(),
                self.backend.as_bytes(),
                start.unwrap_or_default().as_bytes(),
            ],
        );
        // Keeps only characters that every file system accepts.
        let name = config.model.name();
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let name = format!("{name}-{}", &hash.to_hex()[..12]);
        Place {
            directory: self.directory.join(name),
            before,
            merged: None,
        }
    }
}
