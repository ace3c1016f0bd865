//! Where trained runs are kept, for all experiments.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use residual_zoo_core::ModelConfig;
use residual_zoo_data::{Corpus, DataConfig, hash_of_parts};
use residual_zoo_train::{Error as TrainError, FirstWeights, RunConfig, run_dir};

use crate::PlannedRun;

/// The runs of all experiments: runs of equal config, data and backend are one directory.
#[derive(Clone, Debug)]
pub struct Pool {
    directory: PathBuf,
    backend: String,
}

impl Pool {
    /// The pool in `directory`, of runs on `backend`.
    pub fn new(directory: &Path, backend: &str) -> Self {
        Self {
            directory: directory.into(),
            backend: backend.into(),
        }
    }

    /// The directories of all runs, in order, one seed after the other. `corpora` are the data of
    /// the runs.
    pub fn runs<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
        seeds: &[u64],
        corpora: &[&Corpus],
    ) -> Vec<PathBuf> {
        let mut directories = Vec::new();
        for seed in seeds {
            let runs = planned.iter().zip(self.runs_of(planned, *seed, corpora));
            let due = runs.filter(|(run, _)| run.is_for(*seed));
            directories.extend(due.filter_map(|(_, directory)| directory));
        }
        directories
    }

    /// Deletes the runs in `directories`, those of the pool that began with their weights, those
    /// that began with the weights of these, and so on.
    ///
    /// # Errors
    ///
    /// As [`run_dir::delete`].
    pub fn forget(&self, directories: &[PathBuf]) -> Result<(), TrainError> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        let runs = entries.filter_map(Result::ok).map(|entry| entry.path());
        let began_with = |run: PathBuf| {
            let first = run_dir::read_history(&run).ok()?.into_iter().next()?;
            // Where that run is now: the pool may have been elsewhere then.
            let before = self.directory.join(first.init_from?.file_name()?);
            Some((run, before))
        };
        let began_with: Vec<(PathBuf, PathBuf)> = runs.filter_map(began_with).collect();
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

    /// The directory of every run for `seed`; `None` without a model.
    pub(crate) fn runs_of<C: ModelConfig>(
        &self,
        planned: &[PlannedRun<C>],
        seed: u64,
        corpora: &[&Corpus],
    ) -> Vec<Option<PathBuf>> {
        let mut directories: Vec<Option<PathBuf>> = Vec::new();
        for (run, corpus) in planned.iter().zip(corpora) {
            let before = run.after.as_ref().and_then(|after| {
                let at = planned.iter().position(|other| other.name == after.run)?;
                Some((directories.get(at)?.as_deref()?, after.by))
            });
            let directory = run.config.clone().map(|mut config| {
                config.train.seed = seed;
                self.run(&config, corpus, before)
            });
            directories.push(directory);
        }
        directories
    }

    /// The directory of a run. Its name has a hash of everything that decides what comes of the
    /// run, except the version of this program. `before` is the directory whose weights it starts
    /// from.
    fn run<C: ModelConfig>(
        &self,
        config: &RunConfig<C>,
        corpus: &Corpus,
        before: Option<(&Path, FirstWeights)>,
    ) -> PathBuf {
        let mut config = config.clone();
        config.data = DataConfig::default();
        let before = before.map(|(path, by)| format!("{:?} {by:?}", path.file_name()));
        let hash = hash_of_parts(
            "residual-zoo-train pool v1",
            &[
                config.to_ron().as_bytes(),
                corpus.identity.as_bytes(),
                self.backend.as_bytes(),
                before.unwrap_or_default().as_bytes(),
            ],
        );
        let name: String = config.model.name().chars().map(plain).collect();
        self.directory
            .join(format!("{name}-{}", &hash.to_hex()[..12]))
    }
}

/// A character that every file system takes.
fn plain(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '-' }
}
