//! Checks that the sequences that a trained model reads at once fit into memory.

use burn::tensor::activation::log_softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use residual_zoo_backend::{BackendKind, OnBackend, PeakMemory, allocated};
use residual_zoo_core::{ConfigError, LanguageModel as _, ModelConfig, Vocabulary};
use residual_zoo_evaluate::{MOST_LOGITS, most_rows};
use residual_zoo_report::bytes;
use residual_zoo_runs::RunConfig;
use residual_zoo_system::memory::Amount;

use super::{ample, is_counted, shown};
use crate::Error;
use crate::try_memory::TOKENS;

/// The way a model reads several sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// An evaluation reads all sequences in one pass.
    Evaluation,
    /// A server keeps the cache of each sequence.
    Serving,
}

/// Refuses to read `rows` sequences or images at once if they are estimated to take more than the `available` bytes of
/// this machine. Needs no loaded model. The option `option` sets the number of sequences.
///
/// Sizes decide clear cases at once. In all other cases, a model of the same config reads a few sequences of full
/// length, which takes some seconds. Nothing is refused if the backend has memory of its own or does not count its
/// memory.
///
/// # Errors
///
/// Returns an error with the approximate bytes of the sequences if they do not fit. Returns [`Error::Stopped`] if the
/// user stops the program meanwhile.
pub fn check_reading<C: ModelConfig>(
    config: &RunConfig<C>,
    vocabulary: Vocabulary,
    (kind, gpu): (BackendKind, Option<usize>),
    (option, rows, reading): (&str, usize, Reading),
    available: Option<Amount>,
) -> Result<(), Error> {
    let Some(limit) = available.filter(|_| is_counted(kind)) else {
        return Ok(());
    };
    let available = limit.bytes as f64;
    let is_text = vocabulary.image().is_none();
    let time = config.model.shape().context;
    let together = match reading {
        Reading::Evaluation if is_text => most_rows(rows, time),
        _ => rows,
    };
    let together = together.max(1);
    let of = |rows| {
        let mut config = config.clone();
        config.train.batch = rows;
        config.train.time = None;
        config
    };
    // Memory that is ample for training is ample for reading.
    if ample(&of(together), vocabulary) <= available {
        return Ok(());
    }
    let few = match is_text {
        true => (TOKENS / time).clamp(1, together),
        false => together.min(FEW_IMAGES),
    };
    let measure = |rows| {
        Error::unless_stopped().ok()?;
        let read = Read {
            config,
            vocabulary,
            rows,
            reading,
        };
        let memory = PeakMemory::start(kind, gpu);
        let kept = kind.run(gpu, read).ok()?.ok()?;
        Some([memory.bytes()? as f64, kept])
    };
    let needed = || {
        let [first, kept] = measure(few)?;
        if reading == Reading::Serving {
            return Some(first + kept * (together as f64 / few as f64 - 1.0));
        }
        let more = few.min(together - few);
        let of_one = match more {
            0 => 0.0,
            more => (measure(few + more)?[0] - first) / more as f64,
        };
        let left = (together - few) as f64;
        Some(first + left * of_one + logits(config, vocabulary, together))
    };
    let needed = needed();
    // A stopped measurement has no result.
    Error::unless_stopped()?;
    match needed {
        Some(needed) if needed > available => {
            let problem = format!(
                "is {rows}, with which the model takes about {} of memory, but there are only {}; give a smaller number",
                bytes(needed),
                shown(limit)
            );
            Err(ConfigError::new(option, problem).into())
        }
        _ => Ok(()),
    }
}

/// Number of images that are read to measure the memory of one.
const FEW_IMAGES: usize = 8;

/// Bytes of the logits of continuations and their logarithms, which an evaluation computes a part at a time.
fn logits<C: ModelConfig>(config: &RunConfig<C>, vocabulary: Vocabulary, rows: usize) -> f64 {
    if vocabulary.image().is_some() || config.model.revises() {
        // The measurement includes them.
        return 0.0;
    }
    let all = rows as f64 * config.model.shape().context as f64 * vocabulary.outputs as f64;
    let part = (MOST_LOGITS as f64).max(rows as f64 * vocabulary.outputs as f64);
    4.0 * 4.0 * all.min(part)
}

/// Reads sequences of full length, or images. Returns the bytes of their cache.
struct Read<'a, C> {
    config: &'a RunConfig<C>,
    vocabulary: Vocabulary,
    rows: usize,
    reading: Reading,
}

impl<C: ModelConfig> OnBackend for Read<'_, C> {
    type Output = Result<f64, ConfigError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        self.kept::<B::InnerBackend>(&device)
    }
}

impl<C: ModelConfig> Read<'_, C> {
    fn kept<B: Backend>(&self, device: &B::Device) -> Result<f64, ConfigError> {
        let model = self.config.model.build::<B>(self.vocabulary, device)?;
        if let Some(size) = self.vocabulary.image() {
            let shape = [self.rows, size.channels, size.height, size.width];
            let images = Tensor::<B, 4>::zeros(shape, device);
            log_softmax(model.classify(images), 1).into_data();
            return Ok(0.0);
        }
        let ids = |time| Tensor::<B, 2, Int>::zeros([self.rows, time], device);
        let context = self.config.model.shape().context;
        if self.config.model.revises() && self.reading == Reading::Evaluation {
            log_softmax(model.forward(ids(context)), 2).into_data();
            return Ok(0.0);
        }
        let before = allocated().unwrap_or(0);
        let mut cache = model.new_cache();
        model.predict(ids(context), &mut cache).into_data();
        let kept = allocated().unwrap_or(0).saturating_sub(before);
        if self.reading == Reading::Evaluation && context > 1 {
            // A continuation starts from a copy of the cache.
            let mut cache = model.new_cache();
            model.predict(ids(context - 1), &mut cache).into_data();
            model.decode(ids(1), &mut cache.clone()).into_data();
        }
        Ok(kept as f64)
    }
}
