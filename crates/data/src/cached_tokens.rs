//! Tokenizes a text, or takes its tokens from the cache.

use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use residual_zoo_system::Blame as _;

use crate::cache::{self, Entry, Manifest, PartFacts, Work};
use crate::progress::{OnProgress, Stage, report};
use crate::tokenize::{self, Part, SEGMENT, Segment, Segments, Survey, Text};
use crate::{DataConfig, DataError, Tokenizer, Tokens};

/// Maximum number of bytes of a text whose tokens are kept in memory if the cache directory cannot be used.
const MOST_IN_MEMORY: usize = 1 << 30;

/// The behaviour if the cache cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// Keeps the tokens in memory. If there is a cache directory, fails for a text of more than [`MOST_IN_MEMORY`]
    /// bytes.
    InMemory,
    /// Fails.
    Fail,
}

/// Returns the tokens of `text`, loaded from the cache or newly made and stored there. If the cache cannot be used,
/// `on_failure` tells whether the tokens are kept in memory. Also returns a note if the entry was damaged or the cache
/// cannot be used.
pub(crate) fn entry(
    config: &DataConfig,
    source: String,
    text: &Text,
    on_failure: OnFailure,
    progress: OnProgress,
) -> Result<(Entry, Option<String>), DataError> {
    let survey = Survey::of(text, &config.tokenizer, progress)?;
    if survey.bytes == 0 {
        return Err(DataError::Empty {
            path: source.into(),
        });
    }
    let dir = config.cache_entry(&survey.hash)?;
    let tokenizing = Tokenizing {
        config,
        source,
        text,
        survey,
    };
    let Some(dir) = dir else {
        if on_failure == OnFailure::Fail {
            return Err(DataError::InvalidConfig {
                field: "data.cache".into(),
                problem: "is not set, and there is no user cache directory; set it to a directory"
                    .into(),
            });
        }
        let note = "there is no user cache directory, so tokens are kept in memory; \
                    set `data.cache` to a directory";
        return Ok((tokenizing.in_memory(progress)?, Some(note.into())));
    };
    match tokenizing.in_cache(&dir, progress) {
        Err(error)
            if on_failure == OnFailure::InMemory
                && error.is_of_cache(&dir)
                && tokenizing.survey.bytes <= MOST_IN_MEMORY =>
        {
            let note =
                format!("the token cache cannot be used, so tokens are kept in memory: {error}");
            Ok((tokenizing.in_memory(progress)?, Some(note)))
        }
        found => found,
    }
}

/// A text whose tokens become a cache entry.
struct Tokenizing<'a> {
    config: &'a DataConfig,
    source: String,
    text: &'a Text,
    survey: Survey,
}

