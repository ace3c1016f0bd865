//! Facts about the data of runs, for a report.

use residual_zoo_core::ModelConfig;
use residual_zoo_data::{Corpus, DataConfig, Source, TokenizerConfig};
use residual_zoo_report::{Column, Section, Table, si, sig};
use residual_zoo_runs::RunConfig;
use serde::Serialize;

use residual_zoo_drive::Basis;

use crate::{After, PlannedRun};

/// Data on which runs are trained or measured, and how often the runs read them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DataFacts {
    /// The path or the name of the source.
    pub source: String,
    /// A description of one token.
    pub token: String,
    /// Number of token ids or image classes for which parameters and FLOPs are counted; `None` if the data were not
    /// opened.
    pub vocabulary: Option<usize>,
    /// Number of training tokens; `None` if they are generated without end or were not counted.
    pub train_tokens: Option<usize>,
    /// Number of validation tokens; `None` as for `train_tokens`.
    pub valid_tokens: Option<usize>,
    /// The fewest and the most tokens that a validation reads, over the runs. All validations of one run read the same
    /// tokens.
    pub read: Option<(usize, usize)>,
    /// The fewest and the most passes of a run over the training tokens. If a run starts from the weights of another
    /// run on the same data, the other run's passes are included.
    pub passes: Option<(f64, f64)>,
    /// The runs on these data.
    pub runs: Vec<String>,
}

impl DataFacts {
    /// Makes the facts that follow from the data config alone.
    pub(crate) fn of_config(data: &DataConfig) -> Self {
        Self {
            source: data.source.to_string(),
            token: token(data),
            ..Self::default()
        }
    }

    /// Describes the data of a run that starts from newly initialised weights.
    pub(crate) fn of_run<C: ModelConfig>(config: &RunConfig<C>, corpus: &Corpus) -> Self {
        let mut facts = Self::of_config(&config.data);
        facts.vocabulary = Some(Basis::of_corpus(corpus).size());
        facts.train_tokens = corpus.train.tokens();
        facts.valid_tokens = corpus.valid.tokens();
        facts.see(trained(config));
        facts.read(config);
        facts
    }

    /// Describes the data of all runs, without duplicates. `corpora` holds the data of each run, in the order of the
    /// runs.
    pub(crate) fn of_runs<C: ModelConfig>(
        planned: &[PlannedRun<C>],
        corpora: &[&Corpus],
    ) -> Vec<Self> {
        let mut known: Vec<(&DataConfig, Self)> = Vec::new();
        let configs = planned
            .iter()
            .filter_map(|run| Some((run, run.config.as_ref()?)));
        for ((run, config), corpus) in configs.zip(corpora) {
            let at = known.iter().position(|(data, _)| **data == config.data);
            let at = at.unwrap_or_else(|| {
                let mut facts = Self::of_run(config, corpus);
                facts.passes = None;
                known.push((&config.data, facts));
                known.len() - 1
            });
            let facts = &mut known[at].1;
            facts.runs.push(run.name.clone());
            facts.read(config);
            facts.see(trained_in_all(run, planned));
        }
        known.into_iter().map(|(_, facts)| facts).collect()
    }

    /// Adds the tokens that a validation of a run reads.
    fn read<C: ModelConfig>(&mut self, config: &RunConfig<C>) {
        let train = &config.train;
        let tokens = train.validate_batches * train.batch * config.time();
        let tokens = self.valid_tokens.map_or(tokens, |all| tokens.min(all));
        let (fewest, most) = self.read.unwrap_or((tokens, tokens));
        self.read = Some((fewest.min(tokens), most.max(tokens)));
    }

    /// Adds a run that is trained on `tokens` tokens.
    fn see(&mut self, tokens: f64) {
        let Some(count) = self.train_tokens.filter(|count| *count > 0) else {
            return;
        };
        let passes = tokens / count as f64;
        let (fewest, most) = self.passes.unwrap_or((passes, passes));
        self.passes = Some((fewest.min(passes), most.max(passes)));
    }
}

