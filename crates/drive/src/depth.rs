//! The depth map of a run's model: how much each branch reads of each earlier output.

use burn::tensor::backend::{AutodiffBackend, Backend};
use residual_zoo_backend::OnBackend;
use residual_zoo_core::{ConfigError, DepthFit, DepthMap, LanguageModel as _, ModelConfig};
use residual_zoo_data::Corpus;
use residual_zoo_runs::{Error as RunError, Run};
use residual_zoo_system::console::warn;
use residual_zoo_train::{DeviceBatch, Interrupter, upload};

use crate::{Error, Place};

/// The default number of positions, and the maximum number per pass. Both are rounded up to whole sequences.
const POSITIONS: usize = 1024;
/// The default number of images, and the maximum number per pass.
const IMAGES: usize = 16;

/// The depth maps of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Depths {
    /// The map of each stream, in the order of computation.
    pub maps: Vec<DepthMap>,
    /// Number of sequences, or of images, that were read.
    pub sequences: usize,
}

/// Returns the depth maps of the chosen checkpoint of `run` on `sequences` validation sequences, or images, of
/// `corpus`. Reads fewer if the data have too few. The default is 16 images, or enough sequences for 1,024 positions.
///
/// # Errors
///
/// Returns an error if the data have other tokens or images than the run, or if the model has no depth map. Also
/// returns an error if the backend cannot be used or a file cannot be read. Returns [`Error::Stopped`] if the user
/// stops the program.
pub fn depth<C: ModelConfig>(
    run: &Run<C>,
    corpus: &Corpus,
    sequences: Option<usize>,
    place: impl Into<Place>,
    stop: &Interrupter,
) -> Result<Depths, Error> {
    if run.tokenizer.fingerprint() != corpus.tokenizer.fingerprint() {
        let problem = "has other tokens or classes than the run's training data; give data of the same kind with `--data`";
        return Err(ConfigError::new("data.source", problem).into());
    }
    run.config.validate(residual_zoo_runs::vocabulary(corpus))?;
    for note in run.checkpoint()?.notes() {
        warn(&note);
    }
    place.into().run(Depth {
        run,
        corpus,
        sequences,
        stop,
    })?
}

struct Depth<'a, C> {
    run: &'a Run<C>,
    corpus: &'a Corpus,
    sequences: Option<usize>,
    stop: &'a Interrupter,
}

impl<C: ModelConfig> OnBackend for Depth<'_, C> {
    type Output = Result<Depths, Error>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        self.fit::<B::InnerBackend>(&device)
    }
}

impl<C: ModelConfig> Depth<'_, C> {
    fn fit<B: Backend>(&self, device: &B::Device) -> Result<Depths, Error> {
        let none = |problem: String| RunError::NoRun {
            path: self.run.directory().into(),
            problem,
        };
        let time = self.run.config.time();
        // All outputs of a pass are in memory, so the number of sequences per pass is limited.
        let at_once = match self.corpus.valid.images(1) {
            Some(_) => IMAGES,
            None => POSITIONS.div_ceil(time),
        };
        let asked = self.sequences.unwrap_or(at_once).max(1);
        let divides = |rows: &usize| asked.is_multiple_of(*rows);
        let rows = (1..=at_once.min(asked)).rev().find(divides).unwrap_or(1);
        let sequences = self.corpus.valid.sequences(time, "validation text")?;
        let model = self.run.model::<B>(device)?;
        let (mut fit, mut read) = (DepthFit::default(), 0);
        for batch in sequences.fixed_batches(asked / rows, rows) {
            if self.stop.should_stop() {
                return Err(Error::Stopped("nothing was written".into()));
            }
            let batch = batch?;
            read += batch.batch;
            let DeviceBatch { inputs, .. } = upload::<B>(&batch, device);
            let added = fit.add(|| {
                model.forward(inputs);
            });
            added.map_err(|error| none(format!("has no depth map: {error}")))?;
        }
        match fit.maps() {
            maps if maps.is_empty() => Err(none("has no validation data".into()).into()),
            maps => Ok(Depths {
                maps,
                sequences: read,
            }),
        }
    }
}
