//! The data of an experiment; each corpus is opened once.

use std::rc::Rc;

use residual_zoo_core::ModelConfig;
use residual_zoo_data::Corpus;
use residual_zoo_drive::{check_precision, open_corpus};

use crate::{Error, Options, PlannedRun};

/// Opens the data of every run with a model, in order and each corpus once. Checks that each run can be trained on its
/// data.
///
/// # Errors
///
/// Returns the errors of [`Corpus::open`], or names the first run that cannot be trained.
pub(crate) fn open_corpora<C: ModelConfig>(
    planned: &[PlannedRun<C>],
    options: &Options,
) -> Result<Vec<Rc<Corpus>>, Error> {
    let runs = planned.iter();
    let runs = runs.filter_map(|run| Some((&run.name, run.config.as_ref()?)));
    let runs: Vec<_> = runs.collect();
    let mut corpora: Vec<Rc<Corpus>> = Vec::new();
    for (i, (_, config)) in runs.iter().enumerate() {
        let known = runs[..i]
            .iter()
            .position(|(_, other)| other.data == config.data);
        corpora.push(match known {
            Some(at) => corpora[at].clone(),
            None => Rc::new(open_corpus(&config.data, &options.stop)?),
        });
    }
    for ((name, config), corpus) in runs.iter().zip(&corpora) {
        let valid = config.validate(residual_zoo_runs::vocabulary(corpus));
        valid.map_err(|error| error.within(name))?;
        let has = check_precision(options.backend, options.gpu, config.train.precision);
        has.map_err(|error| error.within(name))?;
    }
    Ok(corpora)
}
