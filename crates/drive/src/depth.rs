//! The depth map of a run's model: what each branch reads of the outputs before it.

use burn::tensor::backend::{AutodiffBackend, Backend};
use residual_zoo_backend::OnBackend;
use residual_zoo_core::{ConfigError, DepthFit, DepthMap, LanguageModel as _, ModelConfig};
use residual_zoo_data::Corpus;
use residual_zoo_runs::{Error as RunError, Run};
use residual_zoo_system::console::warn;
use residual_zoo_train::{DeviceBatch, upload};

use crate::{Error, Place};

/// Number of positions of a pass. All outputs of a pass are in memory.
const POSITIONS: usize = 1024;

/// Returns the depth map of each stream of the chosen checkpoint of `run`, on `sequences` validation sequences,
/// or images, of `corpus`.
///
/// # Errors
///
/// Returns an error if the data have other tokens or images than the run, if a file cannot be read, or if the model
/// has no depth map.
pub fn depth<C: ModelConfig>(
    run: &Run<C>,
    corpus: &Corpus,
    sequences: usize,
    place: impl Into<Place>,
) -> Result<Vec<DepthMap>, Error> {
    if run.tokenizer.fingerprint() != corpus.tokenizer.fingerprint() {
        let problem = "has other tokens or classes than the run's training data; give data of the same kind with `--data`";
        return Err(ConfigError::new("data.source", problem).into());
    }
    run.config.validate(residual_zoo_runs::vocabulary(corpus))?;
    for (_, error) in run.checkpoint()?.passed_over {
        warn(&format!("passed over: {error}"));
    }
    place.into().run(Depth {
        run,
        corpus,
        sequences,
    })?
}

struct Depth<'a, C> {
    run: &'a Run<C>,
    corpus: &'a Corpus,
    sequences: usize,
}

impl<C: ModelConfig> OnBackend for Depth<'_, C> {
    type Output = Result<Vec<DepthMap>, Error>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        self.maps::<B::InnerBackend>(&device)
    }
}

impl<C: ModelConfig> Depth<'_, C> {
    fn maps<B: Backend>(&self, device: &B::Device) -> Result<Vec<DepthMap>, Error> {
        let none = |problem: String| RunError::NoRun {
            path: self.run.directory().into(),
            problem,
        };
        let time = self.run.config.time();
        let sequences = self.corpus.valid.sequences(time, "validation text")?;
        let rows = (POSITIONS / time).clamp(1, self.sequences);
        let batches = sequences.fixed_batches(self.sequences.div_ceil(rows), rows);
        let model = self.run.model::<B>(device)?;
        let mut fit = DepthFit::default();
        for batch in batches {
            let DeviceBatch { inputs, .. } = upload::<B>(&batch?, device);
            let added = fit.add(|| {
                model.forward(inputs);
            });
            added.map_err(|error| none(format!("has no depth map: {error}")))?;
        }
        match fit.maps() {
            maps if maps.is_empty() => Err(none("has no validation data".into()).into()),
            maps => Ok(maps),
        }
    }
}
