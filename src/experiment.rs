//! Suites of the zoo's models ([`residual_zoo_train::suite`]), compiled once for all experiments.

use std::path::Path;

use residual_zoo_data::Corpus;
use residual_zoo_train::suite::{
    self, Meter, Observation, Origin, Outcome, Pool, Results, SuiteOptions,
};
use residual_zoo_train::{Error, RunOptions, Summary};

use crate::{ModelConfig, RunConfig};

/// A suite of models of the zoo.
pub type Suite = suite::Suite<ModelConfig>;
/// A run of such a suite.
pub type Planned = suite::Planned<ModelConfig>;

/// Reads a suite and checks it; `measured` are the quantities that the experiment measures itself.
///
/// # Errors
///
/// As [`Suite::parse`] and [`Suite::check`].
pub fn open(text: &str, path: &Path, measured: &[&str]) -> Result<Suite, Error> {
    let suite = Suite::parse(text, path)?;
    suite.check(measured)?;
    Ok(suite)
}

/// The runs of a suite, each with `set` on top of what it says.
///
/// # Errors
///
/// As [`Suite::plan`].
pub fn plan(suite: &Suite, set: &[String]) -> Result<Vec<Planned>, Error> {
    suite.plan(set)
}

/// Checks that every run can be trained on its data.
///
/// # Errors
///
/// The first run that cannot, by name.
pub fn validate(planned: &[Planned], corpora: &[&Corpus]) -> Result<(), Error> {
    for (run, corpus) in planned.iter().zip(corpora) {
        if let Some(config) = &run.config {
            let valid = config.validate(corpus.tokenizer.vocab_size());
            valid.map_err(|error| error.within(&run.name))?;
        }
    }
    Ok(())
}

/// As [`suite::run_suite`].
pub fn run(
    planned: &[Planned],
    seeds: &[u64],
    corpora: &[&Corpus],
    options: &SuiteOptions,
    meter: &dyn Meter,
    train: &mut dyn FnMut(RunConfig, &Corpus, &RunOptions) -> Result<Summary, Error>,
) -> Outcome {
    suite::run_suite(planned, seeds, corpora, options, meter, train)
}

/// Deletes the runs of a suite from the pool, and those that began with their weights.
///
/// # Errors
///
/// As [`Pool::forget`].
pub fn forget(
    planned: &[Planned],
    seeds: &[u64],
    corpora: &[&Corpus],
    options: &SuiteOptions,
) -> Result<(), Error> {
    let pool = Pool::new(&options.pool, &options.backend);
    pool.forget(&pool.runs(planned, seeds, corpora))
}

/// As [`suite::count`].
pub fn count(planned: &[Planned], vocab_size: usize) -> Vec<Observation> {
    suite::count(planned, vocab_size)
}

/// As [`Results::new`].
pub fn results(suite: &Suite, planned: &[Planned], outcome: Outcome, origin: Origin) -> Results {
    Results::new(suite, planned, outcome, origin)
}

/// Every run as RON, but for where its tokens are kept.
pub fn to_ron(planned: &[Planned]) -> String {
    let configs = planned.iter().filter_map(|run| run.config.as_ref());
    let ron = configs.map(|config| {
        let mut config = config.clone();
        config.data.cache = None;
        config.to_ron()
    });
    ron.collect()
}
