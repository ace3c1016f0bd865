//! Finds the vocabulary for which parameters and FLOPs are counted.

use std::fmt;
use std::rc::Rc;

use residual_zoo_core::Vocabulary;
use residual_zoo_data::{Corpus, DataConfig, DataError, Source, TokenizerConfig, is_on_hub};
use residual_zoo_report::bytes;
use residual_zoo_runs::vocabulary;
use residual_zoo_system::counted;
use residual_zoo_train::Interrupter;

use crate::open_corpus;

/// The vocabulary for which parameters and FLOPs are counted. Every command that prints such counts gets the vocabulary
/// from a `Basis`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The vocabulary.
    pub vocabulary: Vocabulary,
    /// Number of training tokens, or images; `None` if the data were not opened or have no end.
    pub train_tokens: Option<usize>,
    /// The reason why the vocabulary is assumed; `None` if it is the vocabulary of the data.
    pub assumed: Option<String>,
}

/// A basis, and its data if they were opened.
pub type Opened = (Basis, Option<Rc<Corpus>>);

impl Basis {
    /// Makes the basis of opened data.
    pub fn of_corpus(corpus: &Corpus) -> Self {
        Self {
            train_tokens: corpus.train.tokens(),
            ..Self::exact(vocabulary(corpus))
        }
    }

    /// Makes the basis of a known vocabulary.
    pub fn exact(vocabulary: Vocabulary) -> Self {
        Self {
            vocabulary,
            train_tokens: None,
            assumed: None,
        }
    }

    /// Finds the vocabulary of a config's data. Downloads nothing, and tokenizes at most [`MOST_BYTES`] of text. For
    /// all other data, the vocabulary follows from the config or is assumed.
    ///
    /// # Errors
    ///
    /// Returns an error if the config is invalid or the data cannot be read.
    pub fn of_config(data: &DataConfig, stop: &Interrupter) -> Result<Self, DataError> {
        Ok(Self::open_small(data, stop)?.0)
    }

    /// Like [`of_config`](Self::of_config), with the data if they were opened.
    fn open_small(data: &DataConfig, stop: &Interrupter) -> Result<Opened, DataError> {
        data.validate()?;
        let known = data.known_vocab_size()?;
        if is_small(data)? && !lacks_tokenizer(data, known) {
            let corpus = open_corpus(data, stop)?;
            return Ok((Self::of_corpus(&corpus), Some(Rc::new(corpus))));
        }
        Ok((Self::unopened(data, known)?, None))
    }

    /// Opens the data of a config, whatever their size, if they and their tokenizer are on this machine. Returns the
    /// data and their vocabulary. Downloads nothing. If the data are not opened, the vocabulary is the result of
    /// [`of_config`](Self::of_config).
    ///
    /// # Errors
    ///
    /// Returns an error if the config is invalid or the data cannot be read.
    pub fn open(
        data: &DataConfig,
        stop: &Interrupter,
    ) -> Result<(Self, Option<Corpus>), DataError> {
        data.validate()?;
        let known = data.known_vocab_size()?;
        // Images are never downloaded, and opening missing images gives the clearest error.
        let is_here = matches!(data.source, Source::Cifar10(_) | Source::Images(_))
            || data.bytes_at_hand()?.is_some();
        if is_here && !lacks_tokenizer(data, known) {
            let corpus = open_corpus(data, stop)?;
            return Ok((Self::of_corpus(&corpus), Some(corpus)));
        }
        Ok((Self::unopened(data, known)?, None))
    }

    /// Makes the basis of data that are not opened, from the known number of ids or an assumed number.
    fn unopened(data: &DataConfig, known: Option<usize>) -> Result<Self, DataError> {
        if let Some(size) = data.image() {
            let classes = data.outputs(0);
            return Ok(Self::exact(Vocabulary::of_images(size.into(), classes)));
        }
        if let Some(ids) = known {
            return Ok(Self::exact(Vocabulary::new(ids, data.outputs(ids))));
        }
        let (ids, assumed) = assumed(data)?;
        Ok(Self {
            assumed: Some(assumed),
            ..Self::exact(ids.into())
        })
    }

    /// Finds the vocabulary of each run's data. Returns the data too if they were opened. Equal data are opened once.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`of_config`](Self::of_config).
    pub fn of_each(all: &[&DataConfig], stop: &Interrupter) -> Result<Vec<Opened>, DataError> {
        let mut found: Vec<Opened> = Vec::new();
        for (i, data) in all.iter().enumerate() {
            let known = all[..i].iter().position(|other| other == data);
            found.push(match known {
                Some(at) => found[at].clone(),
                None => Self::open_small(data, stop)?,
            });
        }
        Ok(found)
    }