impl Tokenizing<'_> {
    /// Loads the entry `dir` or makes it. Also returns a note if the entry was damaged.
    fn in_cache(
        &self,
        dir: &Path,
        progress: OnProgress,
    ) -> Result<(Entry, Option<String>), DataError> {
        let load = || {
            let fraction = self.config.valid_fraction;
            cache::load(dir, &self.survey.hash, fraction, None)
        };
        let mut note = None;
        loop {
            if fs::symlink_metadata(dir).is_ok() {
                match load() {
                    Ok(entry) => {
                        cache::clear(dir);
                        return Ok((entry, note));
                    }
                    Err(e) if e.is_stop() => return Err(e),
                    Err(e) => note = Some(format!("tokenized the data again: {e}")),
                }
            }
            if let Some(work) = Work::begin(dir)? {
                // Another process may have completed the entry in the meantime.
                return match load() {
                    Ok(entry) => {
                        work.discard();
                        Ok((entry, None))
                    }
                    Err(e) if e.is_stop() => Err(e),
                    Err(_) => Ok((self.store(work, progress)?, note)),
                };
            }
            report(progress, Stage::Waiting, 0, 0)?;
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Completes the entry of `work`. Makes only the tokenizer and the shards that are missing.
    fn store(&self, work: Work, progress: OnProgress) -> Result<Entry, DataError> {
        let tokenizer = match work.tokenizer()? {
            Some(tokenizer) => tokenizer,
            None => {
                let tokenizer = self.tokenizer(progress)?;
                work.store_tokenizer(&tokenizer)?;
                tokenizer
            }
        };
        let mut manifest = self.manifest(&tokenizer);
        let stored = self.each_segment(&tokenizer, progress, |segment, progress| {
            let Segment { part, number, text } = segment;
            manifest.add(part, text.len());
            if !work.has(part, number, &tokenizer) {
                let tokens = tokenizer.encode_with(text, progress)?;
                work.store(part, number, &tokens, &tokenizer)?;
            }
            Ok(())
        });
        match stored {
            Ok(()) => work.finish(manifest, &tokenizer),
            Err(error) => {
                // The stored shards may come from the changed text, so they are deleted.
                if matches!(error, DataError::Changed { .. }) {
                    work.discard();
                }
                Err(error)
            }
        }
    }

    /// Tokenizes the text without the cache.
    fn in_memory(&self, progress: OnProgress) -> Result<Entry, DataError> {
        let tokenizer = self.tokenizer(progress)?;
        let mut manifest = self.manifest(&tokenizer);
        let (mut train, mut valid) = (Vec::new(), Vec::new());
        self.each_segment(&tokenizer, progress, |segment, progress| {
            manifest.add(segment.part, segment.text.len());
            let tokens = tokenizer.encode_with(segment.text, progress)?;
            match segment.part {
                Part::Train => train.extend(tokens),
                Part::Valid => valid.extend(tokens),
            }
            Ok(())
        })?;
        Ok(Entry {
            manifest,
            tokenizer,
            train: Tokens::from_vec(train),
            valid: Tokens::from_vec(valid),
        })
    }

    fn tokenizer(&self, progress: OnProgress) -> Result<Tokenizer, DataError> {
        let (config, split) = (&self.config.tokenizer, self.split());
        tokenize::tokenizer(config, self.text, &self.survey, split, progress)
    }

    fn split(&self) -> usize {
        tokenize::split(self.survey.bytes, self.config.valid_fraction)
    }

    /// Calls `each` with every segment, and with a function that reports how many bytes of the segment are done.
    fn each_segment(
        &self,
        tokenizer: &Tokenizer,
        progress: OnProgress,
        mut each: impl FnMut(
            Segment,
            &mut dyn FnMut(usize) -> Result<(), DataError>,
        ) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let (all, mut before, mut hasher) = (self.survey.bytes, 0, blake3::Hasher::new());
        let mut segments = Segments::of(self.text, self.split(), SEGMENT, tokenizer.places())?;
        loop {
            let mut goes_on = || report(progress, Stage::Tokenizing, before, all);
            let Some(segment) = segments.next_segment(&mut goes_on)? else {
                break;
            };
            let bytes = segment.text.len();
            hasher.update(segment.text.as_bytes());
            each(segment, &mut |done| {
                report(progress, Stage::Tokenizing, before + done, all)
            })?;
            before += bytes;
            report(progress, Stage::Tokenizing, before, all)?;
        }
        match hasher.finalize().to_string() == self.survey.hash {
            true => Ok(()),
            false => Err(DataError::Changed {
                path: self.source.clone().into(),
            }),
        }
    }

    /// Returns the manifest, with empty descriptions of both parts.
    fn manifest(&self, tokenizer: &Tokenizer) -> Manifest {
        Manifest {
            format: cache::FORMAT,
            source: self.source.clone(),
            source_hash: self.survey.hash.clone(),
            tokenizer_fingerprint: tokenizer.fingerprint(),
            valid_fraction: self.config.valid_fraction,
            train: PartFacts::default(),
            valid: PartFacts::default(),
            bond: String::new(),
        }
    }
}
