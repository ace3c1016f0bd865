//! Opens the data of an experiment, each corpus once.

use std::rc::Rc;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{Corpus, one_line};
use residual_zoo_drive::{check_precision, open_corpus};
use residual_zoo_runs::{RunConfig, vocabulary};
use residual_zoo_train::sequences;

use crate::{Error, Options, PlannedRun};

/// Opens the data of every run with a model, in the order of the runs. Runs with the same data share one corpus. Checks
/// that each run can be trained on its data.
///
/// # Errors
///
/// Returns the errors of [`Corpus::open`], or an error that names the first run that cannot be trained.
pub(crate) fn open_corpora<C: ModelConfig>(
    planned: &[PlannedRun<C>],
    options: &Options,
) -> Result<Vec<Rc<Corpus>>, Error> {
    let corpora = open_data(planned, options)?;
    let runs = planned.iter();
    let runs = runs.filter_map(|run| Some((&run.name, run.config.as_ref()?)));
    for ((name, config), corpus) in runs.zip(&corpora) {
        check_data(name, config, corpus)?;
        let has = check_precision(options.backend, options.gpu, config.train.precision);
        has.map_err(|error| error.within(name))?;
    }
    Ok(corpora)
}

/// Opens the data of every run with a model, in the order of the runs. Runs with the same data share one corpus.
///
/// # Errors
///
/// Returns the errors of [`Corpus::open`].
pub fn open_data<C: ModelConfig>(
    planned: &[PlannedRun<C>],
    options: &Options,
) -> Result<Vec<Rc<Corpus>>, Error> {
    let configs: Vec<_> = planned
        .iter()
        .filter_map(|run| run.config.as_ref())
        .collect();
    let mut corpora: Vec<Rc<Corpus>> = Vec::new();
    for (i, config) in configs.iter().enumerate() {
        let known = configs[..i]
            .iter()
            .position(|other| other.data == config.data);
        corpora.push(match known {
            Some(at) => corpora[at].clone(),
            None => Rc::new(open_corpus(&config.data, &options.stop_of_opening())?),
        });
    }
    Ok(corpora)
}

/// Checks that the run called `name` can be trained on its data: its config must fit the vocabulary, and the texts must
/// be long enough.
///
/// # Errors
///
/// Returns an error that names the run and the problem.
pub(crate) fn check_data<C: ModelConfig>(
    name: &str,
    config: &RunConfig<C>,
    corpus: &Corpus,
) -> Result<(), ConfigError> {
    let valid = config.validate(vocabulary(corpus));
    valid.map_err(|error| error.within(name))?;
    let sequences = sequences(config, corpus);
    let sequences = sequences.map_err(|error| ConfigError::new(name, one_line(error).to_string()));
    sequences.map(drop)
}