    /// Returns the number of passes that `tokens` tokens make over the training data; `None` if the number of training
    /// tokens is unknown.
    pub fn passes(&self, tokens: f64) -> Option<f64> {
        Some(tokens / self.train_tokens? as f64)
    }

    /// Returns the size for a table; `~` marks an assumed size, as in `~50304`.
    pub fn shown(&self) -> String {
        let sign = if self.assumed.is_some() { "~" } else { "" };
        format!("{sign}{}", self.size())
    }

    /// Returns the size: the number of token ids, or of classes for images.
    pub fn size(&self) -> usize {
        match self.vocabulary.image() {
            Some(_) => self.vocabulary.outputs,
            None => self.vocabulary.ids(),
        }
    }
}

/// Returns notes on the vocabularies of a table's runs, to show below the table. `runs` holds the name and the basis of
/// each run.
pub fn basis_notes<'a>(runs: impl IntoIterator<Item = (&'a str, &'a Basis)>) -> Vec<String> {
    let mut notes =
        vec!["Counts hold for the vocabulary of the row: token ids, or classes of images.".into()];
    let mut assumed: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, basis) in runs {
        let Some(why) = basis.assumed.as_deref() else {
            continue;
        };
        match assumed.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(name),
            None => assumed.push((why, vec![name])),
        }
    }
    let several = assumed.len() > 1;
    notes.extend(assumed.into_iter().map(|(why, names)| match several {
        true => format!(
            "note: the vocabulary of {} is assumed: {why}",
            names.join(", ")
        ),
        false => format!("note: ~ marks an assumed vocabulary: {why}"),
    }));
    notes
}

/// Shows a vocabulary, such as `56 token ids` or `3 × 32 × 32 images in 10 classes`. A `~` marks an assumed size, as in
/// `~50304 token ids`.
impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Vocabulary { outputs, .. } = self.vocabulary;
        match self.vocabulary.image() {
            Some(size) => write!(
                f,
                "{} × {} × {} images in {}",
                size.channels,
                size.height,
                size.width,
                counted(outputs, "class")
            ),
            None => {
                write!(f, "{}", counted(self.shown(), "token id"))?;
                match outputs == self.vocabulary.ids() {
                    true => Ok(()),
                    false => write!(f, " in {}", counted(outputs, "class")),
                }
            }
        }
    }
}

/// Whether the data can be opened in seconds, without a download.
fn is_small(data: &DataConfig) -> Result<bool, DataError> {
    Ok(match &data.source {
        Source::Synthetic(synthetic) => synthetic.tokens as u64 <= MOST_BYTES,
        Source::Copying(_) => true,
        Source::Cifar10(_) | Source::Images(_) | Source::Imported => false,
        _ => data.bytes_at_hand()?.is_some_and(|size| size <= MOST_BYTES),
    })
}

/// Whether the tokenizer is a file that is not on this machine.
fn lacks_tokenizer(data: &DataConfig, known: Option<usize>) -> bool {
    known.is_none() && matches!(data.tokenizer, TokenizerConfig::File(_))
}

/// Says why data were not opened: a missing tokenizer, or a text that is large, missing or not readable by this build.
///
/// # Errors
///
/// Returns an error if the data cannot be read.
pub fn why_unopened(data: &DataConfig) -> Result<String, DataError> {
    let missing = |is_to_load, is_here| match (is_to_load, is_here) {
        (true, _) => "is not downloaded yet",
        (_, true) => "cannot be read by this program, which was built without the feature for it",
        _ => "is not here",
    };
    if let (TokenizerConfig::File(path), true) = (
        &data.tokenizer,
        lacks_tokenizer(data, data.known_vocab_size()?),
    ) {
        let why = missing(is_on_hub(path), false);
        return Ok(format!("`{}` {why}", path.display()));
    }
    let source = &data.source;
    Ok(match data.bytes_at_hand()? {
        Some(size) => format!("{source} has {} and was not read", bytes(size as f64)),
        None => {
            let paths = source.paths();
            let is_to_load =
                *source == Source::TinyShakespeare || paths.iter().any(|path| is_on_hub(path));
            let is_here = paths.iter().all(|path| path.exists());
            format!("{source} {}", missing(is_to_load, is_here))
        }
    })
}

/// Assumes a number of token ids for data that are not opened, and gives the reason for this number.
fn assumed(data: &DataConfig) -> Result<(usize, String), DataError> {
    let because = why_unopened(data)?;
    if let TokenizerConfig::File(_) = &data.tokenizer {
        return Ok((NEOX, format!("GPT-NeoX's, because {because}")));
    }
    Ok(match data.tokenizer {
        TokenizerConfig::Bpe { vocab_size } => (
            vocab_size,
            format!("the maximum of the tokenizer, because {because}"),
        ),
        _ => (
            SHAKESPEARE,
            format!("tiny shakespeare's, because {because}"),
        ),
    })
}

