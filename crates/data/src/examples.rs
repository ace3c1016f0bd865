//! Training examples of every kind of data.

use std::sync::Arc;

use crate::cifar::{CLASSES, LEVELS, PIXELS};
use crate::copying::{CopyConfig, vocabulary};
use crate::images::png;
use crate::random::RandomNumbers;
use crate::windows::even_places;
use crate::{Batch, DataError, Images, MixedWindows, Mixture, SeenImages, Tokens, Windows};

/// Examples that are not cut into sequences yet. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Examples {
    /// A text: every token is predicted from the tokens before it.
    Text(Tokens),
    /// Several texts with weights.
    Mixture(Mixture),
    /// Symbols to copy, newly generated for every batch.
    Copying(CopyConfig),
    /// Images as grey pixels. The class is predicted after the last pixel.
    Pixels(Arc<Images>),
    /// Images for models that read images.
    Images(SeenImages),
}

impl Examples {
    /// Returns the number of tokens, or of images for models that read images; `None` if examples are generated without
    /// end.
    pub fn tokens(&self) -> Option<usize> {
        match self {
            Self::Text(tokens) => Some(tokens.len()),
            Self::Mixture(mixture) => Some(mixture.len()),
            Self::Copying(_) => None,
            Self::Pixels(images) => Some(images.len() * PIXELS),
            Self::Images(views) => Some(views.len()),
        }
    }

    /// Returns the tokens of a text, or of the first text of a mixture; `None` for other kinds.
    pub fn text(&self) -> Option<&Tokens> {
        match self {
            Self::Text(tokens) => Some(tokens),
            Self::Mixture(mixture) => mixture.texts().next(),
            _ => None,
        }
    }

    /// Returns a BLAKE3 hash that identifies the examples, as 64 hexadecimal digits. It covers the content of texts,
    /// with the weights of a mixture, and of images in memory. For image files, it covers their names and lengths, and
    /// for the copy tasks, their config.
    pub fn blake3(&self) -> String {
        match self {
            Self::Text(tokens) => tokens.blake3(),
            Self::Mixture(mixture) => mixture.blake3(),
            Self::Copying(config) => blake3::hash(format!("{config:?}").as_bytes()).to_string(),
            Self::Pixels(images) => images.blake3(),
            Self::Images(views) => views.blake3(),
        }
    }

    /// Returns all images in order and without augmentation, `batch` at a time; `None` if the examples are not images.
    ///
    /// # Errors
    ///
    /// A batch can be an error of [`Sequences::random_batch`].
    pub fn images(&self, batch: usize) -> Option<FixedBatches<'_>> {
        let parts = |len: usize| {
            let firsts = (0..len).step_by(batch.max(1));
            firsts.map(move |first| first..len.min(first.saturating_add(batch.max(1))))
        };
        match self {
            Self::Pixels(images) => Some(Box::new(
                parts(images.len()).map(|part| Ok(image_batch(images, part))),
            )),
            Self::Images(views) => Some(Box::new(
                parts(views.len()).map(|part| views.plain_batch(part)),
            )),
            _ => None,
        }
    }

    /// Returns image `i` as a PNG file; `None` if the examples are not images.
    ///
    /// # Errors
    ///
    /// Returns an error if the image's file was deleted or is damaged, and [`DataError::Stopped`] if the user stops the
    /// process.
    ///
    /// # Panics
    ///
    /// Panics if `i` is out of bounds.
    pub fn png(&self, i: usize) -> Result<Option<Vec<u8>>, DataError> {
        Ok(match self {
            Self::Pixels(images) => Some(png(images.values(i), images.size)),
            Self::Images(views) => Some(png(&views.pixels(i, None)?, views.size())),
            _ => None,
        })
    }

    /// Checks that a model with `vocab_size` ids and `outputs` outputs covers every input and
    /// target.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::UnknownId`] for an id that the model does not cover.
    pub fn check(&self, vocab_size: usize, outputs: usize) -> Result<(), DataError> {
        let at_most = |most: usize, size: usize| match most < size {
            true => Ok(()),
            false => Err(DataError::UnknownId {
                id: most as u32,
                vocab_size: size,
            }),
        };
        match self {
            Self::Text(tokens) => tokens.check(vocab_size.min(outputs)),
            Self::Mixture(mixture) => {
                let mut texts = mixture.texts();
                texts.try_for_each(|tokens| tokens.check(vocab_size.min(outputs)))
            }
            Self::Copying(_) => at_most(vocabulary().len() - 1, vocab_size.min(outputs)),
            Self::Pixels(_) => {
                at_most(LEVELS - 1, vocab_size)?;
                at_most(CLASSES - 1, outputs)
            }
            Self::Images(views) => {
                let largest = (0..views.len()).map(|i| views.label(i)).max();
                at_most(largest.unwrap_or(0), outputs)
            }
        }
    }

    /// Returns sequences of these examples. `time` is the length of a text's sequences; other kinds have their own
    /// length. `what` names texts in errors. For the copy tasks, `what` separates the random numbers of training and
    /// validation.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Windows::new`], for example if a text is too short.
    pub fn sequences(&self, time: usize, what: &str) -> Result<Sequences, DataError> {
        Ok(match self {
            Self::Text(tokens) => Sequences::Text(Windows::new(tokens.clone(), time, what)?),
            Self::Mixture(mixture) => Sequences::Mixture(mixture.windows(time, what)?),
            Self::Copying(config) => Sequences::Copying {
                config: config.clone(),
                level: 0,
                purpose: format!("residual-zoo-data copying, {what}, v1"),
            },
            Self::Pixels(images) => Sequences::Pixels(images.clone()),
            Self::Images(views) => Sequences::Images(views.clone()),
        })
    }
}

