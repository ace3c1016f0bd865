//! Checks that the sequences that a trained model reads at once fit into memory.

use burn::tensor::Tensor;
use burn::tensor::activation::log_softmax;
use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::{BackendKind, OnBackend, PeakMemory};
use residual_zoo_core::{ConfigError, LanguageModel as _, ModelConfig, Vocabulary};
use residual_zoo_evaluate::most_rows;
use residual_zoo_report::bytes;
use residual_zoo_runs::RunConfig;
use residual_zoo_system::memory::Amount;

use super::passes::Passes;
use super::{ample, is_counted, shown};
use crate::Error;

/// The way in which a model reads several sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// An evaluation reads all sequences in one pass. Unless the model revises earlier positions, the evaluation
    /// continues from copies of the sequences' caches.
    Evaluation,
    /// A server keeps the cache of each sequence. The server reads some thousand tokens of prompts at a time.
    Serving,
    /// Generation reads all prompts in one pass, and keeps the cache of each text.
    Generation {
        /// Maximum number of tokens of a text that are read in one pass.
        read: usize,
    },
}

/// Sequences that a model reads at once.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// The option that an error is about, and its value.
    pub option: (&'a str, usize),
    /// The remedy if the sequences do not fit into memory.
    pub remedy: &'a str,
    /// The number of sequences or images.
    pub rows: usize,
    /// The number of tokens of the longest sequence. Tokens beyond the context do not count.
    pub time: usize,
    /// The way in which the model reads the sequences.
    pub reading: Reading,
}

/// Refuses to read `sequences`, or images, at once if they are estimated to take more than the `available` bytes of
/// this machine. Needs no loaded model.
///
/// Clear cases are decided at once, by the sizes of the model alone. In all other cases, the memory is extrapolated
/// from small copies that read short sequences or, for images, from the model itself on a few images. No sequences are
/// refused if the backend has its own memory or does not count its memory.
///
/// # Errors
///
/// Returns an error with the approximate bytes of the sequences if they do not fit. Returns [`Error::Stopped`] if the
/// user stops the program during the check.
pub fn check_reading<C: ModelConfig>(
    config: &RunConfig<C>,
    vocabulary: Vocabulary,
    (kind, gpu): (BackendKind, Option<usize>),
    sequences: Sequences,
    available: Option<Amount>,
) -> Result<(), Error> {
    let Some(limit) = available.filter(|_| is_counted(kind)) else {
        return Ok(());
    };
    let available = limit.bytes as f64;
    let config = &RunConfig {
        model: config.model.outside_training(),
        ..config.clone()
    };
    let is_text = vocabulary.image().is_none();
    let context = config.model.shape().context;
    let time = sequences.time.clamp(1, context.max(1));
    let Sequences { rows, reading, .. } = sequences;
    let together = match reading {
        Reading::Evaluation if is_text => most_rows(rows, time),
        _ => rows,
    };
    let together = together.max(1);
    let of = |rows| {
        let mut config = config.clone();
        config.train.batch = rows;
        config.train.time = is_text.then_some(time);
        config
    };
    // Memory that is ample for training is ample for reading.
    if ample(&of(together), vocabulary) <= available {
        return Ok(());
    }
    let needed = match is_text {
        true => {
            let sizes = (together, time, reading);
            let passes = Passes::measure(config, vocabulary, (kind, gpu), sizes, available);
            passes.map(|passes| passes.needed(together, time, reading))
        }
        false => of_images(config, vocabulary, (kind, gpu), together),
    };
    // A stopped measurement has no result.
    Error::unless_stopped()?;
    match needed {
        Some(needed) if needed > available => {
            let (option, value) = sequences.option;
            let problem = format!(
                "is {value}, with which the model takes about {} of memory, but there are only {}; {}",
                bytes(needed),
                shown(limit),
                sequences.remedy
            );
            Err(ConfigError::new(option, problem).into())
        }
        _ => Ok(()),
    }
}

/// Number of images that are read to measure the memory of one image.
const FEW_IMAGES: usize = 8;

/// Estimates the number of bytes of the model and of `together` images, from passes over a few images.
fn of_images<C: ModelConfig>(
    config: &RunConfig<C>,
    vocabulary: Vocabulary,
    (kind, gpu): (BackendKind, Option<usize>),
    together: usize,
) -> Option<f64> {
    let few = together.min(FEW_IMAGES);
    let measure = |rows| {
        Error::unless_stopped().ok()?;
        let read = Images {
            config,
            vocabulary,
            rows,
        };
        let memory = PeakMemory::start(kind, gpu);
        kind.run(gpu, read).ok()?.ok()?;
        Some(memory.bytes()? as f64)
    };
    let first = measure(few)?;
    let more = few.min(together - few);
    let of_one = match more {
        0 => 0.0,
        more => (measure(few + more)? - first) / more as f64,
    };
    Some(first + (together - few) as f64 * of_one)
}

/// Reads images.
struct Images<'a, C> {
    config: &'a RunConfig<C>,
    vocabulary: Vocabulary,
    rows: usize,
}

impl<C: ModelConfig> OnBackend for Images<'_, C> {
    type Output = Result<(), ConfigError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let model = (self.config.model).build::<B::InnerBackend>(self.vocabulary, &device)?;
        if let Some(size) = self.vocabulary.image() {
            let shape = [self.rows, size.channels, size.height, size.width];
            let images = Tensor::<B::InnerBackend, 4>::zeros(shape, &device);
            log_softmax(model.classify(images), 1).into_data();
        }
        Ok(())
    }
}