/// Describes one token of the data.
pub fn token(data: &DataConfig) -> String {
    match (&data.source, &data.tokenizer) {
        (Source::Synthetic(_), _) => "a word".into(),
        (Source::Copying(_), _) => "a symbol".into(),
        (Source::Cifar10(_), _) => "a grey pixel".into(),
        (Source::Images(_), _) => "an image".into(),
        (_, TokenizerConfig::Bytes) => "a byte".into(),
        (_, TokenizerConfig::Chars) => "a character".into(),
        (_, TokenizerConfig::Bpe { vocab_size }) => {
            format!("one of a BPE with {vocab_size} tokens, trained on the text")
        }
        (_, TokenizerConfig::File(path)) => format!("one of {}", path.display()),
    }
}

/// Returns all settings of a run as RON, except the token-cache directory.
pub(crate) fn settings<C: ModelConfig>(config: &RunConfig<C>) -> String {
    let mut config = config.clone();
    config.data.cache = None;
    // RON writes a variant `None` of an enum other than `Option` as `r#None`, and reads both forms.
    config.to_ron().replace(": r#None,", ": None,")
}

/// Returns a folded section with the settings of runs, by name.
pub(crate) fn folded(note: &str, texts: Vec<(String, String)>) -> Section {
    Section::Folded {
        heading: "Configs".into(),
        note: note.into(),
        language: "ron".into(),
        texts,
    }
}

/// Returns the number of tokens on which a run is trained.
fn trained<C: ModelConfig>(config: &RunConfig<C>) -> f64 {
    config.train.steps as f64 * config.tokens_per_step() as f64
}

/// Returns the number of training tokens of a run. If the run starts from the weights of a run on the same data, adds
/// that run's tokens, and so on.
fn trained_in_all<C: ModelConfig>(run: &PlannedRun<C>, planned: &[PlannedRun<C>]) -> f64 {
    let Some(config) = &run.config else {
        return 0.0;
    };
    // A run comes after the run from whose weights it starts, so this recursion ends.
    let after = run.after.as_ref();
    let is_parent = |after: &After, other: &&PlannedRun<C>| {
        other.name == after.run && !std::ptr::eq(*other, run)
    };
    let parent = after.and_then(|after| planned.iter().find(|other| is_parent(after, other)));
    let has_same_data = |parent: &&PlannedRun<C>| {
        let other = parent.config.as_ref();
        other.is_some_and(|other| other.data == config.data)
    };
    let parent = parent.filter(has_same_data);
    trained(config) + parent.map_or(0.0, |parent| trained_in_all(parent, planned))
}

/// Returns a table with a row for each dataset. The table names the runs if there are several datasets.
pub(crate) fn data_table(all: &[DataFacts]) -> Table {
    let mut columns = vec![
        Column::text("source"),
        Column::text("a token is"),
        Column::number("vocabulary", ""),
        Column::number("training tokens", ""),
        Column::number("validation tokens", ""),
        Column::number("read", "by a validation"),
        Column::number("passes", "over the training tokens"),
    ];
    if all.len() > 1 {
        columns.push(Column::text("runs"));
    }
    let count = |tokens: Option<usize>| tokens.map_or("–".into(), |tokens| si(tokens as f64));
    let passes = |(fewest, most): (f64, f64)| match (sig(fewest, 2), sig(most, 2)) {
        (fewest, most) if fewest == most => most,
        (fewest, most) => format!("{fewest} to {most}"),
    };
    let read = |(fewest, most): (usize, usize)| match (si(fewest as f64), si(most as f64)) {
        (fewest, most) if fewest == most => most,
        (fewest, most) => format!("{fewest} to {most}"),
    };
    let row = |facts: &DataFacts| {
        let cells = [
            facts.source.clone(),
            facts.token.clone(),
            facts.vocabulary.map_or("–".into(), |ids| ids.to_string()),
            count(facts.train_tokens),
            count(facts.valid_tokens),
            facts.read.map_or("–".into(), read),
            facts.passes.map_or("–".into(), passes),
            facts.runs.join("; "),
        ];
        cells.map(Into::into).into()
    };
    Table {
        heading: "Data".into(),
        columns,
        rows: all.iter().map(row).collect(),
        ..Table::default()
    }
}