/// Examples as sequences of tokens.
#[derive(Clone, Debug)]
pub enum Sequences {
    /// Windows of a text.
    Text(Windows),
    /// Windows of several texts.
    Mixture(MixedWindows),
    /// Symbols, noise and recall tokens.
    Copying {
        /// The task.
        config: CopyConfig,
        /// Level of the curriculum: the number of times that the noise is doubled.
        level: usize,
        /// Separates the random numbers of training and validation.
        purpose: String,
    },
    /// Images as grey levels.
    Pixels(Arc<Images>),
    /// Images for models that read images. Each image is one position.
    Images(SeenImages),
}

impl Sequences {
    /// Returns the length of a sequence.
    pub fn time(&self) -> usize {
        match self {
            Self::Text(windows) => windows.time(),
            Self::Mixture(windows) => windows.time(),
            Self::Copying { config, level, .. } => config.time(*level),
            Self::Pixels(_) => PIXELS,
            Self::Images(_) => 1,
        }
    }

    /// Returns micro-batch `micro` of step `step`, with `batch` sequences. The micro-batch depends only on the
    /// arguments, and is the same on every machine.
    ///
    /// # Errors
    ///
    /// Returns an error if an image's file was deleted or is damaged, and [`DataError::Stopped`] if the user stops the
    /// process. Batches of other kinds cannot fail.
    pub fn random_batch(
        &self,
        seed: u64,
        step: u64,
        micro: u64,
        batch: usize,
    ) -> Result<Batch, DataError> {
        Ok(match self {
            Self::Text(windows) => windows.random_batch(seed, step, micro, batch),
            Self::Mixture(windows) => windows.random_batch(seed, step, micro, batch),
            Self::Copying {
                config,
                level,
                purpose,
            } => config.batch(purpose, (seed, step, micro), *level, batch),
            Self::Pixels(images) => {
                let mut draws =
                    RandomNumbers::new("residual-zoo-data images v1", seed, step, micro);
                image_batch(images, (0..batch).map(|_| draws.below(images.len())))
            }
            Self::Images(views) => views.random_batch((seed, step, micro), batch)?,
        })
    }

    /// Whether a batch should be read while the previous batch is in use.
    pub fn are_read_ahead(&self) -> bool {
        matches!(self, Self::Images(views) if views.are_read_ahead())
    }

    /// Returns `batches` batches of `batch` sequences, the same on every call. Sequences of a text or of images are
    /// distinct and evenly spaced. There are fewer batches if there are not enough sequences.
    ///
    /// # Errors
    ///
    /// A batch can be an error of [`random_batch`](Self::random_batch).
    pub fn fixed_batches(&self, batches: usize, batch: usize) -> FixedBatches<'_> {
        let evenly = |len: usize| even_places(len, batches, batch).into_iter();
        match self {
            Self::Text(windows) => {
                Box::new(windows.even_batches(batches, batch).into_iter().map(Ok))
            }
            Self::Mixture(windows) => {
                Box::new(windows.even_batches(batches, batch).into_iter().map(Ok))
            }
            Self::Copying { .. } => {
                Box::new((0..batches).map(move |i| self.random_batch(0, i as u64, 0, batch)))
            }
            Self::Pixels(images) => Box::new(
                evenly(images.len()).map(|places| Ok(image_batch(images, places.into_iter()))),
            ),
            Self::Images(views) => {
                Box::new(evenly(views.len()).map(|places| views.plain_batch(places)))
            }
        }
    }

    /// Returns the same sequences at another level of their curriculum, if they have one.
    pub fn at_level(&self, to: usize) -> Self {
        let mut sequences = self.clone();
        if let Self::Copying { level, .. } = &mut sequences {
            *level = to;
        }
        sequences
    }

    /// Returns the last level of the curriculum; 0 without one.
    pub fn last_level(&self) -> usize {
        match self {
            Self::Copying { config, .. } => config.last_level(),
            _ => 0,
        }
    }
}

/// Batches that are read one by one.
pub type FixedBatches<'a> = Box<dyn ExactSizeIterator<Item = Result<Batch, DataError>> + 'a>;

fn image_batch(images: &Images, places: impl Iterator<Item = usize>) -> Batch {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for i in places {
        images.grey(i, &mut inputs);
        targets.push(images.label(i) as u32);
    }
    Batch {
        batch: targets.len(),
        inputs,
        images: None,
        targets,
        time: PIXELS,
        scored: 1,
    }
}
