//! The data of an experiment, each corpus opened once.

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

/// The corpora that the runs of an experiment are trained on.
pub(crate) struct Corpora {
    opened: Vec<Corpus>,
    /// For each run with a model, its place in `opened`.
    of_run: Vec<usize>,
}

impl Corpora {
    /// Opens every corpus and checks that every run can be trained on its own.
    ///
    /// # Errors
    ///
    /// As [`Corpus::open`], or the first run that cannot be trained, by name.
    pub(crate) fn open<C: ModelConfig>(planned: &[PlannedRun<C>]) -> Result<Self, Error> {
        let with_model = |run: &PlannedRun<C>| Some((run.name.clone(), run.config.clone()?));
        let runs: Vec<_> = planned.iter().filter_map(with_model).collect();
        let mut known: Vec<&DataConfig> = Vec::new();
        let (mut opened, mut of_run) = (Vec::new(), Vec::new());
        for (_, config) in &runs {
            let at = known.iter().position(|data| **data == config.data);
            of_run.push(at.unwrap_or(known.len()));
            if at.is_none() {
                known.push(&config.data);
                opened.push(open_corpus(&config.data)?);
            }
        }
        let corpora = Self { opened, of_run };
        for ((name, config), corpus) in runs.iter().zip(corpora.in_order()) {
            let valid = config.validate(corpus.tokenizer.vocab_size());
            valid.map_err(|error| error.within(name))?;
        }
        Ok(corpora)
    }

    /// The corpus of every run with a model, in order.
    pub(crate) fn in_order(&self) -> Vec<&Corpus> {
        let corpora = self.of_run.iter();
        corpora.map(|at| &self.opened[*at]).collect()
    }
}