/// The largest text, in bytes, that is tokenized only to count its vocabulary.
pub const MOST_BYTES: u64 = 1 << 24;
/// Number of token ids of GPT-NeoX's tokenizer in published models. GPT-2's has about as many.
const NEOX: usize = 50_304;
/// Number of characters of tiny shakespeare.
const SHAKESPEARE: usize = 65;

#[cfg(test)]
mod tests {
    use residual_zoo_data::SyntheticConfig;

    use super::*;

    fn of(data: &DataConfig) -> Basis {
        Basis::of_config(data, &Interrupter::new()).unwrap()
    }

    #[test]
    fn what_is_found_without_data_is_what_the_data_have() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("a.txt");
        std::fs::write(
            &text,
            "to be or not to be, that is the question\n".repeat(20),
        )
        .unwrap();
        for (source, tokenizer) in [
            (Source::default(), TokenizerConfig::Chars),
            (Source::Path(text.clone()), TokenizerConfig::Chars),
            (Source::Path(text.clone()), TokenizerConfig::Bytes),
            (Source::Path(text), TokenizerConfig::Bpe { vocab_size: 300 }),
        ] {
            let data = DataConfig {
                source,
                tokenizer,
                cache: Some(directory.path().join("cache")),
                ..DataConfig::default()
            };
            let corpus = open_corpus(&data, &Interrupter::new()).unwrap();
            assert_eq!(of(&data), Basis::of_corpus(&corpus));
            let (opened, found) = Basis::open(&data, &Interrupter::new()).unwrap();
            assert_eq!((opened, found.is_some()), (of(&data), true));
        }
    }

    #[test]
    fn what_is_not_here_is_assumed_and_said() {
        let mut data = DataConfig {
            source: Source::Path("nowhere.txt".into()),
            ..DataConfig::default()
        };
        for (tokenizer, expected, because) in [
            (TokenizerConfig::Chars, 65, Some("nowhere.txt is not here")),
            (
                TokenizerConfig::Bpe { vocab_size: 8192 },
                8192,
                Some("nowhere.txt is not here"),
            ),
            (
                TokenizerConfig::File("nowhere.json".into()),
                50_304,
                Some("`nowhere.json` is not here"),
            ),
            (TokenizerConfig::Bytes, 256, None),
        ] {
            data.tokenizer = tokenizer;
            let found = of(&data);
            assert_eq!(found.vocabulary, expected.into());
            let (opened, corpus) = Basis::open(&data, &Interrupter::new()).unwrap();
            assert_eq!((&opened, corpus.is_none()), (&found, true));
            let sign = if because.is_some() { "~" } else { "" };
            assert_eq!(opened.to_string(), format!("{sign}{expected} token ids"));
            let assumed = found.assumed.as_deref();
            assert_eq!(assumed.is_some(), because.is_some(), "{assumed:?}");
            assert!(
                assumed.unwrap_or("").contains(because.unwrap_or("")),
                "{assumed:?}"
            );
        }
    }

    #[test]
    fn an_assumption_is_noted_once_and_names_its_runs_where_there_are_several() {
        let assumed = |why: &str| Basis {
            assumed: Some(why.into()),
            ..Basis::exact(65.into())
        };
        let (exact, one, other) = (Basis::exact(65.into()), assumed("A"), assumed("B"));
        assert_eq!(basis_notes([("a", &exact)]).len(), 1);
        let notes = basis_notes([("a", &exact), ("b", &one), ("c", &one)]);
        assert_eq!(notes[1..], ["note: ~ marks an assumed vocabulary: A"]);
        let notes = basis_notes([("a", &one), ("b", &other), ("c", &one)]);
        assert_eq!(
            notes[1..],
            [
                "note: the vocabulary of a, c is assumed: A",
                "note: the vocabulary of b is assumed: B"
            ]
        );
        assert_eq!((one.shown(), exact.shown()), ("~65".into(), "65".into()));
    }

    #[test]
    fn a_vocabulary_is_described_by_what_a_model_reads() {
        let synthetic = SyntheticConfig {
            vocab_size: Some(50_257),
            ..SyntheticConfig::default()
        };
        let shapes = residual_zoo_data::ShapesConfig::default();
        let images =
            residual_zoo_data::ImagesConfig::of(residual_zoo_data::ImageSet::Shapes(shapes));
        for (source, shown) in [
            (Source::Synthetic(synthetic), "50257 token ids"),
            (
                Source::Cifar10("nowhere".into()),
                "256 token ids in 10 classes",
            ),
            (Source::Images(images), "3 × 16 × 16 images in"),
        ] {
            let data = DataConfig {
                source,
                ..DataConfig::default()
            };
            assert!(of(&data).to_string().starts_with(shown), "{}", of(&data));
        }
    }
}
