//! The data of an experiment, each corpus opened once.

use std::rc::Rc;

use residual_zoo_core::ModelConfig;
use residual_zoo_data::{Corpus, DataConfig, DataError};

use crate::{Error, PlannedRun};

/// Opens the data, and tells the user on standard error what is to be known about them.
///
/// # Errors
///
/// As [`Corpus::open`].
pub fn open_corpus(config: &DataConfig) -> Result<Corpus, DataError> {
    let corpus = Corpus::open(config)?;
    if let Some(note) = &corpus.note {
        eprintln!("note: {note}");
    }
    Ok(corpus)
}

/// Opens the data of every run with a model, in their order and each corpus once, and checks that the
/// run can be trained on them.
///
/// # Errors
///
/// As [`Corpus::open`], or the first run that cannot be trained, by name.
pub(crate) fn open_corpora<C: ModelConfig>(
    planned: &[PlannedRun<C>],
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
            None => Rc::new(open_corpus(&config.data)?),
        });
    }
    for ((name, config), corpus) in runs.iter().zip(&corpora) {
        let valid = config.validate(corpus.tokenizer.vocab_size());
        valid.map_err(|error| error.within(name))?;
    }
    Ok(corpora)
}
